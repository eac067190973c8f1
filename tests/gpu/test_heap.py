"""Engines come, run and go without a write beside what they were given: under glibc's malloc check, which ends the process.

`MALLOC_CHECK_=3` with libc_malloc_debug.so tells "free(): invalid pointer" of a block written over its end, or freed before.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from onnx import ModelProto, TensorProto, helper

from tests.malloc_check import assert_whole, needs_malloc_check
from trtconvert import BuildOptions, build, check, registry
from trtconvert.model import serialize
from trtconvert.op import case
from trtconvert.shapes import parse

PROGRAM = """
import gc, sys
import numpy as np
from trtconvert import load_engine

plan, native, graphs = sys.argv[1], sys.argv[2] == "native", int(sys.argv[3])
random = np.random.default_rng(0)
for _ in range(4):
    engine = load_engine(plan, native=native, graphs=graphs)
    for rows in (7, 40, 1, 7):
        shapes = {t.name: [rows if size == -1 else size for size in t.shape] for t in engine.inputs}
        engine.run({name: random.random(shape, np.float32).round() for name, shape in shapes.items()})
    del engine
    gc.collect()
print("whole")
"""


def norm() -> ModelProto:
    """y = GELU(LayerNorm(x)), x [N, 64]."""
    op = registry.find("LayerNormGelu")
    assert op is not None
    model = check.node_model(op, case((8, 64), (64,), (64,), axis=-1), "float32")
    for value in (*model.graph.input[:1], *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "N"
    return model


def nonzero() -> ModelProto:
    """y = NonZero(x), x [N, 64]: the data decides y's shape."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 64])
    y = helper.make_tensor_value_info("y", TensorProto.INT64, [2, None])
    graph = helper.make_graph([helper.make_node("NonZero", ["x"], ["y"])], "g", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@needs_malloc_check
@pytest.mark.parametrize("graphs", [0, 2])
@pytest.mark.parametrize("creators", ["python", "native"])
@pytest.mark.parametrize("model", [norm, nonzero])
def test_the_heap_stays_whole(model: Callable[[], ModelProto], creators: str, graphs: int, tmp_path: Path) -> None:
    """The context of a plugin with a data-dependent output deletes one that nobody asked for capabilities: see
    tests/test_lifetime.py."""
    (tmp_path / "m.onnx").write_bytes(serialize(model()))
    options = BuildOptions(fuse="none", shapes=parse(["x=1x64,7x64,40x64"]))
    plan = build(tmp_path / "m.onnx", tmp_path / "m.plan", options).plan
    assert_whole(PROGRAM, str(plan), creators, str(graphs))
