"""Engines of quantized models on a real GPU: as exact as their Q and DQ are in onnxruntime, with plugins between int8 tensors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto

from tests.conftest import SAMPLES
from tests.importable import importable
from tests.test_forms import LN, model
from tests.test_int8 import KERNELS, QUANTIZABLE, RESIDUAL
from trtconvert import BuildOptions, build, load_engine, reference
from trtconvert import model as onnx_model
from trtconvert.bodies import add_bodies
from trtconvert.choice.trials import relative_l2
from trtconvert.inputs import random_feeds
from trtconvert.manifest import model_io
from trtconvert.precision.options import PrecisionOptions

SLACK = {"int8": 5e-3, "int8+fp16": 1e-2}  # relative L2: steps on whose edge the float before them lies


def check(path: Path, source: ModelProto, name: str, fuse: str, folder: Path) -> list[str]:
    """The engine is at most twice as far from the source as the quantized model is; the plugins that it has."""
    result = build(path, folder / "engine.plan", BuildOptions(fuse=fuse, precision=PrecisionOptions(name)))
    add_bodies(source)
    engine, twin = load_engine(result.plan), onnx_model.load(folder / result.manifest.precision.file)
    for label, feeds in random_feeds(model_io(source, "input"), result.manifest.profile, seed=7):
        expected = reference.run(source, path.parent, feeds)
        near, got = reference.run(twin, folder, feeds), engine.run(feeds)
        for output, want in expected.items():
            bound = 2 * relative_l2(near[output], want) + SLACK[name]
            assert relative_l2(got[output], want) <= bound, (label, output)
    return [node.op.name for node in result.plugin_nodes if node.op is not None]


def save(built: ModelProto, folder: Path) -> Path:
    path = folder / "model.onnx"
    path.write_bytes(onnx_model.serialize(built))
    return path


@pytest.mark.parametrize("name", SLACK)
@pytest.mark.parametrize("fuse", ["all", "none"])
@pytest.mark.parametrize("sample", QUANTIZABLE)
def test_sample(sample: str, fuse: str, name: str, tmp_path: Path) -> None:
    path = importable(SAMPLES / f"{sample}.onnx", tmp_path)
    if sample == "custom_relu" and fuse == "none":
        pytest.skip("its node is a plugin in any case")
    check(path, onnx_model.load(path), name, fuse, tmp_path)


@pytest.mark.parametrize("kernel", [k for k in KERNELS if k != "Conv 1-D"])
def test_products(kernel: str, tmp_path: Path) -> None:
    """Also stacked and grouped weights, beta, and weights behind a Transpose."""
    body, inputs, shape, _ = KERNELS[kernel]
    rank = inputs.count(",") + 1
    weight = np.random.default_rng(1).standard_normal(shape)
    built = model(body, inputs, f"float[{','.join('abcd'[:rank])}] y", w=weight, c6=np.linspace(-1, 1, 6))
    check(save(built, tmp_path), built, "int8", "none", tmp_path)


@pytest.mark.parametrize("name", RESIDUAL)
def test_residual(name: str, tmp_path: Path) -> None:
    random = np.random.default_rng(2)
    weights = {k: random.standard_normal((8, 8, 1, 1)) / 3 for k in ("w", "w2", "w3")}
    built = model(RESIDUAL[name], "float[1,8,6,6] x", "float[1,8,6,6] y", **weights)
    check(save(built, tmp_path), built, "int8", "none", tmp_path)


@pytest.mark.parametrize("name", SLACK)
def test_plugins_between_products(name: str, tmp_path: Path) -> None:
    """MatMul, LayerNorm, GELU, MatMul, GELU, MatMul: the tensors between are int8."""
    random = np.random.default_rng(3)
    norm = LN.replace("(x", "(first")
    body = (
        f"first = MatMul(x, w) {norm} y = Gelu(z) m = MatMul(y, wide) h = Add(m, c6) last = Gelu(h) "
        "out = MatMul(last, back)"
    )
    built = model(
        body,
        outputs="float[2,4,8] out",
        opset=20,
        w=random.standard_normal((8, 8)),
        wide=random.standard_normal((8, 32)),
        back=random.standard_normal((32, 8)),
        c6=np.linspace(-1, 1, 32),
    )
    found = check(save(built, tmp_path), built, name, "all", tmp_path)
    assert found == ["LayerNormGeluQuantize", "DequantizeGeluQuantize"]
