"""Plans that TensorRT itself refuses on a GPU: what its log becomes. What needs no GPU is in tests/test_vanish.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import SAMPLES
from trtconvert import BuildOptions, ConvertError, NoUsableGpuError, build, gpu, load_engine, manifest
from trtconvert.compare import difference


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan with one plugin, LayerNormGelu version 1, for this GPU, and no manifest."""
    made = build(
        SAMPLES / "sam_upscaler.onnx", tmp_path_factory.mktemp("vanish") / "sam.plan", BuildOptions(fuse="all")
    )
    manifest.path_for(made.plan).unlink()
    return made.plan


CODE = """
import sys
import trtconvert
from trtconvert import engine, registration
name, version, namespace = sys.argv[2:]
def creators(backend, plan, described):  # as in a program that registers others
    if name:
        registration.ensure_creator(backend, name, version, namespace)
engine.register_creators = creators
try:
    trtconvert.load_engine(sys.argv[1])
except trtconvert.ConvertError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("registered", "sentence"),
    [
        (("", "", ""), "plugin LayerNormGelu version 1, and no creator of that name is registered"),
        (("LayerNormGelu", "2", ""), "plugin LayerNormGelu version 1; here LayerNormGelu has version 2"),
        (("LayerNormGelu", "1", "mine"), "LayerNormGelu is registered in namespace 'mine', not in ''"),
    ],
    ids=["missing", "version", "namespace"],
)
def test_plugins(plan: Path, registered: tuple[str, str, str], sentence: str) -> None:
    """In a process of its own: no abort, and no traceback."""
    command = [sys.executable, "-c", CODE, str(plan), *registered]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "Traceback" not in result.stderr
    assert sentence in result.stdout
    assert "fix: " in result.stdout


def test_another_gpu(tmp_path: Path) -> None:
    """Told by the manifest; without one TensorRT says so, or takes it: TensorRT-RTX 1.6.1 did on an H200, right."""
    here = gpu.require()
    other = "sm_86" if here.arch != "sm_86" else "sm_120"
    result = build(SAMPLES / "sam_upscaler.onnx", tmp_path / "e.plan", BuildOptions(fuse="all", targets=(other,)))
    with pytest.raises(NoUsableGpuError, match=f"built for {other}, and this GPU is {here.arch}"):
        load_engine(result.plan)
    manifest.path_for(result.plan).unlink()
    feeds = {"image_embedding": np.random.default_rng(0).standard_normal((1, 64, 16, 16), np.float32)}
    told = None
    try:
        (got,) = load_engine(result.plan).run(feeds).values()
    except NoUsableGpuError as error:
        told = error
    if told is not None:
        assert "cannot run on this GPU" in told.what
        assert f"--target {here.arch}" in str(told.fix)
    else:
        made = build(SAMPLES / "sam_upscaler.onnx", tmp_path / "here.plan", BuildOptions(fuse="all"))
        (want,) = load_engine(made.plan).run(feeds).values()
        assert difference(got, want) <= 1e-3


def test_cut_off(plan: Path, tmp_path: Path) -> None:
    """At every length that an interrupted copy may leave."""
    data = plan.read_bytes()
    cut = tmp_path / "cut.plan"
    for length in (0, 4, 63, 64, 100, 4096, len(data) // 2, len(data) - 1):
        cut.write_bytes(data[:length])
        with pytest.raises(ConvertError, match=r"cut off|no TensorRT plan|empty"):
            load_engine(cut)


def test_newer_fields(plan: Path, tmp_path: Path) -> None:
    newer = tmp_path / "newer.plan"
    newer.write_bytes(plan.read_bytes().replace(b"trtconvert-launch 2\n", b"trtconvert-launch 9\n"))
    with pytest.raises(ConvertError, match="launch format 9, this trtconvert reads up to 2"):
        load_engine(newer)


def test_the_plan_itself_loads(plan: Path) -> None:
    assert [io.name for io in load_engine(plan).inputs] == ["image_embedding"]
