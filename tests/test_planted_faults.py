"""Wrong engines are caught and right ones pass, in fp32, fp16 and int8, over 20 inputs each: here by stand-ins for engines,
models that onnxruntime runs; tests/gpu has the same with engines."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from tests import planted_faults
from tests.graphs import FAST, save
from tests.planted_faults import CLEAN, DTYPES, FAULTS, feeds, model
from trtconvert import build
from trtconvert.accuracy.proof import Proof
from trtconvert.accuracy.references import twin_of
from trtconvert.accuracy.running import ModelRun
from trtconvert.cli import cli
from trtconvert.manifest import IO

SEEDS = 20


@pytest.mark.parametrize("dtype", DTYPES)
def test_none_is_missed_and_none_is_a_false_alarm(dtype: str) -> None:
    """Styles: as few roundings as onnxruntime makes; as many as an engine without fusions; products summed in two halves."""
    here = Path()
    engines: dict[str, dict[str, Any]] = {f.name: {"few": ModelRun(model(dtype, f.name), here)} for f in FAULTS}
    for name in ("epsilon off", "tanh for erf"):
        engines[name]["split"] = ModelRun(twin_of(model(dtype, name, split=True)), here)
    engines[CLEAN] = {
        "few": ModelRun(model(dtype), here),
        "many": ModelRun(twin_of(model(dtype)), here),
        "split": ModelRun(twin_of(model(dtype, split=True)), here),
    }
    assert planted_faults.missed(Proof(model(dtype), here), SEEDS, dtype, engines) == []


class StandIn:
    """An engine that is a model in onnxruntime."""

    def __init__(self, run: ModelRun) -> None:
        self.inputs: list[IO] = run.inputs
        self.run = run.run


@pytest.mark.parametrize("dtype", DTYPES)
def test_command(dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole way, from a plan: exit code, table and message."""
    from trtconvert import verify as _  # noqa: F401

    plan = build(save(model(dtype), tmp_path), options=FAST).plan
    arrays: dict[str, Any] = feeds(0, dtype)
    np.savez(tmp_path / "in.npz", **arrays)
    for fault in ("", *(f.name for f in FAULTS)):
        stand_in = StandIn(ModelRun(model(dtype, fault), tmp_path))
        monkeypatch.setattr(sys.modules["trtconvert.verify"], "load_engine", lambda path, it=stand_in: it)
        result = CliRunner().invoke(cli, ["verify", str(plan), "--inputs", str(tmp_path / "in.npz")])
        assert result.exit_code == (1 if fault else 0), result.stderr
        assert max(map(len, result.stdout.splitlines())) <= 120
        for line in (f.says for f in FAULTS if f.name == fault):
            assert line in result.stderr
