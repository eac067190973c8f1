"""trtconvert verify"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from trtconvert.cli import show

if TYPE_CHECKING:
    from trtconvert.accuracy.lines import Line
    from trtconvert.accuracy.results import VerifyResult


@click.command()
@click.argument("plan", type=click.Path(path_type=Path))
@click.option(
    "--inputs",
    type=click.Path(path_type=Path),
    help=".npz, folder with a .npy per input, ONNX test_data_set folder, or a folder of several. Default: random.",
)
@click.option(
    "--input-script", default="", metavar="FILE.py:FUNCTION", help="Python function that yields dicts of arrays."
)
@click.option(
    "--input-range",
    "ranges",
    multiple=True,
    metavar="NAME=LOW,HIGH",
    help="Bounds of a random input's values. Repeatable.",
)
@click.option(
    "--samples",
    type=click.IntRange(min=1),
    help="Random batches at the opt shapes, or batches of files or script. Default: 1 random one, all of files.",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of the random inputs.")
@click.option("--tolerance", type=click.FloatRange(min=0), help="Relative L2 that passes. Default: by compute type.")
@click.option("--report", type=click.Path(path_type=Path), help="Write an HTML report of the outcome.")
@click.option("--bisect", is_flag=True, help="Find the first wrong node, if something is wrong.")
@click.option("--json", "as_json", is_flag=True, help="Print the rows as JSON.")
def command(
    plan: Path,
    inputs: Path | None,
    input_script: str,
    ranges: tuple[str, ...],
    samples: int | None,
    seed: int,
    tolerance: float | None,
    report: Path | None,
    bisect: bool,
    as_json: bool,
) -> None:
    """Compare an engine with the ONNX model it was built from, in onnxruntime; the manifest beside the plan names it.

    Without a GPU the fused model is compared with the source model, and the exit code is 3.

    \b
    trtconvert verify engine.plan
    trtconvert verify engine.plan --inputs sample.npz --json
    trtconvert verify engine.plan --inputs model/test_data_set_0
    trtconvert verify engine.plan --input-script photos.py:batches
    trtconvert verify engine.plan --bisect
    trtconvert verify engine.plan --report verified.html
    trtconvert verify engine.plan --samples 100 --input-range image=0,255
    """
    from trtconvert.feeds.feed import parse_ranges  # --help must not load it
    from trtconvert.report import page
    from trtconvert.verify import verify

    if report is not None:
        page.check(report, plan)
    with show.progress() as progress:
        result = verify(
            plan,
            inputs,
            seed,
            tolerance,
            bisect,
            samples=samples,
            input_script=input_script,
            input_ranges=parse_ranges(ranges),
            progress=progress,
        )
    if report is not None:
        show.note(f"report    {report} ({show.megabytes(page.write(report, plan, result))})")
    for notice in result.notices:
        show.note(f"note: {notice}")
    if as_json:
        show.as_json(result.as_dict())
    else:
        _print(result)
    if not result.passed:
        show.note("error: the numbers differ from the source model's")
        if not bisect:
            show.note("  fix: find the first wrong node with --bisect")
        sys.exit(1)
    if result.engine_skipped:
        show.note(f"note: the engine itself was not run: {result.engine_skipped}")
        sys.exit(3)


def _print(result: VerifyResult) -> None:
    """The table, of several samples the worst, the rules behind it, and what is wrong in full."""
    from trtconvert.accuracy.lines import lines  # --help must not load it

    header = ["compared", "inputs", "output", "max abs", "max rel", "rel L2", "twin's", "allowed", "cosine", "verdict"]
    found = lines(result.rows)
    show.table(header, [_cells(line) for line in found])
    for line in found:
        row = line.worst
        if row.fault:
            many = f", {line.verdict}" if len(line.rows) > 1 else ""
            show.note(f"FAIL  {row.output} ({row.shapes}{many}): {row.fault}")
            if row.first_bad is not None:
                bad = row.first_bad
                show.note(f"  first: {list(bad.index)} is {bad.got:.6g}, expected {bad.expected:.6g}")
            if row.node:
                show.note(f"  node:  {row.node}")
    if result.first_wrong is not None:
        for number, text in enumerate(result.first_wrong.lines()):
            show.note(f"{'bisect:' if number == 0 else '':8}{text}")
    click.echo(f"reference: {result.reference}")
    click.echo(f"twin:      {result.twin}")
    for number, rule in enumerate(result.rules):
        click.echo(f"{'rules:' if number == 0 else '':10} {rule}")


def _cells(line: Line) -> list[str]:
    row, many = line.worst, f" ({len(line.rows)})" if len(line.rows) > 1 else ""
    errors, inputs = row.errors, line.inputs
    return [
        row.comparison.removesuffix(" model / source model").removesuffix(" / source model"),
        (inputs if len(inputs) <= 24 else f"{inputs[:21]}...") + many,
        row.output if len(row.output) <= 20 else f"...{row.output[-17:]}",
        *(_number(value) for value in (errors.max_abs, errors.max_rel, errors.rel_l2)),
        _number(row.twin.rel_l2) if row.twin else "",
        _number(row.tolerance),
        f"{errors.cosine:.6f}" if errors.cosine == errors.cosine else "",
        line.verdict,
    ]


def _number(value: float) -> str:
    return "" if value != value else f"{value:.2g}"
