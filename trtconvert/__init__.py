"""trtconvert: ONNX models to TensorRT engines with fused plugin kernels, proven equal to onnxruntime.

    from trtconvert import build, verify, load_engine
    build("model.onnx", "engine.plan")
    verify("engine.plan")

Importing the package costs nothing: each name is loaded when it is first used.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from trtconvert.errors import ConvertError, NoUsableGpuError

if TYPE_CHECKING:
    from trtconvert.accuracy.results import OutputResult, VerifyResult
    from trtconvert.bench import BenchResult, bench
    from trtconvert.build import BuildResult, build
    from trtconvert.deploy.cpp import export_cpp
    from trtconvert.deploy.triton import TritonModel, export_triton
    from trtconvert.engine import Engine, load_engine
    from trtconvert.fuse import FuseResult, NearMiss, fuse
    from trtconvert.manifest import Manifest
    from trtconvert.matching.rewrite import Fusion
    from trtconvert.network import BuildOptions
    from trtconvert.op import Op, case
    from trtconvert.refit import RefitResult, refit
    from trtconvert.registry import register
    from trtconvert.verify import verify

__version__ = "0.1.0"

_HOME = {
    "BenchResult": "bench",
    "bench": "bench",
    "BuildOptions": "network",
    "BuildResult": "build",
    "build": "build",
    "TritonModel": "deploy.triton",
    "export_cpp": "deploy.cpp",
    "export_triton": "deploy.triton",
    "Engine": "engine",
    "load_engine": "engine",
    "FuseResult": "fuse",
    "Fusion": "matching.rewrite",
    "NearMiss": "fuse",
    "fuse": "fuse",
    "Manifest": "manifest",
    "Op": "op",
    "case": "op",
    "RefitResult": "refit",
    "refit": "refit",
    "register": "registry",
    "OutputResult": "accuracy.results",
    "VerifyResult": "accuracy.results",
    "verify": "verify",
}

__all__ = [
    "BenchResult",
    "BuildOptions",
    "BuildResult",
    "ConvertError",
    "Engine",
    "FuseResult",
    "Fusion",
    "Manifest",
    "NearMiss",
    "NoUsableGpuError",
    "Op",
    "OutputResult",
    "RefitResult",
    "TritonModel",
    "VerifyResult",
    "bench",
    "build",
    "case",
    "export_cpp",
    "export_triton",
    "fuse",
    "load_engine",
    "refit",
    "register",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"trtconvert.{_HOME[name]}"), name)
    raise AttributeError(f"module 'trtconvert' has no attribute {name!r}")


class _Package(ModuleType):
    """Keeps `trtconvert.fuse` the function: importing the submodule of that name would set the attribute otherwise."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (isinstance(value, ModuleType) and name in _HOME):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
