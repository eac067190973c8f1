"""Prints the corpus's totals."""

from __future__ import annotations

from typing import Any

from tests.corpus import totals


def pytest_terminal_summary(terminalreporter: Any) -> None:
    for line in totals.lines():
        terminalreporter.write_line(f"corpus: {line}")
