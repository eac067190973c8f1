"""GPU tests skip themselves where no GPU can run an engine."""

from __future__ import annotations

import pytest

from trtconvert import gpu


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if gpu.current() is None:
        for item in items:
            if "tests/gpu" in item.path.as_posix():
                item.add_marker(pytest.mark.skip(reason=str(gpu.find())))
