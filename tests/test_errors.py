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

from tests.conftest import SAMPLES, Run, assert_clean_error
from trtconvert import ConvertError, backend, build, files
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
    for words in (
        "node first (acme::FusedRelux)",
        "node second (acme::Mystery)",
        "nearest registered: FusedRelu version 1",
        "--plugin",
    ):
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
    assert "float32 is declared" in fails("build", node(alpha="0.5"))
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
    assert "there are 'z'" in fails("verify", plan, "--inputs", "in.npz")
    (tmp_path / "bad.npz").write_text("no archive")
    assert "not an .npz file" in fails("verify", plan, "--inputs", "bad.npz")
    original = plan.read_bytes()
    plan.write_bytes(original[:-1])
    assert "the plan is cut off" in fails("verify", plan)
    plan.write_bytes(original[:-1] + b"?")
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
    manifest.write_text(re.sub(r'"schema": \d+', '"schema": 99', text))
    assert "schema 99" in fails("verify", plan)
    manifest.write_text(text[:-40])
    assert "manifest cannot be read" in fails("verify", plan)
    manifest.unlink()
    assert "no manifest" in fails("verify", plan)


# --- the same through the real command line, in a process of its own ----------------------------------------------

INT_OP = (
    "from trtconvert import Op, case\n"
    "class ModeOp(Op):\n"
    "    mode: int = 0\n"
    "    source = ''\n"
    "    cases = (case((2, 2)),)\n"
    "    def output(self, x): return x\n"
)


def external(path: Path, location: str, offset: str = "0") -> None:
    """y = x + w, with w kept in another file."""
    weight = numpy_helper.from_array(np.ones((2, 4), np.float32), "w")
    onnx.external_data_helper.set_external_data(weight, location, 0, 32)
    weight.ClearField("raw_data")
    for entry in weight.external_data:
        if entry.key == "offset":
            entry.value = offset
    save(path, [helper.make_node("Add", ["x", "w"], ["y"])], weights=[weight])


def custom(path: Path, *ops: str, domain: str = "acme", **attributes: Any) -> None:
    """A chain of nodes node_0, node_1, ... of these ops."""
    names = ["x", *(f"t{i}" for i in range(len(ops) - 1)), "y"]
    nodes = [
        helper.make_node(op, [names[i]], [names[i + 1]], name=f"node_{i}", domain=domain, **attributes)
        for i, op in enumerate(ops)
    ]
    save(path, nodes)


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A folder with everything that can be wrong, each under its own name."""
    folder = tmp_path / "work"
    folder.mkdir()
    relu = [helper.make_node("Relu", ["x"], ["y"], name="r")]
    save(folder / "relu.onnx", relu)
    save(folder / "dynamic.onnx", relu, ("N", 4))
    (folder / "folder.onnx").mkdir()
    for name in ("text.onnx", "text.json", "text.onnxtxt", "text.textproto"):
        (folder / name).write_text("This is not a model.\n" * 20)
    (folder / "empty.onnx").write_bytes(b"")
    data = (SAMPLES / "sam_upscaler.onnx").read_bytes()
    (folder / "cut.onnx").write_bytes(data[: len(data) // 2])
    external(folder / "lost.onnx", "lost.data")
    external(folder / "outside.onnx", "../w")
    external(folder / "short.onnx", "short.data")
    external(folder / "offset.onnx", "w.data", offset="abc")
    for name, size in (("../w", 32), ("short.data", 31), ("w.data", 32)):
        (folder / name).write_bytes(bytes(size))
    custom(folder / "custom.onnx", "FusedRelux", "Mystery")
    custom(folder / "foo.onnx", "Foo", domain="")
    custom(folder / "alfa.onnx", "FusedRelu", alfa=0.5)
    custom(folder / "typed.onnx", "FusedRelu", alpha="1")
    custom(folder / "wide.onnx", "ModeOp", mode=2**31)
    (folder / "mode.py").write_text(INT_OP)
    (folder / "raises.py").write_text("x = 1\n\nraise RuntimeError('no such device')\n")
    (folder / "lines.py").write_text("raise RuntimeError('one\\ntwo\\nthree\\nfour\\nfive')\n")
    (folder / "exits.py").write_text("import sys\n\nsys.exit(0)\n")
    (folder / "no_op.py").write_text("x = 1\n")
    (folder / "twice.py").write_text("from trtconvert import Op\nclass FusedRelu(Op):\n    pass\n")
    (folder / "taken.plan.json").mkdir()
    return folder


REFUSED = [
    ("build none.onnx", ["model file not found", "none.onnx"]),
    ("build folder.onnx", ["not a file", "folder.onnx"]),
    ("build text.onnx", ["not an ONNX model", "text.onnx"]),
    ("build text.json", ["not an ONNX model", "text.json"]),
    ("build text.onnxtxt", ["not an ONNX model", "text.onnxtxt"]),
    ("build text.textproto", ["not an ONNX model", "text.textproto"]),
    ("build empty.onnx", ["0 bytes", "empty.onnx"]),
    ("build cut.onnx", ["cut short", "cut.onnx"]),
    ("build lost.onnx", ["'w'", "'lost.data'", "missing"]),
    ("build outside.onnx", ["'w'", "'../w'", "outside the model's folder"]),
    ("build short.onnx", ["'w'", "'short.data'", "cut short", "32 bytes", "31"]),
    ("build offset.onnx", ["'w'"]),
    (
        "build custom.onnx",
        ["node_0 (acme::FusedRelux)", "node_1 (acme::Mystery)", "nearest registered: FusedRelu version 1"],
    ),
    ("build foo.onnx", ["Foo", "node_0"]),
    ("build alfa.onnx", ["'alfa'", "rename it to 'alpha'", "node_0"]),
    ("build typed.onnx", ["'alpha'", "float32 is declared", "node_0"]),
    ("build wide.onnx --plugin mode.py", ["'mode'", "2147483648", "32 bits", "node_0"]),
    ("build dynamic.onnx --shape xx=1x4", ["'xx'", "did you mean 'x'?"]),
    ("build dynamic.onnx --shape x=4x4,2x4,8x4", ["min 4 > opt 2"]),
    (f"build dynamic.onnx --shape x=1x4,1x4,{2**63}x4", ["x", str(2**63)]),
    ("build relu.onnx --pattern layernom-gelu", ["unknown pattern 'layernom-gelu'", "layernorm-gelu"]),
    ("build relu.onnx --target sm_12", ["unknown target 'sm_12'", "sm_120"]),
    ("build relu.onnx -o none/out.plan", ["output folder does not exist", "none"]),
    ("build relu.onnx -o /proc/1/out.plan", ["cannot write", "/proc/1/out.plan"]),
    ("build relu.onnx -o taken.plan", ["taken.plan.json"]),
    ("build relu.onnx -o relu.onnx", ["relu.onnx"]),
    ("build relu.onnx --plugin none.py", ["plugin file not found", "none.py"]),
    ("build relu.onnx --plugin raises.py", ["RuntimeError: no such device", "line 3", "raises.py"]),
    ("build relu.onnx --plugin lines.py", ["RuntimeError: one", "lines.py"]),
    ("build relu.onnx --plugin exits.py", ["exits.py", "line 3"]),
    ("build relu.onnx --plugin no_op.py", ["defines no Op", "no_op.py"]),
    ("build relu.onnx --plugin twice.py", ["two ops have the name FusedRelu", "twice.py", "fused_relu.py"]),
    ("build relu.onnx --backend rtx --timing-cache t.cache", ["has no --timing-cache"]),
    ("verify none.plan", ["plan not found", "none.plan"]),
]


@pytest.mark.parametrize(("line", "words"), REFUSED, ids=[line for line, _ in REFUSED])
def test_command_line(line: str, words: list[str], run: Run, work: Path) -> None:
    before = state(work.parent)
    result = run(*line.split(), cwd=work)
    assert_clean_error(result, *words)
    assert state(work.parent) == before


def test_wrong_usage(run: Run, work: Path) -> None:
    before = state(work)
    result = run("build", "relu.onnx", "--no-such-option", cwd=work)
    assert result.returncode == 2
    assert "--no-such-option" in result.stderr
    assert "Traceback" not in result.stderr
    assert state(work) == before


def test_printed_shape_pasted_on_the_command_line(run: Run, work: Path) -> None:
    save(work / "two.onnx", [helper.make_node("Relu", ["x"], ["y"])], ("N", "L", 4))
    before = state(work)
    refused = run("build", "two.onnx", cwd=work)
    assert_clean_error(refused, "x [N, L, 4]")
    assert state(work) == before
    flags = re.findall(r"--shape \S+", refused.stderr)
    assert len(flags) == 1
    built = run("build", "two.onnx", *flags[0].split(), cwd=work)
    assert built.returncode == 0, built.stderr
    assert state(work).keys() - before.keys() == {work / "two.plan", work / "two.plan.json"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("manifest", ["no manifest", "relu.plan.json"]),
        ("plan", ["not the one its manifest describes", "relu.plan"]),
        ("model", ["source model has changed", "relu.onnx"]),
        ("inputs", ["there are 'z'", "input 'x'", "in.npz"]),
    ],
)
def test_verify_command_line(change: str, words: list[str], run: Run, work: Path) -> None:
    plan = build(work / "relu.onnx").plan
    np.savez(work / "in.npz", z=np.zeros((2, 4), np.float32))
    if change == "manifest":
        (work / "relu.plan.json").unlink()
    elif change == "plan":
        data = bytearray(plan.read_bytes())
        data[len(data) // 2] ^= 1  # as long as before
        plan.write_bytes(data)
    elif change == "model":
        save(work / "relu.onnx", [helper.make_node("Sigmoid", ["x"], ["y"])])
    before = state(work)
    options = ["--inputs", "in.npz"] if change == "inputs" else []
    assert_clean_error(run("verify", plan, *options, cwd=work), *words)
    assert state(work) == before


def test_backend_not_installed(run: Run, work: Path) -> None:
    if backend.installed("tensorrt"):
        pytest.skip("it is installed here")
    before = state(work)
    assert_clean_error(run("build", "relu.onnx", "--backend", "tensorrt", cwd=work), "not installed", "pip install")
    assert state(work) == before


def damaged(path: Path) -> None:
    """One byte of the array's data differs from what the archive's checksum says."""
    data = bytearray(path.read_bytes())
    data[data.find(b"NUMPY") + 140] ^= 255
    path.write_bytes(data)


def test_verify_inputs(fails: Fails, relu: Path, tmp_path: Path) -> None:
    build(relu)
    data = tmp_path / "in.npz"
    np.savez(data)
    text = fails("verify", "relu.plan", "--inputs", data)
    assert "input 'x'" in text
    assert "in.npz" in text
    np.savez(data, x=np.zeros((3, 5), np.float32))
    assert "x" in fails("verify", "relu.plan", "--inputs", data)
    np.savez(data, x=np.array([{}], object))
    assert "not an .npz file" in fails("verify", "relu.plan", "--inputs", data)
    np.save(tmp_path / "one.npy", np.zeros((2, 4), np.float32))
    assert "not an .npz file" in fails("verify", "relu.plan", "--inputs", "one.npy")
    assert "not found" in fails("verify", "relu.plan", "--inputs", "none.npz")


@pytest.mark.parametrize("kind", ["cut", "damaged"])
def test_verify_inputs_from_a_broken_archive(kind: str, fails: Fails, relu: Path, tmp_path: Path) -> None:
    build(relu)
    data = tmp_path / "in.npz"
    np.savez(data, x=np.zeros((2, 4), np.float32))
    if kind == "cut":
        data.write_bytes(data.read_bytes()[:-30])
    else:
        damaged(data)
    assert "in.npz" in fails("verify", "relu.plan", "--inputs", data)


@pytest.mark.parametrize("step", ["write", "fdopen", "fsync", "replace"])
def test_failed_write_leaves_nothing(step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever the disk runs full: the old content stays, no temporary file does."""
    path = tmp_path / "engine.plan"
    path.write_bytes(b"old")

    def full(*_args: object, **_kwargs: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if step == "write":
        real = os.fdopen

        def fdopen(*args: Any, **kwargs: Any) -> Any:
            file = real(*args, **kwargs)
            with open("/dev/full", "wb") as full_disk:
                os.dup2(full_disk.fileno(), file.fileno())
            return file

        monkeypatch.setattr(files.os, "fdopen", fdopen)
    else:
        monkeypatch.setattr(files.os, step, full)
    with pytest.raises(ConvertError, match="No space left on device") as caught:
        files.write_file(path, b"new" * 100000)
    monkeypatch.undo()
    assert "engine.plan" in str(caught.value)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("failing", [1, 2])
def test_full_disk_during_a_build(failing: int, relu: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plan and manifest belong together: whichever cannot be written, the old pair stays."""
    build(relu)
    save(relu, [helper.make_node("Sigmoid", ["x"], ["y"])])
    before = {p: p.read_bytes() for p in tmp_path.iterdir()}
    calls: list[int] = []
    real = os.fsync

    def full(handle: int) -> None:
        calls.append(handle)
        if len(calls) == failing:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(handle)

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(ConvertError, match="No space"):
        build(relu)
    after = {p: p.read_bytes() for p in tmp_path.iterdir()}
    assert sorted(p.name for p in after if after[p] != before.get(p)) == []
    assert after.keys() == before.keys()


def test_a_path_that_is_not_utf_8(run: Run, tmp_path: Path) -> None:
    """TensorRT's parser takes the model's path, and only as UTF-8."""
    path = os.fsdecode(os.fsencode(tmp_path) + b"/m\xff.onnx")
    Path(path).write_bytes((SAMPLES / "tanh_gelu.onnx").read_bytes())
    assert_clean_error(run("build", path), "path is not UTF-8", "rename the file or its folder")
