"""Near a convolution an op over axis 1 is written over the last axis, between Transposes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import ModelProto, helper, numpy_helper

from trtconvert import fuse

RNG = np.random.default_rng(0)
NORM = (
    "u = ReduceMean <axes = [1], keepdims = 1> (x1) d = Sub (x1, u) q = Mul (d, d) v = ReduceMean <axes = [1], keepdims = 1> (q) "
    "w = Add (v, E) r = Sqrt (w) n = Div (d, r) m = Mul (n, S) l = Add (m, B) e = Div (l, R) f = Erf (e) g = Add (f, ONE) "
    "h = Mul (l, g) y1 = Mul (h, HALF)"
)
SHAPE = (2, 8, 5, 6)


def model(
    before: str, behind: str, channels: tuple[int, ...] = (1, 8, 1, 1), shape: tuple[int, ...] = SHAPE
) -> ModelProto:
    """A LayerNorm over the channels and a GELU, from x1 to y1; before: nodes from x to x1; behind: from y1 to y."""
    sizes = ",".join(map(str, shape))
    text = f'<ir_version: 8, opset_import: ["": 17]> g (float[{sizes}] x) => (float[?,?,?{",?" * (len(shape) - 3)}] y) '
    proto = onnx.parser.parse_model(f"{text}{{ {before} {NORM} {behind} }}")
    weights = {
        "S": RNG.standard_normal(channels),
        "B": RNG.standard_normal(channels),
        "W": RNG.standard_normal((8, 8, 3, 3)) / 8,
        "C": RNG.standard_normal((1, 8, 1, 1)),
        "E": np.array(1e-5),
        "R": np.array(2**0.5),
        "ONE": np.array(1.0),
        "HALF": np.array(0.5),
    }
    for name, value in weights.items():
        proto.graph.initializer.append(numpy_helper.from_array(value.astype(np.float32), name))
    return proto


def fused(proto: ModelProto, folder: Path) -> ModelProto:
    """The fused model, which computes the same."""
    source, output = folder / "model.onnx", folder / "fused.onnx"
    onnx.save(proto, source)
    assert len(fuse(source, output=output).fusions) == 1
    x = RNG.standard_normal([d.dim_value for d in proto.graph.input[0].type.tensor_type.shape.dim]).astype(np.float32)
    want, got = (onnxruntime.InferenceSession(path).run(None, {"x": x})[0] for path in (source, output))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    return onnx.load(output)


def written(proto: ModelProto) -> tuple[list[str], int]:
    """Types of the nodes, and the axis of the plugin's."""
    (plugin,) = (node for node in proto.graph.node if node.op_type == "LayerNormGelu")
    axis = next(helper.get_attribute_value(a) for a in plugin.attribute if a.name == "axis")
    return [node.op_type for node in proto.graph.node], axis


CONV = "Conv <pads = [1, 1, 1, 1]>"
LAST = ["Transpose", "LayerNormGelu", "Transpose"]


@pytest.mark.parametrize(
    ("before", "behind", "expected"),
    [
        (f"x1 = {CONV} (x, W)", f"y = {CONV} (y1, W)", (["Conv", *LAST, "Conv"], -1)),
        ("x1 = ConvTranspose (x, W)", "y = Relu (y1)", (["ConvTranspose", *LAST, "Relu"], -1)),
        ("x1 = Relu (x)", f"y = {CONV} (y1, W)", (["Relu", *LAST, "Conv"], -1)),
        (f"c = {CONV} (x, W) x1 = Add (c, C)", "y = Relu (y1)", (["Conv", "Add", *LAST, "Relu"], -1)),
        ("x1 = Relu (x)", f"c = Add (y1, C) y = {CONV} (c, W)", (["Relu", *LAST, "Add", "Conv"], -1)),
        (f"c = {CONV} (x, W) x1 = Relu (c)", "y = Relu (y1)", (["Conv", "Relu", "LayerNormGelu", "Relu"], 1)),
        (
            f"c = {CONV} (x, W) b = Add (c, C) x1 = Add (b, C)",
            "y = Relu (y1)",
            (["Conv", "Add", "Add", "LayerNormGelu", "Relu"], 1),
        ),
        ("x1 = Identity (x)", "y = Identity (y1)", (["Identity", "LayerNormGelu", "Identity"], 1)),
    ],
)
def test_near_a_convolution(before: str, behind: str, expected: tuple[list[str], int], tmp_path: Path) -> None:
    """Before or behind, at most one node between that keeps the layout."""
    assert written(fused(model(before, behind), tmp_path)) == expected


def test_one_dimension(tmp_path: Path) -> None:
    """[N, C, T], as in speech models."""
    proto = model("x1 = Conv <pads = [1, 1]> (x, W)", "y = Identity (y1)", (1, 8, 1), (2, 8, 7))
    weight = next(t for t in proto.graph.initializer if t.name == "W")
    weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight)[..., 0].copy(), "W"))
    result = fused(proto, tmp_path)
    assert written(result)[1] == -1
    moved = [list(n.attribute[0].ints) for n in result.graph.node if n.op_type == "Transpose"]
    assert moved == [[0, 2, 1], [0, 2, 1]]


def test_fusing_again_changes_nothing(tmp_path: Path) -> None:
    once = fused(model(f"x1 = {CONV} (x, W)", "y = Relu (y1)"), tmp_path)
    onnx.save(once, tmp_path / "once.onnx")
    assert fuse(tmp_path / "once.onnx", output=tmp_path / "twice.onnx").fusions == []
    assert onnx.load(tmp_path / "twice.onnx") == once
