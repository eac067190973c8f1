"""How commands print: tables and JSON on stdout, notes on stderr."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from trtconvert.manifest import Precision

REASONS_SHOWN = 8
_NUMBER = re.compile(r"-?[\d.,]+(e[+-]?\d+)?")


def as_json(value: Any) -> None:
    """JSON on stdout."""
    click.echo(json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False, default=str))


def note(text: str) -> None:
    """A remark on stderr."""
    click.echo(text, err=True)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table on stdout: coloured by rich on a terminal, plain aligned text elsewhere."""
    from rich.console import Console  # not needed by --help
    from rich.table import Table

    console = Console(soft_wrap=True)
    if not console.is_terminal:
        widths = [max(len(str(row[i])) for row in [header, *rows]) for i in range(len(header))]
        for row in [header, *rows]:
            click.echo("  ".join(str(cell).ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
        return
    drawn = Table(*header, box=None, header_style="bold", pad_edge=False)
    for row in rows:
        drawn.add_row(*(str(cell) for cell in row))
    console.print(drawn)


def megabytes(size: int) -> str:
    """A file size for people."""
    return f"{size / 1e6:.2f} MB" if size >= 1e5 else f"{size / 1e3:.1f} kB"


def shape(dims: Sequence[int | str | None] | None) -> str:
    """`[N, 3, ?]`; what is not known as a question mark."""
    return "[" + ", ".join("?" if d is None else str(d) for d in dims) + "]" if dims is not None else "unknown rank"


@contextmanager
def progress() -> Iterator[Callable[[str, int, int], None]]:
    """A progress bar on stderr when that is a terminal; elsewhere a line where it takes long: when something is measured,
    or another process waited for."""
    if not sys.stderr.isatty():

        def say(phase: str, step: int, steps: int) -> None:
            if step == 0 and phase.startswith(("measuring", "waiting")):
                note(f"note: {phase}, {steps} to do" if steps > 1 else f"note: {phase}")

        yield say
        return
    from rich.console import Console  # not needed by --help
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        tasks: dict[str, Any] = {}

        def update(phase: str, step: int, steps: int) -> None:
            if phase not in tasks:
                tasks[phase] = bar.add_task(phase, total=steps or None)
            bar.update(tasks[phase], completed=step)

        yield update


def precision(made: Precision) -> Iterator[str]:
    """The converted model, and the nodes that were not converted, a line for all of one op that have the same reason but for
    its numbers."""
    if not made.file:
        return
    kept, (what, label) = len(made.kept), ("left float", "float") if made.name == "int8" else ("in fp32", "fp32")
    yield f"precision {made.name}, {kept or 'no'} node{'s' * (kept != 1)} {what}; converted model {made.file}"
    groups: dict[tuple[str, str], list[dict[str, str]]] = {}
    for node in made.kept:
        groups.setdefault((node["op"], _NUMBER.sub("", node["reason"])), []).append(node)
    for (op, _), nodes in list(groups.items())[:REASONS_SHOWN]:
        names = ", ".join(node["node"] for node in nodes[:2]) + (f" and {len(nodes) - 2} more" if nodes[2:] else "")
        yield f"{label:9} {op} x{len(nodes)}: {nodes[0]['reason']} ({names})"
    if len(groups) > REASONS_SHOWN:
        yield f"          and {len(groups) - REASONS_SHOWN} more reasons, see the manifest"
