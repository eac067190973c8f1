"""LayerNorm and GELU in quantized networks, written as ONNX text: found with the same int8, or left alone with a reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import ModelProto

from tests.test_forms import AFFINE, DEC, GELU, LN, TANH, fused, model
from trtconvert import BuildOptions, ConvertError, build, compare, reference, registry
from trtconvert.fuse import FuseResult, fuse_model
from trtconvert.lower import lower
from trtconvert.model import serialize

ZERO = np.int8(0)
SCALES = {"s": 0.03, "si": 0.05, "zero8": ZERO}
Q, DQ = "q = QuantizeLinear(y, s, zero8)", "z = DequantizeLinear(x, si, zero8)"
FLOAT = {"inputs": "float[2,4,8] x", "outputs": "int8[2,4,8] q"}
INT8 = {"inputs": "int8[2,4,8] x", "outputs": "int8[2,4,8] q"}
HALF = {
    "inputs": "float16[2,4,8] x",
    "outputs": "int8[2,4,8] q",
    "g": np.ones(8, np.float16),
    "b": np.ones(8, np.float16),
}
PLANES = {"inputs": "float[2,8,3,3] x", "outputs": "int8[2,8,3,3] q"}
EIGHT = np.linspace(0.1, 0.8, 8)
PATTERNS = {
    "LayerNormGeluQuantize": "layernorm-gelu-quantize",
    "LayerNormQuantize": "layernorm-quantize",
    "DequantizeGeluQuantize": "dequantize-gelu-quantize",
}


def quantized(body: str, **options: Any) -> ModelProto:
    return model(body, **{"opset": 19, **SCALES, **FLOAT, **options})


def all_fused(built: ModelProto) -> FuseResult:
    """With all patterns, as `build` does it."""
    copy = ModelProto()
    copy.CopyFrom(built)
    return fuse_model(copy, Path(), registry.by_pattern(()))


def same(one: ModelProto, other: ModelProto) -> None:
    """The same int8 from both; a step off in few elements, where the source rounds to 16 bits on the way."""
    sessions = [reference.session(m) for m in (one, other)]
    random = np.random.default_rng(0)
    kinds = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(bfloat16)": ml_dtypes.bfloat16}
    feeds = {
        i.name: random.integers(-128, 128, i.shape, np.int8)
        if i.type == "tensor(int8)"
        else random.standard_normal(i.shape).astype(kinds[i.type])
        for i in sessions[0].get_inputs()
    }
    for a, b in zip(*(s.run(None, feeds) for s in sessions), strict=True):
        assert a.dtype == b.dtype
        narrow = any(f.dtype == np.float16 for f in feeds.values())
        assert compare.difference(a, b) <= (0.05 if narrow else compare.allowed(a, "float32", 1e-5))
        assert np.unique(a).size > 3


MLP = (
    f"wf = DequantizeLinear<axis=1>(w8, sw, zw) {LN} {GELU} i1 = QuantizeLinear(y, s, zero8) "
    "f1 = DequantizeLinear(i1, s, zero8) m1 = MatMul(f1, wf) i2 = QuantizeLinear(m1, si, zero8) "
    "f2 = DequantizeLinear(i2, si, zero8) h = Gelu(f2) i3 = QuantizeLinear(h, s, zero8) "
    "f3 = DequantizeLinear(i3, s, zero8) m2 = MatMul(f3, wf) n2 = LayerNormalization<axis=-1>(m2, g, b) "
    "i4 = QuantizeLinear(n2, s, zero8) f4 = DequantizeLinear(i4, s, zero8) m3 = MatMul(f4, wf) "
    "n3 = LayerNormalization<axis=-1>(m3, g, b) out = Gelu(n3)"
)
MLP_OPTIONS = {
    "opset": 20,
    "outputs": "float[2,4,8] out",
    "w8": np.random.default_rng(0).integers(-128, 128, (8, 8)).astype(np.int8),
    "sw": np.full(8, 0.01),
    "zw": np.zeros(8, np.int8),
}
FOUND: dict[str, tuple[str, str, dict[str, Any]]] = {
    "LN, GELU, Q": ("LayerNormGeluQuantize", f"{LN} {GELU} {Q}", {}),
    "decomposed, opset 13": ("LayerNormGeluQuantize", f"{DEC} {AFFINE} {GELU} {Q}", {"opset": 13}),
    "Gelu op": ("LayerNormGeluQuantize", f"{LN} y = Gelu(z) {Q}", {"opset": 20}),
    "tanh GELU": (
        "LayerNormGeluQuantize",
        f"{LN} {TANH} a2 = Mul(a, q0) t = Tanh(a2) p = Add(t, one) zp = Mul(z, p) y = Mul(zp, half) {Q}",
        {"q0": 0.79788456},
    ),
    "scale of shape [1]": ("LayerNormGeluQuantize", f"{LN} {GELU} {Q}", {"s": [0.02]}),
    "zero point of shape [1]": ("LayerNormGeluQuantize", f"{LN} {GELU} {Q}", {"s": [0.02], "zero8": np.int8([0])}),
    "scale that is computed": (
        "LayerNormGeluQuantize",
        f"{LN} {GELU} sc = Div(two, k127) {Q.replace('s,', 'sc,')}",
        {"k127": 127.0},
    ),
    "no zero point, but a dtype": (
        "LayerNormGeluQuantize",
        f"{LN} {GELU} q = QuantizeLinear<output_dtype=3>(y, s)",
        {"opset": 21},
    ),
    "saturate is for float8": ("LayerNormGeluQuantize", f"{LN} {GELU} {Q.replace('(', '<saturate=0>(')}", {}),
    "com.microsoft": (
        "LayerNormGeluQuantize",
        f"{LN} {GELU} q = com.microsoft.QuantizeLinear(y, s, zero8)",
        {},
    ),
    "float16 through a Cast, opset 17": (
        "LayerNormGeluQuantize",
        f"{LN} xs = Div(z, rt) er = Erf(xs) p = Add(er, o16) zp = Mul(z, p) y16 = Mul(zp, h16) y = Cast<to=1>(y16) {Q}",
        {"opset": 17, **HALF, "rt": np.float16(2**0.5), "o16": np.float16(1), "h16": np.float16(0.5)},
    ),
    "float16 throughout": (
        "LayerNormGeluQuantize",
        f"{LN} y = Gelu(z) {Q}",
        {"opset": 20, **HALF, "s": np.float16(0.03)},
    ),
    "LN in float32 between float16": (
        "LayerNormGeluQuantize",
        f"xf = Cast<to=1>(x) {LN.replace('(x', '(xf').replace('z =', 'zf =')} z = Cast<to=10>(zf) y = Gelu(z) {Q}",
        {"opset": 20, "inputs": "float16[2,4,8] x", "s": np.float16(0.03)},
    ),
    "over axis 1": (
        "LayerNormGeluQuantize",
        f"{DEC.replace('[-1]', '[1]')} {AFFINE} {GELU} {Q}",
        {**PLANES, "opset": 13, "g": np.ones((8, 1, 1)), "b": np.ones((8, 1, 1))},
    ),
    "between Transposes": (
        "LayerNormGeluQuantize",
        f"xt = Transpose<perm=[0,2,3,1]>(x) {LN.replace('(x', '(xt').replace('z =', 'zt =')} "
        f"z = Transpose<perm=[0,3,1,2]>(zt) {GELU} {Q}",
        PLANES,
    ),
    "Transpose before the GELU": (
        "LayerNormGeluQuantize",
        f"{LN.replace('z =', 'z0 =')} z = Transpose<perm=[0,2,1]>(z0) {GELU} {Q}",
        {"outputs": "int8[2,8,4] q"},
    ),
    "Reshape before Q": (
        "LayerNormGeluQuantize",
        f"{LN} {GELU.replace('y =', 'y0 =')} y = Reshape(y0, flat) {Q}",
        {"outputs": "int8[8,8] q", "flat": np.int64([8, 8])},
    ),
    "BiasGelu": ("LayerNormGeluQuantize", f"{LN} y = com.microsoft.BiasGelu(z, b) {Q}", {}),
    "open sizes": (
        "LayerNormGeluQuantize",
        f"{LN} {GELU} {Q}",
        {"inputs": "float[2,N,8] x", "outputs": "int8[2,N,8] q"},
    ),
    "LN, Q": ("LayerNormQuantize", LN.replace("z =", "y =") + Q, {}),
    "LN, Q, opset 13": ("LayerNormQuantize", f"{DEC} {AFFINE.replace('z =', 'y =')} {Q}", {"opset": 13}),
    "LN between Transposes, Q": (
        "LayerNormQuantize",
        f"xt = Transpose<perm=[0,2,3,1]>(x) {LN.replace('(x', '(xt').replace('z =', 'zt =')} "
        f"y = Transpose<perm=[0,3,1,2]>(zt) {Q}",
        PLANES,
    ),
    "LN, constant factor, Q": ("LayerNormQuantize", f"{LN} y = Mul(z, two) {Q}", {}),
    "LN, Transpose, Q": (
        "LayerNormQuantize",
        f"{LN} y = Transpose<perm=[2,0,1]>(z) {Q}",
        {"outputs": "int8[8,2,4] q"},
    ),
    "LN of int8 scale": (
        "LayerNormQuantize",
        f"ga = DequantizeLinear(g8, si) {LN.replace('z =', 'y =').replace('g, b', 'ga, b')} {Q}",
        {"g8": np.arange(8, dtype=np.int8) * 10},
    ),
    "DQ, GELU, Q": ("DequantizeGeluQuantize", f"{DQ} {GELU} {Q}", INT8),
    "DQ without zero point": ("DequantizeGeluQuantize", f"z = DequantizeLinear(x, si) {GELU} {Q}", INT8),
    "DQ, Gelu, Q": ("DequantizeGeluQuantize", f"{DQ} y = Gelu(z) {Q}", {**INT8, "opset": 21}),
    "DQ to float16": (
        "DequantizeGeluQuantize",
        f"{DQ} y = Gelu(z) {Q}",
        {**INT8, "opset": 20, "s": np.float16(0.03), "si": np.float16(0.05)},
    ),
    "two DQ of one tensor": (
        "DequantizeGeluQuantize",
        f"{DQ} z2 = DequantizeLinear(x, si, zero8) {GELU.replace('Div(z', 'Div(z2')} {Q}",
        INT8,
    ),
    "DQ, GELU, Reshape, Q": (
        "DequantizeGeluQuantize",
        f"{DQ} {GELU.replace('y =', 'y0 =')} y = Reshape(y0, flat) {Q}",
        {**INT8, "outputs": "int8[8,8] q", "flat": np.int64([8, 8])},
    ),
    "com.microsoft DQ": (
        "DequantizeGeluQuantize",
        f"z = com.microsoft.DequantizeLinear(x, si, zero8) {GELU} q = com.microsoft.QuantizeLinear(y, s, zero8)",
        INT8,
    ),
}


@pytest.mark.parametrize("name", FOUND)
def test_found(name: str) -> None:
    op, body, options = FOUND[name]
    built = quantized(body, **options)
    for result in (fused(built, PATTERNS[op]), all_fused(built)):
        assert [fusion.op for fusion in result.fusions] == [op], result.near_misses
        assert {n.op_type for n in result.model.graph.node} <= {op, "Transpose", "Reshape"}
        assert result.near_misses == []
        onnx.checker.check_model(result.model, full_check=True)
    if "N" not in options.get("inputs", ""):
        same(built, result.model)


LEFT: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "scale a channel": (
        "LayerNormGeluQuantize",
        f"{LN} {GELU} {Q}",
        {"s": np.full(8, 0.03), "zero8": np.zeros(8, np.int8)},
        "its scale s has shape [8], not one number",
    ),
    "scale a block": (
        "LayerNormGeluQuantize",
        f"{LN} {GELU} q = QuantizeLinear<block_size=8>(y, s, zero8)",
        {"opset": 21, "s": np.full((2, 4, 1), 0.03), "zero8": np.zeros((2, 4, 1), np.int8)},
        "its scale s has shape [2, 4, 1]",
    ),
    "scale an input": (
        "LayerNormGeluQuantize",
        f"{LN} {GELU} {Q}",
        {"inputs": "float[2,4,8] x, float s"},
        "its scale s is not a constant",
    ),
    "scale computed from data": (
        "LayerNormGeluQuantize",
        f"{LN} {GELU} sc = ReduceMax<keepdims=0>(x) {Q.replace('s,', 'sc,')}",
        {"opset": 17},
        "its scale sc is not a constant",
    ),
    "scale 0": (
        "LayerNormGeluQuantize",
        f"{LN} {GELU} {Q}",
        {"s": 0.0},
        "y_scale is 0; it takes a finite number, 1.2e-38 or above",
    ),
    "scale below 0": ("LayerNormGeluQuantize", f"{LN} {GELU} {Q}", {"s": -0.5}, "y_scale is -0.5"),
    "scale infinite": ("LayerNormGeluQuantize", f"{LN} {GELU} {Q}", {"s": np.inf}, "y_scale is inf"),
    "scale too small to divide by": (
        "LayerNormGeluQuantize",
        f"{LN} {GELU} {Q}",
        {"s": 1e-40},
        "y_scale is 9.99995e-41",
    ),
    "zero point not 0": (
        "LayerNormGeluQuantize",
        f"{LN} {GELU} {Q}",
        {"zero8": np.int8(3)},
        "its zero point zero8 is 3, not 0",
    ),
    "zero point an input": (
        "LayerNormGeluQuantize",
        f"{LN} {GELU} {Q}",
        {"inputs": "float[2,4,8] x, int8 zero8"},
        "its zero point zero8 is not a constant",
    ),
    "uint8": (
        "LayerNormGeluQuantize",
        f"{LN} {GELU} {Q}",
        {"zero8": np.uint8(0), "outputs": "uint8[2,4,8] q"},
        "its zero point zero8 is uint8, not int8",
    ),
    "float8": (
        "LayerNormGeluQuantize",
        f"{LN} {GELU} {Q}",
        {"zero8": np.zeros((), ml_dtypes.float8_e4m3fn), "outputs": "float8e4m3fn[2,4,8] q"},
        "not int8",
    ),
    "no zero point": (
        "LayerNormGeluQuantize",
        f"{LN} {GELU} q = QuantizeLinear(y, s)",
        {"outputs": "uint8[2,4,8] q"},
        "without a zero point its result is not int8",
    ),
    "no zero point, uint8 asked for": (
        "LayerNormGeluQuantize",
        f"{LN} {GELU} q = QuantizeLinear<output_dtype=2>(y, s)",
        {"opset": 21, "outputs": "uint8[2,4,8] q"},
        "without a zero point its result is not int8",
    ),
    "GELU also read by another": (
        "LayerNormGeluQuantize",
        f"{LN} {GELU} {Q} w = Relu(y)",
        {"outputs": "int8[2,4,8] q, float[2,4,8] w"},
        "y inside it is also read by Relu",
    ),
    "GELU also an output": (
        "LayerNormGeluQuantize",
        f"{LN} {GELU} {Q}",
        {"outputs": "int8[2,4,8] q, float[2,4,8] y"},
        "y inside it is an output of the graph",
    ),
    "two Q of one GELU": (
        "LayerNormGeluQuantize",
        f"{LN} {GELU} {Q} w = QuantizeLinear(y, si, zero8)",
        {"outputs": "int8[2,4,8] q, int8[2,4,8] w"},
        "y inside it is also read by QuantizeLinear",
    ),
    "rounded to 16 bits before Q": (
        "LayerNormGeluQuantize",
        f"{LN} {GELU.replace('y =', 'y0 =')} y = Cast<to=10>(y0) {Q}",
        {"s": np.float16(0.03)},
        "float32 to float16",
    ),
    "Relu before Q": ("LayerNormGeluQuantize", f"{LN} {GELU.replace('y =', 'y0 =')} y = Relu(y0) {Q}", {}, ""),
    "LN read by another": (
        "LayerNormQuantize",
        f"{LN.replace('z =', 'y =')} {Q} w = Relu(y)",
        {"outputs": "int8[2,4,8] q, float[2,4,8] w"},
        "y inside it is also read by Relu",
    ),
    "LN, scale a channel": (
        "LayerNormQuantize",
        f"{LN.replace('z =', 'y =')} {Q.replace('(', '<axis=2>(')}",
        {"s": np.full(8, 0.03), "zero8": np.zeros(8, np.int8)},
        "its scale s has shape [8]",
    ),
    "uint8 in": (
        "DequantizeGeluQuantize",
        f"z = DequantizeLinear(x, si, zero_u) {GELU} {Q}",
        {**INT8, "inputs": "uint8[2,4,8] x", "zero_u": np.uint8(0)},
        "its zero point zero_u is uint8, not int8",
    ),
    "uint8 in, no zero point": (
        "DequantizeGeluQuantize",
        f"z = DequantizeLinear(x, si) {GELU} {Q}",
        {**INT8, "inputs": "uint8[2,4,8] x"},
        "x is uint8, not int8",
    ),
    "int32 in": (
        "DequantizeGeluQuantize",
        f"z = DequantizeLinear(x, si) {GELU} {Q}",
        {**INT8, "inputs": "int32[2,4,8] x"},
        "x is int32, not int8",
    ),
    "DQ scale a channel": (
        "DequantizeGeluQuantize",
        f"{DQ.replace('(', '<axis=2>(')} {GELU} {Q}",
        {**INT8, "si": np.full(8, 0.05), "zero8": np.zeros(8, np.int8), "s": 0.03},
        "its scale si has shape [8]",
    ),
    "two DQ of different scales": (
        "DequantizeGeluQuantize",
        f"{DQ} z2 = DequantizeLinear(x, s, zero8) {GELU.replace('Div(z', 'Div(z2')} {Q}",
        INT8,
        "",
    ),
    "DQ scale below 0": ("DequantizeGeluQuantize", f"{DQ} {GELU} {Q}", {**INT8, "si": -0.05}, "x_scale is -0.05"),
    "SiLU": ("DequantizeGeluQuantize", f"{DQ} e = Sigmoid(z) y = Mul(z, e) {Q}", INT8, ""),
}


@pytest.mark.parametrize("name", LEFT)
def test_left_alone(name: str) -> None:
    op, body, options, reason = LEFT[name]
    built = quantized(body, **options)
    result = fused(built, PATTERNS[op])
    assert result.fusions == []
    assert result.model == built
    if reason:
        assert reason in result.near_misses[0].reason
        assert "belongs to another fusion" not in result.near_misses[0].reason


@pytest.mark.parametrize("name", ["scale a channel", "no zero point", "GELU also read by another", "two Q of one GELU"])
def test_the_smaller_fusion_is_left(name: str) -> None:
    """Where Q cannot be part of it, LayerNorm and GELU still are fused; and nothing is said of the larger fusion."""
    _, body, options, _ = LEFT[name]
    result = all_fused(quantized(body, **options))
    assert [f.op for f in result.fusions] == ["LayerNormGelu"]
    assert result.near_misses == []


def test_a_dequantized_tensor_that_others_read_stays() -> None:
    built = quantized(f"{DQ} {GELU} {Q} w = Relu(z)", **{**INT8, "outputs": "int8[2,4,8] q, float[2,4,8] w"})
    result = all_fused(built)
    assert [n.op_type for n in result.model.graph.node] == ["DequantizeLinear", "DequantizeGeluQuantize", "Relu"]
    same(built, result.model)


def test_one_model_with_all_of_them() -> None:
    """In graph order, each taken by the op that covers most; the products between them keep their int8 operands."""
    built = quantized(MLP, **MLP_OPTIONS)
    result = all_fused(built)
    ops = ["LayerNormGeluQuantize", "DequantizeGeluQuantize", "LayerNormQuantize", "LayerNormGelu"]
    assert [f.op for f in result.fusions] == ops
    assert [n.op_type for n in result.model.graph.node if n.op_type in ops] == ops
    assert [n.input[0] for n in result.model.graph.node if n.op_type == "DequantizeLinear"] == ["w8", "i1", "i3", "i4"]
    again = all_fused(result.model)
    assert again.fusions == []
    assert again.model == result.model
    feed = {"x": np.random.default_rng(0).standard_normal((2, 4, 8)).astype(np.float32)}
    one, other = (reference.session(m).run(None, feed)[0] for m in (built, result.model))
    assert np.allclose(one, other, atol=0.02 * np.abs(one).max())


@pytest.mark.parametrize("known", [True, False], ids=["plugins", "function bodies"])
def test_quantized_models_build(known: bool, tmp_path: Path) -> None:
    """With plugins that give and take int8 between products of int8. And a fused file whose plugins are not known: to
    TensorRT their bodies are standard ops."""
    built = quantized(MLP, **MLP_OPTIONS)
    if not known:
        built = all_fused(built).model
        for node, function in [(n, f) for n in built.graph.node for f in built.functions if n.op_type == f.name]:
            node.op_type = f"Unknown{function.name}"
        for function in built.functions:
            function.name = f"Unknown{function.name}"
    path = tmp_path / "m.onnx"
    path.write_bytes(serialize(built))
    result = build(path, tmp_path / "m.plan", BuildOptions(fuse="all", targets=("sm_86",)))
    assert len(result.plugin_nodes) == (4 if known else 0)


@pytest.mark.parametrize("opset", [11, 13, 19])
def test_onnxruntime_s_own_nodes_become_standard_ones(opset: int) -> None:
    body = "i = com.microsoft.QuantizeLinear(x, s, zero8) q = com.microsoft.DequantizeLinear(i, si, zero8)"
    built = quantized(body, opset=opset, outputs="float[2,4,8] q")
    lowered = lower(built, Path(), lambda _: True)
    assert [(n.domain, n.op_type) for n in lowered.model.graph.node] == [
        ("", "QuantizeLinear"),
        ("", "DequantizeLinear"),
    ]
    assert "QuantizeLinear x1 (onnxruntime's) written as standard ONNX" in lowered.notes
    same(built, lowered.model)


def test_16_bit_integers_that_onnx_does_not_have_yet() -> None:
    body = "q = com.microsoft.QuantizeLinear(x, s, zero16)"
    built = quantized(body, zero16=np.int16(0), outputs="int16[2,4,8] q")
    with pytest.raises(ConvertError, match="is of int16, which ONNX has from opset 21 on"):
        lower(built, Path(), lambda _: True)


@pytest.mark.parametrize(
    ("scale", "shape", "axis"),
    [(0.1, (8,), ""), ([0.1], (8,), ""), (0.2, (4, 8), ""), (EIGHT, (8,), "<axis=0>"), (EIGHT, (8, 4, 1), "<axis=0>")],
    ids=["scalar", "one", "scalar of a matrix", "a channel", "the first axis"],
)
def test_int32_biases_become_floats(scale: Any, shape: tuple[int, ...], axis: str, tmp_path: Path) -> None:
    """As onnxruntime's quantizer writes them; TensorRT dequantizes no int32."""
    body = f"bf = DequantizeLinear{axis}(b32, sb, zero32) m = MatMul(x, w) q = Add(m, bf)"
    bias = np.arange(np.prod(shape), dtype=np.int32).reshape(shape) - 4
    weights = {"b32": bias, "sb": scale, "zero32": np.zeros(np.shape(scale), np.int32), "w": np.eye(8)}
    made = "float[8,4,8] q" if len(shape) > 2 else "float[2,4,8] q"
    built = quantized(
        body, inputs="float[1,4,8] x" if len(shape) > 2 else "float[2,4,8] x", outputs=made, opset=13, **weights
    )
    lowered = lower(built, Path(), lambda _: True)
    assert [n.op_type for n in lowered.model.graph.node] == ["MatMul", "Add"]
    assert lowered.notes == ["DequantizeLinear x1 of int32 constants written as floats"]
    same(built, lowered.model)
    path = tmp_path / "m.onnx"
    path.write_bytes(serialize(built))
    assert build(path, tmp_path / "m.plan", BuildOptions(targets=("sm_86",))).notices == lowered.notes
