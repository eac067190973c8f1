"""trtconvert doctor"""

from __future__ import annotations

import dataclasses

import click

from trtconvert.cli import show


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def command(as_json: bool) -> None:
    """Say what this machine can build and run, and what is missing.

    \b
    trtconvert doctor
    """
    from trtconvert.doctor import examine  # --help must not load it

    findings = examine()
    if as_json:
        show.as_json([dataclasses.asdict(finding) for finding in findings])
        return
    show.table(["", "what", "found"], [[finding.verdict, finding.what, finding.found] for finding in findings])
    for finding in findings:
        if finding.fix:
            click.echo(f"fix {finding.what}: {finding.fix}")
