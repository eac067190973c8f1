"""A model made ready for another precision: its functions and onnxruntime's ops written out, its 16-bit floats as float32."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from onnx import ModelProto, version_converter

from trtconvert import graph as onnx_graph
from trtconvert import model as onnx_model
from trtconvert.bodies import add_bodies, is_ours, raise_ir
from trtconvert.custom_ops.custom import Custom
from trtconvert.errors import ConvertError
from trtconvert.graph import GraphView, Known
from trtconvert.lowering import branches, contrib
from trtconvert.lowering.functions import inline_local
from trtconvert.precision import kinds, schemas
from trtconvert.precision.casting import Casting, hoist_constants

NEWEST = 22  # the opset up to which a model is raised, for types that its ops have only there


def prepare(model: ModelProto, folder: Path, known: Known, custom: Custom) -> ModelProto:
    """A copy in which every node that computes with floats stands in a graph, as a standard op where it can, and computes in
    float32; bodies of ours stay. known: dimensions of inputs that the model leaves open."""
    copy = onnx_model.copy(model)
    copy = inline_local(copy, lambda f: not is_ours(f.domain) and not custom.wishes.drops(f))
    onnx_model.adopt_ort_ops(copy)
    if any(contrib.is_contrib(node) for node in onnx_model.all_nodes(copy)):
        with suppress(ConvertError):  # the build will say it
            copy, _ = contrib.standardize(onnx_model.copy(copy), onnx_graph.views(copy, folder), keep=custom.has)
    branches.fold(copy, folder, known)
    hoist_constants(copy)
    Casting(copy, folder, views(copy, folder), kinds.NARROW, "float32", lambda _view, _node: None).run()
    return copy


def views(model: ModelProto, folder: Path) -> list[GraphView]:
    """Views of all graphs, in which types are known behind custom ops of ours too."""
    found = onnx_graph.views(model, folder)
    if all(node.domain in onnx_model.STANDARD_DOMAINS for node in onnx_model.all_nodes(model)):
        return found
    bodied = onnx_model.copy(model)
    add_bodies(bodied)
    for view, infos in zip(found, onnx_graph.infer(bodied).values(), strict=True):
        view.infos = infos
    return found


def raise_opset(model: ModelProto, target: str) -> ModelProto:
    """The model in an opset in which its ops take the target type, or as it is where ONNX cannot convert it.

    Bodies of ours stay as they are; `Casting` writes them anew.
    """
    opset = onnx_model.opset(model)
    ops = {node.op_type for node in onnx_model.all_nodes(model) if node.domain in onnx_model.STANDARD_DOMAINS}
    wanted = max((schemas.opset_for(op, opset, target, NEWEST) for op in ops), default=opset)
    if wanted == opset:
        return model
    with suppress(ConvertError):
        raised = in_opset(model, wanted)
        onnx_model.check(raised)  # ONNX's converter makes something else of some, as of Scan before opset 9
        return raised
    return model


def in_opset(model: ModelProto, opset: int) -> ModelProto:
    """The model in that opset, by ONNX's converter. Weights take no part, so that those in other files stay there; functions stay
    as they are. ConvertError where ONNX cannot convert it."""
    bare = onnx_model.skeleton(model)
    weights = {t.name for t in bare.graph.initializer}
    del bare.functions[:]
    try:
        raised = version_converter.convert_version(bare, opset)
    except (RuntimeError, ValueError, version_converter.ConvertError) as error:
        raise ConvertError(
            f"ONNX cannot bring the model from opset {onnx_model.opset(model)} to {opset}: "
            f"{' '.join(str(error).split())[:200]}",
            fix=f"export the model with opset {opset} or newer",
        ) from error
    del raised.graph.input[:]
    raised.graph.input.extend(model.graph.input)
    raised.graph.initializer.extend(t for t in model.graph.initializer if t.name not in weights)
    raise_ir(raised)
    raised.functions.extend(model.functions)
    return raised
