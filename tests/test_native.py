"""The C++ plugin library: compiled with g++ alone, loaded by TensorRT-RTX, building the same plans as the Python creators."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.registers import built_in
from tests.native_libraries import needs_compiler
from tests.native_plans import all_cases, fields_in, plans
from trtconvert.model import all_nodes
from trtconvert.op import Op

pytestmark = needs_compiler


@pytest.mark.parametrize(
    ("op", "dtype"), [pytest.param(op, dtype, id=f"{op.name} {dtype}") for op in built_in() for dtype in op.dtypes]
)
def test_fields_are_the_same(op: type[Op], dtype: str, tmp_path: Path) -> None:
    """An engine of every case is built through the C++ creators. Its fields are those of the Python creators, byte for byte
    and in the same order; the rest of a plan is TensorRT's, and not the same twice."""
    first, second, carrying = plans(*all_cases(op, dtype), tmp_path)
    assert not any(node.op for node in carrying.plugin_nodes)
    assert len(first) == len(second)
    fields = fields_in(second)
    assert fields == fields_in(first)
    texts = [value for name, value in fields if name == "launch"]
    given = [a.s for node in all_nodes(carrying.model) for a in node.attribute if a.name == "trtconvert_launch"]
    assert len(given) == len(op.cases)
    assert set(texts) == set(given)
    assert len(fields) == 2 * len(texts) >= 2 * len(op.cases)
