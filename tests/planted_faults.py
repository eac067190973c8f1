"""A model with one of each thing that engines get wrong, and the same with a fault planted, in fp32, fp16 and int8.

    h = (Gather(table, ids) + x + DequantizeLinear(image)) W;  y = GELU(LayerNorm(h));  logits = y W2 (4,096 columns)
    left = tanh(h), right = tanh(y), of equal shape

Each fault changes a constant or an op, as an engine would that has it wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, helper, numpy_helper

from trtconvert.accuracy.proof import Proof
from trtconvert.accuracy.references import twin_of
from trtconvert.accuracy.results import OutputResult
from trtconvert.accuracy.running import ModelRun, Runnable
from trtconvert.model import copy, elem_type, numpy_dtype

ROWS, WIDTH, COLUMNS, WORDS = 8, 64, 4096, 50
DTYPES = ("float32", "float16", "int8")
CLEAN = ""


@dataclass(frozen=True)
class Fault:
    """What is wrong, the outputs that it reaches, what the message says of each, and the node that is to blame."""

    name: str
    outputs: tuple[str, ...]
    says: str
    node: str


_BEHIND_NORM, _ALL = ("logits", "right"), ("logits", "left", "right")
FAULTS = (
    Fault("epsilon off", _BEHIND_NORM, "of its effect): add_epsilon", "add_epsilon"),
    Fault("transposed weights", _ALL, "relative L2", "project"),
    Fault("tanh for erf", _BEHIND_NORM, "GELU by tanh where the model says erf explains the error", "erf"),
    Fault("clamped ids", _ALL, "relative L2", "embed"),
    Fault("uint8 zero point", _ALL, "relative L2", "dequantize"),
    Fault("one wrong channel", ("logits",), "made by head (MatMul)", "head"),
    Fault(
        "NaN at the tail",
        ("logits",),
        "stays finite in onnxruntime: only the engine makes them, at head (MatMul)",
        "head",
    ),
    Fault("swapped outputs", ("left", "right"), "it holds what belongs into", ""),
)


def feeds(seed: int, dtype: str) -> dict[str, NDArray[Any]]:
    """Inputs that show every fault: the last word is among the ids."""
    random = np.random.default_rng(seed)
    ids = random.integers(0, WORDS, ROWS)
    ids[0] = WORDS - 1
    x = random.standard_normal((ROWS, WIDTH), np.float32).astype(_float(dtype))
    return {"ids": ids, "x": x, "image": random.integers(0, 256, (ROWS, WIDTH), np.uint8)}


def model(dtype: str, fault: str = CLEAN, split: bool = False) -> ModelProto:
    """The model in that compute type, right or with the fault of that name. split: products as sums of two, over halves of
    what they sum, as engines may compute them."""
    return _Writer(dtype, fault, split).model()


def wrecked(model: ModelProto, dtype: str, fault: str) -> ModelProto:
    """A copy of the model, or of a part of it, with the fault's constants."""
    wrong = {t.name: t for t in _Writer(dtype, fault, False).model().graph.initializer}
    copied = copy(model)
    for tensor in copied.graph.initializer:
        if tensor.name in wrong:
            tensor.CopyFrom(wrong[tensor.name])
    return copied


def stand_ins(dtype: str) -> dict[str, dict[str, ModelRun]]:
    """Models in onnxruntime that stand for engines, by fault and style: "few" roundings, as onnxruntime makes; "many", as an
    engine that fuses nothing; "split", as many, with products as sums of two."""
    here = Path()
    engines = {f.name: {"few": ModelRun(model(dtype, f.name), here)} for f in FAULTS}
    for name in ("epsilon off", "tanh for erf"):
        engines[name]["split"] = ModelRun(twin_of(model(dtype, name, split=True)), here)
    engines[CLEAN] = {
        "few": ModelRun(model(dtype), here),
        "many": ModelRun(twin_of(model(dtype)), here),
        "split": ModelRun(twin_of(model(dtype, split=True)), here),
    }
    return engines


def missed(proof: Proof, seeds: int, dtype: str, engines: Mapping[str, Mapping[str, Runnable]]) -> list[str]:
    """What goes wrong when engines of each fault (CLEAN among them), by style, run on that many inputs: faults that pass or
    whose message names another node, and false alarms."""
    wrong = []
    runs = {f"{fault}|{style}": run for fault, styles in engines.items() for style, run in styles.items()}
    for seed in range(seeds):
        given = feeds(seed, dtype)
        outputs = proof.run(runs, given)
        proof.trials.clear()  # each input has to show it alone
        for name in runs:
            rows = [*proof.rows(name, f"seed {seed}", given, outputs)]
            wrong += [f"{dtype} {name} seed {seed}: {fault}" for fault in _unsaid(name.split("|")[0], rows)]
    return wrong


def _unsaid(fault: str, rows: Sequence[OutputResult]) -> list[str]:
    """What the rows should say of an engine with that fault and do not."""
    said = {row.output: f"{row.fault}; {row.node}" for row in rows if not row.passed}
    if fault == CLEAN:
        return [f"false alarm: {output}: {text}" for output, text in said.items()]
    meant = next(f for f in FAULTS if f.name == fault)
    if not said or not {*said} <= {*meant.outputs}:
        return [f"{sorted(said)} failed, expected some of {sorted(meant.outputs)}"]
    return [f"{output}: {text!r} lacks {meant.says!r}" for output, text in said.items() if meant.says not in text]


def _float(dtype: str) -> Any:
    return numpy_dtype("float32" if dtype == "int8" else dtype)


class _Writer:
    def __init__(self, dtype: str, fault: str, split: bool) -> None:
        self.dtype, self.fault, self.split = dtype, fault, split
        self.nodes: list[NodeProto] = []
        self.weights: list[Any] = []
        self.random = np.random.default_rng(11)

    def constant(self, name: str, value: Any, dtype: Any = None) -> str:
        array = np.asarray(value).astype(dtype or _float(self.dtype))
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def add(self, op: str, inputs: list[str], name: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(op, inputs, [f"{name}_out"], name=name, **attributes))
        return f"{name}_out"

    def product(self, x: str, matrix: NDArray[Any], name: str) -> str:
        """x by a matrix; int8: both quantized, per tensor and per column."""
        if self.split and self.dtype != "int8":
            half, names = len(matrix) // 2, [f"{name}_x_0", f"{name}_x_1"]
            self.nodes.append(helper.make_node("Split", [x], names, axis=-1, num_outputs=2, name=f"{name}_split"))
            parts = [self.constant(f"{name}_w_{i}", m) for i, m in enumerate((matrix[:half], matrix[half:]))]
            sums = [self.add("MatMul", [names[i], parts[i]], f"{name}_{i}") for i in range(2)]
            return self.add("Add", sums, name)
        if self.dtype != "int8":
            return self.add("MatMul", [x, self.constant(f"{name}_w", matrix)], name)
        step = self.constant(f"{name}_x_scale", 5 / 127)
        zero = self.constant(f"{name}_x_zero", 0, np.int8)
        x = self.add("QuantizeLinear", [x, step, zero], f"{name}_quantize")
        x = self.add("DequantizeLinear", [x, step, zero], f"{name}_dequantize")
        steps = np.abs(matrix).max(0) / 127
        w = [self.constant(f"{name}_w", np.rint(matrix / steps), np.int8), self.constant(f"{name}_w_scale", steps)]
        w.append(self.constant(f"{name}_w_zero", np.zeros(len(steps)), np.int8))
        return self.add("MatMul", [x, self.add("DequantizeLinear", w, f"{name}_w_dequantize", axis=1)], name)

    def layer_norm(self, x: str, epsilon: float) -> str:
        centred = self.add(
            "Sub", [x, self.add("ReduceMean", [x, self.constant("last", [-1], np.int64)], "mean")], "centre"
        )
        square = self.add("Mul", [centred, centred], "square")
        variance = self.add("ReduceMean", [square, "last"], "variance")
        root = self.add("Sqrt", [self.add("Add", [variance, self.constant("epsilon", epsilon)], "add_epsilon")], "root")
        return self.add("Div", [centred, root], "normalize")

    def gelu(self, x: str, approximate: bool) -> str:
        if approximate:
            cube = self.add("Mul", [self.add("Mul", [x, x], "x2"), x], "x3")
            inner = self.add("Add", [x, self.add("Mul", [cube, self.constant("c", 0.044715)], "cx3")], "inner")
            bent = self.add(
                "Tanh", [self.add("Mul", [inner, self.constant("k", np.sqrt(2 / np.pi))], "argument")], "erf"
            )
        else:
            bent = self.add("Erf", [self.add("Div", [x, self.constant("root2", np.sqrt(2))], "argument")], "erf")
        above = self.add("Add", [bent, self.constant("one", 1)], "above")
        return self.add("Mul", [self.add("Mul", [x, above], "times"), self.constant("half", 0.5)], "gelu")

    def model(self) -> ModelProto:
        table = self.random.standard_normal((WORDS, WIDTH))
        square = self.random.standard_normal((WIDTH, WIDTH)) / np.sqrt(3 * WIDTH)
        head = self.random.standard_normal((WIDTH, COLUMNS)) / np.sqrt(WIDTH)
        if self.fault == "clamped ids":  # the last one to the one before
            table[WORDS - 1] = table[WORDS - 2]
        if self.fault == "transposed weights":
            square = square.T
        if self.fault == "one wrong channel":
            head[:, 2718] *= 1.1
        word = self.add("Gather", [self.constant("table", table), "ids"], "embed")
        zero = self.constant("image_zero", 0 if self.fault == "uint8 zero point" else 128, np.uint8)
        image = self.add("DequantizeLinear", ["image", self.constant("image_scale", 1 / 64), zero], "dequantize")
        h = self.product(self.add("Add", [self.add("Add", [word, "x"], "sum"), image], "all"), square, "project")
        y = self.gelu(self.layer_norm(h, 1e-3 if self.fault == "epsilon off" else 1e-5), self.fault == "tanh for erf")
        logits = self.product(y, head, "head")
        if self.fault == "NaN at the tail":
            tail = np.zeros(COLUMNS)
            tail[-1] = np.nan
            logits = self.add("Add", [logits, self.constant("tail", tail)], "tail")
        outputs = {"logits": logits, "left": self.add("Tanh", [h], "tanh_h"), "right": self.add("Tanh", [y], "tanh_y")}
        if self.fault == "swapped outputs":
            outputs["left"], outputs["right"] = outputs["right"], outputs["left"]
        return self.finish(outputs)

    def finish(self, outputs: dict[str, str]) -> ModelProto:
        kind = elem_type(np.dtype(_float(self.dtype)).name)
        for node in self.nodes:
            for output, made in outputs.items():
                node.input[:] = [output if name == made else name for name in node.input]
                node.output[:] = [output if name == made else name for name in node.output]
        inputs = [
            helper.make_tensor_value_info("ids", elem_type("int64"), [ROWS]),
            helper.make_tensor_value_info("x", kind, [ROWS, WIDTH]),
            helper.make_tensor_value_info("image", elem_type("uint8"), [ROWS, WIDTH]),
        ]
        sizes = {"logits": COLUMNS, "left": WIDTH, "right": WIDTH}
        values = [helper.make_tensor_value_info(name, kind, [ROWS, size]) for name, size in sizes.items()]
        graph = helper.make_graph(self.nodes, "planted", inputs, values, self.weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
