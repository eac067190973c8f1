"""Plugin nodes that carry their kernels: a model that TensorRT builds with the C++ plugin library alone.

The library knows no op. What its creators need to build an engine therefore stands in each node, as three attributes:

- trtconvert_launch: the launches as text, and
- trtconvert_images: the machine code of all targets, one behind the other, both as they go into the plan;
- trtconvert_build: what the builder asks of a plugin, in lines: dtype and shape of each input and output, sizes as launch.py
  writes them ("counted" before one that the kernel finds out); bytes of memory to lend; name and size of each image.

The op's own attributes stay, for people. A node is written for the shapes that the parser finds, so after the model is parsed
with the Python creators; the C++ creators refuse it where it is built with others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from onnx import NodeProto, TensorProto, helper

from trtconvert import launch, shapes
from trtconvert import model as onnx_model
from trtconvert.backend import select
from trtconvert.compiled import compile_op
from trtconvert.custom_ops import formats, libraries
from trtconvert.custom_ops.attributes import BUILD, IMAGES, LAUNCH, drop
from trtconvert.custom_ops.creators import Creator
from trtconvert.custom_ops.custom import PluginNode
from trtconvert.diagnosis import importable
from trtconvert.errors import ConvertError
from trtconvert.files import check_outputs
from trtconvert.launch import Counted, Dim, Tensor
from trtconvert.lower import Lowered
from trtconvert.network import Maker, Network, images_of
from trtconvert.op import Op
from trtconvert.options import BuildOptions, choose_targets

if TYPE_CHECKING:
    from trtconvert.backend import types

FORMAT = 1  # of trtconvert_build; raised when an older library would misread it


def write(model: str | Path, output: str | Path, options: BuildOptions | None = None) -> list[PluginNode]:
    """Write the model as TensorRT is given it, its plugin nodes with their kernels inside; returns the nodes that got some.

    model: a fused one, or with plugin nodes of its own. options: of these targets, plugins and backend count. ConvertError where
    TensorRT cannot import the model, or nothing in it is a plugin of a Python op.
    """
    options = options or BuildOptions()
    source, target = Path(model), Path(output)
    backend = select(options.backend)
    libraries.load_plugins(options.plugins, backend.name)
    proto = onnx_model.load(source)
    check_outputs([target], [source, *onnx_model.data_files(proto, source.parent)])
    onnx_model.check(proto, source)
    targets = choose_targets(options, backend)
    lowered = Maker(backend, options, source, targets).lowered(proto, shapes.Profile({}))
    importable.require(lowered, source, backend)
    filled = [node for node in lowered.plugin_nodes if node.op is not None]
    if not filled:
        raise ConvertError("no node of the model is a plugin", where=str(source), fix="fuse it first: trtconvert fuse")
    network = Network(backend, options, lowered, source, targets)
    carrying = carry(lowered, network.network, images_of(targets))
    onnx_model.save(carrying.model, target, source)
    return filled


def carry(lowered: Lowered, network: types.INetworkDefinition, targets: tuple[str, ...], library: str = "") -> Lowered:
    """The model with the kernels of all Python ops in its nodes. network: what the parser made of it.

    targets: as for adapter.building, compiled in the op's first variant. library: path of the C++ library, whose creators the
    result's plugin nodes name.
    """
    model = onnx_model.copy(lowered.model)
    protos = {node.name: node for node in onnx_model.all_nodes(model)}
    nodes = []
    for node, inputs in formats.layers_of(lowered.plugin_nodes, network):
        if node.op is None:
            nodes.append(node)
            continue
        _fill(protos[node.node], node.op, [_symbol(i, t) for i, t in enumerate(inputs)], targets)
        nodes.append(PluginNode(node.node, Creator(*node.creator.key, "V3ONE", (), library)))
    return Lowered(model, nodes, lowered.notes, lowered.faults)


def _symbol(index: int, tensor: formats.Tensor) -> Tensor:
    shape = tuple(size if size >= 0 else Dim.of_input(index, axis) for axis, size in enumerate(tensor.shape))
    return Tensor(tensor.dtype, shape, f"in {index}")


def _fill(node: NodeProto, kind: type[Op], inputs: list[Tensor], targets: tuple[str, ...]) -> None:
    given = {a.name: helper.get_attribute_value(a) for a in node.attribute if a.name in kind.attributes()}
    op = kind(**{name: v.decode() if isinstance(v, bytes) else v for name, v in given.items()})
    compiled = compile_op(op, inputs, targets)
    outputs = op.outputs(*inputs)
    lent: launch.Size = 0
    for way in op.variants(*inputs, *outputs):
        lent = launch.maximum(lent, launch.work_size(way))
    attributes = (
        helper.make_attribute(LAUNCH, compiled.text),
        helper.make_attribute(BUILD, _described(inputs, outputs, lent, compiled.images)),
        helper.make_attribute(IMAGES, _tensor(b"".join(compiled.images.values()))),
    )
    drop(node, (LAUNCH, BUILD, IMAGES))
    node.attribute.extend(attributes)


def _tensor(data: bytes) -> TensorProto:
    return helper.make_tensor(IMAGES, TensorProto.INT8, [len(data)], data, raw=True)


def _described(
    inputs: Sequence[Tensor], outputs: Sequence[Tensor], lent: launch.Size, images: Mapping[str, bytes]
) -> str:
    lines = [f"trtconvert-build {FORMAT}"]
    for side, tensors in (("input", inputs), ("output", outputs)):
        lines += [f"{side} {t.dtype} " + ", ".join(map(_size, t.shape)) for t in tensors]
    lines.append(f"workspace {lent}")
    lines += [f"image {arch} {len(image)}" for arch, image in images.items()]
    return "\n".join([*lines, "end", ""])


def _size(size: launch.Size) -> str:
    return f"counted {size}" if isinstance(size, Counted) else str(size)
