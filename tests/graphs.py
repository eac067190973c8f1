"""Small models written as ONNX text, for tests of what TensorRT takes and what it refuses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
from onnx import ModelProto, TensorProto, helper, numpy_helper

from trtconvert import BuildOptions, ConvertError, build
from trtconvert.build import BuildResult

X, Y = "float[2,4] x", "float[2,4] y"
FAST = BuildOptions(targets=("sm_89",), fuse="none")


def graph(
    nodes: str,
    inputs: str = X,
    outputs: str = Y,
    weights: str = "",
    opset: int = 17,
    ir: int = 8,
    functions: str = "",
    domains: str = '"acme" : 1',
) -> ModelProto:
    """A model of these nodes; x float32[2,4] to y of the same where nothing else is said."""
    opsets = ", ".join(filter(None, (f'"" : {opset}', domains)))
    held = f" <{weights}>" if weights else ""
    return onnx.parser.parse_model(
        f"<ir_version: {ir}, opset_import: [{opsets}]> g ({inputs}) => ({outputs}){held} {{ {nodes} }} {functions}"
    )


def layer_norm(scale: float = 300.0) -> ModelProto:
    """GELU(LayerNorm(scale * x)) in primitive ops."""
    random = np.random.default_rng(0)
    numbers = {"two": 2.0, "eps": 1e-5, "root": 2**0.5, "one": 1.0, "half": 0.5, "scale": scale}
    vectors = {name: random.standard_normal(768) for name in ("gamma", "beta")}
    weights = [numpy_helper.from_array(np.asarray(v, np.float32), k) for k, v in (numbers | vectors).items()]
    steps = [
        ("Mul", "x scale", "large"), ("ReduceMean", "large", "mean"), ("Sub", "large mean", "d"), ("Pow", "d two", "square"),
        ("ReduceMean", "square", "variance"), ("Add", "variance eps", "sum"), ("Sqrt", "sum", "std"), ("Div", "d std", "n"),
        ("Mul", "n gamma", "scaled"), ("Add", "scaled beta", "z"), ("Div", "z root", "u"), ("Erf", "u", "e"),
        ("Add", "e one", "p"), ("Mul", "z p", "zp"), ("Mul", "zp half", "y"),
    ]  # fmt: skip
    nodes = [
        helper.make_node(op, names.split(), [out], name=out, **({"axes": [-1]} if op == "ReduceMean" else {}))
        for op, names, out in steps
    ]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 8, 768]) for name in "xy")
    made = helper.make_graph(nodes, "layer_norm", [x], [y], weights)
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def named(model: ModelProto, *names: str) -> ModelProto:
    """The model with these names for its nodes, in order; text has none."""
    for node, name in zip(model.graph.node, names, strict=True):
        node.name = name
    return model


def save(model: ModelProto, folder: Path) -> Path:
    """Its file."""
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def built(model: ModelProto, folder: Path, options: BuildOptions = FAST) -> BuildResult:
    """A build that must succeed."""
    return build(save(model, folder), options=options)


def refused(model: ModelProto, folder: Path, options: BuildOptions = FAST) -> str:
    """What a build that must be refused says; it leaves nothing behind."""
    path = save(model, folder)
    before = sorted(folder.iterdir())
    try:
        build(path, options=options)
    except ConvertError as error:
        assert sorted(folder.iterdir()) == before
        return str(error)
    raise AssertionError("it was built")
