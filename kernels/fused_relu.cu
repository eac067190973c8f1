// y = max(x, alpha), elementwise, NaN kept as in ONNX Max. One thread moves 16 bytes; the last block takes the tail.
#include "common.cuh"

__device__ __forceinline__ IO relu(IO value, float alpha) {
    float v = to_float(value);
    return v < alpha ? from_float<IO>(alpha) : value;
}

extern "C" __global__ void fused_relu(const IO* __restrict__ x, IO* __restrict__ y, int64 size, float alpha) {
    int64 start = (int64(blockIdx.x) * blockDim.x + threadIdx.x) * VECTOR;
    if (start + VECTOR <= size && aligned<16>(x) && aligned<16>(y)) {
        auto v = *reinterpret_cast<const Pack<IO, VECTOR>*>(x + start);
#pragma unroll
        for (int i = 0; i < VECTOR; ++i) v.item[i] = relu(v.item[i], alpha);
        *reinterpret_cast<Pack<IO, VECTOR>*>(y + start) = v;
    } else {
        for (int64 i = start; i < start + VECTOR && i < size; ++i) y[i] = relu(x[i], alpha);
    }
}
