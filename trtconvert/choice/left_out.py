"""Fusions that the user wants left out: those around a node that `--no-fuse NODE` names."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path

from onnx import ModelProto, NodeProto

from trtconvert import model as onnx_model
from trtconvert.bodies import is_ours
from trtconvert.choice.choose import Choice, Forced, Judge, Whole, choice, choose
from trtconvert.custom_ops.wishes import default_name
from trtconvert.errors import ConvertError
from trtconvert.fuse import FuseResult, opened_for_fusing
from trtconvert.lower import name_nodes
from trtconvert.matching.rewrite import Fusion
from trtconvert.network import Made
from trtconvert.op import Op

SHOWN = 8


class LeftOut:
    """Keeps no fusion that contains or makes one of these nodes, and leaves the others to another judge.

    met: the nodes that a fusion contained. seen: names of the fused nodes there could have been.
    """

    def __init__(self, judge: Judge, nodes: Sequence[str]) -> None:
        self.inner, self.nodes = judge, nodes
        self.met: set[str] = set()
        self.seen: set[str] = set()

    def judge(self, fused: FuseResult, new: Sequence[Fusion]) -> list[Choice]:
        self.seen |= {name for fusion in new for name in _both(fusion.node, fusion)}
        named = {fusion.key: self._named(fusion) for fusion in new}
        refused = [choice(f, None, False, "forced", f"--no-fuse {named[f.key]}") for f in new if named[f.key]]
        rest = [fusion for fusion in new if not named[fusion.key]]
        return [*refused, *(self.inner.judge(fused, rest) if rest else ())]

    def whole(self, fused: FuseResult) -> tuple[Whole, Made | None] | None:
        return self.inner.whole(fused)

    def _named(self, fusion: Fusion) -> str:
        """The first of the nodes that the fusion contains or makes."""
        names = {name for each in (fusion.node, *fusion.replaced) for name in _both(each, fusion)}
        self.met |= names.intersection(self.nodes)
        return next((node for node in self.nodes if node in names), "")


def _both(name: str, fusion: Fusion) -> tuple[str, str]:
    """A node's name with and without the path of its graph."""
    return name, name.removeprefix(fusion.path)


def check(nodes: Sequence[str], model: ModelProto, folder: Path, ops: Sequence[type[Op]]) -> list[str]:
    """ConvertError for what names no node of the model nor a fused one; notes on nodes that no fusion contains."""
    if not nodes:
        return []
    judge = LeftOut(Forced("all"), nodes)
    choose(onnx_model.copy(model), folder, ops, judge)
    named = onnx_model.copy(model)
    name_nodes(named)
    inner = [node for function in named.functions for node in function.node]
    opened = onnx_model.all_nodes(opened_for_fusing(model))
    theirs = [*onnx_model.all_nodes(named), *inner, *onnx_model.all_nodes(model), *opened]
    known = judge.seen | {default_name(node) for node in theirs}
    for name in nodes:
        _require(name, known, theirs)
    return [f"--no-fuse {name}: nothing that can be fused contains it" for name in nodes if name not in judge.met]


def _require(name: str, known: set[str], theirs: Sequence[NodeProto]) -> None:
    if any(default_name(node) == name and is_ours(node.domain) for node in theirs):
        raise ConvertError(
            f"--no-fuse names {name}, which is a plugin node in the file already",
            fix="build from the model as it was before `trtconvert fuse`",
        )
    if name in known:
        return
    near = difflib.get_close_matches(name, known, 3)
    fix = f"did you mean {', '.join(near)}?" if near else f"the model has {', '.join(sorted(known)[:SHOWN])}"
    raise ConvertError(f"--no-fuse names {name}, and the model has no such node", fix=fix)
