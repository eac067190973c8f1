// y = f((x - mean) / sqrt(var + epsilon) * scale + bias), mean and biased variance over C channels; f by -D ACTIVATION:
// 0 nothing, 1 GELU, 2 GELU by tanh. Where y is int8, f(...) * inverse is rounded to it (QuantizeLinear).
//
// layer_norm_rows:   x [rows, C], the channels of a row are adjacent. GROUP threads share a row.
// layer_norm_planes: x [N, C, S], the channels of a position lie S apart. A block takes LANES * WIDTH positions; GROUP threads
//                    share the channels of a position, and each thread has WIDTH positions.
//
// Both read x once and keep it in registers when the compiler knows C (-D CHANNELS), so that the variance is a second pass
// over registers: exact also where |mean| is far above the deviation. CHANNELS 0 means that C is known at run time only, or
// is too long for registers: then the passes read memory (cache) again.
#include "common.cuh"

__device__ __forceinline__ OUT finish(float z, float inverse) {
    if constexpr (ACTIVATION == 1) z = gelu_erf(z);
    if constexpr (ACTIVATION == 2) z = gelu_tanh(z);
    return from_float<OUT>(sizeof(OUT) == 1 ? z * inverse : z);
}

__device__ constexpr int power_of_two_in(int n) { return n & -n; }
__device__ constexpr int smaller(int a, int b) { return a < b ? a : b; }

#if PLANES == 0

// Sum over the GROUP neighbouring threads of a row, the same in all of them; every thread of the block takes part.
__device__ __forceinline__ float row_sum(float v) {
    v = warp_sum(v);
    if constexpr (GROUP > 32) {
        __shared__ float parts[32];
        constexpr int WARPS = GROUP / 32;  // one row per block here
        __syncthreads();
        if ((threadIdx.x & 31) == 0) parts[threadIdx.x >> 5] = v;
        __syncthreads();
        v = 0.0f;
#pragma unroll
        for (int w = 0; w < WARPS; ++w) v += parts[w];
    }
    return v;
}

#if CHANNELS > 0
constexpr int WIDTH = smaller(VECTOR, power_of_two_in(CHANNELS));  // elements a thread takes at once
constexpr int ROUNDS = (CHANNELS + GROUP * WIDTH - 1) / (GROUP * WIDTH);

// One row in registers. WIDE: all pointers allow accesses of WIDTH elements.
template <bool WIDE>
__device__ __forceinline__ void row_in_registers(const IO* from, const IO* scale, const IO* bias, OUT* to, bool inside,
                                                 float epsilon, float inverse) {
    int lane = threadIdx.x % GROUP;
    float value[ROUNDS][WIDTH];
    Pack<IO, WIDTH> raw[ROUNDS];
#pragma unroll
    for (int r = 0; r < ROUNDS; ++r) {
        int c = (r * GROUP + lane) * WIDTH;
        if (inside && c < CHANNELS) {
            if constexpr (WIDE) raw[r] = *reinterpret_cast<const Pack<IO, WIDTH>*>(from + c);
            else
#pragma unroll
                for (int i = 0; i < WIDTH; ++i) raw[r].item[i] = from[c + i];
        } else {
#pragma unroll
            for (int i = 0; i < WIDTH; ++i) raw[r].item[i] = from_float<IO>(0.0f);
        }
    }
    float sum = 0.0f, squares = 0.0f;
#pragma unroll
    for (int r = 0; r < ROUNDS; ++r)
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) sum += value[r][i] = to_float(raw[r].item[i]);
    float mean = row_sum(sum) * (1.0f / CHANNELS);
#pragma unroll
    for (int r = 0; r < ROUNDS; ++r)
        if ((r * GROUP + lane) * WIDTH < CHANNELS)
#pragma unroll
            for (int i = 0; i < WIDTH; ++i) {
                value[r][i] -= mean;
                squares = fmaf(value[r][i], value[r][i], squares);
            }
    float rstd = rsqrtf(row_sum(squares) * (1.0f / CHANNELS) + epsilon);
    if (!inside) return;
#pragma unroll
    for (int r = 0; r < ROUNDS; ++r) {
        int c = (r * GROUP + lane) * WIDTH;
        if (c >= CHANNELS) break;
        Pack<IO, WIDTH> g, b;
        Pack<OUT, WIDTH> out;
        if constexpr (WIDE) {
            g = *reinterpret_cast<const Pack<IO, WIDTH>*>(scale + c);
            b = *reinterpret_cast<const Pack<IO, WIDTH>*>(bias + c);
        }
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) {
            float s = to_float(WIDE ? g.item[i] : scale[c + i]), t = to_float(WIDE ? b.item[i] : bias[c + i]);
            out.item[i] = finish(fmaf(value[r][i] * rstd, s, t), inverse);
        }
        if constexpr (WIDE) *reinterpret_cast<Pack<OUT, WIDTH>*>(to + c) = out;
        else
#pragma unroll
            for (int i = 0; i < WIDTH; ++i) to[c + i] = out.item[i];
    }
}
#endif

// grid: one block per (blockDim.x / GROUP) rows.
extern "C" __global__ void __launch_bounds__(GROUP > 128 ? GROUP : 128)
layer_norm_rows(const IO* __restrict__ x, const IO* __restrict__ scale, const IO* __restrict__ bias, OUT* __restrict__ y,
                int64 rows, int64 channels, float epsilon, float inverse) {
    int64 row = int64(blockIdx.x) * (blockDim.x / GROUP) + threadIdx.x / GROUP;
    bool inside = row < rows;  // threads past the end still take part in the sums
    const IO* from = x + row * channels;
    OUT* to = y + row * channels;
#if CHANNELS > 0
    bool wide = aligned<WIDTH * sizeof(IO)>(x) && aligned<WIDTH * sizeof(IO)>(scale) && aligned<WIDTH * sizeof(IO)>(bias) &&
                aligned<WIDTH * sizeof(OUT)>(y);
    if (wide) row_in_registers<true>(from, scale, bias, to, inside, epsilon, inverse);
    else row_in_registers<false>(from, scale, bias, to, inside, epsilon, inverse);
#else
    int lane = threadIdx.x % GROUP;
    float sum = 0.0f, squares = 0.0f;
    if (inside)
        for (int64 c = lane; c < channels; c += GROUP) sum += to_float(from[c]);
    float mean = row_sum(sum) / float(channels);
    if (inside)
        for (int64 c = lane; c < channels; c += GROUP) {
            float d = to_float(from[c]) - mean;
            squares = fmaf(d, d, squares);
        }
    float rstd = rsqrtf(row_sum(squares) / float(channels) + epsilon);
    if (inside)
        for (int64 c = lane; c < channels; c += GROUP)
            to[c] = finish(fmaf((to_float(from[c]) - mean) * rstd, to_float(scale[c]), to_float(bias[c])), inverse);
#endif
}

#else  // PLANES

constexpr int TILE = LANES * WIDTH;            // positions of a block
constexpr int THREADS = LANES * GROUP;
constexpr int IN_WARP = LANES < 32 ? 32 / LANES : 1;  // threads of a warp that share a position

// Where a thread's i-th position lies in the tile: neighbours in one access if WIDE, else neighbours in one warp.
template <bool WIDE> __device__ __forceinline__ int place(int lane, int i) { return WIDE ? lane * WIDTH + i : i * LANES + lane; }

// Sums of a position's channels over its GROUP threads, for each of a thread's positions; every thread takes part.
template <bool WIDE> __device__ __forceinline__ void position_sums(float (&v)[WIDTH], float* parts) {
    int lane = threadIdx.x % LANES, share = threadIdx.x / LANES;
#pragma unroll
    for (int step = LANES; step < 32; step *= 2)
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) v[i] += __shfl_xor_sync(0xffffffffu, v[i], step);
    constexpr int LEFT = GROUP / IN_WARP;  // partial sums of a position
    if constexpr (LEFT > 1) {
        __syncthreads();
        if (share % IN_WARP == 0)
#pragma unroll
            for (int i = 0; i < WIDTH; ++i) parts[(share / IN_WARP) * TILE + place<WIDE>(lane, i)] = v[i];
        __syncthreads();
        for (int p = threadIdx.x; p < TILE; p += THREADS) {
            float total = 0.0f;
#pragma unroll
            for (int l = 0; l < LEFT; ++l) total += parts[l * TILE + p];
            parts[LEFT * TILE + p] = total;
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) v[i] = parts[LEFT * TILE + place<WIDE>(lane, i)];
    }
}

template <bool WIDE>
__device__ __forceinline__ void tile(const IO* x, const IO* scale, const IO* bias, OUT* y, int64 positions, int64 channels,
                                     int64 start, float epsilon, float inverse, float* parts) {
    int lane = threadIdx.x % LANES, share = threadIdx.x / LANES;
    int left = int(positions - start < TILE ? positions - start : TILE);
    auto inside = [&](int i) { return place<WIDE>(lane, WIDE ? 0 : i) < left; };
    auto load = [&](int64 c) {
        Pack<IO, WIDTH> v;
        const IO* from = x + c * positions + start;
        if constexpr (WIDE) {
            if (inside(0)) return *reinterpret_cast<const Pack<IO, WIDTH>*>(from + lane * WIDTH);
        }
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) v.item[i] = !WIDE && inside(i) ? from[place<WIDE>(lane, i)] : from_float<IO>(0.0f);
        return v;
    };
    auto store = [&](int64 c, const Pack<IO, WIDTH>& v, const float (&mean)[WIDTH], const float (&rstd)[WIDTH]) {
        float s = to_float(scale[c]), t = to_float(bias[c]);
        Pack<OUT, WIDTH> out;
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) out.item[i] = finish(fmaf((to_float(v.item[i]) - mean[i]) * rstd[i], s, t), inverse);
        OUT* to = y + c * positions + start;
        if constexpr (WIDE) {
            if (inside(0)) *reinterpret_cast<Pack<OUT, WIDTH>*>(to + lane * WIDTH) = out;
        } else {
#pragma unroll
            for (int i = 0; i < WIDTH; ++i)
                if (inside(i)) to[place<WIDE>(lane, i)] = out.item[i];
        }
    };
    float mean[WIDTH] = {}, rstd[WIDTH] = {};
    auto add = [&](const Pack<IO, WIDTH>& v) {
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) mean[i] += to_float(v.item[i]);
    };
    auto add_squares = [&](const Pack<IO, WIDTH>& v) {
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) {
            float d = to_float(v.item[i]) - mean[i];
            rstd[i] = fmaf(d, d, rstd[i]);
        }
    };
    auto to_mean = [&] {
        position_sums<WIDE>(mean, parts);
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) mean[i] /= float(channels);
    };
    auto to_rstd = [&] {
        position_sums<WIDE>(rstd, parts);
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) rstd[i] = rsqrtf(rstd[i] / float(channels) + epsilon);
    };
#if CHANNELS > 0
    constexpr int ROUNDS = (CHANNELS + GROUP - 1) / GROUP;
    Pack<IO, WIDTH> value[ROUNDS];
#pragma unroll
    for (int r = 0; r < ROUNDS; ++r) {
        int c = r * GROUP + share;
        if (CHANNELS % GROUP == 0 || c < CHANNELS) value[r] = load(c);
    }
#pragma unroll
    for (int r = 0; r < ROUNDS; ++r)
        if (CHANNELS % GROUP == 0 || r * GROUP + share < CHANNELS) add(value[r]);
    to_mean();
#pragma unroll
    for (int r = 0; r < ROUNDS; ++r)
        if (CHANNELS % GROUP == 0 || r * GROUP + share < CHANNELS) add_squares(value[r]);
    to_rstd();
#pragma unroll
    for (int r = 0; r < ROUNDS; ++r)
        if (CHANNELS % GROUP == 0 || r * GROUP + share < CHANNELS) store(r * GROUP + share, value[r], mean, rstd);
#else
    for (int64 c = share; c < channels; c += GROUP) add(load(c));
    to_mean();
    for (int64 c = share; c < channels; c += GROUP) add_squares(load(c));
    to_rstd();
    for (int64 c = share; c < channels; c += GROUP) store(c, load(c), mean, rstd);
#endif
}

// block: LANES * GROUP threads. grid: tiles of TILE positions, of all N.
extern "C" __global__ void __launch_bounds__(THREADS)
layer_norm_planes(const IO* __restrict__ x, const IO* __restrict__ scale, const IO* __restrict__ bias, OUT* __restrict__ y,
                  int64 positions, int64 channels, float epsilon, float inverse) {
    constexpr int LEFT = GROUP / IN_WARP;
    __shared__ float parts[LEFT > 1 ? (LEFT + 1) * TILE : 1];
    int64 tiles = (positions + TILE - 1) / TILE;
    int64 n = blockIdx.x / tiles, start = (blockIdx.x % tiles) * TILE;
    const IO* from = x + n * channels * positions;
    OUT* to = y + n * channels * positions;
    bool wide = positions % WIDTH == 0 && aligned<WIDTH * sizeof(IO)>(x) && aligned<WIDTH * sizeof(OUT)>(y);
    if (wide) tile<true>(from, scale, bias, to, positions, channels, start, epsilon, inverse, parts);
    else tile<false>(from, scale, bias, to, positions, channels, start, epsilon, inverse, parts);
}
#endif
