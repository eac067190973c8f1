"""trtconvert plugins"""

from __future__ import annotations

import dataclasses
import sys

import click

from trtconvert.cli import show


@click.group()
def command() -> None:
    """List the ops, or check one from pattern to kernel.

    \b
    trtconvert plugins list
    trtconvert plugins check LayerNormGelu
    trtconvert plugins check my_op.py
    """


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def list_(as_json: bool) -> None:
    """All registered ops.

    \b
    trtconvert plugins list
    """
    from trtconvert import registry  # --help must not load it

    header = ["name", "version", "pattern", "attributes", "dtypes", "from"]
    rows = [
        [
            op.name,
            op.version,
            op.pattern + (" (opt-in)" if op.opt_in else ""),
            ", ".join(f"{name}: {kind.__name__} = {getattr(op, name)!r}" for name, kind in op.attributes().items()),
            ", ".join(op.dtypes),
            op.__module__,
        ]
        for op in registry.ops()
    ]
    if as_json:
        show.as_json([dict(zip(header, row, strict=True)) for row in rows])
    else:
        show.table(header, rows)


@command.command("check")
@click.argument("op")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def check_(op: str, as_json: bool) -> None:
    """Check an op end to end: OP is a registered name, or a Python file that defines it.

    \b
    trtconvert plugins check LayerNormGelu
    trtconvert plugins check my_op.py
    """
    from trtconvert.check import check  # --help must not load it

    results = check(op)
    if as_json:
        show.as_json([dataclasses.asdict(result) for result in results])
    else:
        show.table(["op", "check", "verdict", "detail"], [[r.op, r.check, r.verdict, r.detail] for r in results])
    if any(result.verdict == "FAIL" for result in results):
        sys.exit(1)
    if any(result.verdict == "not run" for result in results):
        sys.exit(3)
