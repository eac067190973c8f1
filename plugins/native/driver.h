// The CUDA driver, opened when the first kernel is loaded, and the kernels of this process.
#pragma once
#include "fields.h"
#include <dlfcn.h>
#include <mutex>

namespace {

constexpr int64_t SHARED_UNASKED = 32 * 1024; // bytes of shared memory that every kernel may use without asking

using Pointer = void*;  // the driver's handles
enum { COMPUTE_MAJOR = 75, COMPUTE_MINOR = 76, SHARED_OPTIN = 97 };
enum { FUNCTION_SHARED = 1, FUNCTION_MAX_DYNAMIC_SHARED = 8 };
constexpr int OVERLAP_ARCH = 90;  // of the image: an older one does not wait by itself

// CUlaunchAttribute and CUlaunchConfig of cuda.h. id 6: the launch may start before the one before it has ended.
struct alignas(8) LaunchAttribute {
    int id;
    char padding[4];
    int value;
    char rest[60];
};
struct LaunchConfig {
    unsigned grid[3], block[3], shared;
    void* stream;
    LaunchAttribute const* attributes;
    unsigned count;
};
static_assert(sizeof(LaunchAttribute) == 72 && sizeof(LaunchConfig) == 56);
constexpr LaunchAttribute OVERLAPPING{6, {}, 1, {}};

struct Driver {
    int (*text)(int, char const**);
    int (*current)(Pointer*);
    int (*identity)(Pointer, unsigned long long*);  // null in drivers before CUDA 12
    int (*device)(int*);
    int (*attribute)(int*, int, int);
    int (*load)(Pointer*, void const*);
    int (*function)(Pointer*, Pointer, char const*);
    int (*functionAttribute)(int*, int, Pointer);
    int (*setFunctionAttribute)(Pointer, int, int);
    int (*launch)(Pointer, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Pointer, void**, void**);
    int (*launchAsTold)(LaunchConfig const*, Pointer, void**, void**);  // null in drivers before CUDA 11.8

    Driver() {
        void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
        if (library == nullptr) throw Fault("there is no NVIDIA driver on this machine: libcuda.so.1 does not open");
        auto const find = [&](auto& place, char const* name, bool needed = true) {
            void* const symbol = dlsym(library, name);
            if (symbol == nullptr && needed) throw Fault(std::string("the CUDA driver is too old: it has no ") + name);
            std::memcpy(&place, &symbol, sizeof symbol);
        };
        find(text, "cuGetErrorString");
        find(current, "cuCtxGetCurrent");
        find(identity, "cuCtxGetId", false);
        find(device, "cuCtxGetDevice");
        find(attribute, "cuDeviceGetAttribute");
        find(load, "cuModuleLoadData");
        find(function, "cuModuleGetFunction");
        find(functionAttribute, "cuFuncGetAttribute");
        find(setFunctionAttribute, "cuFuncSetAttribute");
        find(launch, "cuLaunchKernel");
        find(launchAsTold, "cuLaunchKernelEx", false);
    }

    void check(int status, char const* what) const {
        char const* reason = nullptr;
        if (status == 0) return;
        if (text(status, &reason) != 0 || reason == nullptr) reason = "unknown error";
        throw Fault(std::string("the CUDA driver reports: ") + reason + " (" + std::to_string(status) + ", " + what + ")");
    }

    int ask(int what) const {
        int here = 0, value = 0;
        check(device(&here), "device");
        check(attribute(&value, what, here), "attribute");
        return value;
    }
};

Driver const& driver() {
    static Driver const opened;
    return opened;
}

struct Kernel {
    Pointer function = nullptr;
    int64_t allowed = SHARED_UNASKED;  // bytes of dynamic shared memory; only ever raised, since others use the kernel too
};

struct Image {
    std::string const* code;
    int arch;
};

// The image for this architecture: its own cubin, one of the same major version and a lower minor one, else PTX.
Image chooseImage(Program const& program, int arch) {
    std::string const* best = nullptr;
    std::string names;
    for (bool const ptx : {false, true}) {
        int highest = -1;
        for (auto const& [name, image] : program.images) {
            std::string const prefix = ptx ? "compute_" : "sm_";
            if (name.rfind(prefix, 0) != 0) continue;
            int const number = static_cast<int>(integer(name.substr(prefix.size())));
            names += (names.empty() ? "" : ", ") + name;
            if (number <= highest || number > arch || (!ptx && number / 10 != arch / 10)) continue;
            highest = number;
            best = &image;
        }
        if (best != nullptr) return {best, highest};
    }
    std::string const here = "sm_" + std::to_string(arch);
    throw Fault(
        "the plan's kernels were compiled for " + names + ", this GPU is " + here + "; build the plan again with --target " + here);
}

// Kernels of this process: by context, image and name. They stay loaded, since a CUDA graph may outlive its engine.
std::mutex loading;

Kernel& loadKernel(std::string const& image, std::string const& name) {
    static std::map<std::pair<unsigned long long, std::string>, Pointer> modules;
    static std::map<std::pair<Pointer, std::string>, Kernel> kernels;
    Driver const& cuda = driver();
    Pointer context = nullptr;
    cuda.check(cuda.current(&context), "context");
    if (context == nullptr) throw Fault("this thread has no current CUDA context; call cudaSetDevice before TensorRT");
    auto id = reinterpret_cast<unsigned long long>(context);
    if (cuda.identity != nullptr) cuda.check(cuda.identity(context, &id), "context");
    Pointer& module = modules[{id, image}];
    if (module == nullptr) cuda.check(cuda.load(&module, image.c_str()), "loading a kernel");
    Kernel& kernel = kernels[{module, name}];
    if (kernel.function == nullptr) cuda.check(cuda.function(&kernel.function, module, name.c_str()), name.c_str());
    return kernel;
}

// Lets the kernel use so much dynamic shared memory, or as much as a block of this GPU can have; returns how much.
int64_t allowShared(Kernel& kernel, int64_t wanted) {
    if (wanted <= SHARED_UNASKED) return wanted;
    Driver const& cuda = driver();
    int declared = 0;
    cuda.check(cuda.functionAttribute(&declared, FUNCTION_SHARED, kernel.function), "shared memory");
    int64_t const given = std::min<int64_t>(wanted, cuda.ask(SHARED_OPTIN) - declared);
    if (given > kernel.allowed) {
        int const bytes = static_cast<int>(given);
        cuda.check(cuda.setFunctionAttribute(kernel.function, FUNCTION_MAX_DYNAMIC_SHARED, bytes), "shared memory");
        kernel.allowed = given;
    }
    return given;
}

}  // namespace
