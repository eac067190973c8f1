"""What part an input plays, told from the graph, so that random data is data that the model could get.

Ids lie within the table that they are looked up in, masks are 0 and 1, lengths lie within the dimension that they cut, images
are 0 to 1. What the graph does not tell, names do; where neither does, floats are standard normal, and integers 0 or 1.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from onnx import ModelProto, NodeProto

from trtconvert.feeds.flow import Flow, Use
from trtconvert.graph import GraphView, views
from trtconvert.lowering.functions import inline_local
from trtconvert.manifest import IO
from trtconvert.model import copy

IDS, MASK, PADDING, LENGTH, IMAGE, RAW, BITS, NORMAL = (
    *("ids", "mask", "padding mask", "length", "image", "raw", "0 or 1", "standard normal"),
)
GIVEN, VALUES = "given", "values"

_MASK_NAME = re.compile(r"mask", re.IGNORECASE)
_ATTENTION_NAME = re.compile(r"(attention|attn).*mask", re.IGNORECASE)
_PADDING_NAME = re.compile(r"pad", re.IGNORECASE)
_LENGTH_NAME = re.compile(r"(^|_|\.|/)(len|lens|length|lengths|seqlen|seqlens|seq_lens)$|lengths?$", re.IGNORECASE)
_POSITION_NAME = re.compile(r"position", re.IGNORECASE)
_NO_IMAGE_NAME = re.compile(r"mask|latent|noise|sample|embed|feature|hidden", re.IGNORECASE)
_RECURRENT = ("LSTM", "GRU", "RNN")
_COMPARISONS = ("Less", "LessOrEqual", "Greater", "GreaterOrEqual")
_INTEGER_MATHS = ("DequantizeLinear", "ConvInteger", "MatMulInteger", "QLinearConv", "QLinearMatMul")
_FIRST_LAYERS = (
    "Conv",
    "ConvInteger",
    "QLinearConv",
    "MatMul",
    "MatMulInteger",
    "QLinearMatMul",
    "Gemm",
)  # of an image
_MIN_PIXELS = 8  # height and width; smaller maps are features

Shapes: TypeAlias = "Mapping[str, Sequence[int]]"


@dataclass(frozen=True)
class Role:
    """What an input is taken for. low, high: bounds of its values, both included; None for standard normal ones. why: what says
    so, for people."""

    kind: str
    low: float | None
    high: float | None
    why: str

    @property
    def sentence(self) -> str:
        """`ids from 0 to 30521, as embed/Gather (Gather) takes them`."""
        if self.low is None:
            return f"{self.kind}, {self.why}" if self.why else self.kind
        bounds = "" if self.kind == BITS else f" from {self.low:g} to {self.high:g}"
        return f"{self.kind}{bounds}, {self.why}"


def of_inputs(model: ModelProto, folder: Path, inputs: Sequence[IO], shapes: Shapes) -> dict[str, Role]:
    """The role of each input where they have these shapes. folder: of external data."""
    asked = [io for io in inputs if _is_integer(io.dtype) or _layout(io, shapes[io.name])]
    flow = None
    if asked:
        flat = inline_local(copy(model)) if model.functions else model
        flow = Flow(views(flat, folder, {io.name: shapes[io.name] for io in inputs}))
    uses = {io.name: list(flow.uses(io.name, not _is_integer(io.dtype))) for io in asked if flow is not None}
    return {io.name: _role(io, shapes, uses.get(io.name, []), inputs) for io in inputs}


def _role(io: IO, shapes: Shapes, uses: Sequence[Use], inputs: Sequence[IO]) -> Role:
    shape = shapes[io.name]
    if io.dtype == "bool":
        return _mask(io.name, "by its name") if _MASK_NAME.search(io.name) else Role(BITS, 0, 1, "as bool")
    if not _is_integer(io.dtype):
        return _float(io, shape, uses)
    if index := _index(uses):
        return _within(index, io.dtype)
    if use := next((u for u in uses if _is_mask(u)), None):
        return _mask(io.name, f"as {use.title} takes them")
    if _MASK_NAME.search(io.name):
        return _mask(io.name, "by its name")
    if length := _length(io, shapes, uses, inputs):
        return _within(length, io.dtype)
    if _POSITION_NAME.search(io.name) and shape:
        return _within(Role(IDS, 0, max(0, shape[-1] - 1), "by its name"), io.dtype)
    if io.dtype in ("int8", "uint8"):
        info = np.iinfo(io.dtype)
        if use := next((u for u in uses if u.node.op_type in _INTEGER_MATHS), None):
            return Role(RAW, info.min, info.max, f"as {use.title} takes them")
        return Role(RAW, info.min, info.max, f"as {io.dtype}")
    return Role(BITS, 0, 1, "as nothing says more of it")


def _float(io: IO, shape: Sequence[int], uses: Sequence[Use]) -> Role:
    if _ATTENTION_NAME.search(io.name) and len(shape) == 2:
        return _mask(io.name, "by its name")
    if any(use.node.op_type in _FIRST_LAYERS for use in uses):
        return Role(IMAGE, 0, 1, f"by its shape: {_layout(io, shape)}")
    return Role(NORMAL, None, None, "")


def _layout(io: IO, shape: Sequence[int]) -> str:
    """How the pixels of what may be an image lie; empty if it cannot be one."""
    if io.dtype.startswith(("float", "bfloat")) and len(shape) == 4 and not _NO_IMAGE_NAME.search(io.name):
        for layout, channels, pixels in (("NCHW", shape[1], shape[2:]), ("NHWC", shape[3], shape[1:3])):
            if channels in (1, 3, 4) and min(pixels) >= _MIN_PIXELS:
                return f"{layout} with {channels} channel{'s' * (channels > 1)}"
    return ""


def _mask(name: str, why: str) -> Role:
    return Role(PADDING if _PADDING_NAME.search(name) else MASK, 0, 1, why)


def _within(role: Role, dtype: str) -> Role:
    """The role, in the dtype's bounds."""
    info = np.iinfo(dtype)
    low = max(role.low or 0, info.min)
    return Role(role.kind, low, max(low, min(role.high or 0, info.max)), role.why)


# --- what the graph says -------------------------------------------------------------------------------------------


def _index(uses: Iterable[Use]) -> Role | None:
    """Ids: the bounds of all lookups together."""
    low, high, found = -np.inf, np.inf, None
    for use in uses:
        rows = _rows(use)
        if rows is not None:
            if rows - 1 - use.offset < high:
                found = use
            low, high = max(low, -use.offset), min(high, rows - 1 - use.offset)
    if found is None:
        return None
    return Role(IDS, low, max(low, high), f"as {found.title} takes them")


def _rows(use: Use) -> int | None:
    """How many places an index has at a use: None if it is none, 1 if nothing is known of the number."""
    node, position, view = use.node, use.position, use.view
    axis = int(view.attributes(node).get("axis", 0))
    if node.op_type in ("Gather", "GatherElements", "ScatterElements", "Scatter") and position == 1:
        return _size(use, 0, axis)
    if node.op_type in ("GatherND", "ScatterND") and position == 1:
        data, indices = view.info(node.input[0]).shape, view.info(node.input[1]).shape
        if not data or not indices or not isinstance(indices[-1], int):
            return 1
        batch = int(view.attributes(node).get("batch_dims", 0))
        sizes = data[batch : batch + indices[-1]]
        return min((d for d in sizes if isinstance(d, int)), default=1) if all(isinstance(d, int) for d in sizes) else 1
    if node.op_type == "OneHot" and position == 0:
        depth = view.uniform(node.input[1])
        return max(1, int(depth[0])) if depth is not None else 1
    if node.op_type == "EmbedLayerNormalization" and position in (0, 1):
        return _size(use, {0: 2, 1: 4}[position], 0)
    return None


def _size(use: Use, position: int, axis: int) -> int:
    """Size of a dimension of another input of the node; 1 if unknown."""
    shape = use.view.info(use.node.input[position]).shape
    size = shape[axis] if shape and -len(shape) <= axis < len(shape) else None
    return max(1, size) if isinstance(size, int) else 1


def _is_mask(use: Use) -> bool:
    """1 - x, as in (1 - mask) * -10000, and what is made bool."""
    node, view = use.node, use.view
    if node.op_type == "Sub" and use.position == 1:
        one = view.uniform(node.input[0])
        return one is not None and one[0] == 1
    return node.op_type == "Cast" and view.attributes(node).get("to") == 9  # bool


def _length(io: IO, shapes: Shapes, uses: Sequence[Use], inputs: Sequence[IO]) -> Role | None:
    """Numbers of steps: of a recurrence, of a reversal, or compared with 0, 1, 2 and so on."""
    if len(shapes[io.name]) > 2:
        return None
    for use in uses:
        node, title = use.node, f"as {use.title} takes them"
        if node.op_type in _RECURRENT and use.position == 4:
            batch_first = use.view.attributes(node).get("layout", 0) == 1
            return Role(LENGTH, 1, _size(use, 0, 1 if batch_first else 0), title)
        if node.op_type == "ReverseSequence" and use.position == 1:
            return Role(LENGTH, 1, _size(use, 0, int(use.view.attributes(node).get("time_axis", 0))), title)
        if node.op_type in _COMPARISONS and (steps := _steps(use, 1 - use.position)):
            return Role(LENGTH, 1, steps, title)
    if _LENGTH_NAME.search(io.name):
        return Role(LENGTH, 1, _longest(io, shapes, inputs), "by its name")
    return None


def _steps(use: Use, position: int) -> int | None:
    """The number of elements of an operand that counts them: a Range, or a constant 0, 1, 2 and so on."""
    view, name = use.view, use.node.input[position]
    constant = view.constant(name)
    if constant is not None:
        counted = constant.size > 1 and np.array_equal(np.unique(np.diff(constant.ravel())), [1])
        return constant.size if counted else None
    maker = _origin(view, name)
    if maker is None or maker.op_type != "Range":
        return None
    shape = view.info(maker.output[0]).shape
    return shape[0] if shape and isinstance(shape[0], int) else _dimension(view, maker.input[1])


def _origin(view: GraphView, name: str) -> NodeProto | None:
    """The node that makes the tensor, behind those that only convert or reshape it."""
    maker = view.producer(name)
    while maker is not None and maker.op_type in ("Cast", "Identity", "Squeeze", "Unsqueeze", "Reshape", "Expand"):
        maker = view.producer(maker.input[0])
    return maker


def _dimension(view: GraphView, name: str) -> int | None:
    """The size that a number taken from a Shape is of."""
    maker, place = _origin(view, name), 0
    if maker is not None and maker.op_type in ("Gather", "Slice"):
        taken = view.constant(maker.input[1])
        if taken is None or taken.size != 1:
            return None
        maker, place = _origin(view, maker.input[0]), int(taken.reshape(-1)[0])
    if maker is None or maker.op_type != "Shape":
        return None
    attributes, sizes = view.attributes(maker), view.info(maker.input[0]).shape or ()
    some = sizes[attributes.get("start", 0) : attributes.get("end", len(sizes))]
    size = some[place] if -len(some) <= place < len(some) else None
    return size if isinstance(size, int) else None


def _longest(io: IO, shapes: Shapes, inputs: Sequence[IO]) -> int:
    """The dimension that a length is of, where only its name is known: of the input whose name it has, else of the first with
    such a dimension, the first open one behind the batch."""
    stem = _LENGTH_NAME.sub("", io.name).rstrip("_./")
    others = [other for other in inputs if other.name != io.name and len(shapes[other.name]) >= 2]
    others.sort(key=lambda other: not (stem and other.name.startswith(stem)))
    for other in others:
        declared, actual = other.shape or [], shapes[other.name]
        sizes = [a for d, a in zip(declared[1:], actual[1:], strict=False) if not isinstance(d, int)]
        return sizes[0] if sizes else actual[1]
    return 1


def _is_integer(dtype: str) -> bool:
    return dtype.startswith(("int", "uint"))
