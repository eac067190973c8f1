"""Every built-in op passes its check; its kernels compile for every target, and keep their values in registers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.bench.registers import built_in, compilers, table
from trtconvert import check, gpu, registers, registry
from trtconvert.kernel import ARCHITECTURES, Usage
from trtconvert.launch import Launch, Tensor
from trtconvert.op import Op
from trtconvert.registers import Row

SPILLING = """
extern "C" __global__ void __launch_bounds__(1024, 2) crowded(const IO* x, IO* y) {
    IO kept[256];
    for (int i = 0; i < 256; ++i) kept[i] = x[i * 1024 + threadIdx.x];
    for (int i = 0; i < 256; ++i)
        for (int j = 0; j < 256; ++j) y[(i * 256 + j) * 1024 + threadIdx.x] = kept[i] * kept[j];
}
"""


@pytest.fixture(scope="module")
def compiled() -> list[Row]:
    with compilers() as run:
        return list(registers.rows((use for op in built_in() for use in check.uses(op)), run=run))


@pytest.mark.parametrize("op", built_in(), ids=lambda op: op.name)
def test_kernels_for_all_targets(op: type[Op], compiled: list[Row]) -> None:
    found = [row for row in compiled if row.op == op.name]
    assert {(row.target, row.dtype) for row in found} == {(a, d) for a in ARCHITECTURES for d in op.dtypes}
    assert all(0 < row.usage.registers <= 255 for row in found)
    assert [row for row in found if row.usage.spills] == []


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("name", [op.name for op in built_in()])
def test_built_in_op(name: str) -> None:
    """Here, behind what compiles the same kernels in several processes."""
    results = check.check(name)
    verdicts = {r.check: r.verdict for r in results}
    gpu_verdict = "not run" if gpu.current() is None else "pass"
    assert verdicts == {
        "pattern and body": "pass",
        "fields round trip": "pass",
        "kernel compiles": "pass",
        "engine builds": "pass",
        "kernel": gpu_verdict,
        "engine": gpu_verdict,
    }, results


def test_kernels_for_large_planes() -> None:
    """Of static sizes, as no case has them: other variants are first there."""
    op = registry.find("LayerNormGelu")
    assert op is not None
    inputs = [Tensor("float16", shape, f"in {i}") for i, shape in enumerate(((40, 512, 1024), (512,), (512,)))]
    uses = [(op(axis=1), inputs)]
    with compilers() as run:
        found = list(registers.rows(uses, everything=True, run=run))
    assert {row.defines.partition("RESIDENT=")[2].split()[0] for row in found} == {"640", "512", "1024"}
    assert [row for row in found if row.usage.spills] == []


class Crowded(Op):
    """A kernel that cannot keep its values in the 32 registers that it has."""

    dtypes = ("float32",)
    source = SPILLING

    def output(self, x: Tensor) -> Tensor:
        return x

    def launch(self, x: Tensor, y: Tensor) -> Launch:
        return Launch("crowded", (1, 1, 1), (1024, 1, 1), (x, y))


def test_spills_are_seen() -> None:
    found = list(registers.rows([(Crowded(), [Tensor("float32", (4,), "in 0")])]))
    assert [row.target for row in found] == list(ARCHITECTURES)
    assert all(row.usage.spills or row.usage.stack for row in found)


def test_table_has_the_most_of_each_target() -> None:
    (first, *_) = list(registers.rows([(Crowded(), [Tensor("float32", (4,), "in 0")])]))
    more = replace(first, defines="A=1", usage=Usage(registers=77, spills=8, stack=0, shared=5))
    (line,) = table([first, more])
    assert line[:3] == ["crowded", "float32", "77"]
    assert line[-4:] == [str(max(8, first.usage.spills)), str(first.usage.stack), "5", "2"]
