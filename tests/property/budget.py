"""How many examples a property is tried on: a fixed number here, ten times that with ``--hypothesis-profile thorough``."""

from __future__ import annotations

import hypothesis


def examples(count: int) -> hypothesis.settings:
    """Give the settings of a property that ``count`` new examples a run are enough for."""
    thorough = hypothesis.settings.get_current_profile_name() == "thorough"
    return hypothesis.settings(max_examples=count * (10 if thorough else 1))


__all__ = ["examples"]
