"""NonZero: the indices of the elements that are not zero, for TensorRT-RTX, which has no implementation of its own."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trtconvert import kernels
from trtconvert.launch import Counted, Launch, Launches, Tensor, Work, ceil_div
from trtconvert.op import Op, case

THREADS = 256
PER_BLOCK = THREADS * 16  # elements; the kernel has the same number
MAX_RANK = 8  # TensorRT's


class NonZero(Op):
    """y[:, i] = the index of the i-th element of x that is not zero, in row-major order.

    x [...] of rank r, bool, int8, int32, int64, float32, float16 or bfloat16; y int64 [r, n], n the number of such
    elements. NaN is not zero, -0.0 is. Of a scalar, y is [0, n], as ONNX has it (onnxruntime: [1, n]).
    Source: ONNX NonZero (opsets 9 and 13).
    """

    dtypes = ("bool", "int8", "int32", "int64", "float32", "float16", "bfloat16")
    source = kernels.read("nonzero.cu")
    cases = (
        case((3, 4)),
        case((1,)),
        case(()),
        case((0, 4)),
        case((5, 7, 11, 13)),
        case((2, 3, 1, 2, 3, 2, 1, 5)),
        case((3, PER_BLOCK)),
        case((1031, 1021)),
    )

    def accepts(self, x: Tensor) -> str | None:
        return f"x has {x.rank} dimensions; it takes up to {MAX_RANK}" if x.rank > MAX_RANK else None

    def output(self, x: Tensor) -> Tensor:
        return Tensor("int64", (x.rank, Counted(x.size)))

    def reference(self, x: NDArray[np.float64]) -> NDArray[np.int64]:
        return np.argwhere(x).T

    def launch(self, x: Tensor, y: Tensor, n: Tensor) -> Launches:
        blocks = ceil_div(x.size, PER_BLOCK)
        starts = Work(blocks * 8)  # of each block's elements in y; int64
        defines = (("RANK", str(x.rank)),)
        dims = (*(1 for _ in range(MAX_RANK - x.rank)), *x.shape)
        return (
            Launch("nonzero_count", (blocks, 1, 1), (THREADS, 1, 1), (x, starts, x.size), defines=defines),
            Launch("nonzero_scan", (1, 1, 1), (1024, 1, 1), (starts, n, blocks), defines=defines),
            Launch("nonzero_write", (blocks, 1, 1), (THREADS, 1, 1), (x, starts, n, y, x.size, *dims), defines=defines),
        )
