"""Bad input: one to four lines that say what, where and how to fix it, exit code 1, and nothing half-written."""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.conftest import SAMPLES
from trtconvert import ConvertError, files
from trtconvert.cli import main

Fails = Callable[..., str]


def state(folder: Path) -> dict[Path, int]:
    """Files and when they were last written, Python's own caches aside."""
    return {p: p.stat().st_mtime_ns for p in folder.rglob("*") if p.is_file() and "__pycache__" not in p.parts}


@pytest.fixture
def fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Fails:
    """Run a command that must fail cleanly and leave the folder as it was; returns what it said."""

    def command(*args: object, code: int = 1) -> str:
        before = state(tmp_path)
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["trtconvert", *map(str, args)])
        with pytest.raises(SystemExit) as stop:
            main()
        assert stop.value.code == code
        text = capsys.readouterr().err
        if code == 1:
            lines = text.strip().splitlines()
            assert lines[0].startswith("error: ")
            assert 1 <= len(lines) <= 4, text
            assert "Traceback" not in text
        assert state(tmp_path) == before
        return text

    return command


def save(
    path: Path, nodes: list[Any], shape: Any = (2, 4), weights: Any = (), inputs: tuple[str, ...] = ("x",)
) -> Path:
    """A model x -> y of these nodes."""
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n in (*inputs, "y")]
    graph = helper.make_graph(nodes, "g", values[:-1], values[-1:], list(weights))
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("acme", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


@pytest.fixture
def relu(tmp_path: Path) -> Path:
    return save(tmp_path / "relu.onnx", [helper.make_node("Relu", ["x"], ["y"], name="r")])


@pytest.mark.parametrize("command", ["build", "fuse", "inspect"])
def test_file_is_missing_or_no_model(command: str, fails: Fails, tmp_path: Path) -> None:
    assert "not found" in fails(command, "none.onnx")
    (tmp_path / "folder.onnx").mkdir()
    assert "not a file" in fails(command, "folder.onnx")
    (tmp_path / "empty.onnx").write_bytes(b"")
    assert "0 bytes" in fails(command, "empty.onnx")
    (tmp_path / "text.onnx").write_text("This is not a model.\n" * 20)
    assert "not an ONNX model" in fails(command, "text.onnx")
    data = (SAMPLES / "sam_upscaler.onnx").read_bytes()
    (tmp_path / "cut.onnx").write_bytes(data[: len(data) // 2])
    assert "cut short" in fails(command, "cut.onnx")


@pytest.mark.parametrize(
    ("location", "size", "words"),
    [("w.data", None, "missing"), ("../w.data", 64, "outside the model's folder"), ("w.data", 8, "cut short")],
)
def test_external_data(location: str, size: int | None, words: str, fails: Fails, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    weight = numpy_helper.from_array(np.ones((2, 4), np.float32), "w")
    onnx.external_data_helper.set_external_data(weight, location, 0, 32)
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    model = save(folder / "m.onnx", [helper.make_node("Add", ["x", "w"], ["y"])], weights=[weight])
    if size is not None:
        (folder / location).write_bytes(bytes(size))
    for command in ("build", "fuse"):
        text = fails(command, model)
        assert words in text
        assert "'w'" in text


def test_every_unknown_op_is_named(fails: Fails, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("FusedRelux", ["x"], ["a"], domain="acme", name="first"),
        helper.make_node("Mystery", ["a"], ["b"], domain="acme", name="second"),
        helper.make_node("FusedRelu", ["b"], ["y"], domain="acme", name="third", alpha=0.0),
    ]
    text = fails("build", save(tmp_path / "m.onnx", nodes))
    for words in ("acme::FusedRelux (first)", "acme::Mystery (second)", "nearest registered op: FusedRelu", "--plugin"):
        assert words in text
    assert "third" not in text
    text = fails("build", save(tmp_path / "m.onnx", [helper.make_node("Foo", ["x"], ["y"], name="foo_1")]))
    assert "Foo" in text
    nodes = [helper.make_node("Relu", ["x"], ["y"], domain="acme", name="n")]
    assert "also a standard ONNX op" in fails("build", save(tmp_path / "m.onnx", nodes))


def test_node_that_tensorrt_cannot_import(fails: Fails, tmp_path: Path) -> None:
    """Det is standard ONNX without an importer; node and op are named."""
    value = [helper.make_tensor_value_info("x", 1, [2, 3, 3]), helper.make_tensor_value_info("y", 1, [2])]
    graph = helper.make_graph([helper.make_node("Det", ["x"], ["y"], name="det_7")], "g", value[:1], value[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "d.onnx")
    text = fails("build", "d.onnx")
    assert "det_7" in text
    assert "Det" in text


def test_attributes_of_a_plugin_node(fails: Fails, tmp_path: Path) -> None:
    def node(**attributes: Any) -> Path:
        return save(
            tmp_path / "m.onnx", [helper.make_node("FusedRelu", ["x"], ["y"], domain="acme", name="n", **attributes)]
        )

    text = fails("build", node(alfa=0.5))
    assert "'alfa'" in text
    assert "'alpha'" in text
    assert "node n" in text
    assert "declares float" in fails("build", node(alpha=1))
    plugin = tmp_path / "mode.py"
    plugin.write_text(
        "from trtconvert import Op, case\n"
        "class ModeOp(Op):\n"
        "    mode: int = 0\n"
        "    source = ''\n"
        "    cases = (case((2, 2)),)\n"
        "    def output(self, x): return x\n"
    )
    model = save(
        tmp_path / "m.onnx", [helper.make_node("ModeOp", ["x"], ["y"], domain="acme", name="n", mode=2**40 + 7)]
    )
    assert "32 bits" in fails("build", model, "--plugin", plugin)


@pytest.mark.parametrize(
    ("flag", "words"),
    [
        ("xx=2x4", "names 'xx', which is no input"),
        ("x=4x4,2x4,8x4", "min 4 > opt 2 on axis 0"),
        ("x=1x4,9x4,8x4", "opt 9 > max 8 on axis 0"),
        ("x=4", "min has 1 dimensions, the input has 2: [N, 4]"),
        ("x=2x5", "has 5 on axis 1, the model fixes it to 4"),
        ("x=2y4", "cannot read --shape"),
        ("x=1x4,2x4", "cannot read --shape"),
    ],
)
def test_shapes(flag: str, words: str, fails: Fails, tmp_path: Path) -> None:
    model = save(tmp_path / "m.onnx", [helper.make_node("Relu", ["x"], ["y"])], shape=("N", 4))
    assert words in fails("build", model, "--shape", flag)


def test_printed_shape_can_be_pasted(fails: Fails, tmp_path: Path) -> None:
    model = save(tmp_path / "m.onnx", [helper.make_node("Relu", ["x"], ["y"])], shape=("N", "L", 4))
    text = fails("build", model)
    assert "x [N, L, 4]" in text
    flag = re.search(r"--shape (\S+)", text)
    assert flag is not None
    sys.argv = ["trtconvert", "build", str(model), "--shape", flag[1]]
    main()
    assert (tmp_path / "m.plan").exists()


def test_equal_names_get_equal_sizes(fails: Fails, tmp_path: Path) -> None:
    nodes = [helper.make_node("Add", ["x", "z"], ["y"])]
    model = save(tmp_path / "m.onnx", nodes, shape=("N", 4), inputs=("x", "z"))
    text = fails("build", model, "--shape", "x=1x4,2x4,8x4", "--shape", "z=1x4,3x4,8x4")
    assert "share the dimension 'N'" in text


def test_names_that_do_not_exist(fails: Fails, relu: Path) -> None:
    assert "unknown pattern 'nope'" in fails("build", relu, "--pattern", "nope")
    assert "unknown target 'sm_12'" in fails("build", relu, "--target", "sm_12")
    assert "no op named 'Nope'" in fails("plugins", "check", "Nope")
    fails("build", relu, "--nope", code=2)
    fails("build", relu, "--backend", "nope", code=2)
    fails("nope", code=2)


@pytest.mark.parametrize("flag", ["--version-compatible", "--hardware-compatible", "--timing-cache=t.cache"])
def test_option_that_the_backend_lacks(flag: str, fails: Fails, relu: Path) -> None:
    text = fails("build", relu, "--backend", "rtx", flag)
    assert f"has no {flag.split('=')[0]}" in text


def test_backend_that_is_not_installed(fails: Fails, relu: Path) -> None:
    """Type stubs alone do not count as the package."""
    text = fails("build", relu, "--backend", "tensorrt")
    assert "tensorrt is not installed" in text
    assert "pip install" in text


def test_output_that_cannot_be_written(fails: Fails, relu: Path) -> None:
    for command in ("build", "fuse"):
        assert "does not exist" in fails(command, relu, "-o", "none/out")
        assert "cannot write" in fails(command, relu, "-o", "/proc/1/out")


def test_full_disk_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "engine.plan"
    path.write_bytes(b"old")

    def full(_handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(ConvertError, match="No space left on device"):
        files.write_file(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_plugin_files(fails: Fails, relu: Path, tmp_path: Path) -> None:
    assert "plugin file not found" in fails("build", relu, "--plugin", "none.py")
    (tmp_path / "raises.py").write_text("x = 1\nraise RuntimeError('no such device')\n")
    text = fails("build", relu, "--plugin", "raises.py")
    assert "RuntimeError: no such device" in text
    assert "line 2" in text
    (tmp_path / "syntax.py").write_text("def f(:\n")
    assert "SyntaxError" in fails("build", relu, "--plugin", "syntax.py")
    (tmp_path / "none.py").write_text("x = 1\n")
    assert "defines no Op" in fails("build", relu, "--plugin", "none.py")
    (tmp_path / "twice.py").write_text(
        "from trtconvert import Op\nclass FusedRelu(Op):\n    def output(self, x): return x\n"
    )
    text = fails("build", relu, "--plugin", "twice.py")
    assert "two ops have the name FusedRelu" in text
    assert "twice.py" in text
    assert "fused_relu.py" in text
    (tmp_path / "typed.py").write_text("from trtconvert import Op\nclass BadOp(Op):\n    sizes: list = []\n")
    assert "BadOp.sizes" in fails("build", relu, "--plugin", "typed.py")


def test_verify(fails: Fails, relu: Path, tmp_path: Path) -> None:
    sys.argv = ["trtconvert", "build", str(relu)]
    main()
    plan = tmp_path / "relu.plan"
    assert "plan not found" in fails("verify", "none.plan")
    np.savez(tmp_path / "in.npz", z=np.zeros((2, 4), np.float32))
    assert "['z']" in fails("verify", plan, "--inputs", "in.npz")
    (tmp_path / "bad.npz").write_text("no archive")
    assert "not an .npz file" in fails("verify", plan, "--inputs", "bad.npz")
    original = plan.read_bytes()
    plan.write_bytes(original[:-1])
    assert "not the one its manifest describes" in fails("verify", plan)
    assert "not the one its manifest describes" in fails("inspect", plan)
    plan.write_bytes(original)
    model = relu.read_bytes()
    save(relu, [helper.make_node("Sigmoid", ["x"], ["y"])])
    assert "has changed since the plan was built" in fails("verify", plan)
    relu.unlink()
    assert "model file not found" in fails("verify", plan)
    relu.write_bytes(model)
    manifest = tmp_path / "relu.plan.json"
    text = manifest.read_text()
    manifest.write_text(text.replace('"schema": 1', '"schema": 99'))
    assert "schema 99" in fails("verify", plan)
    manifest.write_text(text[:-40])
    assert "manifest cannot be read" in fails("verify", plan)
    manifest.unlink()
    assert "no manifest" in fails("verify", plan)
