"""Registers, spills and shared memory of every built-in kernel, for every target: python -m tests.bench.registers [OP ...]

Compiles with NVRTC, so it needs no GPU. A line has one kernel in one dtype: the registers of a thread for each target, and,
in bytes, what spills, stack and shared memory take; the most that any of the op's cases needs. Ends with exit code 1 if a
kernel spills.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

from trtconvert import check, registers, registry
from trtconvert.cli import show
from trtconvert.kernel import ARCHITECTURES, version
from trtconvert.op import Op
from trtconvert.registers import Row


def built_in() -> list[type[Op]]:
    """The ops that come with trtconvert."""
    return [op for op in registry.ops() if op.__module__.startswith("trtconvert.")]


@contextmanager
def compilers() -> Iterator[Callable[..., Iterable[Any]]]:
    """A `map` of many processes: NVRTC compiles one program at a time in each."""
    workers = min(16, len(os.sched_getaffinity(0)))
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        yield partial(pool.map, chunksize=4)


def table(found: Iterable[Row]) -> list[list[str]]:
    """A line for each kernel and dtype."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in found:
        groups.setdefault((row.kernel, row.dtype), []).append(row)
    return [[*key, *_line(group)] for key, group in groups.items()]


def _line(group: list[Row]) -> list[str]:
    def most(read: Callable[[Row], int], rows: list[Row] = group) -> str:
        return str(max(map(read, rows), default=""))

    registers = [
        most(lambda r: r.usage.registers, [r for r in group if r.target == target]) for target in ARCHITECTURES
    ]
    rest = (most(lambda r: r.usage.spills), most(lambda r: r.usage.stack), most(lambda r: r.usage.shared))
    return [*registers, *rest, str(len({r.defines for r in group}))]


def main(names: list[str]) -> int:
    chosen = [op for op in built_in() if not names or op.name in names]
    with compilers() as run:
        found = list(registers.rows((use for op in chosen for use in check.uses(op)), everything=True, run=run))
    print(
        f"NVRTC {version()}, {len(found)} kernels of {len(chosen)} ops; registers by target, then bytes, then sets of macros"
    )
    show.table(["kernel", "dtype", *ARCHITECTURES, "spills", "stack", "shared", "macros"], table(found))
    spilled = sum(row.usage.spills > 0 for row in found)
    print(f"{spilled} kernels spill")
    return 1 if spilled else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
