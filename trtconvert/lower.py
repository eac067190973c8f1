"""Makes a model importable by TensorRT's parser, without changing what it computes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import onnx
from onnx import ModelProto, NodeProto

from trtconvert import graph as onnx_graph
from trtconvert import model as onnx_model
from trtconvert import standard
from trtconvert.bodies import is_ours
from trtconvert.custom_ops import formats, wishes
from trtconvert.custom_ops.custom import Custom, PluginNode
from trtconvert.diagnosis.faults import Fault, refusal
from trtconvert.lowering import branches, contrib, loops, narrow_integers, parameters
from trtconvert.lowering.functions import inline_local
from trtconvert.lowering.quantization import dequantize_biases


@dataclass(frozen=True)
class Lowered:
    """A model that TensorRT's parser can read, its plugin nodes, and a line on each kind of node that was rewritten."""

    model: ModelProto
    plugin_nodes: list[PluginNode]
    notes: list[str]
    faults: list[Fault] = field(default_factory=list)


def lower(
    model: ModelProto,
    folder: Path,
    supports: Callable[[str], bool],
    shapes: Mapping[str, Sequence[int | None]] | None = None,
    lenient: bool = False,
    custom: Custom | None = None,
) -> Lowered:
    """Prepare a copy for parsing: bodies that fuse wrote go, where the op has a creator (older parsers would take them
    instead of the plugin), other local functions are inlined (a function named like a standard op would be taken for
    that op), onnxruntime's ops without a plugin are written as standard ones, an If of known condition gives way to its
    branch, standard ops that TensorRT lacks to the body that ONNX defines for them if no op of that name is registered,
    biases of quantized models to floats, plugin nodes get all attributes and outputs, every node a unique name.

    folder: of external data. supports: whether TensorRT takes a standard op without a plugin. shapes: known dimensions
    of inputs that the model leaves open. custom: the creators that there are, and what is to be changed around their
    nodes. Raises ConvertError that lists every node which neither ONNX, nor a function, nor a creator defines or that its
    creator cannot take, or that says why one of onnxruntime's ops cannot be written as standard ones; if lenient, they are
    the result's faults instead.
    """
    custom = custom or Custom()
    copy = onnx_model.copy(model)
    _name_functions(copy)
    faults: list[Fault] = []
    known = shapes or onnx_graph.NOTHING
    notes = _drop_bodies(copy, custom)
    onnx_graph.clear_unknown_dims(copy)
    copy = inline_local(copy)
    wishes.give(onnx_model.all_nodes(copy), custom.wishes.maps)
    copy, said = _standard(copy, folder, custom, faults if lenient else None)
    folds = branches.fold(copy, folder, known)
    notes += [*said, *(f"If {f.node}: its condition is constant, the {f.branch} branch was taken" for f in folds)]
    given = {node.name or next(filter(None, node.output), "") for node in onnx_model.all_nodes(model)}
    if folded := [name for name in parameters.settle(copy, folder, known) if name in given]:
        shown = ", ".join(folded[:5]) + (", ..." if folded[5:] else "")
        notes.append(f"computed before the build: {shown} ({len(folded)} node{'s' * (len(folded) > 1)})")
    copy, written = standard.standardize(copy, folder, lambda op: supports(op) or custom.has(op), known, faults)
    notes += [f"{op} x{count} written as {how}" for (op, how), count in written.items()]
    if written:  # functions that ONNX defines hold Ifs and computed axes
        branches.fold(copy, folder, known)
        parameters.settle(copy, folder, known)
    if widened := narrow_integers.widen(copy, folder):
        notes.append(f"{widened} nodes compute with integers of 8 bits in int32")
    if biases := dequantize_biases(copy, folder):
        notes.append(f"DequantizeLinear x{biases} of int32 constants written as floats")
    _name(onnx_model.all_nodes(copy))
    loops.settle(copy)
    faults += wishes.cast(copy, custom.wishes.casts)
    nodes = [node for node in onnx_model.all_nodes(copy) if not any(f.node == node.name for f in faults)]
    plugin_nodes, told = custom.prepare([node for node in nodes if _is_custom(node, supports, custom)], faults)
    if faults and not lenient:
        raise refusal("trtconvert", faults)
    notes += [*told, *custom.settle_natives(copy, plugin_nodes), *formats.widen(copy, folder, plugin_nodes)]
    return Lowered(copy, plugin_nodes, notes, faults)


def _is_custom(node: NodeProto, supports: Callable[[str], bool], custom: Custom) -> bool:
    """Whether a plugin must make the node: ONNX does not have the op, or TensorRT lacks it and a creator has its name."""
    if node.domain not in onnx_model.STANDARD_DOMAINS or not onnx.defs.has(node.op_type):
        return True
    return not supports(node.op_type) and custom.has(node.op_type)


def _drop_bodies(model: ModelProto, custom: Custom) -> list[str]:
    """Bodies go that fuse wrote, where the op has a creator, and those whose nodes --map gives to one; notes on those that
    stay although a creator has their name."""
    kept = [f for f in model.functions if not (is_ours(f.domain) and custom.has(f.name)) and not custom.wishes.drops(f)]
    if len(kept) < len(model.functions):
        del model.functions[:]
        model.functions.extend(kept)
    return [
        f"{f.domain}::{f.name} has a function body in the model, which is used, not the plugin {f.name}; "
        f"--map {f.domain}::{f.name}={f.name} takes the plugin"
        for f in kept
        if custom.has(f.name)
    ]


def _standard(
    model: ModelProto, folder: Path, custom: Custom, faults: list[Fault] | None
) -> tuple[ModelProto, list[str]]:
    """onnxruntime's ops as standard ones. With a list of faults, those that cannot be written go there, and none is."""
    onnx_model.adopt_ort_ops(model)
    if not any(contrib.is_contrib(node) for node in onnx_model.all_nodes(model)):
        return model, []
    views = onnx_graph.views(model, folder)
    if faults is not None:
        for graph, view in zip(onnx_model.all_graphs(model.graph), views, strict=True):
            for node in graph.node:
                known = custom.has(node.op_type) or not contrib.is_contrib(node)
                if not known and (why := contrib.refusal(node, view)):
                    faults.append(Fault(node.name, f"{node.domain}::{node.op_type}", why, "", view.path + node.name))
        if faults:
            return model, []
    model, written = contrib.standardize(model, views, keep=custom.has)
    return model, [f"{op} x{count} (onnxruntime's) written as standard ONNX" for op, count in written.items()]


def name_nodes(model: ModelProto) -> None:
    """Give every node a name of its own, in place; those of a function begin with the function's."""
    _name(onnx_model.all_nodes(model))
    _name_functions(model)


def _name_functions(model: ModelProto) -> None:
    for function in model.functions:
        inner = [node for graph in onnx_model.function_graphs(function) for node in graph]
        for node in inner:
            if not node.name.startswith(f"{function.name}/"):
                node.name = f"{function.name}/{node.name or node.op_type}"
        _name(inner)


def _name(nodes: Iterable[NodeProto]) -> None:
    taken: set[str] = set()
    for node in nodes:
        base = wishes.default_name(node)
        name, count = base, 1
        while name in taken:
            name, count = f"{base}_{count}", count + 1
        taken.add(name)
        node.name = name
