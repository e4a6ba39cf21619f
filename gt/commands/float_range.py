"""Options that are a number within a range. Next: the commands that have such."""

from __future__ import annotations

import math
from typing import Any

import click


class FloatRange(click.FloatRange):
    """As click's, but "nan" is in no range: no comparison finds it outside."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{number} is not in the range {self._describe_range()}.", param, ctx)
        return number


__all__ = ["FloatRange"]
