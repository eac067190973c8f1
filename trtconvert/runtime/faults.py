"""Why a plan does not load, each fault in a sentence with its fix: from its bytes and manifest, from the plugins at hand, from
TensorRT's log."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from trtconvert import gpu, launch, surroundings
from trtconvert.backend import Backend, Log, installed
from trtconvert.custom_ops.creators import Creator
from trtconvert.diagnosis import tensorrt_log
from trtconvert.errors import ConvertError, NoUsableGpuError
from trtconvert.manifest import Manifest
from trtconvert.runtime.contents import (
    COMPATIBLE,
    GPUS,
    HEADER_BYTES,
    TENSORRT,
    Header,
    header,
    launch_format,
    plugins_in,
)

Key = tuple[str, str, str]
_WITHOUT_MANIFEST = "copy plan and manifest together again, or remove the manifest: the plan loads without it"
_MISSING = re.compile(
    r"(?:Cannot find|could not find) plugin:? ([^,\s]+),? version:? ([^,\s]+),?(?: namespace:? ?([^.,\s]*))?"
)
# TensorRT's words, and what they mean: seen with TensorRT-RTX 1.6.1 and 1.7.1, those of TensorRT 8 to 10 in public reports.
_LOG: tuple[tuple[str, type[ConvertError], str, str], ...] = (
    (
        r"PluginCreator\w* not found",
        ConvertError,
        "the plan needs a plugin that is not registered here, and TensorRT does not name it",
        "load it with its manifest beside it, which names the plugins, or load the library of its plugins first",
    ),
    (
        r"cannot run on this GPU|incompatible device|[Cc]ompute capability",
        NoUsableGpuError,
        "the engine cannot run on this GPU ({gpu}): {cause}",
        "build with --target {arch}, if {title} supports it",
    ),
    (
        r"header\.size == blobSize|cursor < blobSize|empty memory buffer",
        ConvertError,
        "the plan is cut off or damaged: {cause}",
        "copy the plan again",
    ),
    (
        r"[Vv]ersion tag does not match|[Mm]agic ?[Tt]ag|expecting library version|[Ss]erialization.*version|"
        r"incompatible.*version|same version of TensorRT",
        ConvertError,
        "the plan was built by another TensorRT; running here: {title} ({loaded})",
        "build it again with the TensorRT that runs it, or run it where it was built",
    ),
    (
        r"cudaError 35",
        NoUsableGpuError,
        "the NVIDIA driver is missing, or older than TensorRT's CUDA",
        "run this on a machine with an NVIDIA GPU and a driver that is new enough",
    ),
    (
        r"(?i)out of memory|OutOfMemory",
        ConvertError,
        "the GPU's memory does not hold the engine: {cause}",
        "free GPU memory, or build with smaller maximum shapes",
    ),
)


# --- what bytes and manifest say, before TensorRT ------------------------------------------------------------------


def check_plan(plan: bytes, described: Manifest | None, path: Path, backend: str = "auto") -> str:
    """The backend that loads the plan. ConvertError where the plan is at fault, or of another backend than the one asked for or
    installed. Needs neither TensorRT nor a GPU."""
    of = check_contents(plan, described, path)
    title = built_by(header(plan), described)
    if backend not in ("auto", of):
        raise ConvertError(
            f"backend {backend} was asked for, and the plan was built by {title}",
            where=str(path),
            fix=f"leave the backend out, or build the model again with --backend {backend}",
        )
    return check_backend(of, title, path)


def check_contents(plan: bytes, described: Manifest | None, path: Path) -> str:
    """The backend that built the plan. ConvertError where the plan is none, cut off, has plugins of a newer format, or is not
    what its manifest says."""
    found = header(plan)
    if found is not None:
        _check_header(found, len(plan), described, path)
    elif described is None:
        if plan[:4] in (TENSORRT, COMPATIBLE) and len(plan) >= HEADER_BYTES:
            raise ConvertError(
                "the plan's header is damaged, or of a TensorRT that this trtconvert does not know",
                where=str(path),
                fix="copy the plan again, or upgrade trtconvert",
            )
        raise ConvertError(
            f"no TensorRT plan: it begins with {plan[:4]!r}, {len(plan)} bytes in all" if plan else "the file is empty",
            where=str(path),
            fix="give a plan, as trtconvert build or trtexec --saveEngine writes it, and copy it in binary",
        )
    _check_formats(plan, described, path)
    if described is None:
        assert found is not None
        return found.backend
    _check_plugins_told(plan, described, path)
    return described.backend


def check_backend(name: str, title: str, path: Path) -> str:
    """The backend itself; ConvertError where it is not installed."""
    if not installed(name):
        raise ConvertError(
            f"the plan was built by {title}, and no {title.split(' ')[0]} is installed here",
            where=str(path),
            fix=f"load it where {title} is, or build the model again with the TensorRT that is here",
        )
    return name


def built_by(found: Header | None, described: Manifest | None) -> str:
    """The TensorRT that built the plan, with its version."""
    return found.title if found is not None else described.backend_title if described is not None else "TensorRT"


def _check_header(found: Header, size: int, described: Manifest | None, path: Path) -> None:
    if found.size > size:
        raise ConvertError(
            f"the plan is cut off: {size} bytes of {found.size}", where=str(path), fix="copy the plan again"
        )
    if described is None:
        return
    if described.backend != found.backend or not _same(described.backend_version, found.version, 3):
        raise ConvertError(
            f"the manifest says {described.backend_title}, the plan itself says {found.title}",
            where=str(path),
            fix=_WITHOUT_MANIFEST,
        )
    if found.targets and set(described.targets) <= set(GPUS) and set(found.targets) != set(described.targets):
        raise ConvertError(
            f"the manifest says {', '.join(described.targets)}, the plan itself was built for {', '.join(found.targets)}",
            where=str(path),
            fix=_WITHOUT_MANIFEST,
        )


def _check_formats(plan: bytes, described: Manifest | None, path: Path) -> None:
    told = max((p.fields_format for p in described.plugins), default=0) if described is not None else 0
    newest = max(launch_format(plan), told)
    if newest > launch.FORMAT:
        raise launch.too_new(newest, str(path))


def _check_plugins_told(plan: bytes, described: Manifest, path: Path) -> None:
    ours = {p.key for p in plugins_in(plan)}
    told = {(p.name, p.version, p.namespace) for p in described.plugins if p.kind == "IPluginV3"}
    if ours - told:  # the other way round is no fault: TensorRT drops layers that nothing reads
        raise ConvertError(
            f"the manifest lists the plugins {_list(told)}, the plan itself holds {_list(ours)}",
            where=str(path),
            fix=_WITHOUT_MANIFEST,
        )


def check_version(found: Header | None, described: Manifest | None, backend: Backend, path: Path) -> None:
    """ConvertError if this version of TensorRT is not the one that the plan wants."""
    wanted = found.version if found is not None else described.backend_version if described is not None else ""
    parts = 4 if backend.is_rtx else 2  # of full TensorRT a patch more or less may do; it says so itself
    if _same(wanted, backend.version, parts) or (found is not None and found.version_compatible):
        return
    package = "tensorrt-rtx" if backend.is_rtx else "tensorrt"
    title = backend.title.split(" ")[0]
    raise ConvertError(
        f"the plan was built with {title} {wanted}, this machine has {backend.version}",
        where=str(path),
        fix=f"pip install {package}=={wanted}, or build the plan again",
    )


def _same(version: str, other: str, parts: int) -> bool:
    return version.split(".")[:parts] == other.split(".")[:parts]


def check_gpu(described: Manifest | None, backend: Backend, path: Path) -> None:
    """NoUsableGpuError where there is no GPU, or none that a plan of TensorRT-RTX was built for; without a manifest TensorRT
    says that."""
    here = gpu.require()
    targets = described.targets if described is not None else []
    if backend.is_rtx and targets and here.arch not in targets:
        raise NoUsableGpuError(
            f"the plan was built for {', '.join(targets)}, and this GPU is {here.arch} ({here.name})",
            where=str(path),
            fix=f"build it again with --target {','.join((*targets, here.arch))}, if {backend.title} supports that",
        )


# --- plugins -------------------------------------------------------------------------------------------------------


def check_plugins(wanted: Iterable[tuple[Key, str]], there: Sequence[Creator], path: Path) -> None:
    """ConvertError for the first plugin that has no creator among those `there`. wanted: key, and the file that brought it."""
    for key, provider in wanted:
        if key not in {creator.key for creator in there}:
            raise missing_plugin(key, there, path, provider)


def missing_plugin(key: Key, there: Sequence[Creator], path: Path, provider: str = "") -> ConvertError:
    """What to bring for this plugin: it is missing, or there in another version or namespace only."""
    name, version, namespace = key
    others = [creator for creator in there if creator.name == name]
    source = f" It came from {provider}." if provider else ""
    title = Creator(*key, "", ()).title
    if not others:
        what = f"the plan needs plugin {title}, and no creator of that name is registered.{source}"
        fix = f"load {provider or 'the library that has it'} first, or give it to build with --plugin"
    elif any(creator.version == version for creator in others):
        spaces = ", ".join(repr(creator.namespace) for creator in others)
        what = (
            f"the plan needs plugin {title}; {name} is registered in namespace {spaces}, not in {namespace!r}.{source}"
        )
        fix = f"register the creator in namespace {namespace!r}, or build the plan again with the one that is here"
    else:
        versions = ", ".join(creator.version for creator in others)
        what = f"the plan needs plugin {title}; here {name} has version {versions}.{source}"
        fix = f"load the library that has version {version}, or build the plan again with the one that is here"
    return ConvertError(what.removesuffix("."), where=str(path), fix=fix)


def _list(keys: Iterable[Key]) -> str:
    return ", ".join(Creator(*key, "", ()).title for key in sorted(keys)) or "none"


# --- TensorRT's log ------------------------------------------------------------------------------------------------


def load_error(log: Log, backend: Backend, path: Path, there: Sequence[Creator] = ()) -> ConvertError:
    """Why TensorRT did not load the plan, as its log tells. there: the creators that are registered."""
    text = " ".join(log.errors)
    if missing := _MISSING.search(text):
        name, version, namespace = missing.groups()
        return missing_plugin((name, version, namespace or ""), there, path)
    here = gpu.current()
    words = {
        "gpu": f"{here.name}, {here.arch}" if here is not None else "none",
        "arch": here.arch if here is not None else "current",
        "title": backend.title,
        "loaded": ", ".join(map(str, surroundings.loaded().values())) or "library unknown",
        "cause": tensorrt_log.plain(log.cause()),
    }
    for pattern, kind, what, fix in _LOG:
        if re.search(pattern, text):
            return kind(what.format(**words), where=str(path), fix=fix.format(**words))
    return ConvertError(f"{backend.title} cannot load the plan: {words['cause']}", where=str(path))
