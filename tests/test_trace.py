"""`verify --bisect`: the first wrong node of a plan, its fusion, and a flag that avoids it; onnxruntime stands in for engines."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import ModelProto, NodeProto

from tests.conftest import SAMPLES, Run
from trtconvert import BuildOptions, build, gpu, reference, verify
from trtconvert.accuracy import engines
from trtconvert.accuracy.cuts import MARKABLE, cuts
from trtconvert.accuracy.finding import Finding
from trtconvert.accuracy.parts import Arrays, Parts, cut_out
from trtconvert.bodies import add_bodies
from trtconvert.manifest import Manifest, model_io, read
from trtconvert.model import all_nodes, copy
from trtconvert.network import Maker
from trtconvert.precision.options import PrecisionOptions
from trtconvert.remake import fuse_again, remake

SPEECH = SAMPLES / "wav2vec2_features.onnx"
NORM, PLUGIN = "/layers/layers.1/layer_norm/LayerNormalization", "/layers/layers.1/Mul_1_LayerNormGelu"
AHEAD = BuildOptions(targets=("sm_86",), fuse="all")
Change = Callable[[NodeProto], None]


class StandIn:
    """An engine that onnxruntime runs, with a change in one node."""

    def __init__(self, model: ModelProto, folder: Path, node: str, change: Change) -> None:
        self.model, self.folder = copy(model), folder
        for found in all_nodes(self.model):
            if found.name == node:
                change(found)
        add_bodies(self.model)
        self.inputs = model_io(self.model, "input")

    def run(self, feeds: Arrays) -> dict[str, Any]:
        return reference.run(self.model, self.folder, {io.name: feeds[io.name] for io in self.inputs})


def first_wrong(plan: Path, node: str, change: Change, monkeypatch: pytest.MonkeyPatch) -> Finding:
    """What `verify --bisect` finds where every engine has that change."""
    remade = remake(read(plan), plan)
    folder = remade.maker.source.parent
    monkeypatch.setattr(
        sys.modules["trtconvert.verify"], "load_engine", lambda _: StandIn(remade.ready, folder, node, change)
    )

    def runs(maker: Maker, lowered: Any, profile: Any, feeds: Arrays) -> Any:
        return lambda model, given: StandIn(model, folder, node, change).run({**feeds, **given})

    monkeypatch.setattr(engines, "runs", runs)
    result = verify(plan, bisect=True)
    assert not result.passed
    assert result.first_wrong is not None, result.notices
    return result.first_wrong


def _epsilon(node: NodeProto) -> None:
    next(a for a in node.attribute if a.name == "epsilon").f = 0.1


def test_a_wrong_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its fusion is named, with the nodes that it stands for, and the flag leaves it out."""
    plan = build(SPEECH, tmp_path / "e.plan", AHEAD).plan
    found = first_wrong(plan, PLUGIN, _epsilon, monkeypatch)
    assert (found.node, found.op, found.plugin) == (PLUGIN, "LayerNormGelu", "LayerNormGelu")
    assert NORM in found.sources
    assert found.single
    assert found.confirmed
    assert found.flag == f"--no-fuse {PLUGIN}"
    assert found.builds <= 6
    text = "\n".join(found.lines())
    assert f"first wrong: {PLUGIN}" in text
    assert found.element is not None
    assert found.element.got != found.element.expected
    assert f"{found.tensor}{list(found.element.index)} is {found.element.got:g}, expected" in text
    again = build(SPEECH, tmp_path / "f.plan", dataclasses.replace(AHEAD, no_fuse=(found.flag.split()[1],)))
    assert PLUGIN not in [fusion.node for fusion in again.fusions]


def test_a_wrong_layer_of_tensorrt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No fusion of ours is to blame, and no flag of a plain build avoids it."""
    plan = build(SPEECH, tmp_path / "e.plan", AHEAD).plan
    node = "/layers/layers.2/conv/Conv"
    found = first_wrong(plan, node, lambda conv: setattr(conv, "op_type", "ConvTranspose"), monkeypatch)
    assert (found.node, found.op, found.plugin, found.flag) == (node, "Conv", "", "")
    assert "has shape [" in found.says


def test_a_wrong_layer_in_float16(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The flag that keeps it in float32 is one that the build takes."""
    source = SAMPLES / "vit_block.onnx"
    half = dataclasses.replace(AHEAD, precision=PrecisionOptions("fp16"))
    plan = build(source, tmp_path / "e.plan", half).plan
    node = next(n.name for n in onnx.load(source).graph.node if n.op_type == "Softmax")
    found = first_wrong(plan, node, lambda softmax: setattr(softmax, "op_type", "LogSoftmax"), monkeypatch)
    assert (found.node, found.op, found.flag) == (node, "Softmax", f"--keep-fp32 {node}")
    assert found.single
    kept = PrecisionOptions("fp16", keep_fp32=(found.flag.split()[1],))
    again = build(source, tmp_path / "f.plan", dataclasses.replace(AHEAD, precision=kept))
    assert node in [one["node"] for one in again.manifest.precision.kept]


@pytest.mark.skipif(gpu.current() is not None, reason="the engine would be right")
def test_a_wrong_fusion(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fused model itself is wrong, without any engine."""
    plan = build(SPEECH, tmp_path / "e.plan", AHEAD).plan

    def wrong(described: Manifest, model: ModelProto, folder: Path) -> None:
        fuse_again(described, model, folder)
        _epsilon(next(node for node in model.graph.node if node.name == PLUGIN))

    verify(plan)
    monkeypatch.setattr(sys.modules["trtconvert.verify"], "fuse_again", wrong)
    result = verify(plan, bisect=True)
    assert result.first_wrong is not None, result.notices
    assert (result.first_wrong.node, result.first_wrong.flag) == (PLUGIN, f"--no-fuse {PLUGIN}")


def test_nothing_to_find(run: Run, tmp_path: Path) -> None:
    plan = build(SPEECH, tmp_path / "e.plan", AHEAD).plan
    result = run("verify", plan, "--bisect")
    assert result.returncode in (0, 3), result.stderr
    assert "first wrong" not in result.stderr


@pytest.mark.parametrize("name", ["near_miss", "qdq_mlp", "resnet_block", "vit_block", "bf16_ln_gelu", "custom_relu"])
def test_engines_with_more_outputs_build(name: str, tmp_path: Path) -> None:
    """All that can be seen as outputs at once, and the part up to the middle; TensorRT takes both."""
    plan = build(SAMPLES / f"{name}.onnx", tmp_path / "e.plan", AHEAD).plan
    remade = remake(read(plan), plan)
    lowered, known = remade.lowered(), copy(remade.ready)
    add_bodies(known)
    dtypes = Parts(known, SAMPLES).dtypes
    places = cuts(lowered.model.graph, lambda name: dtypes.get(name, "") in MARKABLE)
    assert len(places) > 2
    middle = places[len(places) // 2]
    for shown in (places, [middle]):
        tensors = dict.fromkeys(tensor for place in shown for tensor in place.tensors)
        marked = engines.part(lowered, cut_out(lowered.model, tensors, dtypes=dtypes))
        assert len(remade.maker.serialized(marked, remade.profile)) > 1000
