"""What Q and DQ are worth around the products of a transformer and of a ResNet: fp16 against int8, with and without plugins.

    python -m tests.bench.int8 [--only NAME] [--batches 1,8] [--output FILE.md]

mlp: LayerNorm, MatMul 768 to 3072, bias, GELU, MatMul back, residual sum, twelve times over, on [N, 197, 768]. norms:
LayerNorm, GELU, MatMul 768, twelve times over. resnet: twelve bottlenecks of 256, 64, 64, 256 channels on 56 x 56. Random
weights; the floats are float16. int8: as `--precision int8+fp16` makes it; "floats into GELU": without Q and DQ between a
product and a GELU. Each with all fusions and with none. Median us of replayed CUDA graphs, all engines of a row in turns.
Error: relative L2 from the fp32 model in onnxruntime. Needs a GPU; exit code 1 if a cell fails.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper, numpy_helper

from trtconvert import BuildOptions, ConvertError, build, load_engine, reference, timing
from trtconvert import model as onnx_model
from trtconvert.choice.trials import relative_l2
from trtconvert.precision.int8 import quantize
from trtconvert.precision.options import PrecisionOptions

DEPTH = 12
HEADER = ("model", "batch", "form", "plugins", "us", "error")
FORMS = ("fp16", "int8", "int8, floats into GELU")


class Layers:
    """A model written node by node."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.random, self.shape = np.random.default_rng(0), shape
        self.nodes: list[Any] = []
        self.weights: list[TensorProto] = []

    def weight(self, *shape: int) -> str:
        """Normal numbers that keep the size of what they multiply."""
        value = self.random.standard_normal(shape) / np.sqrt(np.prod(shape[1:]) if len(shape) == 4 else shape[0])
        return self.constant(value)

    def constant(self, value: NDArray[Any]) -> str:
        """An initializer."""
        self.weights.append(numpy_helper.from_array(value.astype(np.float32), f"w{len(self.weights)}"))
        return self.weights[-1].name

    def __call__(self, op: str, *inputs: str, **attributes: Any) -> str:
        """A node; what it makes."""
        output = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [output], f"{op}_{len(self.nodes)}", **attributes))
        return output

    def norm(self, x: str, channels: int) -> str:
        """LayerNormalization over the last axis."""
        scale, bias = self.random.uniform(0.5, 1.5, channels), self.random.standard_normal(channels) / 4
        return self("LayerNormalization", x, self.constant(scale), self.constant(bias), axis=-1, epsilon=1e-6)

    def model(self, output: str) -> ModelProto:
        """The model from x to what it ends in."""
        self.nodes.append(helper.make_node("Identity", [output], ["y"], "end"))
        x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, self.shape) for name in "xy")
        graph = helper.make_graph(self.nodes, "layers", [x], [y], self.weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def mlp(batch: int) -> ModelProto:
    """Feed-forward halves of ViT-B."""
    to, x = Layers((batch, 197, 768)), "x"
    for _ in range(DEPTH):
        h = to("Add", to("MatMul", to.norm(x, 768), to.weight(768, 3072)), to.weight(3072))
        x = to("Add", x, to("MatMul", to("Gelu", h), to.weight(3072, 768)))
    return to.model(x)


def norms(batch: int) -> ModelProto:
    """LayerNorm and GELU between products."""
    to, x = Layers((batch, 197, 768)), "x"
    for _ in range(DEPTH):
        x = to("MatMul", to("Gelu", to.norm(x, 768)), to.weight(768, 768))
    return to.model(x)


def resnet(batch: int) -> ModelProto:
    """Bottlenecks with residual sums."""
    to, x = Layers((batch, 256, 56, 56)), "x"
    for _ in range(DEPTH):
        h = to("Relu", to("Conv", x, to.weight(64, 256, 1, 1)))
        h = to("Relu", to("Conv", h, to.weight(64, 64, 3, 3), pads=[1, 1, 1, 1]))
        x = to("Relu", to("Add", to("Conv", h, to.weight(256, 64, 1, 1)), x))
    return to.model(x)


MODELS: dict[str, Callable[[int], ModelProto]] = {"mlp": mlp, "norms": norms, "resnet": resnet}


def rows(name: str, batch: int, folder: Path) -> list[list[str]]:
    """The engines of a model, timed in turns; with what failed in the last cell."""
    exact = MODELS[name](batch)
    shape = tuple(d.dim_value for d in exact.graph.input[0].type.tensor_type.shape.dim)
    data = [{"x": np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)} for seed in range(2)]
    want = reference.run(exact, folder, data[0])["y"]
    found, plans = [], {}
    for form in FORMS:
        if form == "fp16" or name == "mlp" or form == "int8":
            made = exact
            if form != "fp16":
                made = quantize(exact, folder, lambda: data, before_gelu=form == "int8", halves=True).model
            for fuse in ("all", "none"):
                row = [name, str(batch), form, fuse, "", ""]
                found.append(row)
                try:
                    plans[len(found) - 1] = _built(made, fuse, folder / f"{name}_{batch}_{len(found)}.onnx", row)
                except ConvertError as error:
                    row[-1] = _line(error)
    engines = {str(index): load_engine(plan) for index, plan in plans.items()}
    for index, engine in engines.items():
        found[int(index)][-1] = f"{relative_l2(engine.run(data[0])['y'], want):.1e}"
    for index, time in timing.measure(engines, data[0]).items() if engines else ():
        found[int(index)][-2] = f"{time.median_us:.1f}"
    return found


def _built(made: ModelProto, fuse: str, path: Path, row: list[str]) -> Path:
    path.write_bytes(onnx_model.serialize(made))
    result = build(path, options=BuildOptions(fuse=fuse, precision=PrecisionOptions("fp16")))
    counts = [f"{plugin.name} x{len(plugin.nodes)}" for plugin in result.manifest.plugins]
    row[3] = ", ".join(counts) or "none"
    return result.plan


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:160].replace("|", "/")


def main() -> None:
    """Print the table, model by model."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.int8", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", choices=list(MODELS), action="append", help="this model; may be repeated")
    parser.add_argument("--batches", default="1,8", help="default: 1,8")
    parser.add_argument("--output", type=Path, help="write the table here as well, as markdown")
    given = parser.parse_args()
    table, failed = [list(HEADER), ["---"] * len(HEADER)], 0
    for name in given.only or MODELS:
        for batch in map(int, given.batches.split(",")):
            with tempfile.TemporaryDirectory() as folder:
                try:
                    made = rows(name, batch, Path(folder))
                except Exception as error:  # noqa: BLE001  CUDA's and TensorRT's are of many types; the row says so
                    made = [[name, str(batch), "", "", "", f"{type(error).__name__}: {_line(error)}"]]
            failed += sum(not row[4] for row in made)
            table += made
            print("\n".join(f"| {' | '.join(row)} |" for row in made), flush=True)
    if given.output is not None:
        given.output.write_text("\n".join(f"| {' | '.join(row)} |" for row in table) + "\n")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
