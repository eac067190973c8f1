"""The order of a model's nodes and who makes its tensors: sorted where that is all, refused where it cannot be told."""

from __future__ import annotations

from collections.abc import Iterator

import onnx
from onnx import GraphProto, ModelProto, NodeProto

from trtconvert.errors import ConvertError


def title(node: NodeProto) -> str:
    """How a message calls a node: its name, or what it makes, and its op."""
    name = node.name or next(filter(None, node.output), "without a name")
    return f"{name} ({f'{node.domain}::' if node.domain else ''}{node.op_type})"


def settle(model: ModelProto, where: str) -> None:
    """Bring the nodes of every graph into an order in which each reads what is there, in place.

    ConvertError for a tensor that two nodes make, nodes that wait for each other, a domain without an operator set, and a
    model without nodes. where: the file, for messages.
    """
    if not model.graph.node:
        raise ConvertError("the model has no nodes: there is nothing to build", where=where, fix="export it again")
    _check_versions(model, where)
    _check_domains(model, where)
    for graph in graphs(model.graph):
        _check_writers(graph, where)
        _sort(graph, where)


def graphs(graph: GraphProto) -> Iterator[GraphProto]:
    """The graph and every graph inside its nodes, however deep."""
    waiting = [graph]
    while waiting:  # no recursion: a file may nest graphs deeper than Python calls
        found = waiting.pop()
        yield found
        waiting += [inner for node in found.node for inner in inside(node)]


def inside(node: NodeProto) -> Iterator[GraphProto]:
    """The graphs that the node holds."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def _check_versions(model: ModelProto, where: str) -> None:
    """What a newer ONNX than the installed one may mean is not known; TensorRT would read it as what it knows."""
    opset = next((e.version for e in model.opset_import if e.domain in ("", "ai.onnx")), 1)
    newest = onnx.defs.onnx_opset_version()
    for what, found, known in (("IR version", model.ir_version, int(onnx.IR_VERSION)), ("opset", opset, newest)):
        if found > known:
            raise ConvertError(
                f"the model has {what} {found}, the newest that is known here is {known} (onnx {onnx.__version__})",
                where=where,
                fix=f"export it with {what} {known} or older, or upgrade onnx",
            )


def _check_domains(model: ModelProto, where: str) -> None:
    """Without an operator set ONNX does not say what the nodes mean; TensorRT would not mind."""
    if model.ir_version < 3:
        return  # had no operator sets
    scopes = [({e.domain or "ai.onnx" for e in model.opset_import}, [model.graph.node, *_inner(model.graph.node)])]
    for function in model.functions:
        known = {e.domain or "ai.onnx" for e in function.opset_import}
        scopes.append((known, [function.node, *_inner(function.node)]))
    missing: dict[str, list[str]] = {}
    for known, lists in scopes:
        for nodes in lists:
            for node in nodes:
                if (node.domain or "ai.onnx") not in known:
                    missing.setdefault(node.domain, []).append(title(node))
    for domain, nodes in missing.items():
        called = f"domain {domain!r}" if domain else "the standard ops"
        raise ConvertError(
            f"the model is not valid ONNX: no opset_import for {called}, used by {', '.join(nodes[:5])}"
            f"{f' and {len(nodes) - 5} more' if nodes[5:] else ''}",
            where=where,
            fix=f'add it: model.opset_import.append(onnx.helper.make_opsetid("{domain}", {1 if domain else 17}))',
        )


def _inner(nodes: Iterator[NodeProto]) -> Iterator[Iterator[NodeProto]]:
    for node in nodes:
        for graph in inside(node):
            yield from (found.node for found in graphs(graph))


def _check_writers(graph: GraphProto, where: str) -> None:
    makers: dict[str, str] = {value.name: "is an input" for value in graph.input}
    for node in graph.node:
        for name in filter(None, node.output):
            if name in makers:
                before = makers[name]
                also = before if before.startswith("is ") else f"is made by node {before}"
                raise ConvertError(
                    f"the model is not valid ONNX: tensor {name!r} {also} and is made by node {title(node)} too",
                    where=where,
                    fix="give one of the two another output name",
                )
            makers[name] = title(node)


def _sort(graph: GraphProto, where: str) -> None:
    makers = {name: index for index, node in enumerate(graph.node) for name in node.output if name}
    needs = [sorted({makers[n] for n in _reads(node) if n in makers}) for node in graph.node]
    if all(not before or before[-1] < index for index, before in enumerate(needs)):
        return
    done: dict[int, bool] = {}
    order: list[int] = []
    for start in range(len(needs)):
        stack = [] if start in done else [(start, iter(needs[start]))]
        done.setdefault(start, False)
        while stack:
            index, before = stack[-1]
            following = next(before, None)
            if following is None:
                stack.pop()
                done[index] = True
                order.append(index)
            elif following not in done:
                done[following] = False
                stack.append((following, iter(needs[following])))
            elif not done[following]:
                ring = [i for i, _ in stack]
                raise _cycle([graph.node[i] for i in ring[ring.index(following) :]], where)
    nodes = [graph.node[index] for index in order]
    del graph.node[:]
    graph.node.extend(nodes)


def _reads(node: NodeProto) -> set[str]:
    """What the node needs; what its subgraphs read of other graphs among it."""
    names = set(node.input)
    for graph in inside(node):
        for inner in graphs(graph):
            names |= {name for found in inner.node for name in found.input} | {o.name for o in inner.output}
    return names - {""}


def _cycle(nodes: list[NodeProto], where: str) -> ConvertError:
    shown = [title(node) for node in nodes[:6]]
    more = f" and {len(nodes) - 6} more" if nodes[6:] else ""
    return ConvertError(
        f"the model is not valid ONNX: {'these nodes wait for each other' if nodes[1:] else 'this node waits for itself'}: "
        f"{', '.join(shown)}{more}",
        where=where,
        fix="cut the ring: one of them must read another tensor",
    )
