// y = v sigmoid(v), v = (x - mean) / sqrt(var + epsilon) * scale + bias, mean and biased variance of each group.
//
// x [N, C, spatial]: the channels of a group lie together, so a group is `length` neighbouring elements, C / groups times
// spatial. A thread takes VECTOR neighbours at once.
//
// group_norm_silu_whole:      one block a group, or a cluster of them, that keep it in registers and shared memory: one read, one
//                             write. Before compute capability 9.0 there are no clusters, and each block reads all of the group.
// group_norm_silu_statistics: mean and squared deviations of each slice of a group ...
// group_norm_silu_apply:      ... and what follows from them, the slices in reverse, so that the last ones read come from L2.
//
// Deviations are taken from a mean that is known, never as E[x^2] - E[x]^2, and all of it relative to the group's first
// element: exact also where |mean| is far above the deviation.
//
// -D THREADS: of a block. -D WHOLE: 1 for the first kernel, which needs -D LENGTH, -D SPATIAL, -D HELD, the vectors that a
// thread keeps in registers, and -D CLUSTER, blocks a group, and -D RESIDENT, blocks on a multiprocessor; 0 for the others, which get the sizes as arguments.
#include "common.cuh"

// Count, mean and squared deviations of what a thread has seen; parts are merged as Chan, Golub and LeVeque have it (1979).
struct Moments {
    float count = 0.0f, mean = 0.0f, squares = 0.0f;

    template <bool WIDE> __device__ __forceinline__ void add(const Vector& v, float pivot, int number) {
        const float n = WIDE ? float(VECTOR) : float(number);
        float sum = 0.0f, around = 0.0f;
#pragma unroll
        for (int i = 0; i < VECTOR; ++i)
            if (WIDE || i < number) sum += element(v, i) - pivot;
        const float own = sum / n;
#pragma unroll
        for (int i = 0; i < VECTOR; ++i) {
            float d = element(v, i) - pivot - own;
            if (WIDE || i < number) around = fmaf(d, d, around);
        }
        const float part = WIDE ? __fdividef(n, count + n) : n / (count + n), d = own - mean;
        mean = fmaf(d, part, mean);
        squares += fmaf(d * d, count * part, around);
        count += n;
    }
};

// Mean and squared deviations of `length` elements, from the moments of all threads of the block.
__device__ __forceinline__ float2 block_moments(const Moments& own, float length) {
    float mean = block_sum<THREADS>(own.count * own.mean) / length;
    float d = own.mean - mean;
    return make_float2(mean, block_sum<THREADS>(fmaf(own.count * d, d, own.squares)));
}

// What turns the elements of one group into results.
struct Finish {
    float pivot, mean, rstd;
    const IO *scale, *bias;  // of the group's first channel
    unsigned spatial;

    // of a vector, or its first elements, from the `at`-th of the group on; ONE: all of one channel
    template <bool ONE> __device__ __forceinline__ Vector of(const Vector& v, unsigned at, int number) const {
        Vector out;
        unsigned channel = at / spatial;
        if constexpr (ONE) {
            const float g = rstd * to_float(scale[channel]), b = to_float(bias[channel]);
#pragma unroll
            for (int i = 0; i < VECTOR; ++i)
                out.item[i] = from_float<IO>(silu(fmaf(element(v, i) - pivot - mean, g, b)));
        } else {
#pragma unroll
            for (int i = 0; i < VECTOR; ++i) {
                if (i >= number) continue;
                channel = (at + i) / spatial;
                const float g = rstd * to_float(scale[channel]), b = to_float(bias[channel]);
                out.item[i] = from_float<IO>(silu(fmaf(element(v, i) - pivot - mean, g, b)));
            }
        }
        return out;
    }
};

// Vectors of a thread that are read at once. Where elements are taken one by one, registers hold no more.
template <bool WIDE> constexpr int BATCH = WIDE ? 4 : 1;

#if WHOLE

constexpr unsigned VECTORS = (LENGTH + VECTOR - 1) / VECTOR;
constexpr unsigned PART = (VECTORS + CLUSTER - 1) / CLUSTER;  // vectors of a block, fewer in the last ones
constexpr int ROUNDS = (PART + THREADS - 1) / THREADS;

#if CLUSTER > 1 && __CUDA_ARCH__ >= 900
#define CLUSTERED __cluster_dims__(CLUSTER, 1, 1)
constexpr bool TOGETHER = true;  // the blocks of a group tell each other what they found

__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive;" ::: "memory"); }
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait;" ::: "memory"); }

// The value that the variable has in the shared memory of another block of the cluster.
__device__ __forceinline__ float2 of_block(const float2* variable, unsigned block) {
    unsigned address = unsigned(__cvta_generic_to_shared(variable));
    float2 value;
    asm volatile("mapa.shared::cluster.u32 %0, %0, %1;" : "+r"(address) : "r"(block));
    asm volatile("ld.shared::cluster.v2.f32 {%0, %1}, [%2];" : "=f"(value.x), "=f"(value.y) : "r"(address) : "memory");
    return value;
}
#else
#define CLUSTERED
constexpr bool TOGETHER = CLUSTER == 1;  // else each block reads the whole group for its statistics
__device__ __forceinline__ void cluster_arrive() {}
__device__ __forceinline__ void cluster_wait() {}
__device__ __forceinline__ float2 of_block(const float2* variable, unsigned) { return *variable; }
#endif

__device__ __forceinline__ int number(unsigned i) { return int(min(LENGTH - i * VECTOR, unsigned(VECTOR))); }

__device__ __forceinline__ unsigned dynamic_shared_bytes() {
    unsigned bytes;
    asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(bytes));
    return bytes;
}

// Mean and squared deviations of the group, from those of the parts that the blocks of a cluster have.
__device__ __forceinline__ float2 cluster_moments(const Moments& own, unsigned rank) {
    __shared__ float2 mine;
    auto before = [](unsigned part) { return min(unsigned(LENGTH), part * PART * VECTOR); };  // elements in earlier parts
    auto count = [&](unsigned part) { return float(before(part + 1) - before(part)); };
    const float2 found = block_moments(own, max(count(rank), 1.0f));
    if (threadIdx.x == 0) mine = found;
    cluster_arrive();
    cluster_wait();
    const unsigned lane = threadIdx.x & 31;
    const float2 part = of_block(&mine, lane < CLUSTER ? lane : 0);
    const float n = lane < CLUSTER ? count(lane) : 0.0f;
    const float mean = warp_sum(n * part.x) / float(LENGTH), d = part.x - mean;
    const float squares = warp_sum(lane < CLUSTER ? fmaf(n * d, d, part.y) : 0.0f);
    cluster_arrive();  // whoever has arrived everywhere may leave: see the end of the kernel
    return make_float2(mean, squares);
}

template <bool WIDE>
__device__ __forceinline__ void whole(const IO* from, const IO* scale, const IO* bias, IO* to, unsigned rank, float epsilon) {
    extern __shared__ uint4 kept_bytes[];
    Vector* const kept = reinterpret_cast<Vector*>(kept_bytes);
    constexpr int held_rounds = WIDE ? HELD : 0, at_once = BATCH<WIDE>;
    const int stored = held_rounds + int(dynamic_shared_bytes() / (THREADS * sizeof(Vector)));  // later ones are read again
    const unsigned first = rank * PART, end = min(VECTORS, first + PART);
    auto index = [&](int round) { return first + unsigned(round) * THREADS + threadIdx.x; };
    const float pivot = to_float(from[0]);
    Moments moments;
    Vector held[held_rounds + 1];
#pragma unroll
    for (int r = 0; r < held_rounds; ++r)
        if (index(r) < end) held[r] = read<WIDE>(from + index(r) * VECTOR, number(index(r)));
#pragma unroll
    for (int r = 0; r < held_rounds; ++r)
        if (index(r) < end) moments.add<WIDE>(held[r], pivot, number(index(r)));
#pragma unroll 1
    for (int round = held_rounds; round < ROUNDS; round += at_once) {
        Vector batch[at_once];
#pragma unroll
        for (int r = 0; r < at_once; ++r) {
            unsigned i = index(round + r);
            if (i < end) batch[r] = read<WIDE>(from + i * VECTOR, number(i));
        }
#pragma unroll
        for (int r = 0; r < at_once; ++r) {
            unsigned i = index(round + r);
            if (i >= end) continue;
            if (round + r < stored) kept[(round + r - held_rounds) * THREADS + threadIdx.x] = batch[r];
            moments.add<WIDE>(batch[r], pivot, number(i));
        }
    }
    if constexpr (!TOGETHER)
        for (unsigned i = threadIdx.x; i < VECTORS; i += THREADS)
            if (i < first || i >= end) moments.add<WIDE>(read<WIDE>(from + i * VECTOR, number(i)), pivot, number(i));
#pragma unroll
    for (int r = 0; r < held_rounds; ++r) keep_packed(held[r]);
    const float2 found = TOGETHER && CLUSTER > 1 ? cluster_moments(moments, rank) : block_moments(moments, float(LENGTH));
    const Finish finish{pivot, found.x, rsqrtf(found.y / float(LENGTH) + epsilon), scale, bias, SPATIAL};
    auto store = [&](const Vector& v, unsigned i) {
        write<WIDE>(to + i * VECTOR, finish.of<SPATIAL % VECTOR == 0>(v, i * VECTOR, number(i)), number(i));
    };
#pragma unroll
    for (int r = 0; r < held_rounds; ++r)
        if (index(r) < end) store(held[r], index(r));
#pragma unroll 1
    for (int r = held_rounds; r < ROUNDS; ++r) {
        unsigned i = index(r);
        if (i >= end) break;
        Vector v;
        if (r < stored) v = kept[(r - held_rounds) * THREADS + threadIdx.x];
        else v = read<WIDE>(from + i * VECTOR, number(i));
        store(v, i);
    }
}

// grid: N * groups * CLUSTER. Dynamic shared memory keeps what registers cannot, as far as it goes; what is left is read again.
extern "C" __global__ void CLUSTERED __launch_bounds__(THREADS, RESIDENT)
group_norm_silu_whole(const IO* __restrict__ x, const IO* __restrict__ scale, const IO* __restrict__ bias, IO* __restrict__ y,
                      int64 groups, float epsilon) {
    const unsigned group = blockIdx.x / CLUSTER, rank = blockIdx.x % CLUSTER;
    const unsigned channel = group % unsigned(groups) * (LENGTH / SPATIAL);
    x += int64(group) * LENGTH;
    y += int64(group) * LENGTH;
    if (LENGTH % VECTOR == 0 && aligned<16>(x) && aligned<16>(y))
        whole<LENGTH % VECTOR == 0>(x, scale + channel, bias + channel, y, rank, epsilon);
    else
        whole<false>(x, scale + channel, bias + channel, y, rank, epsilon);
    if (CLUSTER > 1) cluster_wait();  // no block leaves while another one may read its shared memory
}

#else

constexpr unsigned TILE = THREADS * VECTOR * BATCH<true>;
template <int COUNT> constexpr unsigned STEP = THREADS * VECTOR * COUNT;  // elements, where a thread reads COUNT vectors at once

// One slice of a group: `tiles` tiles, fewer at the end of the group.
struct Slice {
    int64 group;
    unsigned first, end;  // elements of the group

    __device__ __forceinline__ Slice(unsigned number, int64 slices, int64 tiles, int64 length) {
        const Split block(number, slices);
        group = block.quotient;
        const int64 from = block.rest * tiles * TILE;
        first = unsigned(from);
        end = unsigned(min(length, from + tiles * TILE));
    }
    __device__ __forceinline__ unsigned at(unsigned step, int r) const {  // of a thread's r-th vector
        return step + (unsigned(r) * THREADS + threadIdx.x) * VECTOR;
    }
    __device__ __forceinline__ int number(unsigned at) const { return int(min(end - at, unsigned(VECTOR))); }
};

template <bool WIDE, int COUNT>
__device__ __forceinline__ void load(Vector (&batch)[COUNT], const IO* from, const Slice& slice, unsigned step) {
#pragma unroll
    for (int r = 0; r < COUNT; ++r) {
        unsigned at = slice.at(step, r);
        if (at < slice.end) batch[r] = read<WIDE>(from + at, slice.number(at));
    }
}

template <bool WIDE> __device__ __forceinline__ Moments moments_of(const IO* from, const Slice& slice) {
    const float pivot = to_float(from[0]);
    Moments moments;
    for (unsigned step = slice.first; step < slice.end; step += STEP<BATCH<WIDE>>) {
        Vector batch[BATCH<WIDE>];
        load<WIDE>(batch, from, slice, step);
#pragma unroll
        for (int r = 0; r < BATCH<WIDE>; ++r) {
            unsigned at = slice.at(step, r);
            if (at < slice.end) moments.add<WIDE>(batch[r], pivot, slice.number(at));
        }
    }
    return moments;
}

// grid: slices of all groups. statistics: mean, relative to the group's first element, and squared deviations of each.
extern "C" __global__ void __launch_bounds__(THREADS, 4)
group_norm_silu_statistics(const IO* __restrict__ x, float2* __restrict__ statistics, int64 length, int64 slices, int64 tiles) {
    let_next_launch_start();
    const Slice slice(blockIdx.x, slices, tiles, length);
    const IO* from = x + slice.group * length;
    const bool wide = length % VECTOR == 0 && aligned<16>(x);
    const Moments moments = wide ? moments_of<true>(from, slice) : moments_of<false>(from, slice);
    const float2 found = block_moments(moments, float(slice.end - slice.first));
    if (threadIdx.x == 0) statistics[blockIdx.x] = found;
}

// Mean and variance of the group from those of its slices, in every warp on its own.
__device__ __forceinline__ float2 merged(const float2* statistics, int64 slices, float per_slice, float length) {
    const int lane = threadIdx.x & 31;
    auto count = [&](int i) { return min(per_slice, length - float(i) * per_slice); };
    float sum = 0.0f, squares = 0.0f;
    for (int i = lane; i < slices; i += 32) sum += count(i) * statistics[i].x;
    const float mean = warp_sum(sum) / length;
    for (int i = lane; i < slices; i += 32) {
        const float2 part = statistics[i];
        const float d = part.x - mean;
        squares += fmaf(count(i) * d, d, part.y);
    }
    return make_float2(mean, warp_sum(squares) / length);
}

template <bool WIDE, class Merge>
__device__ __forceinline__ void apply(const IO* from, IO* to, const Slice& slice, Finish& finish, Merge merge) {
    constexpr int COUNT = BATCH<WIDE>;
    const unsigned count = (slice.end - slice.first + STEP<COUNT> - 1) / STEP<COUNT>;
    for (unsigned left = count; left > 0; --left) {
        const unsigned step = slice.first + (left - 1) * STEP<COUNT>;
        Vector batch[COUNT];
        load<WIDE>(batch, from, slice, step);
        if (left == count) merge();  // while the first reads are under way
#pragma unroll
        for (int r = 0; r < COUNT; ++r) {
            unsigned at = slice.at(step, r);
            if (at < slice.end) write<WIDE>(to + at, finish.of<WIDE>(batch[r], at, slice.number(at)), slice.number(at));
        }
    }
}

// grid: the same slices, from the last to the first, and in each of them the tiles.
extern "C" __global__ void __launch_bounds__(THREADS, 2)
group_norm_silu_apply(const IO* __restrict__ x, const IO* __restrict__ scale, const IO* __restrict__ bias,
                      const float2* statistics, IO* __restrict__ y, int64 length, int64 spatial, int64 groups,
                      int64 slices, int64 tiles, float epsilon) {
    const Slice slice(gridDim.x - 1 - blockIdx.x, slices, tiles, length);
    const IO* from = x + slice.group * length;
    IO* to = y + slice.group * length;
    const int64 channel = Split(unsigned(slice.group), groups).rest * int64(unsigned(length) / unsigned(spatial));
    Finish finish{to_float(from[0]), 0.0f, 0.0f, scale + channel, bias + channel, unsigned(spatial)};
    auto merge = [&] {
        wait_for_launch_before();
        const float2 found = merged(statistics + slice.group * slices, slices, float(tiles) * float(TILE), float(length));
        finish.mean = found.x;
        finish.rstd = rsqrtf(found.y + epsilon);
    };
    if (spatial % VECTOR == 0 && aligned<16>(x) && aligned<16>(y)) apply<true>(from, to, slice, finish, merge);
    else apply<false>(from, to, slice, finish, merge);
}
#endif
