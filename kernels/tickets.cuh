// Blocks of one kernel that wait for each other, however few of them fit on the GPU at once.
//
// The number of a block says nothing of when it runs, so a block takes a ticket when it starts. Where an item of work needs only
// items with lower tickets, their blocks run already and, by the same rule, get done: waiting for them always ends. The counters and
// flags are unsigned ints in device memory, 0 when the kernel starts. Blocks have one dimension; all their threads make each call.
//
// A block's results reach another so: all threads write, __syncthreads, thread 0 fences and then sets a counter or flag; there,
// thread 0 sees it, fences, __syncthreads, all threads read, by `fresh`. __syncthreads orders the block's threads, and the fence of
// one thread covers what that thread has seen of the others.
#pragma once

// The next number, 0 at first, the same in all threads of the block.
__device__ __forceinline__ unsigned take_ticket(unsigned* counter) {
    __shared__ unsigned ticket;
    __syncthreads();  // the ticket before may still be read
    if (threadIdx.x == 0) ticket = atomicAdd(counter, 1u);
    __syncthreads();
    return ticket;
}

// Says that the block's results are written; true in the last of `count` blocks, which then sees the results of all of them.
__device__ __forceinline__ bool finished_last(unsigned* done, unsigned count) {
    __shared__ bool last;
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        last = atomicAdd(done, 1u) == count - 1;
        __threadfence();
    }
    __syncthreads();
    return last;
}

// Lets the blocks go on that wait for the flag: what this block wrote so far is there.
__device__ __forceinline__ void publish(unsigned* flag) {
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        atomicExch(flag, 1u);
    }
}

// Waits until the flag is published.
__device__ __forceinline__ void wait_for(const unsigned* flag) {
    if (threadIdx.x == 0) {
        while (*static_cast<const volatile unsigned*>(flag) == 0) __nanosleep(20);
        __threadfence();
    }
    __syncthreads();
}

// Reads what another block of this kernel wrote: 4, 8 or 16 bytes from L2, since L1 and the read-only path may hold what was there
// before. `volatile` and "memory" keep the compiler from moving it before the wait, which not every __ldcg does.
template <typename T> __device__ __forceinline__ T fresh(const T* from) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16, "4, 8 or 16 bytes");
    const size_t address = __cvta_generic_to_global(from);
    T result;
    unsigned* word = reinterpret_cast<unsigned*>(&result);
    if constexpr (sizeof(T) == 4) {
        asm volatile("ld.global.cg.u32 %0, [%1];" : "=r"(word[0]) : "l"(address) : "memory");
    } else if constexpr (sizeof(T) == 8) {
        asm volatile("ld.global.cg.v2.u32 {%0, %1}, [%2];" : "=r"(word[0]), "=r"(word[1]) : "l"(address) : "memory");
    } else {
        asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(word[0]), "=r"(word[1]), "=r"(word[2]), "=r"(word[3])
                     : "l"(address)
                     : "memory");
    }
    return result;
}
