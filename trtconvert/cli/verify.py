"""trtconvert verify"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from trtconvert.cli import show


@click.command()
@click.argument("plan", type=click.Path(path_type=Path))
@click.option("--inputs", type=click.Path(path_type=Path), help=".npz with an array per input. Default: random.")
@click.option("--seed", default=0, show_default=True, help="Of the random inputs.")
@click.option("--tolerance", type=click.FloatRange(min=0), help="Relative L2 that passes. Default: by dtype.")
@click.option("--json", "as_json", is_flag=True, help="Print the rows as JSON.")
def command(plan: Path, inputs: Path | None, seed: int, tolerance: float | None, as_json: bool) -> None:
    """Compare an engine with the ONNX model it was built from, in onnxruntime; the manifest beside the plan names it.

    Without a GPU the fused model is compared with the source model, and the exit code is 3.

    \b
    trtconvert verify engine.plan
    trtconvert verify engine.plan --inputs sample.npz --json
    """
    from trtconvert.verify import verify  # --help must not load it

    result = verify(plan, inputs, seed, tolerance)
    for notice in result.notices:
        show.note(f"note: {notice}")
    if as_json:
        show.as_json(
            {
                "passed": result.passed,
                "engine_skipped": result.engine_skipped,
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
