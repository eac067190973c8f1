"""Where int8 pays: the products of a graph, their inputs, and the few other nodes that read the same int8."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto

from trtconvert.graph import GraphView
from trtconvert.matching.algebra import Reading
from trtconvert.matching.arithmetic import Match
from trtconvert.matching.match import Matcher
from trtconvert.matching.outline import Outline
from trtconvert.model import STANDARD_DOMAINS
from trtconvert.pattern import Builder, Var
from trtconvert.plugins.forms import gelu
from trtconvert.precision.int8_weights import constant

PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
FLOATS = ("float32", "float16")  # what onnxruntime's quantizer takes
_MOVES = ("Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten")
_SIZES = ("Shape", "Size")
_CLAMPS = ("Relu", "Clip", "LeakyRelu")  # that TensorRT computes in the product's own kernel


@dataclass(frozen=True)
class Product:
    """A node to compute in int8. index: in the graph. tensor: what is quantized for it, its input or what that is moved from.
    axis: of the weight's output channels, each with its own scale; None for one scale."""

    index: int
    tensor: str
    weight: NDArray[Any]
    axis: int | None


@dataclass
class Places:
    """What is to be quantized: the products, tensors with the other nodes and inputs that read them as int8 too, and products
    that stay float, with the reason."""

    products: list[Product] = field(default_factory=list)
    readers: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)


def find(view: GraphView, keep: Mapping[str, str], before_gelu: bool = True) -> Places:
    """The places of a graph.

    Products with a constant weight get int8 inputs. A residual Add behind a Conv reads its other input as int8 where its own
    result becomes int8, so that TensorRT computes it in the Conv's kernel. before_gelu: what a product gives to a GELU becomes
    int8 too where the GELU's result does. Everything else reads floats. keep: names of nodes that stay float, and why.
    """
    places = Places()
    for index, node in enumerate(view.nodes):
        if node.op_type in PRODUCTS and node.domain in STANDARD_DOMAINS:
            found = keep[node.name] if node.name in keep else _product(view, index, node)
            if isinstance(found, Product):
                places.products.append(_hoisted(view, found, places))
            elif found:
                places.left[node.name] = found
    search = _Neighbours(view, places)
    search.residuals()
    if before_gelu:
        search.gelus()
    return places


def _product(view: GraphView, index: int, node: NodeProto) -> Product | str | None:
    """The node as a product in int8; or why it is none; None for what is no matter of weights."""
    data, weight = node.input[:2]
    value = constant(view, weight)
    if value is None:
        from_int8 = view.producer(weight)
        if from_int8 is not None and from_int8.op_type == "DequantizeLinear":
            return "it is quantized already"
        return None if node.op_type == "MatMul" else f"its weight {weight} is not a constant"
    dtype = view.info(data).dtype
    if dtype not in FLOATS or value.dtype.name != dtype:
        return f"{data} is {dtype or 'of unknown dtype'}; int8 needs float32 or float16"
    if constant(view, data) is not None:
        return f"its input {data} is a constant"
    maker = view.producer(data)
    if maker is not None and maker.op_type == "DequantizeLinear":
        return "it is quantized already"
    if not np.isfinite(value.astype(np.float32)).all():
        return f"its weight {weight} has NaN or Inf"
    attributes = view.attributes(node)
    if node.op_type == "MatMul":
        rank = view.rank(data)
        if rank is None or rank < 2 or value.ndim < 2:
            return "it is a product with a vector"
        return Product(index, data, value, 1 if value.ndim == 2 else None)
    if node.op_type == "Gemm":
        if attributes.get("transA", 0):
            return f"it transposes {data}"
        return Product(index, data, value, 0 if attributes.get("transB", 0) else 1)
    if node.op_type == "Conv":
        return Product(index, data, value, 0)
    return Product(index, data, value, 1 if attributes.get("group", 1) == 1 else None)


def _hoisted(view: GraphView, product: Product, places: Places) -> Product:
    """The product, with its tensor quantized before it is moved where only its sizes are read there as well: then Q comes right
    behind what makes it. Such Shape nodes stand beside the Reshapes that tf2onnx writes around a Dense layer's product."""
    current, reader = product.tensor, product.index
    while view.consumers[current] == [reader] and current not in view.outputs:
        move = view.producers.get(current)
        if move is None or view.nodes[move].op_type not in _MOVES:
            break
        current, reader = view.nodes[move].input[0], move
        others = [index for index in view.consumers[current] if index != move]
        if others and all(view.nodes[index].op_type in _SIZES for index in others) and current not in view.outputs:
            places.readers[current] = [(index, 0) for index in sorted((move, *others))]
            return dataclasses.replace(product, tensor=current)
    return product


class _Neighbours:
    """Finds the nodes around products that are to read int8 as well."""

    def __init__(self, view: GraphView, places: Places) -> None:
        self.view, self.places = view, places
        self.indices = {product.index for product in places.products}
        self.int8 = {product.tensor for product in places.products}

    def residuals(self) -> None:
        """Add(product, other), clamped or not, whose result becomes int8."""
        for index, node in enumerate(self.view.nodes):
            if node.op_type != "Add" or node.domain not in STANDARD_DOMAINS or not self._becomes_int8(node.output[0]):
                continue
            convs = [self._only_for(name, index, ("Conv", "ConvTranspose")) for name in node.input]
            if not any(convs) or any(constant(self.view, name) is not None for name in node.input):
                continue
            other = 1 if convs[0] else 0  # TensorRT adds in the kernel of the one, what the other gave is read as int8
            self._read(node.input[other], index, other)

    def gelus(self) -> None:
        """GELU of what a product gives, whose result becomes int8."""
        op = Builder()
        y = gelu(op, Var("x"))
        expr = op.either(y, op.rearranged(y))
        matcher = Matcher(Reading(self.view), Outline(self.view))
        for tensor in sorted(self.int8):
            for match in matcher.find(expr, tensor):
                if self._fits(match, tensor):
                    x = match.bound["x"]
                    for index in sorted(match.nodes):
                        for slot, name in enumerate(self.view.nodes[index].input):
                            if name == x:
                                self._read(x, index, slot)
                    break

    def _fits(self, match: Match, tensor: str) -> bool:
        """Whether nothing but the GELU reads what it is computed of, and a product makes that."""
        x = match.bound["x"]
        if (
            x in self.view.outputs
            or set(self.view.consumers.get(x, [])) - match.nodes
            or self._read_outside(match, tensor)
        ):
            return False
        maker = self.view.producer(x)
        if maker is not None and maker.op_type == "Add":
            bias = [constant(self.view, name) is not None for name in maker.input]
            if sum(bias) != 1:
                return False
            made = maker.input[bias.index(False)]
            return self._only_for(made, self.view.producers[x], PRODUCTS)
        return self.view.producers.get(x) in self.indices

    def _read_outside(self, match: Match, tensor: str) -> bool:
        """Whether something else reads a tensor inside the GELU, or what moves its result."""
        made = {name for index in match.nodes for name in self.view.nodes[index].output} - {tensor}
        return any(name in self.view.outputs or set(self.view.consumers.get(name, [])) - match.nodes for name in made)

    def _only_for(self, name: str, reader: int, ops: Collection[str]) -> bool:
        """Whether a quantized product of these ops makes the tensor, for that reader only."""
        made = self.view.producers.get(name)
        alone = self.view.consumers.get(name) == [reader] and name not in self.view.outputs
        return alone and made is not None and made in self.indices and self.view.nodes[made].op_type in ops

    def _becomes_int8(self, name: str) -> bool:
        return name in self.int8 or any(
            after.op_type in _CLAMPS and after.output[0] in self.int8 for after in self._readers(name)
        )

    def _readers(self, name: str) -> Iterator[NodeProto]:
        return (self.view.nodes[index] for index in self.view.consumers.get(name, []))

    def _read(self, tensor: str, index: int, slot: int) -> None:
        found = self.places.readers.setdefault(tensor, [])
        if (index, slot) not in found:
            found.append((index, slot))
