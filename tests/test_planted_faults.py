"""Wrong engines are caught and right ones pass, in fp32, fp16 and int8: here by stand-ins for engines, models that onnxruntime
runs, over a few inputs each; `python -m tests.bench.planted_faults` takes 20 and engines where a GPU is."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from onnx import ModelProto

from tests.graphs import FAST, save
from tests.planted_faults import DTYPES, FAULTS, feeds, missed, model, stand_ins, wrecked
from trtconvert import build
from trtconvert.accuracy import references
from trtconvert.accuracy.bisect import bisect
from trtconvert.accuracy.parts import Parts
from trtconvert.accuracy.proof import Proof
from trtconvert.accuracy.running import ModelRun
from trtconvert.accuracy.trace import distance
from trtconvert.accuracy.wrong import Suspect
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
    for fault in ("", "tanh for erf", "one wrong channel", "NaN at the tail"):
        stand_in = ModelRun(model(dtype, fault), tmp_path)
        monkeypatch.setattr(sys.modules["trtconvert.verify"], "load_engine", lambda path, it=stand_in: it)
        result = CliRunner().invoke(cli, ["verify", str(plan), "--inputs", str(tmp_path / "in.npz")])
        assert result.exit_code == (1 if fault else 0), result.stderr
        assert max(map(len, result.stdout.splitlines())) <= 120
        for line in (f.says for f in FAULTS if f.name == fault):
            assert line in result.stderr


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["transposed weights", "clamped ids", "uint8 zero point"])
def test_bisect_names_the_node(name: str, dtype: str) -> None:
    """Of faults whose message can only say which outputs they reach; of int8 weights with the DequantizeLinear before it."""
    here, right = Path(), model(dtype)
    proof, given = Proof(right, here), feeds(3, dtype)

    def run(marked: ModelProto, more: dict[str, Any]) -> dict[str, Any]:
        return ModelRun(wrecked(marked, dtype, name), here).run({**given, **more})

    suspect = Suspect(right, run, run(right, {}), Parts(right, here).dtypes)
    reference, twin = (Parts(made, here) for made in (references.reference_of(right), references.twin_of(right)))
    wrong = bisect(suspect, reference, [twin], given, distance(proof.rule))
    names = [right.graph.node[index].name for index in wrong.nodes]
    assert names[-1] == next(f.node for f in FAULTS if f.name == name)
    assert len(names) <= 2
    assert wrong.builds <= np.log2(len(right.graph.node)) + 3
