"""The only import of tensorrt and tensorrt_rtx: which one serves, what it can do, and Polygraphy's switch between them."""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from trtconvert import gpu
from trtconvert.errors import ConvertError
from trtconvert.files import cache_dir

if TYPE_CHECKING:
    import tensorrt as types  # how other modules name TensorRT's types

__all__ = ["RTX_EXTRA_TARGETS", "RTX_TARGETS", "Backend", "Log", "installed", "logger", "select", "supports", "types"]

MODULES = {"rtx": "tensorrt_rtx", "tensorrt": "tensorrt"}
TITLES = {"rtx": "TensorRT-RTX", "tensorrt": "TensorRT"}
_PACKAGES = {"rtx": "tensorrt-rtx", "tensorrt": "tensorrt"}
_INSTALL = {
    "rtx": "pip install tensorrt-rtx",
    "tensorrt": "pip install tensorrt (from NVIDIA's package index), or use NVIDIA's TensorRT container",
}
# Compute capabilities that TensorRT-RTX builds for ahead of time; sm_75 must be asked for (it lacks fp32 GEMM).
RTX_TARGETS = ("sm_80", "sm_86", "sm_89", "sm_120", "sm_121")
RTX_EXTRA_TARGETS = ("sm_75",)
# Standard ops that TensorRT-RTX's parser imports as a plugin of that name, version 1, which it does not bring along.
RTX_PLUGIN_OPS = ("CausalConvWithState", "LinearAttention", "NonZero")

MESSAGES_KEPT = 1000  # of TensorRT's, of each severity
_loading = Lock()  # a module is half there while another thread imports it


@dataclass(frozen=True)
class Backend:
    """A TensorRT. name: "rtx" or "tensorrt"; trt: its Python module; version: as the module gives it."""

    name: str
    trt: Any
    version: str

    @property
    def is_rtx(self) -> bool:
        return self.name == "rtx"

    @property
    def title(self) -> str:
        return f"{TITLES[self.name]} {self.version}"

    @property
    def major(self) -> int:
        return int(self.version.split(".")[0])

    def network_flags(self) -> int:
        """Strongly typed: the default from TensorRT 11 on and in RTX, a flag in 10."""
        if self.is_rtx or self.major >= 11:
            return 0
        return 1 << int(self.trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)


def installed(name: str) -> bool:
    """Whether the backend's module is there; a folder of type stubs alone does not count."""
    spec = find_spec(MODULES[name])
    return spec is not None and spec.origin is not None and not spec.origin.endswith(".pyi")


def resolve(name: str) -> str:
    """Which backend a name means; auto is full TensorRT where it is installed and a GPU is there. Loads nothing."""
    if name == "auto":
        name = "tensorrt" if installed("tensorrt") and gpu.current() is not None else "rtx"
        if not installed(name) and installed("tensorrt"):
            name = "tensorrt"
    if name not in MODULES:
        raise ConvertError(f"unknown backend {name!r}", fix="use auto, rtx or tensorrt")
    return name


def unloaded(name: str) -> Backend:
    """The backend as its package's metadata describe it, without its module; loaded where these do not tell."""
    name = resolve(name)
    try:
        return Backend(name, None, metadata.version(_PACKAGES[name]))
    except metadata.PackageNotFoundError:
        return select(name)


def select(name: str = "auto") -> Backend:
    """The backend of that name, see `resolve`.

    Sets Polygraphy's switch to the same one. Raises ConvertError when it is not installed or does not load.
    """
    name = resolve(name)
    os.environ["POLYGRAPHY_USE_TENSORRT_RTX"] = "1" if name == "rtx" else "0"
    with _loading:
        return _load(name)


@lru_cache
def _load(name: str) -> Backend:
    if not installed(name):
        raise ConvertError(f"{MODULES[name]} is not installed", fix=_INSTALL[name])
    if name == "rtx":
        _make_parser_library_findable()
    try:
        trt = importlib.import_module(MODULES[name])
    except (ImportError, OSError) as error:
        raise ConvertError(f"{MODULES[name]} does not load: {error}", fix=_INSTALL[name]) from error
    return Backend(name, trt, trt.__version__)


def _make_parser_library_findable() -> None:
    """TensorRT-RTX's ONNX parser opens `libtensorrt_rtx.so` at the first plugin node and ends the process when it is not
    found; the wheel holds `libtensorrt_rtx.so.1` only. The parser searches its own folder, so it is loaded through
    links in a folder of ours that has both names. site-packages stays untouched.
    """
    spec = find_spec("tensorrt_rtx_libs")
    if sys.platform != "linux" or spec is None or not spec.submodule_search_locations:
        return
    folder = Path(next(iter(spec.submodule_search_locations)))
    if (folder / "libtensorrt_rtx.so").exists() or not (folder / "libtensorrt_rtx.so.1").exists():
        return
    if "tensorrt_rtx" in sys.modules:
        raise ConvertError(
            "tensorrt_rtx was imported before trtconvert, and its parser cannot find libtensorrt_rtx.so",
            where=str(folder),
            fix="call trtconvert before importing tensorrt_rtx, or: ln -s libtensorrt_rtx.so.1 libtensorrt_rtx.so there",
        )
    links = _linked(folder)
    for name in ("libtensorrt_rtx.so.1", "libtensorrt_onnxparser_rtx.so.1"):
        ctypes.CDLL(str(links / name), mode=ctypes.RTLD_GLOBAL)


def _linked(folder: Path) -> Path:
    """A folder of links to the libraries: in the cache, or a temporary one where the cache cannot be written."""
    key = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]
    wanted = {name.name: name for name in folder.glob("*.so.*")} | {
        "libtensorrt_rtx.so": folder / "libtensorrt_rtx.so.1"
    }
    last: OSError | None = None
    for place in (cache_dir() / "libraries" / key, Path(tempfile.gettempdir()) / f"trtconvert-{os.getuid()}-{key}"):
        try:
            place.mkdir(parents=True, exist_ok=True)
            for name, target in wanted.items():
                _link(place / name, target)
            return place
        except OSError as error:
            last = error
    raise ConvertError(
        f"cannot make a folder of links to TensorRT-RTX's libraries: {last}",
        fix="set TRTCONVERT_CACHE_DIR to a writable folder",
    )


def _link(link: Path, target: Path) -> None:
    if link.is_symlink() and os.readlink(link) == str(target):
        return
    temporary = link.with_name(f"{link.name}.{os.getpid()}")
    temporary.symlink_to(target)
    os.replace(temporary, link)


def supports(backend: Backend) -> Callable[[str], bool]:
    """Whether the backend takes a standard op without a plugin."""
    trt = backend.trt
    log, _ = logger(backend)
    builder = trt.Builder(log)
    network = builder.create_network(backend.network_flags())
    parser = trt.OnnxParser(network, log)
    keep = (log, builder, network)  # the parser needs them alive

    def supports(op_type: str) -> bool:
        if backend.is_rtx and op_type in RTX_PLUGIN_OPS:
            return False
        return bool(keep) and (op_type == "Constant" or bool(parser.supports_operator(op_type)))

    return supports


# --- TensorRT's log ------------------------------------------------------------------------------------------------


@dataclass
class Log:
    """What TensorRT said: messages by severity, as many as are worth keeping; printed as they come only when verbose."""

    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def cause(self) -> str:
        """The first error: what follows it is mostly cascade."""
        return self.errors[0] if self.errors else "TensorRT gave no reason"

    def take_cause(self) -> str:
        """The same, and forget it: what goes wrong later has causes of its own."""
        cause = self.cause()
        self.errors.clear()
        return cause

    def add(self, messages: list[str], message: str) -> None:
        """Keep a message; a service that runs for months may get one with every execution."""
        if len(messages) < MESSAGES_KEPT:
            messages.append(message)


def logger(backend: Backend, verbose: bool = False) -> tuple[Any, Log]:
    """A TensorRT logger that fills a Log, and prints all to stderr when verbose."""
    trt, log = backend.trt, Log()

    class Logger(trt.ILogger):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: Any, message: str) -> None:
            if severity <= trt.ILogger.Severity.ERROR:
                log.add(log.errors, message)
            elif severity == trt.ILogger.Severity.WARNING:
                log.add(log.warnings, message)
            if verbose:
                print(f"[{severity.name}] {message}", file=sys.stderr)

    return Logger(), log
