"""trtconvert inspect"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import click

from trtconvert.cli import show

if TYPE_CHECKING:
    from trtconvert.preflight import ModelReport, PlanReport


@click.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.option(
    "--plugin", "plugins", multiple=True, type=click.Path(path_type=Path), help="Python file or library. Repeatable."
)
@click.option("--json", "as_json", is_flag=True, help="Print the description as JSON.")
def command(path: Path, plugins: tuple[Path, ...], as_json: bool) -> None:
    """Describe a model (inputs, ops, what would be fused, what needs a plugin) or a plan (plugins, targets, origin).

    \b
    trtconvert inspect model.onnx
    trtconvert inspect engine.plan
    """
    from trtconvert import libraries, preflight  # --help must not load it

    libraries.load_plugins(plugins, "auto")
    report = preflight.inspect(path)
    if as_json:
        show.as_json(dataclasses.asdict(report))
    elif isinstance(report, preflight.PlanReport):
        _plan(report)
    else:
        _model(report)


def _model(report: ModelReport) -> None:
    click.echo(f"model     {report.path} ({report.producer}; opset {report.opset}, IR {report.ir_version})")
    for side, tensors in (("input", report.inputs), ("output", report.outputs)):
        for io in tensors:
            click.echo(f"{side:9} {io.name}: {io.dtype} {_shape(io.shape)}")
    click.echo(f"nodes     {', '.join(f'{op} x{count}' for op, count in report.ops.items())}")
    for node in report.nodes:
        if node.status != "native":
            click.echo(f"{node.status:11} {node.node} ({node.op}): {node.detail}")
    for fusion in report.fusions:
        click.echo(f"would fuse  {fusion.node} ({fusion.op}): {len(fusion.replaced)} nodes")
    for miss in report.near_misses:
        click.echo(f"near miss   {miss.node} ({miss.pattern}): {miss.reason}")
    bad = [node for node in report.nodes if node.status == "unsupported"]
    click.echo(f"verdict   {f'{len(bad)} nodes are unsupported' if bad else 'TensorRT can import every node'}")


def _plan(report: PlanReport) -> None:
    click.echo(f"plan      {report.path} ({show.megabytes(report.bytes)})")
    described = report.manifest
    if described is None:
        show.note("note: no manifest beside the plan; this is what the plan's own bytes say")
    else:
        click.echo(f"built     by {described.tool} with {described.backend_title} from {described.model}")
        click.echo(f"targets   {', '.join(described.targets)}")
        for side, tensors in (("input", described.engine_inputs), ("output", described.engine_outputs)):
            for io in tensors:
                click.echo(f"{side:9} {io.name}: {io.dtype} {_shape(io.shape)}")
        for profile in described.profiles:
            for name, shapes in profile.items():
                points = ", ".join(f"{p} {'x'.join(map(str, shapes[p]))}" for p in ("min", "opt", "max"))
                click.echo(f"profile   {name}: {points}")
    for plugin in report.plugins:
        layers = f", {plugin.layers} layer{'s' * (plugin.layers > 1)}" if plugin.layers else ""
        attributes = ", ".join(f"{name} {value}" for name, value in plugin.attributes.items())
        click.echo(f"plugin    {plugin.name} version {plugin.version}{layers}, kernel {plugin.kernel}: {attributes}")
    if not report.plugins:
        click.echo("plugin    none")
    if described is not None and described.verifications:
        last = described.verifications[-1]
        engine = "engine run" if last["engine_run"] else "engine not run"
        click.echo(
            f"verified  {'passed' if last['passed'] else 'FAILED'} on {last['date']}, {last['machine']} ({engine})"
        )


def _shape(shape: list[int | str | None] | None) -> str:
    return "[" + ", ".join("?" if d is None else str(d) for d in shape) + "]" if shape is not None else "unknown rank"
