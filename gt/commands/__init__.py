"""The commands of ``gt`` that start and look after clusters, a file each.

Beside ``gt.cli``, which would otherwise grow with every command: it adds them to its group. Each module is its options and what they
lead to; what is done has its home in ``gt.runtime``, and is loaded when the command runs. Next: ``gt.cli``.
"""
