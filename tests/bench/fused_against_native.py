"""LayerNormGelu as a plugin against TensorRT's own layers for the same maths, fp16, one node an engine.

    python -m tests.bench.fused_against_native

Medians of `trtconvert.timing.measure`, with and without a CUDA graph. Nothing runs without a GPU.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import onnx

from trtconvert import BuildOptions, build, check, gpu, load_engine, registry
from trtconvert.backend import select
from trtconvert.bodies import add_bodies
from trtconvert.engine import Engine
from trtconvert.model import serialize
from trtconvert.op import Case, case
from trtconvert.timing import measure

SHAPES = (((197, 768), -1), ((8192, 1024), -1), ((65536, 2048), -1), ((16, 512, 3999), 1), ((4, 256, 256, 256), 1))


def engines(tested: Case, folder: Path) -> tuple[Engine, Engine]:
    """The node as a plugin, and as the standard ops of its function body, both with static shapes."""
    op = registry.find("LayerNormGelu")
    assert op is not None
    model = check.node_model(op, tested, "float16")
    for value in (*model.graph.input, *model.graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.dim_value = tested.shapes[0][0]
    (folder / "plugin.onnx").write_bytes(serialize(model))
    add_bodies(model)
    (folder / "native.onnx").write_bytes(serialize(onnx.inliner.inline_local_functions(model)))
    plugin, native = (
        load_engine(build(folder / f"{n}.onnx", None, BuildOptions(fuse="none")).plan) for n in ("plugin", "native")
    )
    return plugin, native


def main() -> None:
    """Print a table."""
    print(f"{gpu.require().name}, {select().title}")
    for shape, axis in SHAPES:
        tested = case(shape, (shape[axis],), (shape[axis],), axis=axis)
        feeds = dict(zip(("x", "scale", "bias"), check.random_inputs(tested, "float16"), strict=True))
        with tempfile.TemporaryDirectory() as folder:
            pair = dict(zip(("plugin", "native"), engines(tested, Path(folder)), strict=True))
            figures = [
                f"{name} {timing.median_us:.1f} us"
                for graph in (True, False)
                for name, timing in measure(pair, feeds, graph).items()
            ]
        print(
            f"{'x'.join(map(str, shape))} axis {axis}: graph {', '.join(figures[:2])}; no graph {', '.join(figures[2:])}"
        )


if __name__ == "__main__":
    main()
