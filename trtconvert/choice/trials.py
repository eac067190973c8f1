"""Fusions on trial on this machine's GPU: each in its neighbourhood against native layers, then the whole engine."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto

from trtconvert import gpu, reference
from trtconvert import model as onnx_model
from trtconvert.bodies import add_bodies
from trtconvert.choice.choose import MARGIN, Choice, Whole, choice, pays, wrong
from trtconvert.choice.neighbourhood import Cut, Surroundings
from trtconvert.engine import Engine
from trtconvert.errors import ConvertError, NoUsableGpuError
from trtconvert.fuse import FuseResult, fuse_model
from trtconvert.inputs import random_feeds
from trtconvert.manifest import model_io
from trtconvert.matching.rewrite import Fusion
from trtconvert.monitor import Progress
from trtconvert.network import Made, Maker
from trtconvert.op import Op
from trtconvert.shapes import Profile
from trtconvert.timing import measure

PLUGINS, NATIVE = "plugins", "native"
RUNS, ROUNDS = 210, 7  # of each engine; the median over all rounds counts
ERROR_FACTOR, ERROR_SLACK = 2.0, 1e-6  # the plugins' error may be this many times native's, and this much more
_MOST_EVALUATED = 1 << 24  # elements of all tensors, up to which ONNX's reference evaluator is fast enough to wait for


@dataclass(frozen=True)
class _Outcome:
    """Medians in us, and what was timed; or why nothing could be. how: that of a Choice."""

    how: str
    native_us: float = 0.0
    plugin_us: float = 0.0
    graph: bool = True
    fault: str = ""


class Trials:
    """Keeps a fusion that is faster in its neighbourhood, and all of them together if the whole engine is faster and as
    exact as the native one. What cannot be measured stays native, what TensorRT cannot build alone is kept.

    source: the model before fusing. maker, profile: with which the engine will be built.
    """

    def __init__(
        self, source: ModelProto, ops: Sequence[type[Op]], maker: Maker, profile: Profile, progress: Progress | None
    ) -> None:
        self.source, self.ops, self.maker, self.profile = source, ops, maker, profile
        self.progress: Progress = progress or (lambda *_: None)
        self.runnable = dataclasses.replace(maker, options=dataclasses.replace(maker.options, strip_weights=False))
        self.around = Surroundings(source, maker.source.parent, profile.ranges)
        self.machine = f"{gpu.require().name} ({gpu.require().arch}), {maker.backend.title}"
        self._outcomes: dict[Any, _Outcome] = {}
        self._native: Made | str | None = None

    def judge(self, fused: FuseResult, new: Sequence[Fusion]) -> list[Choice]:
        """Fusions that differ in names and weights alone, with the same neighbours, are measured once."""
        choices = []
        for number, fusion in enumerate(new):
            self.progress("measuring fusions", number, len(new))
            choices.append(self._choice(fusion, self._outcome(fusion, fused)))
        self.progress("measuring fusions", len(new), len(new))
        return choices

    def _choice(self, fusion: Fusion, outcome: _Outcome) -> Choice:
        size = self.around.size(fusion)
        if outcome.how == "needed":
            return choice(fusion, size, True, outcome.how, f"TensorRT alone cannot build it: {outcome.fault}")
        if outcome.how == "unmeasured":
            return choice(fusion, size, False, outcome.how, f"could not be measured: {outcome.fault}")
        ratio = outcome.native_us / outcome.plugin_us
        what = "with its neighbours" if outcome.how == "neighbourhood" else "in the whole engine"
        graph = "" if outcome.graph else ", without a CUDA graph"
        noise = "" if ratio <= 1 or pays(ratio) else f", a gain within {MARGIN:.0%} is none"
        reason = f"{outcome.plugin_us:.1f} us {what}, native {outcome.native_us:.1f} us{graph}{noise}"
        return dataclasses.replace(
            choice(fusion, size, pays(ratio), outcome.how, reason),
            ratio=ratio,
            native_us=outcome.native_us,
            plugin_us=outcome.plugin_us,
            machine=self.machine,
        )

    def _outcome(self, fusion: Fusion, fused: FuseResult) -> _Outcome:
        """In its neighbourhood; where that cannot be, all fusions of this kind and size at once, in the whole engine."""
        try:
            cut = self.around.cut(fusion, fused, self.ops)
        except Exception as error:  # noqa: BLE001  # ONNX raises of many types; a trial that fails is no failed build
            reason = _what(error)
        else:
            outcome = self._attempt(cut.signature, lambda: self._in_neighbourhood(cut))
            if outcome.how != "unmeasured":
                return outcome
            reason = outcome.fault
        keys = tuple(f.key for f in fused.fusions if self._group(f) == self._group(fusion))
        outcome = self._attempt(keys, lambda: self._in_whole(keys))
        return dataclasses.replace(outcome, fault=outcome.fault and f"{reason}; in the whole engine: {outcome.fault}")

    def _attempt(self, key: Any, trial: Callable[[], _Outcome]) -> _Outcome:
        """The trial's outcome, or that of the same trial before."""
        if key not in self._outcomes:
            try:
                self._outcomes[key] = trial()
            except NoUsableGpuError:
                raise
            except Exception as error:  # noqa: BLE001  # CUDA, too, raises of many types
                self._outcomes[key] = _Outcome("unmeasured", fault=_what(error))
        return self._outcomes[key]

    def _in_neighbourhood(self, cut: Cut) -> _Outcome:
        plugins = self.runnable.make(cut.fused, interior=True)
        try:
            native = self.runnable.make(cut.native, interior=True)
        except ConvertError as error:
            if isinstance(self.native(), Made):
                raise
            return _Outcome("needed", fault=error.what)
        return self._timed("neighbourhood", {PLUGINS: plugins, NATIVE: native}, cut.native, Profile({}))

    def _in_whole(self, keys: Sequence[tuple[str, str]]) -> _Outcome:
        native = self.native()
        if isinstance(native, str):
            return _Outcome("needed", fault=native)
        model = onnx_model.copy(self.source)
        fuse_model(model, self.around.folder, self.ops, lambda key: key in keys)
        made = {PLUGINS: self.runnable.make(model, self.profile), NATIVE: native}
        return self._timed("whole engine", made, self.source, self.profile)

    def _group(self, fusion: Fusion) -> tuple[Any, ...]:
        return fusion.op, sorted(fusion.attributes.items()), fusion.channels_last, self.around.size(fusion)

    def native(self) -> Made | str:
        """The engine in which nothing is fused, or why TensorRT cannot build it."""
        if self._native is None:
            try:
                self._native = self.runnable.make(self.source, self.profile)
            except ConvertError as error:
                self._native = error.what
        return self._native

    def _timed(self, how: str, made: Mapping[str, Made], model: ModelProto, profile: Profile) -> _Outcome:
        times, graph = self._time(self._load(made), _as_taken(_feeds(model, profile), made[NATIVE]))
        return _Outcome(how, times[NATIVE], times[PLUGINS], graph)

    def _load(self, made: Mapping[str, Made]) -> dict[str, Engine]:
        return {name: Engine(self.maker.backend, one.plan, self.maker.source) for name, one in made.items()}

    def _time(self, engines: Mapping[str, Engine], feeds: Mapping[str, NDArray[Any]]) -> tuple[dict[str, float], bool]:
        """Medians in CUDA graphs; without, if one of the engines cannot be captured."""
        for graph in (True, False):
            try:
                timings = measure(engines, feeds, graph, RUNS, ROUNDS)
                return {name: timing.median_us for name, timing in timings.items()}, graph
            except ConvertError:
                if not graph:
                    raise
        raise AssertionError

    # --- the whole engine

    def whole(self, fused: FuseResult) -> tuple[Whole, Made | None] | None:
        """Time and errors at the opt shapes. The engine that won can be shipped as it is, unless its weights are to go."""
        self.progress("measuring the engine", 0, 1)
        native = self.native()
        if isinstance(native, str):
            if not fused.fusions:
                return None  # the build will say it
            return Whole(True, f"TensorRT alone cannot build the model: {native}", self.machine), None
        made: dict[str, Made] = {}
        try:
            if fused.fusions:
                made[PLUGINS] = self.runnable.make(fused.model, self.profile)
            made[NATIVE] = native
            whole = self._compared(made)
        except NoUsableGpuError:
            raise
        except Exception as error:  # noqa: BLE001  # as in the trials
            whole = Whole(False, f"the engine could not be measured: {_what(error)}", self.machine)
        self.progress("measuring the engine", 1, 1)
        winner = made[PLUGINS] if whole.kept else native
        return whole, winner if self.runnable == self.maker else None

    def _compared(self, made: Mapping[str, Made]) -> Whole:
        """Plugins stay if they are faster and as exact as native layers, or if native layers are wrong and they are not."""
        engines, feeds = self._load(made), _feeds(self.source, self.profile)
        taken = _as_taken(feeds, made[NATIVE])
        measured = Whole(False, "", self.machine)
        if PLUGINS in engines:
            times, graph = self._time(engines, taken)
            reason = f"the whole engine is no faster: {times[PLUGINS]:.1f} us, native {times[NATIVE]:.1f} us"
            faster = times[PLUGINS] < times[NATIVE]
            measured = Whole(faster, "" if faster else reason, self.machine, times[NATIVE], times[PLUGINS], graph)
        try:
            expected = self._expected(feeds)
        except Exception as error:  # noqa: BLE001  # onnxruntime's have no common base of their own
            unchecked = measured.reason or f"its accuracy was not checked: {_what(error)}"
            return dataclasses.replace(measured, reason=unchecked if measured.kept else measured.reason)
        outputs = {name: engine.run(taken) for name, engine in engines.items()}
        errors = {
            name: {engine: relative_l2(got[name], want) for engine, got in outputs.items()}
            for name, want in expected.items()
            if want.dtype.kind not in "iub"
        }
        return _verdict(measured, errors)

    def _expected(self, feeds: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        model = onnx_model.copy(self.source)
        add_bodies(model)
        return reference.run(model, self.around.folder, feeds, evaluate=self.around.elements <= _MOST_EVALUATED)


def _verdict(measured: Whole, errors: Mapping[str, Mapping[str, float]]) -> Whole:
    """With the errors as JSON can hold them, and what follows from them."""
    known = {name: {k: v if np.isfinite(v) else None for k, v in pair.items()} for name, pair in errors.items()}
    measured = dataclasses.replace(measured, errors=known)
    if measured.plugins_us is None:
        return measured
    fault = wrong(known, NATIVE)
    if fault and not wrong(known, PLUGINS):
        return dataclasses.replace(measured, kept=True, reason=f"with TensorRT's own layers {fault}")
    for name, pair in errors.items():
        if measured.kept and not pair[PLUGINS] <= ERROR_FACTOR * pair[NATIVE] + ERROR_SLACK:
            reason = f"with plugins output {name} is off by {pair[PLUGINS]:.1e}, natively by {pair[NATIVE]:.1e}"
            return dataclasses.replace(measured, kept=False, reason=reason)
    return measured


def _feeds(model: ModelProto, profile: Profile) -> dict[str, NDArray[Any]]:
    """Random inputs at the opt shapes."""
    opt, values = (
        {name: dict.fromkeys(("min", "opt", "max"), given.opt) for name, given in ranges.items()}
        for ranges in (profile.ranges, profile.values)
    )
    _, feeds = next(random_feeds(model_io(model, "input"), opt, seed=0, values=values))
    return feeds


def _as_taken(feeds: Mapping[str, NDArray[Any]], made: Made) -> dict[str, NDArray[Any]]:
    """Inputs in the types of the engine, whose floats may have been converted."""
    types = {io.name: onnx_model.numpy_dtype(io.dtype) for io in made.inputs}
    return {name: array.astype(types[name]) if name in types else array for name, array in feeds.items()}


def relative_l2(got: NDArray[Any], expected: NDArray[Any]) -> float:
    """||got - expected|| / ||expected|| where expected is finite; infinite where got is not finite there."""
    a, b = got.astype(np.float64), expected.astype(np.float64)
    if a.shape != b.shape:
        return float("inf")
    finite = np.isfinite(b)
    if not np.isfinite(a[finite]).all():
        return float("inf")
    return float(np.linalg.norm(a[finite] - b[finite]) / (np.linalg.norm(b[finite]) or 1.0))


def _what(error: Exception) -> str:
    if isinstance(error, ConvertError):
        return error.what
    return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
