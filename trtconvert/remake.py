"""What a build made, made again from its manifest: its options, the model that was lowered, and what makes engines of it."""

from __future__ import annotations

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
from trtconvert.manifest import AS_IN_MODEL, Manifest
from trtconvert.network import BuildOptions, Maker
from trtconvert.profiles.bake import bake, decode
from trtconvert.shapes import Profile, Range

_KEPT = ("opt_level", "workspace", "refit", "strip_weights", "version_compatible", "hardware_compatible")


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
    libraries.load_plugins((plan.parent / file for file in described.plugin_files), described.backend)
    model = onnx_model.load(source)
    if onnx_model.sha256(source.read_bytes(), model, source.parent) != described.model_sha256:
        raise ConvertError(
            "the source model has changed since the plan was built", where=str(source), fix="build the plan again"
        )
    bake(model, decode(described.baked))
    ready, file = onnx_model.copy(model), source
    if described.precision.name != AS_IN_MODEL:
        file = plan.with_name(described.precision.file)
        ready = onnx_model.load(file)
    else:
        fuse_again(described, ready, source.parent)
    return Remade(model, ready, maker(described, file), profile(described))


def fuse_again(described: Manifest, model: ModelProto, folder: Path) -> None:
    """Make the fusions that the build kept, in place."""
    if not described.patterns:
        return
    kept = {(choice["op"], choice["output"]) for choice in described.choices if choice["kept"]}
    ops = registry.by_pattern(tuple(described.patterns))
    fuse_model(model, folder, ops, lambda key: not described.choices or key in kept)


def maker(described: Manifest, source: Path) -> Maker:
    """With the build's options, for models whose external data lies beside `source`, in the precision that they have."""
    given = {name: value for name, value in described.options.items() if name in _KEPT and name != "strip_weights"}
    asked = wishes.told(described.options.get("wishes", {}))
    options = BuildOptions(wishes=asked, targets=tuple(described.targets), backend=described.backend, **given)
    return Maker(select(described.backend), options, source, tuple(described.targets))


def profile(described: Manifest) -> Profile:
    """The ranges that the engine was built for."""
    return Profile(_ranges(described.profile), values=_ranges(described.values))


def _ranges(points: Mapping[str, Mapping[str, Sequence[int]]]) -> dict[str, Range]:
    return {name: Range(*(tuple(given[point]) for point in ("min", "opt", "max"))) for name, given in points.items()}
