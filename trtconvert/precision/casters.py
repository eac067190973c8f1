"""Other projects' converters, with the same nodes kept in float32."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from onnx import ModelProto, TensorProto, helper

from trtconvert import model as onnx_model
from trtconvert import registry, weights
from trtconvert.bodies import Writing, is_ours, retain
from trtconvert.custom_ops import wishes
from trtconvert.diagnosis import structure
from trtconvert.errors import ConvertError
from trtconvert.lowering.functions import inline_local
from trtconvert.precision.casting import Told
from trtconvert.precision.islands import Islands
from trtconvert.precision.kinds import Kind
from trtconvert.precision.prepare import views

Caster = Callable[[ModelProto, Path, Kind, Islands, str, Told], ModelProto]


def by_name(name: str) -> Caster:
    """The converter that `--caster` names."""
    return {"onnxruntime": with_onnxruntime, "modelopt": with_modelopt}[name]


def with_onnxruntime(model: ModelProto, folder: Path, kind: Kind, islands: Islands, io: str, told: Told) -> ModelProto:
    """onnxruntime.transformers.float16: float16 only, and what it knows of ops, subgraphs and functions."""
    from onnxruntime.transformers.float16 import convert_float_to_float16

    if kind.dtype != "float16":
        raise ConvertError(
            f"onnxruntime's converter knows float16, not {kind.dtype}",
            fix="leave --caster out, or use --precision fp16",
        )
    _refuse_io(io, kind, "onnxruntime")
    kept = _kept(model, folder, islands, told)
    bare = _typed(model, folder)
    made: ModelProto = convert_float_to_float16(
        bare, keep_io_types=not io, disable_shape_infer=True, op_block_list=[], node_block_list=kept
    )
    structure.settle(made, "onnxruntime's converter")  # it puts Casts behind the nodes that read them
    _join_islands(made)
    _rebody(made, model, folder, kind, kept)
    return made


def with_modelopt(model: ModelProto, folder: Path, kind: Kind, islands: Islands, io: str, told: Told) -> ModelProto:
    """NVIDIA ModelOpt's AutoCast. Source: its documentation, modelopt.onnx.autocast.convert_to_mixed_precision."""
    try:
        from modelopt.onnx.autocast import convert_to_mixed_precision
    except ImportError as error:
        raise ConvertError(
            "--caster modelopt needs NVIDIA ModelOpt, which is not installed",
            fix="pip install 'nvidia-modelopt[onnx]', or leave --caster out",
        ) from error
    _refuse_io(io, kind, "modelopt")
    kept = _kept(model, folder, islands, told)
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "model.onnx"
        opened = inline_local(onnx_model.copy(model), lambda f: is_ours(f.domain))  # ModelOpt knows no body
        onnx_model.save(opened, path, folder / "model.onnx")
        made = convert_to_mixed_precision(
            onnx_path=str(path),
            low_precision_type=kind.name,
            nodes_to_exclude=[f"^{re.escape(name)}$" for name in kept],
            keep_io_types=not io,
        )
    return onnx_model.copy(made)


def _refuse_io(io: str, kind: Kind, caster: str) -> None:
    if io not in ("", kind.dtype):
        raise ConvertError(
            f"--caster {caster} keeps the types of inputs and outputs, or makes them {kind.dtype}",
            fix=f"leave --io-precision out, or use --io-precision {kind.name}",
        )


def _typed(model: ModelProto, folder: Path) -> ModelProto:
    """A copy without bodies of ours, in which the type of every tensor is written down, since no inference goes through them."""
    copy = onnx_model.copy(model)
    for graph, view in zip(onnx_model.all_graphs(copy.graph), views(model, folder), strict=True):
        declared = {v.name for v in (*graph.input, *graph.output)} | {t.name for t in graph.initializer}
        del graph.value_info[:]
        for name, info in view.infos.items():
            if info.dtype and name not in declared:
                graph.value_info.append(
                    helper.make_tensor_value_info(name, onnx_model.elem_type(info.dtype), info.shape)
                )
    retain(copy.functions, lambda f: not is_ours(f.domain))
    weights.take_in(onnx_model.external_tensors(copy), folder)
    return copy


def _join_islands(model: ModelProto) -> None:
    """Take away Casts to float16 and back between two nodes in float32: values that made the nodes stay would be lost there."""
    for graph in onnx_model.all_graphs(model.graph):
        casts = {node.output[0]: node for node in graph.node if node.op_type == "Cast"}
        to = {name: onnx_model.attribute_values(node)["to"] for name, node in casts.items()}
        wide = {
            name: casts[node.input[0]].input[0]
            for name, node in casts.items()
            if to[name] == TensorProto.FLOAT and to.get(node.input[0]) == TensorProto.FLOAT16
        }
        for node in graph.node:
            node.input[:] = [wide.get(name, name) for name in node.input]


def _rebody(made: ModelProto, model: ModelProto, folder: Path, kind: Kind, kept: Sequence[str]) -> None:
    """Bodies of ours in the type that their nodes have now."""
    writing = Writing(made)
    ranks = {
        wishes.default_name(node): view.rank(node.input[0])
        for view in views(model, folder)
        for node in view.nodes
        if is_ours(node.domain)
    }
    for node in onnx_model.all_nodes(made):
        op = registry.find(node.op_type) if is_ours(node.domain) else None
        if op is not None:
            values = {k: v for k, v in onnx_model.attribute_values(node).items() if k in op.attributes()}
            dtype = "float32" if node.name in kept else kind.dtype
            node.domain = writing.body(op, op().values() | values, dtype, ranks.get(node.name))


def _kept(model: ModelProto, folder: Path, islands: Islands, told: Told) -> list[str]:
    names = []
    for view in views(model, folder):
        for node in view.nodes:
            if reason := islands.reason(view, node):
                names.append(wishes.default_name(node))
                told(view, node, reason)
    return names
