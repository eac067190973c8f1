"""python -m tests.bench.planted_faults [--seeds 20] [--engines]: wrong engines that verify misses, and right ones that it fails.

Without --engines, models in onnxruntime stand in for engines. A row for each compute type: comparisons made, what went wrong.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from tests.graphs import save
from tests.planted_faults import CLEAN, DTYPES, FAULTS, missed, model, stand_ins
from trtconvert import BuildOptions, build, gpu, load_engine
from trtconvert.accuracy.proof import Proof
from trtconvert.accuracy.running import Runnable


def engines(dtype: str, folder: Path) -> dict[str, dict[str, Runnable]]:
    """An engine of each fault and of the right model, built for the GPU that is here."""
    here = gpu.require()
    found: dict[str, dict[str, Runnable]] = {}
    for fault in (CLEAN, *(f.name for f in FAULTS)):
        plan = folder / f"{dtype} {fault or 'clean'}.plan"
        build(save(model(dtype, fault), folder), plan, BuildOptions(targets=(here.arch,)))
        found[fault] = {"engine": load_engine(plan)}
    return found


def row(dtype: str, seeds: int, made: Mapping[str, Mapping[str, Runnable]]) -> list[str]:
    """What went wrong, in words."""
    started = time.monotonic()
    wrong = missed(Proof(model(dtype), Path()), seeds, dtype, made)
    count = seeds * sum(map(len, made.values()))
    alarms = sum("false alarm" in line for line in wrong)
    seconds = time.monotonic() - started
    print(f"| {dtype} | {count} | {len(wrong) - alarms} | {alarms} | {seconds:.0f} s |", flush=True)
    return wrong


def main() -> None:
    """The table, then each wrong verdict."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--engines", action="store_true")
    options = parser.parse_args()
    print("| compute type | comparisons | missed or misnamed | false alarms | time |\n|---|---|---|---|---|")
    wrong = []
    for dtype in DTYPES:
        with tempfile.TemporaryDirectory() as folder:
            try:
                wrong += row(
                    dtype, options.seeds, engines(dtype, Path(folder)) if options.engines else stand_ins(dtype)
                )
            except Exception as error:  # noqa: BLE001  one compute type must not stop the others
                print(f"| {dtype} | {type(error).__name__}: {str(error).splitlines()[0]} | | | |")
    print(*wrong, sep="\n")


if __name__ == "__main__":
    main()
