"""Makes a model importable by TensorRT's parser, without changing what it computes."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import onnx
from onnx import ModelProto, NodeProto, helper

from trtconvert import branches, contrib, loops, narrow_integers, parameters, registry, standard
from trtconvert import graph as onnx_graph
from trtconvert import model as onnx_model
from trtconvert.bodies import is_ours
from trtconvert.errors import ConvertError
from trtconvert.faults import Fault, refusal
from trtconvert.functions import inline_local
from trtconvert.op import Op
from trtconvert.quantization import dequantize_biases


@dataclass(frozen=True)
class PluginNode:
    """A node that the parser must import as a plugin: its name after lowering, and the op that implements it."""

    node: str
    op: type[Op]


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
) -> Lowered:
    """Prepare a copy for parsing: bodies that fuse wrote go, where the op has a creator (older parsers would take them
    instead of the plugin), other local functions are inlined (a function named like a standard op would be taken for
    that op), onnxruntime's ops without a plugin are written as standard ones, an If of known condition gives way to its
    branch, standard ops that TensorRT lacks to the body that ONNX defines for them if no op of that name is registered,
    biases of quantized models to floats, plugin nodes get all attributes and outputs, every node a unique name.

    folder: of external data. supports: whether TensorRT takes a standard op without a plugin. shapes: known dimensions
    of inputs that the model leaves open. Raises ConvertError that lists every node which neither ONNX, nor a function,
    nor a registered op defines, or that says why one of onnxruntime's ops cannot be written as standard ones; if lenient,
    they are the result's faults instead.
    """
    copy = onnx_model.copy(model)
    _name_functions(copy)
    faults: list[Fault] = []
    kept = [f for f in copy.functions if not (is_ours(f.domain) and registry.find(f.name))]
    del copy.functions[:]
    copy.functions.extend(kept)
    known = shapes or onnx_graph.NOTHING
    onnx_graph.clear_unknown_dims(copy)
    copy, notes = _standard(inline_local(copy), folder, faults if lenient else None)
    folds = branches.fold(copy, folder, known)
    notes += [f"If {f.node}: its condition is constant, the {f.branch} branch was taken" for f in folds]
    given = {node.name or next(filter(None, node.output), "") for node in onnx_model.all_nodes(model)}
    if folded := [name for name in parameters.settle(copy, folder, known) if name in given]:
        shown = ", ".join(folded[:5]) + (", ..." if folded[5:] else "")
        notes.append(f"computed before the build: {shown} ({len(folded)} node{'s' * (len(folded) > 1)})")
    taken = {op.name for op in registry.ops()}
    copy, written = standard.standardize(copy, folder, lambda op: supports(op) or op in taken, known, faults)
    notes += [f"{op} x{count} written as {how}" for (op, how), count in written.items()]
    branches.fold(copy, folder, known)  # what is in functions that ONNX defines
    parameters.settle(copy, folder, known)
    if widened := narrow_integers.widen(copy, folder):
        notes.append(f"{widened} nodes compute with integers of 8 bits in int32")
    if biases := dequantize_biases(copy, folder):
        notes.append(f"DequantizeLinear x{biases} of int32 constants written as floats")
    nodes = list(onnx_model.all_nodes(copy))
    _name(nodes)
    loops.settle(copy)
    custom = [node for node in nodes if node.domain not in onnx_model.STANDARD_DOMAINS]
    unknown = [node for node in custom if registry.find(node.op_type) is None]
    faults += [_unknown(node) for node in unknown if not any(f.node == node.name for f in faults)]
    if faults and not lenient:
        raise refusal("trtconvert", faults)
    lacking = [n for n in nodes if n.domain in onnx_model.STANDARD_DOMAINS and not supports(n.op_type)]
    served = [node for node in lacking if registry.find(node.op_type) is not None]
    plugins = [node for node in (*custom, *served) if registry.find(node.op_type) is not None]
    return Lowered(copy, list(_plugins(plugins, faults if lenient else None)), notes, faults)


def _plugins(nodes: Iterable[NodeProto], faults: list[Fault] | None) -> Iterator[PluginNode]:
    for node in nodes:
        try:
            yield _plugin(node)
        except ConvertError as error:
            if faults is None:
                raise
            faults.append(Fault(node.name, node.op_type, error.what, error.fix or ""))


def _standard(model: ModelProto, folder: Path, faults: list[Fault] | None) -> tuple[ModelProto, list[str]]:
    """onnxruntime's ops as standard ones. With a list of faults, those that cannot be written go there, and none is."""
    onnx_model.adopt_ort_ops(model)
    if not any(contrib.is_contrib(node) for node in onnx_model.all_nodes(model)):
        return model, []
    views = onnx_graph.views(model, folder)
    if faults is not None:
        for graph, view in zip(onnx_model.all_graphs(model.graph), views, strict=True):
            for node in graph.node:
                known = registry.find(node.op_type) is not None or not contrib.is_contrib(node)
                if not known and (why := contrib.refusal(node, view)):
                    faults.append(Fault(node.name, f"{node.domain}::{node.op_type}", why, "", view.path + node.name))
        if faults:
            return model, []
    model, written = contrib.standardize(model, views, keep=lambda op_type: registry.find(op_type) is not None)
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
        base = node.name or f"{node.op_type}_{node.output[0] if node.output else ''}"
        name, count = base, 1
        while name in taken:
            name, count = f"{base}_{count}", count + 1
        taken.add(name)
        node.name = name


def _plugin(node: NodeProto) -> PluginNode:
    """Check the node's attributes against the op's, and fill in those it lacks: the parser passes on what it finds."""
    op = registry.find(node.op_type)
    assert op is not None
    declared = op.attributes()
    for name, value in onnx_model.attribute_values(node).items():
        if name in ("plugin_version", "plugin_namespace"):
            continue
        if name not in declared:
            near = difflib.get_close_matches(name, declared, 1)
            raise ConvertError(
                f"attribute {name!r} of {node.op_type} is not one that the op declares ({', '.join(declared) or 'none'})",
                where=f"node {node.name}",
                fix=f"rename it to {near[0]!r}" if near else "remove it, or add it to the op",
            )
        if not isinstance(value, declared[name]):
            raise ConvertError(
                f"attribute {name!r} of {node.op_type} is {value!r}, the op declares {declared[name].__name__}",
                where=f"node {node.name}",
                fix="export it with that type",
            )
        if isinstance(value, int) and not -(2**31) <= value < 2**31:
            raise ConvertError(
                f"attribute {name!r} of {node.op_type} is {value}, TensorRT passes 32-bit integers to plugins",
                where=f"node {node.name}",
                fix="use a value within 32 bits",
            )
    present = {a.name for a in node.attribute}
    for name, value in op().values().items():
        if name not in present:
            node.attribute.append(helper.make_attribute(name, value))
    if op.version != "1" and "plugin_version" not in present:
        node.attribute.append(helper.make_attribute("plugin_version", op.version))
    if len(node.input) != len(op.inputs()):
        raise ConvertError(
            f"{node.op_type} has {len(node.input)} inputs, the op takes {len(op.inputs())}: {', '.join(op.inputs())}",
            where=f"node {node.name}",
        )
    # The parser wants as many outputs as the plugin has, which has one more for each size that depends on the data.
    node.output.extend(f"{node.name}_counted_{i}" for i in range(op.counts()))
    return PluginNode(node.name, op)


def _unknown(node: NodeProto) -> Fault:
    known = [op.name for op in registry.ops()]
    hint = "".join(f"nearest registered op: {name}; " for name in difflib.get_close_matches(node.op_type, known, 1))
    if node.domain.startswith(onnx_model.ORT_DOMAIN):
        hint += "onnxruntime's optimizer wrote them: give the model from before, or optimized at level BASIC; "
    if onnx.defs.has(node.op_type):
        hint += f"{node.op_type} is also a standard ONNX op: use domain '' if that is meant; "
    return Fault(
        node.name,
        f"{node.domain}::{node.op_type}",
        "no plugin and no function body for this custom op",
        f"{hint}give a plugin with --plugin FILE.py (see README, 'Add an op'); registered: {', '.join(known)}",
    )
