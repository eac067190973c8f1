"""LayerNormGelu as a plugin against TensorRT's own layers for the same maths, fp16, one node an engine.

    python -m tests.bench.fused_against_native

Host time of one execute_async_v3, median of 5 rounds of 100 calls after 20, the stream waited for once a round: for small
tensors that is what the host needs to launch, for large ones what the GPU needs. Nothing runs without a GPU.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import onnx

from trtconvert import BuildOptions, build, check, gpu, load_engine, registry
from trtconvert.backend import select
from trtconvert.bodies import add_bodies
from trtconvert.engine import Engine
from trtconvert.model import serialize
from trtconvert.op import Case, case

SHAPES = (((197, 768), -1), ((8192, 1024), -1), ((65536, 2048), -1), ((16, 512, 3999), 1), ((4, 256, 256, 256), 1))


def microseconds(engine: Engine, feeds: dict[str, Any]) -> float:
    """Time of one execution, the inputs already on the device."""
    outputs = engine.run(feeds)
    buffers = [engine._bind(name, array.nbytes) for name, array in (*feeds.items(), *outputs.items())]
    execute, stream = engine.context.execute_async_v3, int(engine.stream.handle)
    rounds = []
    for calls in (20, 100, 100, 100, 100, 100):
        engine.stream.sync()
        start = time.perf_counter()
        for _ in range(calls):
            execute(stream)
        engine.stream.sync()
        rounds.append((time.perf_counter() - start) / calls * 1e6)
    del buffers
    return statistics.median(rounds[1:])


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
        load_engine(build(folder / f"{n}.onnx", None, BuildOptions(fuse=False)).plan) for n in ("plugin", "native")
    )
    return plugin, native


def main() -> None:
    """Print a table."""
    print(f"{gpu.require().name}, {select().title}")
    for shape, axis in SHAPES:
        tested = case(shape, (shape[axis],), (shape[axis],), axis=axis)
        feeds = dict(zip(("x", "scale", "bias"), check.random_inputs(tested, "float16"), strict=True))
        with tempfile.TemporaryDirectory() as folder:
            plugin, native = (microseconds(engine, feeds) for engine in engines(tested, Path(folder)))
        print(f"{'x'.join(map(str, shape))} axis {axis}: plugin {plugin:.1f} us, native {native:.1f} us", flush=True)


if __name__ == "__main__":
    main()
