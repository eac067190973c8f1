"""Small models written as ONNX text, for tests of what TensorRT takes and what it refuses."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx.parser
from onnx import ModelProto

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
