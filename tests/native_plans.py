"""Plans of all cases of an op at once, built through the Python creators and through those of the C++ library."""

from __future__ import annotations

import re
from pathlib import Path
from unittest.mock import patch

import onnx
import onnx.compose
from onnx import ModelProto

from trtconvert import backend, carried, check, native, registration
from trtconvert.lower import Lowered
from trtconvert.model import serialize
from trtconvert.network import BuildOptions, Maker, Network
from trtconvert.op import Op
from trtconvert.shapes import Profile, Range

TARGETS = ("sm_86",)


def all_cases(op: type[Op], dtype: str) -> tuple[ModelProto, Profile]:
    """A model with a node for each of the op's cases, the first input's first axis open, and its profile."""
    joint: ModelProto | None = None
    ranges: dict[str, Range] = {}
    for index, tested in enumerate(op.cases):
        model = onnx.compose.add_prefix(check.node_model(op, tested, dtype), f"c{index}_")
        for value, shape in zip(model.graph.input, tested.shapes, strict=True):
            if any(dim.dim_param for dim in value.type.tensor_type.shape.dim):
                ranges[value.name] = Range((min(1, shape[0]), *shape[1:]), shape, shape)
        for value in (*model.graph.input, *model.graph.output):
            for dim in value.type.tensor_type.shape.dim:
                if dim.dim_param:  # one name, one size
                    dim.dim_param = f"c{index}_{dim.dim_param}"
        if joint is None:
            joint = model
            continue
        for part in ("node", "input", "output", "initializer"):
            getattr(joint.graph, part).extend(getattr(model.graph, part))
    assert joint is not None
    return joint, Profile(ranges)


def plans(model: ModelProto, profile: Profile, folder: Path) -> tuple[bytes, bytes, Lowered]:
    """The plan by the Python creators, that by the C++ creators, and the model that these got."""
    rtx = backend.select("rtx")
    path = folder / "model.onnx"
    path.write_bytes(serialize(model))
    options = BuildOptions(targets=TARGETS, fuse="none")
    lowered = Maker(rtx, options, path, TARGETS).lowered(model, profile)
    assert not lowered.faults
    with patch("trtconvert.network._images", lambda targets: targets):  # PTX takes as long to compile again
        python = Network(rtx, options, lowered, path, TARGETS)
        first = python.build(profile, None)
    carrying = carried.carry(lowered, python.network, TARGETS, str(native.library()))
    registration.use_native(rtx)
    try:
        second = Network(rtx, options, carrying, path, TARGETS).build(profile, None)
    finally:
        registration.use_python(rtx)
    return first, second, carrying


NAME = rb"(launch|(?:sm|compute)_\d+)"
# How TensorRT-RTX 1.7.1 writes a plugin field, once for the network and once for the run time: name, length, its type in
# words, perhaps the length again, length, value; and name, 0, its type as a number, length, value.
WRITTEN = (
    NAME + rb"\x07\x80\x01\0.{30}(?:CHAR.{12}|INT8).{6}(.{4}).{4}",
    NAME + rb"\0[\x03\x06]\0\0\0(.{4})",
)


def fields_in(plan: bytes) -> list[tuple[str, bytes]]:
    """Name and value of each plugin field in a plan, in order."""
    found = []
    for pattern in WRITTEN:
        for match in re.finditer(pattern, plan, re.DOTALL):
            size = int.from_bytes(match[2], "little")
            found.append((match[1].decode(), plan[match.end() : match.end() + size]))
    return found
