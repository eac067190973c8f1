// A program without Python that loads the C++ plugin library and a plan, and executes it once:
//
//     loader LIBTENSORRT LIBPLUGINS PLAN NAME=SIZES:FILE... -- NAME=BYTES:FILE...
//
// Inputs, with x between their sizes, are read from files; outputs of so many bytes are written to files. Your own program includes
// NvInfer.h instead of naming places in tables of virtual functions; this one is compiled where no header of TensorRT's is.
#include "../../plugins/native/plugin_abi.h"
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

struct Logger : trtconvert_abi::IVersionedInterface {
    trtconvert_abi::InterfaceInfo getInterfaceInfo() const noexcept override { return {"ILogger", 1, 0}; }
    virtual void log(int32_t severity, char const* text) noexcept {
        if (severity <= 2) std::fprintf(stderr, "[%d] %s\n", severity, text);
    }
};

// Tells whether it was called by whom it was given to.
struct Recorder : trtconvert_abi::IVersionedInterface {
    bool counted = false;
    trtconvert_abi::InterfaceInfo getInterfaceInfo() const noexcept override { return {"IErrorRecorder", 1, 0}; }
    virtual int32_t getNbErrors() const noexcept { return 0; }
    virtual int32_t getErrorCode(int32_t) const noexcept { return 0; }
    virtual char const* getErrorDesc(int32_t) const noexcept { return ""; }
    virtual bool hasOverflowed() const noexcept { return false; }
    virtual void clear() noexcept {}
    virtual bool reportError(int32_t, char const*) noexcept { return false; }
    virtual int32_t incRefCount() noexcept { return counted = true; }
    virtual int32_t decRefCount() noexcept { return 0; }
};

void need(bool good, char const* what) {
    if (!good) std::fprintf(stderr, "failed: %s\n", what), std::exit(1);
}

template <class Function>
Function symbol(void* from, char const* name) {
    void* const found = dlsym(from, name);
    need(found != nullptr, name);
    return reinterpret_cast<Function>(found);
}

// Calls the virtual function at that place. TensorRT's objects hold, behind their own table, a pointer to what does the work.
template <class Result, class... Arguments>
Result at(void* object, int place, Arguments... arguments) {
    return (*static_cast<Result (***)(void*, Arguments...)>(object))[place](object, arguments...);
}
void* inside(void* object) {
    return static_cast<void**>(object)[1];
}

std::string contents(std::string const& path) {
    std::ifstream file(path, std::ios::binary);
    need(file.good(), path.c_str());
    return {std::istreambuf_iterator<char>(file), {}};
}

int main(int argc, char** argv) {
    need(argc > 4, "arguments");
    void* const cuda = dlopen("libcuda.so.1", RTLD_NOW);
    need(cuda != nullptr, "libcuda.so.1");
    int device = 0;
    void *context = nullptr, *stream = nullptr;
    auto const ok = [](int status) { need(status == 0, "CUDA"); };
    ok(symbol<int (*)(unsigned)>(cuda, "cuInit")(0));
    ok(symbol<int (*)(int*, int)>(cuda, "cuDeviceGet")(&device, 0));
    ok(symbol<int (*)(void**, int)>(cuda, "cuDevicePrimaryCtxRetain")(&context, device));
    ok(symbol<int (*)(void*)>(cuda, "cuCtxSetCurrent")(context));
    ok(symbol<int (*)(void**, unsigned)>(cuda, "cuStreamCreate")(&stream, 1));
    auto const allocate = [&](size_t bytes) {
        unsigned long long address = 0;
        ok(symbol<int (*)(unsigned long long*, size_t)>(cuda, "cuMemAlloc_v2")(&address, bytes > 0 ? bytes : 1));
        return reinterpret_cast<void*>(address);
    };

    void* const tensorrt = dlopen(argv[1], RTLD_NOW);
    need(tensorrt != nullptr, dlerror());
    static Logger logger;
    void* const plugins = symbol<void* (*)()>(tensorrt, "getPluginRegistry")();
    need(at<void*>(plugins, 6, argv[2]) != nullptr, "loadLibrary");
    int const version = symbol<int (*)()>(tensorrt, "getInferLibVersion")();
    void* const runtime = symbol<void* (*)(void*, int)>(tensorrt, "createInferRuntime_INTERNAL")(&logger, version);
    need(runtime != nullptr, "createInferRuntime");
    std::string const plan = contents(argv[3]);
    void* const engine = at<void*>(inside(runtime), 3, static_cast<void const*>(plan.data()), plan.size());
    need(engine != nullptr, "deserializeCudaEngine");
    void* const execution = at<void*>(inside(engine), 5, 0);
    need(execution != nullptr, "createExecutionContext");
    void* const run = inside(execution);
    // TensorRT 10 has one function more than 11 before setErrorRecorder, and before all that is called below.
    static Recorder recorder;
    at<void*>(run, 13, static_cast<void*>(&recorder));
    int const more = recorder.counted ? 0 : 1;
    if (recorder.counted) at<void*>(run, 13, static_cast<void*>(nullptr));

    struct Output {
        std::string file;
        void* memory;
        size_t bytes;
    };
    std::vector<Output> outputs;
    bool input = true;
    for (int i = 4; i < argc; ++i) {
        std::string const text = argv[i];
        if (text == "--") {
            input = false;
            continue;
        }
        size_t const equals = text.find('='), colon = text.find(':');
        std::string const name = text.substr(0, equals), file = text.substr(colon + 1);
        std::string const sizes = text.substr(equals + 1, colon - equals - 1);
        if (!input) {
            size_t const bytes = std::stoull(sizes);
            outputs.push_back({file, allocate(bytes), bytes});
            need(at<bool>(run, 23 + more, name.c_str(), outputs.back().memory), "setTensorAddress");
            continue;
        }
        trtconvert_abi::Dims dims{};
        for (size_t start = 0; start <= sizes.size(); start = sizes.find('x', start) == std::string::npos ? sizes.size() + 1 : sizes.find('x', start) + 1)
            dims.d[dims.nbDims++] = std::stoll(sizes.substr(start));
        std::string const data = contents(file);
        void* const memory = allocate(data.size());
        ok(symbol<int (*)(void*, void const*, size_t)>(cuda, "cuMemcpyHtoD_v2")(memory, data.data(), data.size()));
        need(at<bool>(run, 20 + more, name.c_str(), static_cast<trtconvert_abi::Dims const*>(&dims)), "setInputShape");
        need(at<bool>(run, 23 + more, name.c_str(), memory), "setTensorAddress");
    }
    need(at<bool>(run, 36 + more, stream), "enqueueV3");
    ok(symbol<int (*)(void*)>(cuda, "cuStreamSynchronize")(stream));
    for (Output const& output : outputs) {
        std::string data(output.bytes, '\0');
        ok(symbol<int (*)(void*, void*, size_t)>(cuda, "cuMemcpyDtoH_v2")(&data[0], output.memory, data.size()));
        std::ofstream(output.file, std::ios::binary).write(data.data(), static_cast<std::streamsize>(data.size()));
    }
    std::printf("executed with TensorRT %d, %s\n", version, argv[2]);
    return 0;
}
