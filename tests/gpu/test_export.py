"""`export` on a real GPU: what it wrote, used by programs that know nothing of trtconvert.

The C++ example needs NVIDIA's headers of the TensorRT that runs: CPATH names their folder, LD_LIBRARY_PATH its library's.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests import graphs
from tests.conftest import SAMPLES, Run
from tests.importable import importable
from tests.native_libraries import needs_compiler
from trtconvert import BuildOptions, build, load_engine, manifest, native
from trtconvert.backend import select
from trtconvert.deploy.cpp import export_cpp
from trtconvert.deploy.trtexec import commands, write_model
from trtconvert.inputs import random_feeds
from trtconvert.shapes import Range

pytestmark = needs_compiler
NAMES = ["ln_gelu_opset20", "vit_block", "sam_upscaler", "wav2vec2_features"]
FOLDERS = [Path(folder) for folder in os.environ.get("CPATH", "").split(":") if folder]
HEADERS = next((folder for folder in FOLDERS if (folder / "NvInferRuntime.h").is_file()), None)


def planned(name: str, folder: Path) -> Path:
    return build(importable(SAMPLES / f"{name}.onnx", folder), folder / "e.plan", BuildOptions(fuse="all")).plan


def loaded() -> Path:
    """The library of the TensorRT in this process."""
    select("auto")
    lines = Path("/proc/self/maps").read_text().splitlines()
    return next(Path(line.split()[-1]) for line in lines if "libtensorrt_rtx.so" in line or "libnvinfer.so" in line)


@pytest.mark.skipif(HEADERS is None, reason="CPATH names no folder with NvInferRuntime.h")
@pytest.mark.skipif(shutil.which("cmake") is None, reason="no cmake")
@pytest.mark.parametrize("name", NAMES)
def test_cpp_example_runs(name: str, tmp_path: Path) -> None:
    """Configured, compiled and run: every output has the shape that Python gets."""
    plan = planned(name, tmp_path)
    export_cpp(plan, tmp_path / "example")
    made = tmp_path / "build"
    defined = [f"-DTENSORRT_INCLUDE_DIR={HEADERS}", f"-DTENSORRT_LIBRARY_FILE={loaded()}"]
    for command in (
        ["cmake", "-S", str(tmp_path / "example"), "-B", str(made), *defined],
        ["cmake", "--build", str(made)],
    ):
        result = subprocess.run(command, capture_output=True, text=True)
        assert result.returncode == 0, result.stdout + result.stderr
    environment = {**os.environ, "LD_LIBRARY_PATH": f"{loaded().parent}:{os.environ.get('LD_LIBRARY_PATH', '')}"}
    command = [str(made / "infer"), str(tmp_path / "example")]
    result = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert result.returncode == 0, result.stderr
    described = manifest.read(plan)
    shapes = {
        io.name: described.profile[io.name]["opt"] if -1 in io.shape else io.shape for io in described.engine_inputs
    }
    zeros = {io.name: np.zeros(shapes[io.name], np.dtype(io.dtype)) for io in described.engine_inputs}
    outputs = load_engine(plan).run(zeros)
    expected = [f"{n}:{''.join(f' {d}' for d in array.shape)}" for n, array in outputs.items()]
    assert result.stdout.splitlines() == expected


def test_shape_tensors_are_the_engine_s(tmp_path: Path) -> None:
    """What config.pbtxt calls a shape tensor is one; Triton compares the two."""
    model = graphs.graph(
        "y = Reshape(x, s) t = Identity(s) u = Shape(y) z = Add(n, n)",
        "float[8] x, int64[2] s, int64[2] n",
        "float[a,b] y, int64[2] t, int64[2] u, int64[2] z",
    )
    values = {"s": Range((2, 2), (2, 4), (4, 4)), "n": Range((1, 1), (1, 1), (2, 2))}
    plan = build(graphs.save(model, tmp_path), tmp_path / "e.plan", BuildOptions(fuse="none", values=values)).plan
    engine = load_engine(plan)
    names = [tensor.name for tensor in (*engine.inputs, *engine.outputs)]
    found = [name for name in names if engine.engine.is_shape_inference_io(name)]
    assert found == manifest.read(plan).shape_tensors == ["s"]


def test_triton_s_way_of_loading(tmp_path: Path) -> None:
    """The loader is opened and nothing else; the plan then gets its plugins."""
    plan = planned("ln_gelu_opset20", tmp_path)
    folder = tmp_path / "plugins"
    folder.mkdir()
    for library in (native.loader(), native.library()):
        shutil.copy(library, folder)
    code = (
        "import ctypes\nfrom trtconvert.backend import select\n"
        "trt = select('auto').trt\n"
        f"ctypes.CDLL({str(folder / native.LOADER)!r})\n"
        f"engine = trt.Runtime(trt.Logger()).deserialize_cuda_engine(open({str(plan)!r}, 'rb').read())\n"
        "assert engine.create_execution_context() is not None"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "plugins registered" in result.stderr


@pytest.mark.parametrize("name", NAMES)
def test_engine_that_another_program_builds(name: str, tmp_path: Path, run: Run) -> None:
    """As trtexec would, from the file with the kernels inside and the library: it computes what the plan computes."""
    plan = planned(name, tmp_path)
    write_model(plan, tmp_path / "k.onnx")
    line = shlex.split(commands(plan, tmp_path / "k.onnx")[1].line)
    libraries = [word.removeprefix("--dynamicPlugins=") for word in line if word.startswith("--dynamicPlugins=")]
    profile = manifest.read(plan).profile
    code = (
        "from trtconvert.backend import select\n"
        "trt = select('auto').trt\n"
        "logger = trt.Logger(trt.Logger.ERROR)\n"
        "builder = trt.Builder(logger)\n"
        f"assert all(map(builder.get_plugin_registry().load_library, {libraries!r}))\n"
        "network = builder.create_network(0)\n"
        "assert trt.OnnxParser(network, logger).parse_from_file('k.onnx')\n"
        "config, profile = builder.create_builder_config(), builder.create_optimization_profile()\n"
        f"for name, at in {profile!r}.items():\n"
        "    profile.set_shape(name, at['min'], at['opt'], at['max'])\n"
        f"if {bool(profile)}:\n"
        "    config.add_optimization_profile(profile)\n"
        "open('k.plan', 'wb').write(builder.build_serialized_network(network, config))\n"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    described = manifest.read(plan)
    _, feed = next(iter(random_feeds(described.onnx_inputs, described.profile, 0)))
    first, second = load_engine(plan).run(feed), load_engine(tmp_path / "k.plan").run(feed)
    for output, expected in first.items():
        difference = np.linalg.norm((second[output] - expected).astype(np.float64))
        assert difference <= 5e-3 * np.linalg.norm(expected.astype(np.float64))
