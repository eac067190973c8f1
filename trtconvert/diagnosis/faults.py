"""What is wrong with single nodes, gathered so that one message names them all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trtconvert.errors import ConvertError

_NAMES_SHOWN = 20


@dataclass(frozen=True)
class Fault:
    """A node (or, with an empty op, an input, an output or the model) that TensorRT cannot take.

    node: its name after lowering. op: "Det" or "acme::MyGelu". path: with the subgraphs around it, "loop/body/det".
    """

    node: str
    op: str
    reason: str
    fix: str
    path: str = ""

    @property
    def place(self) -> str:
        """How the node is called in a message."""
        return self.path or self.node


def refusal(title: str, faults: Sequence[Fault], hint: str = "") -> ConvertError:
    """One error for all faults: a line for each reason, which names every node of that reason and says the way out.

    title: of the TensorRT that refuses. hint: begins the fix.
    """
    reasons: dict[tuple[str, str], dict[str, list[str]]] = {}
    for fault in faults:
        places = reasons.setdefault((fault.reason, fault.fix), {}).setdefault(fault.op, [])
        if fault.place not in places:
            places.append(fault.place)
    fixes = list(dict.fromkeys(fix for _, fix in reasons if fix))
    shared = len(fixes) < 2
    lines = [
        f"{', '.join(_names(op, places) for op, places in ops.items())}: {reason}{'' if shared or not fix else f' -> {fix}'}"
        for (reason, fix), ops in reasons.items()
    ]
    fix = hint + (fixes[0] if fixes and shared else "")
    if len(lines) == 1:
        return ConvertError(f"{title} cannot take the model: {lines[0]}", fix=fix or None)
    what = f"{title} cannot take the model, for {len(lines)} reasons"
    return ConvertError(what, where="\n  at: ".join(lines), fix=fix or None)


def _names(op: str, places: Sequence[str]) -> str:
    names = ", ".join(places[:_NAMES_SHOWN])
    if len(places) > _NAMES_SHOWN:
        names += f" and {len(places) - _NAMES_SHOWN} more, which `trtconvert inspect` lists"
    return f"node{'s' * (len(places) > 1)} {names} ({op})" if op else names or "the model"
