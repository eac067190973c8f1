"""ONNX's own node tests, one for each op that has floats, converted to 16 bits: valid, and in onnxruntime the same."""

from __future__ import annotations

from tests.suites.precision import conversion, floats


def test_node_tests_converted() -> None:
    cases = {case.op: case for case in reversed(floats())}  # the first of each op
    assert len(cases) > 150
    wrong = {(op, name): conversion(case, name) for op, case in cases.items() for name in ("fp16", "bf16")}
    assert {key: what for key, what in wrong.items() if what} == {}
