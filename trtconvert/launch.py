"""Kernel launches as data: symbolic dimensions, grid, block and arguments, with a text form that lives in the plan.

An op's `launch` sees tensors whose dimensions are ints where the network knows them and `Dim` expressions where it does
not. What it returns is written into the plan as a few lines of text, so that at run time neither the op's class nor a
compiler is needed: a reader evaluates the expressions for the actual shapes and calls cuLaunchKernel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from trtconvert.errors import ConvertError

MAGIC = "trtconvert-launch"
FORMAT = 2  # of the text form; raised when an older reader would misread it
V = TypeVar("V")


@dataclass(frozen=True)
class Dim:
    """A non-negative integer computed from input dimensions, kept as postfix tokens.

    Tokens: an integer, `i0.2` (dimension 2 of input 0), `+ - * /` (floor), `^` (ceiling division), `min`, `max`.
    """

    tokens: tuple[str, ...]

    @staticmethod
    def of_input(tensor: int, axis: int) -> Dim:
        """The dimension `axis` of input `tensor`."""
        return Dim((f"i{tensor}.{axis}",))

    def __str__(self) -> str:
        return " ".join(self.tokens)

    def __add__(self, other: Size) -> Size:
        return _combine(self, other, "+")

    def __sub__(self, other: Size) -> Size:
        return _combine(self, other, "-")

    def __mul__(self, other: Size) -> Size:
        return _combine(self, other, "*")

    def __floordiv__(self, other: Size) -> Size:
        return _combine(self, other, "/")

    def __radd__(self, other: int) -> Size:
        return _combine(other, self, "+")

    def __rsub__(self, other: int) -> Size:
        return _combine(other, self, "-")

    def __rmul__(self, other: int) -> Size:
        return _combine(other, self, "*")

    def __rfloordiv__(self, other: int) -> Size:
        return _combine(other, self, "/")


Size: TypeAlias = "Dim | int"
Shapes: TypeAlias = "Sequence[Sequence[int]] | Mapping[int, Mapping[int, int]]"

_ARITHMETIC: dict[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a // b,
    "^": lambda a, b: -(-a // b),
    "min": min,
    "max": max,
}


def _combine(left: Size, right: Size, operator: str) -> Size:
    if isinstance(left, int) and isinstance(right, int):
        return _ARITHMETIC[operator](left, right)
    if operator == "*" and 1 in (left, right):
        return right if left == 1 else left
    return Dim((*_tokens(left), *_tokens(right), operator))


def _tokens(size: Size) -> tuple[str, ...]:
    return (str(size),) if isinstance(size, int) else size.tokens


class Counted(Dim):
    """An output dimension that depends on the data: the kernel writes it, and it is at most `upper`.

    The kernel gets a further output for each of them, an int64 scalar, behind the op's own. In arithmetic it counts as
    its upper bound, so that the size of a tensor is that of its memory.
    """

    def __init__(self, upper: Size) -> None:
        super().__init__(_tokens(upper))


def ceil_div(a: Size, b: Size) -> Size:
    """a / b, rounded up."""
    return _combine(a, b, "^")


def minimum(a: Size, b: Size) -> Size:
    """The smaller of two sizes."""
    return _combine(a, b, "min")


def maximum(a: Size, b: Size) -> Size:
    """The larger of two sizes."""
    return _combine(a, b, "max")


def product(sizes: Iterable[Size]) -> Size:
    """The number of elements of a shape; 1 for a scalar."""
    result: Size = 1
    for size in sizes:
        result = _combine(result, size, "*")
    return result


def fold(size: Size, constant: Callable[[int], V], dim: Callable[[int, int], V], apply: Callable[[str, V, V], V]) -> V:
    """Compute `size` in another algebra: integers at run time, TensorRT's dimension expressions at build time."""
    stack: list[V] = []
    for token in _tokens(size):
        if token in _ARITHMETIC:
            right, left = stack.pop(), stack.pop()
            stack.append(apply(token, left, right))
        elif token.startswith("i"):
            tensor, axis = token[1:].split(".")
            stack.append(dim(int(tensor), int(axis)))
        else:
            stack.append(constant(int(token)))
    (result,) = stack
    return result


def evaluate(size: Size, shapes: Shapes) -> int:
    """The value of `size`, where shapes[input][axis] are the dimensions it uses."""
    return fold(size, int, lambda tensor, axis: int(shapes[tensor][axis]), lambda op, a, b: _ARITHMETIC[op](a, b))


@dataclass(frozen=True)
class Tensor:
    """A plugin input or output as the op's author sees it: a dtype name as numpy has it, and sizes.

    shape: ints where known, Dims where only run time knows. slot: "in 0", "out 1", ...: which pointer it stands for.
    """

    dtype: str
    shape: tuple[Size, ...]
    slot: str = ""

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> Size:
        """Number of elements."""
        return product(self.shape)


@dataclass(frozen=True)
class Work:
    """Device memory that TensorRT lends for one execution, 256-byte aligned: `size` bytes, `offset` bytes into it."""

    size: Size
    offset: Size = 0


Argument: TypeAlias = "Tensor | Work | Dim | int | float"


@dataclass(frozen=True)
class Launch:
    """One kernel launch.

    kernel: name of the `extern "C" __global__` function in the op's source.
    grid, block: three sizes each. shared: dynamic shared memory in bytes; beyond 32 KB, as much of it as a block of the GPU
    can have, and the kernel reads how much that is from %dynamic_smem_size.
    args: in the kernel's order; a Tensor or Work passes its device pointer, an int or Dim a `long long`, a float a `float`.
    defines: macros for the compiler, how a kernel gets constants; not needed again once it is compiled. Launches that
    follow each other come from one image, so they have the same.
    overlaps: its blocks may start while the launch before it still runs, and wait for it by `wait_for_launch_before()` of
    common.cuh before they touch what that one reads or writes (CUDA's programmatic dependent launch). Before compute
    capability 9.0 it starts when that one has ended.
    """

    kernel: str
    grid: tuple[Size, Size, Size]
    block: tuple[Size, Size, Size]
    args: tuple[Argument, ...]
    shared: Size = 0
    defines: tuple[tuple[str, str], ...] = ()
    overlaps: bool = False


Launches: TypeAlias = "tuple[Launch, ...]"
"""One after the other, on one stream."""


def _sizes_of(launch: Launch) -> list[Size]:
    offsets = [a.offset for a in launch.args if isinstance(a, Work)]
    return [*launch.grid, *launch.block, launch.shared, *offsets, *(a for a in launch.args if isinstance(a, Dim))]


def dims_used(launches: Launches) -> tuple[tuple[int, int], ...]:
    """The (input, axis) pairs that the launches depend on; none when all sizes were known at build time."""
    sizes = [size for launch in launches for size in _sizes_of(launch)]
    tokens = {token for size in sizes if isinstance(size, Dim) for token in size.tokens if token.startswith("i")}
    pairs = (token[1:].split(".") for token in tokens)
    return tuple(sorted((int(tensor), int(axis)) for tensor, axis in pairs))


def work_size(launches: Launches) -> Size:
    """Bytes of device memory that the launches want lent."""
    ends = [a.offset + a.size for launch in launches for a in launch.args if isinstance(a, Work)]
    result: Size = 0
    for end in ends:
        result = maximum(result, end)
    return result


def encode(launches: Launches, op: str = "", attributes: Mapping[str, object] | None = None) -> str:
    """The launches as text, one line a part; `decode` reads it back.

    op ("name version namespace") and attributes are for people and for `inspect`, which finds the text in a plan.
    """
    lines = [f"{MAGIC} {FORMAT}", f"op {op}"]
    shown = {n: f"{v:.7g}" if isinstance(v, float) else v for n, v in (attributes or {}).items()}
    lines += [f"attribute {name} {value}" for name, value in shown.items()]
    for launch in launches:
        lines.append(f"kernel {launch.kernel}")
        lines += [f"{part} " + ", ".join(map(str, getattr(launch, part))) for part in ("grid", "block")]
        lines.append(f"shared {launch.shared}")
        lines += ["overlaps 1"] * launch.overlaps  # a reader that does not know it launches one after the other
        lines += [f"arg {_encode_argument(launch.kernel, arg)}" for arg in launch.args]
    return "\n".join([*lines, "end", ""])


def _encode_argument(kernel: str, arg: Argument) -> str:
    if isinstance(arg, Tensor):
        return arg.slot
    if isinstance(arg, Work):
        return f"work {arg.offset}"
    if not isinstance(arg, float):
        return f"int {arg}"
    if not math.isfinite(arg):
        raise ConvertError(f"kernel {kernel}: argument {arg} is not a finite number")
    return f"float {float(arg)!r}"


def too_new(number: int, where: str | None = None) -> ConvertError:
    """What to say of a format that only a newer trtconvert reads."""
    return ConvertError(
        f"the plan's plugins use launch format {number}, this trtconvert reads up to {FORMAT}",
        where=where,
        fix="upgrade trtconvert on this machine, or build the plan again with this version",
    )


def decode(text: str) -> Launches:
    """Read the text form; ConvertError when it is damaged, or a newer trtconvert wrote it."""
    header, *lines = text.strip().splitlines() or [""]
    word, _, number = header.partition(" ")
    if word != MAGIC or not number.isdigit():
        raise ConvertError("the plugin's launch description is not one of trtconvert's", where=header[:60])
    if int(number) > FORMAT:
        raise too_new(int(number))
    starts = [i for i, line in enumerate(lines) if line.startswith("kernel ")]
    try:
        if not starts:
            raise ValueError("no kernel")
        if lines[-1] != "end":
            raise ValueError("it has no end")
        return tuple(_decode_lines(lines[i:j]) for i, j in zip(starts, [*starts[1:], len(lines)], strict=True))
    except (KeyError, ValueError, IndexError) as error:
        raise ConvertError(
            f"the plugin's launch description is damaged: {error}", fix="copy the plan again, or build it again"
        ) from error


def _decode_lines(lines: list[str]) -> Launch:
    parts: dict[str, str] = {}
    args: list[Argument] = []
    for line in lines:
        key, _, value = line.partition(" ")
        if key == "arg":
            args.append(_decode_argument(value))
        else:
            parts[key] = value
    return Launch(
        parts["kernel"],
        _sizes(parts["grid"]),
        _sizes(parts["block"]),
        tuple(args),
        _decode_size(parts["shared"]),
        overlaps=parts.get("overlaps") == "1",
    )


def _decode_size(text: str) -> Size:
    tokens = tuple(text.split())
    return int(tokens[0]) if len(tokens) == 1 and not tokens[0].startswith("i") else Dim(tokens)


def _sizes(text: str) -> tuple[Size, Size, Size]:
    x, y, z = (_decode_size(part) for part in text.split(","))
    return x, y, z


def _decode_argument(text: str) -> Argument:
    kind, _, value = text.partition(" ")
    if kind in ("in", "out"):
        return Tensor("", (), text)
    if kind == "work":
        return Work(0, _decode_size(value))
    return float(value) if kind == "float" else _decode_size(value)
