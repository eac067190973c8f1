"""A model with one of each thing that engines get wrong, and the same with a fault planted, in fp32, fp16 and int8.

    h = (Gather(table, ids) + x + DequantizeLinear(image)) W;  y = GELU(LayerNorm(h));  logits = y W2 (4,096 columns)
    left = tanh(h), right = tanh(y), of equal shape

Each fault changes a constant or an op, as an engine would that has it wrong.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, helper, numpy_helper

from trtconvert.model import elem_type, numpy_dtype

ROWS, WIDTH, COLUMNS, WORDS = 16, 64, 4096, 50
DTYPES = ("float32", "float16", "int8")
CLEAN = ""


@dataclass(frozen=True)
class Fault:
    """What is wrong, and the node that is to blame."""

    name: str
    node: str


FAULTS = (
    Fault("epsilon off", "add_epsilon"),
    Fault("transposed weights", "project"),
    Fault("tanh for erf", "erf"),
    Fault("clamped ids", "embed"),
    Fault("uint8 zero point", "dequantize"),
    Fault("one wrong channel", "head"),
    Fault("NaN at the tail", "head"),
    Fault("swapped outputs", ""),
)


def feeds(seed: int, dtype: str) -> dict[str, NDArray[Any]]:
    """Inputs that show every fault: the last word is among the ids."""
    random = np.random.default_rng(seed)
    ids = random.integers(0, WORDS, ROWS)
    ids[0] = WORDS - 1
    x = random.standard_normal((ROWS, WIDTH), np.float32).astype(_float(dtype))
    return {"ids": ids, "x": x, "image": random.integers(0, 256, (ROWS, WIDTH), np.uint8)}


def model(dtype: str, fault: str = CLEAN) -> ModelProto:
    """The model in that compute type, right or with the fault of that name."""
    return _Writer(dtype, fault).model()


def _float(dtype: str) -> Any:
    return numpy_dtype("float32" if dtype == "int8" else dtype)


class _Writer:
    def __init__(self, dtype: str, fault: str) -> None:
        self.dtype, self.fault = dtype, fault
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
        ids = "ids"
        if self.fault == "clamped ids":
            ids = self.add("Min", [ids, self.constant("most", WORDS - 2, np.int64)], "clamp")
        if self.fault == "transposed weights":
            square = square.T
        if self.fault == "one wrong channel":
            head[:, 2718] *= 1.1
        word = self.add("Gather", [self.constant("table", table), ids], "embed")
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
