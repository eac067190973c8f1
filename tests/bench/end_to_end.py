"""Parts of real models in fp16: engine with plugins against engine without, captured in CUDA graphs, and how exact both are.

    python -m tests.bench.end_to_end [--only NAME] [--batches 1,8] [--folder FOLDER] [--output FILE.md]

The models are in tests/bench/models.py, with random weights, exported by PyTorch. All fusions are made, also those that `build`
would leave native. Times: `trtconvert.timing.measure`, median of replays, both engines in turns. Error: relative L2 of the
engine's output from onnxruntime's on the same model with the same weights in fp32, on the same input. An engine with plugins is
to have at most twice the native one's error, plus 1e-6; exit code 1 if one has more, or a row fails. Each model runs in a child
process, so that a crash costs one row.

--folder keeps the exported models, and uses those that are there already; then torch is not needed. Needs a GPU.
"""

from __future__ import annotations

import argparse
import datetime
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.bench.child import Child
from tests.importable import importable
from trtconvert import build, gpu, load_engine, reference, timing
from trtconvert import model as onnx_model
from trtconvert.backend import select
from trtconvert.bench import NATIVE, PLUGINS, build_native
from trtconvert.options import BuildOptions

LIMIT_S = 900
NAMES = ("wav2vec2", "sam-decoder", "sam-prompt", "lightglue", "pvt-v2", "convnext-v2")
HEADER = (
    "model",
    "batch",
    "fused",
    "plugins us",
    "native us",
    "speed-up",
    "error, plugins",
    "error, native",
    "verdict",
)


@dataclass(frozen=True)
class Outcome:
    """What was measured of one model at one batch size. fused: plugin nodes by op."""

    fused: dict[str, int]
    plugins_us: float
    native_us: float
    plugins_error: float
    native_error: float

    @property
    def exact(self) -> bool:
        return self.plugins_error <= 2 * self.native_error + 1e-6


def export(name: str, batch: int, half: str, single: str) -> None:
    """Write the models."""
    from tests.bench import models

    models.export(name, batch, half, single)


def measure(half: str, single: str) -> Outcome:
    """Build both engines, run and time them."""
    exact = onnx_model.load(Path(single))
    shape = input_shape(exact)
    x = np.random.default_rng(0).standard_normal(shape, dtype=np.float32).astype(np.float16)
    (want,) = reference.session(exact, Path(single).parent).run(None, {"x": x.astype(np.float32)})
    with tempfile.TemporaryDirectory() as folder:
        source = importable(Path(half), Path(folder))
        built = build(source, Path(folder) / "plugins.plan", BuildOptions(fuse="all"))
        native = build_native(onnx_model.load(source), source, BuildOptions(), Path(folder))
        engines = {PLUGINS: load_engine(built.plan), NATIVE: load_engine(native.plan)}
        errors = {name: difference(engine.run({"x": x})["y"], want) for name, engine in engines.items()}
        times = timing.measure(engines, {"x": x})
    fused = dict(Counter(node.op.name for node in built.plugin_nodes))
    return Outcome(fused, times[PLUGINS].median_us, times[NATIVE].median_us, errors[PLUGINS], errors[NATIVE])


def input_shape(model: Any) -> tuple[int, ...]:
    """Shape of the model's input."""
    return tuple(d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim)


def difference(got: Any, want: Any) -> float:
    """Relative L2 of the difference."""
    got, want = got.astype(np.float64), want.astype(np.float64)
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


def row(name: str, batch: int, folder: Path) -> tuple[list[str], bool]:
    """The row of the table, and whether all is well."""
    half, single = (folder / f"{name}-{batch}-{kind}.onnx" for kind in ("fp16", "fp32"))
    if not (half.exists() and single.exists()):
        status, found = in_child(export, name, batch, str(half), str(single))
        if status != "ok":
            return [name, str(batch), f"export failed: {line(found)}"], False
    status, found = in_child(measure, str(half), str(single))
    if status != "ok":
        return [name, str(batch), f"failed: {line(found)}"], False
    fused = ", ".join(f"{op} x{count}" for op, count in found.fused.items()) or "nothing"
    figures = [
        f"{found.plugins_us:.1f}",
        f"{found.native_us:.1f}",
        f"{found.native_us / found.plugins_us:.2f}",
        f"{found.plugins_error:.2e}",
        f"{found.native_error:.2e}",
    ]
    return [name, str(batch), fused, *figures, "ok" if found.exact else "not exact"], found.exact


def in_child(function: Any, *arguments: Any) -> tuple[str, Any]:
    """Call a function in a process of its own."""
    child = Child(function, LIMIT_S)
    try:
        return child(*arguments)
    finally:
        child.close()


def line(message: object) -> str:
    """A message as a cell of the table."""
    return " ".join(str(message).split())[:200].replace("|", "/")


def markdown(rows: list[list[str]], command: str) -> str:
    """The table with date, machine, versions and command above it."""
    here, versions = gpu.require(), f"{select().title}, driver for CUDA {'.'.join(map(str, gpu.require().driver))}"
    head = f"{here.name}, {versions}, {datetime.date.today().isoformat()}: `{command}`"
    table = [HEADER, ["---"] * len(HEADER), *(r + [""] * (len(HEADER) - len(r)) for r in rows)]
    return "\n".join([head, "", *(f"| {' | '.join(cells)} |" for cells in table), ""])


def main() -> None:
    """Print the table, row by row."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.end_to_end", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--only", choices=NAMES, action="append", help="this model; may be repeated")
    parser.add_argument("--batches", default="1,8", help="default: 1,8")
    parser.add_argument("--folder", type=Path, help="keep the exported models here, and use those that are here")
    parser.add_argument("--output", type=Path, help="write the table here as well, as markdown")
    arguments = parser.parse_args()
    gpu.require()
    rows, good = [], True
    print(" | ".join(HEADER), flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for name in arguments.only or NAMES:
            for batch in map(int, arguments.batches.split(",")):
                cells, well = row(name, batch, folder)
                rows.append(cells)
                good &= well
                print(" | ".join(cells), flush=True)
                if arguments.output is not None:  # after each row: what was measured is kept whatever happens
                    arguments.output.write_text(
                        markdown(rows, " ".join(["python -m tests.bench.end_to_end", *sys.argv[1:]]))
                    )
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
