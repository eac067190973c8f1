"""A short run of both fuzzers; `python -m tests.suites.fuzz` runs them for longer."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.suites.fuzz import fuzz

SECONDS = 15


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["bytes", "models"])
def test_nothing_does_harm(kind: str, tmp_path: Path) -> None:
    told: list[str] = []
    assert fuzz(kind, SECONDS, tmp_path, told.append) == 0, told
    assert "refused" in told[-1]
    assert "built" in told[-1]
