// y = GELU((x - mean) / sqrt(var + epsilon) * scale + bias), mean and biased variance over C channels.
//
// layer_norm_gelu_rows:   x [rows, C], the channels of a row are adjacent.
// layer_norm_gelu_planes: x [N, C, S], the channels of a position lie S apart.
//
// Both read x once and keep a row's values in registers when the compiler knows C (-D CHANNELS), so that the variance
// is a second pass over registers: exact also where |mean| is far above the deviation. CHANNELS 0 means that C is only
// known at run time, or is too long for registers: then the passes read memory (cache) again.
//
// -D GROUP: threads that share a row. -D TANH: true for the tanh GELU.
#include "common.cuh"

constexpr int MAX_WARPS = 32;

// Sum over the GROUP neighbouring threads of a row, the same in all of them; every thread of the block takes part.
__device__ __forceinline__ float row_sum(float v) {
    v = warp_sum(v);
    if constexpr (GROUP > 32) {
        __shared__ float parts[MAX_WARPS];
        constexpr int warps = GROUP / 32;  // one row per block here
        __syncthreads();
        if ((threadIdx.x & 31) == 0) parts[threadIdx.x >> 5] = v;
        __syncthreads();
        v = (threadIdx.x & 31) < warps ? parts[threadIdx.x & 31] : 0.0f;
        v = warp_sum(v);
    }
    return v;
}

__device__ __forceinline__ IO finish(float x, float mean, float rstd, IO scale, IO bias) {
    return from_float<IO>(gelu<TANH>(fmaf((x - mean) * rstd, to_float(scale), to_float(bias))));
}

#if PLANES == 0

// grid: one block per (blockDim.x / GROUP) rows.
extern "C" __global__ void __launch_bounds__(GROUP > 128 ? GROUP : 128)
layer_norm_gelu_rows(const IO* __restrict__ x, const IO* __restrict__ scale, const IO* __restrict__ bias, IO* __restrict__ y,
                     int64 rows, int64 channels, float epsilon) {
    int lane = threadIdx.x % GROUP;
    int64 row = int64(blockIdx.x) * (blockDim.x / GROUP) + threadIdx.x / GROUP;
    bool inside = row < rows;  // threads past the end still take part in the sums
    const IO* from = x + row * channels;
    IO* to = y + row * channels;
    float n = float(channels);

#if CHANNELS > 0
    constexpr bool WIDE = CHANNELS % VECTOR == 0;
    constexpr int STEP = WIDE ? VECTOR : 1;  // elements a thread takes at once
    constexpr int ROUNDS = (CHANNELS + GROUP * STEP - 1) / (GROUP * STEP);
    const bool wide = WIDE && aligned16(x) && aligned16(y) && aligned16(scale) && aligned16(bias);
    float value[ROUNDS * STEP];
    float sum = 0.0f;
#pragma unroll
    for (int r = 0; r < ROUNDS; ++r) {
        int c = (r * GROUP + lane) * STEP;
        bool here = inside && c < CHANNELS;
        Vector v;
        if (WIDE && wide && here) v.raw = *reinterpret_cast<const uint4*>(from + c);
#pragma unroll
        for (int i = 0; i < STEP; ++i) {
            float f = 0.0f;
            if (here) f = to_float(WIDE && wide ? v.item[i] : from[c + i]);
            value[r * STEP + i] = f;
            sum += f;
        }
    }
    float mean = row_sum(sum) / n, squares = 0.0f;
#pragma unroll
    for (int r = 0; r < ROUNDS; ++r)
#pragma unroll
        for (int i = 0; i < STEP; ++i) {
            float d = value[r * STEP + i] - mean;
            if ((r * GROUP + lane) * STEP < CHANNELS) squares = fmaf(d, d, squares);
        }
    float rstd = rsqrtf(row_sum(squares) / n + epsilon);
    if (!inside) return;
#pragma unroll
    for (int r = 0; r < ROUNDS; ++r) {
        int c = (r * GROUP + lane) * STEP;
        if (c >= CHANNELS) break;
        if (WIDE && wide) {
            Vector g, b, out;
            g.raw = *reinterpret_cast<const uint4*>(scale + c);
            b.raw = *reinterpret_cast<const uint4*>(bias + c);
#pragma unroll
            for (int i = 0; i < STEP; ++i) out.item[i] = finish(value[r * STEP + i], mean, rstd, g.item[i], b.item[i]);
            *reinterpret_cast<uint4*>(to + c) = out.raw;
        } else {
#pragma unroll
            for (int i = 0; i < STEP; ++i) to[c + i] = finish(value[r * STEP + i], mean, rstd, scale[c + i], bias[c + i]);
        }
    }
#else
    float sum = 0.0f, squares = 0.0f;
    if (inside)
        for (int64 c = lane; c < channels; c += GROUP) sum += to_float(from[c]);
    float mean = row_sum(sum) / n;
    if (inside)
        for (int64 c = lane; c < channels; c += GROUP) {
            float d = to_float(from[c]) - mean;
            squares = fmaf(d, d, squares);
        }
    float rstd = rsqrtf(row_sum(squares) / n + epsilon);
    if (inside)
        for (int64 c = lane; c < channels; c += GROUP) to[c] = finish(to_float(from[c]), mean, rstd, scale[c], bias[c]);
#endif
}

#else  // PLANES

// block: 32 positions (x) by GROUP threads (y) that share the channels of a position. grid: position tiles of all N.
extern "C" __global__ void __launch_bounds__(32 * GROUP)
layer_norm_gelu_planes(const IO* __restrict__ x, const IO* __restrict__ scale, const IO* __restrict__ bias, IO* __restrict__ y,
                       int64 positions, int64 channels, float epsilon) {
    __shared__ float parts[GROUP][33];
    int64 tiles = (positions + 31) / 32;
    int64 n = blockIdx.x / tiles, s = (blockIdx.x % tiles) * 32 + threadIdx.x;
    bool inside = s < positions;
    int64 base = n * channels * positions + s;
    auto position_sum = [&](float v) {
        __syncthreads();
        parts[threadIdx.y][threadIdx.x] = v;
        __syncthreads();
        float total = 0.0f;
#pragma unroll
        for (int g = 0; g < GROUP; ++g) total += parts[g][threadIdx.x];
        return total;
    };
    float sum = 0.0f, squares = 0.0f;

#if CHANNELS > 0
    constexpr int ROUNDS = (CHANNELS + GROUP - 1) / GROUP;
    float value[ROUNDS];
#pragma unroll
    for (int r = 0; r < ROUNDS; ++r) {
        int c = r * GROUP + threadIdx.y;
        value[r] = inside && c < CHANNELS ? to_float(x[base + c * positions]) : 0.0f;
        sum += value[r];
    }
    float mean = position_sum(sum) / float(CHANNELS);
#pragma unroll
    for (int r = 0; r < ROUNDS; ++r) {
        float d = value[r] - mean;
        if (r * GROUP + threadIdx.y < CHANNELS) squares = fmaf(d, d, squares);
    }
    float rstd = rsqrtf(position_sum(squares) / float(CHANNELS) + epsilon);
    if (!inside) return;
#pragma unroll
    for (int r = 0; r < ROUNDS; ++r) {
        int c = r * GROUP + threadIdx.y;
        if (c < CHANNELS) y[base + c * positions] = finish(value[r], mean, rstd, scale[c], bias[c]);
    }
#else
    if (inside)
        for (int64 c = threadIdx.y; c < channels; c += GROUP) sum += to_float(x[base + c * positions]);
    float mean = position_sum(sum) / float(channels);
    if (inside)
        for (int64 c = threadIdx.y; c < channels; c += GROUP) {
            float d = to_float(x[base + c * positions]) - mean;
            squares = fmaf(d, d, squares);
        }
    float rstd = rsqrtf(position_sum(squares) / float(channels) + epsilon);
    if (inside)
        for (int64 c = threadIdx.y; c < channels; c += GROUP)
            y[base + c * positions] = finish(to_float(x[base + c * positions]), mean, rstd, scale[c], bias[c]);
#endif
}
#endif
