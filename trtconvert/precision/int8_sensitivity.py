"""Which tensors int8 hurts most: each is quantized alone, and what that does to the model's outputs is measured."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper

from trtconvert import model as onnx_model
from trtconvert import reference
from trtconvert.bodies import add_bodies
from trtconvert.precision.int8_ranges import Samples

SAMPLES = 8
_OUTLIER = 8.0  # times the median error
_MOST = 0.15  # of the tensors
_NEGLIGIBLE = 1e-9  # relative squared error of the outputs


def sensitive(model: ModelProto, folder: Path, samples: Samples) -> dict[str, str]:
    """Tensors to leave float, the worst first, each with the reason.

    model: with Q and DQ. The error of a tensor is what its Q and DQ alone change in the outputs, squared and relative to them,
    on the first samples; int8 is given up where it is more than 8 times the median of all tensors, for at most 15 % of them.
    The model is run once per tensor and sample.
    """
    gated, gates = _gated(model)
    if len(gates) < 3:
        return {}
    session = reference.session(gated, folder)
    errors = dict.fromkeys(gates, 0.0)
    for feed in itertools.islice(samples(), SAMPLES):
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


def _gated(model: ModelProto) -> tuple[ModelProto, dict[str, str]]:
    """A model in which an input for each quantized activation says whether its Q and DQ count; the inputs by tensor."""
    copy = onnx_model.copy(model)
    add_bodies(copy)
    quantizers = {node.output[0]: node for node in copy.graph.node if node.op_type == "QuantizeLinear"}
    held = {t.name for t in copy.graph.initializer}
    gates: dict[str, str] = {}
    nodes = []
    for node in list(copy.graph.node):
        nodes.append(node)
        maker = quantizers.get(node.input[0]) if node.op_type == "DequantizeLinear" else None
        if maker is None or maker.input[0] in held:
            continue
        tensor, output = maker.input[0], node.output[0]
        gate = gates.setdefault(tensor, f"{tensor}_is_int8")
        node.output[0] = f"{output}_int8"
        nodes.append(helper.make_node("Where", [gate, node.output[0], tensor], [output]))
    kept = [type(node).FromString(node.SerializeToString()) for node in nodes]
    del copy.graph.node[:]
    copy.graph.node.extend(kept)
    copy.graph.input.extend(helper.make_tensor_value_info(gate, TensorProto.BOOL, []) for gate in gates.values())
    return copy, gates


def _error(got: list[NDArray[Any]], plain: list[NDArray[Any]]) -> float:
    """The relative squared error, summed over the outputs that are floats."""
    total = 0.0
    for a, b in zip(got, plain, strict=True):
        if b.dtype.kind == "f" and b.size:
            x, y = a.astype(np.float64), b.astype(np.float64)
            good = np.isfinite(x) & np.isfinite(y)
            total += float(np.square(x - y)[good].sum() / max(np.square(y)[good].sum(), 1e-30))
    return total
