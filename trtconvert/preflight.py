"""What stands between a model and its engine, told before anything is built; and what a plan says of itself. Needs no GPU."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from onnx import ModelProto

from trtconvert import manifest, registry, shapes
from trtconvert import model as onnx_model
from trtconvert.backend import select
from trtconvert.custom_ops.attributes import op_title
from trtconvert.diagnosis.faults import Fault
from trtconvert.diagnosis.notices import notices
from trtconvert.diagnosis.survey import NodeReport, survey
from trtconvert.errors import ConvertError
from trtconvert.fuse import NearMiss, fuse_model
from trtconvert.manifest import IO, Manifest, model_io
from trtconvert.matching.rewrite import Fusion
from trtconvert.profiles import sizes
from trtconvert.runtime.contents import plugins_in

__all__ = ["ModelReport", "NodeReport", "PlanReport", "PluginReport", "inspect", "inspect_model", "inspect_plan"]


@dataclass(frozen=True)
class ModelReport:
    """An ONNX model as TensorRT will see it."""

    path: str
    producer: str
    opset: int
    ir_version: int
    inputs: list[IO]
    outputs: list[IO]
    ops: dict[str, int]
    nodes: list[NodeReport]
    totals: dict[str, int]
    faults: list[Fault]
    notices: list[str]
    backend: str
    fusions: list[Fusion]
    near_misses: list[NearMiss]


@dataclass(frozen=True)
class PluginReport:
    """A plugin in a plan, with these attributes; layers of that plugin, None if no manifest says so."""

    name: str
    version: str
    namespace: str
    kernel: str
    attributes: dict[str, str]
    layers: int | None


@dataclass(frozen=True)
class PlanReport:
    """A plan, from its manifest and from its own bytes."""

    path: str
    bytes: int
    manifest: Manifest | None
    plugins: list[PluginReport]


def inspect(path: Path) -> ModelReport | PlanReport:
    """Describe an ONNX model or a plan."""
    if manifest.is_plan(path):
        return inspect_plan(path)
    return inspect_model(path)


def inspect_plan(path: Path) -> PlanReport:
    """Plugins, targets, inputs and outputs of a plan; ConvertError if it is not the one its manifest describes."""
    data, described = manifest.read_plan(path)
    uses = described.plugins if described else []
    nodes = {(use.name, use.version, use.namespace): len(use.nodes) for use in uses}
    counts = dict.fromkeys(
        (p.name, p.version, p.namespace, p.kernel, tuple(p.attributes.items())) for p in plugins_in(data)
    )
    found = [
        PluginReport(name, version, namespace, kernel, dict(attributes), nodes.get((name, version, namespace)))
        for name, version, namespace, kernel, attributes in counts
    ]
    return PlanReport(str(path), len(data), described, found)


def inspect_model(path: Path, backend: str = "auto") -> ModelReport:
    """Per node: native, plugin, expanded, folded or unsupported; and what fuse would do."""
    chosen = select(backend)
    model = onnx_model.load(path)
    onnx_model.check(model, path)
    fused = ModelProto()
    fused.CopyFrom(model)
    profile, needed = _profile(model, path.parent)
    found = survey(model, path, chosen, profile)
    result = fuse_model(fused, path.parent, registry.by_pattern(()))
    return ModelReport(
        str(path),
        f"{model.producer_name} {model.producer_version}".strip() or "unknown producer",
        onnx_model.opset(model),
        model.ir_version,
        model_io(model, "input"),
        model_io(model, "output"),
        dict(Counter(op_title(n) for n in onnx_model.all_nodes(model)).most_common()),
        found.nodes,
        found.totals,
        found.faults,
        [*notices(model, chosen), *found.notes, *needed],
        chosen.title,
        result.fusions,
        result.near_misses,
    )


def _profile(model: ModelProto, folder: Path) -> tuple[shapes.Profile, list[str]]:
    """That of a build without --shape, or none and what such a build would ask for."""
    try:
        return shapes.profile(model, {}, lambda: sizes.propose(model, folder, {})), []
    except ConvertError as error:
        return shapes.Profile({}), [f"to build it: {error.what}: {error.fix}"]
