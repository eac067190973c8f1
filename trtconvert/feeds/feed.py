"""The batches to compare with: of files, of a script, or random ones at the profile's min, opt and max."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto

from trtconvert.errors import ConvertError
from trtconvert.feeds import files, roles, script
from trtconvert.feeds.contract import Batch, Contract
from trtconvert.feeds.draw import draw
from trtconvert.feeds.roles import Role
from trtconvert.inputs import Point, arrays, points
from trtconvert.manifest import IO
from trtconvert.monitor import Progress
from trtconvert.shapes import unknown_input


@dataclass(frozen=True)
class FeedOptions:
    """Where inputs come from; from chance if nothing else is said.

    inputs: see `files`. script: FILE.py:FUNCTION, see `script`. ranges: bounds of random values by input. samples: random batches
    at the opt shapes (1 if None), or how many batches of files or of a script are taken (all). seed: of random values.
    """

    inputs: Path | None = None
    script: str = ""
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    samples: int | None = None
    seed: int = 0


@dataclass(frozen=True)
class Feeds:
    """batches: to go through once. count: how many, None if a script will tell. roles: what random inputs were taken for, at the
    opt shapes."""

    batches: Iterator[Batch]
    count: int | None
    roles: dict[str, Role] = field(default_factory=dict)

    @property
    def notes(self) -> list[str]:
        """A sentence per input that is more than plain random numbers."""
        plain = (roles.NORMAL, roles.VALUES)
        return [f"input {name}: {role.sentence}" for name, role in self.roles.items() if role.kind not in plain]

    def told(self, progress: Progress | None) -> Iterator[Batch]:
        """The batches; `progress` is told how many are done."""
        done = -1
        for done, batch in enumerate(self.batches):
            if progress is not None:
                progress("comparing", done, self.count or 0)
            yield batch
        if progress is not None:
            progress("comparing", done + 1, self.count or 0)


def feeds(options: FeedOptions, model: ModelProto, folder: Path, contract: Contract) -> Feeds:
    """The batches that the options ask for. model: in whose graph the roles of random inputs are looked for; folder: of its
    external data. ConvertError if they contradict each other or name what is not there."""
    _check(options, contract)
    if options.script:
        return Feeds(_first(script.batches(options.script, contract, options.seed), options.samples), options.samples)
    if options.inputs is not None:
        readers = files.batches(options.inputs, contract)[: options.samples]
        return Feeds((read() for read in readers), len(readers))
    places = list(points(contract.inputs, contract.profile, contract.values, contract.unfit))
    found = {place.name: _roles(options, model, folder, contract, place) for place in places}
    many = [_samples(place, options, places) for place in places]
    middle = found.get("opt") or next(iter(found.values()), {})
    return Feeds(_random(options.seed, contract.inputs, places, many, found), sum(many), middle)


def _random(
    seed: int,
    inputs: Sequence[IO],
    places: Sequence[Point],
    many: Sequence[int],
    found: Mapping[str, Mapping[str, Role]],
) -> Iterator[Batch]:
    """Each batch of its own seed, so that one of them can be made again alone."""
    for number, (place, samples) in enumerate(zip(places, many, strict=True)):
        one = partial(_draw, found[place.name])
        for sample in range(samples):
            random = np.random.default_rng([seed, number, sample])
            yield Batch(place.label, arrays(random, inputs, place, one), sample)


def _draw(found: Mapping[str, Role], random: np.random.Generator, io: IO, shape: tuple[int, ...]) -> NDArray[Any]:
    return draw(random, found[io.name], io.dtype, shape)


def _samples(place: Point, options: FeedOptions, places: Sequence[Point]) -> int:
    """opt is left out where it equals min, which then stands for it."""
    names = [p.name for p in places]
    middle = "opt" if "opt" in names else names[0]
    return (options.samples or 1) if place.name == middle else 1


def _roles(options: FeedOptions, model: ModelProto, folder: Path, contract: Contract, place: Point) -> dict[str, Role]:
    found = roles.of_inputs(model, folder, contract.inputs, place.shapes)
    found |= {
        name: Role(roles.GIVEN, low, high, "as --input-range says") for name, (low, high) in options.ranges.items()
    }
    return found | {name: Role(roles.VALUES, None, None, "as --value says") for name in place.given}


def _first(batches: Iterator[Batch], limit: int | None) -> Iterator[Batch]:
    for number, batch in enumerate(batches, 1):
        yield batch
        if number == limit:
            return


# --- what the command line says ------------------------------------------------------------------------------------


def parse_ranges(texts: Sequence[str]) -> dict[str, tuple[float, float]]:
    """`NAME=LOW,HIGH`, both included. ConvertError if it cannot be read, or LOW is more than HIGH."""
    ranges = {}
    for text in texts:
        name, _, given = text.rpartition("=")
        try:
            low, high = (float(part) for part in given.split(","))
        except ValueError:
            low, high = np.nan, np.nan
        if not name or not np.isfinite([low, high]).all():
            raise ConvertError(
                f"cannot read --input-range {text!r}", fix="write --input-range NAME=LOW,HIGH, such as x=0,255"
            )
        if low > high:
            raise ConvertError(f"--input-range {name}: {low:g} is more than {high:g}", fix="give the lower bound first")
        ranges[name] = (low, high)
    return ranges


def _check(options: FeedOptions, contract: Contract) -> None:
    ways = [flag for flag, given in (("--inputs", options.inputs), ("--input-script", options.script)) if given]
    if options.ranges:
        ways.append("--input-range")
    if len(ways) > 1:
        raise ConvertError(f"{' and '.join(ways)} contradict each other", fix="give one of them")
    inputs = {io.name: io for io in contract.inputs}
    for name, (low, high) in options.ranges.items():
        if name not in inputs:
            raise unknown_input("--input-range", name, inputs)
        if name in contract.values:
            raise ConvertError(
                f"--input-range {name}: the values of this input decide shapes",
                fix="they were given by --value when the engine was built; leave the option out",
            )
        dtype = inputs[name].dtype
        if dtype == "bool" or dtype.startswith(("int", "uint")):
            info = (0, 1) if dtype == "bool" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
            if not (float(low).is_integer() and float(high).is_integer() and info[0] <= low and high <= info[1]):
                raise ConvertError(
                    f"--input-range {name}: {low:g} to {high:g} is no range of {dtype}",
                    fix=f"give whole numbers from {info[0]} to {info[1]}",
                )
