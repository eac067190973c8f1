"""What settles the condition of an If before the build: the flags that make it known, so that one branch remains."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from onnx import ModelProto, NodeProto

from trtconvert import graph as onnx_graph
from trtconvert.graph import GraphView
from trtconvert.shapes import Range

_ASK_SIZES = frozenset(("Shape", "Size"))


@dataclass(frozen=True)
class Open:
    """An If whose condition is not known. inputs: of the model, whose values it depends on, each with a value that settles it.
    sized: inputs on whose sizes it depends."""

    node: str
    inputs: dict[str, str]
    sized: tuple[str, ...]

    def flags(self, ranges: Mapping[str, Range]) -> list[str]:
        """What to add to the command. Sizes are fixed for all inputs, which may share dimensions."""
        bakes = [f"--bake {name}={value}" for name, value in self.inputs.items()]
        if not any(name in ranges for name in self.sized):
            return bakes
        return bakes + [f"--shape {name}={'x'.join(map(str, given.opt))}" for name, given in ranges.items()]


def unknown(model: ModelProto, folder: Path) -> list[Open]:
    """The Ifs of the main graph, once those of known condition are gone."""
    view = onnx_graph.views(model, folder)[0]
    return [_open(view, node) for node in view.nodes if node.op_type == "If"]


def advice(model: ModelProto, folder: Path, ranges: Mapping[str, Range]) -> str:
    """Which of them depend on what, and the flags that settle them; "" where no flags do."""
    told, flags = list[str](), list[str]()
    for one in unknown(model, folder):
        if settling := one.flags(ranges):
            on = [f"the value of {name}" for name in one.inputs] + [f"the sizes of {name}" for name in one.sized]
            told.append(f"If {one.node} depends on {' and '.join(on)}")
            flags += settling
    if not flags:
        return ""
    return f"{', '.join(told[:3])}{', ...' if told[3:] else ''}: leave one branch with {' '.join(dict.fromkeys(flags))}"


def _open(view: GraphView, node: NodeProto) -> Open:
    values: dict[str, str] = {}
    sized: list[str] = []
    graph_inputs = {i.name for i in view.graph.input} - set(view.initializers)
    for name, by_size, reader in _leaves(view, node.input[0], graph_inputs):
        info = view.info(name)
        if by_size:
            sized.append(name)
        elif info.dtype.startswith(("int", "uint", "bool")) and info.shape in ((), (1,)):  # others are data
            values.setdefault(name, _value(view, name, reader))
    dynamic = [n for n in dict.fromkeys(sized) if any(not isinstance(d, int) for d in view.info(n).shape or (None,))]
    return Open(node.name or node.output[0], values, tuple(dynamic))


def _leaves(view: GraphView, tensor: str, inputs: set[str]) -> Iterator[tuple[str, bool, NodeProto | None]]:
    """Inputs of the graph that the tensor is computed from, whether by their sizes alone, and the node that reads them."""
    seen: set[tuple[str, bool]] = set()
    todo: list[tuple[str, bool, NodeProto | None]] = [(tensor, False, None)]
    while todo:
        name, by_size, reader = todo.pop()
        if (name, by_size) in seen:
            continue
        seen.add((name, by_size))
        if name in inputs:
            yield name, by_size, reader
        elif (index := view.producers.get(name)) is not None:
            node = view.nodes[index]
            todo += [(t, by_size or node.op_type in _ASK_SIZES, node) for t in node.input if t]


def _value(view: GraphView, name: str, reader: NodeProto | None) -> str:
    """A value for the input: the constant that it is compared with, or else 1."""
    if reader is not None and reader.op_type == "Equal":
        for other in reader.input:
            constant = None if other == name else view.constant(other)
            if constant is not None and constant.size == 1:
                return str(constant.item())
    return "true" if view.info(name).dtype == "bool" else "1"
