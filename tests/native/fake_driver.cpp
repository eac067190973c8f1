// A CUDA driver that does nothing and prints what it is asked, so that the C++ library runs where there is no GPU.
// -DARCH=86: the compute capability that it claims.
#include <cstdint>
#include <cstdio>
#include <cstring>

#ifndef ARCH
#define ARCH 86
#endif

namespace {
struct Module {
    char const* image;
};
struct Function {
    char name[64];
};
uintptr_t memory = 0x100000;
int arguments = 0;
}  // namespace

extern "C" {
int cuInit(unsigned) { return 0; }
int cuDeviceGet(int* device, int) { return *device = 0; }
int cuDevicePrimaryCtxRetain(void** context, int) {
    *context = &memory;
    return 0;
}
int cuCtxSetCurrent(void*) { return 0; }
int cuCtxGetCurrent(void** context) {
    *context = &memory;
    return 0;
}
int cuCtxGetDevice(int* device) { return *device = 0; }
int cuStreamCreate(void** stream, unsigned) {
    *stream = &arguments;
    return 0;
}
int cuStreamSynchronize(void*) { return 0; }
int cuMemAlloc_v2(unsigned long long* address, size_t) {
    *address = memory;
    memory += 0x100000;
    return 0;
}
int cuGetErrorString(int, char const** text) {
    *text = "planted";
    return 0;
}
int cuDeviceGetAttribute(int* value, int attribute, int) {
    *value = attribute == 75 ? ARCH / 10 : attribute == 76 ? ARCH % 10 : attribute == 97 ? 101376 : -1;
    return 0;
}
int cuModuleLoadData(void** module, void const* image) {
    *module = new Module{static_cast<char const*>(image)};
    std::printf("load %.12s\n", static_cast<char const*>(image));
    return 0;
}
int cuModuleGetFunction(void** function, void*, char const* name) {
    auto const made = new Function{};
    std::strncpy(made->name, name, sizeof made->name - 1);
    *function = made;
    return 0;
}
int cuFuncGetAttribute(int* value, int, void*) {
    *value = 1024;
    return 0;
}
int cuFuncSetAttribute(void* function, int attribute, int value) {
    std::printf("attribute %s %d %d\n", static_cast<Function*>(function)->name, attribute, value);
    return 0;
}
// Arguments: as 64-bit words, until the kernel's name tells no more of them: its last digits say how many it has.
int cuLaunchKernel(
    void* function, unsigned x, unsigned y, unsigned z, unsigned a, unsigned b, unsigned c, unsigned shared, void* stream,
    void** values, void**) {
    char const* const name = static_cast<Function*>(function)->name;
    std::printf("launch %s grid %u %u %u block %u %u %u shared %u stream %d", name, x, y, z, a, b, c, shared, stream == &arguments);
    int count = 0;
    for (char const* at = name; *at != '\0'; ++at) count = *at >= '0' && *at <= '9' ? 10 * count + *at - '0' : 0;
    for (int i = 0; i < count; ++i) {
        uint64_t word = 0;
        std::memcpy(&word, values[i], sizeof word);
        std::printf(" %llx", static_cast<unsigned long long>(word));
    }
    std::printf("\n");
    return std::strcmp(name, "failing") == 0 ? 700 : 0;
}
}
