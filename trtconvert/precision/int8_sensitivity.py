"""Which tensors int8 hurts most: each is quantized alone, and what that does to the model's outputs is measured."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, TypeProto, helper, numpy_helper

from trtconvert import model as onnx_model
from trtconvert import reference
from trtconvert.bodies import add_bodies
from trtconvert.precision.int8_ranges import Samples

SAMPLES, RUNS = 8, 480  # at least so many samples, and more where the runs stay below that
_OUTLIER = 8.0  # times the median error
_MOST = 0.15  # of the tensors
_NEGLIGIBLE = 1e-9  # relative squared error of the outputs


def sensitive(model: ModelProto, folder: Path, samples: Samples, tensors: Collection[str]) -> dict[str, str]:
    """Of these tensors those to leave float, the worst first, each with the reason.

    model: with their Q and DQ. The error of a tensor is what its Q and DQ alone change in the outputs, squared and relative to
    them, on the first samples; int8 is given up where it is more than 8 times the median of all tensors, for at most 15 % of
    them. The model is run once per tensor and sample.
    """
    gated, gates = _gated(model, folder, tensors)
    if len(gates) < 3:
        return {}
    session = reference.session(gated, folder)
    errors = dict.fromkeys(gates, 0.0)
    for feed in itertools.islice(samples(), max(SAMPLES, RUNS // len(gates))):
        off = {gate: np.array(False) for gate in gates.values()}
        plain = session.run(None, {**feed, **off})
        for tensor, gate in gates.items():
            errors[tensor] += _error(session.run(None, {**feed, **off, gate: np.array(True)}), plain)
    median = float(np.median(list(errors.values())))
    worst = sorted(gates, key=lambda tensor: -errors[tensor])[: int(_MOST * len(gates)) or 1]
    least = max(_OUTLIER * median, _NEGLIGIBLE)
    return {
        tensor: f"int8 of {tensor} alone costs {errors[tensor] / max(median, _NEGLIGIBLE):.0f} times what the median tensor costs"
        for tensor in worst
        if errors[tensor] > least
    }


def _gated(model: ModelProto, folder: Path, tensors: Collection[str]) -> tuple[ModelProto, dict[str, str]]:
    """A model in which an input for each quantized activation says whether it goes through its Q and DQ; the inputs by tensor.
    Weights are rounded to int8 in it, but float."""
    copy = onnx_model.copy(model)
    add_bodies(copy)
    held = {t.name: t for t in copy.graph.initializer}
    quantizers = {n.output[0]: n for n in copy.graph.node if n.op_type == "QuantizeLinear" and n.input[0] in tensors}
    gates: dict[str, str] = {}
    nodes: list[NodeProto] = []
    for node in copy.graph.node:
        before = quantizers.get(node.input[0]) if node.op_type == "DequantizeLinear" else None
        if before is not None:
            gate = gates.setdefault(before.input[0], f"{before.input[0]}_is_int8")
            nodes.append(_either(gate, before, node))
        elif node.op_type == "DequantizeLinear" and all(name in held for name in node.input):
            copy.graph.initializer.append(_dequantized(node, held, folder))
        elif node.output[0] not in quantizers:
            nodes.append(node)
    kept = [NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del copy.graph.node[:]
    copy.graph.node.extend(kept)
    copy.graph.input.extend(helper.make_tensor_value_info(gate, TensorProto.BOOL, []) for gate in gates.values())
    return copy, gates


def _either(gate: str, quantize: NodeProto, dequantize: NodeProto) -> NodeProto:
    """What the DequantizeLinear gives if the gate says so, else what the QuantizeLinear reads."""
    branches = {}
    through = (quantize, dequantize)
    for branch, inside in (("then_branch", through), ("else_branch", (_identity(quantize, dequantize),))):
        output = f"{dequantize.output[0]}_{branch}"
        chain = [NodeProto.FromString(node.SerializeToString()) for node in inside]
        chain[-1].output[0] = output
        branches[branch] = helper.make_graph(chain, branch, [], [helper.make_value_info(output, TypeProto())])
    return helper.make_node("If", [gate], [dequantize.output[0]], f"{dequantize.name}_if", **branches)


def _identity(quantize: NodeProto, dequantize: NodeProto) -> NodeProto:
    return helper.make_node("Identity", [quantize.input[0]], [dequantize.output[0]])


def _dequantized(node: NodeProto, held: Mapping[str, TensorProto], folder: Path) -> TensorProto:
    """The weight that the DequantizeLinear gives."""
    integers, scale = (numpy_helper.to_array(held[name], str(folder)) for name in node.input[:2])
    axis = onnx_model.attribute_values(node).get("axis", 1)
    along = scale.reshape([-1 if i == axis else 1 for i in range(integers.ndim)]) if scale.ndim else scale
    return numpy_helper.from_array((integers * along).astype(scale.dtype), node.output[0])


def _error(got: list[NDArray[Any]], plain: list[NDArray[Any]]) -> float:
    """The relative squared error, summed over the outputs that are floats."""
    total = 0.0
    for a, b in zip(got, plain, strict=True):
        if b.dtype.kind == "f" and b.size:
            x, y = a.astype(np.float64), b.astype(np.float64)
            good = np.isfinite(x) & np.isfinite(y)
            total += float(np.square(x - y)[good].sum() / max(np.square(y)[good].sum(), 1e-30))
    return total
