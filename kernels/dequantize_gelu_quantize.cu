// y = saturate(round(GELU(x * x_scale) / y_scale)), int8 in and out.
//
// int8 has 256 values: a block works out the result of each, with the library's exact functions, and then only looks up. The
// table in shared memory has a column for each lane of a warp, so that 32 lanes read 32 different banks whatever they look
// up (32 KB). The first loads from memory are under way while it is filled.
//
// -D THREADS: of a block, 256 or more. -D LOADS: 16-byte loads that a thread has in flight. -D TANH: 1 for the tanh GELU.
// grid: at most one block a tile of THREADS * LOADS * 16 elements; with fewer, a block goes on to further tiles.
#include "common.cuh"

constexpr int ENTRIES = 256, LANES = 32, BYTES = 16;
constexpr int EACH = ENTRIES * LANES / THREADS;  // entries that a warp fills in; each of its lanes works out one of them
static_assert(EACH <= LANES && LANES % EACH == 0, "a warp has a lane for each of its entries");

__device__ __forceinline__ float exact_gelu(float v) {
#if TANH
    return v / (1.0f + expf(-1.595769122f * fmaf(0.044715f * v * v, v, v)));  // 1 + tanh(u) = 2 / (1 + exp(-2 u))
#else
    return 0.5f * v * erfcf(-0.7071067812f * v);
#endif
}

__device__ __forceinline__ void fill(unsigned* column, float x_scale, float y_scale) {
    int first = threadIdx.x / LANES * EACH, lane = threadIdx.x % LANES;
    float gelu = exact_gelu(float(int8(first + lane % EACH)) * x_scale);
    unsigned mine = static_cast<unsigned char>(from_float<int8>(gelu / y_scale));
#pragma unroll
    for (int i = 0; i < EACH; ++i) column[(first + i) * LANES] = __shfl_sync(0xffffffffu, mine, i);
}

// The results of the four int8 in a word.
__device__ __forceinline__ unsigned look_up(const unsigned* column, unsigned word) {
    const char* base = reinterpret_cast<const char*>(column);
    constexpr unsigned ROW = LANES * sizeof(unsigned), MASK = 255 * ROW;  // ROW is 128: byte k times 128 is a shift by 8 k - 7
    unsigned y0 = *reinterpret_cast<const unsigned*>(base + (word << 7 & MASK));
    unsigned y1 = *reinterpret_cast<const unsigned*>(base + (word >> 1 & MASK));
    unsigned y2 = *reinterpret_cast<const unsigned*>(base + (word >> 9 & MASK));
    unsigned y3 = *reinterpret_cast<const unsigned*>(base + (word >> 17 & MASK));
    return __byte_perm(__byte_perm(y0, y1, 0x0040), __byte_perm(y2, y3, 0x0040), 0x5410);
}

__device__ __forceinline__ uint4 look_up(const unsigned* column, uint4 v) {
    return {look_up(column, v.x), look_up(column, v.y), look_up(column, v.z), look_up(column, v.w)};
}

extern "C" __global__ void __launch_bounds__(THREADS)
dequantize_gelu_quantize(const IO* __restrict__ x, OUT* __restrict__ y, int64 size, float x_scale, float y_scale) {
    __shared__ unsigned table[ENTRIES * LANES];
    unsigned* column = table + threadIdx.x % LANES;
    constexpr int STEP = THREADS * BYTES;
    constexpr int64 TILE = int64(STEP) * LOADS;
    const bool wide = aligned<BYTES>(x) && aligned<BYTES>(y);
    bool filled = false;
    for (int64 tile = blockIdx.x * TILE; tile < size; tile += gridDim.x * TILE) {
        int64 at = tile + int(threadIdx.x) * BYTES;
        uint4 some[LOADS];
#pragma unroll
        for (int i = 0; i < LOADS; ++i)
            if (wide && at + i * STEP + BYTES <= size) some[i] = *reinterpret_cast<const uint4*>(x + at + i * STEP);
        if (!filled) {  // the same in all threads of the block
            fill(column, x_scale, y_scale);
            __syncthreads();
            filled = true;
        }
        if (wide && tile + TILE <= size) {
#pragma unroll
            for (int i = 0; i < LOADS; ++i) *reinterpret_cast<uint4*>(y + at + i * STEP) = look_up(column, some[i]);
            continue;
        }
#pragma unroll
        for (int i = 0; i < LOADS; ++i) {
            int64 from = at + i * STEP, to = min(from + BYTES, size);
            if (wide && from + BYTES <= size) {
                *reinterpret_cast<uint4*>(y + from) = look_up(column, some[i]);
            } else {
#pragma unroll 1
                for (int64 j = from; j < to; ++j) y[j] = int8(column[(x[j] & 255) * LANES]);
            }
        }
    }
}
