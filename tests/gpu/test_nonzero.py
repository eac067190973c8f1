"""Engines with NonZero in them on a real GPU, against onnxruntime: masks of none, some and all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from tests.importable import mixed
from tests.test_nonzero import GRAPHS, ONE, model
from trtconvert import BuildOptions, build, load_engine, reference, verify
from trtconvert.model import elem_type, numpy_dtype
from trtconvert.shapes import parse

Feeds = dict[str, NDArray[Any]]
TF32 = 2e-3  # of the largest element: what a product may lose


def feeds(made: onnx.ModelProto, share: float, seed: int, rows: int = 6) -> Feeds:
    """Random inputs; a share of each mask is set, and so much of each other input is not zero."""
    random = np.random.default_rng(seed)
    found = {}
    for value in made.graph.input:
        shape = [dim.dim_value or rows for dim in value.type.tensor_type.shape.dim]
        chosen = random.random(shape) < share
        is_mask = value.type.tensor_type.elem_type == onnx.TensorProto.BOOL
        found[value.name] = chosen if is_mask else (chosen * random.standard_normal(shape)).astype(np.float32)
    return found


def assert_same(got: NDArray[Any], want: NDArray[Any]) -> None:
    assert got.shape == want.shape
    assert got.dtype == want.dtype
    if want.dtype.kind in "iub":
        assert np.array_equal(got, want)
    elif want.size:
        assert np.abs(got - want).max() <= TF32 * np.abs(want).max()


@pytest.mark.parametrize("name", GRAPHS)
def test_graphs_around_it(name: str, tmp_path: Path) -> None:
    made, path = GRAPHS[name], tmp_path / "model.onnx"
    onnx.save(made, path)
    if mixed() and any(node.op_type == "Squeeze" for node in made.graph.node):
        pytest.skip("this mixture of TensorRT's parts imports no Squeeze")
    dynamic = "dynamic" in name
    shapes = parse(["x=1x8,6x8,64x8", "m=1,6,64"]) if dynamic else {}
    engine, session = load_engine(build(path, None, BuildOptions(shapes=shapes)).plan), reference.session(made)
    for seed, (share, rows) in enumerate([(0.5, 6), (0.0, 6), (1.0, 6), (0.2, 6), *([(0.5, 64), (0.5, 1)] * dynamic)]):
        given = feeds(made, share, seed, rows)
        assert_same(engine.run(given)["y"], session.run(None, given)[0])


@pytest.mark.parametrize("dtype", ["bool", "int8", "int32", "int64", "float32", "float16", "bfloat16"])
def test_every_dtype(dtype: str, tmp_path: Path) -> None:
    """One engine for shapes from nothing to many blocks of the kernel."""
    path = tmp_path / "model.onnx"
    onnx.save(model(ONE, [("x", elem_type(dtype), ("N", 37))], ("y", onnx.TensorProto.INT64), 13), path)
    engine = load_engine(build(path, None, BuildOptions(shapes=parse(["x=0x37,64x37,4000x37"]))).plan)
    random = np.random.default_rng(0)
    for rows in (64, 0, 1, 4000, 997):
        x = (random.integers(-3, 4, (rows, 37)) * random.integers(0, 2, (rows, 37))).astype(numpy_dtype(dtype))
        assert np.array_equal(engine.run({"x": x})["y"], np.argwhere(x.astype(np.float64)).T)


def test_scalar(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(model(ONE, [("x", onnx.TensorProto.FLOAT, ())], ("y", onnx.TensorProto.INT64), 13), path)
    engine = load_engine(build(path).plan)
    assert engine.run({"x": np.array(2, np.float32)})["y"].shape == (0, 1)
    assert engine.run({"x": np.array(0, np.float32)})["y"].shape == (0, 0)


def test_verify(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(GRAPHS["x[m]"], path)
    result = verify(build(path).plan)
    assert result.engine_skipped == ""
    assert result.passed, result.rows
