// What the kernels share. IO is the tensors' C++ type (float, __half or __nv_bfloat16), set by the compiler's -D.
// Arithmetic is in float throughout.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

typedef long long int64;

__device__ __forceinline__ float to_float(float v) { return v; }
__device__ __forceinline__ float to_float(__half v) { return __half2float(v); }
__device__ __forceinline__ float to_float(__nv_bfloat16 v) { return __bfloat162float(v); }

template <typename T> __device__ __forceinline__ T from_float(float v);
template <> __device__ __forceinline__ float from_float<float>(float v) { return v; }
template <> __device__ __forceinline__ __half from_float<__half>(float v) { return __float2half_rn(v); }
template <> __device__ __forceinline__ __nv_bfloat16 from_float<__nv_bfloat16>(float v) { return __float2bfloat16_rn(v); }

// 16 bytes of elements, moved by one instruction.
constexpr int VECTOR = 16 / sizeof(IO);
union Vector {
    uint4 raw;
    IO item[VECTOR];
    __device__ Vector() {}
};

__device__ __forceinline__ bool aligned16(const void* pointer) { return (reinterpret_cast<size_t>(pointer) & 15) == 0; }

__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
    for (int step = 16; step > 0; step >>= 1) v += __shfl_xor_sync(0xffffffffu, v, step);
    return v;
}

// Sum over the SIZE threads of a block, the same in all of them; every thread takes part.
template <int SIZE> __device__ __forceinline__ float block_sum(float v) {
    v = warp_sum(v);
    if constexpr (SIZE > 32) {
        __shared__ float parts[32];
        __syncthreads();  // parts may still be read for the sum before
        if ((threadIdx.x & 31) == 0) parts[threadIdx.x >> 5] = v;
        __syncthreads();
        v = warp_sum((threadIdx.x & 31) < SIZE / 32 ? parts[threadIdx.x & 31] : 0.0f);
    }
    return v;
}

// VECTOR neighbouring elements by one access (WIDE: they are all there, and aligned), or the first `number` of them one by one.
template <bool WIDE> __device__ __forceinline__ Vector read(const IO* from, int number) {
    Vector v;
    if constexpr (WIDE) {
        v.raw = *reinterpret_cast<const uint4*>(from);
    } else {
#pragma unroll
        for (int i = 0; i < VECTOR; ++i) v.item[i] = i < number ? from[i] : from_float<IO>(0.0f);
    }
    return v;
}

// The same for writing what is not read again soon: it leaves the cache first.
template <bool WIDE> __device__ __forceinline__ void write(IO* to, const Vector& v, int number) {
    if constexpr (WIDE) {
        __stcs(reinterpret_cast<uint4*>(to), v.raw);
    } else {
#pragma unroll
        for (int i = 0; i < VECTOR; ++i)
            if (i < number) to[i] = v.item[i];
    }
}

// erf(v). For 16-bit outputs Abramowitz-Stegun 7.1.26 (|error| <= 1.5e-7, far below their rounding) on the fast
// exponential and reciprocal; for float the library's erff.
__device__ __forceinline__ float erf_of(float v) {
    if constexpr (sizeof(IO) == 4) return erff(v);
    float a = fabsf(v);
    float t = __fdividef(1.0f, fmaf(0.3275911f, a, 1.0f));
    float poly = fmaf(fmaf(fmaf(fmaf(1.061405429f, t, -1.453152027f), t, 1.421413741f), t, -0.284496736f), t, 0.254829592f);
    return copysignf(fmaf(-poly * t, __expf(-a * a), 1.0f), v);
}

// tanh(v) = 1 - 2 / (1 + exp(2 v)) for 16-bit outputs; it saturates without overflow.
__device__ __forceinline__ float tanh_of(float v) {
    if constexpr (sizeof(IO) == 4) return tanhf(v);
    return 1.0f - __fdividef(2.0f, 1.0f + __expf(fminf(2.0f * v, 80.0f)));
}

// Gaussian error linear unit (ONNX Gelu, opset 20): x/2 (1 + erf(x / sqrt 2)), or its tanh approximation.
template <bool APPROXIMATE> __device__ __forceinline__ float gelu(float x) {
    if (APPROXIMATE) return 0.5f * x * (1.0f + tanh_of(0.7978845608f * fmaf(0.044715f * x * x, x, x)));
    return 0.5f * x * (1.0f + erf_of(0.7071067812f * x));
}
