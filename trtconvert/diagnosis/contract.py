"""The engine's inputs and outputs are the model's: names, order, element types, ranks and known sizes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from onnx import ModelProto

from trtconvert.diagnosis.faults import Fault
from trtconvert.errors import ConvertError
from trtconvert.manifest import IO, Manifest, model_io

# What TensorRT reads as another type, exactly or with a notice (notices).
_READ_AS = {"float64": "float32"}


def faults(model: ModelProto) -> Iterator[Fault]:
    """Outputs that are inputs too: an engine has one tensor of each name, and TensorRT would rename one of them."""
    inputs = {value.name for value in model.graph.input}
    for value in model.graph.output:
        if value.name in inputs:
            yield Fault(
                value.name,
                "",
                "this output is an input too, and an engine needs a name for each",
                "leave the output out, or put an Identity before it that gives it another name",
            )


def check(model: ModelProto, inputs: Sequence[IO], outputs: Sequence[IO], title: str) -> None:
    """ConvertError where the parsed network's inputs and outputs are not those that the model declares."""
    for side, engine in (("input", inputs), ("output", outputs)):
        declared = model_io(model, side)
        expected, got = [io.name for io in declared], [io.name for io in engine]
        if expected != got:
            raise ConvertError(
                f"{title} changed the model's {side}s: expected {', '.join(expected)}, got {', '.join(got)}",
                fix="report this model",
            )
        for wanted, made in zip(declared, engine, strict=True):
            difference = _difference(wanted, made)
            if difference:
                raise ConvertError(
                    f"the model declares {side} {wanted.name!r} as {difference}",
                    where=f"{side} {wanted.name!r}",
                    fix=f"correct the {side}'s declaration in the model, or leave its shape out",
                )


def _difference(wanted: IO, made: IO) -> str:
    dtype = _READ_AS.get(wanted.dtype, wanted.dtype)
    if dtype and dtype != made.dtype:
        return f"{wanted.dtype}, the engine would have {made.dtype}"
    if wanted.shape is None or made.shape is None:
        return ""
    sizes = [
        (a, b)
        for a, b in zip(wanted.shape, made.shape, strict=False)
        if isinstance(a, int) and isinstance(b, int) and b >= 0
    ]
    if len(wanted.shape) != len(made.shape) or any(a != b for a, b in sizes):
        return f"{list(wanted.shape)}, the engine would have {list(made.shape)}"
    return ""


def check_loaded(described: Manifest, inputs: Sequence[IO], outputs: Sequence[IO]) -> None:
    """ConvertError where a loaded engine's tensors are not those that were parsed: names, element types and ranks."""
    for side, expected, got in (
        ("input", described.engine_inputs, inputs),
        ("output", described.engine_outputs, outputs),
    ):
        wanted, found = [{t.name: (t.dtype, len(t.shape or ())) for t in side_} for side_ in (expected, got)]
        if wanted != found:
            raise ConvertError(
                f"the engine's {side}s are {_list(found)}; its manifest says {_list(wanted)}",
                fix="build the plan again",
            )


def _list(tensors: Mapping[str, tuple[str, int]]) -> str:
    return ", ".join(f"{name} {dtype} of {rank} dimensions" for name, (dtype, rank) in tensors.items()) or "none"
