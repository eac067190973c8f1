"""The proof itself: what passes, what does not, and what is said when no GPU can run the engine."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.conftest import SAMPLES, Run
from trtconvert import BuildOptions, ConvertError, build, gpu, verify
from trtconvert.accuracy.rules import RULES, Rule, judge
from trtconvert.accuracy.running import ModelRun
from trtconvert.precision.options import PrecisionOptions
from trtconvert.verify import CONVERTED, ENGINE, ENGINE_CONVERTED, FUSED


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(
        SAMPLES / "sam_upscaler.onnx", tmp_path_factory.mktemp("plan") / "sam.plan", BuildOptions(fuse="all")
    ).plan


def test_command(run: Run, plan: Path) -> None:
    result = run("verify", plan)
    assert result.stdout.splitlines()[1].startswith("fused")
    assert "relative L2 <= 2 x twin + 0.0001" in result.stdout
    if gpu.current() is None:
        assert result.returncode == 3
        assert "the engine itself was not run" in result.stderr
    else:
        assert result.returncode == 0, result.stderr


def test_outcome_is_noted_in_the_manifest(run: Run, plan: Path) -> None:
    verify(plan)
    entry = json.loads(Path(f"{plan}.json").read_text())["verifications"][-1]
    assert entry["passed"]
    assert entry["rows"][0]["comparison"] == FUSED
    assert "verified  passed" in run("inspect", plan).stdout


def test_inputs_from_a_file(run: Run, plan: Path, tmp_path: Path) -> None:
    data = tmp_path / "in.npz"
    np.savez(data, image_embedding=np.ones((1, 64, 16, 16), np.float32))
    result = run("verify", plan, "--inputs", data, "--json")
    assert result.returncode in (0, 3), result.stderr
    assert json.loads(result.stdout)["rows"][0]["shapes"] == "in.npz"
    np.savez(data, image_embedding=np.ones((1, 64, 16, 16), np.float64))
    result = run("verify", plan, "--inputs", data)
    assert result.returncode == 1
    assert "float64" in result.stderr


def test_seed_changes_the_inputs(plan: Path) -> None:
    a, b, c = (verify(plan, seed=s).rows[0].rel_l2 for s in (0, 0, 1))
    assert a == b != c


@pytest.mark.skipif(gpu.current() is not None, reason="the engine would differ as well")
def test_a_wrong_fusion_fails(plan: Path, monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    """A body that computes something else than the source model: found, with exit code 1."""
    from trtconvert import verify as _  # noqa: F401

    module: Any = sys.modules["trtconvert.verify"]
    original = module.fuse_again

    def wrong(described: Any, model: Any, folder: Path) -> None:
        original(described, model, folder)
        for node in model.graph.node:
            for attribute in node.attribute:
                if attribute.name == "epsilon":
                    attribute.f = 0.01

    monkeypatch.setattr(module, "fuse_again", wrong)
    result = module.verify(plan)
    assert not result.passed
    assert "relative L2" in result.rows[0].fault


def compare(got: Any, expected: Any, limit: float = 1e-3) -> str:
    rule = Rule("test", limit, limit, "a test")
    return judge(np.asarray(got, np.float32), np.asarray(expected, np.float32), None, rule, limit).fault


def test_rule() -> None:
    """Relative L2, a bound for single elements, NaN and Inf apart, shapes and integers exact."""
    random = np.random.default_rng(0)
    want = random.standard_normal(4096).astype(np.float32)
    assert compare(want * 1.0005, want) == ""
    assert "relative L2" in compare(want * 1.002, want)
    one = want.copy()
    one[17] += 0.06  # L2 alone would let it pass
    assert "largest error" in compare(one, want)
    assert compare([1, np.nan, np.inf, -np.inf], [1, np.nan, np.inf, -np.inf]) == ""
    assert "1 of 2 elements are NaN or Inf where the reference is not" in compare([1, np.nan], [1, 2])
    assert "1 of 1 elements are NaN or Inf" in compare([np.inf], [-np.inf])
    assert "1 of 1 elements are finite where" in compare([2.0], [np.nan])
    assert "shape" in compare([1, 2], [1])
    assert compare([0.0, 0.0], [0.0, 0.0]) == ""
    ints, rule = np.arange(3), RULES["float32"]
    assert judge(ints, ints, None, rule).fault == ""
    assert "1 of 3" in judge(ints, np.array([0, 1, 3]), None, rule).fault
    assert judge(ints, np.array([0, 1, 3]), ints, rule).fault == "", "rounding decides it: the twin differs as well"
    assert "1 of 3" in judge(ints, np.array([0, 1, 3]), np.array([0, 1, 3]), rule).fault
    assert "missing" in judge(None, ints, None, rule).fault


def test_bfloat16_needs_no_kernel_for_it(tmp_path: Path) -> None:
    """onnxruntime has few: reference and twin are written in fp32, with the roundings in the twin."""
    result = verify(build(SAMPLES / "bf16_ln_gelu.onnx", tmp_path / "b.plan").plan)
    assert result.passed
    assert result.precision == "bfloat16"
    assert result.notices == []


def test_dynamic_model_is_compared_at_min_opt_and_max(tmp_path: Path) -> None:
    result = verify(build(SAMPLES / "wav2vec2_features_dynamic.onnx", tmp_path / "w.plan").plan)
    assert [r.shapes for r in result.rows if r.comparison == FUSED] == ["1x1x400", "1x1x16000", "4x1x16000"]


def test_custom_op_runs_through_its_body(tmp_path: Path) -> None:
    """onnxruntime knows no acme::FusedRelu; the op's own pattern is its body there."""
    result = verify(build(SAMPLES / "custom_relu.onnx", tmp_path / "c.plan").plan)
    assert result.passed


def test_external_data(tmp_path: Path) -> None:
    proto = onnx.load(SAMPLES / "tanh_gelu.onnx")
    path = tmp_path / "m.onnx"
    onnx.save(proto, path, save_as_external_data=True, location="m.data", size_threshold=1024)
    assert verify(build(path).plan).passed
    weights = np.frombuffer((tmp_path / "m.data").read_bytes(), np.uint8).copy()
    weights[0] ^= 1
    (tmp_path / "m.data").write_bytes(weights.tobytes())
    with pytest.raises(Exception, match="has changed since"):
        verify(tmp_path / "m.plan")


@pytest.mark.parametrize("precision", ["fp16", "int8"])
def test_converted_model_is_looked_at_twice(precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the conversion costs, and whether the engine computes the converted model: the latter is far sharper for int8."""
    from trtconvert import verify as _  # noqa: F401

    module: Any = sys.modules["trtconvert.verify"]
    options = BuildOptions(targets=("sm_89",), precision=PrecisionOptions(precision))
    plan = build(SAMPLES / "ln_gelu_opset20.onnx", tmp_path / "p.plan", options).plan
    converted = onnx.load(tmp_path / "p.plan.onnx")
    monkeypatch.setattr(module, "load_engine", lambda path: ModelRun(converted, tmp_path))
    result = module.verify(plan)
    assert [row.comparison for row in result.rows] == [CONVERTED, ENGINE, ENGINE_CONVERTED]
    assert result.passed
    cost, against_source, against_converted = result.rows
    assert cost.rel_l2 == against_source.twin.rel_l2 > 1e-4
    assert against_converted.tolerance < against_source.tolerance
    weights = next(t for t in converted.graph.initializer if len(t.dims) == 2)
    values = onnx.numpy_helper.to_array(weights).copy()
    values[:, 7] = -values[:, 7]
    weights.CopyFrom(onnx.numpy_helper.from_array(values, weights.name))
    monkeypatch.setattr(module, "load_engine", lambda path: ModelRun(converted, tmp_path))
    assert not module.verify(plan).passed
    (tmp_path / "p.plan.onnx").write_bytes(converted.SerializeToString())
    with pytest.raises(ConvertError, match="the converted model has changed"):
        module.verify(plan)
