"""Wrong engines are caught and right ones pass: with engines, in fp32, fp16 and int8, over 20 inputs each."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.planted_faults import engines
from tests.planted_faults import DTYPES, missed, model
from trtconvert.accuracy.proof import Proof


@pytest.mark.parametrize("dtype", DTYPES)
def test_none_is_missed_and_none_is_a_false_alarm(dtype: str, tmp_path: Path) -> None:
    assert missed(Proof(model(dtype), Path()), 20, dtype, engines(dtype, tmp_path)) == []
