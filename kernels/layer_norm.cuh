// y = f((x - mean) / sqrt(var + epsilon) * scale + bias), mean and biased variance over C channels; f by -D ACTIVATION:
// 0 nothing, 1 GELU, 2 GELU by tanh. Where y is int8, f(...) * inverse is rounded to it (QuantizeLinear).
//
// layer_norm_rows:   x [rows, C], the channels of a row are adjacent. GROUP threads share a row.
// layer_norm_planes: x [N, C, S], the channels of a position lie S apart. A block takes LANES * WIDTH positions; GROUP threads
//                    share the channels of a position, and each thread has WIDTH positions.
//
// Both read x once and keep it in registers, so that the variance is a second pass over registers: exact also where |mean| is
// far above the deviation. That needs C at compile time (-D CHANNELS) and pointers that allow accesses of WIDTH elements;
// otherwise (CHANNELS 0, or by chance at run time) the passes read memory, mostly the cache, again.
#include "common.cuh"

template <int N> __device__ __forceinline__ Pack<OUT, N> finish(float (&z)[N], float inverse) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
        if constexpr (ACTIVATION == 1) z[i] = gelu_erf(z[i]);
        if constexpr (ACTIVATION == 2) z[i] = gelu_tanh(z[i]);
    }
    if constexpr (sizeof(OUT) == 1) return quantized(z, inverse);
    Pack<OUT, N> out;
#pragma unroll
    for (int i = 0; i < N; ++i) out.item[i] = from_float<OUT>(z[i]);
    return out;
}

__device__ __forceinline__ OUT finish(float z, float inverse) {
    float one[1] = {z};
    return finish(one, inverse).item[0];
}

__device__ __forceinline__ bool data_aligned(const IO* x, const OUT* y) {
    return aligned<WIDTH * sizeof(IO)>(x) && aligned<WIDTH * sizeof(OUT)>(y);
}

#if PLANES == 0

// Sum over the GROUP neighbouring threads of a row, the same in all of them; every thread of the block takes part.
__device__ __forceinline__ float row_sum(float v) {
#pragma unroll
    for (int step = (GROUP < 32 ? GROUP : 32) / 2; step > 0; step /= 2) v += __shfl_xor_sync(0xffffffffu, v, step);
    if constexpr (GROUP > 32) {
        __shared__ float parts[32];
        constexpr int WARPS = GROUP / 32;
        int warp = threadIdx.x / 32;
        __syncthreads();
        if (threadIdx.x % 32 == 0) parts[warp] = v;
        __syncthreads();
        v = 0.0f;
#pragma unroll
        for (int w = 0; w < WARPS; ++w) v += parts[warp / WARPS * WARPS + w];
    }
    return v;
}

#if CHANNELS > 0
__device__ __forceinline__ void row_in_registers(const IO* from, const IO* scale, const IO* bias, OUT* to, bool inside,
                                                 float epsilon, float inverse) {
    constexpr int ROUNDS = (CHANNELS + GROUP * WIDTH - 1) / (GROUP * WIDTH);
    using In = Pack<IO, WIDTH>;
    int lane = threadIdx.x % GROUP;
    auto place = [&](int r) { return (r * GROUP + lane) * WIDTH; };
    auto mine = [&](int r) { return (r + 1) * GROUP * WIDTH <= CHANNELS || place(r) < CHANNELS; };
    In raw[ROUNDS];  // of threads that are not inside what it happens to be: it stays in their own rows' sums
#pragma unroll
    for (int r = 0; r < ROUNDS; ++r)
        if (inside && mine(r)) raw[r] = *reinterpret_cast<const In*>(from + place(r));
    float value[ROUNDS][WIDTH], sum = 0.0f, squares = 0.0f;
#pragma unroll
    for (int r = 0; r < ROUNDS; ++r)
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) sum += value[r][i] = mine(r) ? element(raw[r], i) : 0.0f;
    float mean = row_sum(sum) * (1.0f / CHANNELS);
#pragma unroll
    for (int r = 0; r < ROUNDS; ++r)
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) {
            value[r][i] -= mean;
            if (mine(r)) squares = fmaf(value[r][i], value[r][i], squares);
        }
    float rstd = rsqrtf(row_sum(squares) * (1.0f / CHANNELS) + epsilon);
    if (!inside) return;
#pragma unroll
    for (int r = 0; r < ROUNDS; ++r) {
        if (!mine(r)) continue;
        In g = *reinterpret_cast<const In*>(scale + place(r)), b = *reinterpret_cast<const In*>(bias + place(r));
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) value[r][i] = fmaf(value[r][i] * rstd, element(g, i), element(b, i));
        store(to + place(r), finish(value[r], inverse));
    }
}
#endif

// grid: one block per (blockDim.x / GROUP) rows.
extern "C" __global__ void __launch_bounds__(GROUP > 128 ? GROUP : 128)
layer_norm_rows(const IO* __restrict__ x, const IO* __restrict__ scale, const IO* __restrict__ bias, OUT* __restrict__ y,
                int64 rows, int64 channels, float epsilon, float inverse) {
    constexpr int THREADS = GROUP > 128 ? GROUP : 128;
    const int64 row = int64(blockIdx.x) * (THREADS / GROUP) + threadIdx.x / GROUP;
    const bool inside = row < rows;  // threads past the end still take part in the sums
#if CHANNELS > 0
    if (WIDTH == 1 || (data_aligned(x, y) && aligned<WIDTH * sizeof(IO)>(scale) && aligned<WIDTH * sizeof(IO)>(bias))) {
        row_in_registers(x + row * CHANNELS, scale, bias, y + row * CHANNELS, inside, epsilon, inverse);
        return;
    }
#endif
    const IO* from = x + row * channels;
    OUT* to = y + row * channels;
    int64 lane = threadIdx.x % GROUP, end = inside ? channels : 0;
    float over = 1.0f / float(channels), sum = 0.0f, squares = 0.0f;
    for (int64 c = lane; c < end; c += GROUP) sum += to_float(from[c]);
    float mean = row_sum(sum) * over;
    for (int64 c = lane; c < end; c += GROUP) {
        float d = to_float(from[c]) - mean;
        squares = fmaf(d, d, squares);
    }
    float rstd = rsqrtf(row_sum(squares) * over + epsilon);
    for (int64 c = lane; c < end; c += GROUP)
        to[c] = finish(fmaf((to_float(from[c]) - mean) * rstd, to_float(scale[c]), to_float(bias[c])), inverse);
}

#else  // PLANES

constexpr int TILE = LANES * WIDTH;                   // positions of a block
constexpr int THREADS = LANES * GROUP;
constexpr int IN_WARP = LANES < 32 ? 32 / LANES : 1;  // threads of a warp that share a position
constexpr int PARTS = GROUP / IN_WARP;                // sums of a position that the warps of a block make

// Sums of a position's channels over its GROUP threads, for each of a thread's positions; every thread takes part.
__device__ __forceinline__ void position_sums(float (&v)[WIDTH], float* parts) {
    int lane = threadIdx.x % LANES, share = threadIdx.x / LANES;
#pragma unroll
    for (int step = LANES; step < 32; step *= 2)
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) v[i] += __shfl_xor_sync(0xffffffffu, v[i], step);
    if constexpr (PARTS > 1) {
        __syncthreads();
        if (share % IN_WARP == 0)
#pragma unroll
            for (int i = 0; i < WIDTH; ++i) parts[(share / IN_WARP) * TILE + lane * WIDTH + i] = v[i];
        __syncthreads();
        for (int p = threadIdx.x; p < TILE; p += THREADS) {
            float total = 0.0f;
#pragma unroll
            for (int l = 0; l < PARTS; ++l) total += parts[l * TILE + p];
            parts[PARTS * TILE + p] = total;
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) v[i] = parts[PARTS * TILE + lane * WIDTH + i];
    }
}

// The statistics of a thread's positions, and what is done with a channel of them.
struct Positions {
    using In = Pack<IO, WIDTH>;
    using Out = Pack<OUT, WIDTH>;
    float mean[WIDTH] = {}, rstd[WIDTH] = {}, shift[WIDTH];

    __device__ __forceinline__ void add(const In& v) {
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) mean[i] += element(v, i);
    }
    __device__ __forceinline__ void to_mean(float over, float* parts) {
        position_sums(mean, parts);
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) mean[i] *= over;
    }
    __device__ __forceinline__ void add_squares(const In& v) {
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) {
            float d = element(v, i) - mean[i];
            rstd[i] = fmaf(d, d, rstd[i]);
        }
    }
    __device__ __forceinline__ void to_rstd(float over, float epsilon, float* parts) {
        position_sums(rstd, parts);
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) {
            rstd[i] = rsqrtf(fmaf(rstd[i], over, epsilon));
            shift[i] = -mean[i] * rstd[i];
        }
    }
    __device__ __forceinline__ Out apply(const In& v, float scale, float bias, float inverse) const {
        float z[WIDTH];
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) {
            float f = element(v, i);
            // one rounding more: too small to matter beside that of 16-bit x
            float n = sizeof(IO) == 4 ? (f - mean[i]) * rstd[i] : fmaf(f, rstd[i], shift[i]);
            z[i] = fmaf(n, scale, bias);
        }
        return finish(z, inverse);
    }
};

#if CHANNELS > 0
constexpr int ROUNDS = (CHANNELS + GROUP - 1) / GROUP;  // channels of a thread

// Offsets in x and y in 32 bits, for the first 2^31 elements: 4 % less time on an H200. For 8 channels of 16 bits a thread they take a
// few registers too many.
constexpr bool NARROW = sizeof(IO) == 4 || ROUNDS > 8;
template <bool> struct Integer { using type = int64; };
template <> struct Integer<true> { using type = int; };
using Offset = Integer<NARROW>::type;

// first: this thread's first element in x and y, below 0 where there is none.
__device__ __forceinline__ void tile_in_registers(const IO* x, const IO* scale, const IO* bias, OUT* y, Offset first, int step,
                                                  float epsilon, float inverse, float* parts) {
    using In = Positions::In;
    const int share = threadIdx.x / LANES;
    const bool inside = first >= 0;
    auto mine = [&](int r) { return (r + 1) * GROUP <= CHANNELS || r * GROUP + share < CHANNELS; };
    auto at = [&](int r) { return first + Offset(r * GROUP) * step; };
    Positions own;
    In value[ROUNDS];
#pragma unroll
    for (int r = 0; r < ROUNDS; ++r)
        if (mine(r) && inside) value[r] = *reinterpret_cast<const In*>(x + at(r));
    // Scale and bias are fetched while x is on its way: 1.1 instead of 1.4 times the floor for float data on an H200, but for
    // 8 channels of 16 bits in accesses of 16 bytes 1.3 instead of 1.2.
    constexpr bool FETCHED = NARROW || WIDTH == 1;
    __shared__ float2 affine[FETCHED ? CHANNELS : 1];
    if constexpr (FETCHED) {
        for (int c = threadIdx.x; c < CHANNELS; c += THREADS) affine[c] = {to_float(scale[c]), to_float(bias[c])};
        __syncthreads();
    }
#pragma unroll
    for (int r = 0; r < ROUNDS; ++r)
        if (mine(r)) keep_packed(value[r]), own.add(value[r]);
    own.to_mean(1.0f / CHANNELS, parts);
#pragma unroll
    for (int r = 0; r < ROUNDS; ++r)
        if (mine(r)) keep_packed(value[r]), own.add_squares(value[r]);
    own.to_rstd(1.0f / CHANNELS, epsilon, parts);
#pragma unroll
    for (int r = 0; r < ROUNDS; ++r) {
        int c = r * GROUP + share;
        if (!mine(r) || (!NARROW && !inside)) break;  // or only no store, below: what takes fewer registers
        keep_packed(value[r]);
        float2 a = FETCHED ? affine[c] : float2{to_float(scale[c]), to_float(bias[c])};
        const Positions::Out out = own.apply(value[r], a.x, a.y, inverse);
        if (!NARROW || inside) store(y + at(r), out);
    }
}
#endif

// For compute capability 10 and 12 the compiler computes on pairs of numbers, which takes more registers.
#if CHANNELS > 0 && __CUDA_ARCH__ >= 1000
constexpr int FITTING = sizeof(IO) == 4 ? RESIDENT : ROUNDS > 8 ? 384 : 512;
#else
constexpr int FITTING = RESIDENT;
#endif

// block: LANES * GROUP threads, so many that RESIDENT of them fit on a multiprocessor. grid: tiles of TILE positions, of all N.
extern "C" __global__ void __launch_bounds__(THREADS, FITTING < THREADS ? 1 : FITTING / THREADS)
layer_norm_planes(const IO* __restrict__ x, const IO* __restrict__ scale, const IO* __restrict__ bias, OUT* __restrict__ y,
                  int64 positions, int64 channels, float epsilon, float inverse) {
    __shared__ float parts[PARTS > 1 ? (PARTS + 1) * TILE : 1];
    const Split block(blockIdx.x, (positions + TILE - 1) / TILE);
    int64 n = block.quotient, first = int64(block.rest) * TILE + threadIdx.x % LANES * WIDTH;
    const IO* from = x + n * channels * positions + first;
    OUT* to = y + n * channels * positions + first;
#if CHANNELS > 0
    const bool near = !NARROW || (n + 1) * channels * positions < (1LL << 31);  // a sample beyond goes the way that is slow and right
    if (near && (WIDTH == 1 || (positions % WIDTH == 0 && data_aligned(x, y)))) {
        const int step = int(positions), at = int(block.rest) * TILE + threadIdx.x % LANES * WIDTH;
        const Offset own = (Offset(n) * CHANNELS + int(threadIdx.x / LANES)) * step + at;
        tile_in_registers(x, scale, bias, y, at < step ? own : -1, step, epsilon, inverse, parts);
        return;
    }
#endif
    int left = first < positions ? int(positions - first < WIDTH ? positions - first : WIDTH) : 0;
    auto load = [&](int64 c) {
        Positions::In v;
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) v.item[i] = i < left ? from[c * positions + i] : from_float<IO>(0.0f);
        return v;
    };
    Positions own;
    int64 share = threadIdx.x / LANES;
    float over = 1.0f / float(channels);
    for (int64 c = share; c < channels; c += GROUP) own.add(load(c));
    own.to_mean(over, parts);
    for (int64 c = share; c < channels; c += GROUP) own.add_squares(load(c));
    own.to_rstd(over, epsilon, parts);
    for (int64 c = share; c < channels; c += GROUP) {
        Positions::Out out = own.apply(load(c), to_float(scale[c]), to_float(bias[c]), inverse);
#pragma unroll
        for (int i = 0; i < WIDTH; ++i)
            if (i < left) to[c * positions + i] = out.item[i];
    }
}
#endif
