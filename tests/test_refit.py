"""`refit`: what a plan and a model must have in common, said before a GPU is asked for; TensorRT's part runs in tests/gpu."""

from __future__ import annotations

import dataclasses
import hashlib
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, helper, numpy_helper

from tests.conftest import SAMPLES, Run, assert_clean_error
from trtconvert import BuildOptions, ConvertError, NoUsableGpuError, build, gpu, manifest, refit, verify
from trtconvert.backend import select
from trtconvert.precision.options import PrecisionOptions
from trtconvert.refitting import structure
from trtconvert.refitting.engine import Refitted, by_names
from trtconvert.remake import remake

SPEECH = SAMPLES / "wav2vec2_features.onnx"
CONV = "/layers/layers.1/conv/Conv"
NORM = "/layers/layers.1/layer_norm/LayerNormalization"
Change = Callable[[ModelProto], Any]


def renewed(source: Path, folder: Path, change: Change = lambda _: None, seed: int = 1) -> Path:
    """The model with other weights, and with a change."""
    model = onnx.load(source)
    random = np.random.default_rng(seed)
    for tensor in model.graph.initializer:
        exact = numpy_helper.to_array(tensor)
        if exact.dtype.kind == "f" and exact.size > 8:
            noise = 1 + random.standard_normal(exact.shape) / 8
            tensor.CopyFrom(numpy_helper.from_array((exact * noise).astype(exact.dtype), tensor.name))
    change(model)
    path = folder / "new.onnx"
    onnx.save(model, path)
    return path


def refittable(source: Path, plan: Path, precision: str = "") -> Path:
    """A plan whose manifest says what one of `build --refit` says; TensorRT-RTX builds those on a GPU only."""
    build(source, plan, BuildOptions(targets=("sm_86",), fuse="all", precision=PrecisionOptions(precision)))
    described = manifest.read(plan)
    found = structure.of(remake(described, plan).lowered().model, source.parent)
    manifest.write(dataclasses.replace(described, options={"refit": True}, structure=dataclasses.asdict(found)), plan)
    return plan


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return refittable(SPEECH, tmp_path_factory.mktemp("plan") / "e.plan")


def digests(plan: Path) -> list[str]:
    return [hashlib.sha256(path.read_bytes()).hexdigest() for path in (plan, manifest.path_for(plan))]


def refusal(plan: Path, model: Path) -> str:
    """What refit says; nothing is written."""
    before = digests(plan)
    with pytest.raises(ConvertError) as caught:
        refit(plan, model)
    assert digests(plan) == before
    assert not isinstance(caught.value, NoUsableGpuError)
    return str(caught.value)


# --- before TensorRT is asked ---------------------------------------------------------------------------------------


@pytest.mark.skipif(gpu.current() is not None, reason="tests/gpu refits")
@pytest.mark.parametrize(
    ("name", "precision"), [("wav2vec2_features", ""), ("qdq_mlp", ""), ("keras_ln_gelu", ""), ("vit_block", "fp16")]
)
def test_only_the_gpu_is_missing(name: str, precision: str, run: Run, tmp_path: Path) -> None:
    """Other weights, folded, renamed and converted ones too, are no difference: exit code 3, and a sentence."""
    source = SAMPLES / f"{name}.onnx"
    made = refittable(source, tmp_path / "e.plan", precision)
    model, before = renewed(source, tmp_path), digests(made)
    result = run("refit", made, model)
    assert result.returncode == 3, result.stderr
    assert "NVIDIA" in result.stderr
    assert digests(made) == before


def _node(model: ModelProto, name: str) -> Any:
    return next(node for node in model.graph.node if node.name == name)


def _attribute(name: str, attribute: str, value: Any) -> Change:
    def change(model: ModelProto) -> None:
        node = _node(model, name)
        kept = [a for a in node.attribute if a.name != attribute]
        del node.attribute[:]
        node.attribute.extend([*kept, helper.make_attribute(attribute, value)])

    return change


def _weight(model: ModelProto, node: str, position: int) -> Any:
    name = _node(model, node).input[position]
    return next(tensor for tensor in model.graph.initializer if tensor.name == name)


def _open_ended(change: Change) -> Change:
    """The change, and an output of unknown shape."""

    def both(model: ModelProto) -> None:
        change(model)
        model.graph.output[0].type.tensor_type.ClearField("shape")
        del model.graph.value_info[:]

    return both


def _shorter(model: ModelProto) -> None:
    model.graph.input[0].type.tensor_type.shape.dim[2].dim_value = 8000


def _doubled(model: ModelProto) -> None:
    """Twice the channels inside: other shapes for some weights."""
    for node, axis in ((CONV, 0), ("/layers/layers.2/conv/Conv", 1)):
        tensor = _weight(model, node, 1)
        tensor.CopyFrom(numpy_helper.from_array(np.repeat(numpy_helper.to_array(tensor), 2, axis), tensor.name))
    for node, position in ((CONV, 2), (NORM, 1), (NORM, 2)):
        if len(_node(model, node).input) > position:
            tensor = _weight(model, node, position)
            tensor.CopyFrom(numpy_helper.from_array(np.repeat(numpy_helper.to_array(tensor), 2), tensor.name))
    del model.graph.value_info[:]


def _inserted(model: ModelProto) -> None:
    first = model.graph.node[0]
    model.graph.node.insert(0, helper.make_node("Abs", [first.input[0]], ["abs"], name="extra"))
    model.graph.node[1].input[0] = "abs"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_open_ended(_attribute(CONV, "strides", [3])), (f"node {CONV} has strides [3], it was [2]",)),
        (_attribute(NORM, "epsilon", 1e-3), ("Mul_1_LayerNormGelu has epsilon 0.001",)),
        (_doubled, ("weight ", "the plan takes float32")),
        (_inserted, ("node extra (Abs) is new",)),
        (lambda m: setattr(m.graph.node[0], "name", "other"), ("is missing", "node other (Conv) is new")),
        (
            _open_ended(_shorter),
            ("inputs are waveform float32 [1, 1, 8000], they were waveform float32 [1, 1, 16000]",),
        ),
    ],
)
def test_what_differs_is_named(change: Change, words: tuple[str, ...], plan: Path, tmp_path: Path) -> None:
    text = refusal(plan, renewed(SPEECH, tmp_path, change))
    for word in ("not of the structure", *words):
        assert word in text, text


def test_constants_that_are_built_in(tmp_path: Path) -> None:
    """The target of a Reshape is no weight."""
    source = SAMPLES / "keras_ln_gelu.onnx"
    made = refittable(source, tmp_path / "e.plan")
    described = manifest.read(made)
    name = next(iter(described.structure["constants"]))
    described.structure["constants"][name] = "int64 [1] 0"
    manifest.write(described, made)
    assert f"constant {name}, which TensorRT builds into the engine, is another" in refusal(made, source)


def test_plans_that_cannot_be_refitted(run: Run, plan: Path, tmp_path: Path) -> None:
    fixed = build(SPEECH, tmp_path / "fixed.plan", BuildOptions(targets=("sm_86",))).plan
    assert_clean_error(run("refit", fixed, SPEECH), "the plan's weights are fixed", "--refit")
    described = manifest.read(plan)
    other = tmp_path / "e.plan"
    other.write_bytes(plan.read_bytes())
    precision = dataclasses.replace(described.precision, name="int8")
    manifest.write(dataclasses.replace(described, precision=precision), other)
    assert "scales" in refusal(other, SPEECH)
    manifest.write(dataclasses.replace(described, structure={}), other)
    assert "build the plan again" in refusal(other, SPEECH)
    assert_clean_error(run("refit", tmp_path / "no.plan", SPEECH), "plan not found")
    assert_clean_error(run("refit", plan, tmp_path / "no.onnx"), "model file not found")


def test_the_structure_says_nothing_of_values(plan: Path, tmp_path: Path) -> None:
    """It differs from that of other weights in digests alone, and from itself in nothing."""
    described = manifest.read(plan)
    built = structure.Structure.told(described.structure)
    remade = remake(described, plan)
    again = structure.of(remade.lowered().model, SPEECH.parent)
    assert again == built
    assert structure.differences(built, again) == []
    assert len(built.weights) >= 6


# --- TensorRT's part, played ----------------------------------------------------------------------------------------


@dataclass
class Prototype:
    """A weight as TensorRT describes it."""

    dtype: Any
    size: int


@dataclass
class Played:
    """A refitter that wants these weights."""

    wanted: dict[str, Prototype]
    given: dict[str, np.ndarray] = field(default_factory=dict)
    refuses: str = ""

    def get_weights_prototype(self, name: str) -> Prototype:
        return self.wanted[name]

    def set_named_weights(self, name: str, weights: np.ndarray) -> bool:
        self.given[name] = weights
        return name != self.refuses


def test_weights_by_name() -> None:
    types = select("rtx").trt.DataType
    arrays = {"a": np.ones((2, 3), np.float32), "b": np.ones(4, np.float16), "c": np.arange(3, dtype=np.float32)}
    held = {name: numpy_helper.from_array(array, name) for name, array in arrays.items()}
    played = Played({"a": Prototype(types.FLOAT, 6), "c": Prototype(types.FLOAT, 3)})
    assert list(by_names(played, ["c"], held, lambda array: array)) == ["c"]
    assert list(played.given) == ["c"]
    np.testing.assert_array_equal(played.given["c"], arrays["c"])
    wants = {"a": Prototype(types.FLOAT, 7), "b": Prototype(types.FLOAT, 4), "z": Prototype(types.FLOAT, 1)}
    with pytest.raises(ConvertError) as caught:
        by_names(Played({**wants, "c": Prototype(types.FLOAT, 3)}, refuses="c"), "abzc", held, lambda array: array)
    for words in (
        "a has 6 elements of float32, the engine takes 7 of float32",
        "b has 4 elements of float16, the engine takes 4 of float32",
        "z is not in the model",
        "c was refused",
    ):
        assert words in str(caught.value)


def test_plan_and_manifest_are_written_together(
    plan: Path, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the new model's digests, so that verify compares with it."""
    model, target = renewed(SPEECH, tmp_path), tmp_path / "sub" / "n.plan"
    fresh = build(model, tmp_path / "fresh.plan", BuildOptions(targets=("sm_86",), fuse="all")).plan
    given: list[Any] = []

    def refitted(_backend: Any, _plan: Path, _described: Any, lowered: ModelProto, source: Path) -> Refitted:
        given.append(lowered)
        return Refitted(fresh.read_bytes(), 9, [])

    verify(plan)
    assert manifest.read(plan).verifications
    monkeypatch.setattr(sys.modules["trtconvert.refit"], "refit_engine", refitted)
    target.parent.mkdir()
    before = digests(plan)
    result = refit(plan, model, target)
    assert digests(plan) == before
    described = manifest.read(target)
    assert described.model == "../new.onnx"
    assert described.model_sha256 == manifest.read(fresh).model_sha256
    assert described.fused_sha256 == manifest.read(fresh).fused_sha256
    assert described.options["refit"]
    assert result.verified is not None
    assert result.verified.passed
    assert len(described.verifications) == 1
    (lowered,) = given
    weights = {t.name: numpy_helper.to_array(t) for t in lowered.graph.initializer}
    wanted = {t.name: numpy_helper.to_array(t) for t in onnx.load(model).graph.initializer}
    np.testing.assert_array_equal(weights["layers.1.conv.weight"], wanted["layers.1.conv.weight"])
    with pytest.raises(ConvertError, match="would overwrite"):
        refit(plan, model, model)
