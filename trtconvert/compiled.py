"""An op for given inputs as data: its launches and machine code, which is all that a plan keeps of a plugin."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from trtconvert import launch
from trtconvert.errors import ConvertError
from trtconvert.kernel import Program, compile_kernel
from trtconvert.launch import Launches, Tensor
from trtconvert.op import Op


@dataclass(frozen=True)
class Compiled:
    """Launches and their kernels for each architecture: all that the plan keeps of a plugin."""

    text: str
    launches: Launches
    images: Mapping[str, bytes]

    @cached_property
    def dims(self) -> dict[int, tuple[int, ...]]:
        """The axes of each input whose sizes the launches depend on."""
        pairs = launch.dims_used(self.launches)
        return {tensor: tuple(axis for t, axis in pairs if t == tensor) for tensor, _ in pairs}


def compile_op(op: Op, inputs: list[Tensor], targets: tuple[str, ...], variant: int = 0) -> Compiled:
    """The op's launches for these inputs, in that one of its variants, and their kernels for each target."""
    launches = op.variants(*inputs, *op.outputs(*inputs))[variant]
    text = launch.encode(launches, f"{op.name} {op.version} {op.namespace}".rstrip(), op.values())
    program = program_of(op, inputs, launches)
    return Compiled(text, launch.decode(text), {arch: compile_kernel(program, arch) for arch in targets})


def program_of(op: Op, inputs: list[Tensor], launches: Launches) -> Program:
    """What is compiled for these launches, which must have the same defines."""
    defines, *others = dict.fromkeys(one.defines for one in launches)
    if others:
        raise ConvertError(
            f"{op.name}: launches that follow each other have different defines, and would need two images"
        )
    return Program(launches[0].kernel, op.source, defines, (inputs[0].dtype, op.outputs(*inputs)[0].dtype))
