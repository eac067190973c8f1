"""trtconvert bench"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import click

from trtconvert.cli import show

if TYPE_CHECKING:
    from trtconvert.bench import BenchResult
    from trtconvert.timing import LayerTime

LAYERS_SHOWN = 12


@click.command()
@click.argument("source", metavar="MODEL|PLAN", type=click.Path(path_type=Path))
@click.option(
    "--shape",
    "shapes",
    multiple=True,
    metavar="NAME=MIN,OPT,MAX",
    help="Shapes to build for and to time, or for a plan to time. Repeatable.",
)
@click.option("--value", "values", multiple=True, metavar="NAME=MIN,OPT,MAX", help="As for build. Repeatable.")
@click.option("--bake", "baked", multiple=True, metavar="NAME=VALUE", help="As for build. Repeatable.")
@click.option(
    "--fuse",
    default="auto",
    show_default=True,
    metavar="auto|all|NAME,...",
    help="What to fuse in MODEL, as for build.",
)
@click.option("--graph/--no-graph", default=None, help="Only with a CUDA graph, or only without. Default: both.")
@click.option("--runs", type=click.IntRange(1), default=200, show_default=True, help="Measurements of each engine.")
@click.option("--layers", is_flag=True, help="Show the time of each layer.")
@click.option("--seed", default=0, show_default=True, help="Of the random inputs.")
@click.option(
    "--plugin", "plugins", multiple=True, type=click.Path(path_type=Path), help="Python file or library. Repeatable."
)
@click.option("--backend", type=click.Choice(["auto", "rtx", "tensorrt"]), default="auto", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print the numbers as JSON.")
def command(
    source: Path,
    shapes: tuple[str, ...],
    values: tuple[str, ...],
    baked: tuple[str, ...],
    fuse: str,
    graph: bool | None,
    runs: int,
    layers: bool,
    seed: int,
    plugins: tuple[Path, ...],
    backend: str,
    as_json: bool,
) -> None:
    """Time an engine with plugins against the same model in TensorRT's own layers, in turns, on this machine's GPU.

    MODEL is built both ways; a PLAN's model is found by its manifest. Needs a GPU: without one the exit code is 3.

    \b
    trtconvert bench model.onnx
    trtconvert bench speech.onnx --shape waveform=1x16000 --graph --layers
    trtconvert bench engine.plan --json
    """
    from trtconvert.bench import bench  # --help must not load it
    from trtconvert.options import BuildOptions
    from trtconvert.profiles import bake, shape_values
    from trtconvert.shapes import parse

    inputs = {"shapes": parse(shapes), "values": shape_values.parse(values), "bake": bake.parse(baked)}
    options = BuildOptions(fuse=fuse, plugins=plugins, backend=backend, **inputs)  # type: ignore[arg-type]
    graphs = (True, False) if graph is None else (graph,)
    result = bench(source, options, graphs, runs, by_layer=layers, seed=seed)
    for notice in result.notices:
        show.note(f"note: {notice}")
    show.as_json(_data(result)) if as_json else _report(result)


def _data(result: BenchResult) -> dict[str, object]:
    layers = [
        {"engine": engine, "shapes": shapes, "layers": [dataclasses.asdict(time) for time in times]}
        for (engine, shapes), times in result.layers.items()
    ]
    return dataclasses.asdict(dataclasses.replace(result, layers={})) | {"layers": layers}


def _report(result: BenchResult) -> None:
    click.echo(result.machine)
    header = ["shapes", "CUDA graph", "engine", "median us", "p99 us", "executions/s", "host us", "speed-up"]
    rows = [
        [
            row.shapes,
            "yes" if row.timing.graph else "no",
            row.engine,
            *(f"{value:.1f}" for value in (row.timing.median_us, row.timing.p99_us)),
            f"{row.timing.throughput:.0f}",
            f"{row.timing.host_us:.1f}",
            f"{row.speedup:.2f}" if row.speedup is not None else "",
        ]
        for row in result.rows
    ]
    show.table(header, rows)
    for (engine, shapes), times in result.layers.items():
        click.echo()
        show.table([f"layer ({engine}, {shapes})", "median us", "share"], _layers(times))


def _layers(times: list[LayerTime]) -> list[list[str]]:
    """The slowest layers, and what is left in one row."""
    ordered = sorted(times, key=lambda time: time.median_us, reverse=True)
    rows = [[t.name, f"{t.median_us:.1f}", f"{t.share:.0%}"] for t in ordered[:LAYERS_SHOWN]]
    rest = ordered[LAYERS_SHOWN:]
    if rest:
        total, share = sum(t.median_us for t in rest), sum(t.share for t in rest)
        rows.append([f"{len(rest)} more", f"{total:.1f}", f"{share:.0%}"])
    return rows
