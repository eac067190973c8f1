"""The engine cache under stress, with real builds: processes that race for it, processes that are killed, and what a hit costs.

    python -m tests.suites.cache [race|kills|cost] [--processes 50] [--keys 5] [--kills 100] [--seed 0] [--folder FOLDER]

race: all processes ask at once, each for its own copy of one of the models: one build a model, the same plan for all, and each
manifest names the copy that was asked for. kills: kill -9 at a random moment of a build or, a third of them, of a hit; half with
the copying slowed down so that it is met. After each the entries are looked at and one is asked for: what is served must be the
plan of the first, undisturbed build, as TensorRT-RTX makes the same plan each time. cost: what `cached_build` takes for a hit,
and how much of it is reading the files, with their digests, and writing the plan.
Exit code 1 if a count is wrong.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from trtconvert import BuildOptions, cached_build
from trtconvert.caching import key as keys
from trtconvert.caching import store
from trtconvert.caching.store import DamagedError
from trtconvert.files import write_files

OPTIONS = BuildOptions(targets=("sm_89",), fuse="all")
SLOW_S = 0.004  # a piece, where storing is slowed down
LIMIT_S = 120
HIT_MS = 50
ENDED = "after its end"


def model(path: Path, number: int, width: int = 64) -> Path:
    """GELU(LayerNorm(x)) with weights of its own, which a plugin computes; beside it `width` x `width` floats of a MatMul."""
    made = np.random.default_rng(number)
    weights = {"scale": made.normal(size=width), "bias": made.normal(size=width), "w": made.normal(size=(width, width))}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("LayerNormalization", ["m", "scale", "bias"], ["n"], axis=-1),
        helper.make_node("Gelu", ["n"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, width]) for name in "xy")
    tensors = [numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "g", [x], [y], tensors)
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9), path)
    return path


# --- processes -----------------------------------------------------------------------------------------------------


def processes() -> Any:
    """Where processes come from: forks of a server that has loaded the package, but no TensorRT."""
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload(["trtconvert.build", "trtconvert.cache"])
    return made


def ask(place: Path, source: Path, cache: Path, start: Any = None, slow: bool = False) -> None:
    """One request, in a process of its own: what came of it lies in `place`, result.json last."""
    os.environ["TRTCONVERT_CACHE_DIR"] = str(cache)
    if slow:
        _slow_down()
    told: list[str] = []
    if start is not None:
        start.wait(LIMIT_S)
    try:
        made = cached_build(source, place / "e.plan", OPTIONS, lambda phase, *_: told.append(phase))
        result = {"hit": made.hit, "waited": any("waiting" in phase for phase in told), "notices": made.notices}
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what the suite is there to find
        result = {"error": repr(error)}
    (place / "result.json").write_text(json.dumps(result))


def _slow_down() -> None:
    """Let storing and delivering take long: small pieces, with a rest after each."""
    quick = store.checked
    store._CHUNK = 1 << 12

    def slow(path: Path, sha256: str) -> Iterator[bytes]:
        for piece in quick(path, sha256):
            time.sleep(SLOW_S)
            yield piece

    store.checked = slow


@contextmanager
def own_cache(folder: Path) -> Iterator[Path]:
    """This folder is the cache of this process for a while."""
    before = os.environ.get("TRTCONVERT_CACHE_DIR")
    os.environ["TRTCONVERT_CACHE_DIR"] = str(folder)
    try:
        yield folder
    finally:
        if before is None:
            del os.environ["TRTCONVERT_CACHE_DIR"]
        else:
            os.environ["TRTCONVERT_CACHE_DIR"] = before


# --- race ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Race:
    """builds: requests that built; waited: that were told to wait; plans: different ones that were served, by model; faults: what
    was wrong, a sentence each."""

    builds: int
    waited: int
    plans: list[int]
    entries: int
    faults: list[str]


def race(folder: Path, count: int, models: int) -> Race:
    """`count` processes ask at once, each for one of the models at a place of its own."""
    context = processes()
    start = context.Barrier(count)
    places = [folder / f"{number}" for number in range(count)]
    sources = [model(place / f"copy{n}.onnx", n % models) for n, place in enumerate(places)]
    running = [
        context.Process(target=ask, args=(place, source, folder / "cache", start))
        for place, source in zip(places, sources, strict=True)
    ]
    for process in running:
        process.start()
    for process in running:
        process.join(LIMIT_S)
        process.kill()
    results = [_result(place) for place in places]
    faults = [f"process {n}: {result['error']}" for n, result in enumerate(results) if "error" in result]
    served: dict[int, set[str]] = {}
    for number, (place, source) in enumerate(zip(places, sources, strict=True)):
        fault, digest = look(place / "e.plan", source)
        faults += [f"process {number}: {fault}"] if fault else []
        served.setdefault(number % models, set()).add(digest)
    with own_cache(folder / "cache"):
        entries = len(store.entries())
    builds = sum(not result.get("hit", True) for result in results)
    waited = sum(result.get("waited", False) for result in results)
    return Race(builds, waited, [len(plans) for plans in served.values()], entries, faults)


def _result(place: Path) -> dict[str, Any]:
    file = place / "result.json"
    return dict(json.loads(file.read_text())) if file.is_file() else {"error": "it did not end well"}


def look(plan: Path, source: Path) -> tuple[str, str]:
    """What is wrong with a plan that was served, "" for nothing; and its digest."""
    try:
        told = json.loads(plan.with_name(f"{plan.name}.json").read_bytes())
        digest = hashlib.sha256(plan.read_bytes()).hexdigest()
    except (OSError, ValueError) as error:
        return f"{type(error).__name__}: {error}", ""
    if told["plan_sha256"] != digest:
        return "the plan is not the one of its manifest", digest
    named = (plan.parent / told["model"]).resolve()
    return ("" if named == source.resolve() else f"the manifest names {named}"), digest


# --- kills ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kills:
    """moments: how many were killed when. served: what was asked for afterwards: hits, and builds. faults: as in Race."""

    moments: dict[str, int]
    served: dict[str, int]
    faults: list[str]


def kills(folder: Path, count: int, seed: int = 0) -> Kills:
    """Kill a process at a random moment, until `count` were killed before their end, and see what the cache serves then."""
    random_ = random.Random(seed)
    context, cache = processes(), folder / "cache"
    source = model(folder / "m.onnx", 0)
    with own_cache(cache):
        key = keys.of(source, OPTIONS).digest
        first = cached_build(source, folder / "first.plan", OPTIONS)
        right = first.manifest.plan_sha256
        _duration(context, folder, source, cache, False, False)  # starts the server of processes too
        kinds = [(there, slow) for there in (False, True) for slow in (False, True)]
        durations = {kind: _duration(context, folder, source, cache, *kind) for kind in kinds}
        moments, served, faults = Counter[str](), Counter[str](), list[str]()
        for number in range(3 * count):
            if sum(moments.values()) - moments[ENDED] == count:
                break
            there, slow = number % 3 == 2, number % 2 == 1
            process = _started(context, _empty(folder / "killed"), source, cache, there, slow)
            time.sleep(random_.uniform(0, durations[there, slow]))
            process.kill()
            process.join()
            moments[_moment(key, folder / "killed", there)] += 1
            faults += [f"kill {number}: {fault}" for fault in _entries_damaged()]
            made = cached_build(source, folder / "after.plan", OPTIONS)
            served["hits" if made.hit else "builds"] += 1
            fault, digest = look(folder / "after.plan", source)
            if fault or digest != right:
                faults.append(f"kill {number}: {fault or 'another plan was served'}")
        left = [path.name for path in store.folder().iterdir() if path.suffix == ".tmp"]
        faults += [f"left behind: {name}" for name in left]
    return Kills(dict(moments), dict(served), faults)


def _empty(place: Path) -> Path:
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    return place


def _started(context: Any, place: Path, source: Path, cache: Path, there: bool, slow: bool) -> Any:
    """A request under way; there: its entry is, as it is after every request."""
    if not there:
        store.remove(keys.of(source, OPTIONS).digest)
    process = context.Process(target=ask, args=(place, source, cache, None, slow))
    process.start()
    return process


def _duration(context: Any, folder: Path, source: Path, cache: Path, there: bool, slow: bool) -> float:
    """Seconds from the start of an undisturbed request to its result."""
    place, started = _empty(folder / "timed"), time.monotonic()
    process = _started(context, place, source, cache, there, slow)
    while not (place / "result.json").is_file() and process.is_alive():
        time.sleep(0.001)
    taken = time.monotonic() - started
    process.join(LIMIT_S)
    return taken


def _moment(key: str, place: Path, there: bool) -> str:
    """What the killed process was doing, as its traces tell."""
    if (place / "result.json").is_file():
        return ENDED
    if there:
        return "during a hit"
    if store.find(key) is not None:
        return "after storing"
    if (store.folder() / f"{key}.tmp").exists():
        return "while storing"
    return "while building" if store.lock(key).exists() else "before its lock"


def _entries_damaged() -> Iterator[str]:
    for entry in store.entries():
        try:
            store.check(entry)
        except DamagedError as error:
            yield f"an entry is damaged: {error}"


# --- cost ----------------------------------------------------------------------------------------------------------


def cost(folder: Path, width: int, repeats: int = 9) -> tuple[int, float, float]:
    """Bytes of the model, and milliseconds (medians): of a hit, and of reading model and plan and writing the plan alone."""
    source, plan = model(folder / f"{width}.onnx", 0, width), folder / "cost.plan"
    with own_cache(folder / "cache"):
        cached_build(source, plan, OPTIONS)
        entry = store.find(keys.of(source, OPTIONS).digest)
        assert entry is not None
        hits, alone = [], []
        for _ in range(repeats):
            started = time.perf_counter()
            assert cached_build(source, plan, OPTIONS).hit
            hits.append(time.perf_counter() - started)
            started = time.perf_counter()
            keys._model(source)
            write_files(
                {plan: store.pieces(entry, store.PLAN), plan.with_name("j"): store.read(entry, f"{store.PLAN}.json")}
            )
            alone.append(time.perf_counter() - started)
    return source.stat().st_size, 1e3 * statistics.median(hits), 1e3 * statistics.median(alone)


# --- command -------------------------------------------------------------------------------------------------------


def main() -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("what", nargs="?", choices=["race", "kills", "cost"])
    parser.add_argument("--processes", type=int, default=50)
    parser.add_argument("--keys", type=int, default=5)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="Default: a temporary one.")
    args = parser.parse_args()
    good = True
    with tempfile.TemporaryDirectory(dir=args.folder) as made:
        folder = Path(made)
        if args.what in (None, "race"):
            good &= _race(folder / "race", args.processes, args.keys)
        if args.what in (None, "kills"):
            good &= _kills(folder / "kills", args.kills, args.seed)
        if args.what in (None, "cost"):
            good &= _cost(folder / "cost")
    sys.exit(0 if good else 1)


def _race(folder: Path, count: int, models: int) -> bool:
    started = time.monotonic()
    found = race(folder, count, models)
    print(
        f"race   {count} processes, {models} keys: {found.builds} builds, {count - found.builds} hits, {found.waited} waited"
    )
    print(
        f"       {found.entries} entries, different plans served by key: {found.plans}; {time.monotonic() - started:.0f} s"
    )
    return _faults(found.faults) and found.builds == found.entries == models and set(found.plans) == {1}


def _kills(folder: Path, count: int, seed: int) -> bool:
    started = time.monotonic()
    found = kills(folder, count, seed)
    moments = ", ".join(f"{number} {moment}" for moment, number in sorted(found.moments.items()))
    print(f"kills  {sum(found.moments.values())} x kill -9, seed {seed}: {moments}")
    served = ", ".join(f"{number} {kind}" for kind, number in sorted(found.served.items()))
    print(f"       asked for afterwards: {served}; {time.monotonic() - started:.0f} s")
    return _faults(found.faults)


def _cost(folder: Path) -> bool:
    good = True
    for width in (64, 1024, 4096):
        size, hit, alone = cost(folder, width)
        parts = f"of it files {alone:6.1f} ms, the rest {hit - alone:5.1f} ms"
        print(f"cost   model of {size / 1e6:7.2f} MB: a hit {hit:6.1f} ms, {parts}")
        good &= hit - alone < HIT_MS
    return good


def _faults(found: list[str]) -> bool:
    print(f"       {len(found)} faults")
    for fault in found:
        print(f"         {fault}")
    return not found


if __name__ == "__main__":
    main()
