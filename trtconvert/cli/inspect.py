"""trtconvert inspect"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import click

from trtconvert.cli import show

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtconvert.preflight import ModelReport, NodeReport, PlanReport

NAMES_SHOWN = 4  # of nodes of one op that are taken in the same way


@click.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.option(
    "--plugin", "plugins", multiple=True, type=click.Path(path_type=Path), help="Python file or library. Repeatable."
)
@click.option("--runtime", is_flag=True, help="What loads the plan, and whether this machine has it.")
@click.option("--json", "as_json", is_flag=True, help="Print the description as JSON.")
def command(path: Path, plugins: tuple[Path, ...], runtime: bool, as_json: bool) -> None:
    """Describe a model (inputs, ops, what would be fused, what needs a plugin) or a plan (plugins, targets, origin).

    \b
    trtconvert inspect model.onnx
    trtconvert inspect engine.plan
    trtconvert inspect engine.plan --runtime
    """
    from trtconvert import preflight  # --help must not load it
    from trtconvert.custom_ops import libraries

    libraries.load_plugins(plugins, "auto")
    if runtime:
        _runtime(path, as_json)
        return
    report = preflight.inspect(path)
    if as_json:
        show.as_json(dataclasses.asdict(report))
    elif isinstance(report, preflight.PlanReport):
        _plan(report)
    else:
        _model(report)


def _runtime(path: Path, as_json: bool) -> None:
    from trtconvert.runtime.needs import needs  # --help must not load it

    found = needs(path)
    if as_json:
        show.as_json([dataclasses.asdict(need) for need in found])
        return
    show.table(["needs", "here", ""], [[need.what, "yes" if need.here else "no", need.found] for need in found])
    for need in found:
        if need.fix:
            show.note(f"fix: {need.what}: {need.fix}")


def _model(report: ModelReport) -> None:
    def line(label: str, text: str) -> None:
        click.echo(f"{label:11} {text}")

    line("model", f"{report.path} ({report.producer}; opset {report.opset}, IR {report.ir_version})")
    for side, tensors in (("input", report.inputs), ("output", report.outputs)):
        for io in tensors:
            line(side, f"{io.name}: {io.dtype.replace('object', 'string')} {show.shape(io.shape)}")
    line("ops", ", ".join(f"{op} x{count}" for op, count in report.ops.items()))
    line("nodes", f"{', '.join(f'{count} {status}' for status, count in report.totals.items())}, by {report.backend}")
    for (status, detail), nodes in _kinds(report.nodes).items():
        line(status, f"{_names(nodes)}{f': {detail}' if detail else ''}")
    for fault in report.faults:
        about = f"{fault.place} ({fault.op}): " if fault.op else f"{fault.place}: " if fault.place else ""
        line("unsupported", f"{about}{fault.reason}\n            fix: {fault.fix}")
    for notice in report.notices:
        line("note", notice)
    for fusion in report.fusions:
        line("would fuse", f"{fusion.node} ({fusion.op}): {len(fusion.replaced)} nodes")
    for miss in report.near_misses:
        line("near miss", f"{miss.node} ({miss.pattern}): {miss.reason}")
    bad = report.totals.get("unsupported", 0)
    what = [f"{bad} node{'s are' if bad > 1 else ' is'} unsupported"] if bad else []
    if others := len(report.faults):
        what.append(f"{others} fault{'s' * (others > 1)} beside the model's own nodes")
    line("verdict", " and ".join(what) or "TensorRT can import every node")


def _kinds(nodes: Sequence[NodeReport]) -> dict[tuple[str, str], list[NodeReport]]:
    """The nodes that are not simply native, by what is said of them; the unsupported last, where the eye falls."""
    kinds: dict[tuple[str, str], list[NodeReport]] = {}
    for node in sorted(nodes, key=lambda node: node.status == "unsupported"):
        if node.status != "native":
            fix = f"\n            fix: {node.fix}" if node.fix else ""
            kinds.setdefault((node.status, node.detail + fix), []).append(node)
    return kinds


def _names(nodes: Sequence[NodeReport]) -> str:
    """`a, b (Relu), c (Det)`: all of them where they are unsupported, else the first few."""
    by_op: dict[str, list[str]] = {}
    for node in nodes:
        by_op.setdefault(node.op, []).append(node.node)
    most = len(nodes) if nodes[0].status == "unsupported" else NAMES_SHOWN
    return ", ".join(
        f"{', '.join(names[:most])}{f' and {len(names) - most} more' if names[most:] else ''} ({op})"
        for op, names in by_op.items()
    )


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
                click.echo(f"{side:9} {io.name}: {io.dtype} {show.shape(io.shape)}")
        for line in show.precision(described.precision):
            click.echo(line)
        for title, ranges in (*(("profile", profile) for profile in described.profiles), ("values", described.values)):
            for name, sizes in ranges.items():
                points = ", ".join(f"{p} {'x'.join(map(str, sizes[p]))}" for p in ("min", "opt", "max"))
                click.echo(f"{title:9} {name}: {points}")
        for name, tensor in described.baked.items():
            click.echo(f"baked     {name}: {tensor['dtype']} {tensor['shape']}")
    for plugin in report.plugins:
        layers = f", {plugin.layers} layer{'s' * (plugin.layers > 1)}" if plugin.layers else ""
        attributes = ", ".join(f"{name} {value}" for name, value in plugin.attributes.items())
        space = f" in namespace {plugin.namespace}" if plugin.namespace else ""
        click.echo(
            f"plugin    {plugin.name} version {plugin.version}{space}{layers}, kernel {plugin.kernel}: {attributes}"
        )
    if not report.plugins:
        click.echo("plugin    none")
    if described is not None and described.verifications:
        last = described.verifications[-1]
        engine = "engine run" if last["engine_run"] else "engine not run"
        click.echo(
            f"verified  {'passed' if last['passed'] else 'FAILED'} on {last['date']}, {last['machine']} ({engine})"
        )
