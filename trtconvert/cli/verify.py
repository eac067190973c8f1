"""trtconvert verify"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from trtconvert.cli import show


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
@click.option("--tolerance", type=click.FloatRange(min=0), help="Relative L2 that passes. Default: by dtype.")
@click.option("--json", "as_json", is_flag=True, help="Print the rows as JSON.")
def command(
    plan: Path,
    inputs: Path | None,
    input_script: str,
    ranges: tuple[str, ...],
    samples: int | None,
    seed: int,
    tolerance: float | None,
    as_json: bool,
) -> None:
    """Compare an engine with the ONNX model it was built from, in onnxruntime; the manifest beside the plan names it.

    Without a GPU the fused model is compared with the source model, and the exit code is 3.

    \b
    trtconvert verify engine.plan
    trtconvert verify engine.plan --inputs sample.npz --json
    trtconvert verify engine.plan --inputs model/test_data_set_0
    trtconvert verify engine.plan --input-script photos.py:batches
    trtconvert verify engine.plan --samples 100 --input-range image=0,255
    """
    from trtconvert.feeds.feed import as_json as roles_as_json  # --help must not load it
    from trtconvert.feeds.feed import parse_ranges
    from trtconvert.verify import verify

    with show.progress() as progress:
        result = verify(
            plan,
            inputs,
            seed,
            tolerance,
            samples=samples,
            input_script=input_script,
            input_ranges=parse_ranges(ranges),
            progress=progress,
        )
    for notice in result.notices:
        show.note(f"note: {notice}")
    if as_json:
        show.as_json(
            {
                "passed": result.passed,
                "engine_skipped": result.engine_skipped,
                "inputs": roles_as_json(result.roles),
                "rows": [row.as_dict() for row in result.rows],
            }
        )
    else:
        header = ["compared", "shapes", "output", "max abs", "max rel", "rel L2", "tolerance", "verdict"]
        rows = [
            [
                row.comparison,
                row.shapes,
                row.output,
                *(f"{value:.2g}" for value in (row.max_abs, row.max_rel, row.rel_l2)),
                f"{row.tolerance:g} ({row.rule})",
                "pass" if row.passed else f"FAIL: {row.fault}",
            ]
            for row in result.rows
        ]
        show.table(header, rows)
    if not result.passed:
        show.note("error: the numbers differ from the source model's")
        sys.exit(1)
    if result.engine_skipped:
        show.note(f"note: the engine itself was not run: {result.engine_skipped}")
        sys.exit(3)
