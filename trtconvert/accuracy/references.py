"""What an engine is compared with: the reference, which rounds less than the engine, and the twin, which rounds as much.

The reference is the model with every 16-bit float widened to fp32; an fp32 model is run in fp64 where onnxruntime has kernels.
The twin is the model with its roundings written into it: each 16-bit result is cast to its dtype and back, what goes into an
fp32 product is cut to TF32's 10 bits of mantissa, as tensor cores do, and what is quantized to those bits on which kernels agree.
Written so it does not hang on the kernels that onnxruntime has: on a CPU it keeps fp32 between fp16 ops that it has no kernel
for, which rounds less than any engine, and it has few kernels for bf16.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable, Mapping
from functools import cache

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
_MANTISSA = {"float32": 23, "float64": 52}
TF32_BITS = 10  # of mantissa
QUANTIZED_BITS = 16  # to which kernels agree on what they quantize: a value between two steps may come out as either
_LARGEST_CUT = 2.0**100  # beyond it the split would overflow; it is left as it is
IN_FP32 = "the source model in onnxruntime, its floats widened to fp32"
IN_FP64 = "the source model in onnxruntime, in fp64 where that has kernels"
TWIN_IN_WORDS = (
    "the same in onnxruntime, rounded as the engine may: each 16-bit result, what goes into fp32 products to TF32"
)
PRECISIONS = ("int8", "bfloat16", "float16", "float32", "float64")


def precision_of(model: ModelProto) -> str:
    """The least precise of PRECISIONS that the model computes in; int8 if it quantizes."""
    if any(node.op_type == "QuantizeLinear" for node in onnx_model.all_nodes(model)):
        return "int8"
    used = _dtypes(model)
    return next((d for d in PRECISIONS if d in used), "float32")


def has_narrow_floats(model: ModelProto) -> bool:
    """Whether some of its tensors are 16-bit floats."""
    return bool(_dtypes(model) & {"float16", "bfloat16"})


def _dtypes(model: ModelProto) -> set[str]:
    infos = onnx_graph.infer(model)
    used = {info.dtype for graph in infos.values() for info in graph.values()}
    return used | {onnx_model.dtype_name(t.data_type) for t in onnx_model.all_tensors(model)}


def weight_bytes(model: ModelProto) -> int:
    """Size of its weights, external ones too, in fp32."""
    return 4 * sum(int(math.prod(tensor.dims)) for tensor in onnx_model.all_tensors(model))


def multiplies(model: ModelProto) -> bool:
    """Whether it has products that tensor cores may compute."""
    return any(node.op_type in PRODUCTS for node in onnx_model.all_nodes(model))


def reference_of(model: ModelProto) -> ModelProto:
    """A copy without 16-bit floats: they are fp32, inputs and outputs too. Functions are written out."""
    return _Widening(model, rounds=False).model


def in_fp64(model: ModelProto) -> ModelProto:
    """A copy of an fp32 model in fp64, inputs and outputs too; casts stand around the ops that onnxruntime runs in fp32 only."""
    return _Widening(model, rounds=False, narrow={"float32": TensorProto.FLOAT}, wide=TensorProto.DOUBLE).model


@cache
def _fp64_kernels() -> frozenset[tuple[str, str]]:
    """Domain and name of the ops for which onnxruntime has a kernel in fp64 on a CPU."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    return frozenset(
        (kernel.domain, kernel.op_name)
        for kernel in state.get_all_opkernel_def()
        if kernel.provider == "CPUExecutionProvider"
        and any("tensor(double)" in types for types in kernel.type_constraints.values())
    )


def twin_of(model: ModelProto, cuts: bool = False) -> ModelProto:
    """The reference with the roundings of the model's own precision, each result to its dtype, fp32 products as TF32.

    cuts: what goes into convolutions is cut off to TF32, not rounded to the nearest. Some convolutions do that (seen
    on an H200: resnet_block is off by 6.4e-4, where rounding explains 3.0e-4 and cutting off 7.2e-4).
    """
    return _Widening(model, rounds=True, cuts=cuts).model


def convolves(model: ModelProto) -> bool:
    """Whether `cuts` makes a difference."""
    return any(node.op_type == "Conv" for node in onnx_model.all_nodes(model))


class _Widening:
    """A copy of a model on its way to a wider dtype. rounds: round the results to the dtypes that they had. cuts: see twin_of."""

    def __init__(
        self,
        model: ModelProto,
        rounds: bool,
        narrow: Mapping[str, int] = NARROW,
        wide: int = TensorProto.FLOAT,
        cuts: bool = False,
    ) -> None:
        self.narrow, self.wide = narrow, wide
        self.model = onnx_model.copy(inline_local(onnx_model.copy(model)))
        self.rounds, self.cuts = rounds, cuts
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
        self.cut: dict[tuple[str, int, bool], str] = {}
        nodes: list[NodeProto] = []
        for tensor in graph.initializer:
            if tensor.data_type in self.narrow.values():
                wide, tensor.name = tensor.name, self._name(tensor.name, "narrow")
                nodes.append(self._widen(tensor.name, wide))
        for node in graph.node:
            nodes.extend(self._node(node))
        del graph.node[:]
        graph.node.extend(nodes)
        for value in (*graph.input, *graph.output):
            kind = value.type.tensor_type
            if kind.elem_type in self.narrow.values():
                kind.elem_type = self.wide
        del graph.value_info[:]

    def _node(self, node: NodeProto) -> Iterable[NodeProto]:
        copied = NodeProto()
        copied.CopyFrom(node)
        for position, bits in self._operands(node) if self.rounds else ():
            name = node.input[position]
            if name and self.here.get(name) in _MANTISSA:
                off = self.cuts and node.op_type == "Conv"
                yield from self._cut(name, bits, off)
                copied.input[position] = self.cut[name, bits, off]
        stays = not self._has_kernel(node)
        if stays:
            for position, name in enumerate(node.input):
                if self.here.get(name) in self.narrow:
                    short = copied.input[position] = self._name(name, "short")
                    yield self._cast(name, short, self.narrow[self.here[name]], short)
        elif node.op_type not in _MADE_OF_ATTRIBUTES:
            self._widen_attributes(copied)
        yield copied
        stays |= node.op_type in _MADE_OF_ATTRIBUTES
        for position, name in enumerate(node.output):
            if self.here.get(name) in self.narrow and (stays or (self.rounds and node.op_type not in _MOVES)):
                short = copied.output[position] = self._name(name, "narrow")
                if not stays:
                    copied.output[position] = made = self._name(name, "wide")
                    yield self._cast(made, short, self.narrow[self.here[name]], f"{name}/round")
                yield self._widen(short, name)

    def _has_kernel(self, node: NodeProto) -> bool:
        """Whether the op runs on what is wide: always in fp32, not always in fp64."""
        domain = "" if node.domain == "ai.onnx" else node.domain
        return self.wide == TensorProto.FLOAT or (domain, node.op_type) in _fp64_kernels()

    def _widen(self, name: str, wide: str) -> NodeProto:
        return self._cast(name, wide, self.wide, f"{wide}/widen")

    def _cast(self, name: str, made: str, dtype: int, title: str) -> NodeProto:
        return helper.make_node("Cast", [name], [made], name=title, to=dtype)

    def _widen_attributes(self, node: NodeProto) -> None:
        for attribute in node.attribute:
            says = attribute.type == AttributeProto.INT and attribute.name in _DTYPE_ATTRIBUTES
            if says and attribute.i in self.narrow.values():
                attribute.i = self.wide

    def _operands(self, node: NodeProto) -> Iterable[tuple[int, int]]:
        """Places of the inputs that engines round before they use them, and to how many bits."""
        if node.op_type == "QuantizeLinear":
            yield 0, QUANTIZED_BITS
        elif node.op_type in PRODUCTS and not self._quantized(node):
            yield from ((place, TF32_BITS) for place in range(min(PRODUCTS[node.op_type], len(node.input))))

    def _quantized(self, node: NodeProto) -> bool:
        """Whether the product is one of quantized integers, which is exact."""
        return all(self._maker(name) == "DequantizeLinear" for name in node.input[:2])

    def _maker(self, name: str) -> str:
        """The op type of what makes a tensor, but for moves."""
        made = self.made.get(name)
        while made is not None and made.op_type in _MOVES:
            made = self.made.get(made.input[0])
        return made.op_type if made is not None else ""

    def _cut(self, name: str, bits: int, off: bool) -> Iterable[NodeProto]:
        """Nodes that leave a tensor that many bits of mantissa, rounded to the nearest or cut off."""
        if (name, bits, off) in self.cut:
            return
        dtype = self.here[name]
        nearest = yield from self._nearest(name, name, bits, dtype)
        if off and onnx_model.opset(self.model) >= 9:
            # Where rounding went up, to 2^bits < k <= 2^(bits + 1) steps, k (1 - 2^-(bits + 1)) is nearest to k - 1 of them.
            here = {part: self._name(name, part) for part in ("f", "g", "x", "y", "up", "off")}
            factor = numpy_helper.from_array(np.array(1 - 2.0 ** -(bits + 1), dtype))
            yield helper.make_node("Constant", [], [here["f"]], value=factor)
            yield helper.make_node("Mul", [nearest, here["f"]], [here["g"]])
            below = yield from self._nearest(here["g"], name, bits, dtype)
            yield helper.make_node("Abs", [name], [here["x"]])
            yield helper.make_node("Abs", [nearest], [here["y"]])
            yield helper.make_node("Less", [here["x"], here["y"]], [here["up"]])
            yield helper.make_node("Where", [here["up"], below, nearest], [here["off"]])
            nearest = here["off"]
        self.cut[name, bits, off] = nearest

    def _nearest(self, x: str, name: str, bits: int, dtype: str) -> Generator[NodeProto, None, str]:
        """Nodes that round x to that many bits of mantissa, to the nearest even: with k = 2^(others) + 1 and c = k x, it
        is c - (c - x) (Veltkamp). Inf, NaN and what would overflow pass through. name: for what they make."""
        here = {part: self._name(name, part) for part in ("c", "d", "e", "a", "k", "l", "fits", "cut")}
        for part, number in (("k", 2.0 ** (_MANTISSA[dtype] - bits) + 1), ("l", _LARGEST_CUT)):
            value = numpy_helper.from_array(np.array(number, dtype))
            yield helper.make_node("Constant", [], [here[part]], value=value)
        yield helper.make_node("Mul", [x, here["k"]], [here["c"]])
        yield helper.make_node("Sub", [here["c"], x], [here["d"]])
        yield helper.make_node("Sub", [here["c"], here["d"]], [here["e"]])
        if onnx_model.opset(self.model) < 9:  # no Where yet
            return here["e"]
        yield helper.make_node("Abs", [x], [here["a"]])
        yield helper.make_node("Less", [here["a"], here["l"]], [here["fits"]])
        yield helper.make_node("Where", [here["fits"], here["e"], x], [here["cut"]])
        return here["cut"]

    def _name(self, name: str, part: str) -> str:
        return onnx_model.unique(f"{name}/{part}", self.taken)
