"""What an engine's plugins gain: it and its twin of TensorRT's own layers, timed in turns on the same inputs."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from onnx import ModelProto

from trtconvert import adapter, gpu, manifest
from trtconvert import model as onnx_model
from trtconvert.bodies import add_bodies
from trtconvert.build import BuildResult, build
from trtconvert.custom_ops import libraries, wishes
from trtconvert.engine import Engine, load_engine
from trtconvert.errors import ConvertError
from trtconvert.inputs import random_feeds
from trtconvert.lowering import functions
from trtconvert.manifest import IO, Manifest
from trtconvert.options import BuildOptions
from trtconvert.profiles.bake import decode
from trtconvert.shapes import Range
from trtconvert.timing import LayerTime, Timing, layers, measure

PLUGINS, NATIVE = "plugins", "native"


@dataclass(frozen=True)
class Row:
    """One engine at one set of input shapes. speedup: the native engine's median over this one's, None if not both ran."""

    engine: str
    shapes: str
    timing: Timing
    speedup: float | None


@dataclass
class BenchResult:
    """machine: GPU and TensorRT. layers: layer times by engine and shapes, if asked for."""

    machine: str
    rows: list[Row] = field(default_factory=list)
    layers: dict[tuple[str, str], list[LayerTime]] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)


def bench(
    source: str | Path,
    options: BuildOptions | None = None,
    graphs: Sequence[bool] = (True, False),
    runs: int = 200,
    rounds: int = 5,
    by_layer: bool = False,
    seed: int = 0,
) -> BenchResult:
    """Time an engine with plugins and the native one, at the profile's min, opt and max shapes, on random inputs.

    source: an ONNX model, of which both are built as `options` say; or a plan, whose manifest names the model that its
    twin is built from. Of the options a plan takes the shapes alone: which to time. graphs: with a CUDA graph, without.
    Raises ConvertError; NoUsableGpuError without a GPU.
    """
    path, options = Path(source), options or BuildOptions()
    with tempfile.TemporaryDirectory(prefix="trtconvert") as folder:
        make = _of_plan if manifest.is_plan(path) else _of_model
        made = make(path, options, Path(folder))
        result = BenchResult(f"{gpu.require().name}, {next(iter(made.engines.values())).backend.title}")
        result.notices += made.notices
        for label, feeds in random_feeds(made.inputs, made.profile, seed, made.values, made.unfit):
            _measure(made.engines, label, feeds, graphs, (runs, rounds), result)
            if by_layer:
                result.layers |= {(name, label): layers(engine, feeds) for name, engine in made.engines.items()}
    result.notices = list(dict.fromkeys(result.notices))
    return result


def _measure(
    engines: Mapping[str, Engine],
    label: str,
    feeds: Mapping[str, NDArray[Any]],
    graphs: Sequence[bool],
    amount: tuple[int, int],
    result: BenchResult,
) -> None:
    for graph in graphs:
        try:
            timings = measure(engines, feeds, graph, *amount)
        except ConvertError as error:
            if not graph or len(graphs) == 1:
                raise
            result.notices.append(error.what)
            continue
        native = timings.get(NATIVE)
        for name, timing in timings.items():
            both = native is not None and len(timings) > 1
            result.rows.append(
                Row(name, label, timing, native.median_us / timing.median_us if native and both else None)
            )


# --- the two engines -----------------------------------------------------------------------------------------------


Profile = dict[str, dict[str, list[int]]]  # input to "min", "opt" and "max" shape


@dataclass
class _Engines:
    engines: dict[str, Engine]
    inputs: list[IO]
    profile: Profile
    notices: list[str]
    values: Profile = field(default_factory=dict)  # of shape tensors
    unfit: list[str] = field(default_factory=list)  # points at which they do not go together


def _of_model(source: Path, options: BuildOptions, folder: Path) -> _Engines:
    libraries.load_plugins(options.plugins, options.backend)
    proto = onnx_model.load(source)
    gpu.require()
    built = build(source, folder / "plugins.plan", options)
    described, engine, notices = built.manifest, load_engine(built.plan), list(built.notices)
    if not described.plugins:
        notices.append("the engine has no plugins: it is timed alone")
        return _Engines(
            {NATIVE: engine}, described.onnx_inputs, described.profile, notices, described.values, described.unfit
        )
    engines = {PLUGINS: engine} | _twin(proto, source, options, folder, notices)
    return _Engines(engines, described.onnx_inputs, described.profile, notices, described.values, described.unfit)


def _of_plan(plan: Path, options: BuildOptions, folder: Path) -> _Engines:
    _, described = manifest.read_plan(plan)
    gpu.require()
    engine, notices = load_engine(plan, options.backend), list[str]()
    if described is None:
        notices.append("no manifest beside the plan names its model: it is timed alone")
        return _Engines({PLUGINS: engine}, engine.inputs, _profile(_of_engine(engine), engine.inputs, options), notices)
    profile = _profile(described.profile, described.onnx_inputs, options)
    if not described.plugins:
        notices.append("the plan has no plugins: it is timed alone")
        return _Engines({NATIVE: engine}, described.onnx_inputs, profile, notices, described.values, described.unfit)
    engines = {PLUGINS: engine} | _twin_of_plan(described, plan, folder, notices)
    return _Engines(engines, described.onnx_inputs, profile, notices, described.values, described.unfit)


def _of_engine(engine: Engine) -> Profile:
    dynamic = [t.name for t in engine.inputs if -1 in (t.shape or ())]
    shapes = {name: engine.engine.get_tensor_profile_shape(name, 0) for name in dynamic}
    return {name: dict(zip(("min", "opt", "max"), map(adapter.sizes, s), strict=True)) for name, s in shapes.items()}


def _profile(profile: Profile, inputs: Sequence[IO], options: BuildOptions) -> Profile:
    """The plan's own shapes, or those that the options give for an input; the engine refuses what is outside its own."""
    for name, given in options.shapes.items():
        if name not in {io.name for io in inputs}:
            raise ConvertError(
                f"--shape names {name!r}, which is no input of the plan",
                fix=f"inputs: {', '.join(io.name for io in inputs)}",
            )
        profile = profile | {name: {point: list(shape) for point, shape in vars(given).items()}}
    return profile


def _twin_of_plan(described: Manifest, plan: Path, folder: Path, notices: list[str]) -> dict[str, Engine]:
    source = plan.parent / described.model
    try:
        proto = onnx_model.load(source)
    except ConvertError as error:
        notices.append(f"no native engine to compare with, {error.what}: {source}")
        return {}
    if onnx_model.sha256(source.read_bytes(), proto, source.parent) != described.model_sha256:
        notices.append(f"no native engine to compare with, the model has changed since the plan was built: {source}")
        return {}
    files = tuple(plan.parent / file for file in described.plugin_files)
    libraries.load_plugins(files, described.backend)
    options = BuildOptions(
        plugins=files,
        shapes=_ranges(described.profile),
        values=_ranges(described.values),
        bake=decode(described.baked),
        backend=described.backend,
        wishes=wishes.told(described.options.get("wishes", {})),
    )
    return _twin(proto, source, options, folder, notices)


def _ranges(profile: Profile) -> dict[str, Range]:
    return {name: Range(*(tuple(p[k]) for k in ("min", "opt", "max"))) for name, p in profile.items()}


def _twin(
    proto: ModelProto, source: Path, options: BuildOptions, folder: Path, notices: list[str]
) -> dict[str, Engine]:
    try:
        built = build_native(proto, source, options, folder)
    except ConvertError as error:
        notices.append(f"no native engine to compare with: {error.what}")
        return {}
    for plugin in built.manifest.plugins:
        notices.append(f"TensorRT has no layer of its own for {plugin.name}: the native engine holds that plugin too")
    return {NATIVE: load_engine(built.plan)}


def build_native(proto: ModelProto, source: Path, options: BuildOptions, folder: Path) -> BuildResult:
    """Build TensorRT's own layers of a model into `folder`: nothing is fused, and nodes of ours become what they stand for.

    proto: the model as loaded from `source`; it may be changed.
    """
    if any(node.domain not in onnx_model.STANDARD_DOMAINS for node in onnx_model.all_nodes(proto)):
        add_bodies(proto)
        standard = folder / "native.onnx"
        onnx_model.save(functions.inline_local(proto), standard, source)
        source = standard
    return build(source, folder / "native.plan", dataclasses.replace(options, fuse="none"))
