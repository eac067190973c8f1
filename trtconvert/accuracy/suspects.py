"""Errors that engines are known for, looked for below the noise.

A suspect is the reference with one thing computed otherwise: GELU by tanh where the model says erf, another epsilon. Where d is
the suspect's output minus the reference's, and e the engine's error, share = <e, d> / <d, d> is 0 for an engine that computes
what the model says and 1 for one that computes what the suspect does, whatever noise is in e: over n elements that strays the
share by about rms(e) / rms(d) / sqrt(n) only. So an error of 2e-4 is seen in noise of 6e-4, behind further layers too, and the
finding names what is wrong. It is one only if the share is above HALF, SIGMAS times what noise can do, and twice the twin's own.

What it cannot see: errors that are in no list, and one of many such nodes alone: all that are alike are suspected together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, helper, numpy_helper

from trtconvert import model as onnx_model

HALF = 0.5
MOST = 2.0  # beyond it the error is not the suspect's
SIGMAS = 6.0
EPSILON_TIMES = 100.0
_SMALL = 1e-2  # a term under a root below it is an epsilon
_MEANT = 1e-7  # a suspect's output that differs less says nothing
_NORMS = ("LayerNormalization", "InstanceNormalization", "GroupNormalization", "BatchNormalization", "RMSNormalization",
          "SimplifiedLayerNormalization", "SkipLayerNormalization", "MeanVarianceNormalization")  # fmt: skip


@dataclass(frozen=True)
class Suspect:
    """What would be wrong, the nodes it is about, and the model that does it."""

    says: str
    nodes: tuple[str, ...]
    model: ModelProto


def share(got: NDArray[Any], expected: NDArray[Any], suspected: NDArray[Any]) -> tuple[float, float]:
    """How much of the suspect's deviation is in the error, and how far noise strays that; (0, inf) if it does not show."""
    a, b, c = (array.astype(np.float64).ravel() for array in (got, expected, suspected))
    finite = np.isfinite(a) & np.isfinite(b) & np.isfinite(c)
    error, shift = (a - b)[finite], (c - b)[finite]
    size = float(shift @ shift)
    if size <= (_MEANT**2) * float(b[finite] @ b[finite]) or size == 0:
        return 0.0, np.inf
    part = float(error @ shift) / size
    left = error - part * shift
    return part, float(np.sqrt(left**2 @ shift**2)) / size


def found(
    got: NDArray[Any], expected: NDArray[Any], twin: NDArray[Any] | None, suspected: NDArray[Any]
) -> float | None:
    """The share of the suspect in the error, if it is beyond doubt; None if not."""
    if not (got.shape == expected.shape == suspected.shape):
        return None
    part, stray = share(got, expected, suspected)
    legitimate = abs(share(twin, expected, suspected)[0]) if twin is not None and twin.shape == expected.shape else 0.0
    certain = HALF <= part <= MOST and part > SIGMAS * stray and part > 2 * legitimate
    return part if certain else None


def suspects(reference: ModelProto) -> Iterator[Suspect]:
    """Those that apply to a reference model, all nodes of a kind in one."""
    kinds: list[tuple[str, Callable[[GraphProto], list[str]]]] = [
        ("GELU computed by tanh instead of erf", _tanh_for_erf),
        (f"an epsilon {EPSILON_TIMES:g} times as large", _other_epsilon),
    ]
    for says, change in kinds:
        model = onnx_model.copy(reference)
        nodes = [name for graph in reversed([*onnx_model.all_graphs(model.graph)]) for name in change(graph)]
        if nodes:
            yield Suspect(says, tuple(nodes), model)


def _tanh_for_erf(graph: GraphProto) -> list[str]:
    """Every erf(z) as tanh(sqrt(2/pi) (u + 0.044715 u^3)), u = sqrt(2) z, in place; returns the nodes' names."""
    nodes, changed = [], []
    for node in graph.node:
        approximate = onnx_model.attribute_values(node).get("approximate", "none") if node.op_type == "Gelu" else ""
        if node.op_type == "Gelu" and not node.domain and approximate in ("none", b"none"):
            other = _but(node, "approximate")
            other.attribute.append(helper.make_attribute("approximate", "tanh"))
            nodes.append(other)
        elif node.op_type == "Erf":
            nodes.extend(_tanh(node))
        else:
            nodes.append(node)
            continue
        changed.append(_title(node))
    _replace(graph, nodes, bool(changed))
    return changed


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
    nodes, changed = [], []
    for node in graph.node:
        values = onnx_model.attribute_values(node)
        small = [name for name in node.input if node.op_type == "Add" and 0 < constants.get(name, 1.0) < _SMALL]
        if node.op_type in _NORMS:
            other = _but(node, "epsilon")
            other.attribute.append(helper.make_attribute("epsilon", EPSILON_TIMES * values.get("epsilon", 1e-5)))
            nodes.append(other)
        elif small and node.output[0] in roots:
            value = numpy_helper.from_array(np.array(EPSILON_TIMES * constants[small[0]], np.float32))
            larger = f"{node.output[0]}/epsilon"
            other = _but(node, "")
            other.input[[*node.input].index(small[0])] = larger
            nodes += [helper.make_node("Constant", [], [larger], value=value), other]
        else:
            nodes.append(node)
            continue
        changed.append(_title(node))
    _replace(graph, nodes, bool(changed))
    return changed


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


def _replace(graph: GraphProto, nodes: list[NodeProto], changed: bool) -> None:
    if changed:
        copies = [_but(node, "") for node in nodes]
        del graph.node[:]
        graph.node.extend(copies)


def _title(node: NodeProto) -> str:
    return node.name or f"{node.op_type} that makes {node.output[0]}"
