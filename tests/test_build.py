"""Real builds with the real parser on CPU: the plugin's life cycle, the plan's contents, every sample model."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from tests.conftest import SAMPLES, Run
from trtconvert import BuildOptions, ConvertError, adapter, backend, build, fuse, gpu
from trtconvert.runtime.contents import plugins_in
from trtconvert.shapes import parse

# Sample model: fusions, plugin nodes. sample_models/README.md says why.
EXPECTED = {
    "bf16_ln_gelu": (1, 1),
    "convnextv2_block": (1, 1),
    "custom_relu": (0, 2),
    "fp16_ln_gelu": (1, 1),
    "keras_ln_gelu": (1, 1),
    "ln_gelu_opset20": (2, 2),
    "near_miss": (0, 0),
    "pvt_mlp_dynamo": (1, 1),
    "qdq_mlp": (3, 3),
    "resnet_block": (2, 2),
    "sam_upscaler": (1, 1),
    "tanh_gelu": (1, 1),
    "vit_block": (0, 0),
    "wav2vec2_features": (3, 3),
    "wav2vec2_features_dynamic": (3, 3),
}
pytestmark = pytest.mark.skipif(gpu.current() is not None, reason="asserts ahead-of-time builds, as on a CPU")


def custom_model(path: Path, op_type: str, function: onnx.FunctionProto | None = None) -> Path:
    """x -> y by one node acme::op_type, with the model's own definition of it if one is given."""
    value = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, 4]) for n in "xy"]
    node = helper.make_node(op_type, ["x"], ["y"], domain="acme")
    graph = helper.make_graph([node], "g", value[:1], value[1:])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("acme", 1)]
    functions = [function] if function else []
    onnx.save(helper.make_model(graph, functions=functions, opset_imports=opsets, ir_version=8), path)
    return path


def definition(op_type: str, standard: str) -> onnx.FunctionProto:
    """acme::op_type as a function of one standard op."""
    node = helper.make_node(standard, ["x"], ["y"])
    return helper.make_function("acme", op_type, ["x"], ["y"], [node], [helper.make_opsetid("", 17)])


def test_the_table_names_every_sample() -> None:
    assert set(EXPECTED) == {path.stem for path in SAMPLES.glob("*.onnx")}
    assert all(path.stat().st_size <= 1_000_000 for path in SAMPLES.glob("*.onnx"))


@pytest.mark.parametrize("name", EXPECTED)
def test_sample_builds(name: str, run: Run, tmp_path: Path) -> None:
    """`trtconvert build MODEL`, nothing else; with all fusions a plan with the expected plugins, and a manifest that says so."""
    plan = tmp_path / "engine.plan"
    assert run("build", SAMPLES / f"{name}.onnx", "-o", plan).returncode == 0
    result = run("build", SAMPLES / f"{name}.onnx", "-o", plan, "--fuse", "all")
    assert result.returncode == 0, result.stderr
    described = json.loads((tmp_path / "engine.plan.json").read_text())
    fusions, nodes = EXPECTED[name]
    assert len(described["fusions"]) == fusions
    assert sum(len(p["nodes"]) for p in described["plugins"]) == nodes
    assert {p.name for p in plugins_in(plan.read_bytes())} == {p["name"] for p in described["plugins"]}
    assert described["targets"] == list(backend.RTX_TARGETS)
    assert [io["name"] for io in described["engine_inputs"]] == [io["name"] for io in described["onnx_inputs"]]


def test_life_cycle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What TensorRT's parser and builder ask of the plugin, and what they get."""
    plugin, creator = adapter._classes(backend.select("rtx"))
    calls: list[tuple[str, Any]] = []
    names: set[str] = set()
    serialized: dict[str, bytes] = {}
    shapes: list[list[int]] = []

    def spy(owner: type, method: str) -> None:
        original = getattr(owner, method)

        def recorded(self: Any, *args: Any) -> Any:
            if method == "create_plugin":  # TensorRT empties the collection after the call
                names.update(f.name for f in args[1])
            result = original(self, *args)
            if method == "get_output_shapes":  # nor do dimension expressions outlive it
                shapes.append([d.get_constant_value() for d in result[0]])
            if method == "get_fields_to_serialize":  # the plugin loses them when TensorRT deletes it
                fields, arrays = self.serialized
                serialized.update((f.name, array.tobytes()) for f, array in zip(fields, arrays, strict=True))
            calls.append((method, (args, result)))
            return result

        monkeypatch.setattr(owner, method, recorded)

    spy(creator, "create_plugin")
    for method in (
        "get_output_data_types",
        "get_output_shapes",
        "supports_format_combination",
        "configure_plugin",
        "get_valid_tactics",
        "get_fields_to_serialize",
    ):
        spy(plugin, method)
    options = BuildOptions(fuse="all", targets=("sm_86", "sm_120"))
    result = build(SAMPLES / "sam_upscaler.onnx", tmp_path / "sam.plan", options)
    seen = dict(calls)
    order = list(dict.fromkeys(name for name, _ in calls))
    assert order[0] == "create_plugin"
    assert order[-1] == "get_fields_to_serialize"
    assert set(order) == {
        "create_plugin",
        "get_output_data_types",
        "get_output_shapes",
        "supports_format_combination",
        "configure_plugin",
        "get_valid_tactics",
        "get_fields_to_serialize",
    }
    name, _, phase = seen["create_plugin"][0]
    assert phase == backend.select("rtx").trt.TensorRTPhase.BUILD
    assert name == result.plugin_nodes[0].node
    assert names == {"axis", "approximate", "epsilon"}
    assert [t.name for t in seen["get_output_data_types"][1]] == ["FLOAT"]
    assert shapes[-1] == [1, 32, 32, 32]
    assert set(serialized) == {"launch", "sm_86", "sm_120", "compute_120"}
    assert serialized["launch"].startswith(b"trtconvert-launch 2\nop LayerNormGelu 1\n")
    assert serialized["sm_86"][:4] == b"\x7fELF"
    assert serialized["sm_120"][:4] == b"\x7fELF"
    assert b".target sm_120" in serialized["compute_120"]
    plan = (tmp_path / "sam.plan").read_bytes()
    assert serialized["sm_86"] in plan
    assert serialized["compute_120"] in plan


def test_inspect_plan_lists_plugin_version_and_targets(run: Run, tmp_path: Path) -> None:
    plan = tmp_path / "sam.plan"
    build(SAMPLES / "sam_upscaler.onnx", plan, BuildOptions(fuse="all", targets=("sm_86", "sm_89")))
    shown = run("inspect", plan).stdout
    assert "LayerNormGelu version 1" in shown
    assert "sm_86, sm_89" in shown
    assert "axis -1" in shown
    described = json.loads(run("inspect", plan, "--json").stdout)
    assert described["plugins"][0]["name"] == "LayerNormGelu"
    (tmp_path / "sam.plan.json").unlink()
    assert "LayerNormGelu version 1" in run("inspect", plan).stdout, "the plan's own bytes say so too"


def test_same_model_same_fused_bytes(tmp_path: Path) -> None:
    """Whatever PYTHONHASHSEED is."""
    outputs = []
    for seed in ("0", "1", "42"):
        path = tmp_path / f"{seed}.onnx"
        code = f"from trtconvert import fuse; fuse({str(SAMPLES / 'wav2vec2_features.onnx')!r}, output={str(path)!r})"
        subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONHASHSEED": seed})
        outputs.append(path.read_bytes())
    assert outputs[0] == outputs[1] == outputs[2]


def test_a_fused_file_builds_with_its_plugins(tmp_path: Path) -> None:
    """The bodies are dropped, the plugins are taken."""
    fused = tmp_path / "fused.onnx"
    assert len(fuse(SAMPLES / "wav2vec2_features.onnx", output=fused).fusions) == 3
    result = build(fused)
    assert (len(result.fusions), len(result.plugin_nodes)) == (0, 3)
    assert result.plan == tmp_path / "fused.plan"


def test_local_function_named_like_a_standard_op(tmp_path: Path) -> None:
    """TensorRT's parser would import the standard Relu; the function is inlined instead."""
    path = custom_model(tmp_path / "m.onnx", "Relu", definition("Relu", "Sigmoid"))
    from trtconvert.lower import lower

    lowered = lower(onnx.load(path), tmp_path, backend.supports(backend.select("rtx")))
    assert [node.op_type for node in lowered.model.graph.node] == ["Sigmoid"]
    assert lowered.plugin_nodes == []
    build(path)


def test_local_function_named_like_one_of_our_ops(tmp_path: Path) -> None:
    """The model's own definition counts, not the plugin of that name."""
    path = custom_model(tmp_path / "m.onnx", "FusedRelu", definition("FusedRelu", "Tanh"))
    result = build(path)
    assert result.plugin_nodes == []
    assert plugins_in(result.plan.read_bytes()) == []


def test_op_that_fails_inside_tensorrt(tmp_path: Path) -> None:
    """The reason comes out as a ConvertError, not as TensorRT's; nothing is written; the next build works."""
    plugin = tmp_path / "broken.py"
    plugin.write_text(
        "from trtconvert import Op, case\n"
        "from trtconvert.launch import Launch\n"
        "class Broken(Op):\n"
        "    '''y = x'''\n"
        "    source = 'extern \"C\" __global__ void k() { undeclared(); }'\n"
        "    cases = (case((2, 2)),)\n"
        "    def output(self, x): return x\n"
        "    def launch(self, x, y): return Launch('k', (1, 1, 1), (1, 1, 1), ())\n"
    )
    model = custom_model(tmp_path / "m.onnx", "Broken")
    with pytest.raises(ConvertError, match=r"does not compile for sm_80.*undeclared"):
        build(model, options=BuildOptions(plugins=(plugin,)))
    assert not (tmp_path / "m.plan").exists()
    build(SAMPLES / "tanh_gelu.onnx", tmp_path / "good.plan")


def test_source_digest_is_the_file_s(tmp_path: Path) -> None:
    """What sha256sum prints; with external data, its bytes follow the file's."""
    described = build(SAMPLES / "tanh_gelu.onnx", tmp_path / "a.plan").manifest
    data = (SAMPLES / "tanh_gelu.onnx").read_bytes()
    assert described.model_sha256 == hashlib.sha256(data).hexdigest()
    model = tmp_path / "m.onnx"
    onnx.save(
        onnx.load(SAMPLES / "tanh_gelu.onnx"), model, save_as_external_data=True, location="w", size_threshold=1024
    )
    both = model.read_bytes() + (tmp_path / "w").read_bytes()
    assert build(model).manifest.model_sha256 == hashlib.sha256(both).hexdigest()


def test_options_reach_the_manifest(tmp_path: Path) -> None:
    options = BuildOptions(
        opt_level=2, workspace=1 << 30, targets=("sm_86",), shapes=parse(["image=1x16x8x8,2x16x8x8,4x16x8x8"])
    )
    described = build(SAMPLES / "pvt_mlp_dynamo.onnx", tmp_path / "p.plan", options).manifest
    assert described.options == {"opt_level": 2, "workspace": 1 << 30}
    assert described.profiles[0]["image"]["max"] == [4, 16, 8, 8]
    assert described.targets == ["sm_86"]


# --- the library that the parser opens by a name the wheel lacks ---------------------------------------------------

BUILD = "import sys; from trtconvert.cli import main; sys.argv = ['trtconvert', 'build', *sys.argv[1:]]; main()"


def site_packages_copy(folder: Path) -> Path:
    """A site-packages with copies of TensorRT-RTX's libraries, the link taken away, and links to all else."""
    spec = find_spec("tensorrt_rtx_libs")
    assert spec is not None
    assert spec.origin is not None
    original = Path(spec.origin).parent
    copy = folder / "site"
    libs = copy / "tensorrt_rtx_libs"
    libs.mkdir(parents=True)
    for file in original.iterdir():
        if file.name not in ("libtensorrt_rtx.so", "__pycache__"):
            os.link(file, libs / file.name) if file.stat().st_dev == folder.stat().st_dev else _copy(file, libs)
    return copy


def _copy(file: Path, folder: Path) -> None:
    (folder / file.name).write_bytes(file.read_bytes())


def test_without_the_library_link(tmp_path: Path) -> None:
    """The wheel has libtensorrt_rtx.so.1 only: nothing is written beside it, and the build works."""
    site = site_packages_copy(tmp_path)
    before = sorted(p.name for p in (site / "tensorrt_rtx_libs").iterdir())
    result = subprocess.run(
        [sys.executable, "-B", "-c", BUILD, SAMPLES / "sam_upscaler.onnx", "-o", tmp_path / "e.plan"],
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    assert sorted(p.name for p in (site / "tensorrt_rtx_libs").iterdir()) == before


def test_without_the_library_link_and_nowhere_to_put_one(tmp_path: Path) -> None:
    """Explained, never an abort."""
    site = site_packages_copy(tmp_path)
    result = subprocess.run(
        [sys.executable, "-B", "-c", BUILD, SAMPLES / "sam_upscaler.onnx", "-o", tmp_path / "e.plan"],
        env={**os.environ, "PYTHONPATH": str(site), "TRTCONVERT_CACHE_DIR": "/proc/1/none", "TMPDIR": "/proc/1/none"},
        capture_output=True,
        text=True,
    )
    assert result.returncode in (0, 1), result.stderr
    if result.returncode == 1:
        assert "TRTCONVERT_CACHE_DIR" in result.stderr
        assert "Traceback" not in result.stderr


def test_tensorrt_rtx_loaded_before_us(tmp_path: Path) -> None:
    """Then its parser cannot be helped any more: an error that says so."""
    site = site_packages_copy(tmp_path)
    code = (
        "import importlib; importlib.import_module('tensorrt_rtx')\n"
        "import sys, trtconvert\n"
        "try: trtconvert.build(sys.argv[1], sys.argv[2])\n"
        "except trtconvert.ConvertError as error: print(error)"
    )
    result = subprocess.run(
        [sys.executable, "-B", "-c", code, SAMPLES / "sam_upscaler.onnx", tmp_path / "e.plan"],
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    assert "imported before trtconvert" in result.stdout
