"""``gt doctor``: whether gt can run here, and what to do where it cannot.

Next: ``gt.runtime.checks`` (what is looked at).
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

import click

MARKS = {"ok": "ok  ", "warning": "warn", "failed": "FAIL"}


@click.command()
@click.argument("address", required=False)
@click.option("--port", type=click.IntRange(1, 65535), multiple=True, help="A port that must be free here. Repeatable.")
@click.option("--quick", is_flag=True, help="Start no worker and load no torch: only what takes a moment.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object in place of text.")
def doctor(address: str | None, port: tuple[int, ...], quick: bool, as_json: bool) -> None:
    """Check this machine, and the server at ADDRESS if given: a verdict and what to do on each line.

    Ends with code 1 if anything failed, else 0. Warnings do not count.
    """
    from gt.runtime.checks import run_checks

    findings = []
    for finding in run_checks(address, port, quick):
        findings.append(finding)
        if not as_json:
            click.echo(f"{MARKS[finding.verdict]}  {finding.name}: {finding.text}")
            if finding.fix:
                click.echo(f"      -> {finding.fix}")
    failed = sum(f.verdict == "failed" for f in findings)
    if as_json:
        click.echo(json.dumps({"ok": not failed, "checks": [asdict(f) for f in findings]}, indent=2))
    else:
        click.echo(f"{len(findings)} checks, {failed} failed")
    sys.exit(1 if failed else 0)


__all__ = ["doctor"]
