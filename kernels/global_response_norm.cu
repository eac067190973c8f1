// y = scale * (x * nx) + bias + x, nx = g / (mean of g over the channels + epsilon), g = sqrt(sum of x^2 over the positions).
//
// -D LAST: 1 for x [N, positions, C], 0 for x [N, C, positions]. Two reads and one write, the second read in reverse, so that what
// was read last comes from L2; sums go to memory, each block to its own place, so that the result is always the same.
//
// LAST: global_response_norm_squares, sums of slices of the positions; global_response_norm_factors, nx; global_response_norm_apply.
// not LAST: global_response_norm_rows, g; global_response_norm_planes.
#include "common.cuh"

constexpr int THREADS = 256;

// What a channel's elements are multiplied with: y = x * factor + bias.
__device__ __forceinline__ float factor_of(float nx, IO scale) { return fmaf(to_float(scale), nx, 1.0f); }

#if LAST

// A block takes X vectors of channels (-D X) of Y positions at once; threads from X * Y on have no part in that.
constexpr int Y = THREADS / X;

// A thread's part of the work: slice `slice` of sample n.
struct Part {
    int64 n, slice, chunk, channel, first, end;  // channels from `chunk` on, the thread's own; positions first to end
    int row, number;                             // which of the Y positions; how many channels

    __device__ __forceinline__ Part(unsigned block, int64 chunks, int64 slices, int64 per_slice, int64 positions, int64 channels) {
        const Split of_chunks(block, chunks), of_slices(of_chunks.quotient, slices);
        chunk = int64(of_chunks.rest) * X * VECTOR;
        channel = chunk + threadIdx.x % X * VECTOR;
        row = threadIdx.x / X;
        slice = of_slices.rest;
        n = of_slices.quotient;
        first = slice * per_slice;
        end = min(positions, first + per_slice);
        number = row < Y ? int(max(int64(0), min(channels - channel, int64(VECTOR)))) : 0;
    }
};

template <bool WIDE, bool ONCE>
__device__ __forceinline__ void add_squares(float (&sum)[VECTOR], const IO* from, const Part& part, int64 channels) {
    constexpr int BATCH = WIDE ? 7 : 1;  // positions that are read at once
    for (int64 s = part.first + part.row; s < part.end; s += Y * BATCH) {
        Vector batch[BATCH];
#pragma unroll
        for (int r = 0; r < BATCH; ++r)
            if (s + r * Y < part.end) batch[r] = read<WIDE, ONCE>(from + (s + r * Y) * channels, part.number);
#pragma unroll
        for (int r = 0; r < BATCH; ++r) {
            if (s + r * Y >= part.end) continue;
#pragma unroll
            for (int i = 0; i < VECTOR; ++i) {
                float v = element(batch[r], i);
                sum[i] = fmaf(v, v, sum[i]);
            }
        }
    }
}

// grid: chunks of the channels, for each slice, for each sample; the last `kept` blocks leave x in L2. squares [N, slices, C].
extern "C" __global__ void __launch_bounds__(THREADS)
global_response_norm_squares(const IO* __restrict__ x, float* __restrict__ squares, int64 positions, int64 channels, int64 chunks,
                             int64 slices, int64 per_slice, int64 kept) {
    __shared__ float sums[Y][X * VECTOR];
    let_next_launch_start();
    const Part part(blockIdx.x, chunks, slices, per_slice, positions, channels);
    const IO* from = x + part.n * positions * channels + part.channel;
    float sum[VECTOR] = {};
    if (part.number > 0) {
        if (channels % VECTOR != 0 || !aligned<16>(x)) add_squares<false, false>(sum, from, part, channels);
        else if (gridDim.x - blockIdx.x <= kept) add_squares<true, false>(sum, from, part, channels);
        else add_squares<true, true>(sum, from, part, channels);
    }
    if (part.row < Y)
#pragma unroll
        for (int i = 0; i < VECTOR; ++i) sums[part.row][threadIdx.x % X * VECTOR + i] = sum[i];
    __syncthreads();
    for (int c = threadIdx.x; c < X * VECTOR && part.chunk + c < channels; c += THREADS) {
        float total = 0.0f;
        for (int row = 0; row < Y; ++row) total += sums[row][c];
        squares[(part.n * slices + part.slice) * channels + part.chunk + c] = total;
    }
}

// block: COLUMNS channels at a time, their slices shared by SHARES threads. grid: one for each sample. factors [N, C].
constexpr int COLUMNS = 256, SHARES = 4;
extern "C" __global__ void __launch_bounds__(COLUMNS * SHARES)
global_response_norm_factors(const float* squares, float* __restrict__ factors, int64 channels, int64 slices,
                             float epsilon) {
    __shared__ float sums[SHARES][COLUMNS];
    const int column = threadIdx.x % COLUMNS, share = threadIdx.x / COLUMNS;
    squares += blockIdx.x * slices * channels;
    factors += blockIdx.x * channels;
    wait_for_launch_before();
    let_next_launch_start();
    float norms = 0.0f;
    for (int64 first = 0; first < channels; first += COLUMNS) {
        const int64 c = first + column;
        float sum = 0.0f;
        if (c < channels)
#pragma unroll 4
            for (int64 s = share; s < slices; s += SHARES) sum += squares[s * channels + c];
        __syncthreads();  // the sums before may still be read
        sums[share][column] = sum;
        __syncthreads();
        if (share > 0 || c >= channels) continue;
#pragma unroll
        for (int other = 1; other < SHARES; ++other) sum += sums[other][column];
        norms += factors[c] = sqrtf(sum);
    }
    const float mean = block_sum<COLUMNS * SHARES>(norms) / float(channels);
    if (share == 0)
        for (int64 c = column; c < channels; c += COLUMNS) factors[c] = factors[c] / (mean + epsilon);
}

template <bool WIDE>
__device__ __forceinline__ void apply(const IO* from, IO* to, const Part& part, int64 channels, const float (&factor)[VECTOR],
                                      const float (&shift)[VECTOR]) {
    constexpr int BATCH = WIDE ? 4 : 1;
    for (int64 s = part.end - 1 - part.row; s >= part.first; s -= Y * BATCH) {
        Vector batch[BATCH];
#pragma unroll
        for (int r = 0; r < BATCH; ++r)
            if (s - r * Y >= part.first) batch[r] = read<WIDE>(from + (s - r * Y) * channels, part.number);
#pragma unroll
        for (int r = 0; r < BATCH; ++r) {
            if (s - r * Y < part.first) continue;
#pragma unroll
            for (int i = 0; i < VECTOR; ++i)
                batch[r].item[i] = from_float<IO>(fmaf(element(batch[r], i), factor[i], shift[i]));
            write<WIDE>(to + (s - r * Y) * channels, batch[r], part.number);
        }
    }
}

// grid: as for the squares, with slices of its own, from the last to the first, and so the positions of each.
extern "C" __global__ void __launch_bounds__(THREADS)
global_response_norm_apply(const IO* __restrict__ x, const IO* __restrict__ scale, const IO* __restrict__ bias,
                           const float* factors, IO* __restrict__ y, int64 positions, int64 channels, int64 chunks,
                           int64 slices, int64 per_slice) {
    const Part part(gridDim.x - 1 - blockIdx.x, chunks, slices, per_slice, positions, channels);
    wait_for_launch_before();
    if (part.number == 0) return;
    float factor[VECTOR], shift[VECTOR];
#pragma unroll
    for (int i = 0; i < VECTOR; ++i) {
        const int64 c = part.channel + min(i, part.number - 1);  // beyond the last: not used
        factor[i] = factor_of(factors[part.n * channels + c], scale[c]);
        shift[i] = to_float(bias[c]);
    }
    const int64 offset = part.n * positions * channels + part.channel;
    if (channels % VECTOR == 0 && aligned<16>(x) && aligned<16>(y)) apply<true>(x + offset, y + offset, part, channels, factor, shift);
    else apply<false>(x + offset, y + offset, part, channels, factor, shift);
}

#else

constexpr int WARPS = THREADS / 32;

// grid: WARPS rows a block, each row the positions of one channel of one sample, summed by a warp. norms [N, C].
extern "C" __global__ void __launch_bounds__(THREADS)
global_response_norm_rows(const IO* __restrict__ x, float* __restrict__ norms, int64 rows, int64 positions) {
    let_next_launch_start();
    const int lane = threadIdx.x & 31;
    const int64 row = int64(blockIdx.x) * WARPS + threadIdx.x / 32;
    if (row >= rows) return;
    const IO* from = x + row * positions;
    float sum = 0.0f;
    if (positions % VECTOR == 0 && aligned<16>(x)) {
#pragma unroll 4
        for (int64 s = lane * VECTOR; s < positions; s += 32 * VECTOR) {
            const Vector v = read<true>(from + s, VECTOR);
#pragma unroll
            for (int i = 0; i < VECTOR; ++i) sum = fmaf(element(v, i), element(v, i), sum);
        }
    } else {
#pragma unroll 4
        for (int64 s = lane; s < positions; s += 32) sum = fmaf(to_float(from[s]), to_float(from[s]), sum);
    }
    sum = warp_sum(sum);
    if (lane == 0) norms[row] = sqrtf(sum);
}

// grid: `per_block` channels each of all samples, from the last to the first; a warp takes a channel at a time.
extern "C" __global__ void __launch_bounds__(THREADS, 3)
global_response_norm_planes(const IO* __restrict__ x, const IO* __restrict__ scale, const IO* __restrict__ bias,
                            const float* norms, IO* __restrict__ y, int64 positions, int64 channels, int64 chunks,
                            int64 per_block, float epsilon) {
    const Split block(gridDim.x - 1 - blockIdx.x, chunks);
    const int64 n = block.quotient, first = block.rest * per_block;
    const int lane = threadIdx.x & 31;
    norms += n * channels;
    float sum = 0.0f;
    wait_for_launch_before();
    for (int64 c = threadIdx.x; c < channels; c += THREADS) sum += norms[c];
    const float mean = block_sum<THREADS>(sum) / float(channels);
    const bool wide = positions % VECTOR == 0 && aligned<16>(x) && aligned<16>(y);
    for (int64 c = min(channels, first + per_block) - 1 - threadIdx.x / 32; c >= first; c -= WARPS) {
        const float factor = factor_of(norms[c] / (mean + epsilon), scale[c]), shift = to_float(bias[c]);
        const int64 offset = (n * channels + c) * positions;
        if (wide) {
            const int64 vectors = positions / VECTOR;
#pragma unroll 4
            for (int64 s = vectors - 1 - lane; s >= 0; s -= 32) {
                Vector v = read<true>(x + offset + s * VECTOR, VECTOR);
#pragma unroll
                for (int i = 0; i < VECTOR; ++i) v.item[i] = from_float<IO>(fmaf(element(v, i), factor, shift));
                write<true>(y + offset + s * VECTOR, v, VECTOR);
            }
        } else {
#pragma unroll 4
            for (int64 s = positions - 1 - lane; s >= 0; s -= 32)
                y[offset + s] = from_float<IO>(fmaf(to_float(x[offset + s]), factor, shift));
        }
    }
}
#endif
