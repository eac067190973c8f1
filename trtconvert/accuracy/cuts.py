"""Places between the nodes of a graph, and the tensors that pass them: whatever goes wrong before a place shows there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from onnx import GraphProto

from trtconvert import model as onnx_model

MARKABLE = (
    "float64",
    "float32",
    "float16",
    "bfloat16",
    "int64",
    "int32",
    "int8",
    "bool",
)  # what TensorRT takes as an output, float64 as float32
_LONG = 16  # nodes: a tensor that cannot be seen and lives longer closes no place, since it would close all of them
_SHAPES = ("Shape", "Size")


@dataclass(frozen=True)
class Cut:
    """A place with `place` nodes before it, and the tensors made before and read behind it, or outputs."""

    place: int
    tensors: tuple[str, ...]


def cuts(graph: GraphProto, can_be_seen: Callable[[str], bool]) -> list[Cut]:
    """The places at which all that passes can be seen, the end last. What follows from constants and shapes alone does not
    count: it is the same in every engine."""
    last, births = _lives(graph)
    live: list[str] = []
    found: list[Cut] = []
    for place in range(1, len(graph.node)):
        born = [name for name in graph.node[place - 1].output if births.get(name) == place - 1]
        live = [name for name in (*live, *born) if last.get(name, -1) >= place]
        blind = [name for name in live if not can_be_seen(name)]
        tensors = tuple(name for name in live if can_be_seen(name))
        hidden = any(last[name] - births[name] <= _LONG for name in blind)
        if tensors and not hidden and (not found or tensors != found[-1].tensors):
            found.append(Cut(place, tensors))
    end = Cut(len(graph.node), tuple(output.name for output in graph.output))
    return [*(cut for cut in found if set(cut.tensors) != set(end.tensors)), end]


def _lives(graph: GraphProto) -> tuple[dict[str, int], dict[str, int]]:
    """Of the tensors that hang on the inputs' data: the last node that reads each, or the end, and the node that makes it."""
    data = {value.name for value in graph.input} - {tensor.name for tensor in graph.initializer}
    last: dict[str, int] = {}
    births: dict[str, int] = {}
    for index, node in enumerate(graph.node):
        reads = {*node.input, *onnx_model.captured(node)}
        last.update(dict.fromkeys(reads, index))
        if node.op_type not in _SHAPES and reads & data:
            made = [name for name in node.output if name]
            data.update(made)
            births.update(dict.fromkeys(made, index))
    last.update({output.name: len(graph.node) for output in graph.output})
    return last, births
