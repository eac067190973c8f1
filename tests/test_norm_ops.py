"""GroupNormSilu and GlobalResponseNorm: which kernels for which sizes, and that the memory lent to them suffices."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from trtconvert import gpu, registry
from trtconvert.launch import Dim, Launches, Size, Tensor, Work, evaluate, work_size
from trtconvert.op import Op


def op(name: str, **attributes: Any) -> Op:
    """An instance of a registered op."""
    found = registry.find(name)
    assert found is not None
    return found(**attributes)


def ways(made: Op, shape: tuple[Size, ...], channels: int, dtype: str = "float16") -> list[Launches]:
    """The op's variants for x of that shape."""
    tensors = [Tensor(dtype, s, f"in {i}") for i, s in enumerate((shape, (channels,), (channels,)))]
    return made.variants(*tensors, *made.outputs(*tensors))


def dynamic(rank: int, **known: int) -> tuple[Size, ...]:
    """A shape of Dims, but for the axes that are given as axis_1=64."""
    return tuple(known.get(f"axis_{axis}", Dim.of_input(0, axis)) for axis in range(rank))


@pytest.mark.parametrize(
    ("shape", "kernels"),
    [
        ((1, 1280, 8, 8), [1, 2]),
        ((1, 320, 64, 64), [1, 2, 1, 1, 1]),  # the group in one block, in slices, in a cluster twice, in shared memory
        ((16, 320, 128, 128), [2, 1, 1, 1, 1]),
        ((1, 128, 1024, 1024), [2, 1, 1]),  # too large for a cluster
        ((2, 32, 0, 4), [2]),
        (dynamic(4, axis_1=320), [2]),
        ((Dim.of_input(0, 0), 320, 64, 64), [1, 2, 1, 1, 1]),
    ],
)
def test_group_norm_variants(shape: tuple[Size, ...], kernels: list[int]) -> None:
    """The first is what an ahead-of-time build takes."""
    made = op("GroupNormSilu")
    assert [len(way) for way in ways(made, shape, int(str(shape[1])))] == kernels


def test_group_norm_work_is_enough_for_all_smaller_shapes() -> None:
    """Two floats a slice; the lent memory is sized once, for the largest shapes."""
    made = op("GroupNormSilu", num_groups=4)
    ((statistics, apply),) = ways(made, dynamic(4, axis_1=64), 64)
    lent = evaluate(work_size((statistics, apply)), [(8, 64, 512, 512)])
    needs = []
    for n, height, width in itertools.product((1, 3, 8), (1, 7, 64, 129, 500, 512), (1, 33, 511, 512)):
        shapes = [(n, 64, height, width)]
        needs.append(evaluate(statistics.grid[0], shapes) * 8)
        assert evaluate(apply.grid[0], shapes) * 8 == needs[-1]
        length, slices, tiles = (evaluate(a, shapes) for a in statistics.args[2:] if isinstance(a, Dim | int))
        assert (slices - 1) * tiles * 8192 < length <= slices * tiles * 8192
    assert max(needs) <= lent


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("channels", [13, 384, 3072])
def test_response_norm_work_is_enough_for_all_smaller_shapes(channels: int, dtype: str) -> None:
    """A float for each channel of each slice, behind one for each channel of each sample; every position has its slice."""
    made = op("GlobalResponseNorm")
    ((squares, factors, apply),) = ways(made, dynamic(4, axis_3=channels), channels, dtype)
    lent = evaluate(work_size((squares, factors, apply)), [(64, 56, 56, channels)])
    for n, height, width in itertools.product((1, 2, 3, 7, 31, 64), (1, 7, 14, 55, 56), (1, 7, 56)):
        shapes = [(n, height, width, channels)]
        work = next(a for a in squares.args if isinstance(a, Work))
        for launch in (apply, squares):
            numbers = [evaluate(a, shapes) for a in launch.args if isinstance(a, Dim | int)]
            positions, _, chunks, slices, per_slice = numbers[:5]
            assert (slices - 1) * per_slice < positions <= slices * per_slice
            assert evaluate(launch.grid[0], shapes) == n * slices * chunks
        assert evaluate(work.offset, shapes) + n * slices * channels * 4 <= lent


@pytest.mark.parametrize("shape", [(0, 5, 5, 40), (2, 0, 5, 40)])
@pytest.mark.parametrize("name", ["GroupNormSilu", "GlobalResponseNorm"])
def test_nothing_to_compute_launches_nothing(name: str, shape: tuple[int, ...]) -> None:
    """As constants and as dimensions that only run time knows."""
    shape = shape if name == "GlobalResponseNorm" else (shape[0], 40, *shape[1:3])
    axis = shape.index(40)
    made = op(name, num_groups=4) if name == "GroupNormSilu" else op(name)
    for known in (shape, dynamic(4, **{f"axis_{axis}": 40})):
        for way in ways(made, known, 40):
            writers = [
                launch for launch in way if any(isinstance(a, Tensor) and a.slot == "out 0" for a in launch.args)
            ]
            assert all(0 in [evaluate(size, [shape]) for size in launch.grid] for launch in writers)


@pytest.mark.parametrize(
    ("name", "attributes", "shapes", "reason"),
    [
        ("GroupNormSilu", {"num_groups": 5}, ((2, 12, 4), (12,), (12,)), "12 channels do not divide into 5 groups"),
        ("GroupNormSilu", {"num_groups": 0}, ((2, 12, 4), (12,), (12,)), "into 0 groups"),
        ("GroupNormSilu", {"num_groups": 4}, ((2, 12, 4), (4,), (12,)), "scale has 4 values, x has 12 channels"),
        ("GroupNormSilu", {"num_groups": 4}, ((12,), (12,), (12,)), "1 dimensions"),
        ("GroupNormSilu", {"epsilon": -1.0}, ((2, 64, 4), (64,), (64,)), "epsilon is -1.0"),
        ("GlobalResponseNorm", {"axis": 2}, ((2, 4, 4, 8), (8,), (8,)), "axis 2"),
        ("GlobalResponseNorm", {}, ((2, 8), (8,), (8,)), "rank 2"),
        ("GlobalResponseNorm", {}, ((2, 4, 8), (8,), (4,)), "bias has 4 values"),
        ("GlobalResponseNorm", {}, ((2, 4, 8), (1, 8), (8,)), "scale has shape ['1', '8']"),
    ],
)
def test_refused(name: str, attributes: dict[str, Any], shapes: tuple[tuple[int, ...], ...], reason: str) -> None:
    made = op(name, **attributes)
    assert reason in str(made.accepts(*(Tensor("float32", s, f"in {i}") for i, s in enumerate(shapes))))


@pytest.mark.parametrize("name", ["GroupNormSilu", "GlobalResponseNorm"])
def test_one_dtype_for_all(name: str) -> None:
    shapes, dtypes = ((2, 64, 64), (64,), (64,)), ("float32", "float16", "float32")
    tensors = [Tensor(d, s, f"in {i}") for i, (d, s) in enumerate(zip(dtypes, shapes, strict=True))]
    assert op(name).accepts(*tensors) == "scale is float16, x is float32; it takes one dtype for both"


def test_references_by_hand() -> None:
    """Numbers worked out on paper."""
    x = np.array([[[1.0, 3.0], [0.0, 4.0]]])  # deviations 1 and 2, means 2: -1 and 1 in either group
    got = op("GroupNormSilu", num_groups=2, epsilon=0.0).reference(x, np.ones(2), np.zeros(2))
    assert np.allclose(got, [[[-0.2689414213699951, 0.7310585786300049]] * 2], rtol=0, atol=1e-15)
    x = np.array([[[3.0, 0.0], [4.0, 5.0]]])  # norms 5 and 5, their mean 5: y = 2 x + 1
    assert op("GlobalResponseNorm", epsilon=0.0).reference(x, np.ones(2), np.ones(2)).tolist() == [
        [[7.0, 1.0], [9.0, 11.0]]
    ]


def test_shared_memory_is_what_the_gpu_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """Little needs no asking; more is asked for, and cut to what a block can have less what the kernel declares; what was given
    stays, since another launch of the kernel needs it."""
    asked: list[tuple[Any, ...]] = []
    values = {"static": 128, "dynamic": 49152}

    def give(attribute: str, value: int, *of: int) -> tuple[int]:
        asked.append((attribute, value, *of))
        values[attribute] = value
        return (0,)

    driver = SimpleNamespace(
        CUkernel=int,
        CUfunction_attribute=SimpleNamespace(
            CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES="static", CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES="dynamic"
        ),
        CUdevice_attribute=SimpleNamespace(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN="most"),
        cuCtxGetDevice=lambda: (0, 0),
        cuDeviceGetAttribute=lambda attribute, device: (0, 101376),
        cuKernelGetAttribute=lambda attribute, kernel, device: (0, values[attribute]),
        cuKernelSetAttribute=give,
    )
    monkeypatch.setattr(gpu, "_driver", lambda: driver)
    assert gpu.allow_shared(7, 16384) == 16384
    assert asked == []
    assert gpu.allow_shared(7, 65536) == 65536
    assert gpu.allow_shared(7, 229376) == 101376 - 128
    assert gpu.allow_shared(7, 65536) == 65536
    assert asked == [("dynamic", 65536, 7, 0), ("dynamic", 101248, 7, 0)]
