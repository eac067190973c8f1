"""Makes the table of measured ratios: each op as a plugin against its function body in TensorRT's own layers.

    python -m tests.bench.ratios [--op LayerNormGelu] [--dtype float16] [--write trtconvert/measured.json]

One node an engine, static shapes, medians of replayed CUDA graphs, the two engines in turns. Rows of other GPUs, ops and
shapes that are in the shipped table stay. Each op runs in a process of its own, so that a crash costs one row. Needs a GPU.
"""

from __future__ import annotations

import argparse
import datetime
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

import trtconvert
from tests.bench.child import Child
from trtconvert import BuildOptions, build, check, gpu, load_engine, measured, registry
from trtconvert.backend import select
from trtconvert.bodies import add_bodies
from trtconvert.model import dtype_name, numpy_dtype, serialize
from trtconvert.op import Case, Op
from trtconvert.timing import measure

LIMIT_S = 120
# Shapes of the data by the axis of its channels and its rank: small, medium, and large (256 MB and more moved in 16 bits).
SHAPES: dict[tuple[int, int], tuple[tuple[int, ...], ...]] = {
    (-1, 2): ((197, 768), (8192, 1024), (131072, 1024)),
    (-1, 3): ((1, 197, 768), (8, 1024, 1024), (64, 2048, 1024)),
    (-1, 4): ((1, 14, 14, 768), (8, 32, 32, 1024), (32, 64, 64, 1024)),
    (1, 3): ((1, 512, 99), (1, 512, 3999), (16, 512, 8000)),
    (1, 4): ((1, 64, 32, 32), (4, 256, 64, 64), (32, 256, 128, 128)),
}


def channel_axis(tested: Case) -> int | None:
    """Axis of the data along which the op's other inputs vary, -1 or 1; -1 for those that vary along none, None for others."""
    data, *others = tested.shapes
    sizes = {size for shape in others for size in shape if size != 1}
    if 1 in (data[-1], data[min(1, len(data) - 1)]):
        return None  # one channel tells nothing
    if not sizes:
        return -1
    if len(sizes) != 1 or any(size != 1 for shape in others for size in shape[:-1] if len(shape) < len(data)):
        return None
    (channels,) = sizes
    first = len(data) > 1 and data[1] == channels
    last = data[-1] == channels
    if first and last:
        return 1 if dict(tested.attributes).get("axis") == 1 else -1
    return 1 if first else -1 if last else None


def stretched(tested: Case, shape: tuple[int, ...], axis: int) -> Case:
    """The case with data of that shape."""
    others = (tuple(1 if size == 1 else shape[axis] for size in other) for other in tested.shapes[1:])
    return Case((shape, *others), tested.attributes)


def cases(op: type[Op]) -> Iterator[list[Case]]:
    """What to measure: for each kind of use and each shape the op's own cases stretched to it; the first that works serves."""
    found: dict[tuple[str, int, int], list[Case]] = {}
    for tested in op.cases:
        axis, rank = channel_axis(tested), len(tested.shapes[0])
        attributes = op().values() | dict(tested.attributes)
        if axis is not None and (axis, rank) in SHAPES and attributes.get("axis", axis) in (-1, 1):
            found.setdefault((measured.kind(attributes), axis, rank), []).append(tested)
    for (kind, axis, rank), templates in found.items():
        if axis == -1 and any((kind, -1, lower) in found for lower in range(2, rank)):
            continue  # rows are rows, whatever the rank
        for shape in SHAPES[axis, rank]:
            yield [stretched(tested, shape, axis) for tested in sorted(templates, key=_plain)]


def _plain(tested: Case) -> int:
    return len(tested.attributes)


def models(op: type[Op], tested: Case, dtype: str, folder: Path) -> tuple[onnx.ModelProto, dict[str, Path]]:
    """The node as it is, which becomes a plugin, and its body in standard ops, both with static shapes."""
    model = check.node_model(op, tested, dtype)
    for value in (*model.graph.input, *model.graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.dim_value = tested.shapes[0][0]
    paths = {name: folder / f"{name}.onnx" for name in ("plugin", "native")}
    paths["plugin"].write_bytes(serialize(model))
    standard = onnx.ModelProto()
    standard.CopyFrom(model)
    add_bodies(standard)
    paths["native"].write_bytes(serialize(onnx.inliner.inline_local_functions(standard)))
    return model, paths


def numbers(dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
    """Normal numbers off zero, whole ones for integers; a block of them over and over."""
    block = np.random.default_rng(0).standard_normal(1 << 16).astype(np.float32) + 0.5
    kind = numpy_dtype(dtype)
    return np.resize((block * 20 if kind.kind in "iu" else block).astype(kind), shape)


def one(name: str, tries: list[Case], dtype: str) -> dict[str, Any]:
    """Measure one row: numbers and place of a measured.Row. Raises what the last of the tries raised."""
    op = registry.find(name)
    assert op is not None
    failure: Exception = ValueError("no case")
    for tested in tries:
        try:
            return _measured(op, tested, dtype)
        except Exception as error:  # noqa: BLE001  another case may have attributes that fit the shape
            failure = error
    raise failure


def _measured(op: type[Op], tested: Case, dtype: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        model, paths = models(op, tested, dtype, Path(folder))
        options = BuildOptions(fuse="none", targets=("current",))
        engines = {kind: load_engine(build(path, None, options).plan) for kind, path in paths.items()}
    types = {value.name: dtype_name(value.type.tensor_type.elem_type) for value in model.graph.input}
    feeds = {n: numbers(types[n], shape) for n, shape in zip(op.inputs(), tested.shapes, strict=True)}
    times = {kind: timing.median_us for kind, timing in measure(engines, feeds, True, runs=100).items()}
    data = feeds[op.inputs()[0]]
    results = [
        int(np.prod(io.shape, dtype=np.int64)) * numpy_dtype(io.dtype).itemsize  # type: ignore[arg-type]
        for io in engines["plugin"].outputs
    ]
    return {
        "op": op.name,
        "kind": measured.kind(op().values() | dict(tested.attributes)),
        "dtype": data.dtype.name,
        "shape": data.shape,
        "bytes": data.nbytes + sum(results),
        "native_us": round(times["native"], 3),
        "plugin_us": round(times["plugin"], 3),
    }


def main() -> None:
    """Print the rows and write the table after each of them."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.ratios", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--op", action="append", help="this op; may be repeated. Default: all that have a pattern")
    parser.add_argument("--dtype", action="append", help="this dtype; may be repeated. Default: all that the op takes")
    parser.add_argument("--write", type=Path, default=measured.TABLE, help="default: the shipped table")
    arguments = parser.parse_args()
    here, backend = gpu.require(), select()
    fixed = {
        "arch": here.arch,
        "machine": f"{here.name} ({here.arch})",
        "date": datetime.date.today().isoformat(),
        "versions": f"{backend.title}, trtconvert {trtconvert.__version__}, CUDA driver {here.driver[0]}.{here.driver[1]}",
        "command": " ".join(["python -m tests.bench.ratios", *sys.argv[1:]]),
    }
    rows = {row.place: row for row in measured.load()}
    print(
        f"{fixed['machine']}, {fixed['versions']}\n{'op':26}{'kind':9}{'dtype':9} {'shape':18} native us  plugin us  ratio"
    )
    ops = [op for op in registry.ops() if op.pattern and (not arguments.op or op.name in arguments.op)]
    child = Child(one, LIMIT_S)
    for op in ops:
        for dtype in op.dtypes if not arguments.dtype else [d for d in op.dtypes if d in arguments.dtype]:
            for tries in cases(op):
                status, found = child(op.name, tries, dtype)
                shape = "x".join(map(str, tries[0].shapes[0]))
                if status != "ok":
                    child.close()  # a failed kernel leaves no GPU context to go on with
                    print(
                        f"{op.name:35}{dtype:9} {shape:18} {status}: {' '.join(str(found).split())[:200]}", flush=True
                    )
                    continue
                row = measured.Row(**found, **fixed, ratio=round(found["native_us"] / found["plugin_us"], 4))
                rows[row.place] = row
                measured.save(list(rows.values()), arguments.write)
                print(
                    f"{row.op:26}{row.kind:9}{row.dtype:9} {shape:18} {row.native_us:9.2f}  {row.plugin_us:9.2f}  "
                    f"{row.ratio:5.2f}",
                    flush=True,
                )
    child.close()


if __name__ == "__main__":
    main()
