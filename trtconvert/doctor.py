"""What this machine can do: backends, compiler, GPU, driver, cache; and the fix for what is missing."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import metadata

from trtconvert import backend, gpu, kernel, native, surroundings
from trtconvert.errors import ConvertError
from trtconvert.files import cache_dir


@dataclass(frozen=True)
class Finding:
    """One line of the diagnosis. verdict: ok, missing or note."""

    what: str
    verdict: str
    found: str
    fix: str = ""


def examine() -> list[Finding]:
    """All findings; the last ones say what can be done here."""
    rtx, full = _backend("rtx"), _backend("tensorrt")
    compiler = _guard("NVRTC", lambda: f"{kernel.version()}, headers in {kernel.include_dir()}")
    here = gpu.find()
    device = (
        Finding("GPU", "ok", f"{here.name}, {here.arch}, driver for CUDA {here.driver[0]}.{here.driver[1]}")
        if isinstance(here, gpu.Gpu)
        else Finding("GPU", "note", here)
    )
    findings = [
        Finding("Python", "ok", f"{platform.python_version()} on {platform.system()} {platform.machine()}"),
        *(_package(name) for name in ("onnx", "onnxruntime", "polygraphy", "onnx-graphsurgeon")),
        rtx,
        full,
        compiler,
        _plugin_library(),
        device,
        *_driver(here),
        *_libraries(),
        _cache(),
        *_notes("temporary folder", surroundings.temporary_faults()),
        *_notes("locale", surroundings.locale_faults(os.environ)),
    ]
    return findings + _abilities(rtx, full, compiler, here)


def _notes(what: str, faults: Iterable[tuple[str, str]]) -> list[Finding]:
    return [Finding(what, "note", fault, fix) for fault, fix in faults] or [Finding(what, "ok", "as it should be")]


def _driver(here: gpu.Gpu | str) -> list[Finding]:
    """Whether the driver is new enough for the kernels."""
    if isinstance(here, str):
        return []
    try:
        fault = surroundings.too_old(here.driver, kernel.version())
    except ConvertError:
        return []  # NVRTC has a finding of its own
    return [Finding("driver", "missing", fault, "upgrade the NVIDIA driver")] if fault else []


def _libraries() -> list[Finding]:
    """Of each TensorRT library its copies, and which one is in use."""
    in_use, findings = surroundings.loaded(), []
    for name, files in surroundings.copies(surroundings.library_folders(os.environ)).items():
        used = in_use.get(name)
        if len(files) == 1:
            findings.append(Finding(name, "ok", str(files[0])))
            continue
        shown = f", in use: {used}" if used else ""
        text = f"{len(files)} copies: {', '.join(map(str, files))}{shown}"
        fix = "keep one: a plan loads only with the version that built it; the order is LD_LIBRARY_PATH, then the wheel"
        findings.append(Finding(name, "note", text, fix))
    return findings


def _package(name: str) -> Finding:
    try:
        return Finding(name, "ok", metadata.version(name))
    except metadata.PackageNotFoundError:
        return Finding(name, "missing", "not installed", f"pip install {name}")


def _guard(what: str, ask: Callable[[], str]) -> Finding:
    try:
        return Finding(what, "ok", ask())
    except ConvertError as error:
        return Finding(what, "missing", error.what, error.fix or "")


def _plugin_library() -> Finding:
    """The C++ creators, which a plan needs where there is no Python."""
    what, place = "C++ plugins", native.place()
    if place.is_file():
        return Finding(what, "ok", str(place))
    if shutil.which("g++"):
        return Finding(what, "ok", "compiled by g++ when first asked for: trtconvert plugins lib")
    return Finding(
        what, "note", "no library, and no g++ to build it", "install g++ (apt install g++), for C++ and Triton"
    )


def _backend(name: str) -> Finding:
    title = backend.TITLES[name]
    if not backend.installed(name) and name == "tensorrt":
        return Finding(title, "note", "not installed; TensorRT-RTX serves without it")
    return _guard(title, lambda: backend.select(name).version)


def _cache() -> Finding:
    folder = cache_dir()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        writable = os.access(folder, os.W_OK)
    except OSError:
        writable = False
    if writable:
        return Finding("cache", "ok", str(folder))
    return Finding("cache", "note", f"{folder} is not writable", "set TRTCONVERT_CACHE_DIR to a writable folder")


def _abilities(rtx: Finding, full: Finding, compiler: Finding, here: gpu.Gpu | str) -> list[Finding]:
    can_build = rtx.verdict == "ok" and compiler.verdict == "ok"
    building = (
        Finding("build", "ok", f"TensorRT-RTX engines for {', '.join(backend.RTX_TARGETS)}, ahead of time")
        if can_build
        else Finding("build", "missing", "no TensorRT-RTX engines without the above")
    )
    if isinstance(here, str):
        return [building, Finding("run", "note", f"engines cannot be run or measured here: {here}")]
    if full.verdict == "ok":
        return [building, Finding("run", "ok", f"{here.name} with TensorRT {full.found}")]
    supported = here.arch in (*backend.RTX_TARGETS, *backend.RTX_EXTRA_TARGETS)
    if rtx.verdict == "ok" and not supported:
        text = f"TensorRT-RTX {rtx.found} does not list {here.arch} among its GPUs: it may refuse to run an engine here"
        fix = "use full TensorRT on this GPU (--backend tensorrt), or run the engine on " + ", ".join(
            backend.RTX_TARGETS
        )
        return [building, Finding("run", "note", text, fix)]
    return [building, Finding("run", "ok" if rtx.verdict == "ok" else "missing", f"{here.name} with TensorRT-RTX")]
