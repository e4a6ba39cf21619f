"""``python -m gt``: the same as the ``gt`` command. Next: ``cli``."""

from gt.cli import main

if __name__ == "__main__":
    main(prog_name="python -m gt")
