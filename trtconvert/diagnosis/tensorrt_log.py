"""TensorRT's log, translated: the one cause, without what only follows from it, and the ONNX nodes that it is about."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from onnx import ModelProto, NodeProto

from trtconvert import model as onnx_model
from trtconvert.diagnosis.faults import Fault

# What TensorRT says after, or beside, the thing that went wrong.
_CASCADE = re.compile(
    r"CudaError|CUDA (initialization|error|driver)|no CUDA-capable|cudaGetDevice|no optimization profile|failed to parse"
    r"|While parsing node number|^-*\s*(Begin|End) node|^\s*(input|output|name|op_type): "
    r"|Network must have at least one output|Engine could not be created|In node -1 with name"
    r"|Assertion (engine|plan)\b|engine (creation|build) failed|Network validation failed",
    re.IGNORECASE,
)
_FOREIGN = re.compile(r"\{ForeignNode\[(.+?)\]\}")
_PREFIXES = (
    re.compile(r"^(\[\w+\] )*(\[TRT\] )?"),
    re.compile(r"^\[?[\w.]+\.(cpp|h|hpp)(:\d+|::\w+::\d+)?\]?:? *"),
    re.compile(r"^\w+(::\w+)+: (?=Error Code)"),
    re.compile(r"^\d+: "),
    re.compile(r"^Error Code \d+: "),
)
_SOURCE_LINE = re.compile(r"\s*\bIn \w+ at \S+?:\d+")
_KIND = re.compile(r"^([\w ]*Error|Myelin|Cask|Cuda Runtime|Unsupported[\w ]*) \((.*)\)$", re.DOTALL)
_ASSERTION = re.compile(r"^(?:Assertion failed: )?(?:(?P<cond>[^\"]*?)(?:&& \"|: ))(?P<text>.+?)\"?$", re.DOTALL)

# What helps, by what TensorRT says. Seen: TensorRT-RTX 1.7.1, those on tactics in public reports on TensorRT 8 to 10.
_ADVICE = (
    (r"FP32 GEMM is not supported", "leave sm_75 out of --target, or export the model in float16"),
    (
        r"[Cc]ould not find any implementation",
        "give the builder more memory with --workspace 8G, or try another --opt-level; if it stays, the nodes named are "
        "what to replace in the exporter",
    ),
    (
        r"supported formats consistent",
        "a plugin refuses the types or layouts of its inputs: cast them to what it takes",
    ),
    (
        r"equal ranks when condition",
        "let both branches return the same rank, or make the condition constant, as by fixing shapes with --shape",
    ),
    (r"(?i)out of memory|insufficient memory|OutOfMemory", "free GPU memory, or lower --workspace"),
    (r"no optimization profile", "an input's values decide shapes: make it a constant of the model"),
    (
        r"[Vv]ersion tag does not match|serialization.*version",
        "build the plan again with the TensorRT that will run it",
    ),
)


@dataclass(frozen=True)
class Diagnosis:
    """One cause; the ONNX nodes that it names, in words; what helps, or ""."""

    what: str
    where: str
    fix: str


def explain(errors: Sequence[str], warnings: Sequence[str], model: ModelProto) -> Diagnosis:
    """The cause of a failed build. model: as it was parsed, every node with a name of its own."""
    first = next((e for e in errors if not _CASCADE.search(e)), errors[0] if errors else "")
    what = plain(first) or "TensorRT gave no reason"
    nodes = list(onnx_model.all_nodes(model))
    where = "; ".join([*_ranges(first, nodes), *_named(_FOREIGN.sub("", first), nodes)])
    fix = next((advice for pattern, advice in _ADVICE if re.search(pattern, first)), "")
    skipped = sum("insufficient" in w.lower() or "skipping tactic" in w.lower() for w in (*warnings, *errors))
    if skipped and "implementation" in what:
        what += f" ({skipped} tactics were left out, for want of memory: see -v)"
    return Diagnosis(_FOREIGN.sub("a fused layer", what), where, fix)


def plain(message: str) -> str:
    """The message without TensorRT's function names, error codes and source lines."""
    lines = [
        line for line in message.splitlines() if line.strip() and not _CASCADE.search(line)
    ] or message.splitlines()
    told = [_plain_line(line) for line in lines]
    told = [line for line in told if not line.startswith("Invalid Node - ")] or told
    return "; ".join(dict.fromkeys(told))


def _plain_line(line: str) -> str:
    text = line.strip()
    for prefix in _PREFIXES:
        text = prefix.sub("", text)
    text = re.sub(r"^\w+::\w+: Error Code \d+: ", "", text)
    kind = _KIND.match(text)
    if kind:
        text = kind[2]
    text = _SOURCE_LINE.sub("", text).strip()
    text = re.sub(r"^\[\w+\.cpp:\d+: \w+\] ", "", text)
    match = _ASSERTION.match(text) if text.startswith("Assertion failed") or '&& "' in text else None
    return (match["text"] if match else text).strip().rstrip(".")


# --- names ---------------------------------------------------------------------------------------------------------


def layer_node(layer: str, nodes: Sequence[NodeProto]) -> NodeProto | None:
    """The ONNX node that a layer, or a tensor between layers, came from: TensorRT appends to a node's name."""
    by_name = {node.name: node for node in nodes}
    name = layer.strip()
    for cut in range(len(name), 0, -1):
        if name[:cut] in by_name and not name[cut : cut + 1].isalnum():
            return by_name[name[:cut]]
    made = next((node for node in nodes if name in node.output), None)
    return made or next((node for node in nodes if name in node.input), None)


def _ranges(message: str, nodes: Sequence[NodeProto]) -> Iterator[str]:
    """`{ForeignNode[a...b]}` as the nodes from a to b."""
    for inside in _FOREIGN.findall(message):
        ends = [layer_node(end, nodes) for end in re.split(r"\.\.\.", inside, maxsplit=1)]
        known = [node for node in ends if node is not None]
        if not known:
            yield f"TensorRT's layers {inside.replace('...', ' to ')}"
            continue
        places = [next(i for i, node in enumerate(nodes) if node is end) for end in known]
        part = nodes[min(places) : max(places) + 1]
        if len(part) == 1:
            yield _say(part[0])
            continue
        kinds = ", ".join(f"{op} x{count}" for op, count in Counter(n.op_type for n in part).most_common(6))
        yield f"nodes {_say(part[0], '')} to {_say(part[-1], '')}, {len(part)} in all: {kinds}"


def _named(message: str, nodes: Sequence[NodeProto]) -> list[str]:
    words = {word.rstrip(":.,;'\")") for word in re.split(r"[\s'\"(\[]+", message)}
    by_name = {node.name: node for node in nodes}
    found = [by_name[word] for word in words if word in by_name and len(word) > 1]
    if not found:
        found = [n for word in words if "_" in word and (n := layer_node(word, nodes)) is not None and n.name in word]
    return [_say(node) for node in nodes if any(node is f for f in found)]


def _say(node: NodeProto, kind: str = "node ") -> str:
    return f"{kind}{node.name} ({node.op_type})"


# --- what the parser refuses ---------------------------------------------------------------------------------------


def parser_faults(parser: Any, title: str) -> list[Fault]:
    """Every node that the parser refused, with its reason; the first reason of each."""
    faults: dict[tuple[int, str], Fault] = {}
    for i in range(parser.num_errors):
        error = parser.get_error(i)
        op, name = error.node_operator(), error.node_name() or (f"number {error.node()}" if error.node() >= 0 else "")
        reason = plain(error.desc())
        key = (error.node(), name or str(i))
        if not op and re.search(r"In node -1|^$", reason) and faults:
            continue
        stack = [call.partition(" (")[0] for call in error.local_function_stack()]
        path, fix = "/".join([*stack, name]) if stack else name, _advice(reason)
        if reason in ("false", "") or re.search("plugin (was )?not found", reason, re.IGNORECASE):
            reason, fix = f"a standard op that {title} has no importer for", f"rewrite it, or give a plugin named {op}"
        faults.setdefault(key, Fault(name, op, reason, fix, path))
    return list(faults.values())


def _advice(reason: str) -> str:
    """The way out, by what the parser says."""
    if "UInt8" in reason or "UINT8" in reason:
        return "TensorRT takes uint8 only as an input that goes straight into a Cast: move the Cast before the node"
    if "build-time constant" in reason:
        return "make that input an initializer, or let it follow from constants"
    return "rewrite or replace the node in the exporter, or give a plugin for it with --plugin"
