"""What a result depends on besides the engine: tool, backend, GPU, driver, machine, date."""

from __future__ import annotations

import datetime
import platform
import re
from importlib import metadata
from pathlib import Path

from trtconvert import backend, gpu
from trtconvert.errors import ConvertError
from trtconvert.manifest import Manifest, Precision

DRIVER = Path("/proc/driver/nvidia/version")
PACKAGES = ("onnxruntime", "onnx", "numpy")


def facts(described: Manifest, plan: Path) -> list[tuple[str, str]]:
    """Names and what they are, for people."""
    here = gpu.find()
    return [
        ("Plan", f"{plan.name}, {described.plan_bytes / 1e6:.2f} MB"),
        ("Plan SHA-256", described.plan_sha256),
        ("Model", described.model),
        ("Model SHA-256", described.model_sha256),
        ("Precision", precision(described.precision)),
        ("Built", f"by {described.tool} with {described.backend_title} for {', '.join(described.targets)}"),
        ("Verified", f"by trtconvert {metadata.version('trtconvert')} with {_backend(described.backend)}"),
        ("Date", datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")),
        ("GPU", f"{here.name} ({here.arch})" if isinstance(here, gpu.Gpu) else here),
        ("Driver", _driver(here)),
        ("Machine", f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"),
        ("Packages", ", ".join(f"{name} {_version(name)}" for name in PACKAGES)),
    ]


def precision(described: Precision) -> str:
    """Its name, what converted the model and by which data; nodes kept in float32 are counted."""
    told = [described.name, f"inputs and outputs {described.io}" if described.io not in ("", "keep") else ""]
    told.append(f"converted by {described.caster}" if described.caster else "")
    told.append(f"{len(described.kept)} nodes kept in float32" if described.kept else "")
    short = {name: value for name, value in described.calibration.items() if name in ("method", "samples", "data")}
    if short:
        told.append("calibration: " + ", ".join(f"{name} {value}" for name, value in short.items()))
    return "; ".join(filter(None, told))


def _backend(name: str) -> str:
    try:
        return backend.select(name).title
    except ConvertError as error:
        return f"{name}: {error.what}"


def _driver(here: gpu.Gpu | str) -> str:
    """Version of the kernel module, and CUDA version that it serves."""
    if isinstance(here, str):
        return "none"
    try:
        found = re.search(r"\b\d{3,}\.\d+(\.\d+)?\b", DRIVER.read_text())
    except OSError:
        found = None
    return f"{f'{found[0]}, ' if found else ''}for CUDA {here.driver[0]}.{here.driver[1]}"


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:  # onnxruntime also comes under other names, such as onnxruntime-gpu
        return "of unknown version"
