"""Wrong engines are caught and right ones pass, in fp32, fp16 and int8: here by stand-ins for engines, models that onnxruntime
runs, over a few inputs each; `python -m tests.bench.planted_faults` takes 20 and engines where a GPU is."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from tests.graphs import FAST, save
from tests.planted_faults import DTYPES, FAULTS, feeds, missed, model, stand_ins
from trtconvert import build
from trtconvert.accuracy.proof import Proof
from trtconvert.accuracy.running import ModelRun
from trtconvert.cli import cli

SEEDS = 4


@pytest.mark.parametrize("dtype", DTYPES)
def test_none_is_missed_and_none_is_a_false_alarm(dtype: str) -> None:
    assert missed(Proof(model(dtype), Path()), SEEDS, dtype, stand_ins(dtype)) == []


@pytest.mark.parametrize("dtype", DTYPES)
def test_command(dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole way, from a plan: exit code, table and message."""
    from trtconvert import verify as _  # noqa: F401

    plan = build(save(model(dtype), tmp_path), options=FAST).plan
    arrays: dict[str, Any] = feeds(0, dtype)
    np.savez(tmp_path / "in.npz", **arrays)
    for fault in ("", *(f.name for f in FAULTS)):
        stand_in = ModelRun(model(dtype, fault), tmp_path)
        monkeypatch.setattr(sys.modules["trtconvert.verify"], "load_engine", lambda path, it=stand_in: it)
        result = CliRunner().invoke(cli, ["verify", str(plan), "--inputs", str(tmp_path / "in.npz")])
        assert result.exit_code == (1 if fault else 0), result.stderr
        assert max(map(len, result.stdout.splitlines())) <= 120
        for line in (f.says for f in FAULTS if f.name == fault):
            assert line in result.stderr
