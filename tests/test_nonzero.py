"""NonZero, whose output's shape depends on the data: a plugin in TensorRT-RTX, and what is built around it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import NodeProto, TensorProto, helper, numpy_helper

from tests.conftest import Run
from trtconvert import BuildOptions, ConvertError, build, preflight, registry
from trtconvert.build import BuildResult
from trtconvert.launch import Counted, Dim, Tensor
from trtconvert.lower import lower
from trtconvert.model import elem_type
from trtconvert.runtime.contents import plugins_in
from trtconvert.shapes import parse

X = ("x", TensorProto.FLOAT, (6, 8))
MASK = ("m", TensorProto.BOOL, (6,))


def node(op_type: str, inputs: str, outputs: str, **attributes: Any) -> NodeProto:
    return helper.make_node(op_type, inputs.split(), outputs.split(), name=f"{outputs.split()[0]}_node", **attributes)


def model(nodes: list[NodeProto], inputs: list[Any], output: tuple[str, int], opset: int = 17, **constants: Any) -> Any:
    """A model of these nodes; the output's shape is left open."""
    shown = [helper.make_tensor_value_info(name, kind, shape) for name, kind, shape in inputs]
    result = helper.make_tensor_value_info(output[0], output[1], None)
    weights = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "g", shown, [result], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def built(made: onnx.ModelProto, folder: Path, shapes: tuple[str, ...] = ()) -> BuildResult:
    onnx.save(made, folder / "model.onnx")
    return build(folder / "model.onnx", None, BuildOptions(shapes=parse(shapes), targets=("sm_89",)))


ONE = [node("NonZero", "x", "y")]


@pytest.mark.parametrize("opset", [9, 13])
@pytest.mark.parametrize("dtype", ["bool", "int8", "int32", "int64", "float32", "float16", "bfloat16"])
def test_every_dtype(dtype: str, opset: int, tmp_path: Path) -> None:
    if opset == 9 and dtype == "bfloat16":
        pytest.skip("ONNX has bfloat16 for NonZero from opset 13 on")
    result = built(model(ONE, [("x", elem_type(dtype), (3, 4))], ("y", TensorProto.INT64), opset), tmp_path)
    assert [(n.op.name, n.node) for n in result.plugin_nodes] == [("NonZero", "y_node")]
    (use,) = result.manifest.plugins
    assert (use.name, use.version, use.nodes) == ("NonZero", "1", ["y_node"])
    assert [(io.dtype, io.shape) for io in result.manifest.engine_outputs] == [("int64", [2, -1])]
    assert {p.name for p in plugins_in(result.plan.read_bytes())} == {"NonZero"}


@pytest.mark.parametrize("shape", [(), (0, 4), (5,), (1, 2, 1, 3, 1, 2, 1, 2)])
def test_every_rank(shape: tuple[int, ...], tmp_path: Path) -> None:
    result = built(model(ONE, [("x", TensorProto.FLOAT, shape)], ("y", TensorProto.INT64), 13), tmp_path)
    assert (result.manifest.engine_outputs[0].shape or [None])[0] == len(shape)


GATHER = [node("NonZero", "m", "i"), node("Transpose", "i", "t", perm=[1, 0]), node("GatherND", "x t", "y")]
SCATTER = [
    *GATHER[:2],
    node("GatherND", "x t", "rows"),
    node("Mul", "rows two", "twice"),
    node("ScatterND", "x t twice", "y"),
]
GRAPHS = {
    "x[m]": model(GATHER, [X, MASK], ("y", TensorProto.FLOAT)),
    "x[m] of all": model(GATHER, [X, ("m", TensorProto.BOOL, (6, 8))], ("y", TensorProto.FLOAT)),
    "x[m] dynamic": model(
        GATHER, [("x", TensorProto.FLOAT, ("N", 8)), ("m", TensorProto.BOOL, ("N",))], ("y", TensorProto.FLOAT)
    ),
    "x[m] *= 2": model(SCATTER, [X, MASK], ("y", TensorProto.FLOAT), two=np.float32(2)),
    "linear of x[m]": model(
        [*GATHER[:2], node("GatherND", "x t", "rows"), node("MatMul", "rows w", "y")],
        [X, MASK],
        ("y", TensorProto.FLOAT),
        w=np.ones((8, 4), np.float32),
    ),
    "index_select": model(
        [*GATHER[:2], node("Squeeze", "t one", "s"), node("Gather", "x s", "y")],
        [X, MASK],
        ("y", TensorProto.FLOAT),
        one=[1],
    ),
    "the first three": model(
        [node("NonZero", "x", "i"), node("Slice", "i zero three one", "y")],
        [X],
        ("y", TensorProto.INT64),
        zero=[0],
        three=[3],
        one=[1],
    ),
    "how many": model(
        [node("NonZero", "x", "i"), node("Shape", "i", "s"), node("Gather", "s one", "y")],
        [X],
        ("y", TensorProto.INT64),
        one=1,
    ),
    "twice": model(
        [node("NonZero", "x", "i"), node("NonZero", "i", "j"), node("ReduceSum", "j", "y", keepdims=0)],
        [X],
        ("y", TensorProto.INT64),
    ),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_graphs_around_it(name: str, tmp_path: Path) -> None:
    shapes = ("x=1x8,6x8,64x8", "m=1,6,64") if "dynamic" in name else ()
    result = built(GRAPHS[name], tmp_path, shapes)
    assert {n.op.name for n in result.plugin_nodes} == {"NonZero"}
    assert len(result.plugin_nodes) == sum(n.op_type == "NonZero" for n in GRAPHS[name].graph.node)


def test_what_the_builder_refuses(tmp_path: Path) -> None:
    """x[m] = 1, as an exporter may write it: how many to write is a sum over the mask, which the parser cannot take."""
    nodes = [
        node("NonZero", "m", "i"),
        node("Transpose", "i", "t", perm=[1, 0]),
        node("Cast", "m", "c", to=TensorProto.INT64),
        node("ReduceSum", "c", "n", keepdims=1),
        node("Expand", "v n", "u"),
        node("ScatterND", "x t u", "y"),
    ]
    made = model(nodes, [("x", TensorProto.FLOAT, (6,)), MASK], ("y", TensorProto.FLOAT), v=np.float32(1))
    with pytest.raises(ConvertError) as caught:
        built(made, tmp_path)
    assert "u_node (Expand)" in str(caught.value)
    assert "behind i_node (NonZero)" in str(caught.value)
    assert "torch.where" in str(caught.value)
    assert "cuda" not in str(caught.value).lower()
    assert len(str(caught.value).splitlines()) <= 4


def test_native_where_the_backend_has_it() -> None:
    made = model(ONE, [X], ("y", TensorProto.INT64))
    assert lower(made, Path(), lambda _: True).plugin_nodes == []
    assert [n.op.name for n in lower(made, Path(), lambda name: name != "NonZero").plugin_nodes] == ["NonZero"]


def test_inspect_and_verify(run: Run, tmp_path: Path) -> None:
    result = built(GRAPHS["x[m]"], tmp_path)
    report = preflight.inspect_model(tmp_path / "model.onnx")
    assert [(n.op, n.status) for n in report.nodes] == [
        ("NonZero", "plugin"),
        ("Transpose", "native"),
        ("GatherND", "native"),
    ]
    shown = run("inspect", tmp_path / "model.onnx").stdout
    assert "plugin NonZero version 1" in shown
    assert "TensorRT can import every node" in shown
    assert "NonZero version 1, 1 layer" in run("inspect", result.plan).stdout
    verified = run("verify", result.plan)
    assert verified.returncode in (0, 3), verified.stderr
    assert "pass" in verified.stdout
    described = json.loads((tmp_path / "model.plan.json").read_text())
    assert [p["provider"] for p in described["plugins"]] == ["trtconvert.plugins.nonzero"]


DET = '''
"""Det: a standard op that TensorRT lacks, of 2 by 2 matrices."""
from trtconvert import Op, case
from trtconvert.launch import Launch, Tensor, ceil_div


class Det(Op):
    """y = det(x)   x [N, 2, 2] float32, y [N]."""

    dtypes = ("float32",)
    source = """
    extern "C" __global__ void det(const IO* x, IO* y, long long n) {
        long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) y[i] = x[4 * i] * x[4 * i + 3] - x[4 * i + 1] * x[4 * i + 2];
    }
    """
    cases = (case((3, 2, 2)),)

    def output(self, x):
        return Tensor(x.dtype, x.shape[:-2])

    def launch(self, x, y):
        return Launch("det", (ceil_div(y.size, 128), 1, 1), (128, 1, 1), (x, y, y.size))
'''


def test_any_standard_op_may_be_a_plugin(run: Run, tmp_path: Path) -> None:
    """A third party's op of the name stands in for what TensorRT cannot import."""
    (tmp_path / "det.py").write_text(DET)
    onnx.save(
        model([node("Det", "x", "y")], [("x", TensorProto.FLOAT, (5, 2, 2))], ("y", TensorProto.FLOAT)),
        tmp_path / "d.onnx",
    )
    assert "unsupported" in run("inspect", tmp_path / "d.onnx").stdout
    assert "plugin Det version 1" in run("inspect", tmp_path / "d.onnx", "--plugin", tmp_path / "det.py").stdout
    done = run("build", tmp_path / "d.onnx", "--plugin", tmp_path / "det.py", "-o", tmp_path / "d.plan")
    assert done.returncode == 0, done.stderr
    assert "Det x1" in done.stdout
    verified = run("verify", tmp_path / "d.plan")
    assert verified.returncode in (0, 3), verified.stderr


def test_counted_sizes() -> None:
    """In arithmetic the upper bound; the kernel's scalars lie behind the outputs."""
    op = registry.find("NonZero")
    assert op is not None
    rows = Dim.of_input(0, 0)
    y, n = op().outputs(Tensor("bool", (rows, 4), "in 0"))
    assert (y.dtype, y.slot, n.dtype, n.shape, n.slot) == ("int64", "out 0", "int64", (), "out 1")
    assert isinstance(y.shape[1], Counted)
    assert str(y.size) == "2 i0.0 4 * *"
    assert op().results(Tensor("bool", (rows, 4), "in 0")) == (Tensor("int64", y.shape),)
    assert str(Counted(5) + 1) == "5 1 +"


def test_reference() -> None:
    op = registry.find("NonZero")
    assert op is not None
    x = np.array([[0.0, 2.0], [np.nan, -0.0], [np.inf, 0.0]])
    assert op().reference(x).tolist() == [[0, 1, 2], [1, 0, 0]]
    assert op().reference(np.array(3.0)).shape == (0, 1)
    assert op().reference(np.array(0.0)).shape == (0, 0)
    assert "up to 8" in str(op().accepts(Tensor("bool", (1,) * 9)))
