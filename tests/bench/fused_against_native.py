"""LayerNormGelu as a plugin against TensorRT's own layers for the same maths, fp16, one node an engine.

    python -m tests.bench.fused_against_native

Medians of `trtconvert.timing.measure`, with and without a CUDA graph. Nothing runs without a GPU.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.bench.ratios import models
from trtconvert import BuildOptions, build, check, gpu, load_engine, registry
from trtconvert.backend import select
from trtconvert.engine import Engine
from trtconvert.op import Case, case
from trtconvert.timing import measure

SHAPES = (((197, 768), -1), ((8192, 1024), -1), ((65536, 2048), -1), ((16, 512, 3999), 1), ((4, 256, 256, 256), 1))


def engines(tested: Case, folder: Path) -> dict[str, Engine]:
    """The node as a plugin, and as the standard ops of its function body, both with static shapes."""
    op = registry.find("LayerNormGelu")
    assert op is not None
    _, paths = models(op, tested, "float16", folder)
    return {name: load_engine(build(path, None, BuildOptions(fuse="none")).plan) for name, path in paths.items()}


def main() -> None:
    """Print a table."""
    print(f"{gpu.require().name}, {select().title}")
    for shape, axis in SHAPES:
        tested = case(shape, (shape[axis],), (shape[axis],), axis=axis)
        feeds = dict(zip(("x", "scale", "bias"), check.random_inputs(tested, "float16"), strict=True))
        with tempfile.TemporaryDirectory() as folder:
            pair = engines(tested, Path(folder))
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
