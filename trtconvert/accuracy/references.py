"""What an engine is compared with: the reference, which rounds less than the engine, and the twin, which rounds as much.

The reference is the model with every 16-bit float widened to fp32. The twin is that reference with the roundings written into
it: each 16-bit result is cast to its dtype and back, and what goes into an fp32 product is cut to TF32's 10 bits of mantissa,
as tensor cores do. Written so it does not depend on the kernels that onnxruntime has: on a CPU it keeps fp32 between fp16 ops
that it has no kernel for, which rounds less than any engine, and it has few kernels for bf16.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from trtconvert import graph as onnx_graph
from trtconvert import model as onnx_model
from trtconvert.lowering.functions import inline_local

NARROW = {"float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16}
# Ops that multiply matrices, and how many of their first inputs tensor cores would round.
PRODUCTS = {
    "MatMul": 2, "Gemm": 2, "FusedMatMul": 2, "Einsum": 99, "Conv": 2, "ConvTranspose": 2, "Attention": 3,
    "MultiHeadAttention": 3, "LSTM": 3, "GRU": 3, "RNN": 3,
}  # fmt: skip
_MADE_OF_ATTRIBUTES = ("Constant", "ConstantOfShape", "EyeLike", "RandomNormal", "RandomUniform", "Bernoulli")
_MOVES = frozenset(  # ops whose results are as round as what they read
    ("Identity", "Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "Gather", "GatherND", "GatherElements", "Slice",
     "Split", "Concat", "Expand", "Tile", "Relu", "Neg", "Abs", "Where", "MaxPool", "If", "Loop", "Scan")
)  # fmt: skip
_DTYPE_ATTRIBUTES = ("to", "output_dtype")
_TF32_SPLIT = 2.0**13 + 1  # Veltkamp: cuts 13 of fp32's 23 bits, to the nearest, ties to even
_TF32_LARGEST = 2.0**100  # beyond it the split would overflow; it is left as it is
REFERENCE_IN_WORDS = "the source model in fp32 in onnxruntime, 16-bit floats widened"
TWIN_IN_WORDS = "the same in onnxruntime, rounded to the engine's precision: each 16-bit result, TF32 in fp32 products"
PRECISIONS = ("int8", "bfloat16", "float16", "float32", "float64")


def precision_of(model: ModelProto) -> str:
    """The least precise of PRECISIONS that the model computes in; int8 if it quantizes."""
    if any(node.op_type == "QuantizeLinear" for node in onnx_model.all_nodes(model)):
        return "int8"
    infos = onnx_graph.infer(model)
    used = {info.dtype for graph in infos.values() for info in graph.values()}
    used |= {onnx_model.dtype_name(t.data_type) for t in onnx_model.all_tensors(model)}
    return next((d for d in PRECISIONS if d in used), "float32")


def multiplies(model: ModelProto) -> bool:
    """Whether it has products that tensor cores may compute."""
    return any(node.op_type in PRODUCTS for node in onnx_model.all_nodes(model))


def reference_of(model: ModelProto) -> ModelProto:
    """A copy without 16-bit floats: they are fp32, inputs and outputs too. Functions are written out."""
    return _Widening(model, rounds=False).model


def twin_of(model: ModelProto) -> ModelProto:
    """The reference with the roundings of the model's own precision, each result to its dtype, fp32 products as TF32."""
    return _Widening(model, rounds=True).model


class _Widening:
    """A copy of a model on its way to fp32. rounds: round the results to the dtypes that they had."""

    def __init__(self, model: ModelProto, rounds: bool) -> None:
        self.model = onnx_model.copy(inline_local(onnx_model.copy(model)))
        self.rounds = rounds
        infos = onnx_graph.infer(self.model)
        self.taken = {name for graph in infos.values() for name in graph}
        weights = {t.name for t in self.model.graph.initializer}
        inputs = [value for value in self.model.graph.input if value.name not in weights]
        del self.model.graph.input[:]
        self.model.graph.input.extend(inputs)
        graphs = [*onnx_model.all_graphs(self.model.graph)]
        self.dtypes = {t.name: onnx_model.dtype_name(t.data_type) for graph in graphs for t in graph.initializer}
        self.dtypes |= {name: info.dtype for graph in infos.values() for name, info in graph.items()}
        self.made = {name: node for graph in graphs for node in graph.node for name in node.output}
        for index, graph in reversed([*enumerate(graphs)]):  # bodies first: nodes are copied with theirs
            self._graph(graph, self.dtypes | {name: info.dtype for name, info in infos[index].items()})

    def _graph(self, graph: GraphProto, dtypes: Mapping[str, str]) -> None:
        self.here = dtypes
        self.cut: dict[str, str] = {}
        nodes: list[NodeProto] = []
        for tensor in graph.initializer:
            if tensor.data_type in NARROW.values():
                wide, tensor.name = tensor.name, self._name(tensor.name, "narrow")
                nodes.append(
                    helper.make_node("Cast", [tensor.name], [wide], name=f"{wide}/widen", to=TensorProto.FLOAT)
                )
        for node in graph.node:
            nodes.extend(self._node(node))
        del graph.node[:]
        graph.node.extend(nodes)
        for value in (*graph.input, *graph.output):
            kind = value.type.tensor_type
            if kind.elem_type in NARROW.values():
                kind.elem_type = TensorProto.FLOAT
        del graph.value_info[:]

    def _node(self, node: NodeProto) -> Iterable[NodeProto]:
        copied = NodeProto()
        copied.CopyFrom(node)
        if self.rounds and node.op_type in PRODUCTS and not self._quantized(node):
            for position, name in enumerate(node.input[: PRODUCTS[node.op_type]]):
                if name and self.here.get(name) == "float32":
                    yield from self._tf32(name)
                    copied.input[position] = self.cut[name]
        _widen_attributes(copied)
        after = []
        made_narrow = node.op_type in _MADE_OF_ATTRIBUTES
        for position, name in enumerate(node.output):
            if self.here.get(name) not in NARROW or not (made_narrow or (self.rounds and node.op_type not in _MOVES)):
                continue
            short = copied.output[position] = self._name(name, "narrow")
            if not made_narrow:
                copied.output[position] = made = self._name(name, "wide")
                after.append(
                    helper.make_node("Cast", [made], [short], name=f"{name}/round", to=NARROW[self.here[name]])
                )
            after.append(helper.make_node("Cast", [short], [name], name=f"{name}/widen", to=TensorProto.FLOAT))
        yield copied
        yield from after

    def _quantized(self, node: NodeProto) -> bool:
        """Whether the product is one of quantized integers, which is exact."""
        return all(self._maker(name) == "DequantizeLinear" for name in node.input[:2])

    def _maker(self, name: str) -> str:
        """The op type of what makes a tensor, but for moves."""
        made = self.made.get(name)
        while made is not None and made.op_type in _MOVES:
            made = self.made.get(made.input[0])
        return made.op_type if made is not None else ""

    def _tf32(self, name: str) -> Iterable[NodeProto]:
        """Nodes that round a tensor to 10 bits of mantissa: c = x (2^13 + 1), c - (c - x); Inf and NaN pass through."""
        if name in self.cut:
            return
        here = {part: self._name(name, part) for part in ("c", "d", "e", "a", "k", "l", "fits", "tf32")}
        for part, number in (("k", _TF32_SPLIT), ("l", _TF32_LARGEST)):
            value = numpy_helper.from_array(np.array(number, np.float32))
            yield helper.make_node("Constant", [], [here[part]], value=value)
        yield helper.make_node("Mul", [name, here["k"]], [here["c"]])
        yield helper.make_node("Sub", [here["c"], name], [here["d"]])
        yield helper.make_node("Sub", [here["c"], here["d"]], [here["e"]])
        if onnx_model.opset(self.model) < 9:  # no Where yet
            self.cut[name] = here["e"]
            return
        yield helper.make_node("Abs", [name], [here["a"]])
        yield helper.make_node("Less", [here["a"], here["l"]], [here["fits"]])
        yield helper.make_node("Where", [here["fits"], here["e"], name], [here["tf32"]])
        self.cut[name] = here["tf32"]

    def _name(self, name: str, part: str) -> str:
        new, count = f"{name}/{part}", 1
        while new in self.taken:
            new, count = f"{name}/{part}_{count}", count + 1
        self.taken.add(new)
        return new


def _widen_attributes(node: NodeProto) -> None:
    """What an op's attributes say of 16-bit results, but for those that are made of attributes alone."""
    for attribute in node.attribute:
        if (
            attribute.type == AttributeProto.INT
            and attribute.name in _DTYPE_ATTRIBUTES
            and attribute.i in NARROW.values()
        ):
            attribute.i = TensorProto.FLOAT
