"""Benchmarks as far as they need no GPU: the figures' arithmetic, the native twin, and what the command says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.conftest import SAMPLES, Run, assert_clean_error
from trtconvert import BuildOptions, build, fuse, gpu, inputs, timing
from trtconvert import model as onnx_model
from trtconvert.bench import build_native
from trtconvert.manifest import IO
from trtconvert.shapes import parse

no_gpu = pytest.mark.skipif(gpu.current() is not None, reason="there is a GPU")


def test_figures() -> None:
    figures = timing.summarize([*range(1, 100), 1000.0], [10.0, 30.0, 20.0], [5.0, 4.0], graph=True)
    assert figures == timing.Timing(50.5, 99.0, 59.5, 20.0, 100, True, 4.5)
    one = timing.summarize([7.0], [1.0], [2.0], graph=False)
    assert (one.median_us, one.p99_us, one.mean_us) == (7.0, 7.0, 7.0)


@pytest.mark.parametrize(("one_us", "count"), [(1000, 1), (50, 1), (49, 2), (10, 5), (3, 17), (0, 5000)])
def test_short_executions_share_a_pair_of_events(one_us: float, count: int) -> None:
    assert timing.executions_per_pair(one_us, graph=True) == count
    assert timing.executions_per_pair(one_us, graph=False) == 1


def test_layer_times() -> None:
    """Medians in the order of execution; a layer that did not run in an execution took no time in it."""
    times = timing.layer_times(
        [{"conv": 1.0, "gelu": 3.0}, {"conv": 2.0, "gelu": 5.0, "rare": 9.0}, {"conv": 3.0, "gelu": 8.0}]
    )
    assert [(t.name, t.median_us) for t in times] == [("conv", 2.0), ("gelu", 5.0), ("rare", 0.0)]
    assert sum(t.share for t in times) == pytest.approx(1)
    assert timing.layer_times([{}]) == []


def test_random_inputs_at_each_shape_of_the_profile() -> None:
    ios = [IO("x", "float16", ["N", 4]), IO("mask", "bool", [2]), IO("ids", "int64", ["N"])]
    point = {"x": [[1, 4], [3, 4], [3, 4]], "ids": [[1], [3], [3]]}
    profile = {name: dict(zip(("min", "opt", "max"), shapes, strict=True)) for name, shapes in point.items()}
    feeds = dict(inputs.random_feeds(ios, profile, seed=0))
    assert list(feeds) == ["1x4 2 1", "3x4 2 3"]
    assert {name: (str(a.dtype), a.shape) for name, a in feeds["3x4 2 3"].items()} == {
        "x": ("float16", (3, 4)),
        "mask": ("bool", (2,)),
        "ids": ("int64", (3,)),
    }
    again = dict(inputs.random_feeds(ios, profile, seed=0))
    assert all(np.array_equal(again["1x4 2 1"][name], array) for name, array in feeds["1x4 2 1"].items())


def test_native_twin_has_no_plugins(tmp_path: Path) -> None:
    """Of a source model, and of one in which the plugin nodes stand already."""
    fused = fuse(SAMPLES / "sam_upscaler.onnx", output=tmp_path / "fused.onnx").path
    assert fused is not None
    for source in (SAMPLES / "sam_upscaler.onnx", fused):
        assert build(source, tmp_path / "plugins.plan", BuildOptions(fuse="all")).manifest.plugins
        native = build_native(onnx_model.load(source), source, BuildOptions(), tmp_path)
        assert native.manifest.plugins == []
        assert native.plan.stat().st_size > 0


def test_native_twin_keeps_the_shapes(tmp_path: Path) -> None:
    source = SAMPLES / "wav2vec2_features_dynamic.onnx"
    options = BuildOptions(shapes=parse(["waveform=1x1x400,1x1x800,2x1x900"]))
    native = build_native(onnx_model.load(source), source, options, tmp_path)
    assert native.manifest.profile == {"waveform": {"min": [1, 1, 400], "opt": [1, 1, 800], "max": [2, 1, 900]}}


@no_gpu
@pytest.mark.parametrize("arguments", [(), ("--json",), ("--graph", "--layers")])
def test_without_a_gpu(run: Run, arguments: tuple[str, ...], tmp_path: Path) -> None:
    """A model and a plan, with a sentence and exit code 3."""
    plan = build(SAMPLES / "tanh_gelu.onnx", tmp_path / "engine.plan").plan
    for source in (SAMPLES / "tanh_gelu.onnx", plan):
        result = run("bench", source, *arguments)
        assert result.returncode == 3
        assert result.stdout == ""
        assert result.stderr.startswith("error: no NVIDIA driver on this machine")
        assert "fix: " in result.stderr


def test_wrong_files_and_usage(run: Run, tmp_path: Path) -> None:
    assert_clean_error(run("bench", "none.onnx"), "model file not found", "none.onnx")
    assert_clean_error(run("bench", "none.plan"), "plan not found", "none.plan")
    assert_clean_error(run("bench", "none.onnx", "--shape", "x=1xy"), "cannot read --shape")
    for wrong in ((), ("m.onnx", "--runs", "0"), ("m.onnx", "--backend", "onnx"), ("m.onnx", "--graph=yes")):
        result = run("bench", *wrong)
        assert result.returncode == 2, result.stderr
        assert "Traceback" not in result.stderr
