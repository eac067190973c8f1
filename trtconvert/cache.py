"""Builds that are kept: the same model with the same options is built once on a machine, whoever asks and wherever it lies."""

from __future__ import annotations

import datetime
import hashlib
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import onnx

from trtconvert import manifest
from trtconvert import model as onnx_model
from trtconvert.caching import key as keys
from trtconvert.caching import locks, store
from trtconvert.caching.store import PLAN, DamagedError, Entry
from trtconvert.errors import ConvertError
from trtconvert.files import check_outputs, write_files
from trtconvert.manifest import Manifest, Precision
from trtconvert.options import BuildOptions

if TYPE_CHECKING:
    from trtconvert.engine import Engine
    from trtconvert.monitor import Progress

LIMIT = 20 << 30
"""Bytes that the entries may take together, where nothing else is said."""
WAITING = "waiting for another process that builds this engine"
_MANIFEST, _CONVERTED = f"{PLAN}.json", f"{PLAN}.onnx"
Files: TypeAlias = "dict[Path, bytes | Iterable[bytes]]"


@dataclass(frozen=True)
class CachedBuild:
    """A plan, built now or before.

    made: when the cache's entry was made, UTC, ISO 8601; "" for a plan that was built now. key: the entry's, "" where the cache
    could not be used. notices: what the build told, and what is to be told of the cache. seconds: that this call took.
    """

    plan: Path
    manifest: Manifest
    key: str
    made: str = ""
    notices: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def hit(self) -> bool:
        """Whether it came out of the cache."""
        return bool(self.made)


def cached_build(
    model: str | Path,
    output: str | Path | None = None,
    options: BuildOptions | None = None,
    progress: Progress | None = None,
    limit: int = LIMIT,
) -> CachedBuild:
    """`build`, unless a build of the same contents was kept: then its plan, with a manifest for this model and this place.

    limit: bytes that the cache may take; what was not used for longest goes. A cache that cannot be used is no error: the
    engine is built, and a notice says why it was not kept. A hit leaves options.timing_cache alone. Raises ConvertError as
    `build` does.
    """
    started, source = time.monotonic(), Path(model)
    plan = Path(output) if output is not None else source.with_suffix(".plan")
    found = _Request(source, plan, options or BuildOptions(), progress, limit).made()
    return replace(found, seconds=time.monotonic() - started)


def load_or_build(
    model: str | Path,
    output: str | Path | None = None,
    options: BuildOptions | None = None,
    progress: Progress | None = None,
    limit: int = LIMIT,
    **loading: Any,
) -> Engine:
    """The engine of a model, ready to run: from the cache, or built and kept there.

    output: where the plan is to lie too; nothing is written beside the model without it. loading: what else `load_engine` takes.
    Raises ConvertError as `build` and `load_engine` do, NoUsableGpuError before anything is built where there is no GPU.
    """
    from trtconvert import engine, gpu  # what runs engines

    gpu.require()
    with tempfile.TemporaryDirectory(prefix="trtconvert-") as folder:
        plan = Path(output) if output is not None else Path(folder) / PLAN
        ask = _Request(Path(model), plan, options or BuildOptions(), progress, limit)
        if output is None and (kept := ask.kept()):
            return engine.load(*kept, **loading)
        return engine.load_engine(ask.made().plan, **loading)


@dataclass(frozen=True)
class _Request:
    """One call of `cached_build`."""

    source: Path
    plan: Path
    options: BuildOptions
    progress: Progress | None
    limit: int

    def made(self) -> CachedBuild:
        """From the cache; or built, and put there if it can be used."""
        try:
            return self._made()
        except locks.Unusable as error:
            made = self._build()
            return replace(made, notices=[*made.notices, f"built without the cache: {error}"])

    def kept(self) -> tuple[Path, bytes, Manifest] | None:
        """The entry's plan as it lies in the cache, read and checked, with a manifest for that place; None if there is none."""
        try:
            with locks.shared(store.lock(self.key.digest), self._waiting):
                entry = store.find(self.key.digest)
                if entry is None:
                    return None
                store.touch(entry)
                plan = entry.folder / PLAN
                return plan, store.read(entry, PLAN), self._placed(self._described(entry), plan)
        except (locks.Unusable, DamagedError):
            return None

    @cached_property
    def key(self) -> keys.Key:
        try:
            return keys.of(self.source, self.options)
        except OSError as error:
            raise locks.Unusable(f"{error.filename}: {error.strerror}") from error

    def _made(self) -> CachedBuild:
        """Unusable, before anything was built."""
        key = self.key
        lock = store.lock(key.digest)
        with locks.shared(lock, self._waiting):
            if found := self._found(key):
                return found
        with locks.exclusive(lock, self._waiting):
            damaged = store.find(key.digest) is not None
            if found := self._found(key):
                return found
            made = self._build()
            told = ["the cache's entry was damaged, and was made again"] * damaged + self._keep(key, made)
            return replace(made, key=key.digest, notices=[*made.notices, *told])

    def _build(self) -> CachedBuild:
        from trtconvert.build import build  # TensorRT and all that a build needs

        made = build(self.source, self.plan, self.options, self.progress)
        return CachedBuild(made.plan, made.manifest, "", "", made.notices, made.seconds)

    def _waiting(self) -> None:
        if self.progress is not None:
            self.progress(WAITING, 0, 1)

    def _found(self, key: keys.Key) -> CachedBuild | None:
        """The entry's files written to where the plan is to be; None if there is no entry, or it is damaged."""
        entry = store.find(key.digest)
        if entry is None:
            return None
        try:
            described = self._deliver(entry, key.reads)
        except DamagedError:
            return None
        store.touch(entry)
        follows = "; that build told what follows" if entry.notices else ""
        notice = f"from the cache, built {entry.made} in {entry.seconds:.1f} s{follows}"
        return CachedBuild(self.plan, described, key.digest, entry.made, [notice, *entry.notices])

    def _deliver(self, entry: Entry, reads: tuple[Path, ...]) -> Manifest:
        described, target = self._described(entry), self.plan
        files: Files = {}
        converts = bool(described.precision.file)
        check_outputs((target, manifest.path_for(target), *[manifest.converted_path(target)] * converts), reads)
        if converts:
            store.check(entry)
            try:
                files, precision = _moved(entry.folder / _CONVERTED, target, described.precision)
            except OSError as error:
                raise DamagedError(str(error)) from error
            described = replace(described, precision=precision)
        described = self._placed(described, target)
        write_files(files | {target: store.pieces(entry, PLAN), manifest.path_for(target): manifest.encode(described)})
        return described

    def _described(self, entry: Entry) -> Manifest:
        try:
            return manifest.decode(store.read(entry, _MANIFEST), str(entry.folder))
        except ConvertError as error:
            raise DamagedError(error.what) from error

    def _placed(self, described: Manifest, plan: Path) -> Manifest:
        """The manifest for a plan that lies there, of this model with these plugin files."""
        plugins = [manifest.relative(Path(file), plan) for file in self.options.plugins]
        precision, data = described.precision, self.options.precision.calib
        if data is not None:
            precision = replace(precision, calibration=precision.calibration | {"data": str(data)})
        model = manifest.relative(self.source, plan)
        return replace(described, model=model, plugin_files=plugins, precision=precision)

    def _keep(self, key: keys.Key, made: CachedBuild) -> list[str]:
        """Put what was built into the cache; why not, if it cannot be."""
        described = made.manifest
        if described.plan_bytes > self.limit:
            sizes = f"it has {described.plan_bytes / 1e6:.1f} MB, and the cache may take {self.limit / 1e6:.1f} MB"
            return [f"the plan was not kept: {sizes}; a larger --cache-size keeps it"]
        try:
            if keys.of(self.source, self.options) != key:
                return ["the plan was not kept: its model or another input changed during the build"]
            place = store.folder() / f"{key.digest}.tmp" / PLAN
            files: Files = {}
            if described.precision.file:
                converted, precision = _moved(manifest.converted_path(self.plan), place, described.precision)
                files, described = converted, replace(described, precision=precision)
            files |= {
                place: store.checked(self.plan, described.plan_sha256),
                manifest.path_for(place): manifest.encode(described),
            }
            contents = {path.name: [data] if isinstance(data, bytes) else data for path, data in files.items()}
            store.add(key.digest, contents, _told(self.source, made))
            store.shrink(self.limit, key.digest)
        except OSError as error:
            return [f"the plan was not kept in the cache: {error.strerror or error}"]
        except (ConvertError, DamagedError, locks.Unusable) as error:
            return [f"the plan was not kept in the cache: {error}"]
        return []


def _told(source: Path, made: CachedBuild) -> dict[str, object]:
    described = made.manifest
    return {
        "model": str(source.resolve()),
        "made": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "seconds": round(made.seconds, 1),
        "backend": described.backend_title,
        "targets": described.targets,
        "notices": made.notices,
    }


def _moved(converted: Path, target: Path, precision: Precision) -> tuple[Files, Precision]:
    """The converted model as it is to lie beside the plan `target`, and what its manifest says of it then. Weights in other
    files go with it."""
    path, data = manifest.converted_path(target), converted.read_bytes()
    if hashlib.sha256(data).hexdigest() != precision.sha256:
        raise DamagedError("the converted model was changed")
    files: Files = {path: data}
    if b"location" in data:
        model = onnx.load_from_string(data)
        files = onnx_model.files(model, path, converted)
        data = next(written for file, written in files.items() if file == path and isinstance(written, bytes))
    return files, replace(precision, file=path.name, sha256=hashlib.sha256(data).hexdigest())
