"""Which fusions to keep: all, none, or those that pay, by measuring them here or by the table of measured ratios."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from onnx import ModelProto

from trtconvert import model as onnx_model
from trtconvert import registry
from trtconvert.choice import measured
from trtconvert.choice.neighbourhood import Size, Surroundings
from trtconvert.errors import ConvertError
from trtconvert.fuse import FuseResult, NearMiss, fuse_model
from trtconvert.matching.rewrite import Fusion
from trtconvert.model import numpy_dtype
from trtconvert.network import Made
from trtconvert.op import Op

AUTO, ALL, NONE = "auto", "all", "none"
WRONG = 0.1  # relative L2 of an engine that computes something else, whatever its precision
MARGIN = 0.02  # a fusion has to be faster by more than this part of native's time: what noise alone may show is no gain


@dataclass(frozen=True)
class Policy:
    """What is looked for, and whether it is fused in any case (forced) or where it pays."""

    ops: tuple[type[Op], ...]
    forced: bool


def policy(fuse: str, patterns: Sequence[str]) -> Policy:
    """What `--fuse` and `--pattern` ask for.

    fuse: "auto" fuses what pays, "all" whatever is found, "none" nothing; names of patterns, separated by commas, stand for
    all of theirs. patterns: what "auto" and "all" look for; none given means all but the opt-in ones. ConvertError for
    unknown names and for what contradicts itself.
    """
    names = tuple(name.strip() for name in fuse.split(",") if name.strip())
    known = sorted(op.pattern for op in registry.ops() if op.pattern)
    for name in names or ("",):
        if name not in (AUTO, ALL, NONE, *known):
            raise ConvertError(
                f"--fuse names {name!r}, which is no pattern",
                fix=f"use auto, all, none or patterns: {', '.join(known)}",
            )
    if len(names) > 1 and {AUTO, ALL, NONE}.intersection(names):
        raise ConvertError(f"--fuse {fuse} contradicts itself", fix="use auto, all or none alone, or names of patterns")
    ops = tuple(registry.by_pattern(tuple(patterns)))
    if names[0] in (AUTO, ALL):
        return Policy(ops, forced=names[0] == ALL)
    if names[0] == NONE:
        return Policy((), forced=True)
    if patterns:
        raise ConvertError(
            f"--fuse {fuse} and --pattern {' '.join(patterns)} both name patterns",
            fix="name them in --fuse to fuse them in any case, in --pattern to fuse them where it pays",
        )
    return Policy(tuple(registry.by_pattern(tuple(dict.fromkeys(names)))), forced=True)


# --- choices -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Choice:
    """What was decided on a fusion, and why.

    output: of the fusion, after the path of its graph. dtype, shape: of its data at the opt shapes, as far as known. how:
    "forced", "neighbourhood" or "whole engine" (what was measured), "table", "unmeasured", or "needed": TensorRT alone cannot
    build it. ratio: native time over plugin time. native_us, plugin_us: medians of what was measured here. machine: on which
    the numbers were measured, here or for the table.
    """

    op: str
    node: str
    output: str
    kept: bool
    how: str
    reason: str
    dtype: str = ""
    shape: tuple[int, ...] | None = None
    ratio: float | None = None
    native_us: float | None = None
    plugin_us: float | None = None
    machine: str = ""

    @property
    def key(self) -> tuple[str, str]:
        return self.op, self.output


def choice(fusion: Fusion, size: Size | None, kept: bool, how: str, reason: str) -> Choice:
    """A choice on this fusion, without numbers."""
    op, output = fusion.key
    dtype, shape = (size.dtype, size.shape) if size else ("", None)
    return Choice(op, fusion.node, output, kept, how, reason, dtype, shape)


@dataclass(frozen=True)
class Whole:
    """The engine with the plugins against the native one, at the opt shapes; or the native one alone, where no fusion pays.

    kept: whether the plugins stay. native_us, plugins_us: medians. graph: whether CUDA graphs were timed. errors: relative L2
    by output, of "native" and "plugins", against the reference; None for NaN or Inf where it has numbers.
    """

    kept: bool
    reason: str
    machine: str
    native_us: float | None = None
    plugins_us: float | None = None
    graph: bool = True
    errors: dict[str, dict[str, float | None]] = field(default_factory=dict)

    @property
    def wrong(self) -> str:
        """What the engine that won computes wrongly; empty if nothing, or if it was not looked at."""
        return wrong(self.errors, "plugins" if self.kept else "native")


def wrong(errors: Mapping[str, Mapping[str, float | None]], engine: str) -> str:
    """Of errors as in Whole, the first of this engine that no precision explains, in words; else empty."""
    for name, pair in errors.items():
        error = pair.get(engine, 0.0)
        if error is None or error > WRONG:
            off = "NaN or Inf" if error is None else f"off by {error:.1e} (relative L2)"
            return f"output {name} is {off} against onnxruntime"
    return ""


def pays(ratio: float) -> bool:
    """Whether native time over plugin time shows a gain."""
    return ratio * (1 - MARGIN) > 1


class Judge(Protocol):
    """Decides on fusions."""

    def judge(self, fused: FuseResult, new: Sequence[Fusion]) -> list[Choice]:
        """A choice on each of the new fusions of a fused model."""

    def whole(self, fused: FuseResult) -> tuple[Whole, Made | None] | None:
        """On the model with all that was kept, which may be nothing, and the engine that won if it can be shipped; None where
        nothing is measured."""


@dataclass(frozen=True)
class Chosen:
    """The fusions kept, all choices, and what was measured of the whole engine. made: the engine, if it was made already.
    notes: for the user."""

    fusions: list[Fusion] = field(default_factory=list)
    near_misses: list[NearMiss] = field(default_factory=list)
    choices: list[Choice] = field(default_factory=list)
    whole: Whole | None = None
    made: Made | None = None
    notes: list[str] = field(default_factory=list)


def choose(model: ModelProto, folder: Path, ops: Sequence[type[Op]], judge: Judge) -> Chosen:
    """Fuse in place what the judge keeps. What it does not keep may make room for other fusions, which it then sees too."""
    choices: dict[tuple[str, str], Choice] = {}

    def may_be(key: tuple[str, str]) -> bool:
        return key not in choices or choices[key].kept

    near_misses: list[NearMiss] | None = None
    while True:
        fused = fuse_model(onnx_model.copy(model), folder, ops, may_be)
        near_misses = fused.near_misses if near_misses is None else near_misses
        new = [fusion for fusion in fused.fusions if fusion.key not in choices]
        choices.update((c.key, c) for c in (judge.judge(fused, new) if new else ()))
        if all(choices[fusion.key].kept for fusion in new):
            break
    whole, made = (judge.whole(fused) if choices else None) or (None, None)
    if whole is not None and whole.wrong:
        fused, whole, made = _right(model, folder, ops, judge, choices, (fused, whole, made))
    notes = [f"the engine computes something else: {whole.wrong}; see `verify`"] if whole and whole.wrong else []
    if whole is not None and not whole.kept:
        return Chosen([], near_misses, [_reverted(c, whole.reason) for c in choices.values()], whole, made, notes)
    if fused.fusions:
        model.CopyFrom(fused.model)
    there = {fusion.key for fusion in fused.fusions}
    final = [c if c.key in there else _reverted(c, "another fusion took its place") for c in choices.values()]
    return Chosen(fused.fusions, near_misses, final, whole, made, notes)


def _right(
    model: ModelProto,
    folder: Path,
    ops: Sequence[type[Op]],
    judge: Judge,
    choices: dict[tuple[str, str], Choice],
    so_far: tuple[FuseResult, Whole, Made | None],
) -> tuple[FuseResult, Whole, Made | None]:
    """An engine that computes what the model says, if all fusions together make it so: plugins in the place of layers that
    TensorRT gets wrong. Else what there is so far."""
    reason = f"TensorRT's own layers compute something else: {so_far[1].wrong}"
    fused = fuse_model(onnx_model.copy(model), folder, ops)
    judged = judge.judge(fused, fused.fusions)
    whole, made = judge.whole(fused) or so_far[1:]
    if not whole.kept or whole.wrong:
        return so_far
    choices.update(
        (c.key, c if c.kept else dataclasses.replace(c, kept=True, reason=f"{c.reason}; {reason}")) for c in judged
    )
    return fused, whole, made


def _reverted(made: Choice, reason: str) -> Choice:
    return dataclasses.replace(made, kept=False, reason=f"{made.reason}; {reason}") if made.kept else made


# --- judges that measure nothing -----------------------------------------------------------------------------------


class Forced:
    """Keeps everything."""

    def __init__(self, fuse: str) -> None:
        self.fuse = fuse

    def judge(self, _fused: FuseResult, new: Sequence[Fusion]) -> list[Choice]:
        return [choice(f, None, True, "forced", f"--fuse {self.fuse}") for f in new]

    def whole(self, _fused: FuseResult) -> None:
        return None


_NO_ROW = "not measured here, and the table of measured ratios has no row for it"


class Table:
    """Keeps what was faster elsewhere by the table of measured ratios, and what nothing is known of.

    dtype: of the engine's floats, "" for the model's.
    """

    def __init__(self, around: Surroundings, targets: Sequence[str], dtype: str = "") -> None:
        self.around, self.targets, self.dtype, self.rows = around, targets, dtype, measured.load()

    def judge(self, _fused: FuseResult, new: Sequence[Fusion]) -> list[Choice]:
        return [self._one(fusion) for fusion in new]

    def whole(self, _fused: FuseResult) -> None:
        return None

    def _one(self, fusion: Fusion) -> Choice:
        if all(row.op != fusion.op for row in self.rows):
            return choice(fusion, None, True, "unmeasured", _NO_ROW)
        size = self.around.size(fusion)
        if size is None:
            return choice(fusion, None, True, "unmeasured", "not measured here, and its shape is unknown")
        size = _in_type(size, self.dtype)
        kind = measured.kind(fusion.attributes, fusion.channels_last)
        found = [measured.nearest(self.rows, fusion.op, size.dtype, kind, size.bytes, arch) for arch in self.targets]
        rows = [row for row in found if row is not None]
        if not rows:
            what = " ".join(filter(None, (size.dtype, kind)))
            return choice(fusion, size, True, "unmeasured", f"{_NO_ROW} in {what}")
        ratio = math.exp(sum(math.log(row.ratio) for row in rows) / len(rows))
        where = " and ".join(dict.fromkeys(f"{row.machine} with {_dims(row.shape)}" for row in rows))
        reason = f"not measured here; {ratio:.2f} times as fast as native on {where}"
        made = choice(fusion, size, pays(ratio), "table", reason)
        return dataclasses.replace(made, ratio=ratio, machine=" and ".join(dict.fromkeys(row.machine for row in rows)))


def _in_type(size: Size, dtype: str) -> Size:
    """What the fusion moves once its floats have that dtype."""
    if not dtype or "float" not in size.dtype:
        return size
    bytes_before, bytes_now = (numpy_dtype(name).itemsize for name in (size.dtype, dtype))
    return dataclasses.replace(size, dtype=dtype, bytes=size.bytes * bytes_now // bytes_before)


def _dims(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) or "a scalar"
