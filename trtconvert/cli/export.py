"""trtconvert export"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import click

from trtconvert.cli import show

_force = click.option(
    "--force", is_flag=True, help="Write into the folder that lies there. Files that are none of these stay."
)
_plan = click.argument("plan", type=click.Path(path_type=Path))
_json = click.option("--json", "as_json", is_flag=True, help="Print as JSON.")


@click.group()
def command() -> None:
    """Take a plan to where it serves.

    \b
    trtconvert export triton model.plan repository
    trtconvert export cpp model.plan example
    trtconvert export trtexec model.plan
    """


@command.command()
@_plan
@click.argument("repository", type=click.Path(path_type=Path))
@click.option("--name", help="Of the model. Default: PLAN's name without its suffix.")
@click.option(
    "--max-batch",
    type=click.IntRange(min=0),
    help="Largest batch that Triton may make of requests; 0: none. Default: what the profiles take, if the first dimension is "
    "the batch.",
)
@_force
@_json
def triton(plan: Path, repository: Path, name: str | None, max_batch: int | None, force: bool, as_json: bool) -> None:
    """Write REPOSITORY/NAME for Triton: config.pbtxt from the engine, the plan, its plugin libraries, and a README.

    For plans of TensorRT; Triton does not load those of TensorRT-RTX.

    \b
    trtconvert export triton model.plan repository --name classifier
    """
    from trtconvert.deploy.triton import export_triton  # --help must not load it

    model = export_triton(plan, repository, name, max_batch, force)
    if model.config.why_not:
        show.note(f"note: requests are not batched: {model.config.why_not}")
    if as_json:
        show.as_json(dataclasses.asdict(model))
        return
    click.echo(f"model     {model.folder}{'' if model.written else ' (unchanged)'}")
    click.echo(f"files     {', '.join(model.files)}")
    click.echo(f"batches   {f'up to {model.config.max_batch_size}' if model.config.max_batch_size else 'none'}")
    click.echo(f"serve     {model.serve}")
    click.echo(f"measure   {model.measure}")


@command.command()
@_plan
@click.argument("folder", type=click.Path(path_type=Path))
@_force
def cpp(plan: Path, folder: Path, force: bool) -> None:
    """Write a C++ example that loads the plan and its plugin libraries and runs it, with CMakeLists.txt and README, to FOLDER.

    \b
    trtconvert export cpp model.plan example
    """
    from trtconvert.deploy.cpp import export_cpp  # --help must not load it

    written = export_cpp(plan, folder, force)
    click.echo(f"example   {folder}{'' if written else ' (unchanged)'}")


@command.command()
@_plan
@click.option(
    "--onnx",
    type=click.Path(path_type=Path),
    help="Write the model there, with the kernels in its plugin nodes: trtexec builds it with the plugin library.",
)
@_json
def trtexec(plan: Path, onnx: Path | None, as_json: bool) -> None:
    """Print the command lines that run the plan with trtexec, or with tensorrt_rtx if it is one of TensorRT-RTX.

    \b
    trtconvert export trtexec model.plan
    trtconvert export trtexec model.plan --onnx kernels.onnx
    """
    from trtconvert.deploy.trtexec import commands, write_model  # --help must not load it

    found = commands(plan, onnx)
    if onnx is not None:
        write_model(plan, onnx)
    if as_json:
        show.as_json([dataclasses.asdict(command) for command in found])
        return
    for each in found:
        click.echo(f"# {each.title}\n{each.line}")
