"""Engines on inputs by role, at every point of the profile, and the report of one that was run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import numpy_helper

from tests.graphs import graph, save
from trtconvert import BuildOptions, build, verify
from trtconvert.report import page
from trtconvert.shapes import parse

# Rows of a table by ids, those behind a sample's length set to 0 by a mask; added up.
NODES = """
    e = Gather(t, ids)
    f = Cast<to = 1>(attention_mask)
    a = Constant<value = int64[1] {2}>()
    m = Unsqueeze(f, a)
    y = Mul(e, m)
"""


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = graph(NODES, "int64[B,T] ids, int64[B,T] attention_mask", "float[B,T,64] y")
    table = np.random.default_rng(0).standard_normal((1000, 64)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(table, "t"))
    shapes = parse([f"{name}=1x1,2x16,4x64" for name in ("ids", "attention_mask")])
    return build(save(model, tmp_path_factory.mktemp("feeds")), options=BuildOptions(shapes=shapes)).plan


def test_ids_and_masks(plan: Path) -> None:
    result = verify(plan, samples=20)
    assert {row.shapes for row in result.rows} >= {"1x1 1x1", "2x16 2x16", "2x16 2x16 #20", "4x64 4x64"}
    assert not result.engine_skipped
    assert result.passed, [row.fault for row in result.rows]
    assert (result.roles["ids"].high, result.roles["attention_mask"].kind) == (999, "mask")


def test_report_of_an_engine(plan: Path, tmp_path: Path) -> None:
    size = page.write(tmp_path / "out.html", plan, verify(plan, samples=3))
    text = (tmp_path / "out.html").read_text(encoding="utf-8")
    assert size < 1_000_000
    assert '<span class="badge">PASS</span>' in text
    assert "engine against the reference" in text
