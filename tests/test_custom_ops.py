"""Custom nodes and the creators that serve them: found, fitted, cast, or told why not. Engines are built by TensorRT-RTX."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import NodeProto, TensorProto, helper, numpy_helper

from tests.conftest import Run, assert_clean_error
from tests.native_libraries import needs_compiler, plugin_library
from trtconvert.custom_ops import attributes
from trtconvert.custom_ops.creators import Creator, Field
from trtconvert.custom_ops.custom import Custom
from trtconvert.diagnosis.faults import Fault

EPS = (("eps", "float32", 1), ("mode", "int32", 1))


def node(op_type: str, inputs: Sequence[str] = ("x",), output: str = "y", **attributes: Any) -> NodeProto:
    """A node of the domain acme, unless another is given."""
    domain = attributes.pop("domain", "acme")
    name = attributes.pop("name", "g")
    return helper.make_node(op_type, list(inputs), [output], name=name, domain=domain, **attributes)


def save(
    path: Path,
    *nodes: NodeProto,
    shape: Sequence[int | str] = (2, 4),
    dtype: int = TensorProto.FLOAT,
    weights: dict[str, Any] | None = None,
    out: tuple[int, Sequence[int | str] | None] | None = None,
    **model: Any,
) -> Path:
    """A model x -> y of these nodes. weights: initializers; out: type and shape of y, those of x unless given."""
    functions, opset, infos = model.get("functions", ()), model.get("opset", 17), model.get("infos", ())
    values = [numpy_helper.from_array(np.asarray(value), name) for name, value in (weights or {}).items()]
    x = helper.make_tensor_value_info("x", dtype, shape)
    y = helper.make_tensor_value_info("y", *(out or (dtype, shape)))
    graph = helper.make_graph(list(nodes), "g", [x], [y], values, value_info=list(infos))
    domains = {node.domain for node in nodes} | {"acme"}
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(name, 1) for name in sorted(domains) if name)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8, functions=functions), path)
    return path


def tensor(dtype: str, *shape: int) -> TensorProto:
    return numpy_helper.from_array(np.ones(shape, dtype), "w")


@pytest.fixture
def builds(run: Run, tmp_path: Path) -> Any:
    """Build m.onnx of these nodes with these options; returns the notes, and the manifest's plugins as node: name."""

    def build(*options: object) -> tuple[str, dict[str, str]]:
        result = run("build", "m.onnx", "-o", "m.plan", *options)
        assert result.returncode == 0, result.stderr
        plugins = json.loads((tmp_path / "m.plan.json").read_text())["plugins"]
        return result.stderr, {name: plugin["name"] for plugin in plugins for name in plugin["nodes"]}

    return build


@pytest.fixture
def fails(run: Run, tmp_path: Path) -> Any:
    """Build m.onnx with these options, which must fail cleanly; returns what it said."""

    def build(*options: object, words: Sequence[str] = ()) -> str:
        before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.plan*")}
        result = run("build", "m.onnx", "-o", "m.plan", *options)
        assert result.returncode == 1, result.stdout + result.stderr
        assert "Traceback" not in result.stderr
        assert result.stderr.splitlines()[-1].startswith(("  fix:", "  at:", "error:"))
        for word in words:
            assert word in result.stderr
        assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.plan*")} == before
        return result.stderr

    return build


def python_op(path: Path, name: str, body: str = "", dtypes: str = "", **attributes: str) -> Path:
    """A plugin file with an op y = x of that name. attributes: annotation and default of each."""
    lines = [f"    {key}: {value}" for key, value in attributes.items()]
    lines += [f"    dtypes = {dtypes}"] if dtypes else []
    path.write_text(
        "from trtconvert import Op, case\nfrom trtconvert.launch import Launch, ceil_div\n\n\n"
        f"class {name}(Op):\n"
        '    source = \'extern "C" __global__ void k(const IO* x, IO* y, long long n)'
        "{ long long i = blockIdx.x * 256LL + threadIdx.x; if (i < n) y[i] = x[i]; }'\n"
        "    cases = (case((2, 4)),)\n" + "\n".join(lines) + "\n"
        f"{body or '    def output(self, x): return x'}\n"
        "    def launch(self, x, y):\n"
        "        return Launch('k', (ceil_div(x.size, 256), 1, 1), (256, 1, 1), (x, y, x.size))\n"
    )
    return path


# --- lookup: name, version, namespace ------------------------------------------------------------------------------


def test_a_standard_op_without_importer_and_a_custom_op_without_plugin(fails: Any, tmp_path: Path) -> None:
    """Two different faults, and every node of either."""
    save(
        tmp_path / "m.onnx",
        helper.make_node("Det", ["x"], ["d"], name="first"),
        helper.make_node("Det", ["x"], ["e"], name="second"),
        helper.make_node("Add", ["d", "e"], ["s"], name="sum"),
        node("MyGelu", ["s"], "t", name="third"),
        node("FusedRelux", ["t"], "y", name="fourth"),
        shape=(2, 3, 3),
        out=(TensorProto.FLOAT, (2,)),
        opset=11,
    )
    text = fails(words=["first, second (Det)", "no importer", "third (acme::MyGelu)", "fourth (acme::FusedRelux)"])
    assert "nearest registered: FusedRelu version 1 (--map acme::FusedRelux=FusedRelu takes it)" in text
    custom = next(line for line in text.splitlines() if "third" in line)
    assert "no plugin and no function body for this custom op" in custom
    assert "importer" not in custom


@needs_compiler
@pytest.mark.parametrize(
    ("domain", "namespace", "asked"),
    [
        ("acme", "acme", None),  # the domain is the namespace
        ("acme", "", None),
        ("acme", "acme", "acme"),
        ("", "acme", None),  # the parser alone does not find it
        ("other", "acme", None),
        ("", "", ""),
    ],
)
def test_namespaces_that_serve(domain: str, namespace: str, asked: str | None, builds: Any, tmp_path: Path) -> None:
    attributes = {} if asked is None else {"plugin_namespace": asked}
    save(tmp_path / "m.onnx", node("MyGelu", domain=domain, **attributes))
    notes, plugins = builds("--plugin", plugin_library(namespace=namespace))
    assert plugins == {"g": "MyGelu"}
    assert ("is made by MyGelu version 1 in namespace acme" in notes) == (namespace not in (domain, ""))


@needs_compiler
def test_another_namespace_or_version_is_named(fails: Any, builds: Any, tmp_path: Path) -> None:
    library = plugin_library(namespace="acme")
    path = tmp_path / "m.onnx"
    save(path, node("MyGelu", plugin_namespace="other"))
    fails("--plugin", library, words=["version 1 in namespace 'acme'", "asks for namespace 'other'"])
    save(path, node("MyGelu", plugin_version="2"))
    text = fails("--plugin", library, words=["version 1 in namespace 'acme'", "asks for version 2"])
    flag = next(word for word in text.replace(",", " ").split() if word.startswith("acme::MyGelu="))
    assert builds("--plugin", library, "--map", flag)[1] == {"g": "MyGelu"}  # the message's own way out
    save(path, node("MyGelu", plugin_version=1))
    fails("--plugin", library, words=["plugin_version must be a string attribute", "it is 1"])
    save(path, node("FusedRelu", plugin_version="7"))
    fails(words=["registered as version 1", "asks for version 7"])


@needs_compiler
def test_the_version_that_the_node_asks_for(builds: Any, tmp_path: Path) -> None:
    save(tmp_path / "m.onnx", node("MyGelu", output="t", plugin_version="2"), node("MyGelu", ["t"], name="h"))
    libraries = [flag for v in ("1", "2") for flag in ("--plugin", plugin_library(version=v))]
    assert builds(*libraries)[1] == {"g": "MyGelu", "h": "MyGelu"}
    plugins = json.loads((tmp_path / "m.plan.json").read_text())["plugins"]
    assert {p["nodes"][0]: p["version"] for p in plugins} == {"g": "2", "h": "1"}


@needs_compiler
def test_a_domain_that_several_namespaces_could_serve(fails: Any, tmp_path: Path) -> None:
    save(tmp_path / "m.onnx", node("MyGelu", domain="vision"))
    libraries = [flag for space in ("acme", "other") for flag in ("--plugin", plugin_library(namespace=space))]
    fails(*libraries, words=["namespace 'acme'", "namespace 'other'", "--map vision::MyGelu=MyGelu@1:"])


# --- plugins with names that others have ---------------------------------------------------------------------------


@needs_compiler
def test_a_plugin_named_like_a_native_op(builds: Any, tmp_path: Path) -> None:
    """TensorRT's layer, with a note; the plugin by --map, and then of that node."""
    library = plugin_library("LayerNormalization", fields=(("axis", "int32", 1), ("epsilon", "float32", 1)))
    norm = node("LayerNormalization", ["x", "scale"], domain="", axis=-1, epsilon=1e-5)
    save(tmp_path / "m.onnx", norm, weights={"scale": np.ones(4, np.float32)})
    notes, plugins = builds("--plugin", library)
    assert plugins == {}
    assert "TensorRT's own layer is used, not the plugin of that name" in notes
    mapped = "LayerNormalization=LayerNormalization"
    assert f"--map {mapped}" in notes
    assert builds("--plugin", library, "--map", mapped)[1] == {"g": "LayerNormalization"}


@needs_compiler
@pytest.mark.parametrize("namespace", ["acme", ""])
def test_a_custom_op_named_like_a_standard_one(namespace: str, fails: Any, builds: Any, tmp_path: Path) -> None:
    """Never the standard op without a word; and the model's standard nodes of that name stay TensorRT's own."""
    relu = helper.make_node("Relu", ["t"], ["y"], name="native")
    save(tmp_path / "m.onnx", node("Relu", output="t"), relu)
    fails(words=["node g (acme::Relu)", "also a standard ONNX op"])
    notes, plugins = builds("--plugin", plugin_library("Relu", namespace=namespace))
    assert plugins == {"g": "Relu"}
    assert "Relu x1: TensorRT's own layer" in notes


@needs_compiler
def test_a_function_body_or_the_plugin(builds: Any, tmp_path: Path) -> None:
    body = helper.make_function(
        "acme", "MyGelu", ["X"], ["Y"], [helper.make_node("Relu", ["X"], ["Y"])], [helper.make_opsetid("", 17)]
    )
    save(tmp_path / "m.onnx", node("MyGelu"), functions=[body])
    notes, plugins = builds("--plugin", plugin_library())
    assert plugins == {}
    assert "acme::MyGelu has a function body in the model, which is used, not the plugin MyGelu" in notes
    notes, plugins = builds("--plugin", plugin_library(), "--map", "acme::MyGelu=MyGelu")
    assert plugins == {"g": "MyGelu"}
    assert "function body" not in notes


def test_map_gives_nodes_to_a_python_op(builds: Any, run: Run, tmp_path: Path) -> None:
    """The op's own attributes are checked, and verify compares with what the op says."""
    save(tmp_path / "m.onnx", node("LeakyThing", alpha=0.25))
    assert builds("--map", "acme::LeakyThing=FusedRelu")[1] == {"g": "FusedRelu"}
    result = run("verify", "m.plan")
    assert result.returncode in (0, 3), result.stderr
    assert "pass" in result.stdout


@needs_compiler
def test_map_with_version_and_namespace(fails: Any, builds: Any, tmp_path: Path) -> None:
    save(tmp_path / "m.onnx", node("LeakyThing", bogus=1))
    library = plugin_library(version="4", namespace="ns", fields=EPS)
    flags = ["--plugin", library, "--map", "LeakyThing=MyGelu@4:ns", "--set-attr", "LeakyThing.eps=0.5"]
    flags += ["--set-attr", "g.mode=1"]
    fails(*flags, words=["'bogus'", "eps, mode"])
    assert builds(*flags, "--set-attr", "g.bogus=")[1] == {"g": "MyGelu"}
    fails("--plugin", library, "--map", "acme::LeakyThing=MyGelu@5:ns", words=["asks for version 5"])


@pytest.mark.parametrize(
    ("flag", "value", "words"),
    [
        ("--map", "acme::MyGelo=FusedRelu", ["acme::MyGelo", "did you mean acme::MyGelu"]),
        ("--map", "MyGelu", ["cannot be read", "acme::MyGelu=MyGelu@1"]),
        ("--set-attr", "h.eps=1", ["no such node", "the model has"]),
        ("--set-attr", "eps", ["cannot be read", "NODE.eps=1e-5"]),
        ("--cast", "h:0=int32", ["no such node"]),
        ("--cast", "g:0", ["cannot be read", "NODE:1=int32"]),
        ("--cast", "g:0=int33", ["'int33'", "int64"]),
        ("--cast", "g:7=int32", ["names no input or output", "x, by name or number"]),
    ],
)
def test_options_that_mean_nothing(flag: str, value: str, words: list[str], fails: Any, tmp_path: Path) -> None:
    save(tmp_path / "m.onnx", node("MyGelu"))
    fails(flag, value, words=words)


# --- attributes ----------------------------------------------------------------------------------------------------


@needs_compiler
def test_all_faults_of_all_nodes_at_once(fails: Any, builds: Any, tmp_path: Path) -> None:
    save(
        tmp_path / "m.onnx",
        node("MyGelu", output="t", epsilom=0.5, mode=1),
        node("MyGelu", ["t"], name="h", eps=0.5, mode=2**40 + 7, type_id=0),
    )
    library = plugin_library(fields=EPS)
    text = fails("--plugin", library, words=["'epsilom'", "eps, mode", "rename it to 'eps'"])
    assert "declares eps (float32), which the node lacks -> --set-attr g.eps=VALUE" in text
    assert "'mode' is 1099511627783, TensorRT passes 32-bit integers" in text
    assert "'type_id' is not one that the plugin declares" in text
    flags = ["g.epsilom=", "g.eps=1e-5", "h.mode=7", "h.type_id="]
    wanted = [word for flag in flags for word in ("--set-attr", flag)]
    assert builds("--plugin", library, *wanted)[1] == {"g": "MyGelu", "h": "MyGelu"}


@needs_compiler
def test_fields_arrive_in_the_type_declared(run: Run, tmp_path: Path) -> None:
    """What the plugin is handed, as it tells it: integers for a float field are floats, whole floats for an integer field
    integers, and what is left to the plugin is not there."""
    fields = (*EPS, ("sizes", "int32", 3), ("kind", "char", 1), ("scale", "float32", 1), ("more", "int64", 1))
    save(tmp_path / "m.onnx", node("MyGelu", eps=1, mode=2.0, sizes=[1, 2, 3], kind="tanh", scale=3))
    library = plugin_library(fields=fields)
    result = run("build", "m.onnx", "--plugin", library, "--set-attr", "g.more=", env={"LOUD": "1"})
    assert result.returncode == 0, result.stderr
    told = {line for line in result.stderr.splitlines() if line.startswith("field ")}
    assert told == {
        "field eps type 1 length 1 first 1",
        "field mode type 5 length 1 first 2",
        "field sizes type 5 length 3 first 1",
        "field kind type 6 length 5 text tanh",
        "field scale type 1 length 1 first 3",
    }


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("float32", 2**24 + 1, "float32 cannot hold exactly"),
        ("float32", "0.5", "is a string, float32 is declared"),
        ("int32", 2.5, "is 2.5, int32 is declared"),
        ("int32", float("inf"), "is inf, int32 is declared"),
        ("int32", -(2**31) - 1, "TensorRT passes 32-bit integers"),
        ("int32", [1, 2**33], "TensorRT passes 32-bit integers"),
        ("int64", 2**33, "TensorRT passes 32-bit integers"),
        ("int8", 200, "is 200, int8 is declared"),
        ("char", 1, "is an integer, char is declared"),
        ("float32", tensor("int64", 2), "is a tensor of int64, which TensorRT does not pass to plugins as it is"),
        ("float32", tensor("bool", 2), "is a tensor of bool"),
        ("float32", tensor("uint8", 2), "is a tensor of uint8"),
        ("float32", tensor("float64", 2), "is a tensor of double"),
        ("float32", tensor("float32", 0), "is a tensor without values"),
        ("float32", tensor("int32", 2), "is a tensor of int32, float32 is declared"),
        ("float32", helper.make_graph([], "inner", [], []), "is a graph, which TensorRT passes to no plugin"),
    ],
)
def test_attributes_that_do_not_fit(field: str, value: Any, words: str) -> None:
    creator = Creator("MyGelu", "1", "", "V3ONE", (Field("w", field),), "lib.so")
    (fault,) = attributes.check(node("MyGelu", w=value), creator)
    assert words in fault.reason
    assert "'w'" in fault.reason
    assert (fault.node, fault.op) == ("g", "acme::MyGelu")
    assert "--set-attr g.w=VALUE" in fault.fix


@needs_compiler
def test_attributes_that_fit(run: Run, tmp_path: Path) -> None:
    """NVIDIA's samples declare a length of 1 for lists too."""
    fields = (("f", "float32", 1), ("s", "float32", 1), ("i", "int32", 4), ("n", "int32", 1), ("t", "char", 1))
    given = {"f": tensor("float32", 2, 2), "s": tensor("float32"), "i": tensor("int32", 4), "n": [1, 2, 3, 4]}
    save(tmp_path / "m.onnx", node("MyGelu", t=["ab", "c"], z=2**31 - 1, **given))
    library = plugin_library(fields=(*fields, ("z", "int64", 1)))
    result = run("build", "m.onnx", "--plugin", library, env={"LOUD": "1"})
    assert result.returncode == 0, result.stderr
    told = {line for line in result.stderr.splitlines() if line.startswith("field ")}
    assert told == {
        "field f type 1 length 4 first 1",
        "field s type 1 length 1 first 1",
        "field i type 5 length 4 first 1",
        "field n type 5 length 4 first 1",
        "field t type 6 length 5 text ab",
        "field z type 5 length 1 first 2147483647",
    }


@pytest.mark.parametrize("value", [[1, 2], 5, tensor("int32", 2, 2)])
def test_the_declared_length_counts(value: Any) -> None:
    creator = Creator("MyGelu", "1", "", "V3ONE", (Field("w", "int32", 3),), "lib.so")
    (fault,) = attributes.check(node("MyGelu", w=value), creator)
    assert "'w' has" in fault.reason
    assert "3 declared" in fault.reason


def test_attributes_of_a_python_op(fails: Any, builds: Any, tmp_path: Path) -> None:
    plugin = python_op(tmp_path / "op.py", "Same", alpha="float = 0.5", mode="int = 0", kind="str = 'a'")
    save(tmp_path / "m.onnx", node("Same", alpha=1, mode=2.0, kind="b"))
    assert builds("--plugin", plugin)[1] == {"g": "Same"}
    save(tmp_path / "m.onnx", node("Same", alpha=[1.0, 2.0], mode=[1], kind=["b"], beta=1))
    fails("--plugin", plugin, words=["'alpha' has 2 values, 1 declared", "'kind' is strings", "'beta' is not one"])


# --- inputs: none, left out, shapes --------------------------------------------------------------------------------


@needs_compiler
def test_a_node_without_input(fails: Any, tmp_path: Path) -> None:
    save(tmp_path / "m.onnx", node("LoadTable", [], path="t.npz"))
    library = plugin_library("LoadTable", fields=(("path", "char", 1),))
    fails("--plugin", library, words=["node g (acme::LoadTable)", "it has no input", "an input that it ignores"])
    fails(words=["no plugin and no function body", "it has no input"])


@needs_compiler
def test_inputs_that_are_left_out(fails: Any, builds: Any, run: Run, tmp_path: Path) -> None:
    """At the end it means nothing; in between it keeps its place, which TensorRT-RTX has no way to say."""
    weights = {"b": np.ones(4, np.float32)}
    save(tmp_path / "m.onnx", node("MyGelu", ["x", "", "b"]), weights=weights)
    fails("--plugin", plugin_library(), words=["input 1 is left out", "needs every input of a plugin"])
    save(tmp_path / "m.onnx", node("MyGelu", ["x", "b", ""]), weights=weights)
    assert builds("--plugin", plugin_library())[1] == {"g": "MyGelu"}
    assert "inputs 2" in run("build", "m.onnx", "--plugin", plugin_library(), env={"LOUD": "1"}).stderr


@needs_compiler
@pytest.mark.parametrize(
    ("indices", "words"),
    [
        ([5], "names input 5, the node has 2"),
        ([-1], "names input -1"),
        (1, "is an integer; a list of integers is expected"),
        ([1, 1], "names an input twice"),
    ],
)
def test_shape_inputs_that_are_none(indices: Any, words: str, fails: Any, tmp_path: Path) -> None:
    pads = node("MyPad", ["x", "pads"], tensorrt_plugin_shape_input_indices=indices)
    save(tmp_path / "m.onnx", pads, weights={"pads": np.ones(4, np.int64)})
    fails("--plugin", plugin_library("MyPad"), words=["tensorrt_plugin_shape_input_indices", words])


@needs_compiler
def test_shape_inputs(run: Run, tmp_path: Path) -> None:
    pads = node("MyPad", ["x", "pads"], tensorrt_plugin_shape_input_indices=[1])
    save(tmp_path / "m.onnx", pads, weights={"pads": np.ones(4, np.int64)})
    result = run("build", "m.onnx", "--plugin", plugin_library("MyPad"), env={"LOUD": "1"})
    assert result.returncode == 0, result.stderr
    assert "shape inputs 1" in result.stderr


# --- types ---------------------------------------------------------------------------------------------------------


@needs_compiler
def test_the_cast_that_helps_is_found(fails: Any, builds: Any, tmp_path: Path) -> None:
    """A plugin that takes int32 only, and an axis of int64: the message's flag builds."""
    library = plugin_library("CumSum", accepts="int32")
    save(tmp_path / "m.onnx", node("CumSum", ["x", "axis"], name="p0"), weights={"axis": np.array([1])})
    words = ["node p0 (acme::CumSum)", "0 (x) float32, 1 (axis) int64", "--cast p0:1=int32"]
    fails("--plugin", library, words=words)
    for flag in ("--cast", "--cast-plugin-input"):
        assert builds("--plugin", library, flag, "p0:1=int32")[1] == {"p0": "CumSum"}
    assert builds("--plugin", library, "--cast", "acme::CumSum:axis=int32")[1] == {"p0": "CumSum"}


@needs_compiler
def test_a_float16_model_around_a_float32_plugin_of_a_library(fails: Any, builds: Any, tmp_path: Path) -> None:
    library = plugin_library(accepts_first="float32")
    relu = helper.make_node("Relu", ["t"], ["y"], name="after")
    save(tmp_path / "m.onnx", node("MyGelu", output="t"), relu, dtype=TensorProto.FLOAT16)
    words = ["0 (x) float16", "--cast g:0=float32", "--cast g:out0=float16"]
    fails("--plugin", library, words=words)
    assert builds("--plugin", library, "--cast", "g:0=float32", "--cast", "g:out0=float16")[1] == {"g": "MyGelu"}


def test_a_float16_chain_around_float32_ops(builds: Any, run: Run, tmp_path: Path) -> None:
    """Casts to float32 and back, one pair a node, and a line on each."""
    plugin = python_op(tmp_path / "op.py", "Wide", dtypes="('float32',)")
    nodes = [node("Wide", output="t", name="a"), node("Wide", ["t"], "u", name="b")]
    save(tmp_path / "m.onnx", *nodes, helper.make_node("Relu", ["u"], ["y"]), dtype=TensorProto.FLOAT16)
    notes, plugins = builds("--plugin", plugin)
    assert plugins == {"a": "Wide", "b": "Wide"}
    for name in "ab":
        assert f"{name}: Wide takes no float16, Casts to float32 and back are around it" in notes


def test_a_python_op_that_does_not_take_the_type(fails: Any, builds: Any, tmp_path: Path) -> None:
    plugin = python_op(tmp_path / "op.py", "Narrow", dtypes="('int32',)")
    save(tmp_path / "m.onnx", node("Narrow"), dtype=TensorProto.INT64)
    fails("--plugin", plugin, words=["0 (x) int64", "--cast g:0=int32"])
    assert builds("--plugin", plugin, "--cast", "g:0=int32", "--cast", "g:out0=int64")[1] == {"g": "Narrow"}


@needs_compiler
@pytest.mark.parametrize("stored", [TensorProto.FLOAT16, TensorProto.FLOAT, TensorProto.INT64])
def test_stale_value_info_around_a_plugin(stored: int, builds: Any, run: Run, tmp_path: Path) -> None:
    """The plugin's output type is what the plugin says, whatever the file remembers."""
    info = helper.make_tensor_value_info("n", stored, [7])
    save(
        tmp_path / "m.onnx",
        helper.make_node("Cast", ["x"], ["h"], name="down", to=TensorProto.FLOAT16),
        node("LN", ["h"], "n"),
        helper.make_node("MatMul", ["n", "w"], ["y"], name="product"),
        weights={"w": np.ones((4, 3), np.float16)},
        out=(TensorProto.FLOAT16, (2, 3)),
        infos=[info],
    )
    assert builds("--plugin", plugin_library("LN"))[1] == {"g": "LN"}
    assert run("inspect", "m.onnx", "--plugin", plugin_library("LN")).returncode == 0


@needs_compiler
def test_types_that_differ_behind_a_plugin_are_told(fails: Any, tmp_path: Path) -> None:
    save(
        tmp_path / "m.onnx",
        helper.make_node("Cast", ["x"], ["h"], name="down", to=TensorProto.FLOAT16),
        node("LN", ["h"], "n"),
        helper.make_node("MatMul", ["n", "w"], ["y"], name="product"),
        weights={"w": np.ones((4, 3), np.float32)},
        out=(TensorProto.FLOAT, (2, 3)),
    )
    assert "product" in fails("--plugin", plugin_library("LN"))


# --- where nodes can be --------------------------------------------------------------------------------------------


@needs_compiler
def test_nodes_in_functions_and_branches(fails: Any, builds: Any, tmp_path: Path) -> None:
    body = [node("MyGelu", ["X"], "t", name="inner"), helper.make_node("Relu", ["t"], ["Y"])]
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("acme", 1)]
    block = helper.make_function("acme", "Block", ["X"], ["Y"], body, imports)
    value = helper.make_tensor_value_info("b", TensorProto.FLOAT, [2, 4])
    branches = {
        "then_branch": helper.make_graph([node("MyGelu", ["t"], "b", name="deep", z=1)], "then", [], [value]),
        "else_branch": helper.make_graph([helper.make_node("Relu", ["t"], ["b"])], "else", [], [value]),
    }
    save(
        tmp_path / "m.onnx",
        node("Block", output="s", name="block"),
        helper.make_node("ReduceSum", ["s"], ["sum"], keepdims=0),
        helper.make_node("Cast", ["sum"], ["condition"], to=TensorProto.BOOL),
        helper.make_node("Neg", ["s"], ["t"]),
        helper.make_node("If", ["condition"], ["y"], name="if", **branches),
        functions=[block],
    )
    library = plugin_library()
    fails("--plugin", library, words=["deep", "'z' is not one that the plugin declares"])
    _, plugins = builds("--plugin", library, "--set-attr", "deep.z=", "--cast", "deep:0=float32")
    assert "deep" in plugins
    assert len(plugins) == 2


@needs_compiler
def test_names_that_messages_give_can_be_used(fails: Any, builds: Any, tmp_path: Path) -> None:
    """Nodes of one name get a number, nodes without one a name."""
    hostile = "a:0=b.c@d/\u00e9"
    chain = [
        node("MyGelu", ["x"], "t", name="same", z=1),
        node("MyGelu", ["t"], "u", name="same", z=1),
        node("MyGelu", ["u"], "v", name="", z=1),
        node("MyGelu", ["v"], "y", name=hostile, z=1),
    ]
    save(tmp_path / "m.onnx", *chain)
    text = fails("--plugin", plugin_library())
    flags = [part.split(")")[0] for part in text.split("--set-attr ")[1:]]
    assert flags == ["same.z=", "same_1.z=", "MyGelu_v.z=", f"{hostile}.z="]
    wanted = [word for flag in flags for word in ("--set-attr", flag)]
    assert len(builds("--plugin", plugin_library(), *wanted)[1]) == 4


@needs_compiler
def test_dynamic_shapes(builds: Any, tmp_path: Path) -> None:
    save(tmp_path / "m.onnx", node("MyGelu"), shape=("N", 4))
    assert builds("--plugin", plugin_library(), "--shape", "x=1x4,2x4,8x4")[1] == {"g": "MyGelu"}


@needs_compiler
def test_verify_compares_with_the_function_body(builds: Any, run: Run, tmp_path: Path) -> None:
    relu = [helper.make_node("Relu", ["X"], ["Y"])]
    body = helper.make_function("acme", "MyGelu", ["X"], ["Y"], relu, [helper.make_opsetid("", 17)])
    save(tmp_path / "m.onnx", node("MyGelu"), functions=[body])
    assert builds("--plugin", plugin_library(), "--map", "acme::MyGelu=MyGelu")[1] == {"g": "MyGelu"}
    result = run("verify", "m.plan")
    assert result.returncode in (1, 3), result.stderr  # 1 on a GPU: the library's kernel writes nothing
    assert "\nfused " in result.stdout


# --- what full TensorRT would do -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("interface", "full"), [("V1", False), ("V3QUICK", False), ("V1", True), ("V3ONE", False)])
def test_interfaces_that_the_parser_imports(interface: str, full: bool) -> None:
    creator = Creator("MyGelu", "1", "", interface, (), "lib.so")
    faults: list[Fault] = []
    nodes, _ = Custom("TensorRT", [creator], full=full).prepare([node("MyGelu")], faults)
    assert bool(nodes) == (full or interface == "V3ONE")
    assert [interface in fault.reason for fault in faults] == [True] * (not nodes)


def test_left_out_inputs_keep_their_place_in_full_tensorrt() -> None:
    creator, faults = Creator("MyGelu", "1", "", "V3ONE", (), "lib.so"), list[Fault]()
    one = node("MyGelu", ["x", "", "b", ""])
    nodes, _ = Custom("TensorRT", [creator], full=True).prepare([one], faults)
    assert [found.node for found in nodes] == ["g"]
    assert list(one.input) == ["x", "", "b"]


def test_shape_inputs_are_for_plugins_of_version_3() -> None:
    creator, faults = Creator("MyPad", "1", "", "V1", (), "lib.so"), list[Fault]()
    pads = node("MyPad", ["x", "pads"], tensorrt_plugin_shape_input_indices=[1])
    Custom("TensorRT", [creator], full=True).prepare([pads], faults)
    assert "is for plugins of version 3" in faults[0].reason


def test_one_fault_takes_few_lines(run: Run, tmp_path: Path) -> None:
    save(tmp_path / "m.onnx", node("MyGelu"))
    assert_clean_error(run("build", "m.onnx"), "node g (acme::MyGelu)")
