"""A plan as a model of a Triton repository: config.pbtxt, the plan, its plugin libraries, and how to serve and measure it."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

from trtconvert import native
from trtconvert.deploy import whole
from trtconvert.deploy.folder import write_folder
from trtconvert.deploy.libraries import Library, needed
from trtconvert.deploy.points import Point, points
from trtconvert.deploy.triton_config import ModelConfig, config
from trtconvert.errors import ConvertError
from trtconvert.manifest import Manifest

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


@dataclass(frozen=True)
class TritonModel:
    """What was written: the model's folder in the repository, its files, its configuration. serve, measure: command lines, the
    image to be named by `TRITON_IMAGE`. written: False where all of it was there already."""

    folder: Path
    files: list[str]
    config: ModelConfig
    serve: str
    measure: str
    written: bool


def export_triton(
    plan: str | Path,
    repository: str | Path,
    name: str | None = None,
    max_batch: int | None = None,
    force: bool = False,
) -> TritonModel:
    """Write `repository/name` for a plan of TensorRT: config.pbtxt, 1/model.plan, plugins/ where there are any, README.md.

    name: of the model, the plan's without its suffix if not given. max_batch: see triton_config.config. force: write over what
    lies there. ConvertError, before anything is written, for a plan that Triton cannot serve.
    """
    path, target = Path(plan), Path(repository)
    described, data = whole.read(path)
    if described.backend == "rtx":
        raise ConvertError(
            f"Triton's TensorRT backend does not load plans of TensorRT-RTX, and this one is of {described.backend_title}",
            where=str(path),
            fix="build the plan on the GPU that will serve it, where full TensorRT is installed: "
            "trtconvert build MODEL --backend tensorrt",
        )
    called = name if name is not None else path.stem
    if not _NAME.fullmatch(called):
        raise ConvertError(
            f"{called!r} cannot be a model's name in a repository",
            fix="give one of letters, digits, _, - and dots, that starts with no dot: --name NAME",
        )
    made = config(described, called, max_batch)
    libraries = needed(described, path)
    options = _options(made, libraries, described)
    files = {"config.pbtxt": made.text().encode(), "1/model.plan": data}
    files |= {f"plugins/{file}": content for file, content in _plugins(libraries).items()}
    if _values(points(described)):
        files["perf_data.json"] = _perf_data(points(described))
    measure = _measure(made, points(described), Path())
    text = "\n".join(_readme(described, made, _serve('"$PWD:/models:ro"', options), measure, libraries))
    files["README.md"] = f"{text}\n".encode()
    written = write_folder(target / called, files, force)
    serve = _serve(shlex.quote(f"{target.resolve()}:/models:ro"), options)
    measure = _measure(made, points(described), (target / called).resolve())
    return TritonModel(target / called, sorted(files), made, serve, measure, written)


def _plugins(libraries: Sequence[Library]) -> dict[str, bytes]:
    """The libraries, and the one that hands them to TensorRT."""
    if not libraries:
        return {}
    loader = native.loader()
    return {loader.name: loader.read_bytes()} | {library.path.name: library.data for library in libraries}


# --- command lines --------------------------------------------------------------------------------------------------


def _options(made: ModelConfig, libraries: Sequence[Library], described: Manifest) -> list[str]:
    """tritonserver's, with the repository at /models."""
    options = ["--model-repository=/models"]
    if libraries:
        options.append(f"--backend-config=tensorrt,plugins=/models/{made.name}/plugins/{native.LOADER}")
    if described.options.get("version_compatible"):
        options.append("--backend-config=tensorrt,version-compatible=true")
    return options


def _serve(mount: str, options: Sequence[str]) -> str:
    """tritonserver in a container; the image's name is the user's. mount: quoted for the shell."""
    docker = "docker run --rm --gpus all -p 8000:8000 -p 8001:8001 -p 8002:8002"
    return f'{docker} -v {mount} "$TRITON_IMAGE" tritonserver {shlex.join(options)}'


def _measure(made: ModelConfig, at: Sequence[Point], folder: Path) -> str:
    """perf_analyzer at the profile's opt shapes. folder: the model's, as seen from where it runs."""
    arguments = ["perf_analyzer", "-m", made.name, "-i", "grpc", "-u", "localhost:8001"]
    batched = made.max_batch_size > 0
    if batched:
        arguments += ["-b", str(min(at[0].shape[0], made.max_batch_size))]
    for tensor, point in zip(made.inputs, at, strict=True):
        if -1 in tensor.dims:
            arguments += ["--shape", f"{point.name}:{','.join(map(str, point.shape[batched:]))}"]
    if _values(at):
        arguments += ["--input-data", str(folder / "perf_data.json")]
    elif any("int" in point.dtype for point in at):
        arguments += ["--input-data", "zero"]  # random numbers are no ids
    return shlex.join([*arguments, "--concurrency-range", "1:4"])


def _values(at: Sequence[Point]) -> dict[str, tuple[int, ...]]:
    return {point.name: point.values for point in at if point.values}


def _perf_data(at: Sequence[Point]) -> bytes:
    """One request as perf_analyzer reads it: inputs that decide shapes with their values, the others zeros."""
    request = {p.name: {"content": list(p.values) or [0] * prod(p.shape), "shape": list(p.shape)} for p in at}
    return json.dumps({"data": [request]}).encode()


# --- README.md ------------------------------------------------------------------------------------------------------


def _readme(
    described: Manifest, made: ModelConfig, serve: str, measure: str, libraries: Sequence[Library]
) -> Iterator[str]:
    """How to serve and measure the model, and what it needs."""
    newer = " or newer" if described.options.get("version_compatible") else ""
    yield f"# {made.name}\n"
    yield f"A plan of {described.backend_title} for {', '.join(described.targets)}, built by {described.tool}.\n"
    yield f"Serve it with NVIDIA's tritonserver container whose TensorRT is {described.backend_version}{newer}; its release"
    yield "notes name the tag. A plan runs on the kind of GPU it was built on. In the repository's folder:\n"
    yield f"    TRITON_IMAGE=...\n    {serve}\n"
    if libraries:
        yield "`plugins/` has what the plan's layers come from:\n"
        yield from (f"- {library.path.name}" for library in libraries)
        yield f"- {native.LOADER}, which Triton opens, and which registers the others with TensorRT\n"
        yield "For several models name the loader of each, with `;` between them, in one `plugins=` option. A name that two of"
        yield "them bring is taken from the first.\n"
    if made.max_batch_size:
        yield f"Requests are batched along the first dimension, up to {made.max_batch_size}.\n"
    else:
        yield f"Requests are not batched: {made.why_not}.\n"
    yield "Measure it, with perf_analyzer from Triton's client SDK, in this model's folder:\n"
    yield f"    {measure}"
