"""The command lines of trtexec, or of TensorRT-RTX's tensorrt_rtx, that run a plan or build it without its plugins.

Options as NVIDIA's samples/common/sampleOptions.cpp of TensorRT 11.1 has them; 10.x has these too.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trtconvert import manifest
from trtconvert.deploy.libraries import Library, needed
from trtconvert.deploy.points import points
from trtconvert.deploy.triton_config import shape_tensor_names
from trtconvert.errors import ConvertError
from trtconvert.manifest import Manifest


@dataclass(frozen=True)
class Command:
    """A command line for a POSIX shell, and what it does."""

    title: str
    line: str


def commands(plan: str | Path) -> list[Command]:
    """How to run the plan, and where it can be done, how to build the same model without plugins, to compare.

    A plan with trtconvert's plugins cannot be built by trtexec: their kernels are chosen and compiled by the build in Python.
    ConvertError if the manifest or a plugin library is missing, or if a tensor's name does not fit trtexec's lists.
    """
    path = Path(plan)
    described = manifest.read(path)
    manifest.check_plan(described, path)
    tool = "tensorrt_rtx" if described.backend == "rtx" else "trtexec"
    arguments = [tool, f"--loadEngine={path}", *_shapes(described), *_plugins(needed(described, path))]
    found = [Command(f"run the plan ({described.backend_title})", shlex.join(arguments))]
    model = _model(described, path)
    if model is not None:
        saved = path.with_name(f"{path.stem}.no_plugins.plan")
        arguments = [tool, f"--onnx={model}", *_profile(described), f"--saveEngine={saved}"]
        found.append(Command("build and run the same model without plugins, to compare", shlex.join(arguments)))
    return found


def _shapes(described: Manifest) -> list[str]:
    """`--shapes`: of dynamic inputs their shape, of inputs that decide shapes their values."""
    given = {point.name: point.values or point.shape for point in points(described) if point.dynamic or point.values}
    return [f"--shapes={_list(given)}"] if given else []


def _profile(described: Manifest) -> list[str]:
    """`--minShapes`, `--optShapes` and `--maxShapes` of the first profile."""
    deciding = shape_tensor_names(described)
    ranges = {k: v for k, v in described.profile.items() if k not in deciding}
    ranges |= {name: described.values[name] for name in deciding}
    return [f"--{at}Shapes={_list({k: v[at] for k, v in ranges.items()})}" for at in ("min", "opt", "max") if ranges]


def _plugins(libraries: Iterable[Library]) -> list[str]:
    return [f"--{'dynamic' if library.asks else 'static'}Plugins={library.path}" for library in libraries]


def _model(described: Manifest, plan: Path) -> Path | None:
    """The file whose engine without plugins does what the plan does; None where there is none, or it needs a plugin."""
    file = described.precision.file
    source = plan.with_name(file) if file else plan.parent / described.model
    custom = any(plugin.kind != "IPluginV3" for plugin in described.plugins)
    changed = (described.baked and not file) or custom or not described.fusions
    return source if source.is_file() and not changed else None


def _list(sizes: Mapping[str, Sequence[int]]) -> str:
    for name in sizes:
        if "," in name or "'" in name:
            raise ConvertError(
                "trtexec cannot name this input: it splits its lists at commas and quotes",
                where=f"input {name!r}",
                fix="rename the input in the model, and build again",
            )
    return ",".join(f"{name}:{'x'.join(map(str, shape)) or 'scalar'}" for name, shape in sizes.items())
