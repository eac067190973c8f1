"""Fusing as a property: in random models exactly what is planted legally is fused, and all else stays as it was."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import HealthCheck, given, settings
from onnx import ModelProto

from tests.plants import FOREIGN, SYMBOLS, Case, captured, cases
from trtconvert import registry
from trtconvert.fuse import fuse_model

FINDER = sys.modules["trtconvert.fuse"]._Finder  # the package has a function of the module's name
TOLERANCE = {onnx.TensorProto.FLOAT: 1e-5, onnx.TensorProto.FLOAT16: 2e-2}


def fused(model: ModelProto) -> tuple[ModelProto, list[str]]:
    """A fused copy, and the tensors that its fusions make; no near misses, which change nothing and take half of the time."""
    copy = ModelProto()
    copy.CopyFrom(model)
    with mock.patch.object(FINDER, "near_misses", return_value=[]):
        result = fuse_model(copy, Path(), registry.by_pattern(("layernorm-gelu",)))
    return copy, sorted(fusion.output for fusion in result.fusions)


def serialized(message: Any) -> bytes:
    return bytes(message.SerializeToString(deterministic=True))


@pytest.mark.timeout(1800)
@settings(max_examples=5000, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(cases())
def test_exactly_the_legal_plants_are_fused(case: Case) -> None:
    """Found, equal at the second run and after it, valid, nothing else touched, and now and then: the same numbers."""
    source, legal = case.model, sorted(plant.y for plant in case.plants if not plant.broken)
    onnx.checker.check_model(source, full_check=True)
    before = serialized(source)
    result, outputs = fused(source)
    assert outputs == legal
    assert serialized(fused(source)[0]) == serialized(result)
    if not legal:
        assert serialized(result) == before
        return
    onnx.checker.check_model(result, full_check=True)
    assert result.ir_version >= max(source.ir_version, 8 if result.functions else 0)  # the checker does not mind
    again, outputs = fused(result)
    assert outputs == []
    assert serialized(again) == serialized(result)
    assert_rest_untouched(case, result)
    if case.run and not any(node.domain == FOREIGN for node in source.graph.node):
        assert_same_numbers(source, result)


def assert_rest_untouched(case: Case, result: ModelProto) -> None:
    """Inputs, outputs, the nodes and weights outside the plants; no node of a plant, and nothing unused, is left."""
    before, after = case.model.graph, result.graph
    assert list(after.input) == list(before.input)
    assert list(after.output) == list(before.output)
    legal = [plant for plant in case.plants if not plant.broken]
    inside = {name for plant in legal for n in plant.nodes for name in n.output}
    # A Transpose in front may go with the plant, and a Constant that it was the last to read.
    front = {plant.x for plant in legal}
    free = {
        n.output[0]
        for n in before.node
        if n.op_type == "Constant" or (n.op_type == "Transpose" and n.output[0] in front)
    }
    outside = [n for n in before.node if n.output[0] not in inside | free]
    names = {n.output[0] for n in outside}
    assert [serialized(n) for n in after.node if n.output[0] in names] == [serialized(n) for n in outside]
    ours = [n for n in after.node if n.domain.startswith("trtconvert")]
    assert [n.op_type for n in ours] == ["LayerNormGelu"] * len(legal)
    assert not {name for n in after.node for name in n.output} & (inside - {plant.y for plant in legal} - {""})
    read_before, read_after = (
        {name for n in g.node for name in (*n.input, *captured(n))} | {o.name for o in g.output}
        for g in (before, after)
    )
    made_before = {name for n in before.node for name in n.output}
    for node in after.node:
        assert set(node.output) & read_after or (set(node.output) & made_before and not set(node.output) & read_before)
    made_after = {name for n in after.node for name in n.output}
    described = {v.name for v in before.value_info}
    assert [v for v in after.value_info if v.name in described] == [
        v for v in before.value_info if v.name in made_after
    ]
    assert {v.name for v in after.value_info} <= made_after
    weights = {t.name: t for t in after.initializer}
    kept = {name for n in outside for name in (*n.input, *captured(n))} | {o.name for o in before.output}
    for tensor in before.initializer:
        if tensor.name in kept or tensor.name not in read_before:
            assert weights[tensor.name] == tensor
        assert tensor.name not in weights or tensor.name in read_after or tensor.name not in read_before


def run(model: ModelProto) -> list[Any] | None:
    """The model's outputs in onnxruntime with its optimizations off; None if it cannot run the model."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    random, feeds = np.random.default_rng(1), {}
    for value in session.get_inputs():
        dtype = np.float16 if "float16" in value.type else np.float32
        feeds[value.name] = random.standard_normal([SYMBOLS.get(d, d) for d in value.shape]).astype(dtype)
    return list(session.run(None, feeds))


def assert_same_numbers(source: ModelProto, result: ModelProto) -> None:
    """Relative L2 norm of the difference of each output that is finite."""
    for value, want, got in zip(source.graph.output, run(source), run(result), strict=True):
        assert got.dtype == want.dtype
        assert got.shape == want.shape
        if np.isfinite(want).all():
            error = np.linalg.norm(got.astype(np.float64) - want) / (np.linalg.norm(want.astype(np.float64)) or 1)
            assert error <= TOLERANCE[value.type.tensor_type.elem_type], value.name
