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
from typing import TYPE_CHECKING

from onnx import NodeProto, TensorProto, helper

from trtconvert import launch
from trtconvert import model as onnx_model
from trtconvert.compiled import compile_op
from trtconvert.custom_ops import formats
from trtconvert.custom_ops.creators import Creator
from trtconvert.custom_ops.custom import PluginNode
from trtconvert.launch import Counted, Dim, Tensor
from trtconvert.lower import Lowered
from trtconvert.op import Op

if TYPE_CHECKING:
    from trtconvert.backend import types

FORMAT = 1  # of trtconvert_build; raised when an older library would misread it
LAUNCH, BUILD, IMAGES = "trtconvert_launch", "trtconvert_build", "trtconvert_images"


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
    kept = [a for a in node.attribute if a.name not in (LAUNCH, BUILD, IMAGES)]
    del node.attribute[:]
    node.attribute.extend([*kept, *attributes])


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
