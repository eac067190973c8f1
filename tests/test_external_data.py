"""Weights in files beside the model: found, checked before anything else, and never read or written outside its folder."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, SparseTensorProto, TensorProto, helper, numpy_helper

from tests.conftest import Run, assert_clean_error
from tests.graphs import FAST, graph
from trtconvert import ConvertError, build
from trtconvert import model as onnx_model

WEIGHT = np.arange(8, dtype=np.float32).reshape(2, 4)
ONE = WEIGHT.tobytes()


def external(location: str | None, offset: str = "0", length: str | None = "32", name: str = "w") -> TensorProto:
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=WEIGHT.shape, data_location=TensorProto.EXTERNAL)
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        if value is not None:
            tensor.external_data.add(key=key, value=value)
    return tensor


def holding(tensor: TensorProto, place: str) -> ModelProto:
    """y = x + w, with w in a place of that kind."""
    constant = helper.make_node("Constant", [], ["w"], value=tensor)
    if place == "initializer":
        model = graph("y = Add (x, w)", weights="float u = {1}")
        model.graph.initializer[0].CopyFrom(tensor)
    elif place == "constant":
        model = graph("y = Add (x, w)")
        nodes = [constant, *model.graph.node]
        del model.graph.node[:]
        model.graph.node.extend(nodes)
    elif place == "function":
        model = graph("y = acme.Shifted (x)")
        add = helper.make_node("Add", ["a", "w"], ["b"])
        opsets = [helper.make_opsetid("", 17)]
        model.functions.append(helper.make_function("acme", "Shifted", ["a"], ["b"], [constant, add], opsets))
    elif place == "sparse":
        model = graph("y = Add (x, w)")
        flat = TensorProto()
        flat.CopyFrom(tensor)
        del flat.dims[:]
        flat.dims.append(8)
        indices = numpy_helper.from_array(np.arange(8, dtype=np.int64))
        model.graph.sparse_initializer.append(SparseTensorProto(values=flat, indices=indices, dims=[2, 4]))
    else:
        branches = """y = If (c) <then_branch = t () => (float[2,4] a) <float u = {1}> { a = Add (x, w) },
            else_branch = e () => (float[2,4] b) { b = Add (x, x) }>"""
        model = graph(branches, "bool c, float[2,4] x")
        model.graph.node[0].attribute[0].g.initializer[0].CopyFrom(tensor)
    return model


PLACES = ["initializer", "constant", "function", "sparse", "branch"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The model's folder; what must not be read lies above it."""
    (tmp_path / "secret").write_bytes(ONE)
    inside = tmp_path / "models"
    inside.mkdir()
    return inside


def save(tensor: TensorProto, folder: Path, place: str = "initializer") -> Path:
    path = folder / "m.onnx"
    path.write_bytes(holding(tensor, place).SerializeToString())
    return path


@pytest.mark.parametrize("place", [p for p in PLACES if p != "sparse"])
def test_data_beside_the_model(place: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever the tensor is held, and whatever the current folder is."""
    (folder / "w.data").write_bytes(b"\0" * 64 + ONE)
    monkeypatch.chdir("/")
    assert build(save(external("w.data", "64"), folder, place), options=FAST).plan.is_file()


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    "location", ["../secret", "sub/../../secret", "link", "door/secret", "/etc/passwd", "/dev/zero"]
)
def test_data_outside(place: str, location: str, folder: Path) -> None:
    (folder / "sub").mkdir()
    (folder / "link").symlink_to("../secret")
    (folder / "door").symlink_to("..")
    with pytest.raises(ConvertError, match="outside the model's folder") as caught:
        build(save(external(location), folder, place), options=FAST)
    assert "'w'" in str(caught.value)
    assert location in str(caught.value)


@pytest.mark.parametrize("place", PLACES)
def test_data_that_is_not_there(place: str, folder: Path) -> None:
    """As after a model was moved without it."""
    with pytest.raises(ConvertError, match=r"'w\.data', which is missing"):
        build(save(external("w.data"), folder, place), options=FAST)


@pytest.mark.parametrize(
    ("tensor", "size", "words"),
    [
        (external("w.data"), 20, "cut short: tensor 'w' needs 32 bytes, the file has 20"),
        (external("w.data"), 0, "cut short"),
        (external("w.data", "8"), 32, "needs 40 bytes"),
        (external("w.data", str(2**62)), 32, "cut short"),
        (external("w.data", "0", "8"), 32, "has 8 bytes in 'w.data', its type and shape take 32"),
        (external("w.data", "-4"), 32, "malformed reference"),
        (external("w.data", "abc"), 32, "malformed reference"),
        (external(None), 32, "missing"),
        (external("."), 32, "missing"),
    ],
)
def test_damaged(tensor: TensorProto, size: int, words: str, folder: Path) -> None:
    (folder / "w.data").write_bytes(bytes(size))
    with pytest.raises(ConvertError) as caught:
        build(save(tensor, folder), options=FAST)
    assert words in str(caught.value)
    assert "'w'" in str(caught.value)


def test_command_line(folder: Path, run: Run) -> None:
    path = save(external("../secret"), folder)
    for command in ("build", "fuse", "inspect"):
        assert_clean_error(run(command, path), "outside the model's folder", "'../secret'")
    assert sorted(p.name for p in folder.iterdir()) == ["m.onnx"]


def test_two_tensors_in_one_file(folder: Path, tmp_path: Path) -> None:
    """Read at their offsets; copied with fresh ones, of the model's folder, when the model is written elsewhere."""
    (folder / "w.data").write_bytes(ONE + b"\0" * 32 + (WEIGHT + 1).tobytes())
    model = graph("a = Add (x, w) y = Mul (a, v)")
    model.graph.initializer.extend([external("w.data"), external("w.data", "64", name="v")])
    (folder / "m.onnx").write_bytes(model.SerializeToString())
    build(folder / "m.onnx", options=FAST)
    other = tmp_path / "elsewhere"
    other.mkdir()
    os.symlink(tmp_path / "secret", other / "m.onnx.data")
    loaded = onnx_model.load(folder / "m.onnx")
    onnx_model.save(loaded, other / "m.onnx", folder / "m.onnx")
    assert (tmp_path / "secret").read_bytes() == ONE  # the link is replaced, not followed
    assert not (other / "m.onnx.data").is_symlink()
    again = onnx.load(other / "m.onnx")
    values = {t.name: numpy_helper.to_array(t) for t in again.graph.initializer}
    assert np.array_equal(values["w"], WEIGHT)
    assert np.array_equal(values["v"], WEIGHT + 1)
