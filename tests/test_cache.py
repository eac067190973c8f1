"""The engine cache: what makes two builds the same, what a hit is, and that nothing which goes wrong with it spoils a build."""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import importlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.conftest import Run, assert_clean_error
from tests.native_libraries import needs_compiler, plugin_library
from tests.suites import cache as suite
from trtconvert import BuildOptions, ConvertError, NoUsableGpuError, cached_build, gpu, load_or_build, manifest, verify
from trtconvert.cache import WAITING
from trtconvert.caching import key as keys
from trtconvert.caching import locks, store
from trtconvert.custom_ops import wishes
from trtconvert.precision.options import PrecisionOptions
from trtconvert.shapes import Range

BUILD = importlib.import_module("trtconvert.build")
FAST = BuildOptions(targets=("sm_89",), fuse="none")
PLUGIN = """
from pathlib import Path

from helper_of_op import FACTOR
from trtconvert.op import Op


class Scaled(Op):
    name = "Scaled"
    factor: float = FACTOR
    source = Path(__file__).with_name("scaled.cu").read_text()

    def output(self, x):
        return x.like()
"""


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own; kernels are compiled in it too."""
    monkeypatch.setenv("TRTCONVERT_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """y = Relu(x W), W in the file."""
    return product(tmp_path / "m.onnx")


def product(path: Path, seed: int = 0, external: bool = False) -> Path:
    weights = np.random.default_rng(seed).normal(size=(64, 64)).astype(np.float32)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["p"], name="product"), helper.make_node("Relu", ["p"], ["y"])]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 64]) for name in "xy")
    graph = helper.make_graph(nodes, "g", [x], [y], [numpy_helper.from_array(weights, "w")])
    path.parent.mkdir(parents=True, exist_ok=True)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(made, path, save_as_external_data=external, location="weights.bin", size_threshold=0)
    return path


@pytest.fixture
def no_build(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is asked for must be in the cache."""

    def fails(*_: Any) -> None:
        raise AssertionError("it was built")

    monkeypatch.setattr(BUILD, "build", fails)


def entry(options: BuildOptions, model: Path) -> store.Entry:
    found = store.find(keys.of(model, options).digest)
    assert found is not None
    return found


# --- hits ----------------------------------------------------------------------------------------------------------


def test_equal_contents_are_built_once(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = cached_build(model, tmp_path / "a.plan", FAST)
    assert not first.hit
    assert first.key == store.entries()[0].key
    copy = Path(shutil.copy(model, tmp_path / "elsewhere.onnx"))
    (tmp_path / "link.onnx").symlink_to(copy)
    monkeypatch.setattr(BUILD, "build", lambda *_: pytest.fail("it was built"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").mkdir()
    for source in (copy, tmp_path / "link.onnx", Path("elsewhere.onnx")):
        again = cached_build(source, tmp_path / "out" / "b.plan", FAST)
        assert again.hit
        assert again.made == store.entries()[0].made
        assert again.notices[0].startswith(f"from the cache, built {again.made}")
        assert again.plan.read_bytes() == first.plan.read_bytes()
        assert manifest.read(again.plan) == dataclasses.replace(again.manifest)
        assert (again.plan.parent / again.manifest.model).resolve() == copy
    assert verify(again.plan).passed


def test_a_hit_tells_what_the_build_told(tmp_path: Path) -> None:
    source = product(tmp_path / "m.onnx")
    first = cached_build(source, None, FAST)
    assert first.plan == tmp_path / "m.plan"
    assert any("dynamic first dimension" in notice for notice in first.notices), first.notices
    again = cached_build(source, None, FAST)
    assert again.notices[1:] == first.notices
    assert again.notices[0].endswith("; that build told what follows")


def test_the_command_says_where_the_engine_came_from(model: Path, run: Run) -> None:
    args = ("build", model, "-o", "e.plan", "--cache", "--target", "sm_89", "--fuse", "none")
    assert "from the cache" not in run(*args).stderr
    result = run(*args)
    assert result.returncode == 0
    assert "note: from the cache, built 20" in result.stderr
    assert result.stdout.splitlines()[0].startswith("plan      e.plan (")
    told = json.loads(run(*args, "--json").stdout)["cache"]
    assert told["hit"]
    assert len(told["key"]) == 64
    assert "cache" not in json.loads(run(*args[:4], *args[5:], "--json").stdout)
    wrong = run("build", model, "--cache-size", "1G")
    assert wrong.returncode == 2
    assert "--cache-size needs --cache" in wrong.stderr


def test_a_hit_loads_no_tensorrt_and_takes_less_than_50_ms(model: Path, tmp_path: Path) -> None:
    """In a process of its own: the processor's time for the first hit, all digests included, which other processes do not spoil;
    tests/suites/cache.py measures by the clock."""
    code = f"""
import sys, time
from trtconvert import BuildOptions, cached_build
options = BuildOptions(targets=("sm_89",), fuse="none")
start = time.process_time()
hit = cached_build({str(model)!r}, None, options).hit
print(hit, time.process_time() - start)
assert not hit or not {{"tensorrt_rtx", "tensorrt", "onnxruntime", "polygraphy", "onnx_graphsurgeon"}} & set(sys.modules)
"""
    told = [subprocess.check_output([sys.executable, "-c", code], text=True).split() for _ in range(4)]
    assert [hit for hit, _ in told] == ["False", "True", "True", "True"]
    best = min(float(seconds) for _, seconds in told[1:])
    assert best < suite.HIT_MS / 1e3


@pytest.mark.parametrize("external", [False, True])
def test_a_converted_model_goes_with_its_plan(tmp_path: Path, external: bool) -> None:
    options = dataclasses.replace(FAST, precision=PrecisionOptions("fp16"))
    source = product(tmp_path / "in" / "m.onnx", external=external)
    first = cached_build(source, tmp_path / "in" / "a.plan", options)
    (tmp_path / "out").mkdir()
    again = cached_build(source, tmp_path / "out" / "b.plan", options)
    assert again.hit
    assert again.manifest.precision.file == "b.plan.onnx"
    shutil.rmtree(store.folder())
    first.plan.unlink()
    assert verify(again.plan).passed


@needs_compiler
def test_the_manifest_names_the_library_that_was_given(tmp_path: Path) -> None:
    library = Path(shutil.copy(plugin_library(name="Kept"), tmp_path / "libkept.so"))
    node = helper.make_node("Kept", ["x"], ["y"], domain="acme")
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 4]) for name in "xy")
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("acme", 1)]
    onnx.save(helper.make_model(helper.make_graph([node], "g", [x], [y]), opset_imports=opsets), tmp_path / "m.onnx")
    options = dataclasses.replace(FAST, plugins=(library,))
    assert not cached_build(tmp_path / "m.onnx", None, options).hit
    (tmp_path / "moved").mkdir()
    moved = dataclasses.replace(FAST, plugins=(Path(shutil.copy(library, tmp_path / "moved")),))
    again = cached_build(tmp_path / "m.onnx", tmp_path / "moved" / "e.plan", moved)
    assert again.hit
    assert again.manifest.plugin_files == ["libkept.so"]
    moved.plugins[0].write_bytes(library.read_bytes() + b"\0")
    keys._plugin.cache_clear()
    assert keys.of(tmp_path / "m.onnx", moved).digest != again.key


def test_load_or_build_loads_out_of_the_cache(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What would be loaded on a GPU: first what was built, then the entry itself, with a manifest that names this model."""
    engine = importlib.import_module("trtconvert.engine")
    monkeypatch.setattr(gpu, "require", lambda: None)
    monkeypatch.setattr(engine, "load", lambda *told, **_: told[:3])
    path, data, described = load_or_build(model, None, FAST)
    assert not path.exists()
    shutil.copy(model, model.parent / "copy.onnx")
    monkeypatch.setattr(BUILD, "build", lambda *_: pytest.fail("it was built"))
    kept, same, told = load_or_build(model.parent / "copy.onnx", None, FAST)
    assert kept.parent == store.entries()[0].folder
    assert (same, told.plan_sha256) == (data, described.plan_sha256)
    assert (kept.parent / told.model).resolve() == model.parent / "copy.onnx"
    assert {p.suffix for p in model.parent.iterdir()} == {".onnx", ""}
    load_or_build(model, model.parent / "e.plan", FAST)
    assert manifest.read(model.parent / "e.plan").model == "m.onnx"


# --- keys ----------------------------------------------------------------------------------------------------------

OTHER: dict[str, Any] = {
    "patterns": ("layernorm-gelu",),
    "fuse": "all",
    "no_fuse": ("product",),
    "shapes": {"x": Range((1, 64), (2, 64), (4, 64))},
    "bake": {"x": np.zeros((1, 64), np.float32)},
    "values": {"x": Range((1,), (2,), (4,))},
    "targets": ("sm_86",),
    "wishes": wishes.parse((), (), ("product:0=float16",)),
    "precision": PrecisionOptions("fp16", keep_fp32=("product",)),
    "opt_level": 2,
    "workspace": 1 << 20,
    "refit": True,
    "strip_weights": True,
    "version_compatible": True,
    "hardware_compatible": True,
}


ELSEWHERE = ("backend", "plugins")  # plugins: each file in a process of its own, see below


@pytest.mark.parametrize("option", [f.name for f in dataclasses.fields(BuildOptions) if f.name not in ELSEWHERE])
def test_options_are_in_the_key(model: Path, option: str) -> None:
    if option in ("timing_cache", "verbose"):
        changed = dataclasses.replace(FAST, **{option: Path("cache.bin") if option == "timing_cache" else True})
        assert keys.of(model, changed).digest == keys.of(model, FAST).digest
    else:
        changed = dataclasses.replace(FAST, **{option: OTHER[option]})
        assert keys.of(model, changed).digest != keys.of(model, FAST).digest


def test_baked_values_are_told_by_content(model: Path) -> None:
    """numpy arrays by dtype, shape and bytes; what has no content that is known is not cached."""
    zeros = np.zeros((1, 64), np.float32)
    values = [
        zeros,
        zeros.astype(np.float64),
        zeros.reshape(64),
        zeros + 1,
        numpy_helper.from_array(zeros),
        0.0,
        [[0.0] * 64],
    ]
    assert len({keys.of(model, BuildOptions(bake={"x": value})).digest for value in values}) == len(values)
    assert keys.of(model, BuildOptions(bake={"x": zeros.copy()})) == keys.of(model, BuildOptions(bake={"x": zeros}))
    with pytest.raises(locks.Unusable, match="holds a object"):
        keys.of(model, BuildOptions(bake={"x": object()}))


def test_the_order_of_names_and_other_words_for_the_targets_are_not(model: Path) -> None:
    one, two = Range((1,), (2,), (3,)), Range((1,), (1,), (1,))
    pairs = [({"a": one, "b": two}, ("all",)), ({"b": two, "a": one}, ())]
    assert len({keys.of(model, BuildOptions(shapes=s, targets=t)).digest for s, t in pairs}) == 1


def test_contents_are_in_the_key(tmp_path: Path) -> None:
    """Of external data, calibration data and baked values; where they lie is not."""

    def digest(folder: str, weights: int = 0, calibration: int = 0, baked: int = 0) -> str:
        place = tmp_path / folder
        source = product(place / "m.onnx", weights, external=True)
        np.save(place / "x.npy", np.full((1, 64), baked, np.float32))
        (place / "samples" / "deep").mkdir(parents=True, exist_ok=True)
        np.savez(place / "samples" / "deep" / "a.npz", x=np.full((1, 64), calibration))
        precision = PrecisionOptions("int8", calib=place / "samples")
        return keys.of(source, BuildOptions(bake={"x": str(place / "x.npy")}, precision=precision)).digest

    same = digest("one")
    assert digest("two") == same
    assert len({same, digest("one", weights=1), digest("one", calibration=1), digest("one", baked=1)}) == 4


def test_sources_of_plugin_files_are_in_the_key(model: Path, tmp_path: Path) -> None:
    """The file, its kernel, and a module beside it; each in a process of its own, as loaded code stays what it is."""

    def digest(folder: str, plugin: str = PLUGIN, kernel: str = "// 1", factor: str = "FACTOR = 1.0") -> str:
        place = tmp_path / folder
        place.mkdir(exist_ok=True)
        for name, text in (("scaled.py", plugin), ("scaled.cu", kernel), ("helper_of_op.py", factor)):
            (place / name).write_text(text)
        code = f"""
from pathlib import Path
from trtconvert import BuildOptions
from trtconvert.caching.key import of
print(of(Path({str(model)!r}), BuildOptions(plugins=(Path("scaled.py"),))).digest)
"""
        environment = {**os.environ, "PYTHONPATH": str(place), "PYTHONDONTWRITEBYTECODE": "1"}
        return subprocess.check_output([sys.executable, "-c", code], text=True, cwd=place, env=environment).strip()

    same = digest("one")
    assert digest("two") == same
    others = {digest("one", kernel="// 2"), digest("one", factor="FACTOR = 2.0"), digest("one", plugin=f"{PLUGIN}\n#")}
    assert len(others | {same}) == 4


def test_an_op_without_a_file_is_not_cached(model: Path) -> None:
    code = f"""
from trtconvert import BuildOptions, Op, cached_build, register
@register
class Mine(Op):
    name = "Mine"
    source = ""
made = cached_build({str(model)!r}, None, BuildOptions(targets=("sm_89",), fuse="none"))
print(made.hit, made.notices)
"""
    told = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert told.startswith("False")
    assert "built without the cache: the op Mine was defined in no file" in told


@pytest.mark.parametrize(
    "name", ["layer_norm.cuh", "layer_norm_gelu.cu", "layer_norm_gelu.py", "lower.py", "measured.json"]
)
def test_the_tools_own_kernels_and_ops_are_in_the_key(name: str, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = keys.of(model, FAST).digest
    read = Path.read_bytes

    def changed(path: Path) -> bytes:
        return read(path) + b"//" * (path.name == name)

    keys._sources.cache_clear()
    monkeypatch.setattr(Path, "read_bytes", changed)
    after = keys.of(model, FAST).digest
    keys._sources.cache_clear()
    assert after != before


# --- what goes wrong -----------------------------------------------------------------------------------------------


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize("name", ["engine.plan", "engine.plan.json", "entry.json"])
@pytest.mark.parametrize("harm", [_flip, _cut, Path.unlink], ids=["flip", "cut", "unlink"])
def test_a_damaged_entry_is_made_again(model: Path, name: str, harm: Callable[[Path], None]) -> None:
    right = cached_build(model, None, FAST).manifest.plan_sha256
    harm(entry(FAST, model).folder / name)
    again = cached_build(model, None, FAST)
    assert not again.hit
    assert again.manifest.plan_sha256 == right
    assert any("damaged" in notice for notice in again.notices) == (name != "entry.json")
    third = cached_build(model, None, FAST)
    assert third.hit
    assert not any("damaged" in notice for notice in third.notices)


def test_an_entry_that_goes_while_it_is_read_is_made_again(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cached_build(model, None, FAST)
    find = store.find

    def gone(key: str) -> store.Entry | None:
        found = find(key)
        shutil.rmtree(store.folder(), ignore_errors=True)
        return found

    monkeypatch.setattr(store, "find", gone)
    assert not cached_build(model, None, FAST).hit


@pytest.mark.parametrize("place", ["/proc/1/none", "file"])
def test_without_a_usable_cache_it_is_built(place: str, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (model.parent / "file").touch()
    monkeypatch.setenv("TRTCONVERT_CACHE_DIR", str(model.parent / place))
    made = cached_build(model, None, FAST)
    assert not made.hit
    assert made.plan.is_file()
    assert made.notices[-1].startswith("built without the cache: ")


def test_a_cache_that_can_only_be_read_serves(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cached_build(model, None, FAST)
    opened = os.open

    def read_only(path: Any, flags: int, *mode: int, **more: Any) -> int:
        if Path(path).suffix == ".lock" and flags & os.O_RDWR:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return opened(path, flags, *mode, **more)

    def never(*_: Any) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "open", read_only)
    monkeypatch.setattr(os, "utime", never)
    monkeypatch.setattr(BUILD, "build", never)
    assert cached_build(model, None, FAST).hit


def test_a_full_disk_costs_the_entry_only(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(store, "_write", full)
        made = cached_build(model, None, FAST)
    assert made.notices[-1] == "the plan was not kept in the cache: No space left on device"
    assert verify(made.plan).passed
    assert [p.suffix for p in store.folder().iterdir()] == [".lock"]
    assert not cached_build(model, None, FAST).hit
    assert cached_build(model, None, FAST).hit


def test_a_model_that_changes_during_the_build_is_not_kept(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build = BUILD.build

    def changing(*args: Any) -> Any:
        made = build(*args)
        product(model, seed=7)
        return made

    monkeypatch.setattr(BUILD, "build", changing)
    made = cached_build(model, None, FAST)
    assert made.notices[-1].startswith("the plan was not kept: its model or another input changed")
    assert store.entries() == []


def test_errors_are_those_of_build(tmp_path: Path, model: Path) -> None:
    with pytest.raises(ConvertError, match="model file not found"):
        cached_build(tmp_path / "none.onnx", None, FAST)
    with pytest.raises(ConvertError, match="unknown target"):
        cached_build(model, None, BuildOptions(targets=("sm_1",)))
    with pytest.raises(ConvertError, match="input file not found"):
        cached_build(
            model, None, dataclasses.replace(FAST, precision=PrecisionOptions("int8", calib=tmp_path / "none"))
        )
    cached_build(model, None, FAST)
    with pytest.raises(ConvertError, match="overwrite an input"):
        cached_build(model, model, FAST)
    with pytest.raises(ConvertError, match="output folder does not exist"):
        cached_build(model, tmp_path / "none" / "e.plan", FAST)


@pytest.mark.skipif(gpu.current() is not None, reason="as on a machine without a GPU")
def test_without_a_gpu_nothing_is_built_to_be_loaded(model: Path, no_build: None) -> None:
    with pytest.raises(NoUsableGpuError):
        load_or_build(model, None, FAST)


# --- size, list, clear ---------------------------------------------------------------------------------------------


def test_what_was_not_used_for_longest_goes_first(tmp_path: Path) -> None:
    sources = [product(tmp_path / f"{seed}.onnx", seed) for seed in range(4)]
    for age, source in zip((300, 200, 100), sources[:3], strict=True):
        cached_build(source, None, FAST)
        os.utime(entry(FAST, source).folder / "entry.json", (1e9 - age, 1e9 - age))
    cached_build(sources[0], None, FAST)  # used now
    size = entry(FAST, sources[0]).bytes
    in_use = store.lock(entry(FAST, sources[1]).key)
    with locks.shared(in_use, lambda: None):  # as another process holds it
        cached_build(sources[3], None, FAST, limit=3 * size + size // 2)
    kept = {Path(e.model).stem for e in store.entries()}
    assert kept == {"0", "1", "3"}
    too_large = cached_build(product(tmp_path / "4.onnx", 4), None, FAST, limit=100)
    assert "the cache may take" in too_large.notices[-1]
    assert len(store.entries()) == 3


def test_list_and_clear(tmp_path: Path, run: Run) -> None:
    assert "0 engines" in run("cache", "list").stderr
    sources = [product(tmp_path / f"{seed}.onnx", seed) for seed in range(3)]
    made = [cached_build(source, None, FAST) for source in sources]
    old = entry(FAST, sources[2])
    os.utime(old.folder / "entry.json", (1e9, 1e9))
    listed = json.loads(run("cache", "list", "--json").stdout)
    assert [e["model"] for e in listed["entries"]][-1] == str(sources[2])
    assert listed["bytes"] == sum(e.bytes for e in store.entries())
    table = run("cache", "list").stdout
    assert made[0].key[:12] in table
    assert "2001-09-09T01:46:40" in table
    assert run("cache", "clear", "--older-than", "30d").stdout.startswith("removed 1 engine,")
    assert_clean_error(run("cache", "clear", "0123"), "no entry 0123")
    assert run("cache", "clear", "--older-than", "x").returncode == 2
    with locks.shared(store.lock(made[1].key), lambda: None):
        result = run("cache", "clear", made[1].key[:12])
        assert "removed 0 engines" in result.stdout
        assert "a process uses it" in result.stderr
    assert json.loads(run("cache", "clear", made[1].key[:12], "--json").stdout)["removed"][0]["key"] == made[1].key
    (store.folder() / f"{'a' * 64}.tmp").mkdir()
    assert "removed 1 engine," in run("cache", "clear").stdout
    assert list(store.folder().iterdir()) == []


def test_who_waits_is_told_so(model: Path, own_cache: Path) -> None:
    """The other process builds for as long as this test holds its lock."""
    key = keys.of(model, FAST).digest
    told: list[str] = []
    lock = store.lock(key)
    lock.parent.mkdir(parents=True)
    handle = os.open(lock, os.O_RDWR | os.O_CREAT)
    fcntl.flock(handle, fcntl.LOCK_EX)

    def progress(phase: str, *_: int) -> None:
        told.append(phase)
        if phase == WAITING:
            fcntl.flock(handle, fcntl.LOCK_UN)

    assert not cached_build(model, None, FAST, progress).hit
    os.close(handle)
    assert told[0] == WAITING


# --- stress --------------------------------------------------------------------------------------------------------


def test_threads_build_once_too(model: Path, tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda n: cached_build(model, tmp_path / f"{n}.plan", FAST), range(4)))
    assert sorted(result.hit for result in made) == [False, True, True, True]
    assert len({result.plan.read_bytes() for result in made}) == 1


def test_who_races_builds_once(tmp_path: Path) -> None:
    """The whole: python -m tests.suites.cache race, 50 processes on 5 keys."""
    found = suite.race(tmp_path / "race", 12, 3)
    assert found.faults == []
    assert (found.builds, found.entries, found.plans) == (3, 3, [1, 1, 1])


def test_who_is_killed_leaves_nothing_half_done(tmp_path: Path) -> None:
    """The whole: python -m tests.suites.cache kills, 100 of them."""
    found = suite.kills(tmp_path / "kills", 12)
    assert found.faults == []
    assert sum(found.moments.values()) >= 12
