"""Symbolic sizes and the text form of a launch."""

from __future__ import annotations

import dataclasses
import random

import numpy as np
import pytest

from trtconvert import ConvertError
from trtconvert.launch import (
    Dim,
    Launch,
    Tensor,
    Work,
    ceil_div,
    decode,
    dims_used,
    encode,
    evaluate,
    fold,
    maximum,
    minimum,
    product,
    work_size,
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
    assert evaluate(decode(encode((launch,)))[0].grid[0], SHAPES) == value


def test_known_sizes_are_plain_numbers() -> None:
    assert product((2, 3, 4)) == 24
    assert ceil_div(7, 2) == 4
    assert Tensor("float32", (2, 3)).size == 6
    assert str(product((1, Dim.of_input(0, 1), 4))) == "i0.1 4 *"


def test_dims_used() -> None:
    size = Dim.of_input(1, 0) * Dim.of_input(0, 2) + 3
    launch = Launch("k", (size, 1, 1), (32, 1, 1), (Dim.of_input(0, 2),))
    assert dims_used((launch,)) == ((0, 2), (1, 0))
    assert evaluate(size, {0: {2: 7}, 1: {0: 11}}) == 80
    assert dims_used((Launch("k", (4, 1, 1), (32, 1, 1), (5,)),)) == ()


def test_round_trip() -> None:
    x, y = Tensor("float16", (Dim.of_input(0, 0), 8), "in 0"), Tensor("float16", (Dim.of_input(0, 0), 8), "out 0")
    launch = Launch("k", (ceil_div(x.size, 256), 1, 1), (256, 1, 1), (x, y, x.size, 3, 1e-12, -0.0), shared=64)
    assert not decode(encode((launch,)))[0].overlaps
    launch = dataclasses.replace(launch, overlaps=True)
    text = encode((launch,), "Name 1", {"epsilon": 1e-12})
    (again,) = decode(text)
    assert (again.kernel, again.grid, again.block, again.shared) == ("k", launch.grid, launch.block, 64)
    assert again.overlaps
    assert [a.slot if isinstance(a, Tensor) else a for a in again.args] == ["in 0", "out 0", x.size, 3, 1e-12, -0.0]
    assert text.splitlines()[:3] == ["trtconvert-launch 2", "op Name 1", "attribute epsilon 1e-12"]


def test_newer_format_is_refused() -> None:
    text = encode((Launch("k", (1, 1, 1), (1, 1, 1), ()),)).replace("trtconvert-launch 2", "trtconvert-launch 3")
    with pytest.raises(ConvertError, match="format 3, this trtconvert reads up to 2"):
        decode(text)
    with pytest.raises(ConvertError, match="not one of trtconvert's"):
        decode("something else")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_argument_that_is_no_number(value: float) -> None:
    with pytest.raises(ConvertError, match="not a finite number"):
        encode((Launch("k", (1, 1, 1), (1, 1, 1), (value,)),))


def test_format_1_is_read_forever() -> None:
    """Golden text: plans that hold it exist."""
    golden = (
        "trtconvert-launch 1\nop LayerNormGelu 1\nattribute epsilon 1e-05\nattribute axis -1\nkernel rows\n"
        "grid i0.0 197 * 4 ^, 1, 1\nblock 128, 1, 1\nshared 0\narg in 0\narg in 1\narg out 0\narg int i0.0 197 *\n"
        "arg int 768\narg float 1e-05\nend\n"
    )
    (launch,) = decode(golden)
    assert launch.kernel == "rows"
    assert evaluate(launch.grid[0], [(8, 197, 768)]) == 394
    assert launch.args[-1] == 1e-05


N = Dim.of_input(0, 0)


@pytest.mark.parametrize(
    ("size", "text", "value"),
    [
        (N + 2, "i0.0 2 +", 5),
        (N - 1, "i0.0 1 -", 2),
        (N * 4, "i0.0 4 *", 12),
        (N // 2, "i0.0 2 /", 1),
        (2 + N, "2 i0.0 +", 5),
        (10 - N, "10 i0.0 -", 7),
        (4 * N, "4 i0.0 *", 12),
        (10 // N, "10 i0.0 /", 3),
        (ceil_div(N, 2), "i0.0 2 ^", 2),
        (ceil_div(10, N), "10 i0.0 ^", 4),
        (minimum(N, 2), "i0.0 2 min", 2),
        (maximum(4, N), "4 i0.0 max", 4),
    ],
)
def test_operators(size: Dim, text: str, value: int) -> None:
    """Order of the operands counts: the text is what plans hold."""
    assert str(size) == text
    assert evaluate(size, SHAPES) == value


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (ceil_div(8, 4), 2),
        (ceil_div(9, 4), 3),
        (ceil_div(0, 4), 0),
        (minimum(3, 2), 2),
        (maximum(3, 2), 3),
        (product(()), 1),
        (product((5, 0)), 0),
        (Tensor("float32", ()).size, 1),
        (N * 1, N),
        (1 * N, N),
        (product((1, N, 1)), N),
    ],
)
def test_constants_are_folded(size: Dim | int, expected: Dim | int) -> None:
    assert size == expected
    assert type(size) is type(expected)


def test_fold_in_another_algebra() -> None:
    """What the build does with TensorRT's expressions: constants, dimensions and operators, left before right."""
    size = ceil_div(N * 4 - Dim.of_input(1, 1), 8)
    assert fold(size, str, lambda t, a: f"d{t}{a}", lambda op, a, b: f"({a}{op}{b})") == "(((d00*4)-d11)^8)"
    assert fold(7, str, lambda t, a: "", lambda op, a, b: "") == "7"


@pytest.mark.parametrize("argument", [0, -1, 2**40, 0.1, -1e-38, 3.0, 1e300, np.float64(0.1), np.int64(3)])
def test_argument_round_trip(argument: int | float) -> None:
    """Numbers come back exactly, and as an int or a float: numpy's, which arithmetic on constants yields, as well."""
    (again,) = decode(encode((Launch("k", (1, 1, 1), (1, 1, 1), (argument,)),)))[0].args
    assert again == argument
    assert type(again) is (float if isinstance(argument, float) else int)


def test_expressions_round_trip_everywhere() -> None:
    launch = Launch("k", (N, N * 2, 1), (N + 1, 1, N), (N - 1, Tensor("", (), "out 1")), shared=N * 16)
    assert decode(encode((launch,))) == (launch,)
    assert dims_used((launch,)) == ((0, 0),)


@pytest.mark.parametrize("value", [float("-inf"), np.float64("nan")])
def test_no_number_among_arguments(value: float) -> None:
    with pytest.raises(ConvertError, match="kernel k: argument"):
        encode((Launch("k", (1, 1, 1), (1, 1, 1), (3, value)),))


def test_far_newer_format_says_what_to_do() -> None:
    with pytest.raises(ConvertError, match="format 117") as caught:
        decode("trtconvert-launch 117\nsomething this version cannot know\n")
    assert "upgrade trtconvert" in str(caught.value)


@pytest.mark.parametrize("text", ["", "trtconvert-launch", "trtconvert-launch x", "trtconvert-launch 1\nkernel k\n"])
def test_damaged_text(text: str) -> None:
    with pytest.raises(ConvertError):
        decode(text)


def test_a_text_that_is_cut_off() -> None:
    """Wherever it is: a launch of fewer arguments would read what lies behind them."""
    text = encode((Launch("k", (1, 1, 1), (1, 1, 1), (Tensor("", (), "in 0"), 7, 3.0)),))
    for length in range(len(text) - 1):
        with pytest.raises(ConvertError):
            decode(text[:length])


def test_launches_in_a_row_share_lent_memory() -> None:
    """Two kernels, the second reading what the first left in the memory that TensorRT lends."""
    sums, counts = Work(N * 8), Work(64, offset=N * 8)
    first = Launch("sums", (N, 1, 1), (32, 1, 1), (Tensor("", (), "in 0"), sums, counts))
    second = Launch("apply", (N * 2, 1, 1), (64, 1, 1), (sums, Tensor("", (), "out 0")))
    again = decode(encode((first, second)))
    assert [one.kernel for one in again] == ["sums", "apply"]
    assert [evaluate(a.offset, SHAPES) for one in again for a in one.args if isinstance(a, Work)] == [0, 24, 0]
    assert evaluate(work_size((first, second)), SHAPES) == 88
    assert work_size((Launch("k", (1, 1, 1), (1, 1, 1), ()),)) == 0


def test_format_2_is_read_forever() -> None:
    """Golden text: plans that hold it exist."""
    golden = (
        "trtconvert-launch 2\nop GroupNormSilu 1\nattribute num_groups 32\nkernel sums\ngrid i0.0 32 *, 4, 1\nblock 512, 1, 1\n"
        "shared 0\narg in 0\narg work 0\nkernel apply\ngrid 7, 1, 1\nblock 256, 1, 1\nshared i0.1 4 *\narg in 0\narg work 0\n"
        "arg work i0.0 8 *\narg out 0\narg float 1e-05\nend\n"
    )
    sums, apply = decode(golden)
    assert (sums.kernel, apply.kernel) == ("sums", "apply")
    assert evaluate(sums.grid[0], [(8, 3)]) == 256
    assert evaluate(apply.shared, [(8, 3)]) == 12
    work = apply.args[2]
    assert isinstance(work, Work)
    assert evaluate(work.offset, [(8, 3)]) == 64
