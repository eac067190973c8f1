"""trtconvert refit"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import click

from trtconvert.cli import show


@click.command()
@click.argument("plan", type=click.Path(path_type=Path))
@click.argument("model", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), help="The new plan. Default: in place of PLAN.")
@click.option("--no-verify", is_flag=True, help="Do not compare the new plan with MODEL.")
@click.option("--json", "as_json", is_flag=True, help="Print the manifest.")
def command(plan: Path, model: Path, output: Path | None, no_verify: bool, as_json: bool) -> None:
    """Give a plan the weights of another ONNX model of the same structure, in seconds, without building it again.

    For plans built with --refit or --strip-weights. What differs between the models is named. Needs a GPU: without one, and
    where nothing differs, the exit code is 3.

    \b
    trtconvert build model.onnx --refit
    trtconvert refit model.plan finetuned.onnx -o finetuned.plan
    """
    from trtconvert.refit import refit  # --help must not load it

    result = refit(plan, model, output, check=not no_verify)
    for notice in result.notices:
        show.note(f"note: {notice}")
    if as_json:
        show.as_json(dataclasses.asdict(result.manifest))
    else:
        click.echo(f"plan      {result.plan} ({show.megabytes(result.manifest.plan_bytes)})")
        click.echo(f"weights   {result.weights}, from {model}")
    verified = result.verified
    if verified is None:
        return
    if not as_json:
        click.echo(f"verified  {'passed' if verified.passed else 'FAILED'}, {len(verified.rows)} comparisons")
    if not verified.passed:
        show.note(f"error: the numbers differ from the model's: trtconvert verify {result.plan}")
        sys.exit(1)
