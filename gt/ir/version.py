"""gt's version: that of the ops, of their meaning and of the protocol. The package's metadata is read from here."""

__version__ = "0.1.0"
