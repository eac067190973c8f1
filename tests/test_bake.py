"""Inputs turned into constants: what --bake takes, what it refuses, and that verify repeats it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, helper, numpy_helper

from tests.conftest import Run, assert_clean_error
from trtconvert import BuildOptions, ConvertError, build, gpu, verify
from trtconvert.profiles.bake import bake, decode, encode, parse
from trtconvert.profiles.shape_values import parse as parse_values


def one_input(elem_type: int, shape: Sequence[int | str | None] | None, ir_version: int = 8) -> ModelProto:
    """s -> y by Identity."""
    inputs = [helper.make_tensor_value_info("s", elem_type, shape)]
    outputs = [helper.make_tensor_value_info("y", elem_type, shape)]
    graph = helper.make_graph([helper.make_node("Identity", ["s"], ["y"])], "g", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=ir_version)


def reshape(path: Path, ir_version: int = 8) -> Path:
    """y = Reshape(x[N, 4], s int64 [2])."""
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4]),
        helper.make_tensor_value_info("s", TensorProto.INT64, [2]),
    ]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, None])]
    graph = helper.make_graph([helper.make_node("Reshape", ["x", "s"], ["y"])], "g", inputs, outputs)
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=ir_version), path)
    return path


def baked(model: ModelProto, value: Any) -> np.ndarray[Any, Any]:
    """The constant that s becomes."""
    return numpy_helper.to_array(bake(model, {"s": value})["s"])


@pytest.mark.parametrize(
    ("elem_type", "shape", "text", "expected"),
    [
        (TensorProto.INT64, [], "5", np.int64(5)),
        (TensorProto.INT64, [1], "5", [5]),
        (TensorProto.INT64, [1, "N"], "5", [[5]]),
        (TensorProto.INT64, [3], "1,-2,3", [1, -2, 3]),
        (TensorProto.INT64, [3], " [1, -2, 3] ", [1, -2, 3]),
        (TensorProto.INT64, [1], str(2**63 - 1), [2**63 - 1]),
        (TensorProto.UINT64, [2], f"1,{2**64 - 1}", [1, 2**64 - 1]),
        (TensorProto.INT32, ["N", 2], "[[1,2],[3,4]]", [[1, 2], [3, 4]]),
        (TensorProto.INT64, [0], "[]", np.zeros(0)),
        (TensorProto.FLOAT, [2], "1,2.5e-1", [1, 0.25]),
        (TensorProto.FLOAT, [2], "nan,-inf", [np.nan, -np.inf]),
        (TensorProto.FLOAT16, None, "[[0.5]]", [[0.5]]),
        (TensorProto.BFLOAT16, [2], "1,2", [1, 2]),
        (TensorProto.BOOL, [4], "true,False,1,0", [True, False, True, False]),
        (TensorProto.INT4, [2], "-8,7", [-8, 7]),
    ],
)
def test_text(elem_type: int, shape: Sequence[int | str | None] | None, text: str, expected: Any) -> None:
    got = baked(one_input(elem_type, shape), text)
    assert got.dtype == helper.tensor_dtype_to_np_dtype(elem_type)
    assert np.shape(expected) == got.shape
    wide = np.uint64 if elem_type == TensorProto.UINT64 else np.float64
    assert np.array_equal(got.astype(wide), np.asarray(expected, wide), equal_nan=wide is np.float64)


@pytest.mark.parametrize(
    ("elem_type", "shape", "value", "words"),
    [
        (TensorProto.INT64, [2], "1.5,2", "'1.5' is no int64"),
        (TensorProto.INT64, [2], "1,", "'' is no int64"),
        (TensorProto.INT64, [1], str(2**63), f"'{2**63}' is no int64"),
        (TensorProto.UINT8, [1], "-1", "'-1' is no uint8"),
        (TensorProto.INT4, [1], "8", "'8' is no int4"),
        (TensorProto.INT64, [1], [1.5], "1.5 is no int64"),
        (TensorProto.FLOAT16, [1], "1e6", "'1e6' is no float16"),
        (TensorProto.BOOL, [1], "2", "'2' is no bool"),
        (TensorProto.FLOAT, [1], "one", "'one' is no float32"),
        (TensorProto.INT64, [2], "1,2,3", r"expected shape \[2\], got \[3\]"),
        (TensorProto.INT64, ["N", 2], "1,2", r"expected shape \[N, 2\], got \[2\]"),
        (TensorProto.INT64, ["N", "N"], "[[1,2]]", r"expected shape \[N, N\], got \[1, 2\]"),
        (TensorProto.INT64, [2], "[1,2", r"cannot read '\[1,2'"),
        (TensorProto.INT64, [2], "[[1,2],[3]]", "cannot read"),
        (TensorProto.INT64, [2], np.zeros(2, np.int32), "expected int64, got int32"),
        (TensorProto.INT64, [2], np.zeros(2), "expected int64, got float64"),
        (TensorProto.INT64, [2], "@none.npy", "file not found\n  at: none.npy"),
        (TensorProto.INT64, [2], "@none.txt", "not a .npy or .pb file"),
    ],
)
def test_refused(elem_type: int, shape: Sequence[int | str | None], value: Any, words: str) -> None:
    model = one_input(elem_type, shape)
    before = model.SerializeToString()
    with pytest.raises(ConvertError, match=words):
        bake(model, {"s": value})
    assert model.SerializeToString() == before


def test_wrong_name_and_type() -> None:
    model = one_input(TensorProto.INT64, [2])
    with pytest.raises(ConvertError, match="'t', which is no input of the model"):
        bake(model, {"t": "1"})
    with pytest.raises(ConvertError, match="did you mean 's'"):
        bake(model, {"ss": "1"})
    model.graph.input[0].type.CopyFrom(helper.make_sequence_type_proto(model.graph.input[0].type))
    with pytest.raises(ConvertError, match="of type sequence"):
        bake(model, {"s": "1"})
    with pytest.raises(ConvertError, match="cannot read --bake 's'"):
        parse(["s"])


@pytest.mark.parametrize(
    "dtype",
    [
        *(np.bool_, np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64),
        *(np.float16, np.float32, np.float64, np.complex64, np.complex128),
        *(ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.int4, ml_dtypes.uint4),
    ],
)
@pytest.mark.parametrize("shape", [(), (3,), (0,), (2, 0, 3), (2, 3)])
def test_arrays_and_files(dtype: type, shape: tuple[int, ...], tmp_path: Path) -> None:
    """Every dtype as an array, in .npy and in .pb, and back from the manifest, bit for bit."""
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
    elem_type = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    np.save(
        tmp_path / "a.npy", array if dtype != ml_dtypes.float8_e5m2 else array.view("V1")
    )  # which numpy cannot read
    (tmp_path / "a.pb").write_bytes(numpy_helper.from_array(array).SerializeToString())
    for value in (
        array,
        tmp_path / "a.npy",
        f"@{tmp_path}/a.npy",
        str(tmp_path / "a.pb"),
        numpy_helper.from_array(array),
    ):
        tensors = bake(one_input(elem_type, [None] * len(shape)), {"s": value})
        got = numpy_helper.to_array(decode(json.loads(json.dumps(encode(tensors))))["s"])
        assert got.dtype == array.dtype
        assert got.shape == shape
        assert got.tobytes() == array.tobytes()


def test_strings() -> None:
    got = baked(one_input(TensorProto.STRING, [2]), "a,b")
    assert got.astype(str).tolist() == ["a", "b"]
    got = baked(one_input(TensorProto.STRING, [2]), np.array(["a", "b"]))
    assert got.astype(str).tolist() == ["a", "b"]


def test_damaged_files(tmp_path: Path) -> None:
    model = one_input(TensorProto.INT64, [2])
    for name in ("a.npy", "a.pb"):
        (tmp_path / name).write_bytes(b"\xff" * 9)
        with pytest.raises(ConvertError, match="cannot be read"):
            bake(model, {"s": tmp_path / name})
    tensor = TensorProto(data_type=TensorProto.INT64, dims=[2], data_location=TensorProto.EXTERNAL)
    (tmp_path / "a.pb").write_bytes(tensor.SerializeToString())
    with pytest.raises(ConvertError, match="the tensor's data is missing"):
        bake(model, {"s": tmp_path / "a.pb"})
    for dims in ([3], [2**40], []):
        tensor = TensorProto(data_type=TensorProto.INT64, dims=dims, raw_data=b"\0" * 16)
        (tmp_path / "a.pb").write_bytes(tensor.SerializeToString())
        with pytest.raises(ConvertError, match="does not hold together"):
            bake(model, {"s": tmp_path / "a.pb"})
    header = "{'descr': '<i8', 'fortran_order': False, 'shape': (1152921504606846975,)}".ljust(117) + "\n"
    (tmp_path / "a.npy").write_bytes(b"\x93NUMPY\x01\x00\x76\x00" + header.encode())
    with pytest.raises(ConvertError, match="cannot be read"):
        bake(model, {"s": tmp_path / "a.npy"})


@given(st.text(max_size=20))
def test_any_text(text: str) -> None:
    """A flag is read, or refused with a sentence."""
    for read in (parse, parse_values):
        with suppress(ConvertError):
            read([text])
    for elem_type in (TensorProto.INT64, TensorProto.FLOAT, TensorProto.BOOL):
        with suppress(ConvertError):
            bake(one_input(elem_type, None), {"s": text})


@pytest.mark.parametrize("ir_version", [3, 8])
def test_build_and_verify(ir_version: int, tmp_path: Path) -> None:
    """The input is gone from the engine and from what verify runs; the manifest alone says what was baked."""
    model = reshape(tmp_path / "m.onnx", ir_version)
    np.save(tmp_path / "s.npy", np.array([-1, 2]))
    built = build(model, tmp_path / "m.plan", BuildOptions(bake={"s": tmp_path / "s.npy"})).manifest
    assert [io.name for io in built.engine_inputs] == [io.name for io in built.onnx_inputs] == ["x"]
    assert built.baked["s"]["shape"] == [2]
    (tmp_path / "s.npy").unlink()
    result = verify(tmp_path / "m.plan")
    assert {row.shapes for row in result.rows} == {"1x4", "16x4"}
    assert result.passed
    assert not any("differently" in notice for notice in result.notices)


def test_an_output_that_is_the_input(tmp_path: Path) -> None:
    model = one_input(TensorProto.INT64, [2])
    model.graph.output.append(model.graph.input[0])
    model.graph.input.append(helper.make_tensor_value_info("x", TensorProto.FLOAT, [2]))
    model.graph.node.append(helper.make_node("Relu", ["x"], ["z"]))
    model.graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, [2]))
    onnx.save(model, tmp_path / "m.onnx")
    built = build(tmp_path / "m.onnx", tmp_path / "m.plan", BuildOptions(bake={"s": [3, 4]}))
    assert [io.name for io in built.manifest.engine_outputs] == ["y", "s", "z"]
    assert verify(tmp_path / "m.plan").passed


@pytest.mark.skipif(gpu.current() is not None, reason="asserts exit code 3, as on a CPU")
def test_command(run: Run, tmp_path: Path) -> None:
    model = reshape(tmp_path / "m.onnx")
    result = run("build", model, "--bake", "s=-1,2", "--shape", "x=1x4,2x4,8x4")
    assert result.returncode == 0, result.stderr
    assert run("verify", tmp_path / "m.plan").returncode == 3
    assert_clean_error(run("build", model, "--bake", "t=1,2"), "--bake names 't'", "inputs: x, s")
    assert_clean_error(run("build", model, "--bake", "s=1"), "--bake s: expected shape [2], got []")
