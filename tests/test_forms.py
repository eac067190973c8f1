"""Spellings of LayerNorm and GELU written as ONNX text: found with the same numbers, or left alone with a reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper, parser

from trtconvert import ConvertError, fuse, reference, registry
from trtconvert.fuse import FuseResult, fuse_model
from trtconvert.op import Op
from trtconvert.pattern import Attr, Builder, Expr

NUMBERS = {
    "half": 0.5, "one": 1.0, "two": 2.0, "three": 3.0, "eight": 8.0, "zero": 0.0, "minus_half": -0.5, "eps": 1e-5,
    "s2": 2**0.5, "r2": 0.5**0.5, "minus_r2": -(0.5**0.5), "k": 0.044715, "q": 0.79788456, "q2": 1.59576912, "quick": 1.702,
}  # fmt: skip
MEAN = "m = ReduceMean<axes=[-1]>(x) d = Sub(x, m)"
ROOT = "v = ReduceMean<axes=[-1]>(sq) ve = Add(v, eps) sd = Sqrt(ve)"
DEC = f"{MEAN} sq = Mul(d, d) {ROOT}"
AFFINE = "n = Div(d, sd) gn = Mul(g, n) z = Add(gn, b)"
LN = "z = LayerNormalization<axis=-1, epsilon=1e-5>(x, g, b)"
GELU = "u = Div(z, s2) e = Erf(u) p = Add(e, one) zp = Mul(z, p) y = Mul(zp, half)"
TANH = "z2 = Mul(z, z) z3 = Mul(z, z2) kz = Mul(k, z3) a = Add(z, kz)"


def model(
    body: str,
    inputs: str = "float[2,4,8] x",
    outputs: str = "float[2,4,8] y",
    opset: int = 17,
    rankless: bool = False,
    **weights: Any,
) -> ModelProto:
    """The graph with the numbers and weights that it reads; g and b are [8] unless given."""
    text = f'<ir_version: 8, opset_import: ["": {opset}, "com.microsoft": 1]> m ({inputs}) => ({outputs}) {{ {body} }}'
    built = parser.parse_model(text)
    if rankless:
        for value in (*built.graph.input, *built.graph.output):
            value.type.tensor_type.ClearField("shape")
    random = np.random.default_rng(3)
    arrays = {"g": random.uniform(0.5, 1.5, 8), "b": random.standard_normal(8), **NUMBERS, **weights}
    given = {i.name for i in built.graph.input}
    read = {name for graph in _graphs(built) for node in graph.node for name in node.input} - given
    for name, value in arrays.items():
        if name in read:
            array = np.asarray(value)
            array = array.astype(np.float32) if array.dtype == np.float64 else array
            built.graph.initializer.append(numpy_helper.from_array(array, name))
    return built


def _graphs(built: ModelProto) -> list[Any]:
    return [built.graph, *(a.g for n in built.graph.node for a in n.attribute if a.type == onnx.AttributeProto.GRAPH)]


def fused(built: ModelProto, pattern: str = "layernorm-gelu") -> FuseResult:
    copy = ModelProto()
    copy.CopyFrom(built)
    return fuse_model(copy, Path(), registry.by_pattern((pattern,)))


def same(one: ModelProto, other: ModelProto, limit: float = 1e-5) -> None:
    sessions = [reference.session(m) for m in (one, other)]
    random = np.random.default_rng(0)
    kinds = {"tensor(float)": np.float32, "tensor(float16)": np.float16}
    feeds = {i.name: random.standard_normal(i.shape).astype(kinds[i.type]) for i in sessions[0].get_inputs()}
    for a, b in zip(*(s.run(None, feeds) for s in sessions), strict=True):
        assert a.shape == b.shape
        a, b = a.astype(np.float64), b.astype(np.float64)
        assert np.linalg.norm(a - b) <= limit * np.linalg.norm(a)


CHANNELS = {"inputs": "float[2,8,3,3] x", "outputs": "float[2,8,3,3] y"}
COLUMN = np.arange(1.0, 9.0).reshape(8, 1, 1)
FOUND: dict[str, tuple[str, dict[str, Any]]] = {
    "d * (1 / std)": (f"{DEC} r = Div(one, sd) n = Mul(d, r) gn = Mul(g, n) z = Add(gn, b) {GELU}", {}),
    "scale with the root": (f"{DEC} r = Reciprocal(sd) rg = Mul(r, g) n = Mul(d, rg) z = Add(n, b) {GELU}", {}),
    "scale over the root": (f"{DEC} rg = Div(g, sd) n = Mul(rg, d) z = Add(b, n) {GELU}", {}),
    "root of the reciprocal": (
        f"{MEAN} sq = Mul(d, d) v = ReduceMean<axes=[-1]>(sq) ve = Add(v, eps) rv = Reciprocal(ve) r = Sqrt(rv) "
        f"n = Mul(d, r) gn = Mul(g, n) z = Add(gn, b) {GELU}",
        {},
    ),
    "power of -1/2": (
        f"{MEAN} sq = Mul(d, d) v = ReduceMean<axes=[-1]>(sq) ve = Add(v, eps) r = Pow(ve, minus_half) "
        f"n = Mul(d, r) gn = Mul(g, n) z = Add(gn, b) {GELU}",
        {},
    ),
    "power of 1/2 of shape [1]": (
        f"{DEC.replace('Sqrt(ve)', 'Pow(ve, halves)')} {AFFINE} {GELU}",
        {"halves": np.float32([0.5])},
    ),
    "two Sub nodes": (f"{MEAN} d2 = Sub(x, m) sq = Mul(d2, d2) {ROOT} {AFFINE} {GELU}", {}),
    "mean - x squared": (f"{MEAN} d2 = Sub(m, x) sq = Mul(d2, d2) {ROOT} {AFFINE} {GELU}", {}),
    "Identity before": (
        f"i = Identity(x) m = ReduceMean<axes=[-1]>(x) d = Sub(i, m) sq = Mul(d, d) {ROOT} {AFFINE} {GELU}",
        {},
    ),
    "Sum for Add": (f"{DEC} n = Div(d, sd) gn = Mul(g, n) z = Sum(gn, b) {GELU}", {}),
    "bias subtracted": (f"{DEC} n = Div(d, sd) gn = Mul(g, n) z = Sub(gn, b) {GELU}", {}),
    "E[x^2] - E[x]^2, not below 0": (
        f"{MEAN} xx = Mul(x, x) m2 = ReduceMean<axes=[-1]>(xx) mm = Mul(m, m) v0 = Sub(m2, mm) v = Max(zero, v0) "
        f"ve = Add(v, eps) sd = Sqrt(ve) {AFFINE} {GELU}",
        {},
    ),
    "sum over 8": (
        f"m0 = ReduceSum(x, last) m = Div(m0, eight) d = Sub(x, m) sq = Mul(d, d) v0 = ReduceSum(sq, last) "
        f"v = Div(v0, eight) ve = Add(v, eps) sd = Sqrt(ve) {AFFINE} {GELU}",
        {"last": np.int64([-1])},
    ),
    "sum over 2048": (
        f"m0 = ReduceSum(x, last) m = Mul(m0, share) d = Sub(x, m) sq = Mul(d, d) v0 = ReduceSum(sq, last) "
        f"v = Div(v0, many) ve = Add(v, eps) sd = Sqrt(ve) {AFFINE} {GELU}",
        {
            "last": np.int64([-1]),
            "many": 2048.0,
            "share": 1 / 2048,
            "g": np.ones(2048),
            "b": np.ones(2048),
            "inputs": "float[2,2048] x",
            "outputs": "float[2,2048] y",
        },
    ),
    "axes come back": (
        f"m0 = ReduceMean<axes=[-1], keepdims=0>(x) m = Unsqueeze(m0, last) d = Sub(x, m) sq = Mul(d, d) {ROOT} {AFFINE} {GELU}",
        {"last": np.int64([-1])},
    ),
    "over 2": (f"{LN} u = Div(z, s2) e = Erf(u) p = Add(e, one) zp = Mul(z, p) y = Div(zp, two)", {}),
    "root of 2 as a node": (
        f"{LN} s = Sqrt(two) u = Div(z, s) e = Erf(u) p = Add(e, one) zp = Mul(z, p) y = Mul(zp, half)",
        {},
    ),
    "1 - erf(-x)": (f"{LN} nz = Neg(z) u = Mul(nz, r2) e = Erf(u) p = Sub(one, e) h = Mul(half, z) y = Mul(h, p)", {}),
    "1 - erf(x * -1/sqrt 2)": (
        f"{LN} u = Mul(z, minus_r2) e = Erf(u) p = Sub(one, e) h = Mul(half, z) y = Mul(h, p)",
        {},
    ),
    "multiplied out": (f"{LN} u = Div(z, s2) e = Erf(u) h = Mul(z, half) he = Mul(h, e) y = Add(h, he)", {}),
    "x cdf": (f"{LN} u = Div(z, s2) e = Erf(u) p = Add(one, e) c = Div(p, two) y = Mul(c, z)", {}),
    "tanh": (f"{LN} {TANH} qa = Mul(q, a) t = Tanh(qa) p = Add(t, one) h = Mul(half, z) y = Mul(h, p)", {}),
    "tanh, Pow": (
        f"{LN} z3 = Pow(z, three) kz = Mul(k, z3) a = Add(z, kz) qa = Mul(q, a) t = Tanh(qa) p = Add(t, one) "
        f"h = Mul(half, p) y = Mul(h, z)",
        {},
    ),
    "tanh, factored": (
        f"{LN} a = Mul(z, q) kz = Mul(z, k) kzz = Mul(kz, z) o = Add(one, kzz) i = Mul(a, o) t = Tanh(i) p = Add(one, t) "
        f"h = Mul(z, half) y = Mul(h, p)",
        {},
    ),
    "tanh as a sigmoid": (f"{LN} {TANH} qa = Mul(q2, a) t = Sigmoid(qa) y = Mul(t, z)", {}),
    "constants that are the same number eight times": (
        f"{LN} u = Div(z, s2v) e = Erf(u) p = Add(e, onev) zp = Mul(z, p) y = Mul(zp, half)",
        {"s2v": np.full(8, 2**0.5), "onev": np.ones((1, 1, 8))},
    ),
    "axis from the front": (f"{LN.replace('axis=-1', 'axis=2')} {GELU}", {}),
    "two axes": (
        f"{LN.replace('axis=-1', 'axis=-2')} {GELU}",
        {"g": np.linspace(0.5, 1, 32).reshape(4, 8), "b": np.ones((4, 8))},
    ),
    "two axes, scale of one": (f"{DEC.replace('[-1]', '[1, 2]')} {AFFINE} {GELU}", {}),
    "scalar scale": (f"{DEC} n = Div(d, sd) gn = Mul(n, g) z = Add(gn, b) {GELU}", {"g": 1.5}),
    "scale an input": (f"{LN} {GELU}", {"inputs": "float[2,4,8] x, float[8] g"}),
    "scale an input of another shape": (
        f"{DEC} {AFFINE} {GELU}",
        {"inputs": "float[2,4,8] x, float[1,1,8] g, float[8] b"},
    ),
    "over axis 1": (f"{DEC.replace('[-1]', '[1]')} {AFFINE} {GELU}", {"g": COLUMN, "b": COLUMN[None], **CHANNELS}),
    "over axis -3": (f"{DEC.replace('[-1]', '[-3]')} {AFFINE} {GELU}", {"g": COLUMN, "b": 0.5, **CHANNELS}),
    "between transposes": (
        "xt = Transpose<perm=[0,2,3,1]>(x) zt = LayerNormalization<axis=-1>(xt, g, b) z = Transpose<perm=[0,3,1,2]>(zt) "
        + GELU,
        CHANNELS,
    ),
    "between transposes, the first read elsewhere": (
        "xt = Transpose<perm=[0,2,3,1]>(x) zt = LayerNormalization<axis=-1>(xt, g, b) z = Transpose<perm=[0,3,1,2]>(zt) "
        f"{GELU} w = Relu(xt)",
        {"inputs": CHANNELS["inputs"], "outputs": "float[2,8,3,3] y, float[2,3,3,8] w"},
    ),
    "Reshape and Transpose between": (
        f"{LN.replace('z =', 'z0 =')} z1 = Reshape(z0, sh) z = Transpose<perm=[1,0]>(z1) {GELU}",
        {"sh": np.int64([8, 8]), "outputs": "float[8,8] y"},
    ),
    "Flatten between": (f"{LN.replace('z =', 'z0 =')} z = Flatten(z0) {GELU}", {"outputs": "float[2,32] y"}),
    "Unsqueeze between": (
        f"{LN.replace('z =', 'z0 =')} z = Unsqueeze(z0, first) {GELU}",
        {"first": np.int64([0]), "outputs": "float[1,2,4,8] y"},
    ),
    "Dropout between": (f"{LN.replace('z =', 'z0 =')} z = Dropout(z0) {GELU}", {}),
    "constants between": (f"{LN.replace('z =', 'z0 =')} z1 = Mul(z0, g) z = Sub(z1, b) {GELU}", {}),
    "com.microsoft BiasGelu": (f"{LN} y = com.microsoft.BiasGelu(z, b)", {}),
    "com.microsoft FastGelu": (f"{LN} y = com.microsoft.FastGelu(z)", {}),
    "com.microsoft FastGelu with bias": (f"{LN} y = com.microsoft.FastGelu(z, b)", {}),
    "com.microsoft Gelu": (f"{LN} y = com.microsoft.Gelu(z)", {}),
    "onnxruntime's LayerNormalization before opset 17": (
        "z = LayerNormalization(x, g, b) y = com.microsoft.Gelu(z)",
        {"opset": 13},
    ),
    "twice and half": (f"{LN.replace('z =', 'z0 =')} z1 = Mul(z0, two) z = Mul(z1, half) {GELU}", {}),
    "variance clipped": (
        f"{MEAN} xx = Mul(x, x) m2 = ReduceMean<axes=[-1]>(xx) mm = Mul(m, m) v0 = Sub(m2, mm) v = Clip(v0, zero) "
        f"ve = Add(v, eps) sd = Sqrt(ve) {AFFINE} {GELU}",
        {},
    ),
    "result read twice": (f"{LN} {GELU} w = Relu(y)", {"outputs": "float[2,4,8] y, float[2,4,8] w"}),
    "axes as an input": (
        "m = ReduceMean(x, last) d = Sub(x, m) sq = Pow(d, two) v = ReduceMean(sq, last) ve = Add(eps, v) sd = Sqrt(ve) "
        f"{AFFINE} y = Gelu(z)",
        {"opset": 20, "last": np.int64([-1])},
    ),
}


@pytest.mark.parametrize("name", FOUND)
def test_found(name: str) -> None:
    body, options = FOUND[name]
    built = model(body, **{"opset": 17 if "LayerNormalization" in body or "ReduceSum" in body else 13, **options})
    result = fused(built)
    assert [fusion.op for fusion in result.fusions] == ["LayerNormGelu"], result.near_misses
    left = {n.op_type for n in result.model.graph.node} - {"LayerNormGelu", "Relu"}
    assert left <= {"Transpose", "Reshape", "Flatten", "Unsqueeze"}
    same(built, result.model)


LEFT: dict[str, tuple[str, dict[str, Any], str]] = {
    "epsilon an input": (
        f"{DEC} {AFFINE} {GELU}",
        {"inputs": "float[2,4,8] x, float eps"},
        "epsilon is an input, not a",
    ),
    "epsilon below 0": (f"{DEC} {AFFINE} {GELU}", {"eps": -1e-5}, "epsilon is -9"),
    "epsilon outside the root": (
        f"{DEC.replace('sd = Sqrt(ve)', '').replace('ve = Add(v, eps)', 's = Sqrt(v) sd = Add(s, eps)')} {AFFINE} {GELU}",
        {},
        "sd is made by Add",
    ),
    "cube": (f"{MEAN} sq = Pow(d, three) {ROOT} {AFFINE} {GELU}", {}, "power of 3"),
    "variance over another axis": (
        f"{MEAN} sq = Mul(d, d) {ROOT.replace('[-1]', '[1]')} {AFFINE} {GELU}",
        {},
        "axis is 1 in one place, -1 in another",
    ),
    "axes 0 and 2": (f"{DEC.replace('[-1]', '[0, 2]')} {AFFINE} {GELU}", {}, "its axes are [0, 2]"),
    "no axes kept": (
        f"{DEC.replace('axes=[-1]', 'axes=[-1], keepdims=0')} {AFFINE} {GELU}",
        {"inputs": "float[8,8] x", "outputs": "float[8,8] y"},
        "keepdims is 0",
    ),
    "divided by one less": (
        f"{MEAN} sq = Mul(d, d) v0 = ReduceSum(sq, last) v = Div(v0, seven) ve = Add(v, eps) sd = Sqrt(ve) {AFFINE} {GELU}",
        {"last": np.int64([-1]), "seven": 7.0, "opset": 13},
        "not divided by the number of elements",
    ),
    "divided by one less, of many": (
        f"{MEAN} sq = Mul(d, d) v0 = ReduceSum(sq, last) v = Div(v0, fewer) ve = Add(v, eps) sd = Sqrt(ve) {AFFINE} {GELU}",
        {
            "last": np.int64([-1]),
            "fewer": 2047.0,
            "g": np.ones(2048),
            "b": np.ones(2048),
            "opset": 13,
            "inputs": "float[2,2048] x",
            "outputs": "float[2,2048] y",
        },
        "not divided by the number of elements",
    ),
    "scale a row": (f"{DEC} {AFFINE} {GELU}", {"g": np.ones((4, 1))}, "g (scale) has shape [4, 1]"),
    "scale a sample": (
        f"{DEC} {AFFINE} {GELU}",
        {"inputs": "float[2,4,8] x, float[2,1,8] g"},
        "g (scale) has shape [2, 1, 8]",
    ),
    "scale that expands": (f"{DEC} {AFFINE} {GELU}", {"inputs": "float[2,4,1] x"}, "x has shape [2, 4, 1]"),
    "square root of a square": (
        f"{MEAN} dd = Mul(d, d) a = Sqrt(dd) v = ReduceMean<axes=[-1]>(dd) ve = Add(v, eps) sd = Sqrt(ve) "
        f"n = Div(a, sd) gn = Mul(g, n) z = Add(gn, b) {GELU}",
        {},
        "",
    ),
    "scale and bias in the erf only": (f"{DEC} {AFFINE} {GELU.replace('Mul(z, p)', 'Mul(n, p)')}", {}, ""),
    "no scale and bias in the erf": (f"{DEC} {AFFINE} {GELU.replace('Div(z, s2)', 'Div(n, s2)')}", {}, ""),
    "no bias in the erf": (f"{DEC} {AFFINE} {GELU.replace('Div(z, s2)', 'Div(gn, s2)')}", {}, ""),
    "a factor in the erf only": (f"{LN} zc = Mul(z, quick) {GELU.replace('Div(z, s2)', 'Div(zc, s2)')}", {}, ""),
    "a shift in the erf only": (f"{LN} zc = Add(z, b) {GELU.replace('Div(z, s2)', 'Div(zc, s2)')}", {}, ""),
    "a factor outside the erf only": (f"{LN} zc = Mul(z, g) {GELU.replace('Mul(z, p)', 'Mul(zc, p)')}", {}, ""),
    "an exponent that adds dimensions": (
        f"{MEAN} sq = Pow(d, twos) {ROOT} {AFFINE} {GELU}",
        {"twos": np.full((1, 1, 1, 1, 1), 2.0), "outputs": "float[1,1,2,4,8] y"},
        "",
    ),
    "a 0 that adds dimensions": (
        f"{MEAN} xx = Mul(x, x) m2 = ReduceMean<axes=[-1]>(xx) mm = Mul(m, m) v0 = Sub(m2, mm) v = Max(v0, zeros) "
        f"ve = Add(v, eps) sd = Sqrt(ve) {AFFINE} {GELU}",
        {"zeros": np.zeros((3, 1, 1, 1)), "outputs": "float[3,2,4,8] y"},
        "",
    ),
    "a 0 that expands an open dimension": (
        f"{MEAN} xx = Mul(x, x) m2 = ReduceMean<axes=[-1]>(xx) mm = Mul(m, m) v0 = Sub(m2, mm) v = Max(v0, zeros) "
        f"ve = Add(v, eps) sd = Sqrt(ve) {AFFINE} {GELU}",
        {"zeros": np.zeros((3, 1, 1)), "inputs": "float[N,4,8] x", "outputs": "float[M,4,8] y"},
        "could expand",
    ),
    "scale of 3 dimensions, x of unknown rank": (
        f"{DEC} {AFFINE} {GELU}",
        {"inputs": "float x", "g": np.ones((1, 1, 8)), "rankless": True},
        "g (scale) has shape [1, 1, 8]",
    ),
    "not reshaped back": (
        "r = Reshape(x, one_group) n = InstanceNormalization(r, ones, zeros) t = Reshape(n, back) gn = Mul(t, g) z = Add(gn, b) "
        + GELU,
        {
            "inputs": "float[2,3,4,5] x",
            "outputs": "float[2,12,5] y",
            "one_group": np.int64([2, 1, -1]),
            "back": np.int64([2, 12, 5]),
            "ones": [1.0],
            "zeros": [0.0],
            "g": 1.5,
            "b": 0.5,
        },
        "not that of the data",
    ),
    "scale from inside": (
        f"{DEC} {AFFINE.replace('Mul(g, n)', 'Mul(d, n)')} {GELU}",
        {"inputs": "float[8] x", "outputs": "float[8] y"},
        "",
    ),
    "root of a negative": (
        f"{DEC.replace('Sqrt(ve)', 'Sqrt(ne)').replace('sd =', 'ne = Neg(ve) sd =')} {AFFINE} {GELU}",
        {},
        "",
    ),
    "square of a root": (f"{LN.replace('z =', 'z0 =')} zr = Sqrt(z0) z = Pow(zr, two) {GELU}", {}, ""),
    "divided by 0": (f"{LN.replace('z =', 'z0 =')} z = Div(z0, zero) {GELU}", {}, ""),
    "RMSNorm": (f"sq = Mul(x, x) {ROOT} n = Div(x, sd) gn = Mul(g, n) z = Add(gn, b) {GELU}", {}, ""),
    "QuickGELU": (f"{LN} a = Mul(z, quick) s = Sigmoid(a) y = Mul(z, s)", {}, ""),
    "com.microsoft QuickGelu": (f"{LN} y = com.microsoft.QuickGelu(z)", {}, ""),
    "two GELUs": (
        f"{LN} {GELU} u2 = Div(z, s2) e2 = Erf(u2) p2 = Add(e2, one) zp2 = Mul(z, p2) w = Mul(zp2, half)",
        {"outputs": "float[2,4,8] y, float[2,4,8] w"},
        "z inside it is also read by",
    ),
    "training": (f"{LN.replace('z =', 'z0 =')} z = Dropout(z0, half, yes) {GELU}", {"yes": np.bool_(True)}, ""),
    "mean given out": (
        f"{LN.replace('z =', 'z, mean =')} {GELU}",
        {"outputs": "float[2,4,8] y, float[2,4,1] mean"},
        "mean inside it is an output of the graph",
    ),
    "rounded to 16 bits inside": (
        f"{LN.replace('z =', 'z0 =')} z1 = Cast<to=10>(z0) z = Cast<to=1>(z1) {GELU}",
        {},
        "float32 to float16",
    ),
    "result in float64": (
        f"{LN} zd = Cast<to=11>(z) y = Gelu(zd)",
        {"opset": 20, "outputs": "double[2,4,8] y"},
        "result float64",
    ),
}


@pytest.mark.parametrize("name", LEFT)
def test_left_alone(name: str) -> None:
    body, options, reason = LEFT[name]
    built = model(body, **{"opset": 17 if "LayerNormalization" in body else 13, **options})
    result = fused(built)
    assert result.fusions == []
    assert result.model == built
    if reason:
        assert reason in result.near_misses[0].reason


def test_cast_pairs_around() -> None:
    """LayerNorm in float32 between float16 tensors, and GELU as well: 16 bits are read and written."""
    half = {"inputs": "float16[2,4,8] x", "outputs": "float16[2,4,8] y", "opset": 20}
    norm = "xf = Cast<to=1>(x) zf = LayerNormalization<axis=-1>(xf, g, b) z = Cast<to=10>(zf) y = Gelu(z)"
    gelu = "z = LayerNormalization<axis=-1>(x, g16, g16) zf = Cast<to=1>(z) yf = Gelu(zf) y = Cast<to=10>(yf)"
    for body in (norm, gelu):
        built = model(body, g16=np.linspace(0.5, 1.5, 8).astype(np.float16), **half)  # type: ignore[arg-type]
        result = fused(built)
        assert [n.op_type for n in result.model.graph.node] == ["LayerNormGelu"]
        same(built, result.model, 2e-3)


def test_a_cast_that_others_read_stays() -> None:
    body = "xf = Cast<to=1>(x) zf = LayerNormalization<axis=-1>(xf, g, b) z = Cast<to=10>(zf) y = Gelu(z) w = Relu(xf)"
    built = model(body, "float16[2,4,8] x", "float16[2,4,8] y, float[2,4,8] w", 20)
    result = fused(built)
    assert sorted(n.op_type for n in result.model.graph.node) == ["Cast", "LayerNormGelu", "Relu"]
    same(built, result.model, 2e-3)


def test_through_local_functions() -> None:
    """LayerNorm in one function, GELU in another: opened, because that lets them be fused."""
    text = """<ir_version: 8, opset_import: ["": 20, "own": 1]>
        m (float[2,4,8] x, float[8] g) => (float[2,4,8] y) { z = own.Norm<eps = 0.001>(x, g) y = own.Act(z) }
        <domain: "own", opset_import: ["": 20]> Norm<eps: float = 0.5> (a, s) => (r)
            { r = LayerNormalization<axis = -1, epsilon: float = @eps>(a, s) }
        <domain: "own", opset_import: ["": 20]> Act (a) => (r) { r = Gelu(a) }"""
    built = parser.parse_model(text)
    result = fused(built)
    assert [(f.op, f.output) for f in result.fusions] == [("LayerNormGelu", "y")]
    assert result.fusions[0].attributes["epsilon"] == pytest.approx(1e-3)
    same(built, result.model)
    other = parser.parse_model(text.replace("Gelu(a)", "Relu(a)"))
    assert fused(other).model == other  # nothing to fuse: its functions stay


@pytest.mark.parametrize("body", ["y = Clip(x, half)", "y = Max(half, x)", "y = Max(x, half)"])
def test_fused_relu(body: str) -> None:
    built = model(body)
    result = fused(built, "fused-relu")
    assert [f.attributes["alpha"] for f in result.fusions] == [0.5]
    same(built, result.model)


@pytest.mark.parametrize(
    "body", ["y = Clip(x, half, one)", "y = Max(x, half, one)", "y = Max(x, g)", "y = Min(x, half)"]
)
def test_no_fused_relu(body: str) -> None:
    assert fused(model(body), "fused-relu").fusions == []


def test_a_new_pattern_needs_no_change_elsewhere() -> None:
    """RMSNorm and SiLU, as an op author would write it."""

    class RmsNormSilu(Op):
        """y = SiLU(x / sqrt(mean(x^2) + epsilon) * scale)"""

        epsilon: float = 1e-6
        axis: int = -1
        pattern = "rmsnorm-silu"
        source = ""

        def patterns(self, op: Builder, x: Expr, scale: Expr) -> Any:
            epsilon, axis = Attr("epsilon", self.epsilon.value), Attr("axis", self.axis.value)  # type: ignore[attr-defined]
            norm = x / op.Sqrt(op.mean(x * x, axis) + epsilon) * op.per_channel(scale, axis)
            yield norm * op.Sigmoid(norm)

        def output(self, x: Any, scale: Any) -> Any:
            return x

    body = f"sq = Pow(x, two) {ROOT} n = Div(x, sd) z = Mul(g, n) s = Sigmoid(z) y = Mul(s, z)"
    built = model(body, opset=13)
    copy = ModelProto()
    copy.CopyFrom(built)
    result = fuse_model(copy, Path(), [RmsNormSilu])
    assert [f.op for f in result.fusions] == ["RmsNormSilu"]
    assert result.model.functions[0].name == "RmsNormSilu"
    same(built, result.model)


def test_names_metadata_and_the_rest_stay() -> None:
    built = model(f"r = Relu(x) {LN.replace('(x', '(r')} {GELU} w = Neg(y)", outputs="float[2,4,8] w")
    built.metadata_props.add(key="author", value="somebody")
    built.graph.doc_string = "a graph"
    for node in built.graph.node:
        node.metadata_props.add(key="source", value=node.output[0])
    result = fused(built).model
    assert result.metadata_props == built.metadata_props
    assert result.graph.doc_string == "a graph"
    assert [n for n in result.graph.node if n.op_type in ("Relu", "Neg")] == [
        n for n in built.graph.node if n.op_type in ("Relu", "Neg")
    ]
    assert [helper.printable_value_info(v) for v in (*result.graph.input, *result.graph.output)] == [
        helper.printable_value_info(v) for v in (*built.graph.input, *built.graph.output)
    ]
    assert built.graph.input[0].type.tensor_type.elem_type == TensorProto.FLOAT


def test_in_the_main_graph_and_in_branches() -> None:
    """Each is written, those inside with the weights of the graph around them, and nothing unused is left."""
    branch = "{ zi = LayerNormalization<axis=-1>(y, g, b) w = Gelu(zi) }"
    other = "el () => (float[2,4,8] v) { v = Relu(y) }"
    inner = f"{{ o = If(c) <then_branch = th () => (float[2,4,8] w) {branch}, else_branch = {other}> }}"
    body = (
        f"{LN} y = Gelu(z) r = If(c) <then_branch = t () => (float[2,4,8] o) {inner}, "
        "else_branch = e () => (float[2,4,8] q) { q = Neg(y) }>"
    )
    built = model(body, "float[2,4,8] x, bool c", "float[2,4,8] r", 20, g=np.ones(8), b=np.zeros(8))
    result = fused(built)
    assert [f.op for f in result.fusions] == ["LayerNormGelu"] * 2
    onnx.checker.check_model(result.model, full_check=True)
    assert [t.name for t in result.model.graph.initializer] == ["g", "b"]
    assert result.model.SerializeToString().count(b"LayerNormGelu") >= 3  # two nodes and the body
    again = fused(result.model)
    assert again.fusions == []
    assert again.model == result.model


def test_a_result_that_nobody_reads_is_still_there() -> None:
    built = model(f"{LN} {GELU} w = Neg(x)", outputs="float[2,4,8] w")
    result = fused(built)
    assert [n.op_type for n in result.model.graph.node] == ["LayerNormGelu", "Neg"]


def test_a_shape_that_is_only_a_default() -> None:
    """From IR 4 on an initializer that is also an input can be replaced: its value proves no shape."""
    built = model(
        f"x = Reshape(x0, shape) {DEC} {AFFINE} {GELU}", "float[N] x0, int64[3] shape", "float[A,B,C] y", g=1.5, b=0.5
    )
    built.graph.initializer.append(numpy_helper.from_array(np.int64([2, 4, 8]), "shape"))
    assert fused(built).fusions == []


@pytest.mark.parametrize("body", ["m = ReduceMean() y = Neg(m)", "y = Div(x)", "y = Neg(q) q = Neg(y)"])
def test_invalid_models_get_a_sentence(body: str, tmp_path: Path) -> None:
    """Also where an output has no shape, beyond which the checker does not look."""
    built = model(body, opset=20)
    built.graph.output[0].type.tensor_type.ClearField("shape")
    onnx.save(built, tmp_path / "m.onnx")
    with pytest.raises(ConvertError, match="not valid ONNX"):
        fuse(tmp_path / "m.onnx")


def test_an_axis_beyond_the_rank() -> None:
    assert fused(model(f"{LN.replace('axis=-1', 'axis=9')} y = Gelu(z)", opset=20)).fusions == []
