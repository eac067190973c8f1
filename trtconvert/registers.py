"""Registers, spills and shared memory of an op's kernels on every GPU, as the compiler reports them. Needs no GPU."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

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


def rows(cases: Iterable[tuple[Op, list[Tensor]]], everything: bool = False) -> Iterator[Row]:
    """All kernels that the ops launch for these inputs, in all variants.

    Each is compiled for every target when it is first seen with that dtype, and with further macros for the newest target,
    or for every one as well (everything). Raises ConvertError when one does not compile.
    """
    kernels: set[tuple[str, str, tuple[str, ...]]] = set()
    programs: set[Program] = set()
    for op, inputs in cases:
        for launches in op.variants(*inputs, *op.outputs(*inputs)):
            program = program_of(op, inputs, launches)
            if program in programs:
                continue
            programs.add(program)
            key = (op.name, inputs[0].dtype, tuple(one.kernel for one in launches))
            targets = ARCHITECTURES[-1:] if key in kernels and not everything else ARCHITECTURES
            kernels.add(key)
            defines = " ".join(f"{name}={value}" for name, value in program.defines)
            for target in targets:
                for kernel, used in usage(program, target).items():
                    yield Row(op.name, kernel, inputs[0].dtype, defines, target, used)
