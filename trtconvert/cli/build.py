"""trtconvert build"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trtconvert.cli import show

if TYPE_CHECKING:
    from trtconvert.build import BuildResult


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), help="The plan. Default: MODEL with .plan.")
@click.option(
    "--shape", "shapes", multiple=True, metavar="NAME=MIN,OPT,MAX", help="Shapes of a dynamic input. Repeatable."
)
@click.option(
    "--target", default="", metavar="SM", help="sm_86,sm_89 or all or current. Default: the GPU here, else all."
)
@click.option(
    "--pattern", "patterns", multiple=True, help="What to fuse. Repeatable. Default: all but opt-in patterns."
)
@click.option("--no-fuse", is_flag=True, help="Build the model as it is.")
@click.option(
    "--plugin", "plugins", multiple=True, type=click.Path(path_type=Path), help="Python file with an Op. Repeatable."
)
@click.option("--opt-level", type=click.IntRange(0, 5), help="TensorRT's builder optimization level.")
@click.option("--workspace", metavar="SIZE", help="Builder's workspace limit, such as 512M or 2G.")
@click.option("--timing-cache", type=click.Path(path_type=Path), help="Read and update TensorRT's timing cache.")
@click.option("--refit", is_flag=True, help="Weights of the engine can be replaced later.")
@click.option("--strip-weights", is_flag=True, help="Leave the weights out of the plan, to be refitted.")
@click.option("--version-compatible", is_flag=True, help="The plan runs in later TensorRT versions of the same major.")
@click.option("--hardware-compatible", is_flag=True, help="The plan runs on Ampere and newer GPUs.")
@click.option("--backend", type=click.Choice(["auto", "rtx", "tensorrt"]), default="auto", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print the manifest.")
@click.option("-v", "--verbose", is_flag=True, help="Show TensorRT's log.")
def command(
    model: Path,
    output: Path | None,
    shapes: tuple[str, ...],
    target: str,
    workspace: str | None,
    no_fuse: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Build a TensorRT engine from an ONNX model, with plugin kernels for the subgraphs that TensorRT leaves slow.

    \b
    trtconvert build model.onnx
    trtconvert build speech.onnx -o speech.plan --shape waveform=1x400,1x16000,8x160000
    trtconvert build model.onnx --target sm_86,sm_89
    """
    from trtconvert.build import build  # --help must not load it
    from trtconvert.network import BuildOptions
    from trtconvert.shapes import parse

    chosen = BuildOptions(
        shapes=parse(shapes),
        targets=tuple(t.strip() for t in target.split(",") if t.strip()),
        workspace=_bytes(workspace),
        fuse=not no_fuse,
        **options,
    )
    with _progress() as progress:
        result = build(model, output, chosen, progress)
    for notice in result.notices:
        show.note(f"note: {notice}")
    if as_json:
        import dataclasses

        show.as_json(dataclasses.asdict(result.manifest))
    else:
        _report(result)


def _report(result: BuildResult) -> None:
    described = result.manifest
    click.echo(f"plan      {result.plan} ({show.megabytes(described.plan_bytes)})")
    click.echo(f"manifest  {result.plan}.json")
    click.echo(f"backend   {described.backend_title} for {', '.join(described.targets)}")
    names = [f"{plugin.name} x{len(plugin.nodes)}" for plugin in described.plugins]
    click.echo(f"plugins   {', '.join(names) or 'none'}  ({len(result.fusions)} fused)")
    click.echo(f"time      {result.seconds:.1f} s")
    if result.fusions:
        show.note("note: that fusing pays was not measured here")


def _bytes(text: str | None) -> int | None:
    if text is None:
        return None
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    number, unit = (text[:-1], units[text[-1].upper()]) if text[-1:].upper() in units else (text, 1)
    if not number.isdigit():
        raise click.BadParameter(f"{text!r} is not a size; write 512M or 2G", param_hint="--workspace")
    return int(number) * unit


@contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None] | None]:
    """A progress bar on stderr when that is a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        tasks: dict[str, Any] = {}

        def update(phase: str, step: int, steps: int) -> None:
            if phase not in tasks:
                tasks[phase] = bar.add_task(phase, total=steps or None)
            bar.update(tasks[phase], completed=step)

        yield update
