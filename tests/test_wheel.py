"""The wheel: with a C++ compiler it carries the plugin library and is for one platform; without one it says how to build it."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.native_libraries import needs_compiler
from trtconvert.native import LOADER, NAME

IN_WHEEL = f"trtconvert/plugins/native/{NAME}"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy, since building leaves files behind."""
    left_out = shutil.ignore_patterns(".*", "tests", "build", "*.egg-info", "*.plan*", "*.onnx")
    return Path(shutil.copytree(ROOT, tmp_path_factory.mktemp("wheel") / "project", ignore=left_out))


def wheel(project: Path, folder: Path, path: str) -> Path:
    """`pip wheel .` with that PATH and with the setuptools installed here, since tests need no network."""
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", folder, project]
    result = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "PATH": path})
    assert result.returncode == 0, result.stderr
    (made,) = folder.glob("*.whl")
    return made


@needs_compiler
def test_with_a_compiler(project: Path, tmp_path: Path) -> None:
    made = wheel(project, tmp_path, os.environ["PATH"])
    assert "-py3-none-linux_" in made.name
    with zipfile.ZipFile(made) as file:
        assert f"trtconvert/plugins/native/{LOADER}" in file.namelist()
        library = ctypes.CDLL(file.extract(IN_WHEEL, tmp_path))
    count = ctypes.c_int32()
    library.getCreators(ctypes.byref(count))
    assert count.value == 8


def test_without_a_compiler(project: Path, tmp_path: Path) -> None:
    """It is for any platform, works, and says what to do for the library. What an earlier build has left is not in it."""
    made = wheel(project, tmp_path, "")
    assert made.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(made) as file:
        assert not any(name.endswith(".so") for name in file.namelist())
        file.extractall(tmp_path / "site")
    environment = {
        **os.environ,
        "PATH": "",
        "PYTHONPATH": str(tmp_path / "site"),
        "TRTCONVERT_CACHE_DIR": str(tmp_path),
    }
    command = [sys.executable, "-m", "trtconvert", "plugins", "lib"]
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=tmp_path)
    assert result.returncode == 1, result.stdout
    assert "there is no g++" in result.stderr
    assert "trtconvert plugins build-native" in result.stderr
