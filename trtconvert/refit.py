"""A plan with the weights of another model of the same structure, without building it again."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from onnx import ModelProto

from trtconvert import manifest
from trtconvert import model as onnx_model
from trtconvert.accuracy.results import VerifyResult
from trtconvert.backend import select
from trtconvert.custom_ops import libraries
from trtconvert.custom_ops.custom import Custom
from trtconvert.errors import ConvertError
from trtconvert.files import check_outputs, write_files
from trtconvert.manifest import AS_IN_MODEL, IO, Manifest, Precision, model_io
from trtconvert.precision.convert import Conversion, Converted
from trtconvert.precision.options import PrecisionOptions
from trtconvert.profiles.bake import bake, decode
from trtconvert.refitting.engine import listed, refit_engine
from trtconvert.refitting.structure import Structure, differences, of
from trtconvert.remake import fuse_again, maker, profile
from trtconvert.verify import verify

_SAME = "give a model of the same structure, or build a plan of this one"


@dataclass(frozen=True)
class RefitResult:
    """The plan with its new weights, how many the engine has, and what `verify` says of it, unless that was not asked."""

    plan: Path
    manifest: Manifest
    weights: int
    notices: list[str]
    verified: VerifyResult | None


@dataclass(frozen=True)
class _New:
    """The new model: digests, and what it became on its way to the engine."""

    proto: ModelProto
    sha256: str
    fused_sha256: str
    converted: Converted | None
    lowered: ModelProto


def refit(plan: str | Path, model: str | Path, output: str | Path | None = None, check: bool = True) -> RefitResult:
    """Give a plan that was built with `refit` or `strip_weights` the weights of another ONNX file, and write plan and manifest
    in its place, or to `output`.

    The model goes through the same fusing, conversion and lowering as the one that was built; its weights are those of the
    result. check: verify the new plan. ConvertError, before anything is written, says what keeps the model from it: another
    structure, weights that are missing or of another shape or dtype. NoUsableGpuError without a GPU.
    """
    path, source = Path(plan), Path(model)
    target = Path(output) if output is not None else path
    described = manifest.read(path)
    manifest.check_plan(described, path)
    built = _structure(described, path)
    proto = onnx_model.load(source)
    written = (target, manifest.path_for(target), *[manifest.converted_path(target)] * _converts(described))
    check_outputs(written, (source, *onnx_model.data_files(proto, source.parent)))
    onnx_model.check(proto, source)
    new = _prepare(described, path, proto, source)
    _require_same(described, built, new, source)
    made = refit_engine(select(described.backend), path, described, new.lowered, source)
    files, precision = _converted_files(described, new, target, source)
    renewed = dataclasses.replace(
        described,
        plan_sha256=hashlib.sha256(made.plan).hexdigest(),
        plan_bytes=len(made.plan),
        model=manifest.relative(source, target),
        model_sha256=new.sha256,
        fused_sha256=new.fused_sha256,
        plugin_files=[manifest.relative(path.parent / file, target) for file in described.plugin_files],
        precision=precision,
        structure=dataclasses.asdict(of(new.lowered, source.parent)),
        options={**{k: v for k, v in described.options.items() if k != "strip_weights"}, "refit": True},
        verifications=[],
    )
    write_files({**files, target: made.plan, manifest.path_for(target): manifest.encode(renewed)})
    verified = verify(target) if check else None
    return RefitResult(target, renewed, made.weights, made.notes, verified)


def _structure(described: Manifest, plan: Path) -> Structure:
    """Of the model that was built. ConvertError for plans that cannot be refitted."""
    name = described.precision.name
    if not (described.options.get("refit") or described.options.get("strip_weights")):
        raise ConvertError(
            "the plan's weights are fixed", where=str(plan), fix="build it with --refit or --strip-weights"
        )
    if name.startswith("int8"):
        raise ConvertError(
            f"the scales of a plan of precision {name} were measured with the weights that it has",
            where=str(plan),
            fix="build a plan of the new model",
        )
    if not described.structure:
        raise ConvertError(
            f"the manifest does not say what the plan was built from ({described.tool})",
            where=str(plan),
            fix="build the plan again",
        )
    return Structure.told(described.structure)


def _converts(described: Manifest) -> bool:
    return described.precision.name != AS_IN_MODEL


def _prepare(described: Manifest, plan: Path, proto: ModelProto, source: Path) -> _New:
    """The new model on the way that the old one took: baked, fused, converted, lowered."""
    libraries.load_plugins((plan.parent / file for file in described.plugin_files), described.backend)
    digest = onnx_model.sha256(source.read_bytes(), proto, source.parent)
    bake(proto, decode(described.baked))
    fused, ranges, made = onnx_model.copy(proto), profile(described), maker(described, source)
    fuse_again(described, fused, source.parent)
    fused_digest = onnx_model.sha256(onnx_model.serialize(fused), fused, source.parent)
    converted = None
    if _converts(described):
        asked = described.precision
        kept = tuple(node["node"] for node in asked.kept)
        options = PrecisionOptions(asked.name, asked.io, kept, asked.caster)
        custom = Custom.of(made.backend, made.options.wishes)
        converted = Conversion(options, proto, source.parent, ranges, custom).apply(fused, ranges)
    ready = fused if converted is None else converted.model
    return _New(proto, digest, fused_digest, converted, made.lowered(ready, ranges).model)


def _require_same(described: Manifest, built: Structure, new: _New, source: Path) -> None:
    """ConvertError that says in what the model differs from the one that was built."""
    found = [*_sides(described, new.proto), *differences(built, of(new.lowered, source.parent))]
    if found:
        count = f"{len(found)} difference{'s' * (len(found) > 1)}"
        raise ConvertError(
            f"the model is not of the structure that the plan was built from, {count}: {listed(found)}",
            where=str(source),
            fix=_SAME,
        )


def _sides(described: Manifest, proto: ModelProto) -> Iterator[str]:
    for side, built in (("input", described.onnx_inputs), ("output", described.onnx_outputs)):
        now = model_io(proto, side)
        if now != built:
            yield f"{side}s are {_io(now)}, they were {_io(built)}"


def _io(tensors: Sequence[IO]) -> str:
    return ", ".join(f"{io.name} {io.dtype} {io.shape}" for io in tensors)


def _converted_files(
    described: Manifest, new: _New, target: Path, source: Path
) -> tuple[dict[Path, bytes | Iterable[bytes]], Precision]:
    """The converted model's files and what the manifest says of them; the model itself is the last file."""
    if new.converted is None:
        return {}, described.precision
    files = onnx_model.files(new.converted.model, manifest.converted_path(target), source)
    path, data = list(files.items())[-1]
    assert isinstance(data, bytes)
    digest = hashlib.sha256(data).hexdigest()
    return files, dataclasses.replace(described.precision, file=path.name, sha256=digest)
