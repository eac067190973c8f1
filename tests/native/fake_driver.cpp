// A CUDA driver that does nothing and prints what it is asked, so that the C++ library runs where there is no GPU.
// -DARCH=86: the compute capability that it claims. An image is text for it: a line with each kernel's name and how many
// arguments it has.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#ifndef ARCH
#define ARCH 86
#endif

namespace {
struct Function {
    char const* name;
    int arguments;
};
uintptr_t memory = 0x100000;
int stream_ = 0;
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
    *stream = &stream_;
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
    *module = const_cast<void*>(image);
    std::printf("load %.*s\n", static_cast<int>(std::strcspn(static_cast<char const*>(image), "\n")), static_cast<char const*>(image));
    return 0;
}
int cuModuleGetFunction(void** function, void* module, char const* name) {
    size_t const length = std::strlen(name);
    for (char const* line = static_cast<char const*>(module); *line != '\0'; line += std::strcspn(line, "\n"), line += *line != '\0') {
        if (std::strncmp(line, name, length) != 0 || line[length] != ' ') continue;
        *function = new Function{strdup(name), std::atoi(line + length)};
        return 0;
    }
    return 500;  // not found
}
int cuFuncGetAttribute(int* value, int, void*) {
    *value = 1024;
    return 0;
}
int cuFuncSetAttribute(void* function, int attribute, int value) {
    std::printf("attribute %s %d %d\n", static_cast<Function*>(function)->name, attribute, value);
    return 0;
}
// Arguments are printed as 64-bit words.
static int print(
    char const* how, void* function, unsigned x, unsigned y, unsigned z, unsigned a, unsigned b, unsigned c, unsigned shared,
    void* stream, void** values) {
    char const* const name = static_cast<Function*>(function)->name;
    std::printf("%s %s grid %u %u %u block %u %u %u shared %u stream %d", how, name, x, y, z, a, b, c, shared, stream == &stream_);
    for (int i = 0; i < static_cast<Function*>(function)->arguments; ++i) {
        uint64_t word = 0;
        std::memcpy(&word, values[i], sizeof word);
        std::printf(" %llx", static_cast<unsigned long long>(word));
    }
    std::printf("\n");
    return std::strcmp(name, "failing") == 0 ? 700 : 0;
}
int cuLaunchKernel(
    void* function, unsigned x, unsigned y, unsigned z, unsigned a, unsigned b, unsigned c, unsigned shared, void* stream,
    void** values, void**) {
    return print("launch", function, x, y, z, a, b, c, shared, stream, values);
}
// As cuda.h has them.
struct CUlaunchAttribute {
    int id;
    char pad[8 - sizeof(int)];
    union {
        char pad[64];
        int programmaticStreamSerializationAllowed;
    } value;
};
struct CUlaunchConfig {
    unsigned gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes;
    void* hStream;
    CUlaunchAttribute* attrs;
    unsigned numAttrs;
};
int cuLaunchKernelEx(CUlaunchConfig const* c, void* function, void** values, void**) {
    bool const overlaps = c->numAttrs == 1 && c->attrs[0].id == 6 && c->attrs[0].value.programmaticStreamSerializationAllowed == 1;
    return print(
        overlaps ? "overlap" : "told", function, c->gridDimX, c->gridDimY, c->gridDimZ, c->blockDimX, c->blockDimY, c->blockDimZ,
        c->sharedMemBytes, c->hStream, values);
}
}
