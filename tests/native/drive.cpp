// Makes a plugin of fields that lie in a file, as TensorRT does when it loads a plan, and executes it through the C++ library:
//
//     drive LIBRARY PLUGIN FIELDS TIMES TENSOR...
//
// FIELDS: "name size\n" and so many bytes, again and again. TENSOR: in, out or work, a colon, sizes with x between them, a
// colon, and the tensor's bytes, such as in:2x7x192:5376. TIMES: 0 runs it once; more prints the median host time of an enqueue in us.
// TensorRT is not needed; the CUDA driver is the real one, or fake_driver.cpp's, which prints what it is asked.
#include "../../plugins/native/plugin_abi.h"
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

using namespace trtconvert_abi;

struct Logger {  // as TensorRT 10 has it, its function comes first; so with its finder
    virtual void log(int32_t, char const* text) { std::printf("log %s\n", text); }
};
struct Finder {
    virtual void* find() { return &logger; }
    Logger logger;
};

void* library(char const* path) {
    void* const opened = dlopen(path, RTLD_NOW);
    if (opened == nullptr) std::printf("%s\n", dlerror()), std::exit(2);
    return opened;
}

template <class Function>
Function symbol(void* from, char const* name) {
    return reinterpret_cast<Function>(dlsym(from, name));
}

void cuda(int status) {
    if (status != 0) std::printf("CUDA error %d\n", status), std::exit(2);
}

IPluginCreatorV3One* creator(void* from, std::string const& name) {
    int32_t count = 0;
    auto const all = symbol<IPluginCreatorInterface* const* (*)(int32_t&)>(from, "getCreators")(count);
    for (int32_t i = 0; i < count; ++i) {
        auto const found = static_cast<IPluginCreatorV3One*>(all[i]);
        if (name == found->getPluginName()) return found;
    }
    std::printf("no creator %s\n", name.c_str());
    std::exit(2);
}

int main(int argc, char** argv) {
    if (argc < 5) return 2;
    void* const driver = library("libcuda.so.1");
    void *context = nullptr, *stream = nullptr;
    int device = 0;
    cuda(symbol<int (*)(unsigned)>(driver, "cuInit")(0));
    cuda(symbol<int (*)(int*, int)>(driver, "cuDeviceGet")(&device, 0));
    cuda(symbol<int (*)(void**, int)>(driver, "cuDevicePrimaryCtxRetain")(&context, device));
    cuda(symbol<int (*)(void*)>(driver, "cuCtxSetCurrent")(context));
    cuda(symbol<int (*)(void**, unsigned)>(driver, "cuStreamCreate")(&stream, 1));
    auto const allocate = symbol<int (*)(unsigned long long*, size_t)>(driver, "cuMemAlloc_v2");

    void* const plugins = library(argv[1]);
    Finder finder;
    symbol<void (*)(void*)>(plugins, "setLoggerFinder")(&finder);
    std::vector<std::pair<std::string, std::string>> data;
    std::ifstream file(argv[3], std::ios::binary);
    for (std::string name; file >> name;) {
        size_t size = 0;
        file >> size;
        file.get();
        std::string bytes(size, '\0');
        file.read(&bytes[0], static_cast<std::streamsize>(size));
        data.emplace_back(name, bytes);
    }
    std::vector<PluginField> fields;
    for (auto const& [name, bytes] : data)
        fields.push_back({name.c_str(), bytes.data(), PluginFieldType::kINT8, static_cast<int32_t>(bytes.size())});
    PluginFieldCollection const collection{static_cast<int32_t>(fields.size()), fields.data()};
    IPluginV3* const made = creator(plugins, argv[2])->createPlugin(argv[2], &collection, TensorRTPhase::kRUNTIME);
    if (made == nullptr) return 1;
    auto const maker = static_cast<IPluginV3OneRuntime*>(made->getCapabilityInterface(PluginCapabilityType::kRUNTIME));
    IPluginV3* const plugin = maker->attachToContext(nullptr);
    auto const run = static_cast<IPluginV3OneRuntime*>(plugin->getCapabilityInterface(PluginCapabilityType::kRUNTIME));
    PluginFieldCollection const* const kept = run->getFieldsToSerialize();
    bool same = kept->nbFields == collection.nbFields;
    for (int32_t i = 0; same && i < kept->nbFields; ++i)
        same = data[i].first == kept->fields[i].name && data[i].second == std::string(static_cast<char const*>(kept->fields[i].data), kept->fields[i].length);
    std::printf("fields %s\n", same ? "same" : "changed");

    std::vector<PluginTensorDesc> in, out;
    std::vector<void const*> inputs;
    std::vector<void*> outputs;
    void* work = nullptr;
    for (int i = 5; i < argc; ++i) {
        std::istringstream text(argv[i]);
        std::string kind, sizes, bytes;
        std::getline(text, kind, ':');
        std::getline(text, sizes, ':');
        std::getline(text, bytes);
        PluginTensorDesc tensor{};
        std::istringstream dims(sizes);
        for (std::string size; std::getline(dims, size, 'x');) tensor.dims.d[tensor.dims.nbDims++] = std::stoll(size);
        unsigned long long address = 0;
        cuda(allocate(&address, std::max<size_t>(1, std::stoull(bytes))));
        if (kind == "work") work = reinterpret_cast<void*>(address);
        else if (kind == "in") in.push_back(tensor), inputs.push_back(reinterpret_cast<void*>(address));
        else out.push_back(tensor), outputs.push_back(reinterpret_cast<void*>(address));
    }
    auto const prepare = [&] { return run->onShapeChange(in.data(), static_cast<int32_t>(in.size()), out.data(), static_cast<int32_t>(out.size())); };
    auto const enqueue = [&] { return run->enqueue(in.data(), out.data(), inputs.data(), outputs.data(), work, static_cast<CUstream_st*>(stream)); };
    if (prepare() != 0 || enqueue() != 0) return 1;
    std::printf("again\n");
    if (prepare() != 0) return 1;
    int const times = std::atoi(argv[4]);
    std::vector<double> microseconds;
    auto const wait = symbol<int (*)(void*)>(driver, "cuStreamSynchronize");
    for (int i = 0; i < times; ++i) {
        if (i % 64 == 0) cuda(wait(stream));  // the queue never fills
        auto const start = std::chrono::steady_clock::now();
        if (prepare() != 0 || enqueue() != 0) return 1;
        microseconds.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count());
    }
    cuda(wait(stream));
    if (times > 0) {
        std::sort(microseconds.begin(), microseconds.end());
        std::printf("median %.3f us of %d, 99 %%: %.3f us\n", microseconds[times / 2], times, microseconds[times * 99 / 100]);
    }
    delete plugin;
    delete made;
    return 0;
}
