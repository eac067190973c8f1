"""Where the values of an input go: through ops that only move or convert them, to the nodes that use them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from onnx import NodeProto

from trtconvert.graph import GraphView
from trtconvert.model import STANDARD_DOMAINS

# Ops whose output holds values of these inputs, moved or converted.
_CARRY = {
    **dict.fromkeys(("Cast", "CastLike", "Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Transpose"), (0,)),
    **dict.fromkeys(("Expand", "Tile", "Slice", "Split", "Gather", "GatherElements", "GatherND", "Clip", "Pad"), (0,)),
    "Where": (1, 2),
    "Max": None,
    "Min": None,
    "Concat": None,
}
# Ops that an image goes through on its way to the first layer, besides.
_PREPARE = {
    **dict.fromkeys(("Sub", "Add", "Mul", "Div"), (0, 1)),
    **dict.fromkeys(("Resize", "Upsample", "BatchNormalization", "SpaceToDepth"), (0,)),
    **dict.fromkeys(("QuantizeLinear", "DequantizeLinear"), (0,)),
}


@dataclass(frozen=True)
class Use:
    """A node that reads what comes from an input, at one of its inputs. offset: what was added to the values on the way."""

    view: GraphView
    node: NodeProto
    position: int
    offset: int

    @property
    def title(self) -> str:
        """The node for a message."""
        return f"{self.view.path}{self.node.name or self.node.output[0]} ({self.node.op_type})"


class Flow:
    """Uses of a model's inputs. views: of the main graph and of each subgraph, as `graph.views` gives them."""

    def __init__(self, views: Sequence[GraphView]) -> None:
        self.views = views
        self._children: dict[int, list[GraphView]] = {}
        for view in views:
            self._children.setdefault(id(view.parent), []).append(view)
        self._readers: dict[int, dict[str, list[tuple[NodeProto, int]]]] = {}
        for view in views:
            readers = self._readers.setdefault(id(view), {})
            for node in view.nodes:
                for position, name in enumerate(node.input):
                    readers.setdefault(name, []).append((node, position))

    def uses(self, name: str, prepared: bool = False) -> Iterator[Use]:
        """Each use of the input, near ones first. Where a value arrives both plain and with something added, as in
        Where(i < 0, i + n, i), the plain one counts. prepared: follow it through scaling and resizing too."""
        pending, seen = deque([(self.views[0], name, 0)]), {(id(self.views[0]), name)}
        while pending:
            view, tensor, offset = pending.popleft()
            for reader, node, position in self._reads(view, tensor):
                yield Use(reader, node, position, offset)
                moved = _carried(reader, node, position)
                if moved is None and prepared and position in _PREPARE.get(node.op_type, ()):
                    moved = 0
                for made in node.output if moved is not None else ():
                    if made and (id(reader), made) not in seen:
                        seen.add((id(reader), made))
                        pending.append((reader, made, offset + (moved or 0)))

    def _reads(self, view: GraphView, name: str) -> Iterator[tuple[GraphView, NodeProto, int]]:
        """Nodes of the graph that read the tensor, and those of the graphs inside it that take it from there."""
        for node, position in self._readers[id(view)].get(name, ()):
            yield view, node, position
        for child in self._children.get(id(view), ()):
            if not child.makes(name):
                yield from self._reads(child, name)


def _carried(view: GraphView, node: NodeProto, position: int) -> int | None:
    """What the node adds to the values of that input; None if its output does not hold them."""
    if node.domain not in STANDARD_DOMAINS:
        return None
    if node.op_type in _CARRY:
        positions = _CARRY[node.op_type]
        return 0 if positions is None or position in positions else None
    if node.op_type == "Add" or (node.op_type == "Sub" and position == 0):
        other = view.uniform(node.input[1 - position])
        if other is not None and other[0].is_integer():
            return int(other[0]) if node.op_type == "Add" else -int(other[0])
    return None
