"""Engines on a real GPU: against the float64 reference, in every way in which an engine is used."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import onnx
import pytest
from cuda.core import Device

from tests.bench.registers import built_in
from tests.conftest import SAMPLES, Run
from tests.importable import importable
from trtconvert import BuildOptions, ConvertError, build, check, gpu, load_engine, registry, verify
from trtconvert.compare import KERNEL_TOLERANCE, allowed, difference
from trtconvert.model import serialize
from trtconvert.op import Case, Op, case
from trtconvert.shapes import parse

CASES = [
    pytest.param(op, tested, dtype, id=f"{op.name} {tested} {dtype}")
    for op in built_in()
    for tested in op.cases
    for dtype in op.dtypes
]


@pytest.mark.parametrize(("op", "tested", "dtype"), CASES)
def test_engine_of_one_node(op: type[Op], tested: Case, dtype: str, tmp_path: Path) -> None:
    made, arrays = check.instance(op, tested), check.random_inputs(tested, dtype)
    engine = load_engine(check.node_plan(op, tested, dtype, tmp_path))
    outputs = engine.run(dict(zip(op.inputs(), arrays, strict=True)))
    for got, want in zip(outputs.values(), check.expected(made, arrays), strict=True):
        assert difference(got, want) <= allowed(got, dtype)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("axis", [-1, 1])
def test_dynamic_shapes(axis: int, dtype: str, tmp_path: Path) -> None:
    """One engine at min, opt, max and odd shapes between."""
    op = registry.find("LayerNormGelu")
    assert op is not None
    tested = case((8, 48, 64), (64 if axis == -1 else 48,), (64 if axis == -1 else 48,), axis=axis)
    model = check.node_model(op, tested, dtype)
    if axis == 1:
        for value in (*model.graph.input[:1], *model.graph.output):
            value.type.tensor_type.shape.dim[2].dim_param = "T"
    path = tmp_path / "node.onnx"
    path.write_bytes(serialize(model))
    high = "8x48x64" if axis == -1 else "8x48x900"
    shapes = parse([f"x=1x48x64,4x48x64,{high}"] if axis == -1 else [f"x=1x48x1,4x48x64,{high}"])
    engine = load_engine(build(path, tmp_path / "node.plan", BuildOptions(fuse="none", shapes=shapes)).plan)
    made = check.instance(op, tested)
    for shape in (
        (1, 48, 64),
        (4, 48, 64),
        (8, 48, 64),
        (3, 48, 64),
        *(((8, 48, 900), (1, 48, 1), (5, 48, 37)) if axis == 1 else ()),
    ):
        arrays = check.random_inputs(case(shape, *tested.shapes[1:]), dtype, seed=sum(shape))
        (want,) = check.expected(made, arrays)
        (got,) = engine.run(dict(zip(op.inputs(), arrays, strict=True))).values()
        assert difference(got, want) <= KERNEL_TOLERANCE[dtype], shape


@pytest.fixture(scope="module")
def speech(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan of a model with three plugin layers and two dynamic dimensions."""
    folder = tmp_path_factory.mktemp("speech")
    model = importable(SAMPLES / "wav2vec2_features_dynamic.onnx", folder)
    result = build(model, folder / "speech.plan", BuildOptions(fuse="all"))
    assert len(result.plugin_nodes) == 3
    return result.plan


def test_two_streams_at_once(speech: Path) -> None:
    """Two contexts of one plan, each with its own stream, shape and thread, many times."""
    engines = [load_engine(speech), load_engine(speech)]
    random = np.random.default_rng(0)
    feeds = [random.standard_normal(s, dtype=np.float32) for s in ((1, 1, 16000), (4, 1, 9001))]
    alone = [next(iter(e.run({"waveform": f}).values())) for e, f in zip(engines, feeds, strict=True)]
    faults: list[str] = []

    def work(index: int) -> None:
        Device(0).set_current()
        for _ in range(50):
            got = next(iter(engines[index].run({"waveform": feeds[index]}).values()))
            if not np.array_equal(got, alone[index]):
                faults.append(f"stream {index} differs by {difference(got, alone[index])}")

    threads = [threading.Thread(target=work, args=(i,)) for i in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults


def test_two_contexts_of_one_engine(speech: Path) -> None:
    """Contexts of one engine hold their own shapes: neither disturbs the other."""
    engine = load_engine(speech)
    random = np.random.default_rng(1)
    feeds = [random.standard_normal(s, dtype=np.float32) for s in ((1, 1, 16000), (3, 1, 5000))]
    want = [next(iter(engine.run({"waveform": f}).values())) for f in feeds]
    contexts = [engine.context(), engine.context()]
    for _ in range(5):
        for context, feed, expected in zip(contexts, feeds, want, strict=True):
            got = next(iter(context.run({"waveform": feed}).values()))
            assert np.array_equal(got, expected)


def test_cuda_graph(speech: Path) -> None:
    """Captured once, replayed on new data: the same as without the graph, and nothing left over from the replay before."""
    engine = load_engine(speech)
    bound = engine.bind({"waveform": (2, 1, 16000)})
    graph = bound.capture()
    for seed in range(3):
        feed = np.random.default_rng(seed).standard_normal((2, 1, 16000), dtype=np.float32)
        bound.write({"waveform": feed})
        bound.execute()
        (want,) = bound.read().values()
        for buffer in bound.outputs.values():
            gpu.clear(buffer.address, buffer.size, bound.stream)
        graph.launch()
        (got,) = bound.read().values()
        assert np.array_equal(got, want)
        (alone,) = engine.run({"waveform": feed}).values()  # perhaps by another kernel of TensorRT's
        assert difference(got, alone) <= 2e-3


def test_graphs_of_two_shapes(speech: Path) -> None:
    """Each binding keeps its shape and its graph, whatever the other and the engine itself run in between."""
    engine = load_engine(speech)
    random = np.random.default_rng(3)
    feeds = [random.standard_normal(shape, dtype=np.float32) for shape in ((1, 1, 16000), (4, 1, 9001))]
    bounds = [engine.bind({"waveform": feed.shape}) for feed in feeds]
    graphs = [bound.capture(executions=3) for bound in bounds]
    for feed, bound, graph in zip(feeds, bounds, graphs, strict=True):
        (want,) = engine.run({"waveform": feed}).values()
        bound.write({"waveform": feed})
        graph.launch()
        (got,) = bound.read().values()
        assert difference(got, want) <= 2e-3


def test_wrong_inputs_are_refused(speech: Path) -> None:
    engine = load_engine(speech)
    bound = engine.bind({"waveform": (1, 1, 400)})
    good = np.zeros((1, 1, 400), np.float32)
    for feeds, words in (
        ({"wave": good}, "the engine's inputs are"),
        ({"waveform": good.astype(np.float64)}, "float64"),
        ({"waveform": good[..., :300]}, "bound was"),
    ):
        with pytest.raises(ConvertError, match=words):
            bound.write(feeds)
    with pytest.raises(ConvertError, match="outside the engine's profile"):
        engine.bind({"waveform": (1, 1, 10)})


def test_inputs_may_lie_in_any_order(speech: Path) -> None:
    engine = load_engine(speech)
    waveform = np.random.default_rng(3).standard_normal((4, 1, 900), dtype=np.float32)
    (want,) = engine.run({"waveform": waveform}).values()
    (got,) = engine.run({"waveform": np.asfortranarray(waveform)}).values()
    assert np.array_equal(got, want)


def test_failed_capture_leaves_the_stream_usable(speech: Path) -> None:
    bound = load_engine(speech).bind({"waveform": (1, 1, 400)})
    with pytest.raises(ZeroDivisionError):
        gpu.capture(bound.stream, lambda: 1 // 0)
    bound.capture().launch()
    assert all(np.isfinite(array).all() for array in bound.read().values())


def test_output_whose_shape_depends_on_the_data(tmp_path: Path) -> None:
    """Read with the shape that it has, from none to all of the upper bound, by one binding; no CUDA graph."""
    if registry.find("NonZero") is None:
        pytest.skip("TensorRT-RTX has no op of its own whose output shape depends on the data")
    x = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [7, 33])
    y = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.INT64, [2, None])
    graph = onnx.helper.make_graph([onnx.helper.make_node("NonZero", ["x"], ["y"])], "g", [x], [y])
    path = tmp_path / "nonzero.onnx"
    path.write_bytes(
        serialize(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8))
    )
    engine = load_engine(build(path).plan)
    bound = engine.bind({"x": (7, 33)})
    with pytest.raises(ConvertError, match="nothing was executed yet"):
        bound.read()
    random = np.random.default_rng(0)
    for share in (0.0, 0.5, 1.0, 0.1):
        feed = (random.random((7, 33)) < share).astype(np.float32)
        bound.write({"x": feed})
        bound.execute()
        for got in (bound.read()["y"], engine.run({"x": feed})["y"]):
            assert np.array_equal(got, np.stack(np.nonzero(feed)))
    with pytest.raises(ConvertError, match="depends on the data"):
        bound.capture()


def test_fresh_process_loads_the_plan(speech: Path) -> None:
    """No op class, no source and no compiler: compiling is made impossible in the process that loads."""
    code = """
import sys
import numpy as np, trtconvert
from trtconvert import kernel
def compiler(): raise RuntimeError("a plan must load without the compiler")
kernel._nvrtc = compiler
engine = trtconvert.load_engine(sys.argv[1])
out = engine.run({"waveform": np.ones((1, 1, 800), np.float32)})
assert all(np.isfinite(v).all() for v in out.values())
assert "trtconvert.plugins.layer_norm_gelu" not in sys.modules
print("ran", {k: v.shape for k, v in out.items()})
"""
    result = subprocess.run([sys.executable, "-c", code, str(speech)], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("ran")


def test_plan_without_manifest_loads(speech: Path, tmp_path: Path) -> None:
    plan = tmp_path / "moved.plan"
    plan.write_bytes(speech.read_bytes())
    engine = load_engine(plan)
    assert [io.name for io in engine.inputs] == ["waveform"]


def test_missing_creator_is_named(speech: Path) -> None:
    code = """
import sys
import trtconvert
from trtconvert import engine
engine.register_creators = lambda *_: None  # as in a program that loads plans without trtconvert
try:
    trtconvert.load_engine(sys.argv[1])
except trtconvert.ConvertError as error:
    print(error)
"""
    result = subprocess.run([sys.executable, "-c", code, str(speech)], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "LayerNormGelu version 1" in result.stdout
    assert "fix: " in result.stdout


@pytest.mark.parametrize("sample", sorted(SAMPLES.glob("*.onnx")), ids=lambda path: path.stem)
def test_sample_models_against_onnxruntime(sample: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = importable(sample, tmp_path)
    result = verify(build(model, tmp_path / "engine.plan", BuildOptions(fuse="all")).plan)
    with capsys.disabled():
        for row in result.rows:
            if row.comparison.startswith("engine"):
                print(
                    f"\nTABLE {model.stem} {row.shapes} {row.output}: max abs {row.max_abs:.2g}, "
                    f"rel L2 {row.rel_l2:.2g}, tolerance {row.tolerance:g} ({row.rule}), {row.fault or 'pass'}",
                    end="",
                )
    assert result.engine_skipped == ""
    assert any(row.comparison.startswith("engine") for row in result.rows)
    assert result.passed, [row for row in result.rows if not row.passed]


def test_commands_on_a_gpu(run: Run, tmp_path: Path) -> None:
    plan = tmp_path / "sam.plan"
    assert run("build", SAMPLES / "sam_upscaler.onnx", "-o", plan, "--fuse", "all").returncode == 0
    result = run("verify", plan)
    assert result.returncode == 0, result.stdout + result.stderr
    assert any(line.startswith("engine ") for line in result.stdout.splitlines())
    inspected = run("inspect", plan)
    assert "LayerNormGelu" in inspected.stdout
