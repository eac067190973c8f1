"""Engines out of the cache, run."""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import SAMPLES
from trtconvert import BuildOptions, load_or_build
from trtconvert.caching import store

OPTIONS = BuildOptions(fuse="all")


def test_the_second_engine_comes_out_of_the_cache_and_computes_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRTCONVERT_CACHE_DIR", str(tmp_path))
    model = SAMPLES / "ln_gelu_opset20.onnx"
    feeds = {"features": np.random.default_rng(0).normal(size=(2, 7, 192)).astype(np.float32)}
    first = load_or_build(model, None, OPTIONS).run(feeds)
    assert len(store.entries()) == 1
    monkeypatch.setattr(importlib.import_module("trtconvert.build"), "build", lambda *_: pytest.fail("it was built"))
    for output in (None, tmp_path / "e.plan"):
        again = load_or_build(model, output, OPTIONS).run(feeds)
        assert np.array_equal(again["output"], first["output"])
    assert np.abs(first["output"]).max() > 0
