"""Kernels alone on a real GPU, against the float64 reference: every built-in op, case, dtype and variant.

check.run_kernel poisons outputs and lent memory before each launch, and guards every tensor's ends.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.bench.registers import built_in, compilers
from trtconvert import check, gpu, registry
from trtconvert.alone import GUARD, run_kernel
from trtconvert.compare import KERNEL_TOLERANCE
from trtconvert.compiled import compile_op, program_of
from trtconvert.kernel import compile_kernel
from trtconvert.launch import Launches, Tensor
from trtconvert.model import numpy_dtype
from trtconvert.op import Case, Op, case

Arrays = list[NDArray[Any]]
SMALL = 20_000  # elements of x: what tests of special values are run on
FEW = 0.01  # of the integers that a kernel rounds, so many may fall on the other side of a half


def uses(largest: int | None = None) -> Iterator[tuple[type[Op], Case, str]]:
    """Every built-in op with its cases and dtypes; those up to a number of elements."""
    for op in built_in():
        for tested in op.cases:
            if largest is None or 0 < math.prod(tested.shapes[0]) <= largest:
                yield from ((op, tested, dtype) for dtype in op.dtypes)


def params(chosen: Iterator[tuple[type[Op], Case, str]]) -> list[Any]:
    return [pytest.param(op, tested, dtype, id=f"{op.name} {tested} {dtype}") for op, tested, dtype in chosen]


def normalizing() -> list[Any]:
    """The uses whose op takes an epsilon, small ones."""
    return params(use for use in uses(SMALL) if "epsilon" in use[0].attributes())


def variants(op: Op, arrays: Arrays) -> list[Launches]:
    inputs = [Tensor(a.dtype.name, a.shape, f"in {i}") for i, a in enumerate(arrays)]
    return op.variants(*inputs, *op.outputs(*inputs))


@pytest.fixture(scope="session")
def compiled() -> None:
    """All kernels of test_kernel compiled beforehand by many processes: NVRTC takes one at a time in a process."""
    arch = gpu.require().arch
    programs = {
        program_of(op, inputs, way)
        for made in built_in()
        for op, inputs in check.uses(made)
        for way in op.variants(*inputs, *op.outputs(*inputs))
    }
    with compilers() as run:
        list(run(compile_kernel, programs, [arch] * len(programs)))


# --- comparing -----------------------------------------------------------------------------------------------------


def assert_close(got: NDArray[Any], want: NDArray[np.float64], tolerance: float, where: str) -> None:
    """NaN and Inf where the reference has them, and relative L2 elsewhere; what a kernel rounds to an integer at most one
    step off, and seldom."""
    assert got.shape == want.shape, where
    if got.size == 0:
        return
    a, b = got.astype(np.float64), np.asarray(want, np.float64)
    finite = np.isfinite(b)
    if got.dtype.kind in "iu":
        steps = np.abs(a - b)[finite]  # NaN has no integer
        assert steps.max(initial=0) <= (got.dtype == np.int8), where
        assert (steps > 0).sum() <= max(1, FEW * steps.size), where
        return
    with np.errstate(over="ignore", invalid="ignore"):
        b = np.where(np.isfinite(b.astype(got.dtype).astype(np.float64)), b, b.astype(got.dtype).astype(np.float64))
    finite = np.isfinite(b)
    assert np.array_equal(a[~finite], b[~finite], equal_nan=True), f"{where}: NaN or Inf differ"
    off = float(np.linalg.norm(a[finite] - b[finite]) / (np.linalg.norm(b[finite]) or 1.0))
    assert off <= tolerance, f"{where}: relative L2 {off:.2g}, allowed {tolerance:g}"


def assert_right(
    op: Op, arrays: Arrays, tolerance: float | None = None, shifted: int | None = None, guard: int = GUARD
) -> Arrays:
    """Run all variants against the reference; returns the first one's outputs."""
    wanted = check.expected(op, arrays)
    limit = KERNEL_TOLERANCE.get(arrays[0].dtype.name, 0.0) if tolerance is None else tolerance
    results = []
    for number, launches in enumerate(variants(op, arrays)):
        where = f"variant {number} ({launches[-1].kernel})" + ("" if shifted is None else f", tensor {shifted} shifted")
        results.append(run_kernel(op, arrays, number, shifted, guard))
        for got, want in zip(results[-1], wanted, strict=True):
            assert_close(got, want, limit, where)
    return results[0]


# --- every op ------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize(("op", "tested", "dtype"), params(uses()))
def test_kernel(op: type[Op], tested: Case, dtype: str) -> None:
    """Fresh data twice; the same data give the same bits."""
    made = check.instance(op, tested)
    for seed in range(2):
        arrays = check.random_inputs(tested, dtype, seed)
        first = assert_right(made, arrays)
    for got, again in zip(first, run_kernel(made, arrays), strict=True):
        assert got.tobytes() == again.tobytes()


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize(("op", "tested", "dtype"), params(uses()))
def test_unaligned_pointers(op: type[Op], tested: Case, dtype: str) -> None:
    """Each tensor in turn lies one element off: 16-byte accesses are only for those that are aligned."""
    made, arrays = check.instance(op, tested), check.random_inputs(tested, dtype, seed=2)
    inputs = [Tensor(a.dtype.name, a.shape, f"in {i}") for i, a in enumerate(arrays)]
    for index in range(len(arrays) + len(made.outputs(*inputs))):
        assert_right(made, arrays, shifted=index)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("shape", [(2, 512, 16904), (17, 600, 2016), (5, 1024, 6800)])
def test_large_planes(shape: tuple[int, ...], dtype: str) -> None:
    """Sizes for which the first variant has 16 channels a thread: positions and channels left over, a pointer unaligned."""
    op = registry.find("LayerNormGelu")
    assert op is not None
    tested = case(shape, shape[1:2], shape[1:2], axis=1)
    made, arrays = check.instance(op, tested), check.random_inputs(tested, dtype)
    (first, *_) = variants(made, arrays)[0]
    assert dict(first.defines)["RESIDENT"] == "640"
    assert_right(made, arrays)
    assert_right(made, arrays, shifted=0)


def least() -> list[Any]:
    """The smallest case of each set of kernels, in the first and the last dtype: what a sanitizer has the time for."""
    chosen: dict[Any, tuple[type[Op], Case, str]] = {}
    for op, tested, dtype in sorted(uses(SMALL), key=lambda use: math.prod(use[1].shapes[0])):
        if dtype in (op.dtypes[0], op.dtypes[-1]) and max(tested.shapes[0], default=0) > 8:
            ways = variants(check.instance(op, tested), check.random_inputs(tested, dtype))
            chosen.setdefault((op, tuple(one.kernel for way in ways for one in way), dtype), (op, tested, dtype))
    return params(iter(chosen.values()))


@pytest.mark.parametrize(("op", "tested", "dtype"), least())
def test_under_a_sanitizer(op: type[Op], tested: Case, dtype: str) -> None:
    """What tests/gpu/sanitize.sh runs: aligned, and with the first tensor one element off."""
    made, arrays = check.instance(op, tested), check.random_inputs(tested, dtype)
    assert_right(made, arrays, guard=0)
    assert_right(made, arrays, shifted=0, guard=0)


# --- special values ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [1e-30, 10.0])
@pytest.mark.parametrize(("op", "tested", "dtype"), normalizing())
def test_tiny_and_huge_epsilon(op: type[Op], tested: Case, dtype: str, epsilon: float) -> None:
    made = op(**(dict(tested.attributes) | {"epsilon": epsilon}))
    assert_right(made, check.random_inputs(tested, dtype, seed=3))


@pytest.mark.parametrize(("op", "tested", "dtype"), normalizing())
def test_mean_far_above_the_deviation(op: type[Op], tested: Case, dtype: str) -> None:
    """|mean| 1000 times the deviation: E[x^2] - E[x]^2 would lose every digit. bfloat16 cannot hold that; there, 250."""
    shape = tested.shapes[0]
    if math.prod(shape[1:]) < 64:
        pytest.skip("too few elements for a mean and a deviation")
    arrays = check.random_inputs(tested, dtype, seed=4)
    deviation = 4 if dtype == "bfloat16" else 1
    noise = np.random.default_rng(4).standard_normal(shape)
    arrays[0] = (1000 + deviation * noise).astype(numpy_dtype(dtype))
    assert_right(check.instance(op, tested), arrays, {"float32": 3e-4, "float16": 1e-3, "bfloat16": 8e-3}[dtype])


@pytest.mark.parametrize(("op", "tested", "dtype"), params(use for use in uses(SMALL) if use[2] == "float16"))
def test_large_values_in_float16(op: type[Op], tested: Case, dtype: str) -> None:
    """The square of 300 is beyond float16: sums are taken in float32."""
    arrays = check.random_inputs(tested, dtype, seed=5)
    signs = np.random.default_rng(5).choice([-1.0, 1.0], tested.shapes[0])
    arrays[0] = (300 * signs + arrays[0]).astype(np.float16)
    assert_right(check.instance(op, tested), arrays)


@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(("op", "tested", "dtype"), params(use for use in uses(SMALL) if use[2] in KERNEL_TOLERANCE))
def test_nan_and_inf(op: type[Op], tested: Case, dtype: str, special: float) -> None:
    """They pass through as IEEE arithmetic has it, in one place, and leave all that does not depend on it alone."""
    arrays = check.random_inputs(tested, dtype, seed=6)
    arrays[0].reshape(-1)[arrays[0].size // 2] = special
    assert_right(check.instance(op, tested), arrays)


# --- NonZero -------------------------------------------------------------------------------------------------------


def nonzero(x: NDArray[Any]) -> None:
    op = registry.find("NonZero")
    assert op is not None
    (got,) = assert_right(op(), [x])
    assert got.dtype == np.int64


@pytest.mark.parametrize("size", [1, 31, 32, 33, 4095, 4096, 4097, 3 * 4096, 100_003])
def test_nonzero_of_none_all_and_one(size: int) -> None:
    """Ends of warps and blocks."""
    nonzero(np.zeros(size, np.bool_))
    nonzero(np.ones(size, np.bool_))
    for place in (0, size // 2, size - 1):
        x = np.zeros(size, np.float32)
        x[place] = -1.0
        nonzero(x)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_nonzero_of_unusual_numbers(dtype: str) -> None:
    """-0.0 is zero; NaN, Inf and the smallest numbers are not."""
    kind = numpy_dtype(dtype)
    bits = np.array([1, 0], np.uint32 if dtype == "float32" else np.uint16).view(kind)  # the smallest subnormal, and 0
    nonzero(np.concatenate([np.array([-0.0, 0.0, np.nan, np.inf, -np.inf, 1.0], kind), bits, -bits]))


def test_nonzero_of_more_blocks_than_one_scan_takes() -> None:
    x = np.random.default_rng(0).random((3, 3_000_001)) < 0.1
    x[1] = False
    nonzero(x)


def test_nonzero_of_integers_beyond_float() -> None:
    nonzero(np.array([[2**62, 0, -(2**63)], [0, 1, 256]]))
    nonzero(np.array([[-128, 0, 127], [0, 1, -1]], np.int8))


# --- large tensors -------------------------------------------------------------------------------------------------

LARGE = [((2**21 + 5, 1024), -1, "float16"), ((9, 64, 2**22), 1, "float32"), ((5, 512, 2**20 + 8), 1, "float16")]


@pytest.mark.parametrize(("shape", "axis", "dtype"), LARGE)
def test_more_elements_than_31_bits_count(shape: tuple[int, ...], axis: int, dtype: str) -> None:
    """Against PyTorch on the same GPU, sample by sample; the last ones lie beyond 2^31 elements."""
    torch = pytest.importorskip("torch")
    if torch.cuda.mem_get_info()[0] < 40e9:
        pytest.skip("less than 40 GB of free GPU memory")
    tested = case(shape, (shape[axis],), (shape[axis],), axis=axis)
    made = check.instance(registry.find("LayerNormGelu"), tested)
    inputs = [Tensor(dtype, of, f"in {i}") for i, of in enumerate(tested.shapes)]
    tolerance = 2e-3 if dtype == "float16" else 1e-5
    x, scale, bias = (torch.empty(of, dtype=getattr(torch, dtype), device="cuda").normal_() for of in tested.shapes)
    for number, _ in enumerate(made.variants(*inputs, *made.outputs(*inputs))):
        y = torch.full_like(x, torch.nan)
        compiled = compile_op(made, inputs, (gpu.require().arch,), number)
        run = gpu.prepare(compiled.launches, compiled.images, tested.shapes)
        assert run is not None
        run([x.data_ptr(), scale.data_ptr(), bias.data_ptr()], [y.data_ptr()], 0, 0)
        torch.cuda.synchronize()
        for got, given in zip(y.split(1 if axis == 1 else 2**18), x.split(1 if axis == 1 else 2**18), strict=True):
            last = given.float().movedim(axis, -1)
            norm = torch.nn.functional.layer_norm(last, scale.shape, scale.float(), bias.float(), 1e-5)
            want = torch.nn.functional.gelu(norm).movedim(-1, axis)
            assert torch.allclose(got.float(), want, rtol=tolerance, atol=tolerance)
