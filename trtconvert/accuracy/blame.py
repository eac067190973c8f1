"""Which node of a model is behind an output, and which one first makes NaN or Inf."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, helper

from trtconvert import graph as onnx_graph
from trtconvert import model as onnx_model
from trtconvert.accuracy.running import ModelRun
from trtconvert.errors import ConvertError


def title(node: NodeProto) -> str:
    """Name and op of a node, for messages."""
    return f"{node.name} ({node.op_type})" if node.name else f"the {node.op_type} that makes {node.output[0]}"


def maker(model: ModelProto, output: str) -> NodeProto | None:
    """The node that makes the output; None for an input or weight that is one."""
    return next((node for node in model.graph.node if output in node.output), None)


def made_by(model: ModelProto, output: str, fusions: Sequence[Mapping[str, Any]]) -> str:
    """The node that makes an output, and what it was fused with: fusions as the manifest has them."""
    node = maker(model, output)
    if node is None:
        return ""
    fused = next((f for f in fusions if f["output"] == output or node.name in f["replaced"]), None)
    return title(node) + (f", fused into {fused['op']} {fused['node']}" if fused else "")


def first_non_finite(model: ModelProto, folder: Path, feeds: Mapping[str, NDArray[Any]]) -> NodeProto | None:
    """The first node of the main graph that makes NaN or Inf of finite numbers, with every tensor an output; None if none does.

    ConvertError if the model does not run so.
    """
    marked = onnx_model.copy(model)
    infos = onnx_graph.infer(marked)[0]
    present = {value.name for value in marked.graph.output}
    for name in (name for node in marked.graph.node for name in node.output):
        info = infos.get(name)
        if name and name not in present and info is not None and info.dtype:
            marked.graph.output.append(helper.make_tensor_value_info(name, onnx_model.elem_type(info.dtype), None))
    strange = {name for name, array in ModelRun(marked, folder).run(feeds).items() if not _finite(array)}
    strange |= {name for name, array in feeds.items() if not _finite(array)}
    return next((n for n in model.graph.node if strange & {*n.output} and not strange & {*n.input}), None)


def source_of(model: ModelProto, folder: Path, feeds: Mapping[str, NDArray[Any]], written: ModelProto) -> str:
    """In words, what first makes NaN or Inf in the twin `model` of the model as it was `written`; empty if it stays finite."""
    try:
        node = first_non_finite(model, folder, feeds)
    except ConvertError as error:
        return f"the twin does not run with every tensor an output: {error.what}"
    if node is None:
        return ""
    made = node.output[0]
    for suffix in ("/widen", "/round"):
        if node.name.endswith(suffix):
            made = node.name[: -len(suffix)]
    original = maker(written, made) or maker(written, made.rsplit("/", 1)[0])
    return f"first made by {title(original if original is not None else node)}"


def _finite(array: NDArray[Any]) -> bool:
    return array.dtype.kind in "iubSUO" or bool(np.isfinite(array.astype(np.float64)).all())
