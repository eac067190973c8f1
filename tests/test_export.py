"""`export`: what Triton, a C++ compiler and a shell read from it. Plans are TensorRT-RTX's, their manifests say TensorRT."""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import graphs, model_config
from tests.conftest import ROOT, SAMPLES, Run, assert_clean_error
from tests.graphs import graph
from tests.native_libraries import COMPILER, needs_compiler, plugin_library
from trtconvert import BuildOptions, ConvertError, build, manifest, native
from trtconvert.deploy.cpp import export_cpp
from trtconvert.deploy.triton import export_triton
from trtconvert.deploy.triton_config import config, quoted
from trtconvert.deploy.trtexec import commands
from trtconvert.manifest import IO, Manifest
from trtconvert.shapes import Range


def for_tensorrt(plan: Path, **changes: Any) -> Path:
    """The plan with a manifest that says what one of TensorRT on a GPU would."""
    described = manifest.read(plan)
    changed = {"backend": "tensorrt", "backend_version": "11.1.0.106", "targets": ["sm_90"]} | changes
    manifest.write(dataclasses.replace(described, **changed), plan)
    return plan


def made(nodes: str, inputs: str, outputs: str, folder: Path, **options: Any) -> Path:
    """A plan of these nodes."""
    model = graphs.save(graph(nodes, inputs, outputs), folder)
    build(model, folder / "m.plan", dataclasses.replace(graphs.FAST, **options))
    return for_tensorrt(folder / "m.plan")


def parsed(plan: Path, folder: Path, max_batch: int | None = None) -> Any:
    """config.pbtxt as Triton reads it."""
    model = export_triton(plan, folder / "repository", max_batch=max_batch)
    return model_config.parse((model.folder / "config.pbtxt").read_text(encoding="utf-8"))


def refusal(described: Manifest, max_batch: int | None = None) -> str:
    with pytest.raises(ConvertError) as caught:
        config(described, "m", max_batch)
    return str(caught.value)


@pytest.fixture(scope="module")
def batched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("batched")
    sizes = {"x": Range((1, 4), (2, 4), (8, 4))}
    return made("y = Relu(x)", "float[N,4] x", "float[N,4] y", folder, shapes=sizes)


# --- config.pbtxt ---------------------------------------------------------------------------------------------------

CASES = {
    "static": ("y = Relu(x)", "float[2,4] x", "float[2,4] y", {}, 0, [("TYPE_FP32", [2, 4]), ("TYPE_FP32", [2, 4])]),
    "batch": ("y = Relu(x)", "float[N,4] x", "float[N,4] y", {"x": 4}, 8, [("TYPE_FP32", [4]), ("TYPE_FP32", [4])]),
    "half": ("y = Relu(x)", "float16[N,4] x", "float16[N,4] y", {"x": 4}, 8, [("TYPE_FP16", [4]), ("TYPE_FP16", [4])]),
    "bfloat16": (
        "y = Add(x, x)",
        "bfloat16[2,4] x",
        "bfloat16[2,4] y",
        {},
        0,
        [("TYPE_BF16", [2, 4]), ("TYPE_BF16", [2, 4])],
    ),
    "ids": (
        "y = Cast<to = 1>(ids)",
        "int64[batch,7] ids",
        "float[batch,7] y",
        {"ids": 7},
        8,
        [("TYPE_INT64", [7]), ("TYPE_FP32", [7])],
    ),
    "bool": (
        "zero = Constant<value_float = 0.0>() y = Greater(x, zero)",
        "float[2,4] x",
        "bool[2,4] y",
        {},
        0,
        [("TYPE_FP32", [2, 4]), ("TYPE_BOOL", [2, 4])],
    ),
    "int32": ("y = Add(x, x)", "int32[2,4] x", "int32[2,4] y", {}, 0, [("TYPE_INT32", [2, 4]), ("TYPE_INT32", [2, 4])]),
    "bytes": (
        "y = Cast<to = 1>(x)",
        "uint8[2,4] x",
        "float[2,4] y",
        {},
        0,
        [("TYPE_UINT8", [2, 4]), ("TYPE_FP32", [2, 4])],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_config_is_the_engine_s(case: str, tmp_path: Path) -> None:
    nodes, inputs, outputs, dynamic, batch, expected = CASES[case]
    shapes = {name: Range((1, size), (2, size), (8, size)) for name, size in dynamic.items()}
    plan = made(nodes, inputs, outputs, tmp_path, shapes=shapes)
    told = parsed(plan, tmp_path)
    assert (told.name, told.platform, told.backend) == ("m", "tensorrt_plan", "tensorrt")
    assert told.default_model_filename == "model.plan"
    assert told.max_batch_size == batch
    assert told.HasField("dynamic_batching") == (batch > 1)
    names = [io.name for io in (*manifest.read(plan).engine_inputs, *manifest.read(plan).engine_outputs)]
    assert [model_config.tensor(t) for t in (*told.input, *told.output)] == [
        {"name": name, "type": kind, "dims": dims} for name, (kind, dims) in zip(names, expected, strict=True)
    ]
    assert [(len(told.input), len(told.output))] == [(1, 1)]
    (group,) = told.instance_group
    assert (group.kind, group.count, list(group.profile)) == (group.KIND_GPU, 1, [])


def test_one_number_a_request(tmp_path: Path) -> None:
    """A vector of a batch: Triton wants dims, and gives the backend none."""
    plan = made("y = Relu(x)", "float[N] x", "float[N] y", tmp_path, shapes={"x": Range((1,), (2,), (8,))})
    told = parsed(plan, tmp_path)
    assert model_config.tensor(told.input[0]) == {"name": "x", "type": "TYPE_FP32", "dims": [1], "reshape": []}
    assert model_config.tensor(told.output[0])["reshape"] == []


def test_other_dynamic_dimensions_stay_open(tmp_path: Path) -> None:
    sizes = {"x": Range((1, 1, 4), (2, 8, 4), (4, 16, 4))}
    plan = made("y = Relu(x)", "float[N,T,4] x", "float[N,T,4] y", tmp_path, shapes=sizes)
    model = export_triton(plan, tmp_path / "repository")
    told = model_config.parse(model.config.text())
    assert (told.max_batch_size, list(told.input[0].dims), list(told.output[0].dims)) == (4, [-1, 4], [-1, 4])
    line = shlex.split(model.measure)
    assert line[line.index("--shape") + 1] == "x:8,4"
    assert line[line.index("-b") + 1] == "2"


def test_inputs_that_decide_shapes(tmp_path: Path) -> None:
    """As TensorRT sees them: values that no shape depends on are an ordinary input."""
    plan = made(
        "y = Reshape(x, s) z = Add(n, n)",
        "float[8] x, int64[2] s, int64[2] n",
        "float[a,b] y, int64[2] z",
        tmp_path,
        values={"s": Range((2, 4), (2, 4), (4, 4)), "n": Range((1, 1), (1, 1), (2, 2))},
    )
    assert manifest.read(plan).shape_tensors == ["s"]
    told = parsed(plan, tmp_path)
    assert told.max_batch_size == 0
    assert [t.name for t in (*told.input, *told.output) if t.is_shape_tensor] == ["s"]
    data = json.loads((tmp_path / "repository" / "m" / "perf_data.json").read_text())
    assert data["data"][0]["s"] == {"content": [2, 4], "shape": [2]}
    line = shlex.split(export_triton(plan, tmp_path / "repository").measure)
    assert json.loads(Path(line[line.index("--input-data") + 1]).read_text()) == data
    assert "--input-data perf_data.json" in (tmp_path / "repository" / "m" / "README.md").read_text()
    old = dataclasses.replace(manifest.read(plan), shape_tensors=None)
    assert [t.shape_tensor for t in config(old, "m").inputs] == [False, True, True]


def test_several_profiles(batched: Path) -> None:
    """All are named, since Triton takes the first one only where none is; the batch is what they take without a gap."""
    described = manifest.read(batched)

    def spans(*pairs: tuple[int, int]) -> Any:
        profiles = [{"x": {"min": [low, 4], "opt": [low, 4], "max": [high, 4]}} for low, high in pairs]
        return model_config.parse(config(dataclasses.replace(described, profiles=profiles), "m").text())

    assert list(spans((1, 4), (5, 16)).instance_group[0].profile) == ["0", "1"]
    assert spans((1, 4), (5, 16)).max_batch_size == 16
    assert spans((5, 16), (1, 4)).max_batch_size == 16
    assert spans((1, 4), (6, 16)).max_batch_size == 4
    assert spans((2, 4)).max_batch_size == 0
    assert not spans((1, 1)).HasField("dynamic_batching")


@pytest.mark.parametrize(
    ("inputs", "outputs", "why"),
    [
        (["N"], ["N"], ""),
        (["batch_size"], ["batch_size"], ""),
        (["N"], ["M"], "may not be the batch: the model calls it 'M', that of 'x' 'N'"),
        (["N"], [None], "the model does not name it"),
        (["sequence"], ["sequence"], "is called 'sequence' in the model"),
        (["num_boxes"], ["num_boxes"], "is called 'num_boxes'"),
    ],
)
def test_what_the_first_dimension_is(batched: Path, inputs: list[Any], outputs: list[Any], why: str) -> None:
    """Joining requests along anything but the batch gives wrong answers: the model has to say so, or the user."""
    described = dataclasses.replace(
        manifest.read(batched),
        onnx_inputs=[IO("x", "float32", [inputs[0], 4])],
        onnx_outputs=[IO("y", "float32", [outputs[0], 4])],
    )
    found = config(described, "m")
    assert why in found.why_not
    assert found.max_batch_size == (0 if why else 8)
    assert config(described, "m", 8).max_batch_size == 8
    assert config(described, "m", 0).max_batch_size == 0


def test_a_batch_that_the_engine_does_not_take(batched: Path) -> None:
    described = manifest.read(batched)
    assert "takes batches of 1 to 8, not of 9" in refusal(described, 9)
    fixed = dataclasses.replace(described, engine_outputs=[IO("y", "float32", [2, 4])])
    assert "first dimension of output 'y' is not dynamic: [2, 4]" in refusal(fixed, 2)
    assert "first dimension of output 'y'" in config(fixed, "m").why_not


@pytest.mark.parametrize(
    ("tensor", "why"),
    [
        (IO("s", "float32", []), "no tensors of rank 0"),
        (IO("s", "float32", [0, 4]), "no tensors without elements"),
        (IO("s", "float8_e4m3fn", [4]), "no data type for float8_e4m3fn"),
    ],
)
def test_tensors_that_triton_does_not_have(batched: Path, tensor: IO, why: str) -> None:
    for side in ("engine_inputs", "engine_outputs"):
        told = refusal(dataclasses.replace(manifest.read(batched), **{side: [tensor]}))
        assert why in told
        assert "'s'" in told
        assert "fix: " in told


@pytest.mark.parametrize("name", ['a"b', "back\\slash", "x\n0", "é/conv:0", "tab\t1"])
def test_names_as_they_are(batched: Path, name: str) -> None:
    renamed = dataclasses.replace(manifest.read(batched), engine_outputs=[IO(name, "float32", [-1, 4])])
    assert model_config.parse(config(renamed, "m").text()).output[0].name == name
    assert model_config.parse(f"name: {quoted(name)}").name == name


# --- the repository -------------------------------------------------------------------------------------------------


def files(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_layout_of_the_repository(batched: Path, tmp_path: Path) -> None:
    model = export_triton(batched, tmp_path / "my models", "classifier")
    assert files(tmp_path) == [f"my models/classifier/{f}" for f in ("1/model.plan", "README.md", "config.pbtxt")]
    assert (model.folder / "1" / "model.plan").read_bytes() == batched.read_bytes()
    line = shlex.split(model.serve)
    assert line[line.index("-v") + 1] == f"{tmp_path}/my models:/models:ro"
    assert line[-2:] == ["tritonserver", "--model-repository=/models"]
    text = (model.folder / "README.md").read_text()
    assert model.serve.replace(line[line.index("-v") + 1], "$PWD:/models:ro").replace("'", '"') in text
    assert model.measure in text
    assert "11.1.0.106" in text


def test_again_changes_nothing_and_another_is_refused(batched: Path, tmp_path: Path) -> None:
    first = export_triton(batched, tmp_path / "r")
    assert first.written
    assert not export_triton(batched, tmp_path / "r").written
    with pytest.raises(ConvertError, match="something else lies there"):
        export_triton(batched, tmp_path / "r", max_batch=2)
    assert "max_batch_size: 8" in (first.folder / "config.pbtxt").read_text()
    assert export_triton(batched, tmp_path / "r", max_batch=2, force=True).written
    assert "max_batch_size: 2" in (first.folder / "config.pbtxt").read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["r"]
    assert [path.name for path in (tmp_path / "r").iterdir()] == ["m"]


def test_force_keeps_what_others_put_there(batched: Path, tmp_path: Path) -> None:
    """All but libraries that would be loaded with the new ones."""
    (tmp_path / "example").mkdir()
    assert export_cpp(batched, tmp_path / "example")
    for file in ("build/infer", "notes.txt", "plugins/libold.so"):
        (tmp_path / "example" / file).parent.mkdir(exist_ok=True)
        (tmp_path / "example" / file).write_text("")
    (tmp_path / "example" / "main.cpp").write_text("// mine")
    with pytest.raises(ConvertError, match="something else lies there"):
        export_cpp(batched, tmp_path / "example")
    assert export_cpp(batched, tmp_path / "example", force=True)
    assert not export_cpp(batched, tmp_path / "example")
    assert files(tmp_path / "example") == sorted(
        ["CMakeLists.txt", "README.md", "build/infer", "main.cpp", "model.plan", "notes.txt"]
    )
    with pytest.raises(ConvertError, match="something else lies there"):
        export_cpp(batched, tmp_path / "example" / "notes.txt", force=True)


def test_a_folder_that_is_there_stays_itself(batched: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty one: a shell that stands in it, or what is mounted there, or a link, sees the files."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    monkeypatch.chdir(tmp_path / "real")
    before = Path().stat().st_ino
    assert export_cpp(batched, ".")
    assert sorted(os.listdir()) == ["CMakeLists.txt", "README.md", "main.cpp", "model.plan"]
    assert (tmp_path / "real").stat().st_ino == before
    assert not export_cpp(batched, tmp_path / "link")
    (tmp_path / "later").symlink_to("not yet")
    assert export_cpp(batched, tmp_path / "later")
    assert files(tmp_path / "not yet") == files(tmp_path / "real")

    def forbidden(*_: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", forbidden)
    with pytest.raises(ConvertError, match="cannot write the folder: Permission denied"):
        export_cpp(batched, tmp_path / "link" / "..")


def test_nothing_is_left_where_it_cannot_be_written(
    batched: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export_triton(batched, tmp_path / "r")
    before = {file: (tmp_path / file).read_bytes() for file in files(tmp_path)}

    def full(_source: Any, _target: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    for name, force in ((None, True), ("new", False)):
        with pytest.raises(ConvertError, match="No space left"):
            export_triton(batched, tmp_path / "r", name, max_batch=2, force=force)
    monkeypatch.undo()
    assert {file: (tmp_path / file).read_bytes() for file in files(tmp_path)} == before
    (tmp_path / "file").write_text("")
    with pytest.raises(ConvertError, match="cannot write the folder"):
        export_triton(batched, tmp_path / "file" / "r")


def test_plans_that_triton_cannot_serve(run: Run, tmp_path: Path) -> None:
    model = graphs.save(graph("y = Relu(x)"), tmp_path)
    plan = build(model, tmp_path / "m.plan", graphs.FAST).plan
    assert_clean_error(run("export", "triton", plan, "r"), "TensorRT-RTX", "--backend tensorrt")
    for_tensorrt(plan)
    assert_clean_error(run("export", "triton", plan, "r", "--name", "../m"), "'../m'", "--name NAME")
    for_tensorrt(plan, options={"strip_weights": True})
    assert_clean_error(run("export", "triton", plan, "r"), "without its weights", "trtconvert refit")
    plan.write_bytes(plan.read_bytes()[:-1])
    assert_clean_error(run("export", "triton", plan, "r"), "cut off", "copy the plan again")
    manifest.path_for(plan).unlink()
    for command in ("triton", "cpp"):
        told = run("export", command, plan, "r")
        assert_clean_error(told, "no manifest beside it", "only TensorRT on a GPU can read", "copy the .plan.json")
    assert_clean_error(run("export", "trtexec", plan), "no manifest beside it")
    assert_clean_error(run("export", "triton", "missing.plan", "r"), "plan not found")
    assert not (tmp_path / "r").exists()


def test_the_command(batched: Path, run: Run, tmp_path: Path) -> None:
    result = run("export", "triton", batched, "r", "--json")
    assert result.returncode == 0, result.stderr
    told = json.loads(result.stdout)
    assert told["config"]["max_batch_size"] == 8
    assert told["written"] is True
    again = run("export", "triton", batched, "r", "--max-batch", "0", "--force")
    assert "note: requests are not batched: it was not asked for" in again.stderr
    assert "batches   none" in again.stdout
    assert run("export", "triton", batched, "r", "--max-batch", "-1").returncode == 2


# --- plugins --------------------------------------------------------------------------------------------------------


@needs_compiler
def test_plugin_libraries_are_placed_and_found(tmp_path: Path) -> None:
    """As Triton does it: TensorRT is in the process, the loader is opened, and the creators are there."""
    library = plugin_library("MyGelu")
    model = graphs.save(graph("t = acme.MyGelu(x) y = Relu(t)"), tmp_path)
    plan = build(model, tmp_path / "m.plan", dataclasses.replace(graphs.FAST, plugins=(library,))).plan
    used = manifest.read(plan).plugins
    ours = dataclasses.replace(
        used[0], name="LayerNormGelu", kind="IPluginV3", provider="trtconvert.plugins.layer_norm_gelu"
    )
    theirs = dataclasses.replace(ours, name="Theirs", namespace="acme", provider="theirs.py")
    for_tensorrt(plan, plugins=[*used, ours, theirs])
    model = export_triton(plan, tmp_path / "r")
    folder = model.folder / "plugins"
    assert files(folder) == sorted([native.LOADER, native.NAME, library.name])
    assert f"--backend-config=tensorrt,plugins=/models/m/plugins/{native.LOADER}" in shlex.split(model.serve)
    code = (
        "import ctypes, tensorrt_rtx as trt\n"
        f"ctypes.CDLL({str(folder / native.LOADER)!r})\n"
        "creators = trt.get_plugin_registry().all_creators\n"
        "print(*(f'{c.name}:{c.plugin_namespace}' for c in creators))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {"MyGelu:", "LayerNormGelu:", "NonZero:", "Theirs:acme"} <= set(result.stdout.split())
    assert result.stderr.count("plugins registered") == 2


@needs_compiler
def test_two_models_of_one_server(tmp_path: Path) -> None:
    """TensorRT refuses the second library whole for the names that it shares with the first; what is new in it serves all the
    same."""
    for model, more in (("first", ()), ("second", (("Theirs", "1", "acme"),))):
        (tmp_path / model).mkdir()
        for library in (native.loader(), native.library(more)):
            (tmp_path / model / library.name).write_bytes(library.read_bytes())
    code = (
        "import ctypes, tensorrt_rtx as trt\n"
        f"ctypes.CDLL({str(tmp_path / 'first' / native.LOADER)!r})\n"
        f"ctypes.CDLL({str(tmp_path / 'second' / native.LOADER)!r})\n"
        "print(*(f'{c.name}:{c.plugin_namespace}' for c in trt.get_plugin_registry().all_creators))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    names = result.stdout.split()
    assert {"LayerNormGelu:", "Theirs:acme"} <= set(names)
    assert len(names) == len(set(names))
    assert "1 plugins registered, TensorRT has the others already" in result.stderr


@needs_compiler
def test_loader_without_tensorrt() -> None:
    """Opening it is harmless anywhere."""
    code = f"import ctypes; ctypes.CDLL({str(native.loader())!r})"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "no TensorRT in this process" in result.stderr
    symbols = subprocess.run(
        ["nm", "-D", "--undefined-only", native.loader()], capture_output=True, text=True, check=True
    )
    assert not [line for line in symbols.stdout.splitlines() if "nvinfer" in line or " cu" in line]


@needs_compiler
def test_a_library_that_is_another_now(tmp_path: Path, run: Run) -> None:
    library, content = tmp_path / "libmine.so", plugin_library("Mine").read_bytes()
    library.write_bytes(content)
    model = graphs.save(graph("t = acme.Mine(x) y = Relu(t)"), tmp_path)
    plan = build(model, tmp_path / "m.plan", dataclasses.replace(graphs.FAST, plugins=(library,))).plan
    assert run("export", "cpp", plan, "example").returncode == 0
    library.unlink()  # this process has it mapped
    assert_clean_error(run("export", "cpp", plan, "other"), "missing", "--plugin")
    library.write_bytes(content + b"\0")
    assert_clean_error(run("export", "cpp", plan, "other"), "not the one that the plan was built with")


# --- C++ ------------------------------------------------------------------------------------------------------------


@needs_compiler
def test_cpp_example(tmp_path: Path) -> None:
    plan = build(
        SAMPLES / "ln_gelu_opset20.onnx", tmp_path / "m.plan", BuildOptions(targets=("sm_89",), fuse="all")
    ).plan
    assert export_cpp(plan, tmp_path / "example")
    assert not export_cpp(plan, tmp_path / "example")
    folder = tmp_path / "example"
    assert files(folder) == ["CMakeLists.txt", "README.md", "main.cpp", "model.plan", f"plugins/{native.NAME}"]
    text = (folder / "main.cpp").read_text()
    assert '{"features", {3, {2, 7, 192}}, 10752, nullptr},' in text
    assert len(text.splitlines()) <= 80
    assert "set(TENSORRT_LIBRARY tensorrt_rtx CACHE" in (folder / "CMakeLists.txt").read_text()
    for_tensorrt(plan)
    assert export_cpp(plan, tmp_path / "other")
    assert "set(TENSORRT_LIBRARY nvinfer CACHE" in (tmp_path / "other" / "CMakeLists.txt").read_text()
    assert "@" not in text


@needs_compiler
def test_cpp_example_compiles(tmp_path: Path) -> None:
    """Against declarations of TensorRT's documented calls; with NVIDIA's headers, which are not ours to ship, it was tried by
    hand: 10.1, 10.16 and 11.1."""
    plan = made(
        "y = Reshape(x, s)",
        "float[8] x, int64[2] s",
        "float[a,b] y",
        tmp_path,
        values={"s": Range((2, 4), (2, 4), (4, 4))},
    )
    described = manifest.read(plan)
    odd = [dataclasses.replace(io, name='a"\\b') if io.name == "x" else io for io in described.engine_inputs]
    manifest.write(dataclasses.replace(described, engine_inputs=odd), plan)
    assert export_cpp(plan, tmp_path / "example")
    source = tmp_path / "example" / "main.cpp"
    assert "int64_t const values_1[]{2, 4};" in source.read_text()
    flags = ["-std=c++17", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", f"-I{ROOT / 'tests' / 'native' / 'nvinfer'}"]
    subprocess.run([str(COMPILER), *flags, str(source)], check=True)


# --- trtexec --------------------------------------------------------------------------------------------------------


def test_trtexec_runs_the_plan(batched: Path) -> None:
    (command,) = commands(batched)
    assert shlex.split(command.line) == ["trtexec", f"--loadEngine={batched}", "--shapes=x:2x4"]
    assert "TensorRT 11.1.0.106" in command.title


def test_trtexec_values_and_names(tmp_path: Path) -> None:
    values = {"s": Range((2, 2), (2, 4), (4, 4))}
    plan = made("y = Reshape(x, s)", "float[8] x, int64[2] s", "float[a,b] y", tmp_path, values=values)
    assert shlex.split(commands(plan)[0].line)[2:] == ["--shapes=s:2x4"]
    described = manifest.read(plan)
    odd = [dataclasses.replace(described.engine_inputs[1], name="a,b")]
    profile = {"values": {"a,b": described.values["s"]}, "shape_tensors": ["a,b"]}
    manifest.write(dataclasses.replace(described, engine_inputs=odd, **profile), plan)
    with pytest.raises(ConvertError, match="cannot name this input"):
        commands(plan)


@needs_compiler
def test_trtexec_libraries_and_the_model_without(tmp_path: Path, run: Run) -> None:
    folder = tmp_path / "my plans"
    folder.mkdir()
    plan = build(SAMPLES / "ln_gelu_opset20.onnx", folder / "m.plan", BuildOptions(targets=("sm_89",), fuse="all")).plan
    result = run("export", "trtexec", plan)
    first, run_it, second, build_it = result.stdout.splitlines()
    assert (first[0], second[0]) == ("#", "#")
    assert shlex.split(run_it) == ["tensorrt_rtx", f"--loadEngine={plan}", f"--dynamicPlugins={native.library()}"]
    line = shlex.split(build_it)
    assert line[0] == "tensorrt_rtx"
    assert (folder / line[1].removeprefix("--onnx=")).samefile(SAMPLES / "ln_gelu_opset20.onnx")
    static = plugin_library("MyGelu", how="STATIC")
    for_tensorrt(plan, plugins=[], plugin_files=[str(static)])
    assert f"--staticPlugins={static}" in shlex.split(commands(plan)[0].line)


@needs_compiler
def test_trtexec_builds_the_model_with_its_kernels(tmp_path: Path, run: Run) -> None:
    """What trtexec does with that line: the library loaded, the file parsed, the engine built, and no Python op around."""
    plan = build(
        SAMPLES / "ln_gelu_opset20.onnx", tmp_path / "m.plan", BuildOptions(targets=("sm_89",), fuse="all")
    ).plan
    result = run("export", "trtexec", plan, "--onnx", "k.onnx", "--json")
    assert result.returncode == 0, result.stderr
    line = shlex.split(json.loads(result.stdout)[1]["line"])
    library = line[-1].removeprefix("--dynamicPlugins=")
    assert line == ["tensorrt_rtx", "--onnx=k.onnx", "--saveEngine=k.plan", f"--dynamicPlugins={library}"]
    code = (
        "from trtconvert.backend import select\n"  # makes the parser find its library, and registers nothing
        "trt = select('rtx').trt\n"
        "builder = trt.Builder(trt.Logger(trt.Logger.ERROR))\n"
        f"assert builder.get_plugin_registry().load_library({library!r})\n"
        "network = builder.create_network(0)\n"
        "assert trt.OnnxParser(network, trt.Logger()).parse_from_file('k.onnx')\n"
        "types = [network.get_layer(i).type for i in range(network.num_layers)]\n"
        "assert types.count(trt.LayerType.PLUGIN_V3) == 2, types\n"
        "assert builder.build_serialized_network(network, builder.create_builder_config())\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)
    assert_clean_error(run("export", "trtexec", plan, "--onnx", SAMPLES / "ln_gelu_opset20.onnx"), "overwrite an input")


def test_trtexec_gets_the_build_s_options(batched: Path, tmp_path: Path) -> None:
    described = dataclasses.replace(
        manifest.read(batched),
        backend_version="10.13.3.9",
        options={
            "opt_level": 5,
            "workspace": 1 << 30,
            "refit": True,
            "version_compatible": True,
            "hardware_compatible": True,
        },
    )
    plan = tmp_path / "m.plan"
    plan.write_bytes(batched.read_bytes())
    manifest.write(described, plan)
    line = shlex.split(commands(plan, "k.onnx")[1].line)
    assert line == [
        "trtexec",
        "--onnx=k.onnx",
        "--minShapes=x:1x4",
        "--optShapes=x:2x4",
        "--maxShapes=x:8x4",
        "--stronglyTyped",
        "--builderOptimizationLevel=5",
        "--memPoolSize=workspace:1073741824B",
        "--refit",
        "--versionCompatible",
        "--hardwareCompatibilityLevel=ampere+",
        "--saveEngine=k.plan",
    ]
    saved = [commands(plan, onnx)[1].line.split()[-1] for onnx in (tmp_path / "m.onnx", "odd.plan")]
    assert saved == [f"--saveEngine={tmp_path / 'm.again.plan'}", "--saveEngine=odd.again.plan"]
    served = shlex.split(export_triton(plan, tmp_path / "r").serve)
    assert "--backend-config=tensorrt,version-compatible=true" in served
