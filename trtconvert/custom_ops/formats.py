"""Element types around plugin nodes: Casts where they lose nothing, and the Cast that would help where TensorRT refuses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper

from trtconvert import adapter
from trtconvert import graph as onnx_graph
from trtconvert import model as onnx_model
from trtconvert.custom_ops.attributes import SHAPE_INPUTS, op_title
from trtconvert.custom_ops.custom import PluginNode
from trtconvert.custom_ops.wishes import before_input, behind_output, replace_nodes
from trtconvert.diagnosis.faults import Fault
from trtconvert.op import Op

if TYPE_CHECKING:
    from trtconvert.backend import types

_NARROW = ("float16", "bfloat16")  # every value of which is also one of float32
_TRIED = ("float32", "float16", "int32", "int64", "bfloat16", "int8", "bool")  # the likely ones first


def widen(model: ModelProto, folder: Path, plugin_nodes: Sequence[PluginNode]) -> list[str]:
    """Cast float16 and bfloat16 inputs of Python ops that take float32 and not them, and the outputs back, in place; returns
    notes. Nothing is lost by it: the op computes in float32 either way."""
    wide = {
        one.node: one.op
        for one in plugin_nodes
        if one.op is not None and "float32" in one.op.dtypes and not {*_NARROW} <= {*one.op.dtypes}
    }
    notes: list[str] = []
    if not wide:
        return notes
    found = True
    while found:  # behind a node that has just got its Casts more types are known
        found = False
        for view in onnx_graph.views(model, folder):
            nodes: list[NodeProto] = []
            for node in view.graph.node:
                op = wide.get(node.name)
                types = [view.info(name).dtype for name in node.input] if op else []
                narrow = [i for i, dtype in enumerate(types) if op and dtype in _NARROW and dtype not in op.dtypes]
                if not narrow or not all(types):
                    nodes.append(node)
                    continue
                assert op is not None
                del wide[node.name]
                found = True
                before, behind = _around(node, op, types, narrow)
                nodes += [*before, node, *behind]
                notes.append(
                    f"{node.name}: {op.name} takes no {types[narrow[0]]}, Casts to float32 and back are around it"
                )
            replace_nodes(view.graph, nodes)
    return notes


def _around(
    node: NodeProto, op: type[Op], types: list[str], narrow: list[int]
) -> tuple[list[NodeProto], list[NodeProto]]:
    raised = ["float32" if i in narrow else dtype for i, dtype in enumerate(types)]
    as_it_was = [t.dtype for t in op().results(*op.unknown_inputs(types))]
    as_it_is = [t.dtype for t in op().results(*op.unknown_inputs(raised))]
    before = [before_input(node, i, "float32") for i in narrow]
    pairs = enumerate(zip(as_it_was, as_it_is, strict=True))
    return before, [behind_output(node, i, was) for i, (was, now) in pairs if was != now]


@dataclass(frozen=True)
class Tensor:
    """A plugin layer's input: dtype, and dims, -1 where they are open."""

    dtype: str
    shape: tuple[int, ...]


def layers_of(
    plugin_nodes: Sequence[PluginNode], network: types.INetworkDefinition
) -> list[tuple[PluginNode, list[Tensor]]]:
    """The plugin nodes with the inputs that their layers have."""
    layers = [network.get_layer(i) for i in range(network.num_layers)]
    found = []
    for node in plugin_nodes:
        layer = next((one for one in layers if node.is_layer(one.name)), None)
        inputs = [layer.get_input(i) for i in range(layer.num_inputs)] if layer is not None else []
        found.append((node, [Tensor(adapter.dtype_name(t.dtype), (*adapter.sizes(t.shape),)) for t in inputs if t]))
    return found


def refusals(
    model: ModelProto,
    layers: Sequence[tuple[PluginNode, list[Tensor]]],
    builds: Callable[[ModelProto, PluginNode], bool],
) -> Iterator[Fault]:
    """For each plugin that does not take the types of its inputs: what they are, and the Casts that help.

    layers: see layers_of. builds: whether a model of that one node becomes an engine; a library's
    plugin is asked that way, since nothing else tells what it takes.
    """
    protos = {node.name: node for node in onnx_model.all_nodes(model)}
    helps: list[tuple[int, str]] | None
    for one, inputs in layers:
        if one.op is not None:
            helps = [(i, one.op.dtypes[0]) for i, t in enumerate(inputs) if t.dtype not in one.op.dtypes] or None
        else:
            helps = _helps(protos[one.node], one, inputs, builds)
        if helps is None:
            continue
        proto = protos[one.node]
        types = ", ".join(
            f"{i} ({name}) {t.dtype}" for i, (name, t) in enumerate(zip(proto.input, inputs, strict=False))
        )
        casts = " ".join(f"--cast {one.node}:{i}={dtype}" for i, dtype in helps)
        if floats := [inputs[i].dtype for i, _ in helps if "float" in inputs[i].dtype]:
            casts += f", and --cast {one.node}:out0={floats[0]} if what follows needs the type from before"
        yield Fault(
            one.node,
            op_title(proto),
            f"plugin {one.creator.title} does not take the types of its inputs: {types}",
            casts or "cast them to what the plugin's supportsFormatCombination takes; no single Cast helps",
        )


def _helps(
    node: NodeProto, one: PluginNode, inputs: list[Tensor], builds: Callable[[ModelProto, PluginNode], bool]
) -> list[tuple[int, str]] | None:
    """The Casts that make the node build alone; none known: []; it builds as it is, or that cannot be tried: None."""
    types = [t.dtype for t in inputs]
    if (
        any(a.name == SHAPE_INPUTS for a in node.attribute)
        or not {*types} <= {*_TRIED}
        or len(types) != len(node.input)
    ):
        return None

    def tried(changed: list[tuple[int, str]]) -> bool:
        new = dict(changed)
        return builds(_alone(node, inputs, [new.get(i, dtype) for i, dtype in enumerate(types)]), one)

    if tried([]):
        return None
    single = [[(i, dtype)] for i in reversed(range(len(types))) for dtype in _TRIED if dtype != types[i]]
    floats = [i for i, dtype in enumerate(types) if dtype in ("float32", *_NARROW)]
    several = [[(i, dtype) for i in floats if types[i] != dtype] for dtype in ("float32", *_NARROW)]
    ordered = sorted(single, key=lambda change: _distance(types[change[0][0]], change[0][1]))
    return next((change for change in (*ordered, *several) if change and tried(change)), [])


def _distance(dtype: str, other: str) -> bool:
    """Whether one is a number of another kind than the other."""
    return dtype.strip("0123456789").removeprefix("b") != other.strip("0123456789").removeprefix("b")


def _alone(node: NodeProto, inputs: list[Tensor], types: list[str]) -> ModelProto:
    """A model of that node alone; open dims are 4."""
    copy = onnx.NodeProto.FromString(node.SerializeToString())
    copy.input[:] = [f"input_{i}" for i in range(len(inputs))]
    values = [
        helper.make_tensor_value_info(name, onnx_model.elem_type(dtype), [4 if d < 0 else d for d in tensor.shape])
        for name, tensor, dtype in zip(copy.input, inputs, types, strict=True)
    ]
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in copy.output if name]
    graph = helper.make_graph([copy], "alone", values, outputs)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(copy.domain or "plugin", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)
