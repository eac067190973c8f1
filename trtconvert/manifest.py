"""engine.plan.json beside the plan: what the engine was made from and what it needs, so that no command has to ask."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os.path
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from onnx import ModelProto

from trtconvert.backend import TITLES
from trtconvert.errors import ConvertError
from trtconvert.files import write_file
from trtconvert.graph import describe

# 2: fusions are chosen; 3: inputs may be baked; 4: the precision is converted. An older reader would verify another model
SCHEMA = 4
AS_IN_MODEL = "as in the model (strongly typed)"


@dataclass(frozen=True)
class IO:
    """An input or output: dtype as numpy names it, dims as int, name or -1."""

    name: str
    dtype: str
    shape: list[int | str | None] | None


def model_io(model: ModelProto, side: str) -> list[IO]:
    """The model's inputs (side "input"; weights are none) or outputs ("output")."""
    weights = {t.name for t in model.graph.initializer} if side == "input" else set()
    found = [(v.name, describe(v)) for v in getattr(model.graph, side) if v.name not in weights]
    return [IO(name, info.dtype, None if info.shape is None else list(info.shape)) for name, info in found]


@dataclass(frozen=True)
class PluginUse:
    """A creator that the plan needs, and where it came from."""

    name: str
    version: str
    namespace: str
    kind: str  # IPluginV3
    fields_format: int
    provider: str  # package, or path of the plugin file
    sha256: str  # of the provider's source
    nodes: list[str]


@dataclass(frozen=True)
class Precision:
    """The engine's precision, and the model that was converted to it.

    name: "fp16", "bf16", "fp32", or AS_IN_MODEL; then the rest is empty. io: of the float inputs and outputs. caster: what
    converted. kept: nodes that stayed in float32, each with node, op and reason. calibration: method, samples and digest of
    what measured their values. file: the converted model, beside the plan, and the sha256 of that file.
    """

    name: str = AS_IN_MODEL
    io: str = ""
    caster: str = ""
    kept: list[dict[str, str]] = field(default_factory=list)
    calibration: dict[str, Any] = field(default_factory=dict)
    file: str = ""
    sha256: str = ""


@dataclass(frozen=True)
class Manifest:
    """All that is known of a plan. Paths are relative to the plan's folder."""

    tool: str
    backend: str
    backend_version: str
    plan_sha256: str
    plan_bytes: int
    model: str
    model_sha256: str
    fused_sha256: str
    patterns: list[str]
    fusions: list[dict[str, Any]]
    targets: list[str]
    profiles: list[dict[str, dict[str, list[int]]]]
    onnx_inputs: list[IO]
    onnx_outputs: list[IO]
    engine_inputs: list[IO]
    engine_outputs: list[IO]
    plugins: list[PluginUse]
    plugin_files: list[str]
    precision: Precision
    options: dict[str, Any] = field(default_factory=dict)
    fuse: str = ""  # as --fuse said it
    values: dict[str, dict[str, list[int]]] = field(default_factory=dict)  # of shape tensors, as a profile
    unfit: list[str] = field(
        default_factory=list
    )  # points, "min" or "max", at which the inputs' sizes do not go together
    baked: dict[str, dict[str, Any]] = field(default_factory=dict)  # inputs made constants, see bake.encode
    choices: list[dict[str, Any]] = field(default_factory=list)  # choose.Choice of each fusion
    whole_engine: dict[str, Any] = field(default_factory=dict)  # choose.Whole, if it was measured
    structure: dict[str, Any] = field(
        default_factory=dict
    )  # refitting.structure.Structure, of a plan that can be refitted
    shape_tensors: list[str] | None = None  # inputs whose values TensorRT takes shapes from; None: not recorded
    verifications: list[dict[str, Any]] = field(default_factory=list)
    schema: int = SCHEMA

    @property
    def profile(self) -> dict[str, dict[str, list[int]]]:
        """The first profile: dynamic input to min, opt and max shape; empty where all shapes are static."""
        return self.profiles[0] if self.profiles else {}

    @property
    def backend_title(self) -> str:
        return f"{TITLES.get(self.backend, self.backend)} {self.backend_version}"


def path_for(plan: Path) -> Path:
    """Where the manifest of a plan lies."""
    return plan.with_name(plan.name + ".json")


def converted_path(plan: Path) -> Path:
    """Where the model lies that was converted to the plan's precision."""
    return plan.with_name(plan.name + ".onnx")


def relative(path: Path, plan: Path) -> str:
    """A path as the plan's manifest has it."""
    return Path(os.path.relpath(path.resolve(), plan.resolve().parent)).as_posix()


def is_plan(path: Path) -> bool:
    """Whether it is a plan, not a model: it has a manifest beside it, or is named .plan, .engine or .trt."""
    return path.suffix != ".onnx" and (path_for(path).is_file() or path.suffix in (".plan", ".engine", ".trt"))


def encode(manifest: Manifest) -> bytes:
    """The manifest as it stands in its file: JSON, UTF-8, sorted keys."""
    text = json.dumps(dataclasses.asdict(manifest), indent=2, sort_keys=True, ensure_ascii=False)
    return f"{text}\n".encode()


def write(manifest: Manifest, plan: Path) -> None:
    """Write it beside the plan."""
    write_file(path_for(plan), encode(manifest))


def read(plan: Path) -> Manifest:
    """The plan's manifest. ConvertError when it is missing, damaged, newer than this tool, or of another plan."""
    path = path_for(plan)
    if not plan.is_file():
        raise ConvertError("plan not found", where=str(plan), fix="check the path, or build it: trtconvert build MODEL")
    if not path.is_file():
        raise ConvertError(
            "the plan has no manifest beside it", where=str(path), fix="copy the .plan.json together with the .plan"
        )
    try:
        return decode(path.read_bytes(), str(path))
    except OSError as error:
        raise _unreadable(str(path), error) from error


def decode(text: bytes, where: str) -> Manifest:
    """A manifest's file read. ConvertError when it is damaged or newer than this tool; where: for the message."""
    try:
        data = json.loads(text.decode("utf-8"))
        schema = int(data["schema"])
        if schema > SCHEMA:
            raise ConvertError(
                f"the manifest has schema {schema}, this trtconvert reads up to {SCHEMA}",
                where=where,
                fix="upgrade trtconvert",
            )
        data |= {k: [IO(**io) for io in data[k]] for k in data if k.endswith(("_inputs", "_outputs"))}
        told = data["precision"]
        data["precision"] = Precision(told) if isinstance(told, str) else Precision(**told)
        data["plugins"] = [PluginUse(**plugin) for plugin in data["plugins"]]
        described = Manifest(**data)
        for name, wanted in get_type_hints(Manifest).items():
            if not _fits(getattr(described, name), wanted):
                raise TypeError(f"{name} is of another type than trtconvert writes")
        return described
    except (ValueError, KeyError, TypeError) as error:
        raise _unreadable(where, error) from error


def _fits(value: Any, wanted: Any) -> bool:
    """Whether a value is what its annotation says."""
    if isinstance(wanted, type) and dataclasses.is_dataclass(wanted):
        hints = get_type_hints(wanted)
        return isinstance(value, wanted) and all(_fits(getattr(value, name), hints[name]) for name in hints)
    inside = get_args(wanted)
    if get_origin(wanted) is list:
        return isinstance(value, list) and all(_fits(one, inside[0]) for one in value)
    if get_origin(wanted) is dict:
        return isinstance(value, dict) and all(_fits(one, inside[1]) for one in value.values())
    return wanted is Any or type(value) is wanted or any(_fits(value, one) for one in inside)


def _unreadable(where: str, error: Exception) -> ConvertError:
    return ConvertError(f"the manifest cannot be read: {error}", where=where, fix="build the plan again")


def read_plan(plan: Path) -> tuple[bytes, Manifest | None]:
    """A plan and its manifest, checked against each other; None if it has no manifest beside it."""
    if plan.is_file() and not path_for(plan).is_file():
        return _plan_bytes(plan), None
    described = read(plan)
    return check_plan(described, plan), described


def _plan_bytes(plan: Path) -> bytes:
    try:
        return plan.read_bytes()
    except OSError as error:
        raise ConvertError(
            f"the plan cannot be read: {error.strerror or error}",
            where=str(plan),
            fix="make it readable, or copy the plan again",
        ) from error


def check_plan(manifest: Manifest, plan: Path) -> bytes:
    """The plan's bytes, checked against the manifest's digest."""
    data = _plan_bytes(plan)
    if len(data) < manifest.plan_bytes:
        raise ConvertError(
            f"the plan is cut off: {len(data)} bytes of {manifest.plan_bytes}",
            where=str(plan),
            fix="copy the plan again",
        )
    if hashlib.sha256(data).hexdigest() != manifest.plan_sha256:
        raise ConvertError(
            f"the plan is not the one its manifest describes ({len(data)} bytes, expected {manifest.plan_bytes})",
            where=str(plan),
            fix="copy plan and manifest together again, or build again",
        )
    return data
