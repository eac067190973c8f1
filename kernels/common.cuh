// What the kernels share. IO and OUT are the C++ types of the first input and the first output (float, __half,
// __nv_bfloat16, signed char, ...), set by the compiler's -D. Arithmetic is in float throughout.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

typedef long long int64;
typedef signed char int8;

__device__ __forceinline__ float to_float(float v) { return v; }
__device__ __forceinline__ float to_float(__half v) { return __half2float(v); }
__device__ __forceinline__ float to_float(__nv_bfloat16 v) { return __bfloat162float(v); }
__device__ __forceinline__ float to_float(int8 v) { return float(v); }

// Rounds to nearest even; int8 saturates as ONNX QuantizeLinear does, and makes 0 of NaN.
template <typename T> __device__ __forceinline__ T from_float(float v);
template <> __device__ __forceinline__ float from_float<float>(float v) { return v; }
template <> __device__ __forceinline__ __half from_float<__half>(float v) { return __float2half_rn(v); }
template <> __device__ __forceinline__ __nv_bfloat16 from_float<__nv_bfloat16>(float v) { return __float2bfloat16_rn(v); }
template <> __device__ __forceinline__ int8 from_float<int8>(float v) {
    int rounded;
    asm("cvt.rni.sat.s8.f32 %0, %1;" : "=r"(rounded) : "f"(v));
    return int8(rounded);
}

// N neighbouring elements, moved by one instruction of up to 16 bytes.
template <typename T, int N> struct alignas(sizeof(T) * N) Pack {
    T item[N];
};
constexpr int VECTOR = 16 / sizeof(IO);

template <int BYTES> __device__ __forceinline__ bool aligned(const void* pointer) {
    return (reinterpret_cast<size_t>(pointer) & (BYTES - 1)) == 0;
}

__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
    for (int step = 16; step > 0; step >>= 1) v += __shfl_xor_sync(0xffffffffu, v, step);
    return v;
}

__device__ __forceinline__ float exp2_of(float v) {
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(v));
    return result;
}

__device__ __forceinline__ float reciprocal(float v) {
    float result;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(v));
    return result;
}

// x / (1 + exp(-x)): SiLU. Exact limits: infinity at infinity, NaN at NaN; -infinity gives NaN, as the formula does.
__device__ __forceinline__ float silu(float x) { return x * reciprocal(1.0f + exp2_of(-1.442695041f * x)); }

// Gaussian error linear unit (ONNX Gelu, opset 20): x/2 (1 + erf(x / sqrt 2)).
//
// float: the library's erff. 16-bit and int8: max(x, 0) - |x| q(|x|) exp(-x^2 / 2), where q(a) = erfcx(a / sqrt 2) / 2 is a
// polynomial in 1 / (1 + 0.28 a) (the form of Abramowitz and Stegun 7.1.26, fitted for relative error: 5.7e-5 for a <= 4.5,
// far below the rounding of 16 bits). max(x, 0) is written so that NaN stays NaN.
__device__ __forceinline__ float gelu_erf(float x) {
    if constexpr (sizeof(IO) == 4) return 0.5f * x * (1.0f + erff(0.7071067812f * x));
    float a = fminf(fabsf(x), 40.0f);
    float t = reciprocal(fmaf(0.28f, a, 1.0f));
    float q = fmaf(fmaf(fmaf(0.325070947f, t, -0.126962051f), t, 0.203619808f), t, 0.0982436389f) * t;
    float e = exp2_of(a * (a * -0.7213475204f));
    return fmaf(0.5f, x + fabsf(x), -a * (q * e));
}

// Its tanh approximation: x/2 (1 + tanh(u)) = x / (1 + exp(-2 u)), u = sqrt(2/pi) (x + 0.044715 x^3).
__device__ __forceinline__ float gelu_tanh(float x) {
    float u = x * fmaf(0.1029432397f, x * x, 2.302208198f);  // 2 u / ln 2
    return x * reciprocal(1.0f + exp2_of(-u));
}
