// What the kernels share. IO and OUT are the C++ types of the first input and the first output (float, __half,
// __nv_bfloat16, signed char, ...), set by the compiler's -D. Arithmetic is in float throughout.
#pragma once
#ifndef COARSE  // 1 where the result is rounded to steps of 2^-7 and more
#define COARSE 0
#endif
#include <cuda_bf16.h>
#include <cuda_fp16.h>

typedef long long int64;
typedef signed char int8;

__device__ __forceinline__ float to_float(float v) { return v; }
__device__ __forceinline__ float to_float(__half v) { return __half2float(v); }
__device__ __forceinline__ float to_float(__nv_bfloat16 v) { return __bfloat162float(v); }
__device__ __forceinline__ float to_float(int8 v) { return float(v); }

// v * inverse as int8, to nearest even; saturates as ONNX QuantizeLinear does. That goes by adding 1.5 * 2^23, which leaves the whole
// number in the low bits: there are too few conversion units for one conversion an element. NaN becomes -128.
__device__ __forceinline__ int8 to_int8(float v, float inverse) {
    constexpr float ZERO = 12582912.0f;
    return int8(__float_as_int(fminf(fmaxf(fmaf(v, inverse, ZERO), ZERO - 128.0f), ZERO + 127.0f)));
}

// Rounds to nearest even.
template <typename T> __device__ __forceinline__ T from_float(float v);
template <> __device__ __forceinline__ float from_float<float>(float v) { return v; }
template <> __device__ __forceinline__ __half from_float<__half>(float v) { return __float2half_rn(v); }
template <> __device__ __forceinline__ __nv_bfloat16 from_float<__nv_bfloat16>(float v) { return __float2bfloat16_rn(v); }
template <> __device__ __forceinline__ int8 from_float<int8>(float v) { return to_int8(v, 1.0f); }

// N neighbouring elements, moved by one instruction of up to 16 bytes.
template <typename T, int N> struct alignas(sizeof(T) * N) Pack {
    T item[N];
};
constexpr int VECTOR = 16 / sizeof(IO);

// Makes the compiler keep the elements as they are here, instead of a copy of each in float: half the registers.
template <typename T, int N> __device__ __forceinline__ void keep_packed(Pack<T, N>& v) {
    constexpr int BYTES = sizeof(T) * N;
    if constexpr (BYTES % 4 == 0 && sizeof(T) < 4) {
        unsigned* words = reinterpret_cast<unsigned*>(&v);
#pragma unroll
        for (int i = 0; i < BYTES / 4; ++i) asm volatile("" : "+r"(words[i]));
    }
}

// Element i as float. Of bfloat16 straight from the word that holds it: one instruction, where a 16-bit extract needs a second.
template <typename T, int N> __device__ __forceinline__ float element(const Pack<T, N>& v, int i) { return to_float(v.item[i]); }
template <int N> __device__ __forceinline__ float element(const Pack<__nv_bfloat16, N>& v, int i) {
    if constexpr (N % 2 == 0) {
        unsigned word = reinterpret_cast<const unsigned*>(&v)[i / 2];
        return __uint_as_float(i % 2 ? word & 0xffff0000u : word << 16);
    }
    return to_float(v.item[i]);
}

// Of launches that follow each other: an `overlaps` one (launch.py) waits so for all that the one before it does, which may let it
// start early. Before compute capability 9.0 it starts when that one has ended. What it reads of that one is not `__restrict__`:
// of constant data the compiler may read before the wait.
__device__ __forceinline__ void wait_for_launch_before() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ void let_next_launch_start() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Writes the elements by one instruction. A plain assignment may be taken apart, int8 into bytes and wider types into words: that, and
// addresses of 64 bits, cost layer_norm_planes 1.4 instead of 1.2 times the floor on an H200 (float16, 16 x 512 x 8000).
template <typename T, int N> __device__ __forceinline__ void store(T* to, const Pack<T, N>& v) {
    constexpr int BYTES = sizeof(T) * N;
    const unsigned* word = reinterpret_cast<const unsigned*>(&v);
    if constexpr (BYTES == 16)
        asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(word[0]), "r"(word[1]), "r"(word[2]), "r"(word[3]));
    else if constexpr (BYTES == 8) asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(to), "r"(word[0]), "r"(word[1]));
    else if constexpr (BYTES == 4) asm volatile("st.global.b32 [%0], %1;" ::"l"(to), "r"(word[0]));
    else *reinterpret_cast<Pack<T, N>*>(to) = v;
}

// v * inverse as int8. Of 16-bit data in fewer instructions: between 1024 and 2048 the float16 lie 1 apart, so the conversion of
// 1536 + n rounds n to a whole number and has it in its low byte, two at a time; once in 16,000 times, where n lies within 2^-14 of
// the middle, to the other one. NaN becomes -128.
template <int N> __device__ __forceinline__ Pack<int8, N> quantized(const float (&v)[N], float inverse) {
    Pack<int8, N> out;
    if constexpr (sizeof(IO) == 2 && N % 4 == 0) {
        const __half2 least = __float2half2_rn(1536.0f - 128.0f), most = __float2half2_rn(1536.0f + 127.0f);
        auto pair = [&](int i) {
            __half2 n = __floats2half2_rn(fmaf(v[i], inverse, 1536.0f), fmaf(v[i + 1], inverse, 1536.0f));
            n = __hmin2(__hmax2(n, least), most);
            return *reinterpret_cast<unsigned*>(&n);
        };
#pragma unroll
        for (int i = 0; i < N; i += 4) *reinterpret_cast<unsigned*>(&out.item[i]) = __byte_perm(pair(i), pair(i + 2), 0x6420);
    } else {
#pragma unroll
        for (int i = 0; i < N; ++i) out.item[i] = to_int8(v[i], inverse);
    }
    return out;
}

template <int BYTES> __device__ __forceinline__ bool aligned(const void* pointer) {
    return (reinterpret_cast<size_t>(pointer) & (BYTES - 1)) == 0;
}

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

using Vector = Pack<IO, VECTOR>;  // what a thread reads or writes at once

// A block's number as quotient and rest by a count of blocks, in 32 bits: a division in 64 takes a hundred instructions, and nothing
// is read before it.
struct Split {
    unsigned quotient, rest;
    __device__ __forceinline__ Split(unsigned block, int64 count)
        : quotient(block / unsigned(count)), rest(block - quotient * unsigned(count)) {}
};

// A vector by one access (WIDE: all of it is there, and aligned), or the first `number` of its elements one by one. ONCE: it leaves
// the cache first.
template <bool WIDE, bool ONCE = false> __device__ __forceinline__ Vector read(const IO* from, int number) {
    if constexpr (WIDE && ONCE) {
        const uint4 bytes = __ldcs(reinterpret_cast<const uint4*>(from));
        return *reinterpret_cast<const Vector*>(&bytes);
    }
    if constexpr (WIDE) return *reinterpret_cast<const Vector*>(from);
    Vector v;
#pragma unroll
    for (int i = 0; i < VECTOR; ++i) v.item[i] = i < number ? from[i] : from_float<IO>(0.0f);
    return v;
}

// The same for writing what is not read again soon: it leaves the cache first.
template <bool WIDE> __device__ __forceinline__ void write(IO* to, const Vector& v, int number) {
    if constexpr (WIDE) {
        __stcs(reinterpret_cast<uint4*>(to), *reinterpret_cast<const uint4*>(&v));
    } else {
#pragma unroll
        for (int i = 0; i < VECTOR; ++i)
            if (i < number) to[i] = v.item[i];
    }
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

// of[0] x^(N-1) + ... + of[N-1].
template <int N> __device__ __forceinline__ float polynomial(const float (&of)[N], float x) {
    float sum = of[0];
#pragma unroll
    for (int i = 1; i < N; ++i) sum = fmaf(sum, x, of[i]);
    return sum;
}

// Gaussian error linear unit (ONNX Gelu, opset 20): x/2 (1 + erf(x / sqrt 2)) = x Phi(x), here as x/2 + |x| (1/2 - Phi(-|x|)). The
// logarithm of Phi(-a) is nearly a parabola: Phi(-a) = 2^P(a) with a short polynomial P, fitted up to a = 6, that goes on falling
// from there. NaN and infinities give what the formula gives.
//
// float: |error| <= 3.4e-7, as with the library's erff, in half the instructions. 16-bit: 1.4e-5, and 1.4e-4 |y| where |y| >= 1e-3:
// a third of what rounding to float16 adds. COARSE: 6e-5. tests/test_gelu.py computes these.
__device__ __forceinline__ float gelu_erf(float x) {
    constexpr float FULL[] = {-2.77204254e-6f, 3.86206815e-5f, -1.82547345e-4f, -1.45870625e-4f, 7.07547227e-3f,
                              -5.25050278e-2f, -4.59204912e-1f, -1.15110576f,   -1.0f};
    constexpr float HALF[] = {-3.16075369e-4f, 5.7833968e-3f, -4.80873622e-2f, -4.64326173e-1f, -1.1490798f, -1.00012767f};
    constexpr float STEPS[] = {-2.50503309e-2f, -4.98147905e-1f, -1.13004398f, -1.00326502f};
    const float a = fabsf(x);
    const float p = sizeof(IO) == 4 ? polynomial(FULL, a) : COARSE ? polynomial(STEPS, a) : polynomial(HALF, a);
    return fmaf(a, 0.5f - exp2_of(p), 0.5f * x);
}

// Its tanh approximation: x/2 (1 + tanh(u)) = x / (1 + exp(-2 u)), u = sqrt(2/pi) (x + 0.044715 x^3).
__device__ __forceinline__ float gelu_tanh(float x) {
    float u = x * fmaf(0.1029432397f, x * x, 2.302208198f);  // 2 u / ln 2
    return x * reciprocal(1.0f + exp2_of(-u));
}
