"""Measuring on a real GPU: figures that agree with each other, plugins and native layers in turns, the command."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from tests.conftest import SAMPLES, Run
from trtconvert import BuildOptions, ConvertError, bench, build, check, load_engine, registry, timing
from trtconvert.bench import NATIVE, PLUGINS
from trtconvert.engine import Engine
from trtconvert.model import serialize
from trtconvert.op import case
from trtconvert.shapes import parse


@pytest.fixture(scope="module")
def sam(tmp_path_factory: pytest.TempPathFactory) -> Path:
    options = BuildOptions(fuse="all")
    return build(SAMPLES / "sam_upscaler.onnx", tmp_path_factory.mktemp("sam") / "sam.plan", options).plan


@pytest.fixture(scope="module")
def feeds() -> dict[str, np.ndarray]:
    return {"image_embedding": np.random.default_rng(0).standard_normal((1, 64, 16, 16), dtype=np.float32)}


def softmaxes(count: int, folder: Path) -> Engine:
    """An engine of that many softmaxes in a row, 65536x1024 float32: 512 MB moved by each, far more than the L2 cache holds."""
    shape = [65536, 1024]
    nodes = [helper.make_node("Softmax", [f"t{i}"], [f"t{i + 1}"], name=f"softmax{i}") for i in range(count)]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("t0", f"t{count}")]
    graph = helper.make_graph(nodes, "chain", values[:1], values[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (folder / f"{count}.onnx").write_bytes(serialize(model))
    return load_engine(build(folder / f"{count}.onnx").plan)


@pytest.mark.parametrize("graph", [True, False])
def test_more_work_takes_more_time(tmp_path: Path, graph: bool) -> None:
    x = {"t0": np.random.default_rng(0).standard_normal((65536, 1024), dtype=np.float32)}
    timings = timing.measure({"8": softmaxes(8, tmp_path), "16": softmaxes(16, tmp_path)}, x, graph, runs=50)
    short, long = timings["8"], timings["16"]
    assert long.median_us > 1.2 * short.median_us
    for found in (short, long):
        assert found.graph is graph
        assert found.runs == 50
        assert found.median_us <= found.p99_us
        assert 0 < found.host_us < 1e4
        assert 0.6 < found.throughput * found.median_us / 1e6 < 1.4


def test_same_engine_twice_is_as_fast(sam: Path, feeds: dict[str, np.ndarray]) -> None:
    """Short executions too: the same plan measured under two names."""
    timings = timing.measure({"a": load_engine(sam), "b": load_engine(sam)}, feeds)
    assert 0.9 < timings["a"].median_us / timings["b"].median_us < 1.1


def test_graph_saves_the_hosts_time(sam: Path, feeds: dict[str, np.ndarray]) -> None:
    engine = load_engine(sam)
    replayed, called = (timing.measure({"e": engine}, feeds, graph)["e"] for graph in (True, False))
    assert replayed.median_us <= called.median_us
    assert replayed.throughput > called.throughput


def test_layers(sam: Path, feeds: dict[str, np.ndarray]) -> None:
    found = timing.layers(load_engine(sam), feeds)
    assert found, "TensorRT's profiler reported nothing"
    assert all(time.median_us >= 0 for time in found)
    assert sum(time.share for time in found) == pytest.approx(1)


def test_wrong_inputs(sam: Path) -> None:
    with pytest.raises(ConvertError, match="inputs are"):
        timing.measure({"e": load_engine(sam)}, {"x": np.zeros(3, np.float32)})


def test_bench_of_a_model() -> None:
    result = bench(SAMPLES / "sam_upscaler.onnx", BuildOptions(fuse="all"), runs=20, by_layer=True)
    assert [(row.engine, row.timing.graph) for row in result.rows] == [
        (PLUGINS, True),
        (NATIVE, True),
        (PLUGINS, False),
        (NATIVE, False),
    ]
    assert result.rows[1].speedup == 1
    assert all(row.speedup for row in result.rows)
    assert set(result.layers) == {(PLUGINS, "1x64x16x16"), (NATIVE, "1x64x16x16")}


def test_bench_of_a_fused_node(tmp_path: Path) -> None:
    """The native twin of a model that names the op itself holds the layers of its body; shapes min, opt and max."""
    op = registry.find("LayerNormGelu")
    assert op is not None
    path = tmp_path / "node.onnx"
    path.write_bytes(serialize(check.node_model(op, case((8, 1024), (1024,), (1024,)), "float16")))
    options = BuildOptions(fuse="all", shapes=parse(["x=1x1024,8x1024,64x1024"]))
    result = bench(path, options, graphs=(True,), runs=20)
    assert [row.engine for row in result.rows] == [PLUGINS, NATIVE] * 3
    assert not any("plugin too" in notice for notice in result.notices)


def test_bench_of_a_plan(sam: Path, tmp_path: Path) -> None:
    assert len(bench(sam, graphs=(True,), runs=20).rows) == 2
    alone = tmp_path / "alone.plan"
    shutil.copy(sam, alone)
    result = bench(alone, graphs=(False,), runs=20)
    assert [(row.engine, row.speedup) for row in result.rows] == [(PLUGINS, None)]
    assert "manifest" in result.notices[0]
    described = json.loads(Path(f"{sam}.json").read_text())
    Path(f"{alone}.json").write_text(json.dumps(described | {"model": "nowhere.onnx"}))
    result = bench(alone, graphs=(False,), runs=20)
    assert len(result.rows) == 1
    assert "no native engine to compare with, model file not found" in result.notices[0]


def test_shapes_of_a_plan(tmp_path: Path) -> None:
    plan = build(SAMPLES / "keras_ln_gelu.onnx", tmp_path / "keras.plan", BuildOptions(fuse="all")).plan
    (name,) = load_engine(plan).inputs
    result = bench(plan, BuildOptions(shapes=parse([f"{name.name}=3x16x64"])), graphs=(True,), runs=20)
    assert {row.shapes for row in result.rows} == {"3x16x64"}
    with pytest.raises(ConvertError, match="outside the engine's profile"):
        bench(plan, BuildOptions(shapes=parse([f"{name.name}=99x16x64"])), runs=20)
    with pytest.raises(ConvertError, match="no input of the plan"):
        bench(plan, BuildOptions(shapes=parse(["other=3x16x64"])), runs=20)


def test_model_without_fusions_is_timed_alone() -> None:
    result = bench(SAMPLES / "near_miss.onnx", runs=20)
    assert {row.engine for row in result.rows} == {NATIVE}
    assert any("timed alone" in notice for notice in result.notices)


def test_command(run: Run, sam: Path) -> None:
    result = run("bench", sam, "--runs", 20, "--layers")
    assert result.returncode == 0, result.stderr
    assert "speed-up" in result.stdout
    assert "layer (plugins, 1x64x16x16)" in result.stdout
    data = json.loads(
        run("bench", SAMPLES / "sam_upscaler.onnx", "--fuse", "all", "--runs", 20, "--no-graph", "--json").stdout
    )
    assert [row["engine"] for row in data["rows"]] == [PLUGINS, NATIVE]
    assert data["rows"][0]["timing"]["runs"] == 20
