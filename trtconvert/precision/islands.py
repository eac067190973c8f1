"""Which nodes stay in float32, and why: those that read, make or compute inside a value that the narrower type cannot hold."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, numpy_helper

from trtconvert.custom_ops.wishes import is_meant
from trtconvert.graph import GraphView
from trtconvert.model import STANDARD_DOMAINS, numpy_dtype
from trtconvert.precision import engines
from trtconvert.precision.int8_places import PRODUCTS
from trtconvert.precision.int8_weights import MOVES
from trtconvert.precision.kinds import Kind
from trtconvert.precision.measure import Extent, of_array
from trtconvert.precision.uses import Uses, epsilon

HEADROOM = 2.0  # other inputs than those measured may make values this many times as large
MASK = 0.5  # of the largest number: what a mask's -1e9 becomes, so that two of them added, or scores, do not overflow
IN_INT8 = "is quantized: its steps and sums are float32 in int8 products"
_MOVES = MOVES - {"Constant", "Cast"}  # TensorRT dequantizes behind them
STEPS = 4  # an epsilon of fewer least steps of the type is off by more than an eighth
TURN = 0.02  # radians by which an angle may be off
_LOSSES = ("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss")
_SQUARES = frozenset(
    (
        *("LayerNormalization", "InstanceNormalization", "GroupNormalization", "RMSNormalization", "LpNormalization"),
        *("MeanVarianceNormalization", "ReduceL2", "ReduceSumSquare"),
    )
)
_EXPONENTIALS = ("Softplus", "Mish", "ReduceLogSumExp")
_MEANS = ("ReduceMean", "GlobalAveragePool")
_PRONE = frozenset(  # to overflow: what stays where nothing could be measured
    (
        *(*_SQUARES, *_EXPONENTIALS, *_MEANS),
        *("Exp", "Pow", "ReduceSum", "Softmax", "LogSoftmax", "CumSum", "BatchNormalization", "Sqrt", "Reciprocal"),
    )
)


@dataclass
class Islands:
    """Says of each node of a model why it stays in float32.

    extents: by tensor, after the path of its graph; None if nothing could be measured. keep: nodes and ops that are to stay.
    """

    kind: Kind
    extents: Mapping[str, Extent] | None
    keep: Collection[str] = ()
    uses: Uses = field(default_factory=Uses)
    _constants: dict[tuple[int, str], Extent | None] = field(default_factory=dict)

    def reason(self, view: GraphView, node: NodeProto) -> str | None:
        """Why the node stays; None if it need not."""
        if any(is_meant(one, node) for one in self.keep):
            return "--keep-fp32"
        if node.domain not in STANDARD_DOMAINS:
            return next(self._of_values(view, node), None)
        if self._is_int8(view, node):
            return IN_INT8
        if (lacking := engines.lacking(node, self.kind.dtype)) is not None:
            return lacking
        reasons = chain(self._of_op(view, node), self._of_uses(view, node), self._of_values(view, node))
        return next(reasons, None)

    def _is_int8(self, view: GraphView, node: NodeProto) -> bool:
        """Whether it is quantized, or a product of what is. With float16 steps TensorRT-RTX 1.6.1 multiplies these in float16,
        where steps of 0.03 and 5e-4 overflow their reciprocal: on an H200, infinite or, relative L2, 2.7e-3 off instead of
        2e-4. A DequantizeLinear of weights that a product in floats reads may change."""
        if node.op_type == "QuantizeLinear":
            return view.info(node.output[0]).dtype == "int8"
        if node.op_type in _MOVES or _dequantizes(view, node):
            products = _products(view, node.output[0])
            return _from_int8(view, node.output[0]) and all(self._is_int8(view, product) for product in products)
        return node.op_type in PRODUCTS and all(_from_int8(view, name) for name in node.input[:2])

    def rounded(self, _name: str, array: NDArray[Any]) -> NDArray[Any]:
        """A constant in the narrower type: finite numbers stay finite, a mask's far from the type's end."""
        end = self.kind.largest
        beyond = np.isfinite(array) & (np.abs(array.astype(np.float64)) > end)
        held = np.where(beyond, np.sign(array) * end * MASK, array) if beyond.any() else array
        return np.asarray(held).astype(numpy_dtype(self.kind.dtype))

    # --- by the op

    def _of_op(self, view: GraphView, node: NodeProto) -> Iterator[str]:
        limit, op = self.kind.largest / HEADROOM, node.op_type
        if op in _LOSSES:
            yield "sums a loss over all elements"
        if op == "Cast" and "float8" in view.info(node.input[0]).dtype and self.kind.dtype == "bfloat16":
            yield "TensorRT has no Cast of float8 to bfloat16"
        if op == "QuantizeLinear" and "int16" in view.info(node.output[0]).dtype:
            yield f"makes integers of 16 bits, more than {self.kind.dtype} tells apart"
        if self.extents is None:
            if op in _PRONE and self.kind.dtype == "float16":
                yield "its values could not be measured"
            return
        data = self._extent(view, node.input[0]) if node.input and node.input[0] else None
        if data is None:
            return
        if op in _SQUARES and data.largest**2 > limit:
            yield f"squares values up to {data.largest:.3g}, {self.kind.dtype} ends at {self.kind.largest:.5g}"
        if op in _EXPONENTIALS and data.high > math.log(limit):
            yield f"takes the exponential of values up to {data.high:.3g}"
        if op in _MEANS and (made := self._extent(view, node.output[0])) is not None:
            count = _count(view, node)
            if count and made.largest * count > limit:
                yield f"sums {count:,} values to a mean of up to {made.largest:.3g}"

    # --- by what its tensors are for

    def _of_uses(self, view: GraphView, node: NodeProto) -> Iterator[str]:
        floats = [name for name in (*node.input, *node.output) if name and view.info(name).dtype == "float32"]
        made = [name for name in node.output if name in floats]
        if any(self.uses.is_size(view, name) for name in made):
            yield "computes with sizes of tensors"
        if self.uses.is_variance(view, node) or self.uses.makes_part_of_variance(view, node):
            yield "is part of a variance as the difference of squares, which cancel"
        large = [n for n in floats if self._reaches(view, n, self.kind.integers)]
        if any(self.uses.is_count(view, name) for name in large):
            yield f"counts beyond {self.kind.integers:,}, up to which {self.kind.dtype} holds every integer"
        widest = 2 * TURN * self.kind.integers  # the step between numbers of this size is twice the error
        angles = [n for n in floats if self._reaches(view, n, widest)]
        if any(self.uses.is_angle(view, name) for name in angles) or (node.op_type in ("Sin", "Cos", "Tan") and angles):
            yield f"takes the sine of angles beyond {widest:.0f}, which {self.kind.dtype} has to {TURN} radians"

    # --- by values

    def _of_values(self, view: GraphView, node: NodeProto) -> Iterator[str]:
        limit, dtype = self.kind.largest / HEADROOM, self.kind.dtype
        for verb, names in (("reads", node.input), ("makes", node.output)):
            for name in filter(None, names):
                if (constant := self._constant(view, name)) is not None:
                    yield from self._of_constant(view, node, name, constant)
                    continue
                extent = self._extent(view, name)
                if extent is not None and self._reaches(view, name, limit):
                    yield f"{verb} values up to {extent.largest:.3g}, {dtype} ends at {self.kind.largest:.5g}"
                floor = self._floor(view, name, extent)
                if floor < STEPS * self.kind.least and self.uses.is_divisor(view, name):
                    yield f"{verb} a divisor or the like as small as {floor:.1e}, {dtype} begins at {self.kind.least:.1e}"

    def _of_constant(self, view: GraphView, node: NodeProto, name: str, extent: Extent) -> Iterator[str]:
        dtype, end = self.kind.dtype, self.kind.largest
        masks = all(self.uses.is_mask(view, made) for made in node.output if made)
        if extent.high > end or (-extent.low > end and not masks):
            yield f"has the constant {extent.high if extent.high > end else extent.low:.3g}, {dtype} ends at {end:.5g}"
        if 0 < extent.largest < STEPS * self.kind.least:
            yield f"has the constant {extent.largest:.3g}, {dtype} begins at {self.kind.least:.1e}"
        if node.op_type == "BatchNormalization" and name == node.input[4] and extent.least < STEPS * self.kind.least:
            yield f"has a variance of {extent.least:.1e}, {dtype} begins at {self.kind.least:.1e}"

    def _reaches(self, view: GraphView, name: str, limit: float) -> bool:
        """Whether the tensor has values beyond the limit that matter: a mask's numbers below zero do not."""
        extent = self._extent(view, name)
        if extent is None or extent.largest <= limit:
            return False
        return extent.high > limit or not self.uses.is_mask(view, name)

    def _floor(self, view: GraphView, name: str, extent: Extent | None) -> float:
        """The least value that the tensor may have: as measured, or by the epsilon that was added."""
        return min(extent.least if extent is not None else math.inf, epsilon(view, name))

    def _extent(self, view: GraphView, name: str) -> Extent | None:
        """What was measured of the tensor, in whichever graph it is made."""
        at: GraphView | None = view
        while at is not None and self.extents is not None:
            if at.path + name in self.extents:
                return self.extents[at.path + name]
            at = at.parent
        return None

    def _constant(self, view: GraphView, name: str) -> Extent | None:
        """The extent of a float32 constant, None for what is none."""
        tensor = view.initializer(name)
        if tensor is None or view.info(name).dtype != "float32":
            return None
        key = (id(view), name)
        if key not in self._constants:
            base = str(view.folder) if tensor.data_location == TensorProto.EXTERNAL else ""
            self._constants[key] = of_array(np.asarray(numpy_helper.to_array(tensor, base)))
        return self._constants[key]


def _count(view: GraphView, node: NodeProto) -> int | None:
    """How many elements make one of the result, where that is known."""
    before, after = view.info(node.input[0]).shape, view.info(node.output[0]).shape
    sizes = [[d for d in shape or () if isinstance(d, int)] for shape in (before, after)]
    if before is None or after is None or len(sizes[0]) < len(before) or len(sizes[1]) < len(after):
        return None
    return math.prod(sizes[0]) // max(math.prod(sizes[1]), 1)


def _dequantizes(view: GraphView, node: NodeProto) -> bool:
    quantized = node.op_type == "DequantizeLinear" and node.domain in STANDARD_DOMAINS
    return quantized and view.info(node.input[0]).dtype == "int8"


def _from_int8(view: GraphView, name: str) -> bool:
    """Whether the tensor is dequantized from int8, moved about at most."""
    maker = view.producer(name)
    while maker is not None and maker.op_type in _MOVES:
        maker = view.producer(maker.input[0])
    return maker is not None and _dequantizes(view, maker)


def _products(view: GraphView, name: str) -> Iterator[NodeProto]:
    """The products that read the tensor, moved about at most."""
    for index in view.consumers.get(name, ()):
        reader = view.nodes[index]
        if reader.op_type in PRODUCTS:
            yield reader
        elif reader.op_type in _MOVES:
            yield from _products(view, reader.output[0])
