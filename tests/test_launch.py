"""Symbolic sizes and the text form of a launch."""

from __future__ import annotations

import random

import pytest

from trtconvert import ConvertError
from trtconvert.launch import (
    Dim,
    Launch,
    Tensor,
    ceil_div,
    decode,
    dims_used,
    encode,
    evaluate,
    maximum,
    minimum,
    product,
)

SHAPES = [(3, 5, 7), (11, 2)]


def expression(chooser: random.Random, depth: int) -> tuple[Dim | int, int]:
    """A random expression and its value by Python's own arithmetic."""
    if depth == 0:
        if chooser.random() < 0.4:
            number = chooser.randint(1, 20)
            return number, number
        tensor = chooser.randrange(2)
        axis = chooser.randrange(len(SHAPES[tensor]))
        return Dim.of_input(tensor, axis), SHAPES[tensor][axis]
    (a, x), (b, y) = expression(chooser, depth - 1), expression(chooser, depth - 1)
    kind = chooser.randrange(7)
    if kind == 0:
        return a + b, x + y
    if kind == 1:
        return a * b, x * y
    if kind == 2:
        return a + b - b, x
    if kind == 3 and y:
        return a // b, x // y
    if kind == 4 and y:
        return ceil_div(a, b), -(-x // y)
    return (minimum(a, b), min(x, y)) if kind == 5 else (maximum(a, b), max(x, y))


@pytest.mark.parametrize("seed", range(200))
def test_expressions(seed: int) -> None:
    size, value = expression(random.Random(seed), 1 + seed % 5)
    assert evaluate(size, SHAPES) == value
    launch = Launch("k", (size, 1, 1), (1, 1, 1), (size,))
    assert evaluate(decode(encode(launch)).grid[0], SHAPES) == value


def test_known_sizes_are_plain_numbers() -> None:
    assert product((2, 3, 4)) == 24
    assert ceil_div(7, 2) == 4
    assert Tensor("float32", (2, 3)).size == 6
    assert str(product((1, Dim.of_input(0, 1), 4))) == "i0.1 4 *"


def test_dims_used() -> None:
    size = Dim.of_input(1, 0) * Dim.of_input(0, 2) + 3
    launch = Launch("k", (size, 1, 1), (32, 1, 1), (Dim.of_input(0, 2),))
    assert dims_used(launch) == ((0, 2), (1, 0))
    assert evaluate(size, {0: {2: 7}, 1: {0: 11}}) == 80
    assert dims_used(Launch("k", (4, 1, 1), (32, 1, 1), (5,))) == ()


def test_round_trip() -> None:
    x, y = Tensor("float16", (Dim.of_input(0, 0), 8), "in 0"), Tensor("float16", (Dim.of_input(0, 0), 8), "out 0")
    launch = Launch("k", (ceil_div(x.size, 256), 1, 1), (256, 1, 1), (x, y, x.size, 3, 1e-12, -0.0), shared=64)
    text = encode(launch, "Name 1", {"epsilon": 1e-12})
    again = decode(text)
    assert (again.kernel, again.grid, again.block, again.shared) == ("k", launch.grid, launch.block, 64)
    assert [a.slot if isinstance(a, Tensor) else a for a in again.args] == ["in 0", "out 0", x.size, 3, 1e-12, -0.0]
    assert text.splitlines()[:3] == ["trtconvert-launch 1", "op Name 1", "attribute epsilon 1e-12"]


def test_newer_format_is_refused() -> None:
    text = encode(Launch("k", (1, 1, 1), (1, 1, 1), ())).replace("trtconvert-launch 1", "trtconvert-launch 2")
    with pytest.raises(ConvertError, match="format 2, this trtconvert reads up to 1"):
        decode(text)
    with pytest.raises(ConvertError, match="not one of trtconvert's"):
        decode("something else")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_argument_that_is_no_number(value: float) -> None:
    with pytest.raises(ConvertError, match="not a finite number"):
        encode(Launch("k", (1, 1, 1), (1, 1, 1), (value,)))


def test_format_1_is_read_forever() -> None:
    """Golden text: plans that hold it exist."""
    golden = (
        "trtconvert-launch 1\nop LayerNormGelu 1\nattribute epsilon 1e-05\nattribute axis -1\nkernel rows\n"
        "grid i0.0 197 * 4 ^, 1, 1\nblock 128, 1, 1\nshared 0\narg in 0\narg in 1\narg out 0\narg int i0.0 197 *\n"
        "arg int 768\narg float 1e-05\nend\n"
    )
    launch = decode(golden)
    assert launch.kernel == "rows"
    assert evaluate(launch.grid[0], [(8, 197, 768)]) == 394
    assert launch.args[-1] == 1e-05
