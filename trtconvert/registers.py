"""Registers, spills and shared memory of an op's kernels on every GPU, as the compiler reports them. Needs no GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from trtconvert.compiled import program_of
from trtconvert.kernel import ARCHITECTURES, Program, Usage, usage
from trtconvert.launch import Tensor
from trtconvert.op import Op


@dataclass(frozen=True)
class Row:
    """One kernel, compiled for one target. dtype: of the first input. defines: with which macros."""

    op: str
    kernel: str
    dtype: str
    defines: str
    target: str
    usage: Usage


def rows(
    cases: Iterable[tuple[Op, list[Tensor]]], everything: bool = False, run: Callable[..., Iterable[Any]] = map
) -> Iterator[Row]:
    """The kernels that the ops launch for these inputs, in all variants: each in each dtype for every target.

    A kernel's sets of macros take turns, one a target; everything: all of them for every target, which takes minutes.
    run: as `map`, where many processes may compile. Raises ConvertError when a kernel does not compile.
    """
    chosen = list(_chosen(cases, everything))
    programs, targets = [program for _, program, _ in chosen], [target for *_, target in chosen]
    for (op, program, target), used in zip(chosen, run(usage, programs, targets), strict=True):
        defines = " ".join(f"{name}={value}" for name, value in program.defines)
        for kernel, numbers in used.items():
            yield Row(op, kernel, program.dtypes[0], defines, target, numbers)


def _chosen(cases: Iterable[tuple[Op, list[Tensor]]], everything: bool) -> Iterator[tuple[str, Program, str]]:
    """What to compile: op, program and target."""
    groups: dict[tuple[str, str, tuple[str, ...]], dict[Program, None]] = {}
    for op, inputs in cases:
        for launches in op.variants(*inputs, *op.outputs(*inputs)):
            key = (op.name, inputs[0].dtype, tuple(one.kernel for one in launches))
            groups.setdefault(key, {})[program_of(op, inputs, launches)] = None
    for turn, ((op_name, *_), found) in enumerate(groups.items()):
        programs = list(found)
        for place, target in enumerate(ARCHITECTURES, turn * len(ARCHITECTURES)):
            yield from ((op_name, p, target) for p in (programs if everything else [programs[place % len(programs)]]))
