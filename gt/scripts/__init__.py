"""gt's tools by module name, as ``python -m gt.scripts.top``. Each is the command of ``gt`` by that name. Next: ``gt.commands``."""
