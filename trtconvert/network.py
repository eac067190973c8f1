"""TensorRT's side of a build: the model parsed and checked, the builder configured, the engine serialized."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnx import ModelProto

from trtconvert import adapter, gpu, registration, shapes
from trtconvert import model as onnx_model
from trtconvert.backend import RTX_EXTRA_TARGETS, RTX_TARGETS, Backend, logger, supports
from trtconvert.custom_ops import formats
from trtconvert.custom_ops.custom import Custom, PluginNode
from trtconvert.diagnosis import contract, importable
from trtconvert.diagnosis.faults import refusal
from trtconvert.diagnosis.notices import notices
from trtconvert.diagnosis.tensorrt_log import explain, parser_faults, plain
from trtconvert.errors import ConvertError
from trtconvert.files import write_file
from trtconvert.lower import Lowered, lower
from trtconvert.lowering import squeezes
from trtconvert.manifest import IO
from trtconvert.monitor import Progress, monitor
from trtconvert.options import BuildOptions
from trtconvert.precision.convert import Conversion, Converted
from trtconvert.profiles import conditions, optimization_profile, shape_values

if TYPE_CHECKING:
    from trtconvert.backend import types

_STATIC = shapes.Profile({})


@dataclass(frozen=True)
class Made:
    """A model as an engine: how it was lowered, the network's inputs and outputs, the plan, and notes on the profile.

    unfit: "min" or "max" where TensorRT found sizes that do not go together, and what it said of them. converted: the model in
    the precision of the engine, None where that is the source's. shape_tensors: the inputs whose values decide shapes.
    """

    lowered: Lowered
    inputs: list[IO]
    outputs: list[IO]
    plan: bytes
    notes: list[str]
    unfit: dict[str, str]
    converted: Converted | None = None
    shape_tensors: tuple[str, ...] = ()


@dataclass(frozen=True)
class Maker:
    """Makes engines of models with the same options. source: the file whose folder holds the models' external data.

    conversion: to the precision of the engine, applied to every model.
    """

    backend: Backend
    options: BuildOptions
    source: Path
    targets: tuple[str, ...]
    conversion: Conversion | None = None

    def lowered(self, model: ModelProto, profile: shapes.Profile) -> Lowered:
        """The model as the parser is given it, in the precision that it has."""
        custom = Custom.of(self.backend, self.options.wishes)
        lowered = lower(model, self.source.parent, supports(self.backend), profile.fixed, True, custom)
        shapes.fix(lowered.model, profile)
        squeezes.settle(lowered.model, self.source.parent, profile.ranges)
        return lowered

    def serialized(self, lowered: Lowered, profile: shapes.Profile) -> bytes:
        """The plan of a lowered model, or of a part of one. ConvertError where TensorRT does not take it."""
        return Network(self.backend, self.options, lowered, self.source, self.targets).build(profile, None)

    def refused(self, model: ModelProto, profile: shapes.Profile = _STATIC) -> ConvertError | None:
        """What TensorRT cannot take of the model, all of it; None if it can be imported. Quick: nothing is built."""
        try:
            faults = importable.all_faults(self.lowered(model, profile), self.source, self.backend)
        except ConvertError as error:
            return error
        return refusal(self.backend.title, faults) if faults else None

    def make(
        self,
        model: ModelProto,
        profile: shapes.Profile = _STATIC,
        progress: Progress | None = None,
        interior: bool = False,
    ) -> Made:
        """Convert, lower, parse, check and build. interior: the model is cut out of another, so that its inputs and outputs
        have the precision of what is inside. ConvertError says what TensorRT cannot take."""
        converted = self.conversion.apply(model, profile, interior) if self.conversion is not None else None
        model = model if converted is None else converted.model
        lowered = self.lowered(model, profile)
        try:
            importable.require(lowered, self.source, self.backend)
            net = Network(self.backend, self.options, lowered, self.source, self.targets)
            lowered.notes.extend(notices(model, self.backend))
            plan = net.build(profile, progress)
            return Made(lowered, net.inputs, net.outputs, plan, net.notes, net.unfit, converted, net.shape_tensors)
        except shape_values.MissingValuesError:
            raise
        except ConvertError as error:
            advice = conditions.advice(lowered.model, self.source.parent, profile.ranges)
            if not advice:
                raise
            raise ConvertError(
                error.what, where=error.where, fix=f"{error.fix}\n  or: {advice}" if error.fix else advice
            ) from error


def images_of(targets: tuple[str, ...]) -> tuple[str, ...]:
    """What plugins are compiled for: the targets, and PTX of the newest."""
    return (*targets, max(targets, key=gpu.arch_number).replace("sm_", "compute_"))


class Network:
    """The model parsed and checked, ready to build. Keeps the TensorRT objects that depend on each other alive."""

    def __init__(
        self,
        backend: Backend,
        options: BuildOptions,
        lowered: Lowered,
        source: Path,
        targets: tuple[str, ...],
        alone: bool = False,
    ) -> None:
        self.lowered, self.source, self.alone = lowered, source, alone
        self.backend, self.options, self.targets = backend, options, targets
        self.model, self.hint = lowered.model, _hint(lowered.plugin_nodes)
        self.logger, self.log = logger(backend, options.verbose)
        _refuse_unsupported(options, backend)
        self.builder: types.Builder = backend.trt.Builder(self.logger)
        if not self.builder:
            raise ConvertError(f"{backend.title} does not start: {self.log.cause()}")
        self.network: types.INetworkDefinition = self.builder.create_network(backend.network_flags())
        with registration.parsing, adapter.building(images_of(targets)):
            self.parser: types.OnnxParser = importable.make_parser(
                backend, self.network, self.logger, lowered.plugin_nodes
            )
            parsed = self.parser.parse(onnx_model.serialize(self.model), str(source.resolve()))
            adapter.raise_failure()
        if not parsed:
            raise self._refused(lowered, source)
        _check_plugins(self.network, backend.trt, lowered.plugin_nodes)
        self.inputs = [self._io(self.network.get_input(i)) for i in range(self.network.num_inputs)]
        self.outputs = [self._io(self.network.get_output(i)) for i in range(self.network.num_outputs)]
        contract.check(self.model, self.inputs, self.outputs, backend.title)

    def _io(self, tensor: types.ITensor) -> IO:
        return IO(tensor.name, adapter.dtype_name(tensor.dtype), [*adapter.sizes(tensor.shape)])

    def _refused(self, lowered: Lowered, source: Path) -> ConvertError:
        """Every node that the parser refuses, where it can name them, else its first words."""
        told = importable.ask(lowered, source, self.backend) or parser_faults(self.parser, self.backend.title)
        if told:
            return refusal(self.backend.title, shape_values.with_bake(told, lowered.model), self.hint)
        return ConvertError(f"{self.backend.title} cannot import the model: {plain(self.log.cause())}")

    def _other_targets(self) -> str:
        if not self.backend.is_rtx or set(self.targets) <= {*RTX_TARGETS, *RTX_EXTRA_TARGETS}:
            return ""
        return f"; TensorRT-RTX does not list {', '.join(self.targets)}: build for other GPUs with --target all"

    def build(self, profile: shapes.Profile, progress: Progress | None) -> bytes:
        """The serialized engine."""
        shape_tensors = [io for i, io in enumerate(self.inputs) if self.network.get_input(i).is_shape_tensor]
        self.shape_tensors = tuple(io.name for io in shape_tensors)
        self.notes = shape_values.require(shape_tensors, profile.values)
        config = self.builder.create_builder_config()
        cache = _configure(config, self.backend, self.options, self.targets)
        optimization_profile.add(self.builder, config, self.backend, self.log, profile, self.inputs, shape_tensors)
        if progress is not None:
            config.progress_monitor = self.monitor = monitor(self.backend, progress)
        with adapter.building(images_of(self.targets)):
            plan = self.builder.build_serialized_network(self.network, config)
            adapter.raise_failure()
            if plan is None:
                self._explain_types()
                found = explain(self.log.errors, self.log.warnings, self.model)
                hint = self.hint + shape_values.bake_hint(io.name for io in shape_tensors)
                raise ConvertError(
                    f"{self.backend.title} could not build the engine: {found.what}",
                    where=found.where or None,
                    fix=f"{hint}{found.fix or 'run again with -v for the whole log of TensorRT'}{self._other_targets()}",
                )
        if cache is not None and self.options.timing_cache is not None:
            write_file(self.options.timing_cache, bytes(cache.serialize()))
        self.unfit = optimization_profile.unfit(self.log.warnings)
        return bytes(plan)

    def _explain_types(self) -> None:
        """Raise a ConvertError if plugins refuse the types of their inputs."""
        if self.alone:
            return
        layers = formats.layers_of(self.lowered.plugin_nodes, self.network)
        if faults := list(formats.refusals(self.model, layers, self._builds)):
            raise refusal(self.backend.title, faults)

    def _builds(self, model: ModelProto, node: PluginNode) -> bool:
        lowered = Lowered(model, [node], [])
        try:
            Network(self.backend, BuildOptions(), lowered, self.source, self.targets[:1], alone=True).build(
                _STATIC, None
            )
        except ConvertError:
            return False
        return True


def _hint(nodes: Sequence[PluginNode]) -> str:
    """What helps where shapes depend on the data, which the builder does not combine at will."""
    found = [f"{node.node} ({node.op.name})" for node in nodes if node.op is not None and node.op.counts()]
    if not found:
        return ""
    return (
        f"if it is about shapes: they depend on the data behind {', '.join(found)}, and TensorRT takes few ops on such; "
        "write x[mask] = v as torch.where(mask, v, x), and how many a mask selects as the size of what it selects; "
    )


def _check_plugins(network: types.INetworkDefinition, trt: Any, nodes: Sequence[PluginNode]) -> None:
    """Every node that should be a plugin is one; the parser may take a function body or a standard op instead."""
    layers = [network.get_layer(i) for i in range(network.num_layers)]
    plugins = {layer.name for layer in layers if layer.type == trt.LayerType.PLUGIN_V3}
    missing = [node for node in nodes if not any(node.is_layer(name) for name in plugins)]
    if missing:
        names = ", ".join(f"{node.node} ({node.creator.name})" for node in missing)
        raise ConvertError(f"TensorRT's parser did not import these nodes as plugins: {names}", fix="report this model")


def _refuse_unsupported(options: BuildOptions, backend: Backend) -> None:
    if not backend.is_rtx:
        return
    for name, why in (
        ("version_compatible", "a TensorRT-RTX plan needs the TensorRT-RTX version that built it"),
        ("hardware_compatible", "TensorRT-RTX plans name their GPUs: use --target"),
        ("timing_cache", "TensorRT-RTX has no timing cache: it does not time tactics when it builds"),
    ):
        if getattr(options, name):
            flag = "--" + name.replace("_", "-")
            raise ConvertError(
                f"{backend.title} has no {flag}: {why}", fix=f"leave {flag} out, or use --backend tensorrt"
            )
    for name in ("refit", "strip_weights"):
        if getattr(options, name) and gpu.current() is None:
            flag = "--" + name.replace("_", "-")
            raise ConvertError(f"{backend.title} needs a GPU for {flag}", fix=f"leave {flag} out, or build on a GPU")


def _configure(config: types.IBuilderConfig, backend: Backend, options: BuildOptions, targets: tuple[str, ...]) -> Any:
    """Set the builder's options; returns the timing cache if one is used."""
    trt = backend.trt
    flags = {"refit": "REFIT", "strip_weights": "STRIP_PLAN", "version_compatible": "VERSION_COMPATIBLE"}
    for name, flag in flags.items():
        if getattr(options, name):
            config.set_flag(getattr(trt.BuilderFlag, flag))
    if options.opt_level is not None:
        config.builder_optimization_level = options.opt_level
    if options.workspace is not None:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, options.workspace)
    if options.hardware_compatible:
        config.hardware_compatibility_level = trt.HardwareCompatibilityLevel.AMPERE_PLUS
    if backend.is_rtx:
        _set_targets(config, trt, targets)
        return None
    if options.timing_cache is None:
        return None
    data = options.timing_cache.read_bytes() if options.timing_cache.is_file() else b""
    cache = config.create_timing_cache(data)
    if cache is None or not config.set_timing_cache(cache, ignore_mismatch=False):
        raise ConvertError("the timing cache is damaged or of another TensorRT", where=str(options.timing_cache))
    return cache


def _set_targets(config: Any, trt: Any, targets: tuple[str, ...]) -> None:
    here = gpu.current()
    if here is not None and targets == (here.arch,):
        config.num_compute_capabilities = 1
        config.set_compute_capability(trt.ComputeCapability.CURRENT, 0)
        return
    config.num_compute_capabilities = len(targets)
    for index, target in enumerate(targets):
        config.set_compute_capability(getattr(trt.ComputeCapability, target.replace("_", "").upper()), index)
