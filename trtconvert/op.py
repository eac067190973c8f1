"""Op: the class an op author writes. One small class and one kernel make a fusion, a plugin and a verified result."""

from __future__ import annotations

import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any, ClassVar

from trtconvert.errors import ConvertError
from trtconvert.launch import Counted, Dim, Launch, Launches, Tensor

if typing.TYPE_CHECKING:
    from trtconvert.pattern import Builder, Expr

Attribute = float | int | str
_ATTRIBUTE_TYPES = (float, int, str)


@dataclass(frozen=True)
class Case:
    """One tested use of an op: a shape per input, and attributes that differ from the defaults."""

    shapes: tuple[tuple[int, ...], ...]
    attributes: tuple[tuple[str, Attribute], ...] = ()

    def __str__(self) -> str:
        shapes = " ".join("x".join(map(str, shape)) for shape in self.shapes)
        return " ".join([shapes, *(f"{name}={value}" for name, value in self.attributes)])


def case(*shapes: tuple[int, ...], **attributes: Attribute) -> Case:
    """A Case from shapes and attributes: `case((197, 768), (768,), (768,), axis=-1)`."""
    return Case(shapes, tuple(sorted(attributes.items())))


class Op:
    """An operator with its pattern, its kernel and its specification.

    Annotated class attributes (float, int or str, with a default) are ONNX attributes, plugin fields and constructor
    arguments at once. The methods below are all there is to write; each takes the op's inputs by name, in one order.
    """

    name: ClassVar[str]
    """ONNX op_type and plugin name; the class's name unless set."""
    version: ClassVar[str] = "1"
    """Plugin version. A breaking change gets a new version: old plans keep loading."""
    namespace: ClassVar[str] = ""
    """Plugin namespace."""
    pattern: ClassVar[str] = ""
    """What `--pattern` calls it; empty if the op is never fused, only used by name."""
    opt_in: ClassVar[bool] = False
    """True: fused only when asked for by `--pattern`, because it seldom pays."""
    dtypes: ClassVar[tuple[str, ...]] = ("float32", "float16", "bfloat16")
    """Dtypes that the kernel takes as inputs, as numpy names them."""
    defaults: ClassVar[Mapping[str, float]] = MappingProxyType({})
    """Inputs that a pattern may lack, with the value that then fills them."""
    parameter_axis: ClassVar[int] = -1
    """Axes along which inputs after the first lie, where no attribute `axis` says it: -k the last k, 0 and above one."""
    channels_last: ClassVar[bool] = False
    """Whether with attribute `axis` 1 it is the same as with -1 between Transposes that move that axis to the end and back."""
    landmarks: ClassVar[tuple[str, ...]] = ()
    """Op types that make a partial match worth reporting as a near miss."""
    source: ClassVar[str]
    """CUDA C++ text; IO and OUT are the C++ types of the first input and output, "common.cuh" may be included."""
    cases: ClassVar[tuple[Case, ...]] = ()
    """Shapes for tests and `plugins check`, odd sizes included."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.name = cls.__dict__.get("name", cls.__name__)

    def __init__(self, **attributes: Any) -> None:
        declared = self.attributes()
        for name, value in attributes.items():
            if name not in declared:
                raise ConvertError(f"{self.name} has no attribute {name!r}; it has {', '.join(declared) or 'none'}")
            setattr(self, name, value)

    @classmethod
    @cache
    def attributes(cls) -> dict[str, type]:
        """Name and type of each ONNX attribute, from the class's annotations."""
        hints = typing.get_type_hints(cls)
        found = {name: hint for name, hint in hints.items() if typing.get_origin(hint) is not ClassVar}
        for name, hint in found.items():
            if hint not in _ATTRIBUTE_TYPES or not hasattr(cls, name):
                raise ConvertError(f"{cls.__name__}.{name}: an attribute is a float, int or str with a default")
        return found

    @classmethod
    def inputs(cls) -> tuple[str, ...]:
        """Names of the inputs, from `output`'s parameters."""
        code = cls.output.__code__
        return code.co_varnames[1 : code.co_argcount]

    @classmethod
    def unknown_inputs(cls, dtypes: Sequence[str] | None = None) -> list[Tensor]:
        """Inputs of which no more than the dtypes is known: what outputs there are does not depend on their sizes."""
        dtypes = dtypes or cls.dtypes[:1] * len(cls.inputs())
        return [Tensor(t, tuple(Dim.of_input(i, axis) for axis in range(4)), f"in {i}") for i, t in enumerate(dtypes)]

    @classmethod
    def counts(cls) -> int:
        """How many dimensions of its outputs depend on the data."""
        op, inputs = cls(), cls.unknown_inputs()
        return len(op.outputs(*inputs)) - len(op.results(*inputs))

    def values(self) -> dict[str, Attribute]:
        """Attribute values of this instance."""
        return {name: getattr(self, name) for name in self.attributes()}

    def patterns(self, op: Builder, *inputs: Any, **_: Any) -> Iterator[Expr]:
        """Yield one expression per spelling that this op replaces; the same text writes the function body."""
        return iter(())

    def accepts(self, *inputs: Any, **_: Any) -> str | None:
        """None if the kernel takes these inputs, else the sentence why not. Sizes may be unknown (Dim)."""
        return None

    def output(self, *inputs: Any, **_: Any) -> Tensor | tuple[Tensor, ...]:
        """Dtype and shape of each output; a dimension that the kernel finds out is Counted."""
        raise NotImplementedError

    def reference(self, *inputs: Any, **_: Any) -> Any:
        """The specification: numpy float64 arrays in, float64 out."""
        raise NotImplementedError

    def launch(self, *tensors: Any, **_: Any) -> Launch | Launches | Iterator[Launch | Launches]:
        """The kernel launch for these inputs, outputs, and an int64 scalar for each Counted dimension; a tuple of launches
        runs in that order.

        Where several ways may be fastest, yield them: the first is taken when building ahead of time, so it states the
        rule; on the GPU that the engine is built for, the others are the plugin's tactics, and TensorRT times them all.
        """
        raise NotImplementedError

    def variants(self, *tensors: Tensor) -> list[Launches]:
        """`launch`, always as the list of ways."""
        result = self.launch(*tensors)
        ways = [result] if isinstance(result, Launch | tuple) else list(result)
        return [(way,) if isinstance(way, Launch) else way for way in ways]

    def results(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """`output`, always as a tuple."""
        result = self.output(*inputs)
        return result if isinstance(result, tuple) else (result,)

    def outputs(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """What the kernel writes, each with its pointer slot: `results`, then a scalar for each Counted dimension."""
        results = self.results(*inputs)
        counts = [Tensor("int64", ()) for t in results for size in t.shape if isinstance(size, Counted)]
        return tuple(Tensor(t.dtype, t.shape, f"out {i}") for i, t in enumerate((*results, *counts)))
