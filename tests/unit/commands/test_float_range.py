"""Options that are a number: what is none is refused as a word is."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from gt import cli, worker
from gt.commands.float_range import FloatRange

RANGES = [
    (command, option)
    for command in (*cli.main.commands.values(), worker.main)
    for option in command.params
    if isinstance(option.type, click.FloatRange)
]


def test_each_range_of_floats_is_one_that_refuses_nan() -> None:
    assert len(RANGES) >= 10 and all(isinstance(option.type, FloatRange) for _, option in RANGES)


@pytest.mark.parametrize("text", ["nan", "-NaN"])
def test_nan_is_in_no_range(text: str) -> None:
    done = CliRunner().invoke(cli.main, ["trace", "localhost:1", f"--seconds={text}"])
    assert done.exit_code == 2 and "'--seconds': nan is not in the range 0.01<=x<=600." in done.output


def test_what_is_in_the_range_is_taken() -> None:
    option = FloatRange(0, min_open=True)
    assert option.convert("1e-3", None, None) == 1e-3 and option.convert("inf", None, None) == float("inf")
    with pytest.raises(click.BadParameter, match=r"0\.0 is not in the range x>0\."):
        option.convert("0", None, None)
