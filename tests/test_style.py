"""The code's form: ruff, mypy --strict (against tensorrt-stubs too), and rules that no linter knows."""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

MODULES = sorted([*(ROOT / "trtconvert").rglob("*.py"), *(ROOT / "plugins").glob("*.py")])


def tool(*args: str, **env: str) -> None:
    result = subprocess.run([sys.executable, "-m", *args], cwd=ROOT, capture_output=True, text=True, env=env or None)
    assert result.returncode == 0, result.stdout + result.stderr


def test_ruff() -> None:
    tool("ruff", "check", "--no-cache", ".")
    tool("ruff", "format", "--no-cache", "--check", ".")


def test_mypy_strict_against_tensorrt_stubs(tmp_path: Path) -> None:
    """tensorrt-stubs 10.13 has two faults that keep mypy from reading it: a parameter named `in`, and a parameter
    without a default after ones with. Both are mended in a copy."""
    files = importlib.metadata.files("tensorrt-stubs")
    assert files, "pip install --no-deps tensorrt-stubs"
    for file in files:
        if file.suffix == ".pyi":
            text = Path(str(file.locate())).read_text(encoding="utf-8")
            text = re.sub(r"\bin: ", "in_: ", text).replace("channel_axis: int)", "channel_axis: int = ...)")
            target = tmp_path / "stubs" / file
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
    config = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    config = config.replace('follow_imports = "skip"', 'follow_imports = "silent"\nignore_errors = true').replace(
        'module = ["tensorrt.*"]', 'module = ["tensorrt.*", "tensorrt_libs.*", "tensorrt_bindings.*"]'
    )
    (tmp_path / "pyproject.toml").write_text(config, encoding="utf-8")
    environment = {**os.environ, "MYPYPATH": str(tmp_path / "stubs")}
    tool(
        "mypy", "--config-file", str(tmp_path / "pyproject.toml"), "--cache-dir", str(tmp_path / "cache"), **environment
    )


def test_only_backend_imports_tensorrt() -> None:
    found = [m.name for m in MODULES if re.search(r"^\s*(import|from) tensorrt", m.read_text(), re.MULTILINE)]
    assert found == ["backend.py"]


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_module_says_its_job(module: Path) -> None:
    text = module.read_text(encoding="utf-8")
    assert text.startswith('"""')
    assert len(text.splitlines()) <= 350, "a module of this length has taken on a second job"


def test_import_and_help_are_light() -> None:
    """Neither loads TensorRT, onnxruntime, onnx or CUDA."""
    code = """
import sys, trtconvert, trtconvert.cli
from click.testing import CliRunner
assert CliRunner().invoke(trtconvert.cli.cli, ["--help"]).exit_code == 0
heavy = {"tensorrt", "tensorrt_rtx", "onnxruntime", "onnx", "cuda", "numpy", "rich"} & set(sys.modules)
assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-c", code], check=True)
