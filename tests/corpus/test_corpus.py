"""Every file of the corpus: the number of fusions, where they are, and that the fused model computes the same."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import onnx
import pytest

from tests.corpus import totals
from tests.corpus.numbers import PATTERN, compare
from trtconvert import ConvertError, fuse

FOLDER = Path(__file__).parent
EXPECTED: dict[str, dict[str, Any]] = json.loads((FOLDER / "expected.json").read_text())
NOTHING_RUNS = {
    "a34_op_stash16.onnx",  # neither onnxruntime nor the reference evaluator has a LayerNormalization with bfloat16 inside
    "i05_custom_op_upstream.onnx",  # its custom op has no implementation anywhere
}
INVALID = {
    "c06_dec_bf16.onnx",
    "t40_autocast_bf16_dyn20.onnx",
    "t40_autocast_bf16_leg17.onnx",
}  # types that ONNX forbids


@pytest.fixture(scope="module")
def child() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield pool


def bounds(expected: dict[str, Any]) -> tuple[int, int]:
    moved = expected["via_transpose"] + expected["channel_first"]
    low = 0 if expected["tier"] == "stretch" else expected["strict_min"] + moved
    return low, expected["strict_max"] + moved + expected["via_cast"]


def test_all_files_are_here() -> None:
    assert {path.name for path in FOLDER.glob("*.onnx")} == set(EXPECTED)
    assert len(EXPECTED) == 425


@pytest.mark.parametrize("name", EXPECTED)
def test_file(name: str, child: ProcessPoolExecutor) -> None:
    expected, path = EXPECTED[name], FOLDER / name
    low, high = bounds(expected)
    if name in INVALID:
        with pytest.raises(ConvertError, match="not valid ONNX"):
            fuse(path, PATTERN)
        totals.add(expected["tier"], 0, high, compared=False)
        return
    result = fuse(path, PATTERN)
    found = {fusion.output for fusion in result.fusions}
    assert low <= len(result.fusions) <= high, [miss.reason for miss in result.near_misses[:1]]
    sites = {site["y"] for site in expected["sites"]}
    if sites:  # not labelled: 16-bit and double files that the oracle could not run, subgraphs, dynamic scale and bias
        assert found <= sites
    if not result.fusions:
        assert result.model == onnx.load(path)
        totals.add(expected["tier"], 0, high, compared=False)
        return
    shapes = {site["x"]: site["x_shape"] for site in expected["sites"]}
    faults = child.submit(compare, path, shapes).result(timeout=120)
    assert faults == (None if name in NOTHING_RUNS else [])
    totals.add(expected["tier"], len(result.fusions), high, compared=faults is not None)


def test_stretch_files_with_their_full_count() -> None:
    full = sum(
        len(fuse(FOLDER / name, PATTERN).fusions) == bounds(e)[1]
        for name, e in EXPECTED.items()
        if e["tier"] == "stretch" and name not in INVALID
    )
    assert full >= 70
