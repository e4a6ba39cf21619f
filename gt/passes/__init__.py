"""Passes: graph in, graph out. See ``pipeline`` for the order."""
