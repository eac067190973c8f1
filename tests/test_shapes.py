"""What --shape says, checked against the model, and what is assumed where it says nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from trtconvert import ConvertError
from trtconvert.shapes import METADATA_KEY, Range, parse, profile

Shape = Sequence[int | str | None] | None


def model(inputs: Mapping[str, Shape], metadata: str = "") -> ModelProto:
    """A model with these inputs, each through a Relu."""
    nodes = [helper.make_node("Relu", [name], [f"{name}_out"]) for name in inputs]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()]
    outputs = [helper.make_tensor_value_info(f"{name}_out", TensorProto.FLOAT, s) for name, s in inputs.items()]
    made = helper.make_model(helper.make_graph(nodes, "g", values, outputs))
    if metadata:
        helper.set_model_props(made, {METADATA_KEY: metadata})
    return made


@pytest.mark.parametrize(
    ("text", "name", "expected"),
    [
        ("x=1x3x8", "x", Range((1, 3, 8), (1, 3, 8), (1, 3, 8))),
        ("x:1x3x8", "x", Range((1, 3, 8), (1, 3, 8), (1, 3, 8))),
        ("x=1x4,2x4,8x4", "x", Range((1, 4), (2, 4), (8, 4))),
        ("x:1x4,2x4,8x4", "x", Range((1, 4), (2, 4), (8, 4))),
        ("Identity:0=1x4,2x4,8x4", "Identity:0", Range((1, 4), (2, 4), (8, 4))),
        ("Identity:0:1x4,2x4,8x4", "Identity:0", Range((1, 4), (2, 4), (8, 4))),
        ("a/b=c=5", "a/b=c", Range((5,), (5,), (5,))),
        ("x=7", "x", Range((7,), (7,), (7,))),
        ("x=0x4,1x4,2x4", "x", Range((0, 4), (1, 4), (2, 4))),
        ("s=", "s", Range((), (), ())),
        ("s:", "s", Range((), (), ())),
    ],
)
def test_parse(text: str, name: str, expected: Range) -> None:
    assert parse([text]) == {name: expected}


def test_parse_takes_several() -> None:
    assert parse([]) == {}
    assert parse(["x=1", "y:2"]) == {"x": Range((1,), (1,), (1,)), "y": Range((2,), (2,), (2,))}


@pytest.mark.parametrize(
    "text",
    ["", "x", "=1x2", ":1x2", "x=1y2", "x=1x", "x=x1", "x=1xx2", "x=-1x2", "x=1.5", "x=1,2", "x=1,2,3,4", "x=NxCx4"],
)
def test_malformed(text: str) -> None:
    with pytest.raises(ConvertError, match="cannot read --shape") as caught:
        parse([text])
    assert repr(text) in caught.value.what
    assert "NAME=MIN,OPT,MAX" in str(caught.value)


@pytest.mark.parametrize("text", ["x=1x4", "x=1x4,2x4,8x4"])
def test_range_prints_as_it_is_read(text: str) -> None:
    assert f"x={parse([text])['x']}" == text


def test_static_model_needs_nothing() -> None:
    result = profile(model({"x": (2, 4), "s": ()}), {})
    assert result.ranges == {}
    assert result.notices == ()
    assert profile(model({"x": (2, 4)}), parse(["x=2x4"])).ranges == {}


def test_leading_dimension_has_a_default() -> None:
    result = profile(model({"x": ("N", 4), "m": (None,)}), {})
    assert result.ranges == {"x": Range((1, 4), (1, 4), (16, 4)), "m": Range((1,), (1,), (16,))}
    assert len(result.notices) == 2
    assert "'x'" in result.notices[0]
    assert "1 to 16" in result.notices[0]
    assert "--shape x=" in result.notices[0]


def test_given_shape_replaces_the_default() -> None:
    given = parse(["x=2x4,3x4,5x4"])
    result = profile(model({"x": ("N", 4)}), given)
    assert result.ranges == given
    assert result.notices == ()


def test_weights_are_no_inputs() -> None:
    made = model({"x": ("N", 4), "w": ("K", "L")})
    made.graph.initializer.append(numpy_helper.from_array(np.ones((2, 2), np.float32), "w"))
    assert list(profile(made, {}).ranges) == ["x"]
    with pytest.raises(ConvertError, match="'w', which is no input"):
        profile(made, parse(["w=2x2"]))


@pytest.mark.parametrize(
    ("shape", "flag"),
    [
        (("N", "L", 4), "--shape x=1x64x4,1x256x4,16x1024x4"),
        ((2, None), "--shape x=2x64,2x256,2x1024"),
    ],
)
def test_missing_range_prints_a_flag_that_works(shape: Shape, flag: str) -> None:
    with pytest.raises(ConvertError, match="without a range") as caught:
        profile(model({"x": shape}), {})
    assert str(caught.value).endswith(flag)
    assert profile(model({"x": shape}), parse([flag.split()[1]])).ranges.keys() == {"x"}


def test_every_missing_range_is_printed() -> None:
    with pytest.raises(ConvertError) as caught:
        profile(model({"x": ("N", "L"), "ok": ("N", 4), "z": (1, "M")}), {})
    assert "x [N, L]; z [1, M]" in caught.value.what
    assert str(caught.value).count("--shape ") == 2


@pytest.mark.parametrize(
    ("flag", "words"),
    [
        ("pixel=1x4", r"names 'pixel', which is no input of the model\n.*did you mean 'pixels'\? inputs: pixels"),
        ("qqq=1x4", r"names 'qqq', which is no input of the model\n  fix: inputs: pixels"),
        ("pixels=4", r"min has 1 dimensions, the input has 2: \[N, 4\]"),
        ("pixels=1x4,1x4x1,8x4", "opt has 3 dimensions"),
        ("pixels=1x4,1x4,8x5", r"max has 5 on axis 1, the model fixes it to 4: \[N, 4\]"),
        ("pixels=3x4,2x4,8x4", "min 3 > opt 2 on axis 0"),
        ("pixels=1x4,9x4,8x4", "opt 9 > max 8 on axis 0"),
        ("pixels=", "min has 0 dimensions"),
    ],
)
def test_refused(flag: str, words: str) -> None:
    with pytest.raises(ConvertError, match=words):
        profile(model({"pixels": ("N", 4)}), parse([flag]))


def test_static_dimension_of_a_static_input_is_checked() -> None:
    with pytest.raises(ConvertError, match="min has 3 on axis 0, the model fixes it to 2"):
        profile(model({"x": (2, 4)}), parse(["x=3x4"]))


@pytest.mark.parametrize(
    ("flags", "sizes"),
    [
        (["a=1x4,2x4,8x4", "b=1x4,3x4,8x4"], "1/2/8 and 1/3/8"),
        (["a=2x4"], "2/2/2 and 1/1/16"),  # b's default differs from what a was given
    ],
)
def test_equal_names_get_equal_sizes(flags: list[str], sizes: str) -> None:
    two = model({"a": ("N", 4), "b": ("N", 4)})
    with pytest.raises(ConvertError, match=f"'a' and 'b' share the dimension 'N', but get {sizes}"):
        profile(two, parse(flags))


def test_equal_names_within_one_input() -> None:
    square = model({"x": ("N", "N")})
    assert profile(square, parse(["x=1x1,2x2,3x3"])).ranges["x"].max == (3, 3)
    with pytest.raises(ConvertError, match="share the dimension 'N'"):
        profile(square, parse(["x=1x1,2x2,3x4"]))


def test_unnamed_dimensions_are_independent() -> None:
    two = model({"a": (None, 4), "b": (None, 4)})
    assert profile(two, parse(["a=2x4", "b=3x4"])).ranges == parse(["a=2x4", "b=3x4"])


def test_shapes_from_metadata() -> None:
    carried = "x=1x8x4,2x8x4,3x16x4 z:1x4,2x4,3x4"
    made = model({"x": ("N", "L", 4), "z": ("N", 4)}, carried)
    result = profile(made, {})
    assert result.ranges == parse(carried.split())
    assert result.notices == (f"shapes from the model's metadata (trtconvert.shape): {carried}",)


def test_given_shapes_beat_metadata() -> None:
    made = model({"x": ("N", "L")}, "x=1x8,2x8,3x16")
    result = profile(made, parse(["x=5x5"]))
    assert result.ranges == parse(["x=5x5"])
    assert result.notices == ()


@pytest.mark.parametrize(
    ("metadata", "words"),
    [("x=1y8", "x=1y8"), ("y=1x8", "no input of the model"), ("x=1x8,2x8,1x8", "opt 2 > max 1")],
)
def test_bad_metadata(metadata: str, words: str) -> None:
    """The model's author has to mend it; the message has to say that it came from there."""
    with pytest.raises(ConvertError, match=words) as caught:
        profile(model({"x": ("N", "L")}, metadata), {})
    assert METADATA_KEY in str(caught.value)


def test_unknown_rank() -> None:
    with pytest.raises(ConvertError, match="rank of input 'x' is unknown") as caught:
        profile(model({"x": None}), {})
    assert "--shape x=" in str(caught.value)
    given = parse(["x=1x3x8x8,2x3x8x8,4x3x8x8"])
    assert profile(model({"x": None}), given).ranges == given


@pytest.mark.parametrize(
    ("flag", "words"), [("x=4x3,2x3,8x3", "min 4 > opt 2"), ("x=1x3,2x3x1,8x3", r"has \d dimensions")]
)
def test_range_of_unknown_rank_is_checked_too(flag: str, words: str) -> None:
    with pytest.raises(ConvertError, match=words):
        profile(model({"x": None}), parse([flag]))


def test_size_beyond_tensorrt() -> None:
    """TensorRT's dimensions are 64-bit; larger ones are refused here, not by a TypeError in the builder."""
    with pytest.raises(ConvertError):
        profile(model({"x": ("N", 4)}), parse([f"x=1x4,1x4,{2**63}x4"]))
