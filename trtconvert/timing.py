"""Time of engines on this machine's GPU, taken so that they can be compared with each other."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from trtconvert import gpu
from trtconvert.engine import Engine

# The one rule for short executions: in a graph, as many executions stand between two events as take this time, and the
# time is divided by their number; the events' own time then hardly counts. Without a graph one execution stands there:
# in short ones it is the host that takes the time.
SPAN_US = 50.0
WARM_UP_S = 0.1  # of each engine before the first measurement, for the clocks
LEAD = 3  # executions before each turn that are not measured: caches and clocks after the other engine's turn


@dataclass(frozen=True)
class Timing:
    """How long one execution of an engine takes.

    median_us, p99_us, mean_us: on the device, between events (graph: replays queued one behind the other; without: the
    stream is idle before, so the device's waiting for the host counts). throughput: executions a second, back to back.
    host_us: median time in which the host has put one on the stream. runs: event pairs. graph: replays of a CUDA graph.
    """

    median_us: float
    p99_us: float
    mean_us: float
    throughput: float
    runs: int
    graph: bool
    host_us: float


def summarize(times_us: Sequence[float], throughputs: Sequence[float], host_us: Sequence[float], graph: bool) -> Timing:
    """Median, 99th percentile (nearest rank) and mean of the times, medians of the others."""
    ordered = sorted(times_us)
    return Timing(
        statistics.median(ordered),
        ordered[math.ceil(0.99 * len(ordered)) - 1],
        statistics.fmean(ordered),
        statistics.median(throughputs),
        len(ordered),
        graph,
        statistics.median(host_us),
    )


def executions_per_pair(one_us: float, graph: bool) -> int:
    """How many executions of that time stand between two events, by the rule of SPAN_US."""
    return max(1, math.ceil(SPAN_US / max(one_us, 0.01))) if graph else 1


def measure(
    engines: Mapping[str, Engine],
    feeds: Mapping[str, NDArray[Any]],
    graph: bool = True,
    runs: int = 200,
    rounds: int = 5,
) -> dict[str, Timing]:
    """Time engines on the same inputs, taking turns, so that clocks and heat are the same for all.

    runs: event pairs of each engine, over all rounds. graph: replay a CUDA graph. Raises ConvertError where an engine
    fails, refuses the inputs or cannot be captured.
    """
    subjects = {name: _Subject(engine, feeds, graph) for name, engine in engines.items()}
    each = max(1, math.ceil(runs / rounds))
    for turn in range(rounds):
        order = list(subjects.values())
        for subject in order if turn % 2 == 0 else reversed(order):
            subject.turn(each)
    return {name: summarize(s.times, s.throughputs, s.host, graph) for name, s in subjects.items()}


class _Subject:
    """An engine under measurement."""

    def __init__(self, engine: Engine, feeds: Mapping[str, NDArray[Any]], graph: bool) -> None:
        self.times: list[float] = []
        self.throughputs: list[float] = []
        self.host: list[float] = []
        self.graph = graph
        self.bound = engine.bind({name: array.shape for name, array in feeds.items()}, feeds)
        self.bound.write(feeds)
        self.bound.execute()
        self.bound.sync()
        self.single = self.bound.capture().launch if graph else self.bound.execute
        self.count = executions_per_pair(self._warm_up(), graph)
        self.several = self.bound.capture(self.count).launch if self.count > 1 else self.single
        self.events: list[tuple[gpu.Event, gpu.Event]] = []

    def _warm_up(self) -> float:
        """Run for WARM_UP_S; time of one execution in us, back to back."""
        start, end, count, begin = gpu.Event(), gpu.Event(), 1, time.perf_counter()
        while True:
            start.record(self.bound.stream)
            for _ in range(count):
                self.single()
            end.record(self.bound.stream)
            self.bound.sync()
            if time.perf_counter() - begin > WARM_UP_S:
                return end.microseconds_since(start) / count
            count = min(2 * count, 256)

    def turn(self, pairs: int) -> None:
        """Measure this many event pairs, then throughput and host time."""
        while len(self.events) < pairs:
            self.events.append((gpu.Event(), gpu.Event()))
        for _ in range(LEAD):
            self.single()
        for start, end in self.events[:pairs]:
            if not self.graph:
                self.bound.sync()
            start.record(self.bound.stream)
            self.several()
            end.record(self.bound.stream)
        self.bound.sync()
        self.times += [end.microseconds_since(start) / self.count for start, end in self.events[:pairs]]
        self.throughputs.append(self._throughput(pairs * self.count))
        self.host.append(self._host_us(min(pairs, 20)))

    def _throughput(self, executions: int) -> float:
        start = time.perf_counter()
        for _ in range(executions):
            self.single()
        self.bound.sync()
        return executions / (time.perf_counter() - start)

    def _host_us(self, calls: int) -> float:
        """Median time of a call while the stream is idle, so that no full queue makes the host wait."""
        spent = []
        for _ in range(calls):
            self.bound.sync()
            start = time.perf_counter()
            self.single()
            spent.append((time.perf_counter() - start) * 1e6)
        self.bound.sync()
        return statistics.median(spent)


# --- layer by layer ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LayerTime:
    """A layer as TensorRT names it: median time in us, and its share of the sum of all layers' times."""

    name: str
    median_us: float
    share: float


def layers(engine: Engine, feeds: Mapping[str, NDArray[Any]], runs: int = 50) -> list[LayerTime]:
    """Time of each layer in the order of execution, from TensorRT's profiler.

    The profiler takes times between layers, which run less densely then: the shares are right, the sum is too high.
    """
    bound = engine.bind({name: array.shape for name, array in feeds.items()}, feeds)
    bound.write(feeds)
    for _ in range(LEAD):
        bound.execute()
    bound.sync()
    profiler = _profiler(engine.backend.trt)
    bound.context.profiler = profiler
    executions = []
    for _ in range(runs):
        profiler.times = {}
        bound.execute()
        bound.sync()
        executions.append(profiler.times)
    return layer_times(executions)


def layer_times(executions: Sequence[Mapping[str, float]]) -> list[LayerTime]:
    """Medians over executions, each of which maps layer to time in us."""
    names = dict.fromkeys(name for times in executions for name in times)
    medians = {name: statistics.median(times.get(name, 0.0) for times in executions) for name in names}
    total = sum(medians.values())
    return [LayerTime(name, time, time / total if total else 0.0) for name, time in medians.items()]


def _profiler(trt: Any) -> Any:
    """Collects the times of one execution in `times`: layer to us."""

    class Profiler(trt.IProfiler):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IProfiler.__init__(self)
            self.times: dict[str, float] = {}

        def report_layer_time(self, name: str, ms: float) -> None:
            self.times[name] = self.times.get(name, 0.0) + 1000 * ms

    return Profiler()
