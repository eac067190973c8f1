"""Whether a match may be fused, exactly, and what the op's inputs then are."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtconvert.graph import GraphView, Shape
from trtconvert.launch import Dim, Size, Tensor
from trtconvert.matching.algebra import passes
from trtconvert.matching.arithmetic import Match
from trtconvert.model import dtype_name, numpy_dtype
from trtconvert.op import Op
from trtconvert.pattern import PerChannel

_PRECISION = {"float16": 1, "bfloat16": 1, "float32": 2, "float64": 3}


class Refused(Exception):
    """A full match that must not be fused, with the reason."""


@dataclass(frozen=True)
class Computed:
    """An input of the op that is no constant: the tensor, to be brought to this shape and dtype where they differ."""

    tensor: str
    shape: tuple[int, ...] | None
    cast: bool


@dataclass(frozen=True)
class Site:
    """A match that is to be fused. nodes: those that go. parameters: the op's further inputs. channels_last: the op has axis
    -1, of data whose axis 1 a Transpose moves to the end, and another one back."""

    op: Op
    match: Match
    nodes: frozenset[int]
    output: str
    dtype: str
    rank: int | None
    parameters: dict[str, NDArray[Any] | Computed]
    channels_last: bool = False


def accept(view: GraphView, op: type[Op], match: Match, output: str) -> Site:
    """The site, or Refused: tensors inside that are needed elsewhere, inputs that the op or its broadcasting forbids."""
    instance = op(**{**op().values(), **match.attributes})
    match, output = _with_cast(view, instance, match, output)
    nodes = _removable(view, match)
    _check_interior(view, nodes, output)
    inside = [name for name in match.bound.values() if view.producers.get(name) in nodes]
    if inside:
        raise Refused(f"{inside[0]}, which it makes itself, is also an input of it")
    data = _Data(view, instance, match, output)
    for name, value in match.attributes.items():
        if isinstance(value, float) and not math.isclose(np.float32(value), value, rel_tol=1e-6):
            raise Refused(f"{name} is {value}, which float32 cannot hold")
    data.check()
    axis = int(match.attributes.get("axis", op.parameter_axis))
    parameters = _Parameters(view, op, match, data, axis).all()
    reason = instance.accepts(*data.symbols(parameters))
    if reason is not None:
        raise Refused(reason)
    return Site(instance, match, nodes, output, data.dtype, data.rank, parameters)


def _result_dtype(op: Op, dtype: str) -> str:
    """The dtype of the op's result for data of this dtype, whatever its shape."""
    return op.outputs(*op.unknown_inputs([dtype] * len(op.inputs())))[0].dtype


def _with_cast(view: GraphView, op: Op, match: Match, output: str) -> tuple[Match, str]:
    """Where 16-bit data is computed in float32: the Cast back, if it is all that reads the result."""
    dtype = _result_dtype(op, view.info(match.bound[op.inputs()[0]]).dtype)
    readers = view.consumers.get(output, [])
    if view.info(output).dtype in ("", dtype) or len(readers) != 1 or output in view.outputs:
        return match, output
    node = view.nodes[readers[0]]
    if node.op_type != "Cast" or not passes(view, node) or view.info(node.output[0]).dtype != dtype:
        return match, output
    return match.with_nodes(frozenset(readers)), node.output[0]


def _removable(view: GraphView, match: Match) -> frozenset[int]:
    """The nodes less those that only hand on the op's input (a Cast, a DequantizeLinear) to others as well: they stay for
    those."""
    nodes = set(match.nodes)
    kept = set(match.bound.values())
    for index in sorted(nodes):
        node = view.nodes[index]
        if node.input and node.input[0] in kept and (passes(view, node) or node.op_type == "DequantizeLinear"):
            shared = node.output[0] in view.outputs or set(view.consumers.get(node.output[0], ())) - nodes
            if shared:
                nodes.discard(index)
                kept.add(node.output[0])
    return frozenset(nodes)


def _check_interior(view: GraphView, nodes: frozenset[int], output: str) -> None:
    """Whatever is made inside, but for the result, must be read inside only."""
    for index in sorted(nodes):
        for tensor in view.nodes[index].output:
            if not tensor or tensor == output:
                continue
            if tensor in view.outputs:
                raise Refused(f"{tensor} inside it is an output of the graph")
            outside = [i for i in view.consumers.get(tensor, ()) if i not in nodes]
            if outside:
                node = view.nodes[outside[0]]
                raise Refused(f"{tensor} inside it is also read by {node.name or node.op_type}")


class _Data:
    """The op's first input: dtype and shape, from whatever the graph knows."""

    def __init__(self, view: GraphView, op: Op, match: Match, output: str) -> None:
        self.view, self.op, self.match = view, op, match
        self.name = match.bound[op.inputs()[0]]
        info, self.result = view.info(self.name), view.info(output)
        inside = [view.nodes[i] for i in sorted(match.nodes)]
        self.casts = [n for n in inside if n.op_type == "Cast"]
        self.stashes = [n for n in inside if any(a.name == "stash_type" and a.i != 1 for a in n.attribute)]
        self.dtype = info.dtype or ("" if self.casts else self._dtype_of_the_rest())
        self.shape: Shape | None = info.shape
        self.guessed = info.shape is None and self.result.shape is not None and not match.moved
        if self.guessed:  # right unless a constant adds dimensions, which is refused then
            self.shape = (None,) * len(self.result.shape or ())

    def _dtype_of_the_rest(self) -> str:
        """ONNX has one dtype for all operands: that of the result, if the op keeps it, or of any other input."""
        kept = [self.result] if _result_dtype(self.op, "") == "" else []
        others = [*kept, *(self.view.info(t) for t in (*self.match.bound.values(), *sorted(self.match.numbers)))]
        return next((i.dtype for i in others if i.dtype), "")

    @property
    def rank(self) -> int | None:
        return None if self.shape is None else len(self.shape)

    def check(self) -> None:
        op, wanted = self.op, _result_dtype(self.op, self.dtype)
        taken = (*op.dtypes, "float64") if "float32" in op.dtypes else op.dtypes  # TensorRT makes float of double
        if self.dtype not in taken:
            raise Refused(
                f"the dtype of {self.name} is {self.dtype or 'unknown'}; the kernel takes {', '.join(op.dtypes)}"
            )
        if self.result.dtype not in ("", wanted):
            raise Refused(f"{self.name} is {self.dtype}, the result {self.result.dtype}; the op makes it {wanted}")
        if not self.match.moved and self.shape is not None and self.result.shape is not None:
            pairs = [p for p in zip(self.shape, self.result.shape, strict=False) if all(isinstance(d, int) for d in p)]
            if len(self.shape) != len(self.result.shape) or any(a != b for a, b in pairs):
                raise Refused(f"{self.name} has shape {list(self.shape)}, the result {list(self.result.shape)}")
        for node in (*self.casts, *self.stashes):
            to = dtype_name(next(a.i for a in node.attribute if a.name in ("to", "stash_type")))
            if to != self.dtype and _PRECISION.get(to, 0) <= _PRECISION.get(self.dtype, 0):
                raise Refused(f"{node.name or node.output[0]} inside it rounds {self.dtype} to {to}")
        for number in sorted(self.match.numbers):
            self._check_broadcast(number)

    def _check_broadcast(self, number: str) -> None:
        """A constant must not expand what it is applied to."""
        value = self.view.constant(number)
        if value is None or value.ndim == 0:
            return
        shapes = [s for s in (self.shape, self.result.shape) if s is not None and not self.guessed]
        for shape in shapes or [(None,)]:
            sizes = shape[len(shape) - value.ndim :] if value.ndim <= len(shape) else (None,) * value.ndim
            fits = value.ndim <= len(shape) and all(d in (1, s) for d, s in zip(value.shape, sizes, strict=True))
            if not fits:
                raise Refused(f"the constant {number} has shape {list(value.shape)}, which could expand the result")

    def symbols(self, parameters: dict[str, NDArray[Any] | Computed]) -> list[Tensor]:
        """The op's inputs as `accepts` sees them; where a size is unknown it stays a Dim."""
        tensors = [Tensor(self.dtype, _sizes(0, self.shape or ()), "in 0")] if self.shape is not None else []
        if not tensors:  # as many axes as the parameters have, at least
            some = [p.shape for p in parameters.values() if isinstance(p, np.ndarray)]
            tensors = [Tensor(self.dtype, _sizes(0, (None,) + (some[0] if some else ())), "in 0")]
        for i, value in enumerate(parameters.values(), start=1):
            if isinstance(value, np.ndarray):
                tensors.append(Tensor(value.dtype.name, tuple(value.shape), f"in {i}"))
            else:
                shape = value.shape or self.view.info(value.tensor).shape or ()
                tensors.append(Tensor(self.dtype, _sizes(i, shape), f"in {i}"))
        return tensors


def _sizes(tensor: int, shape: Shape) -> tuple[Size, ...]:
    return tuple(d if isinstance(d, int) else Dim.of_input(tensor, axis) for axis, d in enumerate(shape))


class _Parameters:
    """The op's inputs that are broadcast along the normalised axes, each as a tensor of just these axes."""

    def __init__(self, view: GraphView, op: type[Op], match: Match, data: _Data, axis: int) -> None:
        self.view, self.op, self.match, self.data = view, op, match, data
        count = -axis if axis < 0 else 1
        last = -1 if axis < 0 else axis - (data.rank or 0)
        self.positions = list(range(last - count + 1, last + 1))  # the normalised axes, counted from the end
        if axis >= 0 and data.rank is None and len(op.inputs()) > 1:
            raise Refused(f"the rank of {data.name} is unknown")
        if data.rank is not None and data.rank < count:
            raise Refused(f"{data.name} has {data.rank} dimensions, {count} are normalised")
        known = data.shape or ()
        self.sizes = [known[p] if -p <= len(known) else None for p in self.positions]

    def all(self) -> dict[str, NDArray[Any] | Computed]:
        names = self.op.inputs()[1:]
        shapes = {name: self._seen_shape(name) for name in names if name in self.match.bound}
        for shape in shapes.values():
            for i, p in enumerate(self.positions):  # an unknown size of the data shows in what is applied to it
                if (
                    not isinstance(self.sizes[i], int)
                    and -p <= len(shape)
                    and isinstance(shape[p], int)
                    and shape[p] != 1
                ):
                    self.sizes[i] = shape[p]
        found = {name: self._one(name, shapes.get(name)) for name in names}
        for fold, (tensor, power) in sorted(self.match.folded.items(), key=lambda item: item[0].kind):  # factor first
            self._fold(found, fold.kind, fold.scale, fold.bias, tensor, power)
        return {name: self._rounded(name, value) for name, value in found.items()}

    def _seen_shape(self, name: str) -> Shape:
        """The shape in which the graph applies it, each dimension 1 or a normalised axis."""
        tensor, value = self.match.bound[name], self._constant(name)
        shape = self.view.info(tensor).shape if value is None else value.shape
        if shape is None:
            raise Refused(f"the shape of {tensor} ({name}) is unknown")
        if name in self.match.along:
            return self._seen_along(tensor, name, shape, self.match.along[name])
        self._check_positions(tensor, name, shape)
        return shape

    def _constant(self, name: str) -> NDArray[Any] | None:
        """The value of an input that is a constant; one value a group is one for each of its channels."""
        value, lies = self.view.constant(self.match.bound[name]), self.match.along.get(name)
        if value is None or lies is None or lies.groups is None:
            return value
        groups, channels = int(self.match.attributes[lies.groups.name]), self.sizes[0]
        fits = value.shape == (groups,) and isinstance(channels, int) and channels > groups and channels % groups == 0
        return np.repeat(value, channels // groups) if fits and isinstance(channels, int) else value

    def _seen_along(self, tensor: str, name: str, shape: Shape, lies: PerChannel) -> Shape:
        """One value a channel: of the last axis of what the op's data is there (-1), or of an axis of the data itself."""
        axis = lies.axis if isinstance(lies.axis, int) else -1
        if not shape or any(size != 1 for size in shape[:-1]) or (axis >= 0 and len(shape) > 1):
            raise Refused(f"{tensor} ({name}) has shape {list(shape)}, not one value a channel")
        if self.data.rank is None:
            raise Refused(f"the rank of {self.data.name} is unknown")
        seen = (shape[-1], *(1,) * (-self.positions[0] - 1 if axis < 0 else self.data.rank - 1 - axis))
        self._check_positions(tensor, name, seen)
        return seen

    def _check_positions(self, tensor: str, name: str, shape: Shape) -> None:
        rank = len(self.positions) if self.data.rank is None or self.data.guessed else self.data.rank
        varies = [p for p in range(-len(shape), 0) if shape[p] != 1]
        known = {p: size for p, size in zip(self.positions, self.sizes, strict=True) if isinstance(size, int)}
        expands = [p for p in varies if isinstance(shape[p], int) and shape[p] != known.get(p, shape[p])]
        if len(shape) > rank or expands or any(p not in self.positions for p in varies):
            axes = [p + self.data.rank if self.data.rank is not None else p for p in self.positions]
            sizes = [self._size(p) for p in self.positions]
            raise Refused(
                f"{tensor} ({name}) has shape {list(shape)}, where axes {axes} of {self.data.name}, of size {sizes}, are "
                "normalised"
            )

    def _size(self, position: int) -> int | str | None:
        return self.sizes[self.positions.index(position)]

    def _shape(self) -> tuple[int, ...]:
        sizes = [s for s in self.sizes if isinstance(s, int)]
        if len(sizes) != len(self.sizes):
            raise Refused("the number of channels is unknown")
        return tuple(sizes)

    def _one(self, name: str, shape: Shape | None) -> NDArray[Any] | Computed:
        if shape is None:
            if name not in self.op.defaults:
                raise Refused(f"its input {name} is missing")
            return np.full(self._shape(), self.op.defaults[name], numpy_dtype(self.data.dtype))
        tensor, value = self.match.bound[name], self._constant(name)
        if value is not None:
            return self._spread(value.reshape(tuple(d for d in shape if isinstance(d, int))))
        other = self.view.info(tensor)
        sizes = tuple(shape[p] if -p <= len(shape) else 1 for p in self.positions)
        if sizes != tuple(self.sizes) or not all(isinstance(s, int) for s in sizes):
            raise Refused(f"{tensor} ({name}) is not a constant and has shape {list(shape)}, not {self.sizes}")
        target = None if other.shape == sizes else self._shape()
        return Computed(tensor, target, other.dtype not in ("", self.data.dtype))

    def _spread(self, value: NDArray[Any]) -> NDArray[Any]:
        """A constant that broadcasts against the data, on the normalised axes alone."""
        aligned = value.reshape((1,) * (-self.positions[0] - value.ndim) + value.shape) if value.ndim else value
        picked = aligned.reshape([aligned.shape[p] for p in self.positions]) if value.ndim else aligned
        shape = self._shape()
        return picked if picked.shape == shape else np.ascontiguousarray(np.broadcast_to(picked, shape))

    def _fold(self, found: dict[str, Any], kind: str, scale: str, bias: str, tensor: str, power: float) -> None:
        value = self.view.constant(tensor)
        assert value is not None
        self._check_positions(tensor, kind, value.shape)
        if not all(isinstance(found[name], np.ndarray) for name in (scale, bias)):
            raise Refused(f"{tensor} after it could only be folded into a constant {scale} and {bias}")
        constant = self._spread(value).astype(np.float64)
        with np.errstate(all="ignore"):
            if kind == "factor":
                found[scale] = found[scale].astype(np.float64) * constant**power
                found[bias] = found[bias].astype(np.float64) * constant**power
            else:
                found[bias] = found[bias].astype(np.float64) + power * constant
        if not all(np.isfinite(found[name].astype(np.float64)).all() for name in (scale, bias)):
            raise Refused(f"{tensor} after it makes {scale} or {bias} infinite")

    def _rounded(self, name: str, value: NDArray[Any] | Computed) -> NDArray[Any] | Computed:
        if isinstance(value, Computed) or value.dtype.name == self.data.dtype:
            return value
        with np.errstate(over="ignore"):
            cast = value.astype(numpy_dtype(self.data.dtype))
        if np.isfinite(value.astype(np.float64)).all() and not np.isfinite(cast.astype(np.float64)).all():
            raise Refused(f"{name} does not fit into {self.data.dtype}")
        return cast
