"""Messages name the flags that make a model build: sizes, values that settle an If; a Squeeze without axes gets them."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from tests.suites.messages import attempt
from trtconvert import BuildOptions, ConvertError, build, shapes
from trtconvert.lowering import squeezes
from trtconvert.profiles import conditions, sizes
from trtconvert.shapes import Range

RTX = BuildOptions(targets=("sm_89",))


def write(model: ModelProto, folder: Path) -> Path:
    path = folder / "model.onnx"
    onnx.save(model, path)
    return path


def parsed(text: str, **weights: np.ndarray) -> ModelProto:
    """A model of opset 17 with these initializers."""
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> g {text}')
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(v), name) for name, v in weights.items())
    return model


def flags(error: ConvertError) -> list[str]:
    """What the message says to add."""
    return re.findall(r"--\w+ \S+", error.fix or "")


def with_flags(path: Path) -> str:
    """Build, adding what the messages name; the flags in the end."""
    told: dict[str, str] = {}
    for _ in range(4):
        built, message = attempt(path, " ".join(told.values()).split())
        if built:
            return " ".join(told.values())
        found = re.findall(r"(--(?:shape|bake|value) ([^\s=]+)=\S+)", message)
        assert found, message
        told |= {name: flag for flag, name in found}
    raise AssertionError(message)


# --- sizes ---------------------------------------------------------------------------------------------------------


def test_sizes_at_which_the_model_runs(tmp_path: Path) -> None:
    """Height must become 1 after striding by 64; width is free, and the batch."""
    model = parsed(
        "(float[n, 3, ?, ?] x) => (float[n, 8, ?] y) { c = Conv <strides = [64, 4]> (x, w) y = Squeeze (c, two) }",
        w=np.ones((8, 3, 4, 4), np.float32),
        two=np.array([2]),
    )
    found = sizes.propose(model, tmp_path, {})["x"]
    assert (found.min[0], found.opt[0], found.max[0]) == (1, 1, sizes.MAX_BATCH)
    assert found.min[2] == found.opt[2] == found.max[2] == 64
    assert found.min[3] < found.opt[3] < found.max[3]


def test_a_batch_that_is_fixed_inside(tmp_path: Path) -> None:
    model = parsed(
        "(float[n, 4, t] x) => (float[1, 4, t] y) { y0 = Reshape (x, s) y = Add (y0, b) }",
        s=np.array([1, 4, -1]),
        b=np.ones((1, 4, 1), np.float32),
    )
    model.graph.node[0].CopyFrom(helper.make_node("GRU", ["x", "W", "R"], ["y0", ""], hidden_size=4, name="gru"))
    model.graph.node[1].CopyFrom(helper.make_node("Add", ["x", "h"], ["y"]))
    del model.graph.node[0]
    model.graph.initializer.append(numpy_helper.from_array(np.ones((1, 4, 256), np.float32), "h"))
    found = sizes.propose(model, tmp_path, {})["x"]
    assert found.min[2] == found.opt[2] == found.max[2] == 256


def test_equal_names_get_one_size(tmp_path: Path) -> None:
    model = parsed(
        "(float[batch, t] x, float[2, batch, 8] s) => (float[?] y) { y0 = ReduceSum (x) y1 = ReduceSum (s) y = Add (y0, y1) }"
    )
    found = sizes.propose(model, tmp_path, {})
    assert (found["x"].max[0], found["s"].max[1]) == (sizes.MAX_BATCH, sizes.MAX_BATCH)
    shapes.profile(model, found)


def test_given_shapes_stay(tmp_path: Path) -> None:
    model = parsed("(float[a, b] x, float[b, c] z) => (float[a, c] y) { y = MatMul (x, z) }")
    given = {"x": Range((2, 7), (3, 7), (4, 7))}
    found = sizes.propose(model, tmp_path, given)
    assert found["x"] == given["x"]
    assert found["z"].opt[0] == 7


def test_nothing_is_proposed_where_nothing_runs(tmp_path: Path) -> None:
    custom = parsed("(float[a, b] x) => (float[a, b] y) { y = Relu (x) }")
    custom.graph.node[0].op_type = "NoSuchOp"
    assert sizes.propose(custom, tmp_path, {}) == {}
    with pytest.raises(ConvertError) as caught:
        shapes.profile(custom, {})
    assert flags(caught.value) == ["--shape x=1x64,1x256,16x1024"]


@pytest.mark.parametrize("dim", ["-1", "?", "", -1])
def test_dimensions_that_say_nothing(dim: str | int, tmp_path: Path) -> None:
    """Paddle writes -1 as a name or as a size; two such dimensions are not the same one."""
    model = parsed("(float[p, 3, q, q] x) => (float[?, ?, ?, ?] y) { y = Relu (x) }")
    for axis in (0, 2, 3):
        place = model.graph.input[0].type.tensor_type.shape.dim[axis]
        place.Clear()
        if isinstance(dim, int):
            place.dim_value = dim
        else:
            place.dim_param = dim
    told = with_flags(write(model, tmp_path))
    assert told == "--shape x=1x3x64x64,1x3x256x256,16x3x1024x1024"


# --- conditions ----------------------------------------------------------------------------------------------------


def branching(condition: str, inputs: str, **weights: np.ndarray) -> ModelProto:
    """An If of which the branches make different ranks."""
    model = parsed(f"({inputs}) => (float y) {{ {condition} }}", **weights)
    then = helper.make_graph(
        [helper.make_node("Squeeze", ["x", "zero"], ["t"])],
        "then",
        [],
        [helper.make_tensor_value_info("t", TensorProto.FLOAT, None)],
    )
    otherwise = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["e"])],
        "else",
        [],
        [helper.make_tensor_value_info("e", TensorProto.FLOAT, None)],
    )
    model.graph.node.append(
        helper.make_node("If", ["c"], ["y"], name="choice", then_branch=then, else_branch=otherwise)
    )
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, None))
    model.graph.initializer.append(numpy_helper.from_array(np.array([0]), "zero"))
    return model


def test_a_condition_on_a_value(tmp_path: Path) -> None:
    """The constant that it is compared with is the value proposed."""
    model = branching("c = Equal (rate, k)", "float[1, 4] x, int64 rate", k=np.array(16000))
    assert with_flags(write(model, tmp_path)) == "--bake rate=16000"


def test_a_condition_on_a_size(tmp_path: Path) -> None:
    model = branching(
        "s = Shape (x) d = Gather (s, first) c = Equal (d, one)", "float[n, 4] x", first=np.array(0), one=np.array(1)
    )
    (found,) = conditions.unknown(model, tmp_path)
    assert (found.node, found.inputs, found.sized) == ("choice", {}, ("x",))
    assert with_flags(write(model, tmp_path)) == "--shape x=1x4"


def test_a_condition_on_data_has_no_flag(tmp_path: Path) -> None:
    model = branching("m = ReduceMax <keepdims = 0> (x) c = Greater (m, k)", "float[1, 4] x", k=np.array(0, np.float32))
    assert conditions.unknown(model, tmp_path)[0].inputs == {}
    with pytest.raises(ConvertError) as caught:
        build(write(model, tmp_path), tmp_path / "e.plan", RTX)
    assert "--bake" not in str(caught.value)


# --- squeezes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("opset", [11, 17])
def test_a_squeeze_gets_its_axes(opset: int, tmp_path: Path) -> None:
    """Of the sizes that the profile's shapes have there; in vain for TensorRT otherwise."""
    model = parsed("(float[1, 4, t, 1] x) => (float[?, ?] y) { y = Squeeze (x) }")
    model.opset_import[0].version = opset
    profile = {"x": Range((1, 4, 2, 1), (1, 4, 5, 1), (1, 4, 9, 1))}
    assert squeezes.settle(model, tmp_path, profile) == 1
    node = model.graph.node[0]
    axes = [*node.attribute[0].ints] if opset == 11 else [*numpy_helper.to_array(model.graph.initializer[0])]
    assert axes == [0, 3]
    onnx.checker.check_model(model)
    build(write(model, tmp_path), tmp_path / "e.plan", BuildOptions(shapes=profile, targets=("sm_89",)))


def test_a_squeeze_that_differs_is_explained(tmp_path: Path) -> None:
    model = parsed("(float[n, 4, t] x) => (float y) { y = Squeeze (x) }")
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, None))
    profile = {"x": Range((1, 4, 2), (1, 4, 5), (8, 4, 9))}
    with pytest.raises(ConvertError, match=r"\[0\] at min, \[0\] at opt, \[\] at max") as caught:
        squeezes.settle(model, tmp_path, profile)
    assert flags(caught.value) == ["--shape x=1x4x2,1x4x5,1x4x9"]


def test_other_squeezes_stay(tmp_path: Path) -> None:
    """Those with axes, and those of unknown shape."""
    model = parsed("(float[1, 4] x) => (float[?] y) { y = Squeeze (x, a) }", a=np.array([0]))
    before = model.SerializeToString()
    assert squeezes.settle(model, tmp_path, {}) == 0
    assert model.SerializeToString() == before
