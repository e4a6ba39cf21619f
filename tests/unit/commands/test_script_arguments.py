"""Where gt's options end and a script's own arguments begin."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from gt.cli import main
from gt.commands.script_arguments import ScriptCommand, script_of


@click.command(cls=ScriptCommand)
@click.argument("source", required=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option("-n", "--workers", type=int)
@click.option("-m", "module")
@click.option("--loud", is_flag=True)
def line(source: str | None, arguments: tuple[str, ...], workers: int | None, module: str | None, loud: bool) -> None:
    """Say what was understood."""
    click.echo(f"{source} {list(arguments)} {workers} {module} {loud}")


@pytest.mark.parametrize(
    ("words", "understood"),
    [
        ("a.py", "a.py [] None None False"),
        ("a.py -n 4", "a.py [] 4 None False"),
        ("-n 4 a.py", "a.py [] 4 None False"),
        ("-n4 a.py --loud x", "a.py ['x'] 4 None True"),
        ("--workers=4 a.py -x", "a.py ['-x'] 4 None False"),
        ("a.py -n 4 --lr 0.1 -n 9", "a.py ['--lr', '0.1', '-n', '9'] 4 None False"),
        ("a.py first -n 4", "a.py ['first', '-n', '4'] None None False"),
        ("a.py -- -n 4", "a.py ['-n', '4'] None None False"),
        ("-- a.py -n 4", "a.py ['-n', '4'] None None False"),
        ("a.py --help", "a.py ['--help'] None None False"),
        ("a.py -", "a.py ['-'] None None False"),
        ("-m pkg.mod -n 2 x --y", "x ['--y'] 2 pkg.mod False"),
        ("-n 2 -m pkg.mod", "None [] 2 pkg.mod False"),
    ],
)
def test_what_is_whose(words: str, understood: str) -> None:
    done = CliRunner().invoke(line, words.split())
    assert (done.output, done.exit_code) == (understood + "\n", 0)


@pytest.mark.parametrize(
    ("words", "said"),
    [("--nodes 3 a.py", "No such option"), ("a.py -n four", "Invalid value"), ("a.py -n", "requires an argument")],
)
def test_what_is_wrong_is_said(words: str, said: str) -> None:
    done = CliRunner().invoke(line, words.split())
    assert done.exit_code == 2 and said in done.output


def test_help_before_the_script_is_gts() -> None:
    assert CliRunner().invoke(line, ["--help", "a.py"]).output.startswith("Usage: line")


@pytest.mark.parametrize("command", sorted(main.commands))
@pytest.mark.parametrize("word", ["-h", "--help"])
def test_all_commands_help_by_both_words(command: str, word: str) -> None:
    done = CliRunner().invoke(main, [command, word])
    assert done.exit_code == 0 and done.output.startswith("Usage: ") and "Show this message and exit." in done.output


def test_the_short_word_behind_a_script_is_the_scripts() -> None:
    done = CliRunner().invoke(line, ["a.py", "-h"], help_option_names=["-h", "--help"])
    assert done.output == "a.py ['-h'] None None False\n"


def test_what_python_gets(tmp_path: Path) -> None:
    script = tmp_path / "a.py"
    script.touch()
    assert script_of(str(script), None, ("x",)) == [str(script), "x"]
    assert script_of("x", "pkg.mod", ("y",)) == ["-m", "pkg.mod", "x", "y"]
    assert script_of(None, "pkg.mod", ()) == ["-m", "pkg.mod"]
    for source in (None, str(tmp_path), str(tmp_path / "b.py")):
        with pytest.raises(click.UsageError):
            script_of(source, None, ())
