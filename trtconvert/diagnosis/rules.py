"""What TensorRT does not take although its parser does not say so, says it in other words, or builds something else."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from onnx import ModelProto, NodeProto

from trtconvert import model as onnx_model
from trtconvert.backend import Backend
from trtconvert.diagnosis.faults import Fault
from trtconvert.graph import GraphView
from trtconvert.lowering import branches
from trtconvert.profiles import conditions

TOPK_LIMIT = 3840
Verdict: TypeAlias = "tuple[str, str] | None"
"""Reason and fix; None where nothing is wrong."""


@dataclass(frozen=True)
class Rule:
    """A limit of TensorRT. ops: op types that it is about. check: what is wrong with a node.

    seen: backend to the first and the last version that has it, as tried or as NVIDIA documents it. A version outside is not
    refused anything: there TensorRT speaks for itself.
    """

    ops: frozenset[str]
    check: Callable[[NodeProto, GraphView], Verdict]
    seen: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    def holds(self, backend: Backend) -> bool:
        """Whether that backend is known to have the limit."""
        first, last = self.seen.get(backend.name, ("", ""))
        return bool(first) and _numbers(first) <= _numbers(backend.version)[:3] <= _numbers(last)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) if part.isdigit() else 0 for part in version.split("."))


def node_faults(model: ModelProto, views: list[GraphView], backend: Backend) -> Iterator[Fault]:
    """Every node of the model, subgraphs included, that a rule refuses. model: every node with a name of its own."""
    rules = [rule for rule in RULES if rule.holds(backend)]
    for graph, view in zip(onnx_model.all_graphs(model.graph), views, strict=True):
        for node in graph.node:
            if node.domain not in onnx_model.STANDARD_DOMAINS:
                continue
            for rule in rules:
                verdict = rule.check(node, view) if not rule.ops or node.op_type in rule.ops else None
                if verdict is not None:
                    yield Fault(node.name, node.op_type, *verdict, path=view.path + node.name)
                    break


# --- rules ---------------------------------------------------------------------------------------------------------


def _value(view: GraphView, name: str) -> Any:
    return branches.value(view, name, {}) if name else None


def _attribute(node: NodeProto, view: GraphView, name: str, default: Any) -> Any:
    return view.attributes(node).get(name, default)


def _topk(node: NodeProto, view: GraphView) -> Verdict:
    k = _value(view, node.input[1]) if len(node.input) > 1 else np.asarray(_attribute(node, view, "k", 0))
    if k is None or int(np.max(k, initial=0)) <= TOPK_LIMIT:
        return None
    return f"k is {int(np.max(k))}, TensorRT takes at most {TOPK_LIMIT}", f"use k <= {TOPK_LIMIT}, or a plugin"


def _batch_normalization(node: NodeProto, view: GraphView) -> Verdict:
    if not _attribute(node, view, "training_mode", 0) and sum(map(bool, node.output)) == 1:
        return None
    return "it is in training mode", "export the model for inference: model.eval() before the export"


def _dropout(node: NodeProto, view: GraphView) -> Verdict:
    training = _value(view, node.input[2]) if len(node.input) > 2 else None
    if training is None and not (len(node.input) > 2 and node.input[2]):
        return None
    if training is not None and not bool(np.any(training)):
        return None
    how = "is in training mode" if training is not None else "may be in training mode, as an input says"
    return f"it {how}", "export the model for inference: model.eval() before the export"


def _always(reason: str, fix: str) -> Callable[[NodeProto, GraphView], Verdict]:
    return lambda *_: (reason, fix)


def _axes(node: NodeProto, view: GraphView) -> Verdict:
    if len(node.input) < 2 or not node.input[1] or _value(view, node.input[1]) is not None:
        return None
    return (
        f"its axes ({node.input[1]}) are known only at run time, TensorRT must know them when it builds",
        f"--bake {node.input[1]}=VALUE makes a constant of it"
        if node.input[1] in {i.name for i in view.graph.input}
        else "make the axes an initializer",
    )


def _zero_point(node: NodeProto, view: GraphView) -> Verdict:
    if len(node.input) < 3 or not node.input[2]:
        unsigned = node.op_type == "QuantizeLinear" and _attribute(node, view, "output_dtype", 0) in (0, 2)
        return _UINT8 if unsigned else None
    dtype = view.info(node.input[2]).dtype
    if dtype == "uint8":
        return _UINT8
    value = view.constant(node.input[2])
    if value is None or not np.any(value):
        return None
    return "its zero point is not 0, TensorRT quantizes symmetrically", "quantize symmetrically: zero points of 0, int8"


_UINT8 = (
    "it quantizes to uint8, which TensorRT would read as int8",
    "quantize to int8 with zero points of 0 (onnxruntime: QuantType.QInt8, symmetric activations and weights)",
)


def _if_ranks(node: NodeProto, view: GraphView) -> Verdict:
    """TensorRT wants equal ranks, unless it can work the condition out; seen only when it builds."""
    if conditions.known_when_built(view, node):
        return None
    ranks = {}
    for attribute in node.attribute:
        shapes = [v.type.tensor_type for v in attribute.g.output]
        ranks[attribute.name] = [len(t.shape.dim) if t.HasField("shape") else None for t in shapes]
    pairs = zip(ranks.get("then_branch", ()), ranks.get("else_branch", ()), strict=False)
    for index, (a, b) in enumerate(pairs):
        if a is not None and b is not None and a != b:
            return (
                f"its branches return {node.output[index]} with {a} (then) and {b} (else) dimensions, and the condition "
                f"({node.input[0]}) is not known before the run",
                "let both branches return the same rank (in PyTorch: squeeze(dim) under a condition, write reshape), or "
                "make the condition follow from fixed shapes with --shape",
            )
    return None


_REDUCE = frozenset(
    f"Reduce{kind}" for kind in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
)
_SEQUENCE = frozenset(
    (
        "SequenceConstruct", "SequenceEmpty", "SequenceAt", "SequenceInsert", "SequenceErase", "SequenceLength",
        "SequenceMap", "SplitToSequence", "ConcatFromSequence", "Optional", "OptionalGetElement", "OptionalHasElement",
        "ReverseSequenceMap",
    )
)  # fmt: skip
_STRING = frozenset(("StringNormalizer", "StringSplit", "StringConcat", "RegexFullMatch", "TfIdfVectorizer"))
_ALWAYS = {
    "rtx": ("1.0", "1.7.1"),
    "tensorrt": ("8.0", "11.4"),
}  # tried on RTX 1.7.1; in NVIDIA's operator list since 8
_STRONG = {"rtx": ("1.7.1", "1.7.1")}

RULES = (
    Rule(frozenset(["TopK"]), _topk, _ALWAYS),
    Rule(frozenset(["BatchNormalization"]), _batch_normalization, _ALWAYS),
    Rule(frozenset(["Dropout"]), _dropout, _ALWAYS),
    Rule(
        _SEQUENCE,
        _always("TensorRT has no sequences and no optional values", "write it with tensors: Concat, Split, Gather"),
        _ALWAYS,
    ),
    Rule(
        _STRING,
        _always("TensorRT has no strings", "do it in Python or onnxruntime, and give its result as an input"),
        _ALWAYS,
    ),
    Rule(_REDUCE, _axes, _ALWAYS),
    Rule(frozenset(["Squeeze", "Unsqueeze"]), _axes, _ALWAYS),
    Rule(frozenset(["QuantizeLinear", "DequantizeLinear"]), _zero_point, _STRONG),
    Rule(frozenset(["If"]), _if_ranks, _STRONG),
)
