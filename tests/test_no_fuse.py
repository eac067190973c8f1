"""`--no-fuse NODE`: the fusion around that node is left out, the others stay; a wrong name is an error."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.conftest import SAMPLES, Run, assert_clean_error
from trtconvert import BuildOptions, ConvertError, build, verify
from trtconvert.choice import left_out
from trtconvert.choice.choose import policy
from trtconvert.fuse import fuse_model
from trtconvert.model import load

SPEECH = SAMPLES / "wav2vec2_features.onnx"
NORM, PLUGIN = "/layers/layers.1/layer_norm/LayerNormalization", "/layers/layers.1/Mul_1_LayerNormGelu"
AHEAD = BuildOptions(targets=("sm_86",), fuse="all")


@pytest.mark.parametrize("node", [NORM, PLUGIN])
def test_one_fusion_is_left_out(node: str, tmp_path: Path) -> None:
    """By a node inside it or by its own name. `verify` makes the same fusions again."""
    result = build(SPEECH, tmp_path / "e.plan", dataclasses.replace(AHEAD, no_fuse=(node,)))
    assert len(result.fusions) == 2
    assert PLUGIN not in [fusion.node for fusion in result.fusions]
    (refused,) = [choice for choice in result.choices if not choice.kept]
    assert (refused.node, refused.reason) == (PLUGIN, f"--no-fuse {node}")
    assert result.manifest.options["no_fuse"] == [node]
    outcome = verify(result.plan)
    assert outcome.passed
    assert not any("fuses the model differently" in notice for notice in outcome.notices)


@pytest.mark.parametrize(
    ("args", "fused"),
    [
        (("--no-fuse", NORM, "--fuse", "all"), 2),
        (("--no-fuse", NORM, "--no-fuse", "/layers/layers.2/Mul_1", "--fuse", "all"), 1),
        (("--no-fuse",), 0),
        (("--fuse", "all"), 3),
    ],
)
def test_command(args: Sequence[str], fused: int, run: Run, tmp_path: Path) -> None:
    """The model may stand behind --no-fuse, which then means all fusions."""
    given = (*args, SPEECH) if args == ("--no-fuse",) else (SPEECH, *args)
    result = run("build", *given, "-o", tmp_path / "e.plan", "--target", "sm_86", "--json")
    assert result.returncode == 0, result.stderr
    assert len(json.loads(result.stdout)["fusions"]) == fused


def test_names_that_mean_nothing(run: Run, tmp_path: Path) -> None:
    wrong = run("build", SPEECH, "-o", tmp_path / "e.plan", "--no-fuse", NORM.replace("Normalization", "Norm"))
    assert_clean_error(wrong, "no such node", "did you mean", NORM)
    missing = run("build", "--no-fuse", NORM)
    assert missing.returncode == 2
    assert "MODEL" in missing.stderr
    assert run("build", SPEECH, "--no-fuse", "--no-fuse", NORM).returncode == 2
    assert list(tmp_path.iterdir()) == []


def test_nodes_that_nothing_fuses() -> None:
    """A node that no fusion contains is told, no error; one that is a plugin in the file cannot be left out."""
    ops = policy("all", ()).ops
    model = load(SPEECH)
    (note,) = left_out.check(["/layers/layers.1/conv/Conv", NORM], model, SPEECH.parent, ops)
    assert "/layers/layers.1/conv/Conv: nothing" in note
    fuse_model(model, SPEECH.parent, ops)
    with pytest.raises(ConvertError, match="a plugin node in the file already"):
        left_out.check([PLUGIN], model, SPEECH.parent, ops)


def test_nodes_without_a_name() -> None:
    """They are called by op and output, in messages and here."""
    model = load(SPEECH)
    for node in model.graph.node:
        node.name = ""
    name = next(f"Erf_{node.output[0]}" for node in model.graph.node if node.op_type == "Erf")
    assert left_out.check([name], model, SPEECH.parent, policy("all", ()).ops) == []
