"""Fusing: what it finds in real exports and hand-made graphs, what it refuses, and that the result is the same model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from tests.conftest import SAMPLES, Run
from trtconvert import ConvertError, fuse

FUSED = sorted(path for path in SAMPLES.glob("*.onnx") if path.stem not in ("bf16_ln_gelu", "custom_relu"))


def session(model: ModelProto) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def run_model(model: ModelProto, seed: int = 0, scale: float = 1.0) -> list[Any]:
    random = np.random.default_rng(seed)
    loaded = session(model)
    feeds = {}
    for value in loaded.get_inputs():
        size = 900 if len(value.shape) == 3 else 12
        shape = [d if isinstance(d, int) else 2 if i == 0 else size for i, d in enumerate(value.shape)]
        dtype = np.float16 if "float16" in value.type else np.float32
        feeds[value.name] = (random.standard_normal(shape) * scale).astype(dtype)
    return list(loaded.run(None, feeds))


def same(a: ModelProto, b: ModelProto, tolerance: float = 1e-5) -> None:
    for seed, scale in ((0, 1.0), (1, 3e-3), (2, 30.0)):
        for got, want in zip(run_model(a, seed, scale), run_model(b, seed, scale), strict=True):
            assert got.dtype == want.dtype
            error = np.linalg.norm(got.astype(np.float64) - want) / (np.linalg.norm(want.astype(np.float64)) or 1)
            assert error <= (2e-3 if want.dtype == np.float16 else tolerance)


@pytest.mark.parametrize("sample", FUSED, ids=lambda path: path.stem)
def test_fused_sample_is_the_same_model(sample: Path, tmp_path: Path) -> None:
    """Checker with full_check, onnxruntime through the function bodies, the original's numbers at three scales."""
    result = fuse(sample, output=tmp_path / "fused.onnx")
    written = onnx.load(tmp_path / "fused.onnx")
    onnx.checker.check_model(written, full_check=True)
    original = onnx.load(sample)
    same(written, original)
    assert [o.name for o in written.graph.output] == [o.name for o in original.graph.output]
    nodes = [n for n in written.graph.node if n.domain.startswith("trtconvert")]
    assert {n.name for n in nodes} == {f.node for f in result.fusions}
    assert all(f.op == n.op_type for f, n in zip(result.fusions, nodes, strict=True))


@pytest.mark.parametrize("sample", FUSED, ids=lambda path: path.stem)
def test_fusing_twice_changes_nothing(sample: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "1.onnx", tmp_path / "2.onnx"
    fuse(sample, output=first)
    assert fuse(first, output=second).fusions == []
    assert first.read_bytes() == second.read_bytes()


def test_no_match_is_written_as_it_was(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    result = run("fuse", SAMPLES / "vit_block.onnx", "--pattern", "layernorm-gelu", "-o", out)
    assert result.returncode == 0
    assert "nothing in the model matches" in result.stderr
    assert onnx.load(out) == onnx.load(SAMPLES / "vit_block.onnx")


def test_json(run: Run, tmp_path: Path) -> None:
    import json

    shown = json.loads(run("fuse", SAMPLES / "near_miss.onnx", "-o", tmp_path / "o.onnx", "--json").stdout)
    assert shown["fusions"] == []
    assert set(shown["near_misses"][0]) == {"pattern", "node", "reason", "matched", "complete"}


def test_pattern_list(run: Run) -> None:
    shown = run("fuse", "--pattern", "list").stdout
    assert "layernorm-gelu" in shown
    assert "fused-relu" in shown
    assert "opt-in" in shown


def test_explain(run: Run, tmp_path: Path) -> None:
    shown = run("fuse", SAMPLES / "near_miss.onnx", "-o", tmp_path / "o.onnx", "--explain").stdout
    assert (
        "near miss  /Mul_1 (layernorm-gelu): /norm1/LayerNormalization_output_0 inside it is also read by /Add_1"
        in shown
    )
    shown = run("fuse", SAMPLES / "sam_upscaler.onnx", "-o", tmp_path / "o.onnx", "--explain").stdout
    assert "fused " in shown
    assert "/1/ReduceMean" in shown


# --- hand-made graphs ----------------------------------------------------------------------------------------------

C = 8


def model(
    nodes: list[Any], outputs: tuple[str, ...] = ("y",), opset: int = 17, shape: tuple[Any, ...] = (2, 4, C)
) -> ModelProto:
    """x -> y with weights g, b [C] and the numbers that LayerNorm and GELU need."""
    random = np.random.default_rng(3)
    numbers = {"half": 0.5, "one": 1.0, "two": 2.0, "eps": 1e-5, "sqrt2": 2**0.5, "rsqrt2": 0.5**0.5, "q": 1.702}
    weights = {"g": random.uniform(0.5, 1.5, C), "b": random.standard_normal(C)}
    arrays = {name: np.asarray(value, np.float32) for name, value in {**numbers, **weights}.items()}
    used = {name for node in nodes for name in node.input}
    initializers = [numpy_helper.from_array(a, n) for n, a in arrays.items() if n in used]
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n in ("x", *outputs)]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def op(kind: str, *names: str, **attributes: Any) -> Any:
    """A node; the last name is its output."""
    return helper.make_node(kind, list(names[:-1]), [names[-1]], name=f"{kind}_{names[-1]}", **attributes)


def layer_norm(
    square: Any = None, norm: tuple[Any, ...] = (), axes: tuple[int, ...] = (-1,), keepdims: int = 1
) -> list[Any]:
    """Decomposed LayerNorm x -> z."""
    return [
        op("ReduceMean", "x", "mean", axes=list(axes), keepdims=keepdims),
        op("Sub", "x", "mean", "d"),
        square or op("Pow", "d", "two", "sq"),
        op("ReduceMean", "sq", "var", axes=list(axes), keepdims=keepdims),
        op("Add", "var", "eps", "ve"),
        op("Sqrt", "ve", "std"),
        *(norm or (op("Div", "d", "std", "n"),)),
        op("Mul", "n", "g", "ng"),
        op("Add", "ng", "b", "z"),
    ]


GELU = [
    op("Div", "z", "sqrt2", "u"),
    op("Erf", "u", "e"),
    op("Add", "e", "one", "p"),
    op("Mul", "z", "p", "zp"),
    op("Mul", "zp", "half", "y"),
]
GELUS = {
    "half last": GELU,
    "half first": [*GELU[:3], op("Mul", "half", "z", "hz"), op("Mul", "p", "hz", "y")],
    "half on the sum": [*GELU[:3], op("Mul", "p", "half", "hp"), op("Mul", "hp", "z", "y")],
    "by 1/sqrt(2)": [op("Mul", "rsqrt2", "z", "u"), *GELU[1:]],
    "one plus erf": [*GELU[:2], op("Add", "one", "e", "p"), *GELU[3:]],
    "divided by two": [*GELU[:4], op("Div", "zp", "two", "y")],
}
NORMS = {
    "Pow": layer_norm(),
    "d * d": layer_norm(op("Mul", "d", "d", "sq")),
    "Reciprocal": layer_norm(norm=(op("Reciprocal", "std", "r"), op("Mul", "d", "r", "n"))),
    "1 / std": layer_norm(norm=(op("Div", "one", "std", "r"), op("Mul", "r", "d", "n"))),
    "swapped": [*layer_norm()[:-2], op("Mul", "g", "n", "ng"), op("Add", "b", "ng", "z")],
    "no scale": [*layer_norm()[:-2], op("Add", "n", "b", "z")],
    "no bias": [*layer_norm()[:-2], op("Mul", "n", "g", "z")],
    "op": [op("LayerNormalization", "x", "g", "b", "z", axis=-1)],
    "op, axis from the front": [op("LayerNormalization", "x", "g", "b", "z", axis=2)],
    "op without bias": [op("LayerNormalization", "x", "g", "z")],
}


def fused(proto: ModelProto, tmp_path: Path) -> Any:
    path = tmp_path / "m.onnx"
    onnx.save(proto, path)
    return fuse(path)


@pytest.mark.parametrize("gelu", GELUS)
@pytest.mark.parametrize("norm", NORMS)
def test_spellings(norm: str, gelu: str, tmp_path: Path) -> None:
    proto = model([*NORMS[norm], *GELUS[gelu]])
    result = fused(proto, tmp_path)
    assert len(result.fusions) == 1, result.near_misses
    assert [n.op_type for n in result.model.graph.node] == ["LayerNormGelu"]
    onnx.checker.check_model(result.model, full_check=True)
    same(result.model, proto)


NEAR = {
    "mean over another axis": ([*layer_norm(axes=(1,))[:1], *layer_norm()[1:], *GELU], "axis"),
    "keepdims 0": ([*layer_norm(keepdims=0), *GELU], "keepdims"),
    "cube for the square": ([*layer_norm(op("Pow", "d", "q", "sq")), *GELU], "power of 1.702"),
    "mean - x": ([layer_norm()[0], op("Sub", "mean", "x", "d"), *layer_norm()[2:], *GELU], ""),
    "std / d": ([*layer_norm(norm=(op("Div", "std", "d", "n"),)), *GELU], ""),
    "QuickGELU": (
        [NORMS["op"][0], op("Mul", "z", "q", "qz"), op("Sigmoid", "qz", "s"), op("Mul", "z", "s", "y")],
        "",
    ),
    "1.702 for sqrt(2)": ([NORMS["op"][0], op("Div", "z", "q", "u"), *GELU[1:]], "multiply to"),
    "erf of x, not z": ([NORMS["op"][0], op("Div", "x", "sqrt2", "u"), *GELU[1:]], ""),
    "half is two": ([NORMS["op"][0], *GELU[:4], op("Mul", "zp", "two", "y")], "0.5"),
}


@pytest.mark.parametrize("name", NEAR)
def test_near_misses_stay(name: str, tmp_path: Path) -> None:
    nodes, reason = NEAR[name]
    shape = (C, C, C) if name == "keepdims 0" else (2, 4, C)
    result = fused(model(nodes, shape=shape), tmp_path)
    assert result.fusions == []
    if reason:
        assert any(reason in miss.reason for miss in result.near_misses), result.near_misses


def test_interior_used_outside_or_given_out(tmp_path: Path) -> None:
    used = [*NORMS["op"], *GELU[:-1], op("Mul", "zp", "half", "t"), op("Add", "t", "z", "y")]
    result = fused(model(used), tmp_path)
    assert result.fusions == []
    assert "z inside it is also read by Add_y" in result.near_misses[0].reason
    result = fused(model([*NORMS["op"], *GELU], outputs=("y", "z")), tmp_path)
    assert result.fusions == []
    assert "z inside it is an output of the graph" in result.near_misses[0].reason


def test_interior_captured_by_a_subgraph(tmp_path: Path) -> None:
    out = helper.make_tensor_value_info("w", TensorProto.FLOAT, None)
    branch = helper.make_graph([op("Identity", "z", "w")], "then", [], [out])
    other = helper.make_graph([op("Identity", "x", "w")], "else", [], [out])
    cond = helper.make_node("Constant", [], ["c"], value=helper.make_tensor("c", TensorProto.BOOL, [], [True]))
    choose = helper.make_node("If", ["c"], ["v"], then_branch=branch, else_branch=other, name="choose")
    result = fused(model([*NORMS["op"], *GELU, cond, choose], outputs=("y", "v")), tmp_path)
    assert result.fusions == []
    assert "also read by choose" in result.near_misses[0].reason


def test_inside_a_subgraph(tmp_path: Path) -> None:
    """Fused in the branch of an If, with weights of the graph around it."""
    value = helper.make_tensor_value_info
    branch = helper.make_graph([*NORMS["op"], *GELU], "then", [], [value("y", TensorProto.FLOAT, [2, 4, C])])
    other = helper.make_graph([op("Identity", "x", "o")], "else", [], [value("o", TensorProto.FLOAT, [2, 4, C])])
    cond = helper.make_node("Constant", [], ["c"], value=helper.make_tensor("c", TensorProto.BOOL, [], [True]))
    proto = model([cond, helper.make_node("If", ["c"], ["r"], then_branch=branch, else_branch=other)], outputs=("r",))
    names = {t.name for t in proto.graph.initializer}
    full = model([*NORMS["op"], *GELU])
    proto.graph.initializer.extend(t for t in full.graph.initializer if t.name not in names)
    result = fused(proto, tmp_path)
    assert [f.op for f in result.fusions] == ["LayerNormGelu"]
    onnx.checker.check_model(result.model, full_check=True)
    same(result.model, proto)


def test_two_sites_with_different_bodies(tmp_path: Path) -> None:
    """axis 1 and axis -1, erf and tanh in one model: each node runs its own body."""
    first = [*NORMS["op"], op("Gelu", "z", "m", approximate="tanh")]
    second = [
        op("Transpose", "m", "mt", perm=[0, 2, 1]),
        helper.make_node("LayerNormalization", ["mt", "g4", "b4"], ["z2"], axis=-1, name="ln2"),
        op("Transpose", "z2", "z2t", perm=[0, 2, 1]),
        op("Gelu", "z2t", "y"),
    ]
    proto = model([*first, *second], opset=20)
    for name, array in (("g4", np.linspace(0.5, 1.5, 4)), ("b4", np.linspace(-1, 1, 4))):
        proto.graph.initializer.append(numpy_helper.from_array(array.astype(np.float32), name))
    result = fused(proto, tmp_path)
    assert [(f.attributes["axis"], f.attributes["approximate"]) for f in result.fusions] == [(-1, "tanh"), (1, "none")]
    assert len({(f.domain, f.name) for f in result.model.functions}) == 2
    onnx.checker.check_model(result.model, full_check=True)
    same(result.model, proto)


def test_gelu_moves_before_a_transpose(tmp_path: Path) -> None:
    """LN, Transpose, GELU with any perm: the op, then the Transpose."""
    nodes = [*NORMS["op"], op("Transpose", "z", "zt", perm=[2, 0, 1]), op("Gelu", "zt", "y")]
    proto = model(nodes, opset=20)
    proto.graph.output[0].type.tensor_type.shape.Clear()
    proto.graph.output[0].type.tensor_type.shape.dim.extend(
        [onnx.TensorShapeProto.Dimension(dim_value=d) for d in (C, 2, 4)]
    )
    result = fused(proto, tmp_path)
    assert [n.op_type for n in result.model.graph.node] == ["LayerNormGelu", "Transpose"]
    same(result.model, proto)


def test_channel_first_without_scale_and_bias(tmp_path: Path) -> None:
    """The missing inputs get one value a channel, and the channels are those of axis 1."""
    nodes = [n for n in layer_norm(axes=(1,)) if n.output[0] not in ("ng", "z")]
    nodes[-1].output[0] = "z"
    proto = model([*nodes, *GELU], shape=(2, 6, C))
    result = fused(proto, tmp_path)
    assert [f.attributes["axis"] for f in result.fusions] == [1], result.near_misses
    added = {t.name: list(t.dims) for t in result.model.graph.initializer}
    assert list(added.values())[-2:] == [[6], [6]]
    same(result.model, proto)


def test_sibling_consumers_keep_their_input(tmp_path: Path) -> None:
    result = fused(model([*NORMS["op"], *GELU, op("Neg", "x", "w")], outputs=("y", "w")), tmp_path)
    assert len(result.fusions) == 1
    assert next(n for n in result.model.graph.node if n.op_type == "Neg").input[0] == "x"


def test_stale_value_info_goes(tmp_path: Path) -> None:
    proto = model([*NORMS["op"], *GELU])
    proto.graph.value_info.append(helper.make_tensor_value_info("z", TensorProto.FLOAT16, [9, 9]))
    result = fused(proto, tmp_path)
    assert len(result.fusions) == 1
    assert not [v for v in result.model.graph.value_info if v.name == "z"]


def test_fused_relu_is_opt_in(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(model([op("Max", "half", "x", "t"), op("Relu", "t", "y")]), path)
    assert fuse(path).fusions == []
    assert [f.attributes["alpha"] for f in fuse(path, ["fused-relu"]).fusions] == [0.5, 0.0]


def test_unknown_pattern() -> None:
    with pytest.raises(ConvertError, match=r"unknown pattern 'layernorm-gulu'[\s\S]*layernorm-gelu"):
        fuse(SAMPLES / "vit_block.onnx", ["layernorm-gulu"])


def test_external_data_moves_with_the_model(tmp_path: Path) -> None:
    source = tmp_path / "a" / "m.onnx"
    source.parent.mkdir()
    proto = onnx.load(SAMPLES / "tanh_gelu.onnx")
    onnx.save(proto, source, save_as_external_data=True, location="m.data", size_threshold=1024)
    target = tmp_path / "b" / "out.onnx"
    target.parent.mkdir()
    assert len(fuse(source, output=target).fusions) == 1
    assert sorted(p.name for p in target.parent.iterdir()) == ["out.onnx", "out.onnx.data"]
    same(onnx.load(target), onnx.load(SAMPLES / "tanh_gelu.onnx"))
