"""What a search for the first wrong node is given, and what it finds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from numpy.typing import NDArray
from onnx import ModelProto

from trtconvert.accuracy.parts import NO_DTYPES, Arrays, Parts
from trtconvert.errors import ConvertError

Run: TypeAlias = "Callable[[ModelProto, Arrays], Mapping[str, NDArray[Any]]]"
"""Makes an engine of a part of the model, runs it on the inputs at hand and on these tensors, and returns its outputs."""
Distance: TypeAlias = "Callable[[NDArray[Any], NDArray[Any], NDArray[Any] | None], float]"
"""Of got from the reference, in units of what is allowed, for which the twin's result may count: above 1 is wrong."""


@dataclass(frozen=True)
class Suspect:
    """What is searched. model: lowered, as engines are made from it. final: outputs of the engine in question. dtypes: of the
    model's tensors, as far as known. wrong: outputs that are wrong in a way that shows in no distance; alike: models that are
    wrong in ways that engines are known for, see `suspects`, one of which then shows it."""

    model: ModelProto
    run: Run
    final: Arrays
    dtypes: Mapping[str, str] = field(default_factory=lambda: dict(NO_DTYPES))
    wrong: tuple[str, ...] = ()
    alike: tuple[Parts, ...] = ()


@dataclass(frozen=True)
class Wrong:
    """The nodes between two places, of which the first is good and the second bad.

    before, behind: these places' tensors; wrong: those behind that are too far from what they should be. got, expected: of
    these. single: whether the nodes there are to blame, or what they got was as bad already. confirmed: in an engine from the
    inputs, or the stretch's start, to `wrong`, with no other outputs. fused_across: tensors that hide the error when they are
    outputs. errors: distances at the places that were looked at, in order, with their first tensors.
    """

    nodes: range
    before: tuple[str, ...]
    behind: tuple[str, ...]
    wrong: tuple[str, ...]
    got: Arrays
    expected: Arrays
    single: bool
    confirmed: bool
    builds: int
    fused_across: tuple[str, ...]
    errors: tuple[tuple[str, float], ...]


class NothingWrongError(ConvertError):
    """The outputs are as good as allowed, so that there is nothing to search."""
