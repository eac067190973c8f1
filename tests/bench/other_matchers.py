"""The matchers of the benchmark `tests.bench.matchers`: a model file in, the LayerNorm and GELU pairs in it out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import onnxruntime
from onnx import GraphProto, ModelProto, NodeProto
from onnx_graphsurgeon.logger import G_LOGGER

from trtconvert import fuse

GELUS, NORMS = ("Gelu", "FastGelu", "BiasGelu"), ("LayerNormalization", "SkipLayerNormalization")
MOVES = ("Transpose", "Reshape", "Cast", "Identity")
OURS = ("", "ai.onnx", "com.microsoft")


# Matchers: source file, where to write the result -> the pairs, each as the names of the tensors that stand for its result


def session(path: str, level: Any, optimized: str | None = None) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = level
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    if optimized:
        options.optimized_model_filepath = optimized
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def run_trtconvert(source: str, result: str) -> list[list[str]]:
    return [[fusion.output] for fusion in fuse(source, output=result).fusions if fusion.op == "LayerNormGelu"]


def run_onnxruntime(source: str, result: str) -> list[list[str]]:
    session(source, onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED, result)
    return list(pairs(onnx.load(result), onnx.load(source)))


def run_onnxscript(source: str, result: str) -> list[list[str]]:
    import onnx_ir
    from onnxscript import optimizer
    from onnxscript.rewriter.ort_fusions import erfgelu, gelu
    from onnxscript.rewriter.pattern import RewriteRuleSet
    from onnxscript.rewriter.rules.fusion import _layer_norm

    model = onnx_ir.load(source)
    optimizer.optimize(model)
    for rules in (_layer_norm.layer_normalization_ruleset, erfgelu.rules, gelu.gelu_rules):
        RewriteRuleSet(rules.rules, commute=True).apply_to_model(model)
    model.opset_imports.setdefault("com.microsoft", 1)
    onnx_ir.save(model, result)
    return list(pairs(onnx.load(result), onnx.load(source)))


def run_polygraphy(source: str, result: str) -> list[list[str]]:
    G_LOGGER.severity = G_LOGGER.CRITICAL
    graph = gs.import_onnx(onnx.load(source)).fold_constants()
    found = (match.get("gelu").outputs[0].name for pattern in graph_patterns() for match in pattern.match_all(graph))
    return [[name] for name in dict.fromkeys(found)]


MATCHERS: dict[str, Callable[[str, str], list[list[str]]]] = {
    "trtconvert": run_trtconvert,
    "onnxruntime": run_onnxruntime,
    "onnxscript": run_onnxscript,
    "polygraphy": run_polygraphy,
}


# Patterns for polygraphy


def constant(index: int, *values: float) -> Callable[[gs.Node], bool]:
    """A check that an input of a node is a constant of one of these values."""

    def check(node: gs.Node) -> bool:
        value = node.inputs[index]
        return isinstance(value, gs.Constant) and any(np.allclose(value.values, v, rtol=1e-3) for v in values)

    return check


def per_channel(node: gs.Node) -> bool:
    """A check that the second input is a constant that varies along the last axis only, and the op a standard one."""
    scale = node.inputs[1]
    return (
        isinstance(scale, gs.Constant) and scale.values.size in (1, *scale.shape[-1:]) and node.domain in (None, *OURS)
    )


def last_axis(node: gs.Node) -> bool:
    axes = node.inputs[1].values if len(node.inputs) > 1 else node.attrs.get("axes", [0])
    return list(np.ravel(axes)) == [-1] and node.attrs.get("keepdims", 1) == 1


def graph_patterns() -> Iterator[gs.GraphPattern]:
    """The 18 patterns; the node that makes the result is called gelu."""
    for norm in ("op", "axes attribute", "axes input"):
        for between in (False, True):
            for gelu in ("op", "TorchScript", "dynamo"):
                p = gs.GraphPattern()
                anchor = p.variable()  # matching starts here: GraphPattern follows forks only from where they join
                y = add_norm(p, norm, anchor if gelu == "op" else p.constant())
                if between:
                    y = p.add("transpose", "Transpose", inputs=[y])
                p.set_output_tensors([add_gelu(p, gelu, y, anchor)])
                yield p


def add_norm(p: gs.GraphPattern, form: str, bias: int) -> int:
    x, scale = p.variable(), p.constant()
    if form == "op":
        return p.add("norm", "LayerNormalization", per_channel, [x, scale, bias])
    axes = [p.constant(), p.constant()] if form == "axes input" else []
    mean = p.add("mean", "ReduceMean", last_axis, [x, *axes[:1]])
    centred = p.add("sub", "Sub", inputs=[x, mean])
    square = p.add("square", "Pow", constant(1, 2), [centred, p.constant()])
    variance = p.add("variance", "ReduceMean", last_axis, [square, *axes[1:]])
    root = p.add("root", "Sqrt", inputs=[p.add("epsilon", "Add", inputs=[variance, p.constant()])])
    scaled = p.add("scale", "Mul", per_channel, [p.add("div", "Div", inputs=[centred, root]), scale])
    return p.add("bias", "Add", inputs=[scaled, bias])


def add_gelu(p: gs.GraphPattern, form: str, x: int, half: int) -> int:
    if form == "op":
        return p.add("gelu", "Gelu", lambda node: node.domain in (None, *OURS), [x])
    erf = p.add("erf", "Erf", inputs=[p.add("root2", "Div", constant(1, 2**0.5), [x, p.constant()])])
    plus = p.add("plus", "Add", constant(1, 1), [erf, p.constant()])
    if form == "TorchScript":
        return p.add("gelu", "Mul", constant(1, 0.5), [p.add("times", "Mul", inputs=[x, plus]), half])
    return p.add("gelu", "Mul", inputs=[x, p.add("times", "Mul", constant(0, 0.5), [half, plus])])


# Pairs in what an optimizer wrote


def graphs(model: ModelProto) -> Iterator[tuple[list[NodeProto], set[str]]]:
    """Nodes and output names of every graph, subgraph and function."""

    def below(nodes: list[NodeProto], outputs: set[str]) -> Iterator[tuple[list[NodeProto], set[str]]]:
        yield nodes, outputs
        for node in nodes:
            for attribute in node.attribute:
                inner = [attribute.g] if attribute.type == onnx.AttributeProto.GRAPH else attribute.graphs
                for graph in inner:
                    yield from below(list(graph.node), names_of(graph))

    yield from below(list(model.graph.node), names_of(model.graph))
    for function in model.functions:
        yield from below(list(function.node), set(function.output))


def names_of(graph: GraphProto) -> set[str]:
    return {value.name for value in graph.output}


def pairs(model: ModelProto, source: ModelProto) -> Iterator[list[str]]:
    """Each GELU whose input comes from a LayerNorm that nothing else reads: its output and what moves make of it, of these
    the names that the source has too. None are left where the optimizer moved a Transpose and named the result anew."""
    known = {name for nodes, _ in graphs(source) for node in nodes for name in node.output}
    for nodes, outputs in graphs(model):
        makers = {name: node for node in nodes for name in node.output if name}
        reads = Counter(name for inner, _ in graphs(model) for node in inner for name in node.input)
        reads.update(outputs)
        for node in nodes:
            if node.op_type not in GELUS or node.domain not in OURS:
                continue
            tensor = node.input[0]
            while reads[tensor] == 1 and tensor in makers and makers[tensor].op_type in MOVES:
                tensor = makers[tensor].input[0]
            norm = makers.get(tensor)
            if norm is None or norm.op_type not in NORMS or norm.domain not in OURS or reads[tensor] != 1:
                continue
            if any(reads[name] for name in norm.output[1:3]):  # mean and deviation; the sum after them is an input's
                continue
            names = [node.output[0]]
            for later in nodes:
                if later.op_type in MOVES and later.input[0] in names:
                    names.append(later.output[0])
            yield [name for name in names if name in known]
