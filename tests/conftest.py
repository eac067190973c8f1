"""Shared fixtures: where things are, the kernel cache, and a command runner that sees what a user sees."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SAMPLES = ROOT / "sample_models"

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest file first, so that no core waits for it at the end."""
    items.sort(key=lambda item: item.path.name != "test_fuse_property.py")


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty cache for the whole run, so that tests compile what they say they compile."""
    folder = tmp_path_factory.mktemp("cache")
    os.environ["TRTCONVERT_CACHE_DIR"] = str(folder)
    return folder


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run `trtconvert ARGS` in an empty folder, as a user would."""

    def command(
        *args: object, env: dict[str, str] | None = None, cwd: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", "from trtconvert.cli import main; main()", *map(str, args)],
            capture_output=True,
            text=True,
            cwd=cwd or tmp_path,
            env={**os.environ, **(env or {})},
            check=False,
        )

    return command


def assert_clean_error(result: subprocess.CompletedProcess[str], *words: str) -> None:
    """Exit code 1, one to four lines on stderr that hold the words, no traceback."""
    assert result.returncode == 1, result.stderr + result.stdout
    assert "Traceback" not in result.stderr
    lines = [line for line in result.stderr.splitlines() if line.strip()]
    assert 1 <= len(lines) <= 4, result.stderr
    assert lines[0].startswith("error: ")
    for word in words:
        assert word in result.stderr, f"{word!r} not in {result.stderr!r}"
