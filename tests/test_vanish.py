"""A plan that does not load says why, before TensorRT gets it: every fault its own sentence, with what to do. Needs no GPU."""

from __future__ import annotations

import dataclasses
import json
import re
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import SAMPLES, Run
from tests.native_libraries import needs_compiler, plugin_library
from tests.test_custom_ops import node, save
from trtconvert import BuildOptions, ConvertError, NoUsableGpuError, backend, build, engine, gpu, load_engine, manifest
from trtconvert.backend import Log
from trtconvert.custom_ops.creators import Creator
from trtconvert.gpu import Gpu
from trtconvert.runtime import contents, faults

TARGET = "sm_86"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan with one plugin, for one GPU."""
    plan = tmp_path_factory.mktemp("vanish") / "sam.plan"
    build(SAMPLES / "sam_upscaler.onnx", plan, BuildOptions(fuse="all", targets=(TARGET,)))
    return plan


@pytest.fixture
def plan(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it with its manifest, on a machine with TensorRT-RTX and no GPU."""
    monkeypatch.setattr(gpu, "find", lambda: "no NVIDIA driver on this machine")
    monkeypatch.setattr(faults, "installed", lambda name: name == "rtx")
    return copied(built, tmp_path / "e.plan")


def copied(source: Path, target: Path) -> Path:
    for path in (lambda plan: plan, manifest.path_for):
        path(target).write_bytes(path(source).read_bytes())
    return target


def alone(plan: Path, data: bytes) -> None:
    """These bytes as the plan, without a manifest."""
    manifest.path_for(plan).unlink()
    plan.write_bytes(data)


def edited(plan: Path, **changes: Any) -> None:
    """The manifest with other values."""
    path = manifest.path_for(plan)
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def with_version(data: bytes, *parts: int, tag: bytes = contents.COMPATIBLE) -> bytes:
    return tag + data[4:24] + bytes(parts) + data[28:]


def test_the_header_says_what_the_build_knows(built: Path) -> None:
    data = built.read_bytes()
    found = contents.header(data)
    assert found == contents.Header("rtx", backend.select("rtx").version, len(data), (TARGET,))
    assert contents.launch_format(data) == 2


FAULTS: dict[str, tuple[Callable[[Path, bytes], object], str, str]] = {
    "truncated": (lambda plan, data: plan.write_bytes(data[:5000]), "cut off: 5000 bytes of", "copy the plan again"),
    "truncated, no manifest": (lambda plan, data: alone(plan, data[:-1]), "cut off: ", "copy the plan again"),
    "cut off within the header": (lambda plan, data: alone(plan, data[:40]), "no TensorRT plan.*40 bytes", "in binary"),
    "header of an unknown kind": (
        lambda plan, data: alone(plan, data[:4] + b"\1" + data[5:]),
        "header is damaged, or of a TensorRT",
        "copy the plan again",
    ),
    "empty": (lambda plan, _: alone(plan, b""), "the file is empty", "give a plan"),
    "no plan": (lambda plan, _: alone(plan, b"\x08\x0a" * 99), "no TensorRT plan: it begins with", "give a plan"),
    "another plan": (
        lambda plan, data: plan.write_bytes(data + b"?"),
        "not the one its manifest describes",
        "copy plan",
    ),
    "plan of TensorRT": (
        lambda plan, data: alone(plan, with_version(data, 10, 13, 0, 35, tag=contents.TENSORRT)),
        r"built by TensorRT 10\.13\.0\.35, and no TensorRT is installed",
        "load it where TensorRT 10.13.0.35 is",
    ),
    "version-compatible plan of TensorRT": (
        lambda plan, data: alone(plan, with_version(data, 10, 14, 1, 48)),
        r"built by TensorRT 10\.14\.1\.48, and no TensorRT",
        "load it where",
    ),
    "another version": (
        lambda plan, data: alone(plan, with_version(data, 1, 3, 0, 35)),
        r"built with TensorRT-RTX 1\.3\.0\.35, this machine has 1",
        "pip install tensorrt-rtx==1.3.0.35",
    ),
    "newer fields": (
        lambda plan, data: alone(plan, data.replace(b"trtconvert-launch 2\n", b"trtconvert-launch 7\n")),
        "launch format 7, this trtconvert reads up to 2",
        "upgrade trtconvert",
    ),
    "manifest broken": (
        lambda plan, _: manifest.path_for(plan).write_text("{"),
        "manifest cannot be read",
        "build the plan again",
    ),
    "manifest newer": (lambda plan, _: edited(plan, schema=99), "manifest has schema 99", "upgrade trtconvert"),
    "manifest: digest": (
        lambda plan, _: edited(plan, plan_sha256="0"),
        "not the one its manifest",
        "copy plan and manifest",
    ),
    "manifest: version": (
        lambda plan, _: edited(plan, backend_version="1.2.3.4"),
        r"manifest says TensorRT-RTX 1\.2\.3\.4, the plan itself says",
        "remove the manifest",
    ),
    "manifest: backend": (
        lambda plan, _: edited(plan, backend="tensorrt"),
        "manifest says TensorRT 1.*, the plan itself says TensorRT-RTX",
        "remove the manifest",
    ),
    "manifest: targets": (
        lambda plan, _: edited(plan, targets=["sm_120"]),
        "manifest says sm_120, the plan itself was built for sm_86",
        "remove the manifest",
    ),
    "manifest: plugins": (
        lambda plan, _: edited(plan, plugins=[]),
        "manifest lists the plugins none, the plan itself holds LayerNormGelu version 1",
        "remove the manifest",
    ),
    "no plan at all": (lambda plan, _: plan.unlink(), "plan not found", "check the path"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_has_its_sentence(plan: Path, fault: str) -> None:
    """Told also where there is no GPU: what is wrong with the plan comes first."""
    spoil, sentence, fix = FAULTS[fault]
    spoil(plan, plan.read_bytes())
    with pytest.raises(ConvertError) as caught:
        load_engine(plan)
    assert not isinstance(caught.value, NoUsableGpuError)
    assert re.search(sentence, caught.value.what)
    assert fix in (caught.value.fix or "")


def test_the_sentences_differ() -> None:
    """But for plans of another backend, whichever way they were built."""
    sentences = [
        sentence for name, (_, sentence, _) in FAULTS.items() if "digest" not in name and "truncated," not in name
    ]
    assert len(set(sentences)) == len(sentences)


@pytest.mark.parametrize("value", [None, "x", 5, [5], [{}], {"a": 5}])
def test_a_manifest_with_values_of_another_type(plan: Path, value: Any) -> None:
    """Whichever they are: said at once, and nothing fails on them later."""
    whole = manifest.path_for(plan).read_text()
    for name in ("backend_version", "plan_bytes", "plugin_files", "targets", "plugins", "engine_inputs"):
        edited(plan, **{name: value})
        with pytest.raises(ConvertError) as caught:
            load_engine(plan)
        assert caught.value.fix, name
        manifest.path_for(plan).write_text(whole)
    described = json.loads(whole)
    described["plugins"][0]["fields_format"] = str(value)
    edited(plan, **described)
    with pytest.raises(ConvertError, match="manifest cannot be read: plugins is of another type"):
        load_engine(plan)


def test_a_plan_that_cannot_be_read(plan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_path: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    manifest.path_for(plan).unlink()
    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(ConvertError, match="the plan cannot be read: Permission denied"):
        load_engine(plan)


def test_another_backend_than_asked_for(plan: Path) -> None:
    with pytest.raises(ConvertError, match=r"backend tensorrt was asked for, and the plan was built by TensorRT-RTX 1"):
        load_engine(plan, "tensorrt")


def test_a_whole_plan_wants_a_gpu_and_nothing_else(plan: Path) -> None:
    with pytest.raises(NoUsableGpuError, match="no NVIDIA driver"):
        load_engine(plan)
    alone(plan, plan.read_bytes())
    with pytest.raises(NoUsableGpuError, match="no NVIDIA driver"):
        load_engine(plan)


def test_a_gpu_that_the_plan_was_not_built_for(plan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "find", lambda: Gpu("NVIDIA H200", "sm_90", (13, 0)))
    with pytest.raises(NoUsableGpuError, match="built for sm_86, and this GPU is sm_90") as caught:
        load_engine(plan)
    assert "--target sm_86,sm_90" in str(caught.value.fix)


def test_a_manifest_of_a_newer_format(plan: Path) -> None:
    described = manifest.read(plan)
    newer = [dataclasses.replace(p, fields_format=8) for p in described.plugins]
    with pytest.raises(ConvertError, match="launch format 8, this trtconvert reads up to 2"):
        engine.register(plan.read_bytes(), dataclasses.replace(described, plugins=newer), plan)


# --- plugins of libraries ------------------------------------------------------------------------------------------


@needs_compiler
def test_plugins_of_libraries(tmp_path: Path, run: Run) -> None:
    """Each in a process of its own, since a registry forgets nothing: without the library, and with another of its name."""
    library = tmp_path / "libmine.so"
    library.write_bytes(plugin_library("MyGelu", "1", "acme").read_bytes())
    model = save(tmp_path / "m.onnx", node("MyGelu"))
    code = "import sys, trtconvert as t; t.build(*sys.argv[1:3], t.BuildOptions(plugins=(sys.argv[3],)))"
    subprocess.run([sys.executable, "-c", code, model, tmp_path / "m.plan", library], check=True)

    def told() -> str:
        code = (
            "import sys, trtconvert as t\ntry: t.load_engine(sys.argv[1])\nexcept t.ConvertError as error: print(error)"
        )
        result = subprocess.run([sys.executable, "-c", code, tmp_path / "m.plan"], capture_output=True, text=True)
        assert (result.returncode, result.stderr) == (0, "")
        return result.stdout

    def needs() -> list[str]:
        lines = run("inspect", tmp_path / "m.plan", "--runtime").stdout.splitlines()
        return [" ".join(line.split()) for line in lines if line.startswith(("library", "plugin"))]

    assert "plugin" not in told()  # but for a GPU all is there
    plugin = "plugin MyGelu version 1 in namespace acme"
    assert needs() == [f"library libmine.so yes {library}", f"{plugin} yes from libmine.so"]
    for other, sentence in (
        (plugin_library("MyGelu", "2", "acme"), "MyGelu version 1 in namespace acme; here MyGelu has version 2"),
        (plugin_library("MyGelu", "1", "mine"), "MyGelu is registered in namespace 'mine', not in 'acme'"),
    ):
        library.write_bytes(other.read_bytes())
        assert sentence in told()
    library.unlink()
    message = told()
    assert (
        "plugin MyGelu version 1 in namespace acme, and no creator of that name is registered. It came from libmine.so"
        in message
    )
    assert "fix: load libmine.so first" in message
    opened, made = needs()
    assert opened == "library libmine.so no plugin library not found"
    assert made.startswith(f"{plugin} no the plan needs {plugin}, and no creator of that name is registered")


# --- TensorRT's log ------------------------------------------------------------------------------------------------

THERE = [Creator("MyGelu", "1", "", "V3ONE", ()), Creator("MyNorm", "1", "acme", "V3ONE", ())]
LOGS = {
    # TensorRT-RTX 1.6.1 and 1.7.1
    "IRuntime::createExecutionContext: Error Code 1: Internal Error (Cannot find plugin: Other, version: 1, namespace:.)": (
        "plugin Other version 1, and no creator of that name is registered"
    ),
    "Error Code 1: Internal Error (Cannot find plugin: MyGelu, version: 2, namespace:.)": "here MyGelu has version 1",
    "Internal Error (Cannot find plugin: MyNorm, version: 1, namespace:.)": "registered in namespace 'acme', not in ''",
    "Internal Error (Cannot find plugin: MyGelu, version: 1, namespace:acme.)": "in namespace '', not in 'acme'",
    "IRuntime::deserializeCudaEngine: Error Code 1: Serialization (Serialization assertion plan.header.size == blobSize failed. "
    "In parsePlan at /_src/runtime/dispatch/runtime.cpp:780)": "cut off or damaged",
    "IRuntime::deserializeCudaEngine: Error Code 1: Serialization (Serialization assertion header.magicTag == "
    "kEXPECTED_MAGIC_TAG failed.Trying to load an engine created with incompatible serialization version "
    "(1953657958 != 1953657974).": ("built by another TensorRT; running here: TensorRT"),
    "IRuntime::deserializeCudaEngine: Error Code 1: Cuda Runtime (In ScopedCudaStream at "
    "/_src/common/dispatch/cudaResources.cpp:25 (cudaError 35: CUDA driver version is insufficient for CUDA runtime "
    "version))": "driver is missing, or older",
    "The engine cannot run on this GPU, which has compute capability 9.0": r"cannot run on this GPU \(NVIDIA H200, sm_90\)",
    "The engine does not support the current compute capability 9.0": "cannot run on this GPU",
    # TensorRT 8.2 to 10.8, from public reports
    "1: [stdArchiveReader.cpp::StdArchiveReader::40] Error Code 1: Serialization (Serialization assertion stdVersionRead == "
    "serializationVersion failed.Version tag does not match. Note: Current Version: 213, Serialized Engine Version: 205)": (
        "built by another TensorRT"
    ),
    "6: The engine plan file is not compatible with this version of TensorRT, expecting library version 8.6.1.6 got "
    "8.6.1.4, please rebuild.": "built by another TensorRT",
    "6: The engine plan file is generated on an incompatible device, expecting compute 8.6 got compute 7.5, please rebuild.": (
        "cannot run on this GPU"
    ),
    "1: [runtime.cpp::parsePlan::314] Error Code 1: Serialization (Serialization assertion plan->header.magicTag == "
    "rt::kPLAN_MAGIC_TAG failed.)": "built by another TensorRT",
    "3: getPluginCreator could not find plugin: Other version: 1": "plugin Other version 1, and no creator",
    "Cannot deserialize plugin since corresponding IPluginCreatorInterface not found in Plugin Registry": "does not name it",
    "2: [resources.cpp] Error Code 2: OutOfMemory (Requested size was 34359738368 bytes.)": "memory does not hold the engine",
    "something that nobody has seen": "cannot load the plan: something that nobody has seen",
}


@pytest.mark.parametrize("log", LOGS, ids=range(len(LOGS)))
def test_logs_of_tensorrt(log: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "find", lambda: Gpu("NVIDIA H200", "sm_90", (13, 0)))
    error = faults.load_error(Log(errors=[log]), backend.select("rtx"), Path("e.plan"), THERE)
    assert re.search(LOGS[log], error.what)
    assert error.fix or "nobody" in log


def test_header_sizes_beyond_four_gigabytes(built: Path) -> None:
    data = built.read_bytes()
    large = data[:16] + struct.pack("<Q", 5 << 30) + data[24:]
    found = contents.header(large)
    assert found is not None
    assert found.size == 5 << 30
