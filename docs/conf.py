"""The documentation's site: ``python -m sphinx -W -b html docs build/docs``; ``-b linkcheck`` asks whether links lead somewhere."""

import re
from pathlib import Path

project = "gt"
extensions = ["myst_parser"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = "gt"
html_static_path = ["static"]
html_css_files = ["tables.css"]
exclude_patterns = ["__pycache__"]
pygments_style = "default"
linkcheck_timeout = 10
HERE = Path(__file__).parent.resolve()


def outside(app, name, source):
    """Links to files beside docs/ stay text: the site has the pages of docs/ alone."""
    page = HERE / f"{name}.md"

    def unlinked(match):
        target = (page.parent / match[2].partition("#")[0]).resolve()
        return match[0] if target.is_relative_to(HERE) and target.suffix == ".md" else match[1]

    source[0] = re.sub(r"\[([^\]]+)\]\((?!\w+:|#)([^)\s]+)\)", unlinked, source[0])


def setup(app):
    app.connect("source-read", outside)
