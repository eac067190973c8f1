"""Spellings of GroupNorm with SiLU and of ConvNeXt V2's GRN, as ONNX text: found with the same numbers, or left with a reason."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto

from tests.test_forms import fused, model
from trtconvert import reference
from trtconvert.fuse import FuseResult

C, GROUPS = 12, 4
COLUMN = (C, 1, 1)
SILU = "s = Sigmoid(v) y = Mul(v, s)"
AFFINE = "t1 = Mul(t, g) v = Add(t1, b)"
INSTANCE = "r = Reshape(x, grouped) n = InstanceNormalization<epsilon=1e-5>(r, ones, zeros)"
TORCH = f"{INSTANCE} shape = Shape(x) t = Reshape(n, shape) {AFFINE} {SILU}"
OP = "v = GroupNormalization<num_groups=4, epsilon=1e-5>(x, g, b)"
WRITTEN_OUT = (
    "m = ReduceMean<axes=[2]>(r) d = Sub(r, m) sq = Mul(d, d) var = ReduceMean<axes=[2]>(sq) ve = Add(var, eps) sd = Sqrt(ve) "
    "n = Div(d, sd)"
)
RANDOM = np.random.default_rng(7)
COMMON: dict[str, Any] = {
    "inputs": "float[2,12,4,6] x",
    "outputs": "float[2,12,4,6] y",
    "grouped": np.int64([0, GROUPS, -1]),
    "back": np.int64([2, C, 4, 6]),
    "ones": np.ones(GROUPS),
    "zeros": np.zeros(GROUPS),
    "g": RANDOM.uniform(0.5, 1.5, COLUMN),
    "b": RANDOM.standard_normal(COLUMN),
}
VECTORS = {name: COMMON[name].reshape(C) for name in "gb"}
DYNAMIC = {"inputs": "float[N,12,H,W] x", "outputs": "float[N,12,H,W] y"}
HALF = {
    "inputs": "float16[2,12,4,6] x",
    "outputs": "float16[2,12,4,6] y",
    **{name: COMMON[name].astype(np.float16) for name in ("ones", "zeros", "g", "b")},
}
LAST: dict[str, Any] = {
    "inputs": "float[2,5,3,8] x",
    "outputs": "float[2,5,3,8] y",
    "g": RANDOM.standard_normal((1, 1, 1, 8)),
    "b": RANDOM.standard_normal((1, 1, 1, 8)),
    "eps": 1e-6,
}
FIRST = LAST | {
    "inputs": "float[2,8,5,3] x",
    "outputs": "float[2,8,5,3] y",
    "g": LAST["g"].reshape(1, 8, 1, 1),
    "b": LAST["b"].reshape(1, 8, 1, 1),
}
L2 = "gx = ReduceL2<axes=[1, 2], keepdims=1>(x)"
REST = "m = ReduceMean<axes=[-1], keepdims=1>(gx) me = Add(m, eps) nx = Div(gx, me)"
GRN = f"{L2} {REST} xn = Mul(x, nx) gn = Mul(g, xn) gb = Add(gn, b) y = Add(gb, x)"
GRN_FIRST = GRN.replace("axes=[1, 2]", "axes=[2, 3]").replace("axes=[-1]", "axes=[1]")


def built(body: str, **options: Any) -> ModelProto:
    return model(body, **{"opset": 17, **options})  # type: ignore[arg-type]


def same(one: ModelProto, other: ModelProto, limit: float) -> None:
    """The same outputs for the same inputs, dynamic dimensions at 5."""
    sessions = [reference.session(m) for m in (one, other)]
    random = np.random.default_rng(0)
    kinds = {"tensor(float)": np.float32, "tensor(float16)": np.float16}
    feeds = {}
    for value in sessions[0].get_inputs():
        shape = [size if isinstance(size, int) else 5 for size in value.shape]
        feeds[value.name] = (random.standard_normal(shape) + 0.5).astype(kinds[value.type])
    for a, b in zip(*(s.run(None, feeds) for s in sessions), strict=True):
        assert a.shape == b.shape
        assert a.dtype == b.dtype
        assert np.linalg.norm(a.astype(np.float64) - b) <= limit * np.linalg.norm(a.astype(np.float64))


GROUP_NORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "torch": (TORCH, {}),
    "torch, all sizes constant": (TORCH.replace("shape = Shape(x) ", "").replace("shape)", "back)"), {}),
    "torch, dynamic": (TORCH, DYNAMIC),
    "torch, behind a dynamic convolution": (
        TORCH.replace("x", "c").replace("r = ", "c = Conv(x, w) r = "),
        {**DYNAMIC, "outputs": "float[N,12,P,Q] y", "w": RANDOM.standard_normal((12, 12, 3, 3))},
    ),
    "torch, float16": (TORCH, HALF),
    "torch, 3 dimensions": (
        TORCH,
        {
            "inputs": "float[2,12,5] x",
            "outputs": "float[2,12,5] y",
            "g": COMMON["g"].reshape(C, 1),
            "b": COMMON["b"].reshape(1, C, 1),
        },
    ),
    "scale [1, C, 1, 1]": (TORCH, {"g": COMMON["g"][None], "b": COMMON["b"][None]}),
    "scalar scale": (TORCH, {"g": 1.5}),
    "scale an input": (TORCH, {"inputs": "float[2,12,4,6] x, float[12,1,1] g"}),
    "no scale": (TORCH.replace("t1 = Mul(t, g) v = Add(t1, b)", "v = Add(t, b)"), {}),
    "no bias": (TORCH.replace("t1 = Mul(t, g) v = Add(t1, b)", "v = Mul(t, g)"), {}),
    "neither": (TORCH.replace(f"t = Reshape(n, shape) {AFFINE}", "v = Reshape(n, shape)"), {}),
    "the sizes of the groups computed": (
        "sh = Shape(x) n0 = Gather(sh, at) n1 = Unsqueeze(n0, at1) gs = Concat<axis=0>(n1, four, all) "
        f"{TORCH.replace('grouped', 'gs')}",
        {**DYNAMIC, "at": np.int64(0), "at1": np.int64([0]), "four": np.int64([4]), "all": np.int64([-1])},
    ),
    "written out": (
        f"r = Reshape(x, grouped) {WRITTEN_OUT} shape = Shape(x) t = Reshape(n, shape) {AFFINE} {SILU}",
        DYNAMIC,
    ),
    "written out over three axes": (
        f"r = Reshape(x, split) {WRITTEN_OUT.replace('[2]', '[2, 3, 4]')} t = Reshape(n, back) {AFFINE} {SILU}",
        {"split": np.int64([2, GROUPS, 3, 4, 6])},
    ),
    "in float32 between float16": (
        TORCH.replace("Reshape(x,", "Reshape(xf,")
        .replace("r =", "xf = Cast<to=1>(x) r =")
        .replace(f"v = Add(t1, b) {SILU}", "vf = Add(t1, b) v = Cast<to=10>(vf) s = Sigmoid(v) y = Mul(v, s)"),
        {"inputs": HALF["inputs"], "outputs": HALF["outputs"]},
    ),
    "opset 21": (f"{OP} {SILU}", {"opset": 21, **VECTORS}),
    "opset 21, dynamic, swapped": (f"{OP} s = Sigmoid(v) y = Mul(s, v)", {"opset": 21, **VECTORS, **DYNAMIC}),
    "opset 18: scale and bias of a group": (
        f"{OP} {SILU}",
        {"opset": 18, "g": RANDOM.uniform(0.5, 1.5, GROUPS), "b": RANDOM.standard_normal(GROUPS)},
    ),
    "Swish": (f"{OP} y = Swish(v)", {"opset": 24, **VECTORS}),
    "com.microsoft QuickGelu": (TORCH.replace(SILU, "y = com.microsoft.QuickGelu<alpha=1.0>(v)"), {}),
    "v / (1 + exp(-v))": (
        TORCH.replace(SILU, "w = Neg(v) e = Exp(w) e1 = Add(e, one) y = Div(v, e1)"),
        {},
    ),
}


@pytest.mark.parametrize("name", GROUP_NORMS)
def test_group_norm_silu(name: str) -> None:
    body, options = GROUP_NORMS[name]
    source = built(body, **{**COMMON, **options})
    result = fused(source, "groupnorm-silu")
    assert [f.op for f in result.fusions] == ["GroupNormSilu"], result.near_misses
    assert result.fusions[0].attributes["num_groups"] == GROUPS
    assert result.fusions[0].attributes["epsilon"] == pytest.approx(1e-5, rel=1e-5)
    assert {n.op_type for n in result.model.graph.node} <= {"GroupNormSilu", "Conv", "Reshape"}
    onnx.checker.check_model(result.model, full_check=True)
    half = "float16" in str(options.get("inputs"))
    same(source, result.model, 2e-3 if half else 1e-5)


def test_contrib_group_norm() -> None:
    """onnxruntime's own, channels last between Transposes, the SiLU inside it or behind; it has no kernel for the CPU."""
    body = (
        "xt = Transpose<perm=[0,2,3,1]>(x) t = com.microsoft.GroupNorm<activation=1, channels_last=1, epsilon=1e-5, groups=4>"
        "(xt, g, b) y = Transpose<perm=[0,3,1,2]>(t)"
    )
    behind = body.replace("activation=1", "activation=0").replace("y =", "v =") + " " + SILU
    for text in (body, behind):
        result = fused(built(text, **{**COMMON, **VECTORS}), "groupnorm-silu")
        assert [f.attributes for f in result.fusions] == [{"num_groups": 4, "epsilon": pytest.approx(1e-5)}]
    twice = f"{body.replace('y =', 'v =')} {SILU}"
    assert [f.output for f in fused(built(twice, **{**COMMON, **VECTORS}), "groupnorm-silu").fusions] == ["v"]


LEFT: dict[str, tuple[str, dict[str, Any], str]] = {
    "read elsewhere": (
        f"{TORCH} w = Relu(v)",
        {"outputs": "float[2,12,4,6] y, float[2,12,4,6] w"},
        "v inside it is also read",
    ),
    "an output": (TORCH, {"outputs": "float[2,12,4,6] y, float[2,12,4,6] v"}, "v inside it is an output"),
    "groups that do not divide the channels": (
        TORCH,
        {"grouped": np.int64([0, 8, -1]), "ones": np.ones(8), "zeros": np.zeros(8)},
        "12 channels do not divide into 8 groups",
    ),
    "samples in the groups": (
        TORCH.replace("shape = Shape(x) ", "").replace("shape)", "back)"),
        {"grouped": np.int64([1, 4, -1])},
        "r has shape [1, 4, 144], not [2, 'groups', '...']",
    ),
    "not shaped back": (
        TORCH.replace("shape = Shape(x) ", "").replace("shape)", "other)"),
        {"other": np.int64([2, C, 6, 4]), "outputs": "float[2,12,6,4] y"},
        "not that of the data",
    ),
    "scale along another axis": (
        TORCH,
        {"g": np.ones(6), "b": np.ones(6)},
        "g (scale) has shape [6]",
    ),
    "scale of an instance": (TORCH, {"ones": RANDOM.uniform(0.5, 1.5, GROUPS)}, "ones is not a constant"),
    "over one axis of three": (
        f"r = Reshape(x, split) {WRITTEN_OUT.replace('[2]', '[4]')} t = Reshape(n, back) {AFFINE} {SILU}",
        {"split": np.int64([2, GROUPS, 3, 4, 6])},
        "",
    ),
    "Sigmoid of another tensor": (TORCH.replace("Sigmoid(v)", "Sigmoid(t1)"), {}, "its parts differ"),
    "Sigmoid of the input": (TORCH.replace("Sigmoid(v)", "Sigmoid(x)"), {}, "where a GroupNorm is"),
    "HardSwish": (TORCH.replace(SILU, "y = HardSwish(v)"), {}, ""),
    "QuickGELU": (TORCH.replace("Sigmoid(v)", "Sigmoid(q)").replace("s =", "q = Mul(v, quick) s ="), {}, ""),
    "Swish with alpha 2": (f"{OP} y = Swish<alpha=2.0>(v)", {"opset": 24, **VECTORS}, ""),
    "rounded to 16 bits inside": (
        TORCH.replace("v = Add(t1, b)", "v0 = Add(t1, b) v1 = Cast<to=10>(v0) v = Cast<to=1>(v1)"),
        {},
        "float32 to float16",
    ),
}


@pytest.mark.parametrize("name", LEFT)
def test_group_norm_left_alone(name: str) -> None:
    body, options, reason = LEFT[name]
    left_alone(fused(source := built(body, **{**COMMON, **options}), "groupnorm-silu"), source, reason)


def left_alone(result: FuseResult, source: ModelProto, reason: str) -> None:
    assert result.fusions == []
    assert result.model == source
    if reason:
        assert reason in result.near_misses[0].reason, result.near_misses


RESPONSE_NORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "transformers": (GRN, LAST),
    "dynamic": (GRN, LAST | {"inputs": "float[N,H,W,8] x", "outputs": "float[N,H,W,8] y"}),
    "timm": (
        f"{L2} {REST} xn = Mul(x, nx) gn = Mul(g, xn) gn1 = Mul(gn, one) gb = Add(b, gn1) y = Add(x, gb)",
        LAST,
    ),
    "channels first": (GRN_FIRST, FIRST),
    "channels first, dynamic": (
        GRN_FIRST,
        FIRST | {"inputs": "float[N,8,H,W] x", "outputs": "float[N,8,H,W] y"},
    ),
    "axes from the end, swapped": (GRN.replace("[1, 2]", "[-2, -3]").replace("axes=[-1]", "axes=[3]"), LAST),
    "axes as inputs": (
        GRN.replace("<axes=[1, 2], keepdims=1>(x)", "(x, spatial)").replace("<axes=[-1], keepdims=1>(gx)", "(gx, last)"),
        LAST | {"opset": 18, "spatial": np.int64([1, 2]), "last": np.int64([-1])},
    ),
    "root of the sum of squares": (
        GRN.replace(L2, "xx = Mul(x, x) ss = ReduceSum(xx, ax) gx = Sqrt(ss)"),
        LAST | {"ax": np.int64([1, 2])},
    ),
    "power of 1/2": (
        GRN.replace(L2, "xx = Pow(x, two) ss = ReduceSum(xx, ax) gx = Pow(ss, half)"),
        LAST | {"ax": np.int64([1, 2])},
    ),
    "ReduceSumSquare": (GRN.replace(L2, "ss = ReduceSumSquare<axes=[1, 2]>(x) gx = Sqrt(ss)"), LAST),
    "scale times nx plus 1": (f"{L2} {REST} gn = Mul(g, nx) g1 = Add(gn, one) xg = Mul(x, g1) y = Add(xg, b)", LAST),
    "one axis of positions": (
        GRN.replace("[1, 2]", "[1]"),
        LAST | {"inputs": "float[2,15,8] x", "outputs": "float[2,15,8] y", "g": LAST["g"][0], "b": LAST["b"][0, 0, 0]},
    ),
    "float16": (
        GRN,
        LAST
        | {"inputs": "float16[2,5,3,8] x", "outputs": "float16[2,5,3,8] y"}
        | {name: np.float16(LAST[name]) for name in ("g", "b", "eps")},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RESPONSE_NORMS)
def test_global_response_norm(name: str) -> None:
    body, options = RESPONSE_NORMS[name]
    source = built(body, **options)
    result = fused(source, "global-response-norm")
    assert [f.op for f in result.fusions] == ["GlobalResponseNorm"], result.near_misses
    assert result.fusions[0].attributes["axis"] == (1 if "first" in name else -1)
    assert {n.op_type for n in result.model.graph.node} == {"GlobalResponseNorm"}
    onnx.checker.check_model(result.model, full_check=True)
    same(source, result.model, 2e-3 if name == "float16" else 1e-5)


LEFT_RESPONSES: dict[str, tuple[str, dict[str, Any], str]] = {
    "norms read elsewhere": (
        f"{GRN} w = Relu(nx)",
        LAST | {"outputs": "float[2,5,3,8] y, float[2,1,1,8] w"},
        "nx inside it is also",
    ),
    "the norm of one axis": (GRN.replace("[1, 2]", "[1]"), LAST, "axes is [1], not [1, 2]"),
    "the norm of all": (GRN.replace("[1, 2]", "[1, 2, 3]"), LAST, "axes is [1, 2, 3], not [1, 2]"),
    "L1 norm": (GRN.replace("ReduceL2", "ReduceL1"), LAST, ""),
    "mean over the positions": (GRN.replace("axes=[-1]", "axes=[1]"), LAST, "its axis is 1, not -1"),
    "no residual": (GRN.replace("gb = Add(gn, b) y = Add(gb, x)", "y = Add(gn, b)"), LAST, "b stands where x is"),
    "another residual": (GRN.replace("Add(gb, x)", "Add(gb, z)"), LAST | {"inputs": "float[2,5,3,8] x, float[2,5,3,8] z"}, ""),
    "channels first, scale last": (GRN_FIRST, FIRST | {"g": np.ones((1, 1, 1, 3))}, "g (scale) has shape [1, 1, 1, 3]"),
    "epsilon outside": (GRN.replace("me = Add(m, eps) nx = Div(gx, me)", "q = Div(gx, m) nx = Add(q, eps)"), LAST, ""),
}  # fmt: skip


@pytest.mark.parametrize("name", LEFT_RESPONSES)
def test_response_norm_left_alone(name: str) -> None:
    body, options, reason = LEFT_RESPONSES[name]
    left_alone(fused(source := built(body, **options), "global-response-norm"), source, reason)
