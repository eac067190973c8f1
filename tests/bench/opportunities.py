"""Each pattern as exporters write it, alone: engine with the plugin against TensorRT's own layers and torch.compile.

    python -m tests.bench.opportunities [--only NAME] [--no-torch] [--output FILE.md] [--table trtconvert/measured.json]

Large tensors move 256 MB and more, so that caches do not help; floor: bytes of x and y once at the bandwidth of a copy of 1 GB,
measured in the same run. Small ones tell what an execution costs at least. Times are medians of replayed CUDA graphs
(`trtconvert.timing.measure`), plugin and native engine in turns. --table also puts them into the table of measured ratios, which
decides where `build` cannot measure. Needs a GPU and PyTorch.
"""

from __future__ import annotations

import argparse
import datetime
import math
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import ModelProto, numpy_helper

import trtconvert
from tests.bench.kernels import TORCH, bandwidth, microseconds
from trtconvert import BuildOptions, build, gpu, load_engine
from trtconvert.backend import select
from trtconvert.choice import measured
from trtconvert.choice.measured import kind, load
from trtconvert.model import numpy_dtype, serialize
from trtconvert.timing import measure

ELEMENT = {"float32": "float", "float16": "float16", "bfloat16": "bfloat16", "int8": "int8"}
STEP = 0.05  # of the quantized tensors
F = torch.nn.functional


@dataclass(frozen=True)
class Pattern:
    """nodes: ONNX text from x to y, S and B being scale and bias, E epsilon, QS and QZ of quantization. torch: the same in
    PyTorch. weights: shape of scale and bias by the number of channels. x, y: their dtypes if not the row's. table: whether its
    rows go into the table of measured ratios.
    """

    name: str
    nodes: str
    torch: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
    weights: Callable[[int], tuple[int, ...]] = lambda c: (c,)
    x: str = ""
    y: str = ""
    table: bool = True


def _norm2d(x: torch.Tensor, s: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    mean = x.mean(1, keepdim=True)
    return (x - mean) / torch.sqrt((x - mean).pow(2).mean(1, keepdim=True) + 1e-5) * s + b


def _quantize(x: torch.Tensor) -> torch.Tensor:
    return torch.clamp(torch.round(x / STEP), -128, 127).to(torch.int8)


def _grn(x: torch.Tensor, s: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    g = torch.linalg.vector_norm(x, dim=(1, 2), keepdim=True)
    return s * (x * (g / (g.mean(-1, keepdim=True) + 1e-5))) + b + x


def _layer_norm(x: torch.Tensor, s: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, (x.shape[-1],), s, b)


def _channels_first(x: torch.Tensor, s: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.gelu(_layer_norm(x.transpose(1, 2), s, b).transpose(1, 2)).contiguous()


def _layer_norm_2d(x: str) -> str:
    return (
        f"u = ReduceMean <keepdims = 1> ({x}, A) d = Sub ({x}, u) q = Mul (d, d) v = ReduceMean <keepdims = 1> (q, A) "
        "w = Add (v, E) r = Sqrt (w) n = Div (d, r) m = Mul (n, S) l = Add (m, B)"
    )


def _between_convolutions(conv: str, weight: str) -> str:
    return f"k = {conv} (x, {weight}) {_layer_norm_2d('k')} g = Gelu (l) y = {conv} (g, {weight})"


_LN = "l = LayerNormalization <axis = -1> (x, S, B)"
PATTERNS = (
    Pattern("LN -> GELU", f"{_LN} y = Gelu (l)", lambda x, s, b: F.gelu(_layer_norm(x, s, b))),
    Pattern(
        "LN -> GELU tanh",
        f'{_LN} y = Gelu <approximate = "tanh"> (l)',
        lambda x, s, b: F.gelu(_layer_norm(x, s, b), approximate="tanh"),
    ),
    Pattern(
        "LayerNorm2d -> GELU",
        f"{_layer_norm_2d('x')} y = Gelu (l)",
        lambda x, s, b: F.gelu(_norm2d(x, s, b)),
        lambda c: (1, c, 1, 1),
    ),
    Pattern(
        "Conv -> LayerNorm2d -> GELU -> Conv",
        _between_convolutions('Conv <auto_pad = "SAME_UPPER">', "W"),
        lambda x, s, b: x,
        lambda c: (1, c, 1, 1),
    ),
    Pattern(
        "1x1 Conv -> LayerNorm2d -> GELU -> 1x1 Conv",
        _between_convolutions("Conv", "W1"),
        lambda x, s, b: x,
        lambda c: (1, c, 1, 1),
        table=False,
    ),
    Pattern(
        "Transpose -> LN -> Transpose -> GELU",
        "t = Transpose <perm = [0, 2, 1]> (x) l = LayerNormalization <axis = -1> (t, S, B) u = Transpose <perm = [0, 2, 1]> (l) "
        "y = Gelu (u)",
        _channels_first,
    ),
    Pattern(
        "LN -> GELU -> Q",
        f"{_LN} g = Gelu (l) y = QuantizeLinear (g, QS, QZ)",
        lambda x, s, b: _quantize(F.gelu(_layer_norm(x, s, b))),
        y="int8",
    ),
    Pattern(
        "LN -> Q",
        f"{_LN} y = QuantizeLinear (l, QS, QZ)",
        lambda x, s, b: _quantize(_layer_norm(x, s, b)),
        y="int8",
    ),
    Pattern(
        "DQ -> GELU -> Q",
        "d = DequantizeLinear (x, QS, QZ) g = Gelu (d) y = QuantizeLinear (g, QS, QZ)",
        lambda x, s, b: _quantize(F.gelu(x.to(s.dtype) * STEP)),
        x="int8",
        y="int8",
    ),
    Pattern(
        "GroupNorm -> SiLU",
        "r = Reshape (x, G) i = InstanceNormalization <epsilon = 0.00001> (r, ONES, ZEROS) f = Shape (x) g = Reshape (i, f) "
        "m = Mul (g, S) l = Add (m, B) z = Sigmoid (l) y = Mul (l, z)",
        lambda x, s, b: F.silu(F.group_norm(x, 32, s.flatten(), b.flatten())),
        lambda c: (c, 1, 1),
    ),
    Pattern(
        "GRN",
        "g = ReduceL2 <keepdims = 1> (x, H) a = ReduceMean <keepdims = 1> (g, C) "
        "w = Add (a, E) n = Div (g, w) p = Mul (x, n) q = Mul (S, p) r = Add (q, B) y = Add (r, x)",
        _grn,
        lambda c: (1, 1, 1, c),
    ),
)
_ROWS = ((262144, 512), (174592, 768), (131072, 1024), (65536, 2048), (32768, 4096))
_PLANES = ((32, 256, 128, 128), (64, 64, 256, 256))
HALF, ALL = ("float16",), ("float16", "bfloat16", "float32")
OLDER = ("float16", "float32")  # InstanceNormalization and Conv before opset 22
LARGE: tuple[tuple[str, tuple[int, ...], tuple[str, ...]], ...] = (
    *(("LN -> GELU", shape, ALL) for shape in _ROWS),
    ("LN -> GELU tanh", _ROWS[2], HALF),
    *(("LayerNorm2d -> GELU", shape, ALL) for shape in _PLANES),
    ("Transpose -> LN -> Transpose -> GELU", (16, 512, 8000), ALL),
    ("LN -> GELU -> Q", _ROWS[2], ALL),
    ("LN -> Q", _ROWS[2], ALL),
    ("DQ -> GELU -> Q", _ROWS[2], HALF),
    ("GroupNorm -> SiLU", (16, 320, 128, 128), OLDER),
    ("GRN", (64, 56, 56, 384), ALL),
)
SMALL: tuple[tuple[str, tuple[int, ...], tuple[str, ...]], ...] = (
    ("LN -> GELU", (197, 768), ALL),
    ("LN -> GELU", (1024, 512), ALL),
    ("LayerNorm2d -> GELU", (1, 64, 128, 128), ALL),
    ("LayerNorm2d -> GELU", (1, 16, 128, 128), ALL),
    ("Transpose -> LN -> Transpose -> GELU", (1, 512, 1000), ALL),
    ("LN -> GELU -> Q", (197, 768), ALL),
    ("LN -> Q", (197, 768), ALL),
    ("DQ -> GELU -> Q", (197, 3072), HALF),
    ("GroupNorm -> SiLU", (1, 320, 64, 64), OLDER),
    ("GroupNorm -> SiLU", (1, 1280, 8, 8), OLDER),
    ("GRN", (1, 56, 56, 384), ALL),
)
BETWEEN = tuple(
    (f"{size}Conv -> LayerNorm2d -> GELU -> {size}Conv", shape, OLDER)
    for size in ("", "1x1 ")
    for shape in (
        (1, 64, 64, 64),
        (8, 128, 56, 56),
        (1, 64, 256, 256),
        (4, 256, 64, 64),
        (1, 512, 16000, 1),
        (8, 512, 4000, 1),
    )
)


def model(pattern: Pattern, shape: tuple[int, ...], dtype: str) -> ModelProto:
    """The pattern as an ONNX model of opset 20."""
    channels = shape[-1] if pattern.weights(2)[-1] != 1 and "Transpose" not in pattern.name else shape[1]
    random = np.random.default_rng(0)
    weights = {n: random.standard_normal(pattern.weights(channels)).astype(numpy_dtype(dtype)) for n in "SB"}
    weights |= {"ONES": np.ones(32, numpy_dtype(dtype)), "ZEROS": np.zeros(32, numpy_dtype(dtype))}
    weights |= {
        "E": np.array(1e-5, numpy_dtype(dtype)),
        "QS": np.array(STEP, numpy_dtype(dtype)),
        "QZ": np.array(0, np.int8),
    }
    kernel = (3, 1) if shape[-1] == 1 else (3, 3)  # as of 1-D data, or 2-D
    for name, sides in (("W", kernel), ("W1", (1, 1))):
        weight = random.standard_normal((channels, channels, *sides)) / (channels * math.prod(sides)) ** 0.5
        weights[name] = weight.astype(numpy_dtype(dtype))
    weights |= {"A": np.array([1]), "H": np.array([1, 2]), "C": np.array([-1]), "G": np.array([0, 32, -1])}
    sizes = ",".join(map(str, shape))
    x, y = ELEMENT[pattern.x or dtype], ELEMENT[pattern.y or dtype]
    text = f'<ir_version: 10, opset_import: ["": 20]> p ({x}[{sizes}] x) => ({y}[{sizes}] y) {{ {pattern.nodes} }}'
    proto = onnx.parser.parse_model(text)
    used = {name for node in proto.graph.node for name in node.input}
    proto.graph.initializer.extend(numpy_helper.from_array(v, k) for k, v in weights.items() if k in used)
    return proto


def data(pattern: Pattern, shape: tuple[int, ...], dtype: str) -> np.ndarray[Any, Any]:
    """A million random numbers, off zero, repeated; all of int8."""
    random = np.random.default_rng(1)
    if pattern.x == "int8":
        return np.resize(random.integers(-128, 128, 1 << 20).astype(np.int8), shape)
    return np.resize((random.standard_normal(1 << 20) + 0.5).astype(numpy_dtype(dtype)), shape)


def compiled(pattern: Pattern, proto: ModelProto, x: np.ndarray[Any, Any], dtype: str) -> float:
    """Microseconds of torch.compile's code for the same, in a CUDA graph."""
    arrays = {t.name: torch.from_numpy(numpy_helper.to_array(t)).cuda() for t in proto.graph.initializer}
    nothing = torch.empty(0, dtype=TORCH[dtype], device="cuda")
    arguments = torch.from_numpy(x).cuda(), arrays.get("S", nothing), arrays.get("B", nothing)
    torch._dynamo.reset()
    function = torch.compile(pattern.torch, dynamic=False)
    stream = torch.cuda.Stream()
    with torch.no_grad(), torch.cuda.stream(stream):
        for _ in range(3):
            function(*arguments)
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            function(*arguments)
    return microseconds(graph.replay)


@dataclass(frozen=True)
class Row:
    """One pattern at one shape; times in us. moved: bytes of x and y. op, kind: what it was fused to, see measured.Row."""

    op: str
    kind: str
    name: str
    shape: tuple[int, ...]
    dtype: str
    moved: int
    plugin: float
    native: float
    torch: float | None


def timed(pattern: Pattern, shape: tuple[int, ...], dtype: str, folder: Path, with_torch: bool) -> Row:
    """Build both engines and time all."""
    proto, x = model(pattern, shape, dtype), data(pattern, shape, dtype)
    source = folder / "pattern.onnx"
    source.write_bytes(serialize(proto))
    plugin = build(source, folder / "plugin.plan", BuildOptions(fuse="all"))
    if (
        len(plugin.fusions) != 1
        or len(plugin.fusions[0].replaced) < sum(n.op_type != "Constant" for n in proto.graph.node) - 2
    ):
        raise RuntimeError(f"fused {[f.op for f in plugin.fusions]}, {[m.reason for m in plugin.near_misses]}")
    native = build(source, folder / "native.plan", BuildOptions(fuse="none"))
    engines = {"plugin": load_engine(plugin.plan), "native": load_engine(native.plan)}
    times = measure(engines, {"x": x}, graph=True, runs=60, rounds=3)
    size = np.dtype(numpy_dtype(pattern.y or dtype)).itemsize
    moved = x.nbytes + x.size * size
    other = compiled(pattern, proto, x, dtype) if with_torch and dtype == "float16" else None
    fusion = plugin.fusions[0]
    use = fusion.op, kind(fusion.attributes, fusion.channels_last)
    return Row(*use, pattern.name, shape, dtype, moved, times["plugin"].median_us, times["native"].median_us, other)


def line(row: Row, rate: float, large: bool) -> list[str]:
    """A line of the table."""
    shape = "x".join(map(str, row.shape))
    floor = [f"{row.plugin / (row.moved / rate):.2f}", f"{row.native / (row.moved / rate):.2f}"] if large else []
    other = [] if row.torch is None else [f"{row.torch:.1f}", f"{row.torch / row.plugin:.2f}"]
    times = [f"{row.plugin:.1f}", f"{row.native:.1f}", f"{row.native / row.plugin:.2f}"]
    return [row.name, shape, row.dtype, *times, *floor, *(other or ["", ""])]


class Table:
    """The table of measured ratios, to which rows are added."""

    def __init__(self, path: Path | None) -> None:
        self.path, self.rows = path, {row.place: row for row in load(path)} if path else {}
        here = gpu.require()
        self.fixed = {
            "arch": here.arch,
            "machine": f"{here.name} ({here.arch})",
            "date": datetime.date.today().isoformat(),
            "versions": f"{select().title}, trtconvert {trtconvert.__version__}, CUDA driver {here.driver[0]}.{here.driver[1]}",
            "command": "python -m tests.bench.opportunities",
        }

    def add(self, row: Row, dtype: str) -> None:
        """Add a row and write the table."""
        if self.path is not None:
            times = {"native_us": round(row.native, 3), "plugin_us": round(row.plugin, 3)}
            ratio = round(row.native / row.plugin, 4)
            new = measured.Row(
                row.op, row.kind, dtype, shape=row.shape, bytes=row.moved, ratio=ratio, **times, **self.fixed
            )
            self.rows[new.place] = new
            measured.save(list(self.rows.values()), self.path)


def main() -> None:
    """Print the tables, and write them as markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--no-torch", action="store_true")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--table", type=Path)
    options = parser.parse_args()
    rate, table = bandwidth(), Table(options.table)
    versions = f"{select().title}, PyTorch {torch.__version__}"
    head = f"{gpu.require().name}, copy {rate / 1e6:.2f} TB/s, {versions}, {datetime.date.today()}"
    texts = [head, "", f"`python -m tests.bench.opportunities {' '.join(sys.argv[1:])}`".replace(" `", "`")]
    print(head, flush=True)
    for rows, large in ((LARGE, True), (SMALL, False), (BETWEEN, False)):
        columns = ["pattern", "x", "dtype", "plugin us", "native us", "native / plugin"]
        columns += ["plugin / floor", "native / floor"] * large + ["torch.compile us", "torch / plugin"]
        texts += ["", f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
        for name, shape, dtypes in rows:
            pattern = next(p for p in PATTERNS if p.name == name)
            for dtype in dtypes if options.only in name else ():
                try:
                    with tempfile.TemporaryDirectory() as folder:
                        row = timed(pattern, shape, dtype, Path(folder), large and not options.no_torch)
                    if pattern.table:
                        table.add(row, pattern.x or dtype)
                    cells = line(row, rate, large)
                except Exception as error:  # noqa: BLE001  the other rows are wanted all the same
                    cells = [name, str(shape), dtype, f"{type(error).__name__}: {str(error)[:200]}"]
                print("  ".join(cells), flush=True)
                texts.append(f"| {' | '.join(cells)} |")
                torch.cuda.empty_cache()
    if options.output:
        options.output.write_text("\n".join([*texts, ""]))


if __name__ == "__main__":
    main()
