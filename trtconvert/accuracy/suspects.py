"""Errors that engines are known for, looked for below the noise.

A suspect is the reference with one thing computed otherwise: GELU by tanh where the model says erf, another epsilon. The
engine's error is written as a sum of what each suspect would add, of the twin's error (an engine that rounds at the same
places has it too), and of noise: least squares gives each suspect's share. It is 0 for an engine that computes what the model
says and 1 for one that computes what the suspect does. Over n elements noise strays it by about rms(noise) / rms(suspect) /
sqrt(n) only, so an error of 2e-4 is seen in noise of 6e-4, behind further layers too, and more inputs see more. It is a finding
if it is above ENOUGH (an engine on an H200 that was right had 0.59 once in 60), and SIGMAS times what noise can do.

What it cannot see: errors that are in no list, one of many such nodes alone (all that are alike are suspected together), and what
too few elements show: in fp16 it takes about 500 for GELU by tanh.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, helper, numpy_helper

from trtconvert import model as onnx_model
from trtconvert.accuracy.metrics import norm

Array: TypeAlias = NDArray[Any]

ENOUGH = 0.7
MOST = 2.0  # beyond it the error may have nothing to do with the suspect
SIGMAS = 5.0
EPSILON_TIMES = 100.0
_SMALL = 1e-2  # a term under a root below it is an epsilon
_MOSTLY = 0.75
_MEANT = 1e-5  # a suspect whose output differs less, as relative L2, is no suspect
_EXACT = 1e-4  # how exactly a share can be known
_NORMS = ("LayerNormalization", "InstanceNormalization", "GroupNormalization", "BatchNormalization", "RMSNormalization",
          "SimplifiedLayerNormalization", "SkipLayerNormalization")  # fmt: skip


@dataclass(frozen=True)
class Suspect:
    """What would be wrong, the nodes it is about, and the model that does it."""

    says: str
    nodes: tuple[str, ...]
    model: ModelProto


@dataclass
class Trial:
    """The shares of suspects in the errors of one output, over all inputs seen so far."""

    count: int
    _weight: Array = field(init=False)
    _sum: Array = field(init=False)
    _explained: float = 0.0

    def __post_init__(self) -> None:
        self._weight, self._sum = np.zeros(self.count), np.zeros(self.count)

    def hear(self, got: Array, expected: Array, twin: Array | None, suspected: Sequence[Array]) -> None:
        """Take in an output, that of the reference, of its twin and of each suspect."""
        arrays = [expected, got, *suspected, *([twin] if twin is not None else [])]
        if any(array.shape != expected.shape for array in arrays):
            return
        wide = [array.astype(np.float64).ravel() for array in arrays]
        finite = np.isfinite(wide).all(axis=0)
        reference = wide[0][finite]
        error, *shifts = ((array[finite] - reference) for array in wide[1:])
        least = _MEANT * norm(reference)
        shown = [i for i in range(self.count) if norm(shifts[i]) > least]
        if not shown:
            return
        causes = [shifts[i] for i in shown] + [s for s in shifts[self.count :] if norm(s) > 0]
        share, variance, self._explained = _least_squares(error, causes)
        for i, part, stray in zip(shown, share, variance, strict=False):
            self._weight[i] += 1 / (stray + _EXACT**2)
            self._sum[i] += part / (stray + _EXACT**2)

    def shares(self) -> dict[int, float]:
        """The share of each suspect that shows, by number."""
        return {int(i): float(self._sum[i] / self._weight[i]) for i in np.flatnonzero(self._weight)}

    def found(self) -> Iterator[tuple[int, float]]:
        """Suspects whose share is beyond doubt, by number, with it. Of a share above MOST, if it explains most of the error."""
        for i, share in self.shares().items():
            stray = float(self._weight[i] ** -0.5)
            if share > max(ENOUGH, SIGMAS * stray) and (share <= MOST or self._explained > _MOSTLY):
                yield i, share


def _least_squares(error: Array, causes: Sequence[Array]) -> tuple[Array, Array, float]:
    """Factors with which the causes add up to the error, their variances (noise may differ from element to element), and the
    share of the error's square that they explain."""
    sizes = np.array([norm(cause) for cause in causes])
    matrix = np.stack(causes, axis=1) / sizes
    inverse = np.linalg.pinv(np.einsum("ni,nj->ij", matrix, matrix))
    factors = inverse @ np.einsum("ni,n->i", matrix, error)
    left = error - np.einsum("ni,i->n", matrix, factors)
    loose = matrix * left[:, None]
    spread = inverse @ np.einsum("ni,nj->ij", loose, loose) @ inverse
    total = norm(error) ** 2
    return factors / sizes, np.diag(spread) / sizes**2, 1 - norm(left) ** 2 / total if total else 0.0


def suspects(reference: ModelProto) -> Iterator[Suspect]:
    """Those that apply to a reference model, all nodes of a kind in one."""
    kinds: list[tuple[str, Callable[[GraphProto], list[str]]]] = [
        ("GELU by tanh where the model says erf", _tanh_for_erf),
        (f"epsilon {EPSILON_TIMES:g} times as large", _other_epsilon),
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
