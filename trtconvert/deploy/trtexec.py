"""The command lines of trtexec, or of TensorRT-RTX's tensorrt_rtx, that run a plan or build it without its plugins.

Options as NVIDIA's samples/common/sampleOptions.cpp of TensorRT 11.1 has them; 10.x has these too.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trtconvert import manifest
from trtconvert import model as onnx_model
from trtconvert.carried import carry
from trtconvert.deploy import whole
from trtconvert.deploy.libraries import Library, needed
from trtconvert.deploy.points import points
from trtconvert.deploy.triton_config import shape_tensor_names
from trtconvert.errors import ConvertError
from trtconvert.files import check_outputs, write_files
from trtconvert.manifest import Manifest
from trtconvert.network import Network, images_of
from trtconvert.remake import remake

# Of the plan's build options, those that trtexec has too.
_OPTIONS = {
    "opt_level": "--builderOptimizationLevel={}",
    "workspace": "--memPoolSize=workspace:{}B",
    "refit": "--refit",
    "strip_weights": "--stripWeights",
    "version_compatible": "--versionCompatible",
    "hardware_compatible": "--hardwareCompatibilityLevel=ampere+",
}


@dataclass(frozen=True)
class Command:
    """A command line for a POSIX shell, and what it does."""

    title: str
    line: str


def commands(plan: str | Path, onnx: str | Path | None = None) -> list[Command]:
    """How to run the plan; how to build the same model without plugins, to compare, where that is one; and how to build `onnx`,
    the file that `write_model` wrote, if it is given.

    ConvertError if the manifest or a plugin library is missing, or if a tensor's name does not fit trtexec's lists.
    """
    path = Path(plan)
    described, _ = whole.read(path)
    tool = "tensorrt_rtx" if described.backend == "rtx" else "trtexec"
    plugins = _plugins(needed(described, path))
    run = [tool, f"--loadEngine={path}", *_shapes(described), *plugins]
    found = [Command(f"run the plan ({described.backend_title})", shlex.join(run))]
    if onnx is not None:
        saved = _beside(Path(onnx), path)
        build = [tool, f"--onnx={onnx}", *_build(described), f"--saveEngine={saved}", *plugins]
        found.append(Command("build the plan again, without trtconvert", shlex.join(build)))
    source = _without_plugins(described, path)
    if source is not None:
        saved = path.with_name(f"{path.stem}.no_plugins.plan")
        build = [tool, f"--onnx={source}", *_build(described), f"--saveEngine={saved}"]
        found.append(Command("build and run the same model without plugins, to compare", shlex.join(build)))
    return found


def write_model(plan: str | Path, onnx: str | Path) -> None:
    """Write the model that the plan was built from, as the parser got it, with the kernels in its plugin nodes: with the plugin
    library, trtexec or any other program builds it. ConvertError as for `remake`."""
    path, output = Path(plan), Path(onnx)
    described = manifest.read(path)
    again = remake(described, path)
    maker = again.maker
    check_outputs([output], [maker.source, path])
    network = Network(maker.backend, maker.options, again.lowered(), maker.source, maker.targets)
    carrying = carry(network.lowered, network.network, images_of(maker.targets))
    write_files(onnx_model.files(carrying.model, output, maker.source))


def _beside(onnx: Path, plan: Path) -> Path:
    """Where the plan of `onnx` goes: never over the one that was exported, or the model."""
    saved = onnx.with_suffix(".plan")
    return onnx.with_suffix(".again.plan") if saved.resolve() in (plan.resolve(), onnx.resolve()) else saved


def _build(described: Manifest) -> list[str]:
    """The options that are the build's."""
    major = int(described.backend_version.split(".")[0])
    typed = ["--stronglyTyped"] if described.backend == "tensorrt" and major < 11 else []
    told = [text.format(described.options[name]) for name, text in _OPTIONS.items() if described.options.get(name)]
    return [*_profile(described), *typed, *told]


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


def _without_plugins(described: Manifest, plan: Path) -> Path | None:
    """The file whose engine without plugins does what the plan does; None where all plugins stand in the model itself, or its
    inputs were changed."""
    fused = {fusion["node"] for fusion in described.fusions}
    source = plan.parent / described.model
    ours = bool(fused) and all(node in fused for plugin in described.plugins for node in plugin.nodes)
    same = ours and not described.precision.file and not described.baked
    return source if same and source.is_file() else None


def _list(sizes: Mapping[str, Sequence[int]]) -> str:
    for name in sizes:
        if "," in name or "'" in name:
            raise ConvertError(
                "trtexec cannot name this input: it splits its lists at commas and quotes",
                where=f"input {name!r}",
                fix="rename the input in the model, and build again",
            )
    return ",".join(f"{name}:{'x'.join(map(str, shape)) or 'scalar'}" for name, shape in sizes.items())
