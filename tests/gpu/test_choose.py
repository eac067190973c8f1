"""The measured choice on a real GPU: what pays is kept, what does not stays native, and no model gets slower by it."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.conftest import SAMPLES, Run
from tests.importable import importable
from trtconvert import BuildOptions, BuildResult, build, check, gpu, load_engine, registry, verify
from trtconvert.bodies import add_bodies
from trtconvert.inputs import random_feeds
from trtconvert.op import Case, case
from trtconvert.shapes import Range
from trtconvert.timing import measure

NOISE, NOISE_US = 1.05, 0.3  # between two measurements of one engine: a factor, and the clock's own steps

SLOW = '''
"""SlowRelu: a third party's op whose kernel waits."""
import numpy as np
from trtconvert import Op, case
from trtconvert.launch import Launch, ceil_div


class SlowRelu(Op):
    """y = max(x, 0). x, y [...] float32."""

    pattern = "slow-relu"
    opt_in = True
    dtypes = ("float32",)
    source = """
    extern "C" __global__ void slow_relu(const IO* x, IO* y, long long n) {
        long long end = clock64() + 300000;
        while (clock64() < end) {}
        long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) y[i] = x[i] > 0.0f ? x[i] : 0.0f;
    }
    """
    cases = (case((3, 5)),)

    def patterns(self, op, x):
        yield op.Relu(x)

    def output(self, x):
        return x

    def reference(self, x):
        return np.maximum(x, 0)

    def launch(self, x, y):
        return Launch("slow_relu", (ceil_div(x.size, 256), 1, 1), (256, 1, 1), (x, y, x.size))
'''


def times(engines: dict[str, Path], feeds: dict[str, Any]) -> dict[str, float]:
    """Medians of five measurements in CUDA graphs, each of them with the engines in turns."""
    loaded = {name: load_engine(plan) for name, plan in engines.items()}
    taken = [measure(loaded, feeds, graph=True, runs=100, rounds=4) for _ in range(5)]
    return {name: statistics.median(one[name].median_us for one in taken) for name in engines}


def opt_feeds(result: BuildResult) -> dict[str, Any]:
    """Random inputs at the profile's opt shapes."""
    described = result.manifest
    opt = {name: dict.fromkeys(("min", "opt", "max"), shapes["opt"]) for name, shapes in described.profile.items()}
    return next(random_feeds(described.onnx_inputs, opt, 0))[1]


def standard_model(tested: Case, dtype: str, path: Path) -> Path:
    """LayerNorm -> GELU in standard ops, scale and bias constant, of static shapes."""
    op = registry.find("LayerNormGelu")
    assert op is not None
    model = check.node_model(op, tested, dtype)
    for value in (*model.graph.input, *model.graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.dim_value = tested.shapes[0][0]
    add_bodies(model)
    model = onnx.inliner.inline_local_functions(model)
    for name, array in list(zip(op.inputs(), check.random_inputs(tested, dtype), strict=True))[1:]:
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    kept = [value for value in model.graph.input if value.name == "x"]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    onnx.save(model, path)
    return path


@pytest.mark.parametrize("sample", sorted(SAMPLES.glob("*.onnx")), ids=lambda path: path.stem)
def test_no_sample_gets_slower(sample: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = importable(sample, tmp_path)
    auto = build(model, tmp_path / "auto.plan")
    native = build(model, tmp_path / "native.plan", BuildOptions(fuse="none"))
    taken = times({"auto": auto.plan, "native": native.plan}, opt_feeds(auto))
    with capsys.disabled():
        print(
            f"\nTABLE {sample.stem}: auto {taken['auto']:.2f} us, native {taken['native']:.2f} us, "
            f"{len(auto.fusions)} of {len(auto.choices)} kept",
            end="",
        )
        for made in auto.choices:
            print(
                f"\n      {'kept' if made.kept else 'native'} {made.op} {made.shape} {made.dtype}: {made.reason}",
                end="",
            )
    if verify(native.plan).passed:  # else plugins take the place of layers that are wrong, however fast those are
        assert taken["auto"] <= NOISE * taken["native"] + NOISE_US
    assert all(made.how == "neighbourhood" for made in auto.choices), auto.choices
    assert verify(auto.plan).passed


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(
    "tested",
    [
        case((197, 768), (768,), (768,)),
        case((1, 16, 64), (64,), (64,)),
        case((1, 64, 32, 32), (64,), (64,), axis=1),
        case((1, 512, 99), (512,), (512,), axis=1),
    ],
    ids=str,
)
def test_small_shapes(tested: Case, dtype: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Never more than 1.1 times native: where the plugin is, it is not in the engine."""
    model = standard_model(tested, dtype, tmp_path / "small.onnx")
    built = {fuse: build(model, tmp_path / f"{fuse}.plan", BuildOptions(fuse=fuse)) for fuse in ("auto", "all", "none")}
    assert len(built["all"].fusions) == 1
    taken = times({fuse: result.plan for fuse, result in built.items()}, opt_feeds(built["auto"]))
    (made,) = built["auto"].choices
    with capsys.disabled():
        print(
            f"\nTABLE {tested} {dtype}: plugin {taken['all']:.2f} us, native {taken['none']:.2f} us, "
            f"auto {taken['auto']:.2f} us ({'kept' if made.kept else 'native'})",
            end="",
        )
    assert taken["auto"] <= 1.1 * taken["none"] + NOISE_US
    if taken["all"] > 1.1 * taken["none"] + NOISE_US:
        assert not made.kept
        assert built["auto"].manifest.plugins == []


def test_large_layer_norm_gelu_is_kept(tmp_path: Path) -> None:
    """67 MB in and 67 MB out, channels first, where TensorRT makes many passes over memory."""
    model = standard_model(case((4, 256, 128, 128), (256,), (256,), axis=1), "float32", tmp_path / "large.onnx")
    result = build(model, tmp_path / "large.plan")
    (made,) = result.choices
    assert (made.kept, made.how) == (True, "neighbourhood")
    assert made.ratio is not None
    assert made.ratio > 2
    whole = result.whole
    assert whole is not None
    assert whole.kept
    assert whole.native_us is not None
    assert whole.plugins_us is not None
    assert whole.native_us > 2 * whole.plugins_us
    assert set(whole.errors) == {"y0"}
    assert gpu.require().name in whole.machine
    assert result.manifest.whole_engine["plugins_us"] == whole.plugins_us
    assert len(result.manifest.plugins[0].nodes) == 1
    assert verify(result.plan).passed


@pytest.fixture
def slow(tmp_path: Path) -> tuple[Path, Path]:
    """A model MatMul, Relu, MatMul, and a plugin file with a slow Relu."""
    random = np.random.default_rng(0)
    weights = [numpy_helper.from_array(random.standard_normal((256, 256), np.float32), name) for name in ("v", "w")]
    nodes = [
        helper.make_node("MatMul", ["x", "v"], ["a"], name="first"),
        helper.make_node("Relu", ["a"], ["b"], name="relu"),
        helper.make_node("MatMul", ["b", "w"], ["y"], name="second"),
    ]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 256]) for name in "xy"]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "m.onnx")
    (tmp_path / "slow_relu.py").write_text(SLOW)
    return tmp_path / "m.onnx", tmp_path / "slow_relu.py"


def test_slow_plugin_stays_native(slow: tuple[Path, Path], run: Run) -> None:
    model, plugin = slow
    shapes = {"x": Range((1, 256), (64, 256), (128, 256))}
    options = BuildOptions(plugins=(plugin,), patterns=("slow-relu",), shapes=shapes)
    result = build(model, None, options)
    (made,) = result.choices
    assert (made.op, made.kept, made.how, made.shape) == ("SlowRelu", False, "neighbourhood", (64, 256))
    assert made.plugin_us is not None
    assert made.native_us is not None
    assert made.plugin_us > made.native_us + 50
    assert (result.fusions, result.plugin_nodes, result.manifest.plugins) == ([], [], [])
    assert verify(result.plan).passed
    shown = run("build", model, "--plugin", plugin, "--pattern", "slow-relu", "--shape", "x=1x256,64x256,128x256")
    assert "native    SlowRelu x1 (64x256 float32): " in shown.stdout, shown.stderr
    assert "measured  on " in shown.stdout
    forced = build(model, None, BuildOptions(plugins=(plugin,), fuse="slow-relu", shapes=shapes))
    assert [node.op.name for node in forced.plugin_nodes] == ["SlowRelu"]
    assert verify(forced.plan).passed


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    build(SAMPLES / "sam_upscaler.onnx", folder / "e.plan")
    assert sorted(path.name for path in folder.iterdir()) == ["e.plan", "e.plan.json"]
