"""How `trtconvert.fuse` grows: with the number of nodes, against onnxruntime's optimizer, and with the size of the weights.

    python -m tests.bench.scale            # a few minutes, 10 GB of temporary space
    python -m tests.bench.scale --small    # seconds; the times and sizes are shown, not judged

Nodes: residual blocks of 15 nodes, each a decomposed LayerNorm, an erf GELU and the addition of the block's input.
Weights: MatMul layers whose weights lie in an external file, with a LayerNorm -> GELU between them.

Each measurement is one call in a process of its own, timed inside it without the imports; the peak is that process's largest
resident set. Every other step is such a process too, since a child inherits the peak of the process that starts it.
Prints Markdown; exits with 1 if a verdict is "fail".
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

C = 16
CHUNK = 1 << 20
LIMIT = 1800  # seconds that any one step may take


@dataclass(frozen=True)
class Size:
    """What is built: blocks of 15 nodes in the two graphs, MatMul layers and the width of their square weights."""

    few: int = 1000
    many: int = 7000
    layers: int = 12
    width: int = 8192

    @property
    def weights(self) -> int:
        """Bytes of the MatMul weights."""
        return self.layers * self.width * self.width * 4


SMALL = Size(few=10, many=70, layers=3, width=1024)


# --- steps: each runs in a child and returns what it found ---------------------------------------------------------


def _layer_norm_gelu(tag: str, x: str, y: str) -> list[Any]:
    """14 nodes from x to y, with the block's own weights g, b and the shared numbers."""
    from onnx import helper

    def node(kind: str, *names: str, **attributes: Any) -> Any:
        inputs = [n if n in _NUMBERS or n == x else tag + n for n in names[:-1]]
        output = y if names[-1] == "y" else tag + names[-1]
        return helper.make_node(kind, inputs, [output], name=f"/{tag}{kind}_{names[-1]}", **attributes)

    return [
        node("ReduceMean", x, "mean", axes=[-1]),
        node("Sub", x, "mean", "d"),
        node("Pow", "d", "two", "square"),
        node("ReduceMean", "square", "variance", axes=[-1]),
        node("Add", "variance", "epsilon", "sum"),
        node("Sqrt", "sum", "std"),
        node("Div", "d", "std", "n"),
        node("Mul", "n", "g", "scaled"),
        node("Add", "scaled", "b", "z"),
        node("Div", "z", "sqrt2", "u"),
        node("Erf", "u", "erf"),
        node("Add", "erf", "one", "p"),
        node("Mul", "z", "p", "zp"),
        node("Mul", "zp", "half", "y"),
    ]


_NUMBERS = {"two": 2.0, "epsilon": 1e-5, "sqrt2": 2**0.5, "one": 1.0, "half": 0.5}


def _numbers() -> list[Any]:
    import numpy as np
    from onnx import numpy_helper

    return [numpy_helper.from_array(np.float32(value), name) for name, value in _NUMBERS.items()]


def _write(path: Path, nodes: list[Any], initializers: list[Any], result: str, width: int) -> None:
    import onnx
    from onnx import TensorProto, helper

    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["rows", width]) for n in ("x", result)]
    graph = helper.make_graph(nodes, "scale", values[:1], values[1:], initializers)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def build_blocks(path: Path, count: int) -> dict[str, Any]:
    """A chain of residual blocks, 15 nodes each."""
    import numpy as np
    from onnx import helper, numpy_helper

    random = np.random.default_rng(0)
    nodes, initializers, x = [], _numbers(), "x"
    for block in range(count):
        tag = f"block.{block}/"
        for name in ("g", "b"):
            initializers.append(numpy_helper.from_array(random.uniform(0.5, 1.5, C).astype(np.float32), tag + name))
        nodes += _layer_norm_gelu(tag, x, f"{tag}y")
        nodes.append(helper.make_node("Add", [x, f"{tag}y"], [f"{tag}out"], name=f"/{tag}Add_out"))
        x = f"{tag}out"
    _write(path, nodes, initializers, x, C)
    return {"nodes": len(nodes)}


def build_weights(path: Path, layers: int, width: int) -> dict[str, Any]:
    """MatMul layers with external weights, a LayerNorm -> GELU after each; the data file is written in chunks."""
    import numpy as np
    from onnx import TensorProto, external_data_helper, helper

    random = np.random.default_rng(0)
    filler = random.standard_normal(CHUNK // 4).astype(np.float32)
    nodes, initializers, x = [], _numbers(), "x"
    with path.with_suffix(".data").open("wb") as data:
        for layer in range(layers):
            tag = f"layer.{layer}/"
            for name, dims in (("w", (width, width)), ("g", (width,)), ("b", (width,))):
                tensor = TensorProto(name=tag + name, data_type=TensorProto.FLOAT, dims=dims, raw_data=b"elsewhere")
                length = int(np.prod(dims)) * 4
                external_data_helper.set_external_data(tensor, path.stem + ".data", data.tell(), length)
                tensor.ClearField("raw_data")
                for start in range(0, length, CHUNK):
                    filler[0] = len(initializers) + start / length  # no two chunks are alike
                    data.write(filler.data.cast("B")[: length - start])
                initializers.append(tensor)
            nodes.append(helper.make_node("MatMul", [x, f"{tag}w"], [f"{tag}x"], name=f"/{tag}MatMul"))
            nodes += _layer_norm_gelu(tag, f"{tag}x", f"{tag}y")
            x = f"{tag}y"
    _write(path, nodes, initializers, x, width)
    return {"nodes": len(nodes)}


def run_fuse(source: Path, output: Path) -> dict[str, Any]:
    """The call that is measured."""
    import trtconvert.fuse
    from trtconvert import registry

    registry.ops()  # the plugins' modules are imports too
    start = time.perf_counter()
    result = trtconvert.fuse(source, output=output)
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "fusions": len(result.fusions)}


def run_onnxruntime(source: Path) -> dict[str, Any]:
    """onnxruntime loading the same file with all its optimizations."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = 4
    start = time.perf_counter()
    onnxruntime.InferenceSession(str(source), options, providers=["CPUExecutionProvider"])
    return {"seconds": time.perf_counter() - start}


def same_weights(source: Path, output: Path) -> dict[str, Any]:
    """Whether each external tensor of the source holds the same bytes in the output, read in chunks."""
    import onnx
    from onnx.external_data_helper import ExternalDataInfo

    models = [onnx.load(path, load_external_data=False) for path in (source, output)]
    tensors = [{t.name: t for t in model.graph.initializer} for model in models]
    compared, differ = 0, []
    for name, tensor in tensors[0].items():
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            continue
        copied = tensors[1].get(name)
        if copied is None or copied.dims != tensor.dims or copied.data_type != tensor.data_type:
            differ.append(name)
            continue
        compared += 1
        infos = [ExternalDataInfo(t) for t in (tensor, copied)]
        with (source.parent / infos[0].location).open("rb") as a, (output.parent / infos[1].location).open("rb") as b:
            a.seek(infos[0].offset or 0)
            b.seek(infos[1].offset or 0)
            left = infos[0].length
            while left and a.read(min(CHUNK, left)) == b.read(min(CHUNK, left)):
                left -= min(CHUNK, left)
        if left:
            differ.append(name)
    return {"compared": compared, "differ": differ}


def digests(folder: Path) -> dict[str, Any]:
    """sha256, size and time of change of each file in the folder."""
    found = {}
    for path in sorted(folder.iterdir()):
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while chunk := file.read(CHUNK):
                digest.update(chunk)
        found[path.name] = [digest.hexdigest(), path.stat().st_size, path.stat().st_mtime_ns]
    return found


STEPS = {f.__name__: f for f in (build_blocks, build_weights, run_fuse, run_onnxruntime, same_weights, digests)}


def child(step: str, *args: object) -> dict[str, Any]:
    """The step's result, with the peak of its process in bytes under "peak"."""
    command = [sys.executable, "-m", "tests.bench.scale", "--step", step, *map(str, args)]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        raise SystemExit(f"{step} {' '.join(map(str, args))} took more than {LIMIT} s") from None
    return dict(json.loads(done.stdout.splitlines()[-1]))


def _run_step(step: str, args: list[str]) -> None:
    found = STEPS[step](*(int(a) if a.isdigit() else Path(a) for a in args))
    unit = 1 if sys.platform == "darwin" else 1024
    print(json.dumps({**found, "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit}))


# --- the tables ----------------------------------------------------------------------------------------------------


@dataclass
class Verdicts:
    """Rows "what, measured, limit, verdict". Facts are always judged, times and sizes only at full size."""

    judged: bool
    rows: list[tuple[str, str, str, str]] = field(default_factory=list)

    def fact(self, what: str, measured: object, wanted: object) -> None:
        """An exact result."""
        self.rows.append((what, str(measured), str(wanted), "pass" if measured == wanted else "fail"))

    def limit(self, what: str, measured: float, limit: float, unit: str = "") -> None:
        """A number that must not exceed the limit."""
        verdict = "not judged" if not self.judged else "pass" if measured <= limit else "fail"
        self.rows.append((what, f"{measured:.2f}{unit}", f"<= {limit:g}{unit}", verdict))


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    """Print a Markdown table."""
    for row in (head, ("---",) * len(head), *rows):
        print(f"| {' | '.join(row)} |")
    print(flush=True)


def gigabytes(count: float) -> str:
    """Bytes in GB."""
    return f"{count / 1e9:.2f} GB"


def machine() -> str:
    """CPU, cores, memory and versions."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    cpu = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    packages = ", ".join(f"{name} {version(name)}" for name in ("onnx", "onnxruntime", "numpy", "protobuf"))
    return (
        f"{cpu}, {os.cpu_count()} cores, {gigabytes(memory)}; {platform.system()}, Python {platform.python_version()}, "
        f"{packages}"
    )


def measure_nodes(size: Size, folder: Path, verdicts: Verdicts) -> None:
    """Both graphs through fuse and onnxruntime."""
    rows, seconds = [], {}
    for blocks in (size.few, size.many):
        source = folder / f"{blocks}.onnx"
        nodes = child("build_blocks", source, blocks)["nodes"]
        ours = child("run_fuse", source, folder / f"{blocks}.fused.onnx")
        theirs = child("run_onnxruntime", source)
        seconds[blocks] = ours["seconds"], theirs["seconds"]
        cells = (ours["seconds"], theirs["seconds"], ours["seconds"] / theirs["seconds"])
        peaks = (gigabytes(ours["peak"]), gigabytes(theirs["peak"]))
        rows.append((f"{nodes:,}", f"{ours['fusions']:,}", *(f"{cell:.2f}" for cell in cells), *peaks))
        verdicts.fact(f"{nodes:,} nodes: fusions", ours["fusions"], blocks)
    table(("nodes", "fusions", "fuse, s", "onnxruntime, s", "ratio", "peak of fuse", "peak of onnxruntime"), rows)
    ours_many, theirs_many = seconds[size.many]
    growth = size.many / size.few
    print(f"{growth:g} x the nodes: {ours_many / seconds[size.few][0]:.2f} x the time of fuse, ", end="")
    print(f"{theirs_many / seconds[size.few][1]:.2f} x that of onnxruntime\n", flush=True)
    verdicts.limit(f"{size.many * 15:,} nodes: fuse", ours_many, 15, " s")
    verdicts.limit(f"{size.many * 15:,} nodes: fuse / onnxruntime", ours_many / theirs_many, 1.5)
    verdicts.limit(f"time for {growth:g} x the nodes", ours_many / seconds[size.few][0], 8, " x")


def measure_weights(size: Size, folder: Path, verdicts: Verdicts) -> None:
    """Fuse to another folder, where the weights must be written again, and to the same one, where they need not."""
    home, away = folder / "home", folder / "away"
    home.mkdir()
    away.mkdir()
    source = home / "weights.onnx"
    child("build_weights", source, size.layers, size.width)
    before = child("digests", home)
    rows = []
    for place, target, rewritten in (("another folder", away, size.weights), ("the same folder", home, 0)):
        output = target / "fused.onnx"
        found = child("run_fuse", source, output)
        after, compared = child("digests", home), child("same_weights", source, output)
        written = sum(p.stat().st_size for p in target.iterdir() if p.name not in before)
        intact = all(after.get(p.name) == before[p.name] for p in (source, source.with_suffix(".data")))
        whole = not compared["differ"] and compared["compared"] == 3 * size.layers
        rows.append(
            (
                place,
                gigabytes(size.weights),
                str(found["fusions"]),
                f"{found['seconds']:.2f}",
                gigabytes(found["peak"]),
                gigabytes(written),
            )
        )
        verdicts.fact(f"{place}: fusions", found["fusions"], size.layers)
        verdicts.fact(f"{place}: source files", "unchanged" if intact else "changed", "unchanged")
        verdicts.fact(f"{place}: weights in the result", "the same" if whole else "different", "the same")
        verdicts.limit(f"{place}: fuse", found["seconds"], 60, " s")
        verdicts.limit(f"{place}: peak beyond rewritten weights", (found["peak"] - rewritten) / 1e9, 1, " GB")
    table(("written to", "weights", "fusions", "fuse, s", "peak", "bytes written"), rows)


def main() -> None:
    """Measure, print, and judge."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--small", action="store_true", help="small models, nothing about time or memory judged")
    parser.add_argument("--step", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.step:
        _run_step(options.step[0], options.step[1:])
        return
    size, verdicts = SMALL if options.small else Size(), Verdicts(judged=not options.small)
    print(f"{machine()}\n", flush=True)
    with tempfile.TemporaryDirectory() as name:
        measure_nodes(size, Path(name), verdicts)
        measure_weights(size, Path(name), verdicts)
    table(("what", "measured", "limit", "verdict"), list(verdicts.rows))
    raise SystemExit(any(verdict == "fail" for *_, verdict in verdicts.rows))


if __name__ == "__main__":
    main()
