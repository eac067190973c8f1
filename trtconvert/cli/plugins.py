"""trtconvert plugins"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from trtconvert.cli import show
from trtconvert.errors import ConvertError

if TYPE_CHECKING:
    from trtconvert.custom_ops.creators import Field


@click.group()
def command() -> None:
    """List the ops, check one from pattern to kernel, or make plugins for programs without Python.

    \b
    trtconvert plugins list
    trtconvert plugins check LayerNormGelu
    trtconvert plugins check my_op.py
    trtconvert plugins lib
    """


@command.command("list")
@click.argument("file", required=False, metavar="[LIB.so|FILE.py]", type=click.Path(path_type=Path))
@click.option("--backend", type=click.Choice(["auto", "rtx", "tensorrt"]), default="auto", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def list_(file: Path | None, backend: str, as_json: bool) -> None:
    """What a plugin library or file brings; without one all registered ops and TensorRT's own creators.

    \b
    trtconvert plugins list
    trtconvert plugins list libmyplugins.so
    """
    from trtconvert import registry  # --help must not load it
    from trtconvert.backend import select
    from trtconvert.custom_ops import creators, libraries

    if file is None:
        found = [creators.of_op(op) for op in registry.ops()]
        try:
            found += creators.registered(select(backend))
        except ConvertError as error:
            show.note(f"note: the ops only: {error.what}")
    elif libraries.is_library(file):
        found = libraries.load(file, select(backend)).creators
    else:
        found = [creators.of_op(op) for op in registry.load_file(file)]
    header = ["name", "version", "namespace", "interface", "pattern", "attributes", "dtypes", "from"]
    rows = [
        [
            creator.name,
            creator.version,
            creator.namespace,
            creator.interface,
            creator.op.pattern + (" (opt-in)" if creator.op.opt_in else "") if creator.op else "",
            ", ".join(map(_field, creator.fields)),
            ", ".join(creator.op.dtypes) if creator.op else "",
            creator.op.__module__ if creator.op else creator.library or "TensorRT",
        ]
        for creator in found
    ]
    if as_json:
        fields = [[dataclasses.asdict(field) for field in creator.fields] for creator in found]
        show.as_json(
            [{**dict(zip(header, row, strict=True)), "fields": f} for row, f in zip(rows, fields, strict=True)]
        )
    else:
        show.table(header, rows)


def _field(field: Field) -> str:
    many = f"[{field.length}]" if field.length > 1 else ""
    default = f" = {field.default!r}" if field.default is not None else ""
    return f"{field.name}: {field.type}{many}{default}"


@command.command("check")
@click.argument("op")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def check_(op: str, as_json: bool) -> None:
    """Check an op end to end: OP is a registered name, or a Python file that defines it.

    \b
    trtconvert plugins check LayerNormGelu
    trtconvert plugins check my_op.py
    """
    from trtconvert.check import check  # --help must not load it

    results = check(op)
    if as_json:
        show.as_json([dataclasses.asdict(result) for result in results])
    else:
        show.table(["op", "check", "verdict", "detail"], [[r.op, r.check, r.verdict, r.detail] for r in results])
    if any(result.verdict == "FAIL" for result in results):
        sys.exit(1)
    if any(result.verdict == "not run" for result in results):
        sys.exit(3)


@command.command("lib")
def lib_() -> None:
    """Path of the C++ library with the plugins of all built-in ops, for programs without Python.

    \b
    trtconvert plugins lib
    trtexec --loadEngine=engine.plan --dynamicPlugins=$(trtconvert plugins lib)
    """
    from trtconvert.native import library  # --help must not load it

    click.echo(library())


@command.command("build-native")
@click.option("--op", "files", multiple=True, type=click.Path(path_type=Path), help="A file with further ops.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Where to write it.")
@click.option(
    "--tensorrt-include", type=click.Path(path_type=Path), help="Folder of TensorRT's headers, to compile against."
)
def build_native_(files: tuple[Path, ...], output: Path | None, tensorrt_include: Path | None) -> None:
    """Compile the C++ plugin library: the built-in ops, and those of the files. Needs g++ only.

    \b
    trtconvert plugins build-native -o libtrtconvert_plugins.so
    trtconvert plugins build-native --op my_op.py -o libmy_plugins.so
    """
    from trtconvert import native, registry  # --help must not load it

    if tensorrt_include is not None:
        show.note(f"layout    as in the headers of {native.compare_layout(tensorrt_include)}")
    if output is None and not files and tensorrt_include is None:
        click.echo(native.library())
        return
    more = [(op.name, op.version, op.namespace) for file in files for op in registry.load_file(file)]
    click.echo(native.compile_library(output or Path(native.NAME), more, tensorrt_include))


@command.command("carry")
@click.argument("model", type=click.Path(path_type=Path))
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="The ONNX file to write.")
@click.option(
    "--target", default="", metavar="SM", help="sm_86,sm_89 or all or current. Default: the GPU here, else all."
)
@click.option("--plugin", "plugins", multiple=True, type=click.Path(path_type=Path), help="Python file with an Op.")
@click.option("--backend", type=click.Choice(["auto", "rtx", "tensorrt"]), default="auto", show_default=True)
def carry_(model: Path, output: Path, target: str, plugins: tuple[Path, ...], backend: str) -> None:
    """Write a fused model with its kernels inside, so that trtexec builds it with the C++ library and without Python.

    \b
    trtconvert fuse model.onnx -o fused.onnx
    trtconvert plugins carry fused.onnx -o carried.onnx --target sm_89
    trtexec --onnx=carried.onnx --dynamicPlugins=$(trtconvert plugins lib) --saveEngine=engine.plan
    """
    from trtconvert import carried  # --help must not load it
    from trtconvert.options import BuildOptions

    wanted = tuple(part.strip() for part in target.split(",") if part.strip())
    nodes = carried.write(model, output, BuildOptions(targets=wanted, plugins=plugins, backend=backend))
    what = f"{len(nodes)} plugin nodes with their kernels" if len(nodes) > 1 else "1 plugin node with its kernels"
    click.echo(f"{output}: {what}")
