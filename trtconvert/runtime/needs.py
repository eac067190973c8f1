"""What a plan needs to be loaded: TensorRT, a GPU, plugins, libraries; and whether this machine has each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from trtconvert import gpu, launch, manifest, native, surroundings
from trtconvert.backend import Backend, select
from trtconvert.custom_ops import creators, libraries
from trtconvert.custom_ops.creators import Creator
from trtconvert.errors import ConvertError
from trtconvert.manifest import Manifest
from trtconvert.runtime import contents, faults


@dataclass(frozen=True)
class Need:
    """what the plan needs; here: whether this machine has it; found: where, or why not; fix: what to do then."""

    what: str
    here: bool
    found: str
    fix: str = ""


def needs(plan: Path) -> list[Need]:
    """TensorRT first, then the GPU, the plugins and the libraries. ConvertError where the plan itself is at fault."""
    data, described = manifest.read_plan(plan)
    found = contents.header(data)
    title = faults.built_by(found, described)
    of = faults.check_contents(data, described, plan)
    chosen: list[Backend] = []

    def backend() -> str:
        chosen.append(select(faults.check_backend(of, title, plan)))
        faults.check_version(found, described, chosen[0], plan)
        return ", ".join(map(str, surroundings.loaded().values())) or f"version {chosen[0].version}"

    rows = [_tried(title, backend), _gpu(found, described)]
    return [*rows, *_plugins(data, described, plan, chosen[0] if chosen else None)]


def _tried(what: str, look: Callable[[], str]) -> Need:
    try:
        return Need(what, True, look())
    except ConvertError as error:
        return Need(what, False, error.what, error.fix or "")


def _gpu(found: contents.Header | None, described: Manifest | None) -> Need:
    targets = (described.targets if described is not None else None) or (found.targets if found is not None else ())
    what, here = f"GPU: {' or '.join(targets) or 'one that this TensorRT takes'}", gpu.find()
    if isinstance(here, str):
        return Need(what, False, here, "run it on a machine with an NVIDIA GPU and its driver")
    fits = not targets or here.arch in targets
    return Need(what, fits, f"{here.name}, {here.arch}", "" if fits else f"build it again with --target {here.arch}")


def _opened(path: Path, backend: Backend) -> str:
    return str(libraries.load(path, backend).path.resolve())


def _native() -> Need:
    """The C++ library, which Python can do without."""
    what, path = f"library {native.NAME}, for C++ and Triton", native.place()
    if path.is_file():
        return Need(what, True, str(path))
    return Need(
        what, False, "not compiled yet; Python does without", "trtconvert plugins build-native, which needs g++"
    )


def _plugins(data: bytes, described: Manifest | None, plan: Path, backend: Backend | None) -> Iterator[Need]:
    ours = {plugin.key for plugin in contents.plugins_in(data)}
    for key in sorted(ours):
        how = f"in the plan, launch format {contents.launch_format(data)}; read up to {launch.FORMAT}"
        yield Need(f"plugin {Creator(*key, '', ()).title}", True, how)
    if ours:
        yield _native()
    if described is None:
        return
    for file in described.plugin_files:
        path = plan.parent / file
        if libraries.is_library(path) and backend is not None:
            yield _tried(f"library {path.name}", partial(_opened, path, backend))
    others = [p for p in described.plugins if (p.name, p.version, p.namespace) not in ours]
    there = creators.registered(backend, ours=True) if others and backend is not None else []
    for use in others:
        key = use.name, use.version, use.namespace
        yield _tried(f"plugin {Creator(*key, '', ()).title}", partial(_made_by, key, use.provider, there, plan))


def _made_by(key: faults.Key, provider: str, there: Sequence[Creator], plan: Path) -> str:
    faults.check_plugins([(key, provider)], there, plan)
    library = next(creator.library for creator in there if creator.key == key)
    return f"from {Path(library).name or 'TensorRT'}"
