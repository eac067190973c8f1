"""What a build made, made again from its manifest: its options, the model that was lowered, and what makes engines of it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from onnx import ModelProto

from trtconvert import model as onnx_model
from trtconvert import registry
from trtconvert.backend import select
from trtconvert.custom_ops import libraries, wishes
from trtconvert.errors import ConvertError
from trtconvert.fuse import fuse_model
from trtconvert.lower import Lowered
from trtconvert.manifest import Manifest
from trtconvert.network import Maker
from trtconvert.options import BuildOptions
from trtconvert.profiles.bake import bake, decode
from trtconvert.shapes import Profile, Range

# Of BuildOptions, what the manifest has under these names.
BUILDER_OPTIONS = ("opt_level", "workspace", "refit", "strip_weights", "version_compatible", "hardware_compatible")


@dataclass(frozen=True)
class Remade:
    """source: the model with its inputs baked. ready: the same fused, and converted if the plan's precision is another.
    maker: makes engines of `ready` and its parts as the build did; its weights stay in the plan."""

    source: ModelProto
    ready: ModelProto
    maker: Maker
    profile: Profile

    def lowered(self) -> Lowered:
        """`ready` as the parser is given it."""
        return self.maker.lowered(self.ready, self.profile)


def remake(described: Manifest, plan: Path) -> Remade:
    """From the model that the manifest names. ConvertError if it is not there, or has changed since the build."""
    source = plan.parent / described.model
    model, converted = source_model(described, plan), converted_model(described, plan)
    ready = converted if converted is not None else onnx_model.copy(model)
    if converted is None:
        fuse_again(described, ready, source.parent)
    file = source if converted is None else plan.with_name(described.precision.file)
    return Remade(model, ready, maker(described, file), profile(described))


def source_model(described: Manifest, plan: Path) -> ModelProto:
    """The model that the manifest names, with its inputs baked and the plugins that it needs loaded. ConvertError if it is not
    there, or has changed since the build."""
    source = plan.parent / described.model
    libraries.load_plugins((plan.parent / file for file in described.plugin_files), described.backend)
    model = onnx_model.load(source)
    if onnx_model.sha256(source.read_bytes(), model, source.parent) != described.model_sha256:
        raise ConvertError(
            "the source model has changed since the plan was built", where=str(source), fix="build the plan again"
        )
    bake(model, decode(described.baked))
    return model


def converted_model(described: Manifest, plan: Path) -> ModelProto | None:
    """The model in the engine's precision, which lies beside the plan; None if it was not converted. ConvertError as above."""
    if not described.precision.file:
        return None
    file = plan.with_name(described.precision.file)
    model = onnx_model.load(file)
    if hashlib.sha256(file.read_bytes()).hexdigest() != described.precision.sha256:
        raise ConvertError(
            "the converted model has changed since the plan was built", where=str(file), fix="build the plan again"
        )
    return model


def fuse_again(described: Manifest, model: ModelProto, folder: Path) -> None:
    """Make the fusions that the build kept, in place."""
    if not described.patterns:
        return
    kept = {(choice["op"], choice["output"]) for choice in described.choices if choice["kept"]}
    ops = registry.by_pattern(tuple(described.patterns))
    fuse_model(model, folder, ops, lambda key: not described.choices or key in kept)


def maker(described: Manifest, source: Path) -> Maker:
    """With the build's options, for models whose external data lies beside `source`, in the precision that they have."""
    given = {
        name: value for name, value in described.options.items() if name in BUILDER_OPTIONS and name != "strip_weights"
    }
    asked = wishes.told(described.options.get("wishes", {}))
    options = BuildOptions(wishes=asked, targets=tuple(described.targets), backend=described.backend, **given)
    return Maker(select(described.backend), options, source, tuple(described.targets))


def profile(described: Manifest) -> Profile:
    """The ranges that the engine was built for."""
    return Profile(_ranges(described.profile), values=_ranges(described.values))


def _ranges(points: Mapping[str, Mapping[str, Sequence[int]]]) -> dict[str, Range]:
    return {name: Range(*(tuple(given[point]) for point in ("min", "opt", "max"))) for name, given in points.items()}
