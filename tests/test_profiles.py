"""Dynamic shapes: profiles that do not fit, shape tensors, what is evaluated before a build. Real builds on CPU."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
import pytest
from onnx import NodeProto, TensorProto, helper, numpy_helper

from tests.conftest import Run, assert_clean_error
from trtconvert import BuildOptions, BuildResult, ConvertError, build, gpu, manifest, verify
from trtconvert import model as onnx_model
from trtconvert.inputs import random_feeds
from trtconvert.profiles import fit, shape_values
from trtconvert.profiles.optimization_profile import unfit
from trtconvert.shapes import Profile, Range, parse

pytestmark = pytest.mark.skipif(gpu.current() is not None, reason="asserts ahead-of-time builds, as on a CPU")
F, INT = TensorProto.FLOAT, TensorProto.INT64
Inputs: TypeAlias = "Mapping[str, tuple[int, Sequence[int | str | None]]]"
N = helper.make_node


def save(
    folder: Path, nodes: Sequence[NodeProto], inputs: Inputs, rank: int = 2, dtype: int = F, **constants: Any
) -> Path:
    """A model of these nodes; its output is y, of that rank."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, *described) for name, described in inputs.items()],
        [helper.make_tensor_value_info("y", dtype, [None] * rank)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    path = folder / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def built(path: Path, *shapes: str, values: Sequence[str] = (), **bake: Any) -> BuildResult:
    """An engine of the model, checked against the model as verify does."""
    options = BuildOptions(shapes=parse(shapes), values=shape_values.parse(values), bake=bake, targets=("sm_86",))
    result = build(path, path.with_suffix(".plan"), options)
    assert verify(result.plan).passed
    return result


def refusal(path: Path, *shapes: str, values: Sequence[str] = ()) -> str:
    """The message of a build that must fail, with no plan and none of TensorRT's follow-up errors."""
    with pytest.raises(ConvertError) as caught:
        built(path, *shapes, values=values)
    assert not path.with_suffix(".plan").exists()
    message = str(caught.value)
    assert "no optimization profile has been defined" not in message
    assert 2 <= len(message.splitlines()) <= 4
    return message


# --- no or partial profile -----------------------------------------------------------------------------------------


def relu(folder: Path) -> Path:
    return save(folder, [N("Relu", ["x"], ["y"])], {"x": (F, ["N", 4])})


def added(folder: Path, x: Sequence[int | str | None], z: Sequence[int | str | None]) -> Path:
    return save(folder, [N("Add", ["x", "z"], ["y"], name="sum")], {"x": (F, x), "z": (F, z)})


def test_an_input_that_nothing_is_said_of(tmp_path: Path) -> None:
    message = refusal(added(tmp_path, ["N", 4], ["N", 4]), "x=2x4,3x4,8x4")
    assert "inputs 'x' and 'z' share the dimension 'N'" in message
    flag = message.split("--shape ")[-1].strip()
    assert flag == "z=2x4,3x4,8x4"
    built(added(tmp_path, ["N", 4], ["N", 4]), "x=2x4,3x4,8x4", flag)


def test_flags_for_missing_inputs_agree(tmp_path: Path) -> None:
    """Named dimensions get one size in all of the flags that an error proposes."""
    path = save(
        tmp_path,
        [N("MatMul", ["x", "z"], ["xz"]), N("MatMul", ["xz", "v"], ["y"])],
        {"x": (F, [2, "K"]), "z": (F, ["K", "L"]), "v": (F, ["L", "M"])},
    )
    message = refusal(path)
    flags = [word for word in message.split() if "=" in word]
    assert [flag.split("=")[0] for flag in flags] == ["x", "z", "v"]
    built(path, *flags)


def test_assumed_range_is_said(tmp_path: Path) -> None:
    assert any("'x' has a dynamic first dimension: built for 1 to 16" in note for note in built(relu(tmp_path)).notices)


def test_typo(tmp_path: Path, run: Run) -> None:
    path = relu(tmp_path)
    assert_clean_error(run("build", path, "--shape", "xx=1x4"), "names 'xx', which is no input", "did you mean 'x'?")


@pytest.mark.parametrize(
    ("flag", "words"),
    [
        ("x=4x4,2x4,8x4", "x: min 4 > opt 2 on axis 0"),
        ("x=1x4,9x4,8x4", "x: opt 9 > max 8 on axis 0"),
        ("x=1x4,1x4,1x5", "x: max has 5 on axis 1, the model fixes it to 4"),
        ("x=1,2,3", "x: min has 1 dimensions, the input has 2"),
    ],
)
def test_order_static_dimension_and_rank(flag: str, words: str, tmp_path: Path, run: Run) -> None:
    assert_clean_error(run("build", relu(tmp_path), "--shape", flag), words)


def test_dimensions_of_one_size_are_static(tmp_path: Path) -> None:
    """The engine has them as constants, which TensorRT builds the better for."""
    assert built(relu(tmp_path), "x=3x4").manifest.engine_inputs[0].shape == [3, 4]
    assert built(relu(tmp_path), "x=3x4,3x4,5x4").manifest.engine_inputs[0].shape == [-1, 4]


def test_unknown_rank(tmp_path: Path) -> None:
    path = relu(tmp_path)
    model = onnx.load(path)
    model.graph.input[0].type.tensor_type.ClearField("shape")
    onnx.save(model, path)
    assert built(path, "x=3x4").manifest.engine_inputs[0].shape == [3, 4]
    assert built(path, "x=3x4,4x4,5x4").manifest.engine_inputs[0].shape == [-1, 4]


# --- shapes evaluated before the build -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (
            ["x=1x4,2x4,8x4", "z=1x4,3x4,8x4"],
            "the opt sizes of the inputs do not fit the model: sizes 2 and 3 on axis 0",
        ),
        (
            ["x=2x4,4x4,8x4", "z=3x4,4x4,8x4"],
            "the min sizes of the inputs do not fit the model: sizes 2 and 3 on axis 0",
        ),
        (
            ["x=2x4,4x4,8x4", "z=2x4,4x4,9x4"],
            "the max sizes of the inputs do not fit the model: sizes 8 and 9 on axis 0",
        ),
    ],
)
@pytest.mark.parametrize("names", [("N", "M"), (None, None)])
def test_broadcast(flags: Sequence[str], words: str, names: tuple[str | None, str | None], tmp_path: Path) -> None:
    message = refusal(added(tmp_path, [names[0], 4], [names[1], 4]), *flags)
    assert words in message
    assert "node sum (Add), which gets x [" in message


def test_broadcast_of_one(tmp_path: Path) -> None:
    built(added(tmp_path, ["N", 4], ["M", 4]), "x=2x4,4x4,8x4", "z=1x4")
    built(added(tmp_path, ["N", 4], ["M", 4]), "x=2x4,4x4,8x4", "z=2x4,4x4,8x4")


def test_flags_of_the_error_work(tmp_path: Path) -> None:
    """Those that it proposes for min and max together, and those for opt."""
    path = added(tmp_path, ["N", 4], ["M", 4])
    for given in (["x=2x4,4x4,8x4", "z=3x4,4x4,9x4"], ["x=1x4,2x4,8x4", "z=1x4,3x4,8x4"]):
        flags = [word for word in refusal(path, *given).split() if word[:2] in ("x=", "z=")]
        built(path, *flags)
        path.with_suffix(".plan").unlink()


def test_a_batch_that_nobody_asked_for(tmp_path: Path) -> None:
    """The model says that its first dimension is dynamic, and takes one row only: it is built for one."""
    path = save(tmp_path, [N("Reshape", ["x", "s"], ["y"])], {"x": (F, ["N", 4])}, s=np.array([2, 2]))
    result = built(path)
    assert result.manifest.engine_inputs[0].shape == [1, 4]
    (note,) = result.notices
    assert note.startswith("input 'x' was built for 1x4 alone: 64 elements cannot become [2, 2], which has 4 at node y")
    path.with_suffix(".plan").unlink()
    assert "the max sizes" in refusal(path, "x=1x4,1x4,16x4")


def test_one_name_two_sizes(tmp_path: Path, run: Run) -> None:
    flags = ("--shape", "x=2x4", "--shape", "z=3x4")
    result = run("build", added(tmp_path, ["N", 4], ["N", 4]), *flags)
    assert_clean_error(result, "inputs 'x' and 'z' share the dimension 'N', but get 2/2/2 and 3/3/3")


def conv(folder: Path, **attributes: Any) -> Path:
    weight = np.ones((2, 3, 7), np.float32)
    return save(folder, [N("Conv", ["x", "w"], ["y"], name="c", **attributes)], {"x": (F, [1, 3, "L"])}, 3, w=weight)


def test_kernel_larger_than_its_input(tmp_path: Path, run: Run) -> None:
    path = conv(tmp_path)
    result = run("build", path, "--shape", "x=1x3x6,1x3x10,1x3x20")
    words = ("the min sizes", "a kernel that spans 7 on axis 2 of size 6", "node c (Conv), which gets x [1, 3, 6]")
    assert_clean_error(result, *words)
    built(path, "x=1x3x7,1x3x10,1x3x20")


@pytest.mark.parametrize(
    ("attributes", "smallest", "words"),
    [
        ({"pads": [1, 1]}, 5, "size 4 and padding 2"),
        ({"dilations": [2]}, 13, "spans 13"),
        ({"strides": [3]}, 7, "spans 7"),
        ({"auto_pad": "SAME_UPPER"}, 1, ""),
    ],
)
def test_kernel_with_attributes(attributes: dict[str, Any], smallest: int, words: str, tmp_path: Path) -> None:
    path = conv(tmp_path, **attributes)
    built(path, f"x=1x3x{smallest},1x3x40,1x3x40")
    path.with_suffix(".plan").unlink()
    if words:
        assert words in refusal(path, f"x=1x3x{smallest - 1},1x3x40,1x3x40")


@pytest.mark.parametrize(
    ("nodes", "flags", "words"),
    [
        ([N("MatMul", ["x", "z"], ["y"])], ["x=2x4", "z=3x4"], "the inner sizes 4 and 3 must be equal"),
        ([N("Gemm", ["x", "z"], ["y"], transB=1)], ["x=2x4", "z=4x3"], "the inner sizes 4 and 3 must be equal"),
        ([N("Concat", ["x", "z"], ["y"], axis=1)], ["x=2x4", "z=3x4"], "on axis 0 sizes 2 and 3 must be equal"),
        ([N("Relu", ["x"], ["r"]), N("Where", ["c", "r", "z"], ["y"])], ["x=2x4", "z=2x3"], "sizes 4 and 3 on axis 1"),
        (
            [N("Reshape", ["x", "s"], ["r"]), N("Add", ["r", "z"], ["y"])],
            ["x=3x3", "z=2x6"],
            "9 elements cannot become",
        ),
        ([N("Reshape", ["x", "t"], ["r"]), N("Add", ["r", "z"], ["y"])], ["x=3x3", "z=1x1"], "incompatible shapes"),
    ],
    ids=lambda value: value[-1].op_type if isinstance(value[-1], NodeProto) else "",
)
def test_what_else_does_not_fit(nodes: Sequence[NodeProto], flags: Sequence[str], words: str, tmp_path: Path) -> None:
    inputs = {"x": (F, [None, None]), "z": (F, [None, None])}
    path = save(tmp_path, nodes, inputs, c=np.array([[True]]), s=np.array([2, 6]), t=np.array([-1, 2]))
    assert words in refusal(path, *flags)


def test_sizes_that_need_not_occur_together(tmp_path: Path) -> None:
    """a and b always have 10 rows together: the smallest of both do not fit, and that is no fault. verify leaves them out."""
    nodes = [N("Concat", ["a", "b"], ["ab"], axis=0), N("Add", ["ab", "c"], ["y"], name="sum")]
    path = save(tmp_path, nodes, {"a": (F, ["A"]), "b": (F, ["B"]), "c": (F, [10])}, 1)
    result = built(path, "a=1,5,9", "b=1,5,9")
    assert result.manifest.unfit == ["max", "min"]
    assert sum("sizes of the inputs do not go together" in note and "node sum" in note for note in result.notices) == 2
    assert {row.shapes for row in verify(result.plan).rows} == {"5 5 10"}


def test_a_branch_that_is_not_taken_need_not_fit(tmp_path: Path) -> None:
    """x of one row is squeezed, x of several rows is summed: no size is refused."""
    one = helper.make_graph(
        [N("Squeeze", ["x", "axis"], ["s"])], "one", [], [helper.make_tensor_value_info("s", F, [4])]
    )
    more = helper.make_graph(
        [N("ReduceSum", ["x", "axis"], ["r"], keepdims=0)], "more", [], [helper.make_tensor_value_info("r", F, [4])]
    )
    nodes = [
        N("Shape", ["x"], ["shape"], end=1),
        N("Equal", ["shape", "axis_1"], ["is_one"]),
        N("If", ["is_one"], ["y"], then_branch=one, else_branch=more),
    ]
    path = save(tmp_path, nodes, {"x": (F, ["N", 4])}, 1, axis=np.array([0]), axis_1=np.array([1]))
    profile = Profile(parse(["x=1x4,2x4,8x4"]))
    assert fit.settle(onnx_model.load(path), tmp_path, profile) == (profile, [])


def test_what_onnxruntime_takes_is_not_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A suspicion of ONNX's shape inference alone is no verdict."""
    path = added(tmp_path, ["N", 4], ["N", 4])
    asked: list[int] = []

    def suspect(_graph: object, _shapes: object) -> list[int]:
        asked.append(1)
        return [0]

    monkeypatch.setattr(fit, "_odd", suspect)
    profile = Profile(parse(["x=1x4,2x4,8x4", "z=1x4,2x4,8x4"]))
    assert fit.settle(onnx_model.load(path), tmp_path, profile) == (profile, [])
    assert len(asked) == 3


def test_what_tensorrt_says_of_min_and_max() -> None:
    said = (
        "Profile kMIN values are not self-consistent. IShuffleLayer r: reshaping failed for tensor: x reshape would change "
        "volume 4 to 12 In executeReshape at /_src/runtime/core/shapeMachine.cpp:348 Instruction: RESHAPE"
    )
    assert unfit(["Make sure input s has Int64 binding.", said]) == {
        "min": "IShuffleLayer r: reshaping failed for tensor: x reshape would change volume 4 to 12"
    }


# --- shape tensors -------------------------------------------------------------------------------------------------


def reshape(folder: Path) -> Path:
    return save(folder, [N("Reshape", ["x", "s"], ["y"])], {"x": (F, ["N", 4]), "s": (INT, [2])})


def count(folder: Path) -> Path:
    return save(
        folder, [N("Range", ["zero", "k", "one"], ["y"])], {"k": (INT, [])}, 1, INT, zero=np.int64(0), one=np.int64(1)
    )


def cut(folder: Path) -> Path:
    inputs = {"x": (F, ["N", 4]), "starts": (INT, [2]), "ends": (INT, [2])}
    return save(folder, [N("Slice", ["x", "starts", "ends"], ["y"])], inputs)


def resize(folder: Path) -> Path:
    node = N("Resize", ["x", "", "", "s"], ["y"], mode="nearest")
    return save(folder, [node], {"x": (F, [1, 3, 8, 8]), "s": (INT, [4])}, 4)


def int32(folder: Path) -> Path:
    nodes = [N("Cast", ["s"], ["wide"], to=INT), N("Reshape", ["x", "wide"], ["y"])]
    return save(folder, nodes, {"x": (F, ["N", 4]), "s": (TensorProto.INT32, [2])})


def open_size(folder: Path) -> Path:
    return save(folder, [N("Reshape", ["x", "s"], ["y"])], {"x": (F, ["N", 4]), "s": (INT, ["K"])})


X = "x=1x4,2x4,8x4"


@pytest.mark.parametrize(
    ("make", "shapes", "values", "fed"),
    [
        (reshape, [X], ["s=1x4,2x4,8x4"], ["1x4 s=1,4", "2x4 s=2,4", "8x4 s=8,4"]),
        (reshape, [X], ["s=-1x4"], ["1x4 s=-1,4", "2x4 s=-1,4", "8x4 s=-1,4"]),
        (count, [], ["k=1,5,9"], ["k=1", "k=5", "k=9"]),
        (cut, [X], ["starts=0x0", "ends=1x4,2x4,8x4"], ["1x4 starts=0,0 ends=1,4", "2x4 starts=0,0 ends=2,4"]),
        (resize, [], ["s=1x3x8x8,1x3x16x16,1x3x32x32"], ["1x3x8x8 s=1,3,8,8", "1x3x8x8 s=1,3,32,32"]),
        (int32, [X], ["s=1x4,2x4,8x4"], ["1x4 s=1,4", "8x4 s=8,4"]),
        (open_size, [X], ["s=1x4,2x4,8x4"], ["1x4 s=1,4", "8x4 s=8,4"]),
    ],
)
def test_values(
    make: Callable[[Path], Path], shapes: Sequence[str], values: Sequence[str], fed: Sequence[str], tmp_path: Path
) -> None:
    """The engine builds, the manifest has the values, and verify feeds them, in the input's dtype."""
    result = built(make(tmp_path), *shapes, values=values)
    given = {name: {p: list(v) for p, v in vars(r).items()} for name, r in shape_values.parse(values).items()}
    assert result.manifest.values == given
    assert set(fed) <= {row.shapes for row in verify(result.plan).rows}
    described = manifest.read(result.plan)
    for _, feeds in random_feeds(described.onnx_inputs, described.profile, 0, described.values):
        for io in described.onnx_inputs:
            assert feeds[io.name].dtype == io.dtype


@pytest.mark.parametrize("make", [reshape, count, cut, resize, int32])
def test_missing_values(make: Callable[[Path], Path], tmp_path: Path) -> None:
    """Both ways out are said, with their flags; the shape of the flags is right."""
    path = make(tmp_path)
    message = refusal(path, *([X] if make is not count and make is not resize else []))
    names = {"reshape": ["s"], "count": ["k"], "cut": ["starts", "ends"], "resize": ["s"], "int32": ["s"]}[
        make.__name__
    ]
    for name in names:
        assert f"{name!r} (int" in message
        assert f"--bake {name}=VALUE" in message
    flags = [word for word in message.split() if "," in word and "=" in word]
    model = onnx_model.load(path)
    shape_values.check(model, shape_values.parse(flags), {})
    assert [flag.split("=")[0] for flag in flags] == names


def test_size_of_a_shape_tensor_unknown(tmp_path: Path) -> None:
    message = refusal(open_size(tmp_path), X)
    assert "--bake s=VALUE" in message
    assert "--value s=MIN,OPT,MAX" in message


@pytest.mark.parametrize(
    ("flag", "words"),
    [
        ("s=3x4,2x4,8x4", "--value s: min 3 > opt 2 at value 0"),
        ("s=1x4,2x9,8x8", "--value s: opt 9 > max 8 at value 1"),
        ("s=1,2,3", "--value s: min has 1 values, the input has 2"),
        ("t=1x4", "--value names 't', which is no input of the model"),
        ("ss=1x4", "did you mean 's'?"),
        ("x=1,2,3", "--value x: the input is float32, the values of a shape tensor are int32 or int64"),
        ("s=1y4", "cannot read --value 's=1y4'"),
        ("s=1x4,2x4", "cannot read --value 's=1x4,2x4'"),
        ("s=1x4,3x4,8x4", "8 elements cannot become [3, 4], which has 12"),
    ],
)
def test_refused_values(flag: str, words: str, tmp_path: Path, run: Run) -> None:
    assert_clean_error(run("build", reshape(tmp_path), "--shape", X, "--value", flag), words)


def test_values_beyond_the_dtype(tmp_path: Path) -> None:
    assert "beyond 32-bit integers" in refusal(int32(tmp_path), X, values=["s=1x4,2x4,3000000000x4"])
    assert "beyond 64-bit integers" in refusal(reshape(tmp_path), X, values=[f"s=1x4,2x4,{2**63}x4"])


@pytest.mark.parametrize(
    ("shapes", "values"),
    [
        ({"x": Range((4, 4), (2, 4), (8, 4))}, {}),
        ({"x": Range((1, 4), (2, 4), (8, 4))}, {"s": Range((3, 4), (2, 4), (8, 4))}),
    ],
)
def test_what_tensorrt_refuses_is_the_cause(
    shapes: Mapping[str, Range], values: Mapping[str, Range], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Should a profile get past our own checks, TensorRT's first error is told, not the one that there is no profile."""
    monkeypatch.setattr("trtconvert.shapes.in_order", lambda *_: None)
    monkeypatch.setattr(shape_values, "in_order", lambda *_: None)
    monkeypatch.setattr(fit, "_misfits", lambda *_: [])
    path = reshape(tmp_path) if values else relu(tmp_path)
    with pytest.raises(ConvertError, match="takes no such profile") as caught:
        build(path, tmp_path / "p.plan", BuildOptions(shapes=shapes, values=values))
    assert "no optimization profile" not in str(caught.value)


def test_values_that_do_not_fit_at_min_alone(tmp_path: Path) -> None:
    """Other values, or another x, may fit: a note, and verify does not run it."""
    result = built(reshape(tmp_path), X, values=["s=1x1,2x4,8x4"])
    assert result.manifest.unfit == ["min"]
    assert any("min sizes" in note and "4 elements cannot become [1, 1]" in note for note in result.notices)


def test_baked_instead(tmp_path: Path) -> None:
    assert [io.name for io in built(reshape(tmp_path), X, s=[-1, 2]).manifest.engine_inputs] == ["x"]
    assert built(count(tmp_path), k=5).manifest.engine_inputs == []
    assert built(cut(tmp_path), X, starts=[0, 1], ends=[1, 2**63 - 1]).manifest.baked.keys() == {"starts", "ends"}


def loop(folder: Path) -> Path:
    """y = x + m * x by a Loop of m trips."""
    value = helper.make_tensor_value_info
    body = helper.make_graph(
        [N("Identity", ["go"], ["go_on"]), N("Add", ["sum", "x"], ["next"])],
        "body",
        [value("i", INT, []), value("go", TensorProto.BOOL, []), value("sum", F, [2, 4])],
        [value("go_on", TensorProto.BOOL, []), value("next", F, [2, 4])],
    )
    node = N("Loop", ["m", "true", "x"], ["y"], body=body)
    return save(folder, [node], {"x": (F, [2, 4]), "m": (INT, [])}, true=np.array(True))


def test_trip_count_is_no_shape_tensor(tmp_path: Path) -> None:
    """It needs no values; given ones are fed to verify, and a note says that the engine does not mind."""
    assert not any("--value" in note for note in built(loop(tmp_path)).notices)
    result = built(loop(tmp_path), values=["m=1,2,5"])
    assert any("--value m: no shape depends on this input" in note for note in result.notices)
    assert {row.shapes for row in verify(result.plan).rows} == {"2x4 m=1", "2x4 m=2", "2x4 m=5"}


@pytest.mark.parametrize(
    ("node", "inputs", "name"),
    [
        (N("ReduceSum", ["x", "a"], ["y"]), {"x": (F, [2, 4]), "a": (INT, [1])}, "a"),
        (N("Unsqueeze", ["x", "a"], ["y"]), {"x": (F, [2]), "a": (INT, [1])}, "a"),
        (N("Resize", ["x", "", "a"], ["y"]), {"x": (F, [1, 4]), "a": (F, [2])}, "a"),
        (N("OneHot", ["x", "a", "v"], ["y"]), {"x": (INT, [3]), "a": (INT, [])}, "a"),
    ],
)
def test_what_must_be_a_constant(node: NodeProto, inputs: Inputs, name: str, tmp_path: Path) -> None:
    """Errors of parser and builder say which input to bake, and that helps."""
    path = save(tmp_path, [node], inputs, v=np.array([0, 1], np.float32))
    values = ["a=2"] if node.op_type == "OneHot" else []
    if values:  # else TensorRT asks for values first
        values = ["a=1,2,3"]
    assert f"--bake {name}=VALUE" in refusal(path, values=values)
    built(path, a={"ReduceSum": [1], "Unsqueeze": [0], "Resize": [1.0, 2.0], "OneHot": 4}[node.op_type])


def test_missing_values_beside_an_if(tmp_path: Path) -> None:
    """What TensorRT asks for is said, not what an If that it takes as it is might be settled with."""
    value = helper.make_tensor_value_info
    branches = [
        helper.make_graph([N(op, ["r"], [op])], op, [], [value(op, F, [None, None])]) for op in ("Neg", "Identity")
    ]
    nodes = [
        N("Reshape", ["x", "s"], ["r"]),
        N("If", ["c"], ["y"], then_branch=branches[0], else_branch=branches[1]),
    ]
    path = save(tmp_path, nodes, {"x": (F, ["N", 4]), "s": (INT, [2]), "c": (TensorProto.BOOL, [])})
    assert "--value s=" in refusal(path, X)
    built(path, X, values=["s=1x4,2x4,8x4"])


# --- verify and inspect --------------------------------------------------------------------------------------------


def test_given_inputs_stay_in_the_range(tmp_path: Path) -> None:
    plan = built(reshape(tmp_path), X, values=["s=1x4,2x4,8x4"]).plan
    np.savez(tmp_path / "good.npz", x=np.ones((3, 4), np.float32), s=np.array([3, 4]))
    np.savez(tmp_path / "bad.npz", x=np.ones((3, 4), np.float32), s=np.array([3, 5]))
    np.savez(tmp_path / "torn.npz", x=np.ones((3, 4), np.float32), s=np.array([2, 4]))
    assert verify(plan, tmp_path / "good.npz").passed
    with pytest.raises(ConvertError, match=r"'s' is \[3, 5\], the engine takes values from \[1, 4\] to \[8, 4\]"):
        verify(plan, tmp_path / "bad.npz")
    with pytest.raises(ConvertError, match="a model failed to run"):
        verify(plan, tmp_path / "torn.npz")


def test_commands(tmp_path: Path, run: Run) -> None:
    path = reshape(tmp_path)
    result = run("build", path, "--shape", X, "--value", "s=1x4,2x4,8x4", "--json")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["values"] == {"s": {"min": [1, 4], "opt": [2, 4], "max": [8, 4]}}
    shown = run("inspect", tmp_path / "model.plan").stdout
    assert "values    s: min 1x4, opt 2x4, max 8x4" in shown
    result = run("verify", tmp_path / "model.plan")
    assert result.returncode == 3, result.stderr
    assert "2x4 s=2,4" in result.stdout
    assert run("build", path, "--shape", X, "--bake", "s=4,-1").returncode == 0
    assert "baked     s: int64 [2]" in run("inspect", tmp_path / "model.plan").stdout


def test_int64_feeds_need_int64(tmp_path: Path) -> None:
    """An input of ids beside shapes is fed as int64, as its engine input is."""
    path = save(
        tmp_path, [N("Gather", ["t", "ids"], ["y"])], {"ids": (INT, ["B", 4])}, 3, t=np.ones((5, 2), np.float32)
    )
    described = built(path, "ids=1x4,2x4,8x4").manifest
    assert described.engine_inputs[0].dtype == "int64"
    for _, feeds in random_feeds(described.onnx_inputs, described.profile, 0):
        assert feeds["ids"].dtype == np.int64


def test_range_of_no_size() -> None:
    assert shape_values.parse(["s="]) == {"s": Range((), (), ())}
    assert shape_values.parse(["a=b=-1x2,0x3,5x4"]) == {"a=b": Range((-1, 2), (0, 3), (5, 4))}
