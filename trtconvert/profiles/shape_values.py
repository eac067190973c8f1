"""Values of shape tensors: inputs whose values, not their shapes alone, decide the shapes inside the engine.

What `--value` says, checked against the model; what TensorRT asks for after parsing; inputs that had better be constants.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import prod

from onnx import ModelProto

from trtconvert.diagnosis.faults import Fault
from trtconvert.errors import ConvertError
from trtconvert.manifest import IO, model_io
from trtconvert.shapes import Range, in_order, show, unknown_input

_LIMITS = {"int32": 2**31, "int64": 2**63}
_SMALL = 64  # elements of an input that may be meant as a constant


class MissingValuesError(ConvertError):
    """TensorRT asks for the values of inputs."""


def parse(texts: Sequence[str]) -> dict[str, Range]:
    """`NAME=MIN,OPT,MAX` or one for all three, each the tensor's values with x between them, as in s=1x4,2x4,8x4."""
    values = {}
    for text in texts:
        name, _, given = text.rpartition("=")
        try:
            points = [tuple(int(v) for v in part.split("x")) if part else () for part in given.split(",")]
        except ValueError:
            points = []
        if not name or len(points) not in (1, 3):
            raise ConvertError(
                f"cannot read --value {text!r}",
                fix="write --value NAME=MIN,OPT,MAX, the values of the tensor with x between them, such as s=1x4,2x4,8x4",
            )
        values[name] = Range(points[0], points[len(points) // 2], points[-1])
    return values


def implied(model: ModelProto, given: Mapping[str, Range]) -> dict[str, Range]:
    """Shapes of vectors of open size, by the number of values that are given for them."""
    shapes = {io.name: list[object](io.shape or ()) for io in model_io(model, "input")}
    vectors = {name for name, shape in shapes.items() if len(shape) == 1 and not isinstance(shape[0], int)}
    return {name: Range(*[(len(values.opt),)] * 3) for name, values in given.items() if name in vectors}


def check(model: ModelProto, given: Mapping[str, Range], fixed: Mapping[str, Sequence[int | None]]) -> None:
    """ConvertError for a name that is no input, an input of another dtype than int32 and int64 or of unknown size, another
    number of values, one out of the dtype's range, and min > opt or opt > max.

    fixed: input name to dimensions, as far as they have one value only, see shapes.Profile.
    """
    inputs = {io.name: io for io in model_io(model, "input")}
    for name, values in given.items():
        if name not in inputs:
            raise unknown_input("--value", name, inputs)
        io = inputs[name]
        if io.dtype not in _LIMITS:
            raise ConvertError(
                f"--value {name}: the input is {io.dtype}, the values of a shape tensor are int32 or int64",
                fix=f"give its shape with --shape {name}=..., or make it a constant: --bake {name}=VALUE",
            )
        shape = fixed.get(name, io.shape)
        sizes = [d for d in shape or () if isinstance(d, int)]
        if shape is None or len(sizes) < len(shape):
            raise ConvertError(
                f"--value {name}: an input with values must have one size, not {show(shape or '?')}",
                fix=f"give it one, such as --shape {name}={len(values.opt)}",
            )
        _check_one(name, values, prod(sizes), _LIMITS[io.dtype])


def _check_one(name: str, values: Range, count: int, limit: int) -> None:
    for label, point in (("min", values.min), ("opt", values.opt), ("max", values.max)):
        if len(point) != count:
            raise ConvertError(
                f"--value {name}: {label} has {len(point)} values, the input has {count}",
                fix=f"give {count}, with x between them",
            )
        if not all(-limit <= v < limit for v in point):
            raise ConvertError(
                f"--value {name}: {label} has a value beyond {limit.bit_length()}-bit integers",
                fix="give values of the input's dtype",
            )
    in_order(f"--value {name}", values, "at value")


# --- what TensorRT asks for ----------------------------------------------------------------------------------------


def require(shape_tensors: Sequence[IO], given: Mapping[str, Range]) -> list[str]:
    """Notes on values that TensorRT has no use for. shape_tensors: the inputs that TensorRT says are such. MissingValuesError
    names those without values."""
    missing = [io for io in shape_tensors if io.name not in given]
    if missing:
        flags = [f"--value {io.name}={','.join(_example(io, size) for size in (1, 2, 4))}" for io in missing]
        baked = [f"--bake {io.name}=VALUE" for io in missing]
        named = ", ".join(f"{io.name!r} ({io.dtype} {io.shape})" for io in missing)
        it, constants = ("it", "a constant") if len(missing) == 1 else ("them", "constants")
        raise MissingValuesError(
            f"the values of input{'s' * (len(missing) > 1)} {named} decide shapes in the model: TensorRT has to know them "
            "at min, opt and max",
            fix=f"give the values, with your own numbers: {' '.join(flags)}\n"
            f"  or, where the values never change, make {it} {constants}: {' '.join(baked)}",
        )
    used = {io.name for io in shape_tensors}
    return [
        f"--value {name}: no shape depends on this input for TensorRT; verify and bench feed the values, the engine takes any"
        for name in given
        if name not in used
    ]


def bake_hint(names: Iterable[str]) -> str:
    """What may help where TensorRT wants to know the values of these inputs."""
    flags = " ".join(f"--bake {name}=VALUE" for name in names)
    return f"if an input has to be a constant there, make it one: {flags}; or " if flags else ""


def _example(io: IO, value: int) -> str:
    return "x".join([str(value)] * prod(d for d in io.shape or () if isinstance(d, int)))


def with_bake(faults: Iterable[Fault], model: ModelProto) -> list[Fault]:
    """Faults of nodes that read small inputs of the model, as axes or scales: making these constants is another way out; so are
    values, where TensorRT does not know how many there are."""
    shapes = {io.name: (io.dtype, io.shape or []) for io in model_io(model, "input")}
    found = []
    for fault in faults:
        wanted = _operands(model, fault.node)
        open_sizes = [
            n for n in wanted if shapes[n][0] in _LIMITS and any(not isinstance(d, int) for d in shapes[n][1])
        ]
        values = " ".join(f"--value {name}=MIN,OPT,MAX" for name in open_sizes)
        hint = bake_hint(wanted) + (
            f"if it may change, give its values, such as 1x4,2x4,8x4: {values}; or " if values else ""
        )
        found.append(replace(fault, fix=hint + fault.fix))
    return found


def _operands(model: ModelProto, node: str) -> list[str]:
    """Small inputs of the model that the node reads as anything but its first operand, or that such operands are computed
    from; what comes from the sizes of an input is known at build time."""
    producers = {name: node for node in model.graph.node for name in node.output}
    small = {
        io.name
        for io in model_io(model, "input")
        if io.shape is not None and len(io.shape) <= 1 and prod(d for d in io.shape if isinstance(d, int)) <= _SMALL
    }
    found, seen = set[str](), set[str]()
    pending = [name for made in model.graph.node if made.name == node for name in (made.input[1:] or made.input)]
    while pending:
        name = pending.pop()
        if name in seen:
            continue
        seen.add(name)
        if name in small:
            found.add(name)
        elif name in producers and producers[name].op_type not in ("Shape", "Size"):
            pending += producers[name].input
    return sorted(found)
