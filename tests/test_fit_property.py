"""Shapes evaluated before a build against onnxruntime: random models, whose random sizes mostly do not fit."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from trtconvert import reference
from trtconvert.graph import describe
from trtconvert.profiles import fit
from trtconvert.shapes import Profile, Range

MODELS = 60  # of each seed
N = helper.make_node
Constant = Callable[[Any], str]
Node = Callable[[random.Random, str, str, Constant], NodeProto]

# Nodes that read a, some b as well, and whose shape rules ONNX and onnxruntime check each in its own way.
NODES: Sequence[Node] = (
    lambda _, a, b, __: N("Add", [a, b], ["t"]),
    lambda _, a, b, __: N("MatMul", [a, b], ["t"]),
    lambda r, a, b, _: N("Concat", [a, b], ["t"], axis=r.randrange(3)),
    lambda r, a, _, c: N(
        "Conv",
        [a, c(np.ones((4, r.choice([3, 4]), r.choice([1, 3, 7])), np.float32))],
        ["t"],
        pads=[r.randrange(3)] * 2,
        strides=[r.choice([1, 2, 3])],
        dilations=[r.choice([1, 2])],
    ),
    lambda r, a, *_: N("MaxPool", [a], ["t"], kernel_shape=[r.choice([2, 5])], ceil_mode=r.randrange(2)),
    lambda r, a, _, c: N("Reshape", [a, c(r.choice([[0, -1], [-1, 4], [2, -1, 3], [0, 0, -1], [3, 4]]))], ["t"]),
    lambda _, a, *__: N("Transpose", [a], ["t"], perm=[0, 2, 1]),
    lambda r, a, _, c: N("Slice", [a, c([r.choice([0, -3])]), c([r.choice([2, 99])]), c([r.randrange(3)])], ["t"]),
    lambda _, a, __, c: N("Squeeze", [a, c([0])], ["t"]),
    lambda r, a, _, c: N("Expand", [a, c(r.choice([[2, 1, 1], [1, 4, 1], [1, 1, 16]]))], ["t"]),
    lambda r, a, *_: N("Flatten", [a], ["t"], axis=r.randrange(3)),
)


def model(r: random.Random) -> ModelProto:
    """Up to five nodes on x [N, C, L or 16] and z of the same, other or fixed dimensions."""
    constants, nodes, tensors = list[TensorProto](), list[NodeProto](), ["x", "z"]

    def constant(value: Any) -> str:
        constants.append(numpy_helper.from_array(np.asarray(value), f"c{len(constants)}"))
        return constants[-1].name

    for index in range(r.randint(1, 5)):
        node = r.choice(NODES)(r, r.choice(tensors), r.choice(tensors), constant)
        node.output[0] = f"t{index}"
        nodes.append(node)
        tensors.append(node.output[0])
    shapes = {
        "x": ["N", "C", r.choice(["L", 16])],
        "z": [r.choice(["N", "M", 1]), r.choice(["C", "D", 3]), r.choice(["L", "K", 16])],
    }
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    graph = helper.make_graph(nodes, "g", inputs, [ValueInfoProto(name=tensors[-1])], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def ranges(r: random.Random, made: ModelProto) -> dict[str, Range]:
    """Random sizes, one for each name."""
    sizes = {
        name: sorted(r.choice([3, 3, 4]) if name == "C" else r.randint(1, 9) for _ in range(3)) for name in "NCLMDK"
    }
    return {
        value.name: Range(
            *(
                tuple(sizes[d][p] if isinstance(d, str) else int(d or 0) for d in describe(value).shape or ())
                for p in range(3)
            )
        )
        for value in made.graph.input
    }


def runs(session: Any, given: Mapping[str, Range], point: str) -> bool:
    feeds = {i.name: np.ones(getattr(given[i.name], point), np.float32) for i in session.get_inputs()}
    try:
        session.run(None, feeds)
    except Exception:  # noqa: BLE001  # onnxruntime's errors have no common base of their own
        return False
    return True


@pytest.mark.parametrize("seed", range(3))
def test_refused_just_where_onnxruntime_fails(seed: int) -> None:
    """At every point; where opt fails, the others are not asked."""
    r, refused, taken = random.Random(seed), 0, 0
    for _ in range(MODELS):
        made = model(r)
        given = ranges(r, made)
        try:
            session = reference.session(made)
        except Exception:  # noqa: BLE001  # not valid at any size
            continue
        found = {misfit.point for misfit in fit._misfits(made, Path(), Profile(given))}
        points = ("opt",) if "opt" in found else ("min", "opt", "max")
        expected = {point for point in points if not runs(session, given, point)}
        assert found == expected, (given, made)
        refused += len(expected)
        taken += len(points) - len(expected)
    assert min(refused, taken) > MODELS // 4
