"""The C++ plugin library: compiled with g++ alone, loaded by TensorRT-RTX, building the same plans as the Python creators."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.bench.registers import built_in
from tests.native_drive import drive, launches, tensors, write_fields
from tests.native_libraries import needs_compiler
from tests.native_plans import all_cases, fields_in, plans
from trtconvert import check, launch
from trtconvert.launch import Dim, Tensor
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


@pytest.mark.parametrize("op", built_in(), ids=lambda op: op.name)
def test_launches_are_those_of_the_python_reader(op: type[Op], tmp_path: Path) -> None:
    """Every case with all dimensions open: the library computes the grids and arguments that Python computes."""
    for tested in op.cases:
        made = check.instance(op, tested)
        symbols = [
            Tensor(op.dtypes[0], tuple(Dim.of_input(i, axis) for axis in range(len(shape))), f"in {i}")
            for i, shape in enumerate(tested.shapes)
        ]
        known = [Tensor(t.dtype, shape, t.slot) for t, shape in zip(symbols, tested.shapes, strict=True)]
        inputs = symbols if made.accepts(*symbols) is None else known
        outputs = made.outputs(*inputs)
        for way in made.variants(*inputs, *outputs):
            numbered = tuple(replace(one, kernel=f"k{len(one.args)}") for one in way)
            fields = {"launch": launch.encode(numbered).encode(), "sm_86": b"image"}
            result = drive(op.name, write_fields(tmp_path / "f", fields), tensors(tested.shapes, len(outputs)))
            assert result.returncode == 0, result.stdout
            want = launches(launch.decode(launch.encode(numbered)), tested.shapes, len(outputs))
            first, _ = result.stdout.split("again\n")
            assert [line for line in first.splitlines() if line.startswith("launch")] == want
            assert "fields same" in first
