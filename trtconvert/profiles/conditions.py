"""What settles the condition of an If before the build: the flags that make it known, so that one branch remains."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

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


def known_when_built(view: GraphView, node: NodeProto) -> bool:
    """Whether the condition of this If follows from constants and fixed sizes, which TensorRT then works out itself."""
    return not any(not by_size or _is_dynamic(at, name) for at, name, by_size, _ in _leaves(view, node.input[0]))


def _open(view: GraphView, node: NodeProto) -> Open:
    values: dict[str, str] = {}
    sized: list[str] = []
    for at, name, by_size, reader in _leaves(view, node.input[0]):
        info = at.info(name)
        if by_size:
            sized += [name] if _is_dynamic(at, name) else []
        elif info.dtype.startswith(("int", "uint", "bool")) and info.shape in ((), (1,)):  # others are data
            values.setdefault(name, _value(at, name, reader))
    return Open(node.name or node.output[0], values, tuple(dict.fromkeys(sized)))


def _is_dynamic(view: GraphView, name: str) -> bool:
    return any(not isinstance(d, int) for d in view.info(name).shape or (None,))


Leaf: TypeAlias = "tuple[GraphView, str, bool, NodeProto | None]"
"""An input of a graph, the graph's view, whether it counts by its size alone, and the node that reads it."""


def _leaves(view: GraphView, tensor: str) -> Iterator[Leaf]:
    """The inputs that the tensor is computed from, here and in the graphs around."""
    seen: set[tuple[int, str, bool]] = set()
    todo: list[Leaf] = [(view, tensor, False, None)]
    while todo:
        at, name, by_size, reader = todo.pop()
        while name not in at.producers and at.parent is not None and not _is_input(at, name):
            at = at.parent
        if (id(at), name, by_size) in seen:
            continue
        seen.add((id(at), name, by_size))
        if _is_input(at, name):
            yield at, name, by_size, reader
        elif name in at.producers:
            node = at.nodes[at.producers[name]]
            todo += [(at, t, by_size or node.op_type in _ASK_SIZES, node) for t in node.input if t]


def _is_input(view: GraphView, name: str) -> bool:
    return name not in view.initializers and any(i.name == name for i in view.graph.input)


def _value(view: GraphView, name: str, reader: NodeProto | None) -> str:
    """A value for the input: the constant that it is compared with, or else 1."""
    if reader is not None and reader.op_type == "Equal":
        for other in reader.input:
            constant = None if other == name else view.constant(other)
            if constant is not None and constant.size == 1:
                return str(constant.item())
    return "true" if view.info(name).dtype == "bool" else "1"
