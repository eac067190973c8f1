"""How commands print: tables and JSON on stdout, notes on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click


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
    """A progress bar on stderr when that is a terminal; elsewhere a line where it takes long: when something is measured."""
    if not sys.stderr.isatty():

        def say(phase: str, step: int, steps: int) -> None:
            if step == 0 and phase.startswith("measuring"):
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
