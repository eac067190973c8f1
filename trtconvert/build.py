"""ONNX to plan: fuse, lower, parse with the plugins' creators registered, check, build, write plan and manifest."""

from __future__ import annotations

import dataclasses
import hashlib
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnx import ModelProto

import trtconvert
from trtconvert import gpu, launch, manifest, shapes
from trtconvert import model as onnx_model
from trtconvert.backend import Backend, select
from trtconvert.bodies import add_bodies
from trtconvert.choice import left_out
from trtconvert.choice.choose import Choice, Chosen, Forced, Judge, Policy, Table, Whole, choose, policy
from trtconvert.choice.neighbourhood import Surroundings
from trtconvert.choice.trials import Trials
from trtconvert.custom_ops import libraries, wishes
from trtconvert.custom_ops.creators import Creator
from trtconvert.custom_ops.custom import Custom, PluginNode
from trtconvert.errors import NoUsableGpuError
from trtconvert.files import check_outputs, write_files
from trtconvert.fuse import NearMiss, fuse_model
from trtconvert.lower import name_nodes
from trtconvert.manifest import Manifest, PluginUse, model_io
from trtconvert.matching.rewrite import Fusion
from trtconvert.monitor import Progress
from trtconvert.network import BuildOptions, Made, Maker, choose_targets
from trtconvert.precision.convert import Conversion
from trtconvert.precision.int8_build import Int8
from trtconvert.profiles import bake, fit, shape_values, sizes
from trtconvert.refitting import structure
from trtconvert.remake import BUILDER_OPTIONS


@dataclass(frozen=True)
class BuildResult:
    """The plan and what is worth telling about it."""

    plan: Path
    manifest: Manifest
    fusions: list[Fusion]
    near_misses: list[NearMiss]
    choices: list[Choice]
    whole: Whole | None
    plugin_nodes: list[PluginNode]
    notices: list[str]
    seconds: float


def build(
    model: str | Path,
    output: str | Path | None = None,
    options: BuildOptions | None = None,
    progress: Progress | None = None,
) -> BuildResult:
    """Build an engine from an ONNX file and write the plan (`<model>.plan` unless `output` is given) and its manifest, and
    where the precision is another than the model's, the converted model beside it (`<plan>.onnx`).

    progress is called with phase, step and number of steps. Raises ConvertError; then nothing has been written.
    """
    started = time.monotonic()
    options = options or BuildOptions()
    source = Path(model)
    plan = Path(output) if output is not None else source.with_suffix(".plan")
    proto = onnx_model.load(source)
    inputs = (source, *map(Path, options.plugins), *onnx_model.data_files(proto, source.parent))
    converts = bool(options.precision.name)
    check_outputs((plan, manifest.path_for(plan), *[manifest.converted_path(plan)] * converts), inputs)
    backend = select(options.backend)
    loaded = libraries.load_plugins(options.plugins, backend.name)
    targets = choose_targets(options, backend)
    onnx_model.check(proto, source)
    _check_wishes(options.wishes, proto)
    digest = onnx_model.sha256(source.read_bytes(), proto, source.parent)
    baked = bake.bake(proto, options.bake)
    profile, misfits = _profile(proto, source.parent, options)
    wanted = policy(options.fuse, options.patterns)
    conversion = _conversion(options, backend, proto, source.parent, profile, wanted)
    unmet = left_out.check(options.no_fuse, proto, source.parent, wanted.ops)
    maker = Maker(backend, options, source, targets, conversion)
    chosen = _choose(proto, wanted, maker, profile, progress)
    made = chosen.made or maker.make(proto, profile, progress)
    misfits = {
        point: f"the {point} sizes of the inputs do not go together: {reason}" for point, reason in made.unfit.items()
    } | misfits
    plugin_nodes, data = made.lowered.plugin_nodes, made.plan
    converted_notes = made.converted.notes if made.converted else []
    written = _converted_files(made, plan, source)
    described = Manifest(
        tool=f"trtconvert {trtconvert.__version__}",
        backend=backend.name,
        backend_version=backend.version,
        plan_sha256=hashlib.sha256(data).hexdigest(),
        plan_bytes=len(data),
        model=manifest.relative(source, plan),
        model_sha256=digest,
        fused_sha256=onnx_model.sha256(onnx_model.serialize(proto), proto, source.parent),
        patterns=[op.pattern for op in wanted.ops],
        fuse=options.fuse,
        fusions=[dataclasses.asdict(f) for f in chosen.fusions],
        choices=[dataclasses.asdict(c) for c in chosen.choices],
        whole_engine=dataclasses.asdict(chosen.whole) if chosen.whole else {},
        targets=list(targets),
        baked=bake.encode(baked),
        values=shapes.points(profile.values),
        profiles=[shapes.points(profile.ranges)],
        unfit=sorted(misfits),
        onnx_inputs=model_io(proto, "input"),
        onnx_outputs=model_io(proto, "output"),
        engine_inputs=made.inputs,
        engine_outputs=made.outputs,
        plugins=_plugin_uses(plugin_nodes),
        plugin_files=[manifest.relative(Path(f), plan) for f in options.plugins],
        precision=_precision(made, options, written),
        structure=_structure(made, options, source.parent),
        shape_tensors=list(made.shape_tensors),
        options={k: v for k, v in _builder_options(options).items() if v not in (None, False)},
    )
    write_files({**written, plan: data, manifest.path_for(plan): manifest.encode(described)})
    return BuildResult(
        plan,
        described,
        chosen.fusions,
        chosen.near_misses,
        chosen.choices,
        chosen.whole,
        plugin_nodes,
        [
            *loaded,
            *unmet,
            *converted_notes,
            *profile.notices,
            *misfits.values(),
            *made.lowered.notes,
            *made.notes,
            *chosen.notes,
        ],
        time.monotonic() - started,
    )


def _structure(made: Made, options: BuildOptions, folder: Path) -> dict[str, Any]:
    """What a later refit must find again; nothing for a plan whose weights are fixed."""
    refittable = options.refit or options.strip_weights
    return dataclasses.asdict(structure.of(made.lowered.model, folder)) if refittable else {}


def _conversion(
    options: BuildOptions,
    backend: Backend,
    proto: ModelProto,
    folder: Path,
    profile: shapes.Profile,
    wanted: Policy,
) -> Conversion | None:
    """What converts the model and all that is made from it, if it is to be converted. int8 is put into the model first."""
    custom = Custom.of(backend, options.wishes)
    if options.precision.name.startswith("int8"):
        quantized = Int8(options.precision, proto, folder, profile, custom, wanted.ops)
        proto.CopyFrom(quantized.source)
        return quantized
    if not options.precision.name:
        return None
    conversion = Conversion(options.precision, onnx_model.copy(proto), folder, profile, custom)
    conversion.check()
    return conversion


def _converted_files(made: Made, plan: Path, source: Path) -> dict[Path, bytes | Iterable[bytes]]:
    """The converted model's files, the model itself last; none if nothing was converted."""
    if made.converted is None:
        return {}
    model = onnx_model.copy(made.converted.model)
    add_bodies(model)  # of custom nodes that were not fused: onnxruntime is to run the file
    return onnx_model.files(model, manifest.converted_path(plan), source)


def _precision(
    made: Made, options: BuildOptions, written: Mapping[Path, bytes | Iterable[bytes]]
) -> manifest.Precision:
    asked, converted = options.precision, made.converted
    if converted is None:
        return manifest.Precision()
    path, data = list(written.items())[-1]
    assert isinstance(data, bytes)
    kept = [dataclasses.asdict(node) for node in converted.kept]
    digest = hashlib.sha256(data).hexdigest()
    return manifest.Precision(asked.name, asked.io, asked.caster, kept, converted.calibration, path.name, digest)


def _profile(proto: ModelProto, folder: Path, options: BuildOptions) -> tuple[shapes.Profile, dict[str, str]]:
    """Shapes and values of the inputs, checked against the model; the points at which they need not fit, and why."""
    given = {**shape_values.implied(proto, options.values), **options.shapes}
    found = shapes.profile(proto, given, lambda: sizes.propose(proto, folder, given, options.values))
    shape_values.check(proto, options.values, found.fixed)
    profile, misfits = fit.settle(proto, folder, dataclasses.replace(found, values=options.values))
    return profile, {misfit.point: str(misfit) for misfit in misfits}


def _check_wishes(asked: wishes.Wishes, proto: ModelProto) -> None:
    """ConvertError for what names nothing in the model, whose nodes have the names that messages give them."""
    if asked != wishes.Wishes():
        named = onnx_model.copy(proto)
        name_nodes(named)
        wishes.check(asked, named)


def _choose(
    proto: ModelProto, wanted: Policy, maker: Maker, profile: shapes.Profile, progress: Progress | None
) -> Chosen:
    """Fuse in place as wanted: what pays is measured where the engine can run here, else the shipped table says it."""
    folder, nodes = maker.source.parent, maker.options.no_fuse

    def chosen(judge: Judge) -> Chosen:
        return choose(proto, folder, wanted.ops, left_out.LeftOut(judge, nodes) if nodes else judge)

    if not wanted.ops:
        return Chosen()
    if wanted.forced:
        return chosen(Forced(maker.options.fuse))
    here, notes = gpu.current(), list[str]()
    if here is not None and maker.targets == (here.arch,):
        _preflight(proto, wanted, maker, profile)
        try:
            return chosen(Trials(proto, wanted.ops, maker, profile, progress))
        except NoUsableGpuError as error:
            notes.append(f"fusions were not measured here: {error.what}")
    dtype = maker.conversion.kind.dtype if maker.conversion is not None else ""
    table = Table(Surroundings(proto, folder, profile.ranges), maker.targets, dtype)
    return dataclasses.replace(chosen(table), notes=notes)


def _preflight(proto: ModelProto, wanted: Policy, maker: Maker, profile: shapes.Profile) -> None:
    """ConvertError, before anything is measured, if TensorRT can import the model neither as it is nor with everything fused."""
    refused = maker.refused(proto, profile)
    if refused is None:
        return
    fused = onnx_model.copy(proto)
    if not fuse_model(fused, maker.source.parent, wanted.ops).fusions or maker.refused(fused, profile) is not None:
        raise refused


def _plugin_uses(nodes: Sequence[PluginNode]) -> list[PluginUse]:
    uses = []
    for creator in dict.fromkeys(node.creator for node in nodes):
        names = [node.node for node in nodes if node.creator == creator]
        uses.append(_plugin_use(creator, names))
    return uses


def _plugin_use(creator: Creator, nodes: list[str]) -> PluginUse:
    file, op = Path(creator.library), creator.op
    data = file.read_bytes() if creator.library else b""
    if op is None:
        kind, provider = f"library {creator.interface}", file.name or "TensorRT"
        return PluginUse(*creator.key, kind, 0, provider, hashlib.sha256(data).hexdigest(), nodes)
    provider = op.__module__ if op.__module__.startswith("trtconvert.") else file.name
    digest = hashlib.sha256(data + op.source.encode()).hexdigest()
    return PluginUse(*creator.key, "IPluginV3", launch.FORMAT, provider, digest, nodes)


def _builder_options(options: BuildOptions) -> dict[str, Any]:
    wanted = {option: list(texts) for option, texts in options.wishes.told.items()}
    left = list(options.no_fuse) or None
    return {name: getattr(options, name) for name in BUILDER_OPTIONS} | {"wishes": wanted or None, "no_fuse": left}
