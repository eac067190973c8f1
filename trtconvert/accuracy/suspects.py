"""Errors that engines are known for, looked for below the noise.

A suspect is the reference with one thing computed otherwise: GELU by tanh where the model says erf, or the other way round,
another epsilon. `shares` says how much of it is in an engine's error.

What it cannot see: errors that are in no list, one of many such nodes alone (all that are alike are suspected together), GELU
written out by tanh that is computed by erf, and what too few elements show: in fp16 it takes about 500 for GELU by tanh. In bf16
they are not looked for: a right engine on an H200 had a share of 0.71 there, of what is less than bf16 rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, helper, numpy_helper

from trtconvert import model as onnx_model

EPSILON_TIMES = 100.0
_SMALL = 1e-2  # a term under a root below it is an epsilon
_NORMS = ("LayerNormalization", "InstanceNormalization", "GroupNormalization", "BatchNormalization", "RMSNormalization",
          "SimplifiedLayerNormalization", "SkipLayerNormalization")  # fmt: skip


@dataclass(frozen=True)
class Suspect:
    """What would be wrong, the nodes it is about, and the model that does it."""

    says: str
    nodes: tuple[str, ...]
    model: ModelProto


def suspects(reference: ModelProto) -> Iterator[Suspect]:
    """Those that apply to a reference model, all nodes of a kind in one."""
    kinds: list[tuple[str, Callable[[GraphProto], list[str]]]] = [
        ("GELU by tanh where the model says erf", _tanh_for_erf),
        ("GELU by erf where the model says tanh", _erf_for_tanh),
        (f"epsilon {EPSILON_TIMES:g} times as large", _other_epsilon),
    ]
    for says, change in kinds:
        model = onnx_model.copy(reference)
        nodes = [name for graph in reversed([*onnx_model.all_graphs(model.graph)]) for name in change(graph)]
        if nodes:
            yield Suspect(says, tuple(nodes), model)


def _tanh_for_erf(graph: GraphProto) -> list[str]:
    """Every erf(z) as tanh(sqrt(2/pi) (u + 0.044715 u^3)), u = sqrt(2) z, in place; returns the nodes' names."""
    return _change(graph, lambda node: [*_tanh(node)] if node.op_type == "Erf" else _gelu(node, "none", "tanh"))


def _erf_for_tanh(graph: GraphProto) -> list[str]:
    """Every Gelu op by tanh as one by erf, in place; returns the nodes' names."""
    return _change(graph, lambda node: _gelu(node, "tanh", "none"))


def _gelu(node: NodeProto, now: str, then: str) -> list[NodeProto]:
    if (node.domain, node.op_type) != ("", "Gelu") or onnx_model.attribute_values(node).get(
        "approximate", "none"
    ) != now:
        return []
    other = _but(node, "approximate")
    other.attribute.append(helper.make_attribute("approximate", then))
    return [other]


def _tanh(erf: NodeProto) -> Iterator[NodeProto]:
    z, y = erf.input[0], erf.output[0]
    a, b = np.sqrt(2 / np.pi) * np.sqrt(2), np.sqrt(2 / np.pi) * 0.044715 * 2 * np.sqrt(2)
    for part, number in (("a", a), ("b", b)):
        value = numpy_helper.from_array(np.array(number, np.float32))
        yield helper.make_node("Constant", [], [f"{y}/tanh_{part}"], value=value)
    for op, inputs, output in (
        ("Mul", [z, z], "zz"),
        ("Mul", [f"{y}/tanh_zz", f"{y}/tanh_b"], "bzz"),
        ("Add", [f"{y}/tanh_bzz", f"{y}/tanh_a"], "sum"),
        ("Mul", [f"{y}/tanh_sum", z], "arg"),
    ):
        yield helper.make_node(op, inputs, [f"{y}/tanh_{output}"])
    yield helper.make_node("Tanh", [f"{y}/tanh_arg"], [y])


def _other_epsilon(graph: GraphProto) -> list[str]:
    """Every epsilon EPSILON_TIMES as large, in place: attributes, and constants added to what a root or quotient takes."""
    constants = _constants(graph)
    roots = {node.input[0] for node in graph.node if node.op_type in ("Sqrt", "Pow", "Rsqrt")}

    def change(node: NodeProto) -> list[NodeProto]:
        small = [name for name in node.input if node.op_type == "Add" and 0 < constants.get(name, 1.0) < _SMALL]
        if node.op_type in _NORMS:
            epsilon = onnx_model.attribute_values(node).get("epsilon", 1e-5)
            other = _but(node, "epsilon")
            other.attribute.append(helper.make_attribute("epsilon", EPSILON_TIMES * epsilon))
            return [other]
        if not small or node.output[0] not in roots:
            return []
        value = numpy_helper.from_array(np.array(EPSILON_TIMES * constants[small[0]], np.float32))
        larger = f"{node.output[0]}/epsilon"
        other = _but(node, "")
        other.input[[*node.input].index(small[0])] = larger
        return [helper.make_node("Constant", [], [larger], value=value), other]

    return _change(graph, change)


def _constants(graph: GraphProto) -> Mapping[str, float]:
    """Scalar constants of the graph by name, behind casts too."""
    found = {}
    for tensor in graph.initializer:
        if np.prod(tensor.dims, dtype=int) == 1 and not tensor.external_data:
            found[tensor.name] = float(numpy_helper.to_array(tensor).astype(np.float64).ravel()[0])
    for node in graph.node:
        value = next((a for a in node.attribute if a.type == AttributeProto.TENSOR), None)
        if node.op_type == "Constant" and value is not None and np.prod(value.t.dims, dtype=int) == 1:
            found[node.output[0]] = float(numpy_helper.to_array(value.t).astype(np.float64).ravel()[0])
        elif node.op_type in ("Cast", "Identity") and node.input[0] in found:
            found[node.output[0]] = found[node.input[0]]
    return found


def _but(node: NodeProto, attribute: str) -> NodeProto:
    """A copy without that attribute."""
    copied = NodeProto()
    copied.CopyFrom(node)
    kept = [a for a in copied.attribute if a.name != attribute]
    del copied.attribute[:]
    copied.attribute.extend(kept)
    return copied


def _change(graph: GraphProto, change: Callable[[NodeProto], list[NodeProto]]) -> list[str]:
    """Put other nodes in the place of those for which there are any; returns the names of these."""
    nodes, changed = [], []
    for node in graph.node:
        others = change(node)
        changed += [_title(node)] * bool(others)
        nodes += others or [_but(node, "")]
    if changed:
        del graph.node[:]
        graph.node.extend(nodes)
    return changed


def _title(node: NodeProto) -> str:
    return node.name or f"{node.op_type} that makes {node.output[0]}"
