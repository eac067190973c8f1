// y = scale * (x * nx) + bias + x, nx = g / (mean of g over the channels + epsilon), g = sqrt(sum of x^2 over the positions).
//
// -D LAST: 1 for x [N, positions, C], 0 for x [N, C, positions]. One launch, behind one that zeroes its counters. It goes through
// the batch by groups of samples, so small that what was read for the norms is still in L2 when the result is computed: memory sees
// one read and one write. Blocks take their work in the order of tickets: squares of group 0, squares of 1, result of 0, squares
// of 2, result of 1, ... The block that finishes a sample's squares last computes its norms. Sums go to memory, each block to its own
// place, and are added in a fixed order, so that the result is always the same.
#include "common.cuh"
#include "tickets.cuh"

constexpr int THREADS = 256;

// Of a sample: how many blocks have written their sums, whether norms and mean are there, and the mean of g over the channels.
// Behind the last sample comes one more, whose `done` gives the tickets.
struct alignas(16) State {
    unsigned done, ready;
    float mean;
};

// A block's work: part `part` of `parts` of sample n. grid: 2 * parts * samples for each group of `samples` samples.
struct Item {
    bool apply;  // the result, else the squares
    int64 n;
    unsigned part;

    __device__ __forceinline__ Item(unsigned ticket, unsigned samples, unsigned parts) {
        const unsigned blocks = samples * parts, last = gridDim.x / blocks - 1, step = ticket / blocks, rest = ticket % blocks;
        apply = step == last || (step > 0 && step % 2 == 0);
        const unsigned group = step == last ? step / 2 : apply ? step / 2 - 1 : (step + 1) / 2;
        n = int64(group) * samples + rest / parts;
        part = apply ? parts - 1 - rest % parts : rest % parts;  // what was read last comes first
    }
};

// grid: a thread for each of `number` states.
extern "C" __global__ void __launch_bounds__(THREADS) global_response_norm_start(State* states, int64 number) {
    const int64 i = int64(blockIdx.x) * THREADS + threadIdx.x;
    if (i < number) states[i] = State{0, 0, 0.0f};
}

// What a channel's elements are multiplied with: y = x * factor + bias.
__device__ __forceinline__ float factor_of(float norm, float mean, float epsilon, IO scale) {
    return fmaf(to_float(scale), norm / (mean + epsilon), 1.0f);
}

// Lets the blocks go on that compute the sample's result; sum: of the norms that the thread knows.
__device__ __forceinline__ void publish_mean(State& state, float sum, int64 channels) {
    sum = block_sum<THREADS>(sum);
    if (threadIdx.x == 0) state.mean = sum / float(channels);
    publish(&state.ready);
}

#if LAST

// A block takes X * VECTOR channels (-D X) of Y positions at once; threads from X * Y on have no part in that.
constexpr int Y = THREADS / X;
constexpr int WIDTH = X * VECTOR;
template <bool WIDE> constexpr int BATCH = WIDE ? 4 : 1;  // positions of a thread that are read at once

// A thread's part of the work: one vector of channels at every Y-th position of a slice.
struct Part {
    int64 first;         // position of the slice
    int chunk, channel;  // channels from `chunk` on, the thread's own
    int row, end;        // the thread's first position in the slice, the slice's end; at 0 if the thread has no channels
    int number;          // of channels

    __device__ __forceinline__ Part(unsigned part, unsigned chunks, int64 per_slice, int64 positions, int64 channels) {
        first = part / chunks * per_slice;
        chunk = part % chunks * WIDTH;
        channel = chunk + threadIdx.x % X * VECTOR;
        row = threadIdx.x / X;
        number = row < Y ? max(0, min(int(channels) - channel, VECTOR)) : 0;
        end = number > 0 ? int(min(positions - first, per_slice)) : 0;
    }
};

template <bool WIDE>
__device__ __forceinline__ void add_squares(float (&sum)[VECTOR], const IO* from, const Part& part, int64 channels) {
    for (int s = part.row; s < part.end; s += Y * BATCH<WIDE>) {
        Vector batch[BATCH<WIDE>];
#pragma unroll
        for (int r = 0; r < BATCH<WIDE>; ++r)
            if (s + r * Y < part.end) batch[r] = read<WIDE>(from + (s + r * Y) * channels, part.number);
#pragma unroll
        for (int r = 0; r < BATCH<WIDE>; ++r) {
            if (s + r * Y >= part.end) continue;
            keep_packed(batch[r]);
#pragma unroll
            for (int i = 0; i < VECTOR; ++i) {
                float v = to_float(batch[r].item[i]);
                sum[i] = fmaf(v, v, sum[i]);
            }
        }
    }
}

// Sums of a slice, over the threads that have the same channels; to: of the chunk's first channel, 0 for channels beyond the last.
__device__ __forceinline__ void write_squares(float* to, const float (&sum)[VECTOR], const Part& part) {
    __shared__ float sums[Y][WIDTH];
    if (part.row < Y)
#pragma unroll
        for (int i = 0; i < VECTOR; ++i) sums[part.row][threadIdx.x % X * VECTOR + i] = sum[i];
    __syncthreads();
    for (int c = threadIdx.x; c < WIDTH; c += THREADS) {
        float total = 0.0f;
#pragma unroll 4
        for (int row = 0; row < Y; ++row) total += sums[row][c];
        to[c] = total;
    }
}

__device__ __forceinline__ void add(float4& sum, const float4& v) {
    sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
}

// The sample's norms from the sums of its slices, `columns` float4 each; returns the sum of the thread's norms.
__device__ __forceinline__ float finish(const float4* squares, float4* norms, int columns, int slices) {
    __shared__ float4 parts[THREADS];
    const int width = min(columns, THREADS), rows = THREADS / width;  // `rows` slices at once
    const int row = threadIdx.x / width;
    float known = 0.0f;
    for (int first = 0; first < columns; first += width) {
        const int column = first + threadIdx.x % width;
        const bool there = row < rows && column < columns;
        float4 sum = {};
        if (there)
#pragma unroll 4
            for (int s = row; s < slices; s += rows) add(sum, fresh(squares + s * columns + column));
        __syncthreads();
        parts[threadIdx.x] = sum;
        __syncthreads();
        if (!there || row > 0) continue;
        for (int r = 1; r < rows; ++r) add(sum, parts[r * width + threadIdx.x]);
        const float4 norm = {sqrtf(sum.x), sqrtf(sum.y), sqrtf(sum.z), sqrtf(sum.w)};
        norms[column] = norm;
        known += (norm.x + norm.y) + (norm.z + norm.w);
    }
    return known;
}

template <bool WIDE>
__device__ __forceinline__ void read_back(Vector (&batch)[BATCH<WIDE>], const IO* from, int s, const Part& part, int64 channels) {
#pragma unroll
    for (int r = 0; r < BATCH<WIDE>; ++r)
        if (s >= r * Y) batch[r] = read<WIDE>(from + (s - r * Y) * channels, part.number);
}

// From the last position to the first. The first vectors are read before the norms are there.
template <bool WIDE>
__device__ __forceinline__ void apply(const IO* from, const IO* scale, const IO* bias, const State& state, const float* norms, IO* to,
                                      const Part& part, int64 channels, float epsilon) {
    int s = part.end - 1 - part.row;
    Vector batch[BATCH<WIDE>], g = {}, b = {};
    read_back<WIDE>(batch, from, s, part, channels);
    if (part.number > 0) g = read<WIDE>(scale, part.number), b = read<WIDE>(bias, part.number);
    wait_for(&state.ready);
    const float mean = fresh(&state.mean);
    float factor[VECTOR];
#pragma unroll
    for (int i = 0; i < VECTOR; i += 4) {
        const float4 norm = fresh(reinterpret_cast<const float4*>(norms + i));
        factor[i] = factor_of(norm.x, mean, epsilon, g.item[i]);
        factor[i + 1] = factor_of(norm.y, mean, epsilon, g.item[i + 1]);
        factor[i + 2] = factor_of(norm.z, mean, epsilon, g.item[i + 2]);
        factor[i + 3] = factor_of(norm.w, mean, epsilon, g.item[i + 3]);
    }
    keep_packed(b);
    while (s >= 0) {
#pragma unroll
        for (int r = 0; r < BATCH<WIDE>; ++r) {
            if (s < r * Y) continue;
            keep_packed(batch[r]);
#pragma unroll
            for (int i = 0; i < VECTOR; ++i)
                batch[r].item[i] = from_float<IO>(fmaf(to_float(batch[r].item[i]), factor[i], to_float(b.item[i])));
            write<WIDE>(to + (s - r * Y) * channels, batch[r], part.number);
        }
        s -= Y * BATCH<WIDE>;
        read_back<WIDE>(batch, from, s, part, channels);
    }
}

// Parts of a sample: chunks of the channels, for each slice. states [N + 1], norms [N, pitch], squares [N, slices, pitch], where
// pitch is the channels of all chunks.
extern "C" __global__ void __launch_bounds__(THREADS, 4)
global_response_norm(const IO* __restrict__ x, const IO* __restrict__ scale, const IO* __restrict__ bias, State* states, float* norms,
                     float* squares, IO* __restrict__ y, int64 number, int64 samples, int64 positions, int64 channels, int64 chunks,
                     int64 slices, int64 per_slice, float epsilon) {
    const Item item(take_ticket(&states[number].done), unsigned(samples), unsigned(slices * chunks));
    if (item.n >= number) return;
    const Part part(item.part, unsigned(chunks), per_slice, positions, channels);
    const int64 pitch = chunks * WIDTH, offset = (item.n * positions + part.first) * channels + part.channel;
    const bool wide = channels % VECTOR == 0 && aligned<16>(x) && aligned<16>(y) && aligned<16>(scale) && aligned<16>(bias);
    State& state = states[item.n];
    norms += item.n * pitch;
    if (item.apply) {
        scale += part.channel, bias += part.channel, norms += part.channel;
        if (wide) apply<true>(x + offset, scale, bias, state, norms, y + offset, part, channels, epsilon);
        else apply<false>(x + offset, scale, bias, state, norms, y + offset, part, channels, epsilon);
        return;
    }
    float sum[VECTOR] = {};
    if (wide) add_squares<true>(sum, x + offset, part, channels);
    else add_squares<false>(sum, x + offset, part, channels);
    squares += item.n * slices * pitch;
    write_squares(squares + item.part / unsigned(chunks) * pitch + part.chunk, sum, part);
    if (!finished_last(&state.done, unsigned(slices * chunks))) return;
    const float known = finish(reinterpret_cast<const float4*>(squares), reinterpret_cast<float4*>(norms), int(pitch / 4), int(slices));
    publish_mean(state, known, channels);
}

#else

constexpr int WARPS = THREADS / 32;

// Sum of the squares of a row, by a warp.
__device__ __forceinline__ float row_squares(const IO* from, int64 positions, bool wide) {
    const int lane = threadIdx.x & 31;
    float sum = 0.0f;
    if (wide) {
#pragma unroll 4
        for (int64 s = lane * VECTOR; s < positions; s += 32 * VECTOR) {
            const Vector v = read<true>(from + s, VECTOR);
#pragma unroll
            for (int i = 0; i < VECTOR; ++i) sum = fmaf(to_float(v.item[i]), to_float(v.item[i]), sum);
        }
    } else {
#pragma unroll 4
        for (int64 s = lane; s < positions; s += 32) sum = fmaf(to_float(from[s]), to_float(from[s]), sum);
    }
    return warp_sum(sum);
}

// A row of the result, by a warp, from the last position to the first.
__device__ __forceinline__ void apply_row(const IO* __restrict__ from, IO* __restrict__ to, int64 positions, bool wide, float factor,
                                          float shift) {
    const int lane = threadIdx.x & 31;
    if (wide) {
#pragma unroll 4
        for (int64 s = positions / VECTOR - 1 - lane; s >= 0; s -= 32) {
            Vector v = read<true>(from + s * VECTOR, VECTOR);
#pragma unroll
            for (int i = 0; i < VECTOR; ++i) v.item[i] = from_float<IO>(fmaf(to_float(v.item[i]), factor, shift));
            write<true>(to + s * VECTOR, v, VECTOR);
        }
    } else {
#pragma unroll 4
        for (int64 s = positions - 1 - lane; s >= 0; s -= 32) to[s] = from_float<IO>(fmaf(to_float(from[s]), factor, shift));
    }
}

// Parts of a sample: `per_block` channels each; a warp takes a channel at a time. states [N + 1], norms [N, C].
extern "C" __global__ void __launch_bounds__(THREADS, 4)
global_response_norm(const IO* __restrict__ x, const IO* __restrict__ scale, const IO* __restrict__ bias, State* states, float* norms,
                     IO* __restrict__ y, int64 number, int64 samples, int64 positions, int64 channels, int64 parts, int64 per_block,
                     float epsilon) {
    const Item item(take_ticket(&states[number].done), unsigned(samples), unsigned(parts));
    if (item.n >= number) return;
    const bool wide = positions % VECTOR == 0 && aligned<16>(x) && aligned<16>(y);
    const int64 first = item.part * per_block, end = min(channels, first + per_block);
    State& state = states[item.n];
    norms += item.n * channels;
    x += item.n * channels * positions, y += item.n * channels * positions;
    if (item.apply) {
        wait_for(&state.ready);
        const float mean = fresh(&state.mean);
        for (int64 c = end - 1 - threadIdx.x / 32; c >= first; c -= WARPS) {
            const float factor = factor_of(fresh(norms + c), mean, epsilon, scale[c]);
            apply_row(x + c * positions, y + c * positions, positions, wide, factor, to_float(bias[c]));
        }
        return;
    }
    for (int64 c = first + threadIdx.x / 32; c < end; c += WARPS) {
        const float sum = row_squares(x + c * positions, positions, wide);
        if ((threadIdx.x & 31) == 0) norms[c] = sqrtf(sum);
    }
    if (!finished_last(&state.done, unsigned(parts))) return;
    float known = 0.0f;
    for (int64 c = threadIdx.x; c < channels; c += THREADS) known += fresh(norms + c);
    publish_mean(state, known, channels);
}
#endif
