"""What --map, --set-attr and --cast ask for, read and carried out on a model's nodes."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import onnx
from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, helper

from trtconvert import model as onnx_model
from trtconvert.custom_ops.attributes import MAPPED, NAMESPACE, VERSION, op_title
from trtconvert.diagnosis.faults import Fault
from trtconvert.errors import ConvertError

OPTIONS = ("--map", "--set-attr", "--cast")
CASTS = {"float32", "float16", "bfloat16", "int8", "uint8", "int32", "int64", "bool"}


@dataclass(frozen=True)
class Map:
    """`[DOMAIN::]OP=NAME[@VERSION][:NAMESPACE]`: nodes of that op go to that creator. domain None: whichever."""

    domain: str | None
    op_type: str
    name: str
    version: str | None
    namespace: str | None

    def takes(self, domain: str, op_type: str) -> bool:
        """Whether nodes of that domain and op type are meant."""
        domains = (self.domain, None) if self.domain not in onnx_model.STANDARD_DOMAINS else onnx_model.STANDARD_DOMAINS
        return self.op_type == op_type and (self.domain is None or domain in domains)


@dataclass(frozen=True)
class Value:
    """`NODE.NAME=TEXT`: that attribute; an empty text removes it."""

    node: str
    name: str
    text: str


@dataclass(frozen=True)
class Cast:
    """`NODE:TENSOR=DTYPE`: a Cast before that input of the node (index or name), or behind its output (`out0`)."""

    node: str
    tensor: str
    dtype: str


W = TypeVar("W", Value, Cast)


@dataclass(frozen=True)
class Wishes:
    """All of them; a node is named by its name, its op type, or DOMAIN::OP."""

    maps: tuple[Map, ...] = ()
    values: tuple[Value, ...] = ()
    casts: tuple[Cast, ...] = ()
    told: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # the options as they were written

    def left_out(self, node: NodeProto) -> list[str]:
        """Attributes that the node is to be without."""
        return [value.name for value in self.values if not value.text and is_meant(value.node, node)]

    def drops(self, function: FunctionProto) -> bool:
        """Whether the function's body goes, since its nodes are given to a creator."""
        return any(one.takes(function.domain, function.name) for one in self.maps)


def parse(maps: Sequence[str], values: Sequence[str], casts: Sequence[str]) -> Wishes:
    """Read the options. ConvertError says how one is written."""
    given = tuple(map(_map, maps))
    written = {option: tuple(texts) for option, texts in zip(OPTIONS, (maps, values, casts), strict=True) if texts}
    return Wishes(given, _of_mapped(map(_value, values), given), _of_mapped(map(_cast, casts), given), written)


def told(options: Mapping[str, Sequence[str]]) -> Wishes:
    """`Wishes.told` read again, as a manifest has it."""
    return parse(*(options.get(option, ()) for option in OPTIONS))


def _of_mapped(wishes: Iterable[W], maps: Sequence[Map]) -> tuple[W, ...]:
    """A wish that names an op by the name that --map takes away holds under the new one too."""
    new = {name: one.name for one in maps for name in (one.op_type, f"{one.domain}::{one.op_type}")}
    found = list(wishes)
    found += [replace(wish, node=new[wish.node]) for wish in found if wish.node in new]
    return tuple(found)


def _map(text: str) -> Map:
    match = re.fullmatch(r"(?:(.*)::)?([^:=]+)=([^@:=]+)(?:@([^:]+))?(?::(.*))?", text)
    if match is None:
        raise _unreadable("--map", text, "acme::MyGelu=MyGelu@1, or with a namespace MyGelu=MyGelu@1:acme")
    return Map(*match.groups())


def _value(text: str) -> Value:
    match = re.fullmatch(r"(.+?)\.([A-Za-z_]\w*)=(.*)", text, re.DOTALL)
    if match is None:
        raise _unreadable("--set-attr", text, "NODE.eps=1e-5, or NODE.eps= to remove it")
    return Value(*match.groups())


def _cast(text: str) -> Cast:
    match = re.fullmatch(r"(.+):([^=]+)=(\w+)", text)
    if match is None:
        raise _unreadable("--cast", text, "NODE:1=int32 for input 1, or NODE:out0=float16 for an output")
    if match[3] not in CASTS:
        raise ConvertError(f"--cast to {match[3]!r} is not possible", fix=f"cast to one of {', '.join(sorted(CASTS))}")
    return Cast(*match.groups())


def _unreadable(option: str, text: str, example: str) -> ConvertError:
    return ConvertError(f"{option} {text!r} cannot be read", fix=f"write {option} {example}")


def default_name(node: NodeProto) -> str:
    """The node's name, or one made of its op type and output."""
    return node.name or f"{node.op_type}_{node.output[0] if node.output else ''}"


def is_meant(wanted: str, node: NodeProto) -> bool:
    """Whether an option's NODE is this one."""
    return wanted in (default_name(node), node.op_type, op_title(node))


def check(wishes: Wishes, model: ModelProto) -> None:
    """ConvertError for what no node of the model answers to; where functions are written out later, nodes are yet to come."""
    functions = [node for function in model.functions for node in function.node]
    nodes = [*onnx_model.all_nodes(model), *functions]
    ops = sorted({op_title(node) for node in nodes})
    for one in wishes.maps:
        if not any(one.takes(node.domain, node.op_type) for node in nodes):
            wanted = one.op_type if one.domain is None else f"{one.domain}::{one.op_type}"
            raise nobody("--map", wanted, ops, "op")
    named = [("--set-attr", value.node) for value in wishes.values] + [("--cast", one.node) for one in wishes.casts]
    for option, name in named:
        given = any(name == one.name for one in wishes.maps)
        if not functions and not given and not any(is_meant(name, node) for node in nodes):
            raise nobody(option, name, [*map(default_name, nodes), *ops], "node or op")


def nobody(option: str, wanted: str, known: list[str], kind: str) -> ConvertError:
    """An option names what is not there: the error, with names that are near."""
    near = difflib.get_close_matches(wanted, known, 3)
    fix = f"did you mean {', '.join(near)}?" if near else f"the model has {', '.join(dict.fromkeys(known[:8]))}"
    return ConvertError(f"{option} names {wanted}, and the model has no such {kind}", fix=fix)


def give(nodes: Iterable[NodeProto], maps: Sequence[Map]) -> None:
    """Rename the nodes that --map gives to a creator, in place."""
    for node in nodes:
        one = next((m for m in maps if m.takes(node.domain, node.op_type)), None)
        if one is None:
            continue
        node.name = default_name(node)  # made of the op's own name
        node.domain, node.op_type = MAPPED, one.name
        pinned = {VERSION: one.version, NAMESPACE: one.namespace}
        kept = [a for a in node.attribute if pinned.get(a.name) is None]
        del node.attribute[:]
        node.attribute.extend(kept)
        node.attribute.extend(helper.make_attribute(k, v) for k, v in pinned.items() if v is not None)


def cast(model: ModelProto, casts: Sequence[Cast]) -> Iterator[Fault]:
    """Put the Casts into the model, in place; yields a fault for each that names no tensor of its node."""
    for graph in onnx_model.all_graphs(model.graph) if casts else ():
        nodes: list[NodeProto] = []
        for node in graph.node:
            before, behind = list[NodeProto](), list[NodeProto]()
            for wish in casts:
                if is_meant(wish.node, node):
                    place = _place(wish.tensor, node)
                    if place is None:
                        yield _no_tensor(wish, node)
                    elif place[0]:
                        behind.append(behind_output(node, place[1], wish.dtype))
                    else:
                        before.append(before_input(node, place[1], wish.dtype))
            nodes += [*before, node, *behind]
        replace_nodes(graph, nodes)


def replace_nodes(graph: GraphProto, nodes: list[NodeProto]) -> None:
    """Make these the graph's nodes."""
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(copies)


def before_input(node: NodeProto, index: int, dtype: str) -> NodeProto:
    """Cast that input of the node: the Cast to put before it."""
    source, name = node.input[index], f"{node.name}_input{index}_{dtype}"
    node.input[index] = name
    return helper.make_node("Cast", [source], [name], name=f"{name}_Cast", to=onnx_model.elem_type(dtype))


def behind_output(node: NodeProto, index: int, dtype: str) -> NodeProto:
    """Cast that output of the node: the Cast to put behind it."""
    target, name = node.output[index], f"{node.name}_output{index}_uncast"
    node.output[index] = name
    return helper.make_node("Cast", [name], [target], name=f"{name}_Cast", to=onnx_model.elem_type(dtype))


def _place(tensor: str, node: NodeProto) -> tuple[bool, int] | None:
    """Whether it is an output, and which."""
    match = re.fullmatch(r"(out)?(\d+)", tensor)
    if match:
        side, index = node.output if match[1] else node.input, int(match[2])
        return (bool(match[1]), index) if index < len(side) and side[index] else None
    sides = ((False, list(node.input)), (True, list(node.output)))
    return next(((output, names.index(tensor)) for output, names in sides if tensor in names), None)


def _no_tensor(wish: Cast, node: NodeProto) -> Fault:
    return Fault(
        node.name,
        op_title(node),
        f"--cast {wish.node}:{wish.tensor} names no input or output of the node",
        f"its inputs are {', '.join(node.input) or 'none'}, by name or number; its outputs out0 to out{len(node.output) - 1}",
    )
