"""Compiled plugin libraries: each is loaded as it wants to be, or a sentence says why not, before anything is parsed."""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path

import pytest
from onnx import helper

from tests.conftest import Run, assert_clean_error
from tests.native_libraries import needs_compiler, plugin_library, shared_library
from tests.test_errors import save
from trtconvert import ConvertError, backend
from trtconvert.custom_ops import elf, libraries

FIELDS = (("eps", "float32", 1), ("mode", "int32", 1), ("sizes", "int32", 3), ("kind", "char", 1))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save(tmp_path / "m.onnx", [helper.make_node("MyGelu", ["x"], ["y"], name="g", domain="acme")])


@needs_compiler
@pytest.mark.parametrize("how", ["", "STATIC"])
def test_a_library_is_built_into_an_engine(how: str, model: Path, run: Run) -> None:
    """With getCreators, and with a creator that registers itself when the library is opened."""
    library = plugin_library(how=how)
    result = run("build", model, "-o", "m.plan", "--plugin", library)
    assert result.returncode == 0, result.stderr
    assert "registered MyGelu version 1" in result.stderr
    (plugin,) = json.loads(model.with_name("m.plan.json").read_text())["plugins"]
    assert (plugin["name"], plugin["kind"], plugin["provider"]) == ("MyGelu", "library V3ONE", library.name)
    assert plugin["nodes"] == ["g"]
    assert f"MyGelu version 1 from {library}" in run("inspect", model, "--plugin", library).stdout
    assert_clean_error(run("verify", "m.plan"), "MyGelu is a library's plugin", "node g")


@needs_compiler
def test_plugins_list_of_a_library(run: Run) -> None:
    library = plugin_library(version="3", namespace="acme", fields=FIELDS)
    (listed,) = json.loads(run("plugins", "list", library, "--json").stdout)
    assert [listed[key] for key in ("name", "version", "namespace", "interface")] == ["MyGelu", "3", "acme", "V3ONE"]
    assert [(f["name"], f["type"], f["length"]) for f in listed["fields"]] == list(FIELDS)
    text = run("plugins", "list", library).stdout
    assert "eps: float32, mode: int32, sizes: int32[3], kind: char" in text
    assert str(library) in text


@needs_compiler
def test_plugins_of_version_2_are_listed_and_refused(model: Path, run: Run) -> None:
    old = plugin_library(how="OLD")
    assert json.loads(run("plugins", "list", old, "--json").stdout)[0]["interface"] == "V1"
    assert_clean_error(run("build", model, "--plugin", old), "IPluginV2", "MyGelu version 1", "IPluginCreatorV3One")


@needs_compiler
def test_libraries_that_register_nothing(model: Path, run: Run, tmp_path: Path) -> None:
    result = run("build", model, "--plugin", plugin_library(how="EMPTY"))
    assert_clean_error(result, "its getCreators returned none")
    result = run("build", model, "--plugin", plugin_library(how="PLAIN_OLD"))
    assert_clean_error(result, "getPluginCreators only", "export getCreators")
    (tmp_path / "nothing.c").write_text("int answer = 42;\n")
    result = run("build", model, "--plugin", shared_library(tmp_path / "nothing.c"))
    assert_clean_error(result, "exports no getCreators", "REGISTER_TENSORRT_PLUGIN")


@needs_compiler
def test_two_libraries_of_the_same_plugin(model: Path, run: Run, tmp_path: Path) -> None:
    first, second = plugin_library(), tmp_path / "second.so"
    second.write_bytes(first.read_bytes())
    result = run("build", model, "--plugin", first, "--plugin", second)
    assert_clean_error(result, "MyGelu version 1 is registered already, by libplugin.so", str(second))


@needs_compiler
def test_a_library_of_a_registered_op(run: Run, model: Path) -> None:
    result = run("build", model, "--plugin", plugin_library(name="FusedRelu"))
    assert_clean_error(result, "FusedRelu version 1 is in the library and also the op FusedRelu in ", "rename")


@needs_compiler
def test_what_does_not_open(model: Path, run: Run, tmp_path: Path) -> None:
    source = tmp_path / "needs.c"
    source.write_text('extern "C" void elsewhere(); extern "C" void call() { elsewhere(); }\n')
    result = run("build", model, "--plugin", shared_library(source))
    assert_clean_error(result, "undefined symbol: elsewhere", "link the library")

    source.write_text("int value;\n")
    for name, words in {
        "libacme_math.so": ("libacme_math.so: cannot open", "it needs libacme_math.so", "LD_LIBRARY_PATH"),
        "libnvinfer.so.10": ("cannot open", "the library of TensorRT 10, and TensorRT-RTX", "build the library for"),
        "libcudart.so.12": ("cannot open", "libcudart.so.12", "CUDA runtime"),
    }.items():
        result = run("build", model, "--plugin", shared_library_needing(source, name))
        assert_clean_error(result, *words)


def shared_library_needing(source: Path, name: str) -> Path:
    """A library that names another which is not there."""
    needed = shared_library(source, f"-Wl,-soname,{name}", name=name)
    library = shared_library(source, after=("-Wl,--no-as-needed", str(needed)))
    needed.unlink()
    return library


@needs_compiler
def test_two_tensorrts_in_one_process_are_told(model: Path, run: Run, tmp_path: Path) -> None:
    source = tmp_path / "other.c"
    source.write_text("int value;\n")
    other = shared_library(source, "-Wl,-soname,libnvinfer.so.10", name="libnvinfer.so.10")
    flags = (str(Path(__file__).parent / "native" / "plugin.cpp"), "-Wl,--no-as-needed", str(other))
    library = shared_library(source, after=(*flags,))
    result = run("build", model, "--plugin", library, env={"LD_LIBRARY_PATH": str(other.parent)})
    assert result.returncode == 0, result.stderr
    assert "names libnvinfer.so.10" in result.stderr
    assert "two TensorRTs are in memory" in result.stderr


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "plugin library not found"),
        (b"this is text", "begins with b'this is text'"),
        (b"", "begins with b''"),
        (b"\x7fELF\x02\x01\x01" + bytes(9), "damaged or cut short"),
        (b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x03\x00\xb7\x00" + bytes(60), "built for aarch64 (64 bits)"),
        (b"\x7fELF\x01\x01\x01" + bytes(9) + b"\x03\x00\x03\x00" + bytes(60), "built for x86 (32 bits)"),
        (b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x02\x00\x3e\x00" + bytes(60), "not a shared library"),
    ],
)
def test_what_is_no_library(content: bytes | None, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    path = tmp_path / "plugin.so"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConvertError, match=re.escape(words)) as caught:
        libraries.load(path, backend.select("rtx"))
    assert str(path) in str(caught.value)


@needs_compiler
def test_elf_says_what_it_needs_wherever_it_is_cut(tmp_path: Path) -> None:
    data = plugin_library().read_bytes()
    assert "libc.so.6" in elf.read(plugin_library()).needed
    path = tmp_path / "cut.so"
    cut = [data[:size] for size in range(4, len(data), len(data) // 60)]
    broken = [data[:place] + b"\xff\xff\xff" + data[place + 3 :] for place in range(16, 400, 3)]
    read = 0
    for content in (*cut, *broken):
        path.write_bytes(content)
        with contextlib.suppress(ConvertError):
            elf.read(path)
            read += 1
    assert 0 < read < len(cut) + len(broken)


def test_a_text_file_is_refused_before_the_model_is_read(run: Run, tmp_path: Path) -> None:
    (tmp_path / "plugin.so").write_text("text")
    (tmp_path / "broken.onnx").write_bytes(b"\x08\x08:\x00")
    assert_clean_error(run("plugins", "list", "plugin.so"), "not a shared library")
    assert_clean_error(run("fuse", save(tmp_path / "m.onnx", []), "--plugin", "plugin.so"), "holds no Op", "build")
