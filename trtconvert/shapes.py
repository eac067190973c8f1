"""Shapes of dynamic inputs: what `--shape` says, checked against the model, and what is assumed where it says nothing."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from onnx import ModelProto, TensorShapeProto

from trtconvert import graph as onnx_graph
from trtconvert.errors import ConvertError

METADATA_KEY = "trtconvert.shape"  # a model may carry its own shapes, written as for --shape, separated by spaces


@dataclass(frozen=True)
class Range:
    """min, opt and max shape of one input in one optimization profile."""

    min: tuple[int, ...]
    opt: tuple[int, ...]
    max: tuple[int, ...]

    @property
    def points(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        return self.min, self.opt, self.max

    def __str__(self) -> str:
        shapes = [self.opt] if self.min == self.max else [self.min, self.opt, self.max]
        return ",".join("x".join(map(str, shape)) for shape in shapes)


def parse(texts: Sequence[str]) -> dict[str, Range]:
    """`NAME=1x3x224x224` or `NAME=MIN,OPT,MAX`; a colon serves as well as the equals sign, as in trtexec."""
    ranges = {}
    for text in texts:
        name, separator, value = text.rpartition("=")
        if not separator:
            name, separator, value = text.rpartition(":")
        try:
            shapes = [tuple(int(d) for d in part.split("x")) if part else () for part in value.split(",")]
        except ValueError:
            shapes = []
        if not name or len(shapes) not in (1, 3) or not all(0 <= d < 2**63 for shape in shapes for d in shape):
            raise ConvertError(
                f"cannot read --shape {text!r}",
                fix="write --shape NAME=1x3x224x224, or --shape NAME=MIN,OPT,MAX such as x=1x3x224x224,4x3x224x224,8x3x224x224",
            )
        ranges[name] = Range(shapes[0], shapes[len(shapes) // 2], shapes[-1])
    return ranges


Propose: TypeAlias = Callable[[], Mapping[str, Range]]
"""Shapes that a message may propose, of all dynamic inputs; none where nothing is known to work."""


@dataclass(frozen=True)
class Profile:
    """Ranges of all dynamic inputs, names of those that were assumed and notices about them, values of shape tensors."""

    ranges: dict[str, Range]
    notices: tuple[str, ...] = ()
    values: Mapping[str, Range] = field(default_factory=dict)
    assumed: tuple[str, ...] = ()

    @property
    def fixed(self) -> dict[str, list[int | None]]:
        """Per input the dimensions that have one value only, None for the others."""
        return {
            name: [low if low == high else None for low, high in zip(r.min, r.max, strict=True)]
            for name, r in self.ranges.items()
        }


def points(ranges: Mapping[str, Range]) -> dict[str, dict[str, list[int]]]:
    """Ranges as the manifest has them: by input, what it has at "min", "opt" and "max"."""
    return {name: {point: list(numbers) for point, numbers in vars(given).items()} for name, given in ranges.items()}


def profile(model: ModelProto, given: Mapping[str, Range], propose: Propose = lambda: {}) -> Profile:
    """The optimization profile for the model's dynamic inputs.

    A dynamic leading dimension that nothing is said about gets 1, 1, 16; ConvertError for any other, for unknown
    names, a wrong rank, a changed static dimension, and min > opt or opt > max.
    """
    weights = {t.name for t in model.graph.initializer}
    tensors = [
        i for i in model.graph.input if i.type.WhichOneof("value") in (None, "tensor_type")
    ]  # others: preflight's
    inputs = {i.name: onnx_graph.describe(i).shape for i in tensors if i.name not in weights}
    notices: list[str] = []
    carried = next((p.value for p in model.metadata_props if p.key == METADATA_KEY), "")
    if carried and not given:
        return _from_metadata(model, carried)
    for name in given:
        if name not in inputs:
            raise unknown_input("--shape", name, inputs)
    ranges: dict[str, Range] = {}
    assumed: list[str] = []
    missing: dict[str, tuple[int | str | None, ...]] = {}
    for name, shape in inputs.items():
        if shape is None:
            if name not in given:
                raise ConvertError(f"the rank of input {name!r} is unknown", fix=f"say it: --shape {name}=1x3x224x224")
            _check(name, (None,) * len(given[name].opt), given[name])
            ranges[name] = given[name]
        elif name in given:
            _check(name, shape, given[name])
            if any(not isinstance(d, int) for d in shape):
                ranges[name] = given[name]
        elif all(isinstance(d, int) for d in shape[1:]) and shape and not isinstance(shape[0], int):
            rest = tuple(d for d in shape[1:] if isinstance(d, int))
            ranges[name] = Range((1, *rest), (1, *rest), (16, *rest))
            assumed.append(name)
            notices.append(
                f"input {name!r} has a dynamic first dimension: built for 1 to 16, optimized for 1 (--shape {name}=...)"
            )
        elif any(not isinstance(d, int) for d in shape):
            missing[name] = shape
    if missing:
        raise _missing(missing, inputs, ranges, propose())
    _check_names(inputs, ranges, given)
    return Profile(ranges, tuple(notices), assumed=tuple(assumed))


def fix(model: ModelProto, profile: Profile) -> None:
    """Write the dimensions that have one value only into the model's inputs, in place; ranks that only the profile knows too."""
    set_ranks(model, {name: {"opt": given.opt} for name, given in profile.ranges.items()})
    for declared in model.graph.input:
        dims = profile.fixed.get(declared.name, ())
        for dim, size in zip(declared.type.tensor_type.shape.dim, dims, strict=False):
            if size is not None:
                dim.dim_value = size


def set_ranks(model: ModelProto, profile: Mapping[str, Mapping[str, Sequence[int]]]) -> None:
    """Give inputs of unknown rank as many open dimensions as the profile has, in place."""
    for declared in model.graph.input:
        tensor = declared.type.tensor_type
        if declared.name in profile and not tensor.HasField("shape"):
            tensor.shape.dim.extend(TensorShapeProto.Dimension() for _ in profile[declared.name]["opt"])


def _from_metadata(model: ModelProto, carried: str) -> Profile:
    """The profile that the model itself asks for; a fault in it is not one of `--shape`."""
    try:
        found = profile(model, parse(carried.split()))
    except ConvertError as error:
        raise ConvertError(
            f"the shapes in the model's metadata do not fit: {error.what}",
            where=f"metadata {METADATA_KEY} = {carried!r}",
            fix="correct the metadata, or give --shape",
        ) from error
    return Profile(found.ranges, (f"shapes from the model's metadata ({METADATA_KEY}): {carried}", *found.notices))


def _check(name: str, shape: tuple[int | str | None, ...], given: Range) -> None:
    for label, sizes in (("min", given.min), ("opt", given.opt), ("max", given.max)):
        if len(sizes) != len(shape):
            raise ConvertError(
                f"--shape {name}: {label} has {len(sizes)} dimensions, the input has {len(shape)}: {show(shape)}",
                fix=f"give {len(shape)} dimensions",
            )
        for axis, (size, declared) in enumerate(zip(sizes, shape, strict=True)):
            if isinstance(declared, int) and size != declared:
                raise ConvertError(
                    f"--shape {name}: {label} has {size} on axis {axis}, the model fixes it to {declared}: {show(shape)}",
                    fix="export the model with that axis dynamic, or keep its size",
                )
    in_order(f"--shape {name}", given)


def in_order(flag: str, given: Range, where: str = "on axis") -> None:
    """ConvertError unless min <= opt <= max in every element."""
    for (low, a), (high, b) in ((("min", given.min), ("opt", given.opt)), (("opt", given.opt), ("max", given.max))):
        for index, (x, y) in enumerate(zip(a, b, strict=True)):
            if x > y:
                raise ConvertError(f"{flag}: {low} {x} > {high} {y} {where} {index}", fix="give min <= opt <= max")


def _check_names(
    inputs: Mapping[str, tuple[int | str | None, ...] | None], ranges: Mapping[str, Range], given: Mapping[str, Range]
) -> None:
    """Dimensions of one name have one size. The flag in the error is for an input whose range was only assumed."""
    seen: dict[str, tuple[str, tuple[int, int, int]]] = {}
    for name in sorted(ranges, key=lambda name: name not in given):
        for axis, dim in enumerate(inputs[name] or ()):
            sizes = _sizes(ranges[name], axis)
            if isinstance(dim, str) and seen.setdefault(dim, (name, sizes))[1] != sizes:
                other, expected = seen[dim]
                flag = (
                    f": --shape {name}={_like(inputs[name] or (), _known(inputs, given))}" if name not in given else ""
                )
                raise ConvertError(
                    f"inputs {other!r} and {name!r} share the dimension {dim!r}, but get "
                    f"{'/'.join(map(str, expected))} and {'/'.join(map(str, sizes))} (min/opt/max)"
                    + (", since nothing was said of the second" if flag else ""),
                    fix=f"give both the same sizes{flag or ' with --shape'}",
                )


def _sizes(given: Range, axis: int) -> tuple[int, int, int]:
    return given.min[axis], given.opt[axis], given.max[axis]


def _known(
    inputs: Mapping[str, tuple[int | str | None, ...] | None], ranges: Mapping[str, Range]
) -> dict[str, tuple[int, int, int]]:
    """Min, opt and max of the named dimensions of these inputs."""
    return {
        dim: _sizes(given, axis)
        for name, given in ranges.items()
        for axis, dim in enumerate(inputs[name] or ())
        if isinstance(dim, str)
    }


def _missing(
    missing: Mapping[str, tuple[int | str | None, ...]],
    inputs: Mapping[str, tuple[int | str | None, ...] | None],
    ranges: Mapping[str, Range],
    proposed: Mapping[str, Range],
) -> ConvertError:
    named = [f"{name} {show(shape)}" for name, shape in missing.items()]
    if proposed:
        flags = [f"--shape {name}={shape}" for name, shape in proposed.items()]
        return ConvertError(
            f"dynamic dimensions without a range: {'; '.join(named)}",
            fix=f"add, with your own sizes (min,opt,max); onnxruntime runs the model at these: {' '.join(flags)}",
        )
    known = _known(inputs, ranges)
    flags = [f"--shape {name}={_like(shape, known)}" for name, shape in missing.items()]
    return ConvertError(
        f"dynamic dimensions without a range: {'; '.join(named)}",
        fix=f"add, with your own sizes (min,opt,max): {' '.join(flags)}",
    )


def _like(shape: Sequence[int | str | None], known: dict[str, tuple[int, int, int]]) -> Range:
    """An example for --shape. Dimensions of one name get one size, here and in the next call: `known` keeps them."""
    columns = []
    for axis, dim in enumerate(shape):
        example = (dim, dim, dim) if isinstance(dim, int) else ((1, 1, 16) if axis == 0 else (64, 256, 1024))
        columns.append(known.setdefault(dim, example) if isinstance(dim, str) else example)
    return Range(*(tuple(column[point] for column in columns) for point in range(3)))


def unknown_input(flag: str, name: str, inputs: Iterable[str]) -> ConvertError:
    """The error for a flag that names what is no input: the nearest name, and all of them."""
    names = list(inputs)
    near = difflib.get_close_matches(name, names, 1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return ConvertError(
        f"{flag} names {name!r}, which is no input of the model", fix=f"{hint}inputs: {', '.join(names)}"
    )


def show(shape: Sequence[int | str | None]) -> str:
    """A shape in brackets; ? where nothing is known of a dimension."""
    return "[" + ", ".join("?" if d is None else str(d) for d in shape) + "]"
