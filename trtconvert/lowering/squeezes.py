"""Writes out which axes a Squeeze without axes removes; TensorRT fixes the rank when it builds and wants to be told."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from onnx import ModelProto, NodeProto, helper, numpy_helper

from trtconvert import graph as onnx_graph
from trtconvert import model as onnx_model
from trtconvert.errors import ConvertError
from trtconvert.shapes import Range

_AXES_ARE_AN_INPUT = 13  # opset from which on


def settle(model: ModelProto, folder: Path, ranges: Mapping[str, Range]) -> int:
    """Give axes to every Squeeze that has none, where the shapes at the profile's min, opt and max tell them; how many it were.

    folder: of external data. ConvertError where it would remove other axes at one of these shapes than at another.
    """
    if not any(_is_open(node) for node in onnx_model.all_nodes(model)):
        return 0
    found = {point: _axes(fixed, folder) for point, fixed in _points(model, ranges)}
    count = 0
    for node in list(onnx_model.all_nodes(model)):
        axes = {point: at.get(node.output[0]) for point, at in found.items()} if _is_open(node) else {}
        first, *others = axes.values() or (None,)
        if first is None or None in others:
            continue
        if any(other != first for other in others):
            raise _differ(node, axes, ranges)
        _write(model, node, first)
        count += 1
    return count


def _differ(node: NodeProto, axes: Mapping[str, tuple[int, ...] | None], ranges: Mapping[str, Range]) -> ConvertError:
    removed = ", ".join(f"{list(one or ())} at {point}" for point, one in axes.items())
    leading = {
        name: replace(r, min=(*r.opt[:1], *r.min[1:]), max=(*r.opt[:1], *r.max[1:])) for name, r in ranges.items()
    }
    flags = " ".join(f"--shape {name}={r}" for name, r in leading.items())
    return ConvertError(
        f"Squeeze names no axes and would remove {removed} shapes; TensorRT fixes the rank when it builds",
        where=f"node {node.name}",
        fix=f"fix the size that is 1 at some: with the first axis at opt that is {flags}",
    )


def _is_open(node: NodeProto) -> bool:
    if node.op_type != "Squeeze" or node.domain not in onnx_model.STANDARD_DOMAINS:
        return False
    return not any(a.name == "axes" for a in node.attribute) and (len(node.input) < 2 or not node.input[1])


def _points(model: ModelProto, ranges: Mapping[str, Range]) -> Iterator[tuple[str, ModelProto]]:
    """The model with its inputs at min, at opt and at max."""
    for point in ("min", "opt", "max") if ranges else ("opt",):
        fixed = onnx_model.copy(model)
        for value in fixed.graph.input:
            if value.name in ranges:
                shape = getattr(ranges[value.name], point)
                value.CopyFrom(helper.make_tensor_value_info(value.name, value.type.tensor_type.elem_type, shape))
        yield point, fixed


def _axes(model: ModelProto, folder: Path) -> dict[str, tuple[int, ...] | None]:
    """By its output, the axes that each such Squeeze removes; None where its input's shape is unknown."""
    found: dict[str, tuple[int, ...] | None] = {}
    for view in onnx_graph.views(model, folder):
        for node in view.nodes:
            if _is_open(node):
                shape = view.info(node.input[0]).shape
                known = shape is not None and all(isinstance(d, int) for d in shape)
                found[node.output[0]] = tuple(i for i, d in enumerate(shape or ()) if d == 1) if known else None
    return found


def _write(model: ModelProto, node: NodeProto, axes: tuple[int, ...]) -> None:
    """As an attribute before opset 13, as an input from then on. Without an axis to remove it becomes an Identity."""
    if not axes:
        node.op_type = "Identity"
        del node.input[1:]
    elif onnx_model.opset(model) < _AXES_ARE_AN_INPUT:
        node.attribute.append(helper.make_attribute("axes", axes))
    else:
        name = f"{node.output[0]}_axes"
        model.graph.initializer.append(numpy_helper.from_array(np.array(axes, np.int64), name))
        node.input[:] = [node.input[0], name]
