"""What a build can be told, and the architectures that follow. Loads no TensorRT."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trtconvert import gpu
from trtconvert.backend import RTX_EXTRA_TARGETS, RTX_TARGETS, Backend
from trtconvert.custom_ops.wishes import Wishes
from trtconvert.errors import ConvertError
from trtconvert.precision.options import PrecisionOptions
from trtconvert.shapes import Range


@dataclass(frozen=True)
class BuildOptions:
    """What `trtconvert build` can be told.

    patterns, fuse: what to look for and how to decide, see choose.policy. no_fuse: nodes around which nothing is fused. shapes:
    input name to shapes.Range; values: the same for the values of shape tensors. bake: input name to the constant that it
    becomes, see bake.bake. targets: "sm_86", ..., "all" or "current"; none means the GPU here if there is one, else all.
    precision: of the engine, where it is not the model's. workspace: bytes. refit, strip_weights, version_compatible,
    hardware_compatible, timing_cache: TensorRT's builder options of those names; what the backend lacks is refused.
    """

    patterns: tuple[str, ...] = ()
    fuse: str = "auto"
    no_fuse: tuple[str, ...] = ()
    plugins: tuple[Path, ...] = ()
    shapes: Mapping[str, Range] = field(default_factory=dict)
    bake: Mapping[str, Any] = field(default_factory=dict)
    values: Mapping[str, Range] = field(default_factory=dict)
    targets: tuple[str, ...] = ()
    backend: str = "auto"
    wishes: Wishes = field(default_factory=Wishes)
    precision: PrecisionOptions = field(default_factory=PrecisionOptions)
    opt_level: int | None = None
    workspace: int | None = None
    timing_cache: Path | None = None
    refit: bool = False
    strip_weights: bool = False
    version_compatible: bool = False
    hardware_compatible: bool = False
    verbose: bool = False


def choose_targets(options: BuildOptions, backend: Backend) -> tuple[str, ...]:
    """Architectures to build for, cubins first, then PTX of the newest for GPUs that are newer still."""
    here = gpu.current()
    wanted = options.targets or (("current",) if here is not None else ("all",))
    known = (*RTX_EXTRA_TARGETS, *RTX_TARGETS)
    arches: list[str] = []
    for target in wanted:
        if target == "current":
            arches.append(gpu.require().arch)
        elif target == "all":
            arches += RTX_TARGETS
        elif target in known or (here is not None and target == here.arch):
            arches.append(target)
        else:
            raise ConvertError(
                f"unknown target {target!r}",
                fix=f"use one or more of {', '.join(known)}, all or current, such as --target sm_86,sm_89",
            )
    if not backend.is_rtx and (here is None or set(arches) != {here.arch}):
        raise ConvertError(
            f"{backend.title} builds only for the GPU of this machine"
            + (f" ({here.arch})" if here else ", and there is none"),
            fix="build on the GPU that will run the engine, or use --backend rtx, which builds ahead of time",
        )
    return tuple(dict.fromkeys(arches))
