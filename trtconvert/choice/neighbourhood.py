"""Cuts a fusion with its neighbours out of a model, so that it can be timed in its context without the rest."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from trtconvert import graph as onnx_graph
from trtconvert import model as onnx_model
from trtconvert.bodies import add_bodies
from trtconvert.errors import ConvertError
from trtconvert.fuse import FuseResult, fuse_model, opened_for_fusing
from trtconvert.graph import GraphView, TensorInfo
from trtconvert.lowering import branches
from trtconvert.matching.layout import REACH
from trtconvert.matching.rewrite import Fusion
from trtconvert.model import elem_type, numpy_dtype
from trtconvert.op import Op
from trtconvert.shapes import Range

DEPTH = max(
    2, REACH
)  # nodes around the fusion on each path: what TensorRT would fuse with it, such as a MatMul and its bias
_SMALL = 8  # elements; constants that small are epsilons, axes and shapes, whose values count: larger ones are weights
_RANDOM = ("RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Bernoulli", "Multinomial")


@dataclass(frozen=True)
class Size:
    """What a fusion moves: dtype and shape of its data, bytes of data and result."""

    dtype: str
    shape: tuple[int, ...]
    bytes: int


@dataclass(frozen=True)
class Cut:
    """A fusion and its neighbours as two small models of static shapes: as they are, and with the plugin node.

    signature: the same for cuts that differ in names and weights alone.
    """

    native: ModelProto
    fused: ModelProto
    signature: str


class Surroundings:
    """A model in which nothing is fused yet, its dynamic inputs fixed at the profile's opt shapes. Read when first asked."""

    def __init__(self, model: ModelProto, folder: Path, ranges: Mapping[str, Range]) -> None:
        self._model, self.folder, self._ranges = model, folder, ranges
        self._values: branches.Values = {}

    @cached_property
    def model(self) -> ModelProto:
        """The model in which to cut."""
        opened = opened_for_fusing(self._model)
        model = onnx_model.copy(opened) if opened is self._model else opened
        add_bodies(model)  # shape inference goes through them
        for value in model.graph.input:
            if value.name in self._ranges:
                shape = self._ranges[value.name].opt
                value.CopyFrom(helper.make_tensor_value_info(value.name, value.type.tensor_type.elem_type, shape))
        return model

    @cached_property
    def views(self) -> dict[str, GraphView]:
        """The graphs by the path of the nodes that hold them; "" is the main graph."""
        return {view.path: view for view in onnx_graph.views(self.model, self.folder)}

    @cached_property
    def constants(self) -> set[str]:
        """Tensors of the main graph that are computed from initializers alone."""
        found = {"", *self.views[""].initializers}
        for node in self.views[""].nodes:
            alone = node.op_type == "Constant" or (node.input and node.op_type not in _RANDOM)
            inside = next(onnx_model.subgraphs(node), None)
            if alone and inside is None and found.issuperset(node.input):
                found.update(node.output)
        return found

    @property
    def elements(self) -> int:
        """Of all tensors that nodes make, as far as known."""
        infos = [view.info(name) for view in self.views.values() for name in view.producers]
        return sum(int(np.prod(_dims(info), dtype=np.int64)) for info in infos if _is_static(info))

    def size(self, fusion: Fusion) -> Size | None:
        """What the fusion moves at the opt shapes; None where a shape is unknown even there."""
        view = self.views.get(fusion.path)
        if view is None:
            return None
        infos = [view.info(fusion.inputs[0]), view.info(fusion.output)]
        if not all(map(_is_static, infos)):
            return None
        return Size(infos[0].dtype, _dims(infos[0]), sum(map(_bytes, infos)))

    def known(self, name: str) -> Any:
        """Value of an integer tensor of the main graph that follows from constants and shapes; None for all others."""
        dtype = self.views[""].info(name).dtype
        if not dtype.startswith(("int", "bool")):
            return None
        return branches.value(self.views[""], name, self._values)

    def cut(self, fusion: Fusion, fused: FuseResult, ops: Sequence[type[Op]]) -> Cut:
        """The fusion with `DEPTH` nodes around it. fused: the model in which it and the others were made; those others
        end the neighbourhood. ConvertError says why it cannot be cut."""
        if fusion.path:
            raise ConvertError("it lies in a graph inside a node")
        native = _Cutter(self, fused).cut(fusion)
        with_plugin = onnx_model.copy(native)
        chosen = [op for op in ops if op.name == fusion.op]
        again = fuse_model(with_plugin, self.folder, chosen, lambda key: key == fusion.key)
        if len(again.fusions) != 1:
            raise ConvertError("it is not found again in its neighbourhood alone")
        return Cut(native, with_plugin, _signature(native, fusion))


class _Cutter:
    """Cuts in a main graph of which it knows what stays when everything is fused."""

    def __init__(self, around: Surroundings, fused: FuseResult) -> None:
        self.around, self.view = around, around.views[""]
        graph = fused.model.graph
        self.made = {name for node in graph.node for name in node.output}
        self.made |= {i.name for i in graph.input} | {t.name for t in graph.initializer}
        self.results = {f.output for f in fused.fusions if not f.path}

    def cut(self, fusion: Fusion) -> ModelProto:
        region = self._region(fusion.output)
        nodes = region | self._near(region, up=True) | self._near(region, up=False)
        graph = GraphProto(name="neighbourhood")
        weights = self._add_inputs(graph, nodes)
        made = {name for i in nodes for name in self.view.nodes[i].output if name}
        graph.node.extend(self.view.nodes[i] for i in sorted(nodes | weights))
        for name in sorted(made):
            if self._is_read_outside(name, nodes):
                graph.output.append(_declared(name, self.view.info(name)))
            elif (info := self.view.info(name)).dtype:  # for fusing: inference may not find it again
                graph.value_info.append(helper.make_tensor_value_info(name, elem_type(info.dtype), info.shape))
        if not graph.output:
            raise ConvertError("nothing reads what it makes")
        whole = self.around.model
        cut = ModelProto(ir_version=max(whole.ir_version, 8), graph=graph)
        cut.opset_import.extend(whole.opset_import)
        cut.functions.extend(whole.functions)
        return cut

    def _region(self, output: str) -> set[int]:
        """The nodes that the fusion replaces: back from its output to tensors that are there after it, too."""
        found: set[int] = set()
        todo = [output]
        while todo:
            index = self.view.producers.get(todo.pop())
            if index is not None and index not in found:
                found.add(index)
                todo += [name for name in self.view.nodes[index].input if name not in self.made]
        return found

    def _near(self, region: set[int], up: bool) -> set[int]:
        """Nodes within DEPTH before the region, or behind it."""
        found: set[int] = set()
        frontier = region
        for _ in range(DEPTH):
            nodes = [self.view.nodes[i] for i in frontier]
            if up:
                next_ones = {self.view.producers[t] for n in nodes for t in n.input if t in self.view.producers}
            else:
                next_ones = {i for n in nodes for t in n.output for i in self.view.consumers.get(t, ())}
            frontier = {i for i in next_ones - region - found if self._is_neighbour(self.view.nodes[i])}
            found |= frontier
        return found

    def _is_neighbour(self, node: NodeProto) -> bool:
        """Not part of another fusion, not a constant or a computation on shapes, without a graph inside."""
        outputs = [name for name in node.output if name]
        if self.results.intersection(outputs) or not self.made.issuperset(outputs):
            return False
        if next(onnx_model.subgraphs(node), None) is not None or self.around.constants.issuperset(outputs):
            return False
        return not self._is_known(node)

    def _add_inputs(self, graph: GraphProto, nodes: Iterable[int]) -> set[int]:
        """Declare what the nodes read and do not make: weights and known shapes as initializers, computed weights with
        the nodes that compute them, which are returned; all else as inputs."""
        made = {name for i in nodes for name in self.view.nodes[i].output}
        weights: set[int] = set()
        seen: set[str] = {""}
        todo = [name for i in sorted(nodes) for name in self.view.nodes[i].input]
        while todo:
            name = todo.pop(0)
            if name in seen or name in made:
                continue
            seen.add(name)
            if name in self.view.initializers:
                graph.initializer.append(self.view.initializers[name])
            elif name in self.around.constants:
                weights.add(self.view.producers[name])
                todo += self.view.nodes[self.view.producers[name]].input
            elif (value := self.around.known(name)) is not None:
                graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
            else:
                graph.input.append(_declared(name, self.view.info(name)))
        return weights

    def _is_read_outside(self, name: str, nodes: set[int]) -> bool:
        """Read for its numbers, that is: shapes are known without it."""
        readers = (self.view.nodes[i] for i in self.view.consumers.get(name, ()) if i not in nodes)
        return name in self.view.outputs or not all(map(self._is_known, readers))

    def _is_known(self, node: NodeProto) -> bool:
        return all(self.around.known(name) is not None for name in node.output if name)


def _is_static(info: TensorInfo) -> bool:
    return bool(info.dtype) and info.shape is not None and all(isinstance(d, int) for d in info.shape)


def _dims(info: TensorInfo) -> tuple[int, ...]:
    return tuple(d for d in info.shape or () if isinstance(d, int))


def _bytes(info: TensorInfo) -> int:
    return int(np.prod(_dims(info), dtype=np.int64)) * numpy_dtype(info.dtype).itemsize


def _declared(name: str, info: TensorInfo) -> Any:
    if not _is_static(info):
        raise ConvertError(f"the shape of {name} is unknown")
    return helper.make_tensor_value_info(name, elem_type(info.dtype), _dims(info))


# --- signatures ----------------------------------------------------------------------------------------------------


def _signature(cut: ModelProto, fusion: Fusion) -> str:
    """Digest of everything but names and the values of weights."""
    numbers: dict[str, int] = {"": -1}

    def number(names: Iterable[str]) -> list[int]:
        return [numbers.setdefault(name, len(numbers)) for name in names]

    graph = cut.graph
    parts: list[Any] = [fusion.op, sorted(fusion.attributes.items()), fusion.channels_last]
    parts += [(number([v.name]), v.type.SerializeToString(deterministic=True)) for v in graph.input]
    parts += [(number([t.name]), _summary(t)) for t in graph.initializer]
    for node in graph.node:
        attributes = sorted((a.name, _attribute(a)) for a in node.attribute)
        parts.append((node.domain, node.op_type, attributes, number(node.input), number(node.output)))
    parts.append(sorted(number(v.name for v in graph.output)))
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def _attribute(attribute: AttributeProto) -> str:
    if attribute.type == AttributeProto.TENSOR:
        return repr(_summary(attribute.t))
    return repr(attribute.SerializeToString(deterministic=True))


def _summary(tensor: TensorProto) -> tuple[Any, ...]:
    small = np.prod(tensor.dims, dtype=np.int64) <= _SMALL and tensor.data_location != TensorProto.EXTERNAL
    return tensor.data_type, tuple(tensor.dims), numpy_helper.to_array(tensor).tobytes() if small else b""
