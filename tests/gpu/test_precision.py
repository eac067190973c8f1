"""Engines of converted models on a real GPU: as exact as the converted model is, LayerNorms that overflow float16 included."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import ModelProto

from tests.conftest import SAMPLES
from tests.graphs import graph, layer_norm, save
from tests.importable import importable
from trtconvert import BuildOptions, build, load_engine, reference
from trtconvert import model as onnx_model
from trtconvert.accuracy.references import twin_of
from trtconvert.bodies import add_bodies
from trtconvert.build import BuildResult
from trtconvert.choice.trials import relative_l2
from trtconvert.inputs import random_feeds
from trtconvert.manifest import model_io
from trtconvert.precision.options import PrecisionOptions

SLACK = {"fp16": 1e-3, "bf16": 8e-3}  # relative L2: one rounding to the type
FLOATS = [path.stem for path in sorted(SAMPLES.glob("*.onnx")) if path.stem != "qdq_mlp"]


def built(path: Path, folder: Path, name: str, fuse: str, **more: Any) -> BuildResult:
    return build(path, folder / "engine.plan", BuildOptions(fuse=fuse, precision=PrecisionOptions(name, **more)))


def check(result: BuildResult, source: ModelProto, name: str) -> None:
    """The engine is at most twice as far from the source as the converted model with its results rounded."""
    add_bodies(source)
    engine, folder = load_engine(result.plan), result.plan.parent
    twin = twin_of(onnx_model.load(folder / result.manifest.precision.file))
    for label, feeds in random_feeds(model_io(source, "input"), result.manifest.profile, seed=7):
        expected = reference.run(source, folder, feeds)
        wide = {n: a.astype(np.float32) if a.dtype.name in ("float16", "bfloat16") else a for n, a in feeds.items()}
        near, got = reference.run(twin, folder, wide), engine.run(feeds)
        for output, want in expected.items():
            assert got[output].dtype == want.dtype
            bound = 2 * relative_l2(near[output], want) + SLACK[name]
            assert relative_l2(got[output], want) <= bound, (label, output)


@pytest.mark.parametrize("fuse", ["none", "all", "auto"])
@pytest.mark.parametrize("name", ["fp16", "bf16"])
def test_layer_norm_that_overflows(name: str, fuse: str, tmp_path: Path) -> None:
    result = built(save(layer_norm(), tmp_path), tmp_path, name, fuse)
    if (name, fuse) == ("fp16", "none"):
        assert len(result.manifest.precision.kept) == 4
    check(result, layer_norm(), name)


@pytest.mark.parametrize("name", ["fp16", "bf16"])
@pytest.mark.parametrize("scale", [1.0, 1000.0])
def test_the_norm_op(scale: float, name: str, tmp_path: Path) -> None:
    """TensorRT's own, with values whose squares float16 cannot hold, too."""
    weights = f"float k = {{{scale}}}, float[4] s = {{1, 1, 1, 1}}"
    model = graph("t = Mul(x, k) y = LayerNormalization(t, s)", weights=weights)
    check(built(save(model, tmp_path), tmp_path, name, "none"), model, name)


@pytest.mark.parametrize("name", ["fp16", "bf16"])
@pytest.mark.parametrize("sample", FLOATS)
def test_sample(sample: str, name: str, tmp_path: Path) -> None:
    path = importable(SAMPLES / f"{sample}.onnx", tmp_path)
    check(built(path, tmp_path, name, "all"), onnx_model.load(path), name)


def test_masked_softmax(tmp_path: Path) -> None:
    weights = "float k = {-1e9}, float one = {1}"
    nodes = "f = Cast<to = 1>(mask) o = Sub(one, f) m = Mul(o, k) s = Add(x, m) y = Softmax(s)"
    model = graph(nodes, "float[2,4] x, int64[2,4] mask", weights=weights)
    result = built(save(model, tmp_path), tmp_path, "fp16", "none")
    assert result.manifest.precision.kept == []
    x, mask = np.arange(8, dtype=np.float32).reshape(2, 4) / 4, np.int64([[1, 0, 1, 0], [1, 1, 1, 0]])
    feeds: dict[str, NDArray[Any]] = {"x": x, "mask": mask}
    expected = reference.run(model, tmp_path, feeds)["y"]
    np.testing.assert_allclose(load_engine(result.plan).run(feeds)["y"], expected, atol=2e-3)


def test_io_precision(tmp_path: Path) -> None:
    model = graph("t = Mul(x, x) y = Sqrt(t)")
    engine = load_engine(built(save(model, tmp_path), tmp_path, "fp16", "none", io="fp16").plan)
    x = np.array([[1, 2, 3, 4]] * 2, np.float16)
    got = engine.run({"x": x})["y"]
    assert got.dtype == np.float16
    np.testing.assert_allclose(got, x, atol=2e-3)
