"""trtconvert fuse"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import click

from trtconvert.cli import show


@click.command()
@click.argument("model", type=click.Path(path_type=Path), required=False)
@click.option("--pattern", "patterns", multiple=True, help="What to fuse; `list` prints the patterns. Repeatable.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Default: MODEL with .fused.onnx.")
@click.option(
    "--plugin", "plugins", multiple=True, type=click.Path(path_type=Path), help="Python file with an Op. Repeatable."
)
@click.option("--explain", is_flag=True, help="Show each fusion, and near misses with the first difference.")
@click.option("--json", "as_json", is_flag=True, help="Print fusions and near misses as JSON.")
def command(
    model: Path | None,
    patterns: tuple[str, ...],
    output: Path | None,
    plugins: tuple[Path, ...],
    explain: bool,
    as_json: bool,
) -> None:
    """Replace subgraphs of an ONNX model by plugin nodes. The result is still a valid ONNX model that runs anywhere.

    \b
    trtconvert fuse model.onnx --pattern layernorm-gelu -o fused.onnx
    trtconvert fuse model.onnx --explain
    trtconvert fuse --pattern list
    """
    from trtconvert import registry  # --help must not load it
    from trtconvert.fuse import fuse

    for file in plugins:
        registry.load_file(file)
    if "list" in patterns:
        rows = [
            [op.pattern, op.name, "opt-in" if op.opt_in else "default", _summary(op)]
            for op in registry.ops()
            if op.pattern
        ]
        show.as_json([r[0] for r in rows]) if as_json else show.table(["pattern", "op", "used", "computes"], rows)
        return
    if model is None:
        raise click.UsageError("Missing argument 'MODEL'.")
    result = fuse(model, patterns, output or model.with_suffix(".fused.onnx"))
    if as_json:
        show.as_json(
            {
                "output": str(result.path),
                "fusions": [dataclasses.asdict(f) for f in result.fusions],
                "near_misses": [dataclasses.asdict(m) for m in result.near_misses],
            }
        )
        return
    counts: dict[str, int] = {}
    for fusion in result.fusions:
        counts[fusion.op] = counts.get(fusion.op, 0) + 1
        if explain:
            click.echo(f"fused      {fusion.node}: {len(fusion.replaced)} nodes, {', '.join(fusion.replaced)}")
    if explain:
        for miss in result.near_misses:
            click.echo(f"near miss  {miss.node} ({miss.pattern}): {miss.reason}")
    if not result.fusions:
        show.note("note: nothing in the model matches; it was written as it is")
    total = ", ".join(f"{name} x{count}" for name, count in counts.items()) or "0 fusions"
    click.echo(f"{result.path}: {total}")


def _summary(op: type) -> str:
    return (op.__doc__ or "").strip().splitlines()[0]
