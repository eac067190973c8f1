"""Shape inference that does not end the process: Slices of negative sizes, wherever these come from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from tests.conftest import SAMPLES, Run, assert_clean_error
from trtconvert.profiles import inference

F = TensorProto.FLOAT
N = helper.make_node
CONSTANTS = {
    "w": np.ones((3, 3, 7), np.float32),
    "a": np.array([0]),
    "b": np.array([2]),
    "axis": np.array([2]),
    "crop": np.array([0, 0, -3, 0, 0, -3]),
    "minus": np.array([1, 3, -2]),
}
SLICE = ("a", "b", "axis")


def model(nodes: Sequence[NodeProto], size: int | str = 4, **more: Any) -> ModelProto:
    """x [1, 3, size] -> y."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", F, [1, 3, size])],
        [ValueInfoProto(name="y") if not more else helper.make_tensor_value_info("y", F, None)],
        [numpy_helper.from_array(value, name) for name, value in CONSTANTS.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8, **more)


def branch(name: str) -> onnx.GraphProto:
    nodes = [N("Conv", ["x", "w"], [f"{name}_t"]), N("Slice", [f"{name}_t", *SLICE], [f"{name}_s"])]
    return helper.make_graph(nodes, name, [], [helper.make_tensor_value_info(f"{name}_s", F, None)])


FUNCTION = helper.make_function(
    "local",
    "Cut",
    ["v", "from", "to", "on"],
    ["s"],
    [N("Slice", ["v", "from", "to", "on"], ["s"])],
    [helper.make_opsetid("", 17)],
)
CASES = {
    "window": model([N("Conv", ["x", "w"], ["t"], name="c"), N("Slice", ["t", *SLICE], ["y"])]),
    "padding": model([N("Pad", ["x", "crop"], ["t"]), N("Slice", ["t", *SLICE], ["y"])]),
    "expand": model([N("Expand", ["x", "minus"], ["t"]), N("Slice", ["t", *SLICE], ["y"])], 1),
    "behind others": model(
        [
            N("Conv", ["x", "w"], ["t"]),
            N("Relu", ["t"], ["u"]),
            N("Slice", ["u", *SLICE], ["v"]),
            N("Neg", ["v"], ["y"]),
        ]
    ),
    "behind a slice": model(
        [
            N("MaxPool", ["x"], ["t"], kernel_shape=[2]),
            N("Slice", ["t", *SLICE], ["u"]),
            N("Conv", ["u", "w"], ["v"]),
            N("Slice", ["v", *SLICE], ["y"]),
        ],
        12,
    ),
    "weight": model([N("Slice", ["bad", *SLICE], ["y"])]),
    "branches": model([N("If", ["cond"], ["y"], then_branch=branch("p"), else_branch=branch("q"))]),
    "function": model(
        [N("Conv", ["x", "w"], ["t"]), N("Cut", ["t", *SLICE], ["y"], domain="local")], functions=[FUNCTION]
    ),
}
CASES["weight"].graph.initializer.append(TensorProto(name="bad", data_type=F, dims=[1, 3, -4]))
CASES["branches"].graph.initializer.append(numpy_helper.from_array(np.array(True), "cond"))


@pytest.mark.parametrize("name", CASES)
def test_negative_sizes(name: str) -> None:
    """The process lives. Leniently the graph comes back whole, strictly the place is said."""
    inferred = inference.infer(CASES[name], data_prop=True)
    assert [n.op_type for n in inferred.graph.node] == [n.op_type for n in CASES[name].graph.node]
    assert inferred.opset_import == CASES[name].opset_import
    if name == "branches":
        return  # ONNX infers nothing of what it cannot tell there
    with pytest.raises(onnx.shape_inference.InferenceError, match="negative size"):
        inference.infer(CASES[name], strict_mode=True)


def test_what_fits_is_inferred() -> None:
    """Slices that are let in late have their shapes."""
    nodes = [
        N("Conv", ["x", "w"], ["t"]),
        N("Slice", ["t", *SLICE], ["u"]),
        N("Concat", ["u"] * 5, ["v"], axis=2),
        N("Conv", ["v", "w"], ["z"]),
        N("Slice", ["z", *SLICE], ["y"]),
    ]
    inferred = inference.infer(model(nodes, 9), strict_mode=True)
    shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in inferred.graph.value_info}
    assert (shapes["t"], shapes["u"], shapes["z"]) == ([1, 3, 3], [1, 3, 2], [1, 3, 4])
    assert [d.dim_value for d in inferred.graph.output[0].type.tensor_type.shape.dim] == [1, 3, 2]


def test_declared_negative_sizes_say_nothing(tmp_path: Path, run: Run) -> None:
    """-1 is what some exporters write for a dynamic dimension."""
    made = model([N("Slice", ["x", *SLICE], ["y"])], -1)
    inferred = inference.infer(made, strict_mode=True)
    assert inferred.graph.output[0].type.tensor_type.shape.dim[1].dim_value == 3
    made.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", F, [1, 3, -1]))
    onnx.save(made, tmp_path / "m.onnx")
    result = run("build", tmp_path / "m.onnx", "--shape", "x=1x3x2,1x3x4,1x3x8")
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("path", sorted(SAMPLES.glob("*.onnx")), ids=lambda path: path.stem)
def test_as_onnx_does(path: Path) -> None:
    """Bit for bit, where nothing is negative."""
    made = onnx.load(path)
    for options in ({}, {"data_prop": True}, {"strict_mode": True, "check_type": True}):
        assert outcome(inference.infer, made, options) == outcome(onnx.shape_inference.infer_shapes, made, options)


def outcome(infer: Callable[..., ModelProto], made: ModelProto, options: dict[str, bool]) -> ModelProto | str:
    """The inferred model, or the error."""
    try:
        return infer(made, **options)
    except onnx.shape_inference.InferenceError as error:
        return str(error)


@pytest.mark.parametrize("name", ["window", "weight", "behind a slice"])
def test_command(name: str, tmp_path: Path, run: Run) -> None:
    path = tmp_path / "m.onnx"
    made = ModelProto()
    made.CopyFrom(CASES[name])
    made.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", F, [None] * 3))
    onnx.save(made, path)
    assert_clean_error(run("build", path), "egative")
