"""The optimization profile of a build: what TensorRT is given, and what it says of it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from trtconvert.backend import Backend, Log
from trtconvert.errors import ConvertError
from trtconvert.manifest import IO
from trtconvert.shapes import Profile

if TYPE_CHECKING:
    from trtconvert.backend import types


def add(
    builder: types.Builder,
    config: types.IBuilderConfig,
    backend: Backend,
    log: Log,
    profile: Profile,
    inputs: Sequence[IO],
    shape_tensors: Sequence[IO],
) -> None:
    """Give TensorRT the ranges of the inputs that are dynamic in the network and the values of its shape tensors.

    ConvertError with the cause, and none of what TensorRT says in its wake.
    """
    dynamic = [io.name for io in inputs if -1 in (io.shape or ()) and io.name in profile.ranges]
    if not dynamic and not shape_tensors:
        return
    made = builder.create_optimization_profile()
    try:
        for name in dynamic:
            made.set_shape(name, *map(backend.trt.Dims, profile.ranges[name].points))
        for io in shape_tensors:
            made.set_shape_input(io.name, *map(list, profile.values[io.name].points))
    except (RuntimeError, TypeError, ValueError) as error:
        raise ConvertError(
            f"{backend.title} takes no such profile: {log.errors[0] if log.errors else error}"
        ) from error
    if config.add_optimization_profile(made) < 0:
        raise ConvertError(f"{backend.title} takes no such profile: {log.cause()}")


def unfit(warnings: Iterable[str]) -> dict[str, str]:
    """The points, "min" or "max", at which TensorRT found that the inputs' sizes do not go together, which is no error for it;
    and what it says of them."""
    found = (
        re.match(r"Profile k(MIN|MAX) values are not self-consistent\. (.*?)( Condition | In \w+ at |$)", warning)
        for warning in warnings
    )
    return {m[1].lower(): m[2].rstrip(". ") for m in found if m}
