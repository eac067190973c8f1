// y[:, i] = the index of the i-th element of x that is not zero, in row-major order. x has RANK dimensions (-D RANK) and
// `size` elements; y is [RANK, n]. Three launches, without atomics, so that the order is always the same:
//
// nonzero_count: how many elements of each block's share are not zero.
// nonzero_scan:  where each block's elements start in y, and n.
// nonzero_write: the indices.
#include "common.cuh"

constexpr int WARPS = 8;    // of a counting or writing block
constexpr int ROUNDS = 16;  // elements a thread looks at; 32 neighbours of a warp at a time
constexpr int SCAN_WARPS = 32;

template <typename T> __device__ __forceinline__ bool is_set(T v) { return v != T(0); }
template <> __device__ __forceinline__ bool is_set(__half v) { return __half2float(v) != 0.0f; }
template <> __device__ __forceinline__ bool is_set(__nv_bfloat16 v) { return __bfloat162float(v) != 0.0f; }

// The first element of this thread's warp: warps take neighbouring runs of 32 * ROUNDS elements.
__device__ __forceinline__ int64 warp_start() {
    return (int64(blockIdx.x) * WARPS + threadIdx.x / 32) * (32 * ROUNDS);
}

// How many of the warp's elements are not zero. votes: in lane r a bit for each of the 32 elements of round r.
__device__ __forceinline__ int vote(const IO* __restrict__ x, int64 size, unsigned& votes) {
    int lane = threadIdx.x % 32;
    int64 start = warp_start() + lane;
    bool set[ROUNDS];
#pragma unroll
    for (int r = 0; r < ROUNDS; ++r) set[r] = start + r * 32 < size && is_set(x[start + r * 32]);
    int total = 0;
    votes = 0;
#pragma unroll
    for (int r = 0; r < ROUNDS; ++r) {
        unsigned round = __ballot_sync(0xffffffffu, set[r]);
        total += __popc(round);
        if (lane == r) votes = round;
    }
    return total;
}

// grid: one block per WARPS * 32 * ROUNDS elements.
extern "C" __global__ void __launch_bounds__(WARPS * 32) nonzero_count(const IO* __restrict__ x, int64* __restrict__ counts, int64 size) {
    __shared__ int parts[WARPS];
    unsigned votes;
    int total = vote(x, size, votes);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = total;
    __syncthreads();
    if (threadIdx.x == 0) {
        int sum = 0;
        for (int w = 0; w < WARPS; ++w) sum += parts[w];
        counts[blockIdx.x] = sum;
    }
}

// grid: one block of SCAN_WARPS * 32 threads. counts become the sums of those before; n the sum of all, 0 if there are none.
extern "C" __global__ void __launch_bounds__(SCAN_WARPS * 32) nonzero_scan(int64* __restrict__ counts, int64* __restrict__ n, int64 blocks) {
    __shared__ int64 parts[SCAN_WARPS];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int64 before = 0;  // the sum of the chunks that are done
    for (int64 chunk = 0; chunk < blocks; chunk += SCAN_WARPS * 32) {
        int64 i = chunk + threadIdx.x;
        int64 own = i < blocks ? counts[i] : 0, sum = own;
#pragma unroll
        for (int step = 1; step < 32; step <<= 1) {
            int64 other = __shfl_up_sync(0xffffffffu, sum, step);
            if (lane >= step) sum += other;
        }
        if (lane == 31) parts[warp] = sum;
        __syncthreads();
        int64 chunk_sum = 0;
        for (int w = 0; w < SCAN_WARPS; ++w) {
            if (w < warp) sum += parts[w];
            chunk_sum += parts[w];
        }
        if (i < blocks) counts[i] = before + sum - own;
        before += chunk_sum;
        __syncthreads();  // parts are written again in the next chunk
    }
    if (threadIdx.x == 0) *n = before;
}

// Index `at` of x, split into its RANK coordinates, to column `i` of y. Index: unsigned where it is wide enough.
template <typename Index>
__device__ __forceinline__ void write_index(int64* __restrict__ y, int64 n, int64 i, int64 at, const int64 (&dims)[8]) {
    Index rest = Index(at);
#pragma unroll
    for (int r = RANK - 1; r > 0; --r) {
        Index size = Index(dims[8 - RANK + r]), next = rest / size;
        y[r * n + i] = int64(rest - next * size);
        rest = next;
    }
    if (RANK > 0) y[i] = int64(rest);
}

// grid: as for nonzero_count. d0 ... d7: dimensions of x, the RANK last ones.
extern "C" __global__ void __launch_bounds__(WARPS * 32)
nonzero_write(const IO* __restrict__ x, const int64* __restrict__ starts, const int64* __restrict__ count, int64* __restrict__ y,
              int64 size, int64 d0, int64 d1, int64 d2, int64 d3, int64 d4, int64 d5, int64 d6, int64 d7) {
    __shared__ int parts[WARPS];
    const int64 dims[8] = {d0, d1, d2, d3, d4, d5, d6, d7};
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    unsigned votes;
    int total = vote(x, size, votes);
    if (lane == 0) parts[warp] = total;
    __syncthreads();
    int64 n = *count, to = starts[blockIdx.x], from = warp_start() + lane;
    for (int w = 0; w < warp; ++w) to += parts[w];
    const bool narrow = size <= 0xffffffffLL;
#pragma unroll 1
    for (int r = 0; r < ROUNDS; ++r) {
        unsigned round = __shfl_sync(0xffffffffu, votes, r);
        if (round >> lane & 1) {
            int64 i = to + __popc(round & ((1u << lane) - 1));
            if (narrow) write_index<unsigned>(y, n, i, from + r * 32, dims);
            else write_index<int64>(y, n, i, from + r * 32, dims);
        }
        to += __popc(round);
    }
}
