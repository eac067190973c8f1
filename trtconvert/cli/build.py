"""trtconvert build"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trtconvert.cli import show
from trtconvert.precision.options import CALIBRATORS, CASTERS, KEEP, PRECISIONS

if TYPE_CHECKING:
    from trtconvert.build import BuildResult
    from trtconvert.cache import CachedBuild
    from trtconvert.manifest import Manifest

CHOICES_SHOWN = 8
TENSORS_SHOWN = 8


@click.command()
@click.argument("model", type=click.Path(path_type=Path), required=False)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="The plan. Default: MODEL with .plan.")
@click.option(
    "--shape", "shapes", multiple=True, metavar="NAME=MIN,OPT,MAX", help="Shapes of a dynamic input. Repeatable."
)
@click.option(
    "--value",
    "values",
    multiple=True,
    metavar="NAME=MIN,OPT,MAX",
    help="Values of an input that decides shapes. Repeatable.",
)
@click.option(
    "--bake", "baked", multiple=True, metavar="NAME=VALUE", help="Make an input a constant: 1,2,3 or x.npy. Repeatable."
)
@click.option(
    "--target", default="", metavar="SM", help="sm_86,sm_89 or all or current. Default: the GPU here, else all."
)
@click.option(
    "--pattern", "patterns", multiple=True, help="What to look for. Repeatable. Default: all but opt-in patterns."
)
@click.option(
    "--fuse",
    default="auto",
    show_default=True,
    metavar="auto|all|none|NAME,...",
    help="Fuse what pays, everything, nothing, or all of these patterns.",
)
@click.option(
    "--no-fuse",
    multiple=True,
    is_flag=False,
    flag_value="",
    metavar="[NODE]",
    help="Fuse nothing around a node; nothing at all without one. Repeatable.",
)
@click.option(
    "--plugin",
    "plugins",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Python file with an Op, or compiled plugin library. Repeatable.",
)
@click.option("--map", "maps", multiple=True, metavar="OP=NAME[@VERSION][:NS]", help="Give an op's nodes to a creator.")
@click.option(
    "--set-attr",
    "attributes",
    multiple=True,
    metavar="NODE.NAME=VALUE",
    help="Set a plugin node's attribute; empty: drop.",
)
@click.option(
    "--cast",
    "--cast-plugin-input",
    "casts",
    multiple=True,
    metavar="NODE:INPUT=DTYPE",
    help="Cast an input of a node, or with out0 an output. Repeatable.",
)
@click.option(
    "--precision",
    type=click.Choice(PRECISIONS),
    help="Convert the model to this precision; int8 leaves the rest as it is.",
)
@click.option(
    "--calib",
    type=click.Path(path_type=Path),
    metavar="FOLDER|FILE.npz",
    help="Samples on which int8's scales, or what float16 cannot hold, are measured.",
)
@click.option(
    "--calib-method",
    type=click.Choice(CALIBRATORS),
    default=CALIBRATORS[0],
    show_default=True,
    help="How int8's scales follow from the samples.",
)
@click.option("--calib-search", is_flag=True, help="Leave float what int8 costs most: a run per tensor and sample.")
@click.option(
    "--io-precision",
    type=click.Choice([KEEP, "fp16", "bf16", "fp32"]),
    default=KEEP,
    show_default=True,
    help="Type of float inputs and outputs, with --precision.",
)
@click.option(
    "--keep-fp32", multiple=True, metavar="NODE", help="A node, or an op's nodes, that stay in float32. Repeatable."
)
@click.option(
    "--caster",
    type=click.Choice(CASTERS),
    default=CASTERS[0],
    show_default=True,
    help="What converts, with --precision.",
)
@click.option("--opt-level", type=click.IntRange(0, 5), help="TensorRT's builder optimization level.")
@click.option("--workspace", metavar="SIZE", help="Builder's workspace limit, such as 512M or 2G.")
@click.option("--timing-cache", type=click.Path(path_type=Path), help="Read and update TensorRT's timing cache.")
@click.option("--refit", is_flag=True, help="Weights of the engine can be replaced later.")
@click.option("--strip-weights", is_flag=True, help="Leave the weights out of the plan, to be refitted.")
@click.option("--version-compatible", is_flag=True, help="The plan runs in later TensorRT versions of the same major.")
@click.option("--hardware-compatible", is_flag=True, help="The plan runs on Ampere and newer GPUs.")
@click.option("--backend", type=click.Choice(["auto", "rtx", "tensorrt"]), default="auto", show_default=True)
@click.option("--cache", "cached", is_flag=True, help="Take the engine from the cache, or build it and keep it there.")
@click.option("--cache-size", metavar="SIZE", help="What the cache may take, with --cache. Default: 20G.")
@click.option("--json", "as_json", is_flag=True, help="Print the manifest.")
@click.option("-v", "--verbose", is_flag=True, help="Show TensorRT's log.")
def command(
    model: Path | None,
    output: Path | None,
    shapes: tuple[str, ...],
    values: tuple[str, ...],
    baked: tuple[str, ...],
    target: str,
    workspace: str | None,
    fuse: str,
    no_fuse: tuple[str, ...],
    maps: tuple[str, ...],
    attributes: tuple[str, ...],
    casts: tuple[str, ...],
    precision: str | None,
    io_precision: str,
    keep_fp32: tuple[str, ...],
    caster: str,
    calib: Path | None,
    calib_method: str,
    calib_search: bool,
    cached: bool,
    cache_size: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Build a TensorRT engine from an ONNX model, with plugin kernels for the subgraphs that TensorRT leaves slow.

    \b
    trtconvert build model.onnx
    trtconvert build speech.onnx -o speech.plan --shape waveform=1x400,1x16000,8x160000
    trtconvert build resize.onnx --value sizes=1x3x64x64,1x3x128x128,1x3x512x512
    trtconvert build resize.onnx --bake sizes=1,3,128,128
    trtconvert build model.onnx --target sm_86,sm_89
    trtconvert build model.onnx --fuse all
    trtconvert build model.onnx --precision fp16
    trtconvert build model.onnx --precision int8 --calib samples.npz
    trtconvert build model.onnx --cache
    """
    from trtconvert.custom_ops.wishes import parse as parse_wishes  # --help must not load it
    from trtconvert.options import BuildOptions
    from trtconvert.precision.options import PrecisionOptions
    from trtconvert.profiles import bake, shape_values
    from trtconvert.shapes import parse

    model, no_fuse = _model_behind_no_fuse(model, no_fuse)
    nothing = "" in no_fuse
    if nothing and (fuse not in ("auto", "none") or len(set(no_fuse)) > 1):
        other = f"--fuse {fuse}" if fuse not in ("auto", "none") else f"--no-fuse {next(filter(None, no_fuse))}"
        raise click.UsageError(f"--no-fuse and {other} contradict each other")
    if precision is None and (keep_fp32 or io_precision != KEEP or caster != CASTERS[0]):
        raise click.UsageError("--io-precision, --keep-fp32 and --caster need --precision")
    if calib is not None and precision in (None, "fp32"):
        raise click.UsageError("--calib needs --precision int8, int8+fp16, fp16 or bf16")
    if calib_search and precision not in ("int8", "int8+fp16"):
        raise click.UsageError("--calib-search needs --precision int8 or int8+fp16")
    if precision == "int8" and (io_precision != KEEP or caster != CASTERS[0]):
        raise click.UsageError("int8 leaves the rest as it is: --io-precision and --caster need int8+fp16")
    if cache_size is not None and not cached:
        raise click.UsageError("--cache-size needs --cache")
    chosen = BuildOptions(
        shapes=parse(shapes),
        bake=bake.parse(baked),
        wishes=parse_wishes(maps, attributes, casts),
        precision=PrecisionOptions(precision or "", io_precision, keep_fp32, caster, calib, calib_method, calib_search),
        values=shape_values.parse(values),
        targets=tuple(t.strip() for t in target.split(",") if t.strip()),
        workspace=_bytes(workspace, "--workspace"),
        fuse="none" if nothing else fuse,
        no_fuse=() if nothing else tuple(dict.fromkeys(no_fuse)),
        **options,
    )
    with show.progress() as progress:
        if cached:
            from trtconvert.cache import LIMIT, cached_build

            given = _bytes(cache_size, "--cache-size")
            limit = LIMIT if given is None else given
            result: BuildResult | CachedBuild = cached_build(model, output, chosen, progress, limit)
        else:
            from trtconvert.build import build

            result = build(model, output, chosen, progress)
    for notice in result.notices:
        show.note(f"note: {notice}")
    if as_json:
        import dataclasses

        show.as_json(dataclasses.asdict(result.manifest) | _of_cache(result))
    else:
        _report(result)


def _model_behind_no_fuse(model: Path | None, nodes: tuple[str, ...]) -> tuple[Path, tuple[str, ...]]:
    """MODEL, and the nodes of --no-fuse: a model that follows --no-fuse directly was not meant as a node."""
    if model is not None:
        return model, nodes
    taken = next((index for index, name in enumerate(nodes) if name.endswith(".onnx")), None)
    if taken is None:
        raise click.UsageError("Missing argument 'MODEL'.")
    return Path(nodes[taken]), (*nodes[:taken], "", *nodes[taken + 1 :])


def _of_cache(result: BuildResult | CachedBuild) -> dict[str, Any]:
    """What --json says of the cache, where it was asked for."""
    asked = ("key", "hit", "made")
    return {"cache": {name: getattr(result, name) for name in asked}} if hasattr(result, "key") else {}


def _report(result: BuildResult | CachedBuild) -> None:
    described = result.manifest
    click.echo(f"plan      {result.plan} ({show.megabytes(described.plan_bytes)})")
    click.echo(f"manifest  {result.plan}.json")
    click.echo(f"backend   {described.backend_title} for {', '.join(described.targets)}")
    for side, tensors in (("input", described.engine_inputs), ("output", described.engine_outputs)):
        for io in tensors[:TENSORS_SHOWN]:
            click.echo(f"{side:9} {io.name}: {io.dtype} {show.shape(io.shape)}")
        if tensors[TENSORS_SHOWN:]:
            click.echo(f"{side:9} and {len(tensors) - TENSORS_SHOWN} more, see the manifest")
    for line in show.precision(described.precision):
        click.echo(line)
    names = [f"{plugin.name} x{len(plugin.nodes)}" for plugin in described.plugins]
    click.echo(f"plugins   {', '.join(names) or 'none'}  ({len(described.fusions)} fused)")
    for line in _choices(described):
        click.echo(line)
    click.echo(f"time      {result.seconds:.1f} s")


def _choices(described: Manifest) -> Iterator[str]:
    """What was kept and why, a line for all fusions that it says the same of; then the engine."""
    counts = Counter(
        (c["kept"], c["op"], " ".join(filter(None, ("x".join(map(str, c["shape"] or ())), c["dtype"]))), c["reason"])
        for c in described.choices
        if c["how"] != "forced"
    )
    for (kept, op, size, reason), count in list(counts.items())[:CHOICES_SHOWN]:
        yield f"{'fused' if kept else 'native':9} {op} x{count}{f' ({size})' if size else ''}: {reason}"
    if len(counts) > CHOICES_SHOWN:
        yield f"          and {len(counts) - CHOICES_SHOWN} more choices, see the manifest"
    whole = described.whole_engine
    if whole and whole["kept"] and whole["plugins_us"] is not None:
        pairs = [(e["plugins"], e["native"]) for e in whole["errors"].values()]
        worst = max(pairs, key=lambda pair: pair[0] or 0.0, default=(None, None))
        errors = f"; relative L2 error {worst[0]:.1e}, native {worst[1]:.1e}" if None not in worst else ""
        yield (
            f"engine    {whole['plugins_us']:.1f} us with plugins, native {whole['native_us']:.1f} us"
            f"{'' if whole['graph'] else ', without a CUDA graph'}{errors}"
        )
    if whole and whole["reason"]:
        yield f"engine    {whole['reason']}"
    if timed := [c for c in described.choices if c["native_us"] is not None]:
        yield f"measured  on {timed[0]['machine']}, in CUDA graphs where nothing else is said"


def _bytes(text: str | None, option: str) -> int | None:
    if text is None:
        return None
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    number, unit = (text[:-1], units[text[-1].upper()]) if text[-1:].upper() in units else (text, 1)
    if not number.isdecimal():
        raise click.BadParameter(f"{text!r} is not a size; write 512M or 2G", param_hint=option)
    return int(number) * unit
