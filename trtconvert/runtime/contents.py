"""What a plan's own bytes say, without TensorRT: who built it, for which GPUs, whether it is whole, which plugins of ours it has.

The header is 64 bytes: a tag, the serialization version (uint32) at 4, the size of the whole plan (uint64) at 16 and the
TensorRT version, a byte a part, at 24. Source: trtexec's --getPlanVersionOnly for "ftrt" and the version; for "vtrt", the size
and the bits of the GPUs at 32, plans that TensorRT-RTX 1.7.1 built for one GPU after the other.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass

from trtconvert import launch
from trtconvert.backend import TITLES

HEADER_BYTES = 64
TENSORRT, COMPATIBLE = (
    b"ftrt",
    b"vtrt",
)  # of full TensorRT; of TensorRT-RTX and version-compatible plans of full TensorRT
_FIRST_TENSORRT = 8  # the oldest major version with this header; TensorRT-RTX counts from 1
GPUS = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_120", "sm_121")  # TensorRT-RTX's, by bit
_LAUNCH = re.compile(rb"%s (\d+)\n" % launch.MAGIC.encode())
_PLUGIN = re.compile(rb"%s \d+\nop [^\n]+\n(?:[^\n]*\n)*?end\n" % launch.MAGIC.encode())


@dataclass(frozen=True)
class Header:
    """backend: "rtx" or "tensorrt"; version: as its module gives it; size: of the whole plan in bytes, 0 where the header does
    not say; targets: GPUs, none where it does not say; version_compatible: whether later versions load it too."""

    backend: str
    version: str
    size: int = 0
    targets: tuple[str, ...] = ()
    version_compatible: bool = False

    @property
    def title(self) -> str:
        return f"{TITLES[self.backend]} {self.version}"


def header(plan: bytes) -> Header | None:
    """The plan's header; None if these bytes are no plan that is known here, or less than a header."""
    if len(plan) < HEADER_BYTES or plan[:4] not in (TENSORRT, COMPATIBLE) or plan[4:8] != b"\0\0\0\0":
        return None
    size, *parts = struct.unpack_from("<Q4B", plan, 16)
    version = ".".join(map(str, parts))
    if plan[:4] == TENSORRT:
        return Header("tensorrt", version)
    if parts[0] >= _FIRST_TENSORRT:
        return Header("tensorrt", version, size, version_compatible=True)
    (bits,) = struct.unpack_from("<I", plan, 32)
    known = bits < 1 << len(GPUS)
    return Header("rtx", version, size, tuple(gpu for i, gpu in enumerate(GPUS) if known and bits >> i & 1))


@dataclass(frozen=True)
class PluginInPlan:
    """A plugin layer as the plan's own bytes describe it."""

    name: str
    version: str
    namespace: str
    attributes: dict[str, str]
    kernel: str

    @property
    def key(self) -> tuple[str, str, str]:
        """Name, version and namespace."""
        return self.name, self.version, self.namespace


def plugins_in(plan: bytes) -> list[PluginInPlan]:
    """The trtconvert plugins in a plan, read from the launch descriptions that it carries. Needs no GPU.

    TensorRT serializes a layer more than once, so the same one may appear again.
    """
    found = []
    for match in _PLUGIN.finditer(plan):
        lines = [line.split(" ", 2) for line in match[0].decode(errors="replace").splitlines()]
        values = {line[0]: line[1:] for line in lines if line[0] in ("op", "kernel")}
        attributes = {line[1]: line[2] for line in lines if line[0] == "attribute" and len(line) == 3}
        name, version, namespace = (*" ".join(values["op"]).split(" "), "", "")[:3]
        found.append(PluginInPlan(name, version, namespace, attributes, " ".join(values.get("kernel", ("",)))))
    return found


def launch_format(plan: bytes) -> int:
    """The newest format number of the launch descriptions in a plan; 0 where there is none."""
    return max((int(match[1]) for match in _LAUNCH.finditer(plan)), default=0)
