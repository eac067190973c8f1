// A shared library that hands the plugin libraries beside it to TensorRT when it is opened.
//
// Triton's TensorRT backend opens the files of its option `plugins` with dlopen and does nothing more with them (its
// src/tensorrt.cc, 2026), so a library that exports getCreators, which IPluginRegistry::loadLibrary would call, stays unknown
// there. This one calls loadLibrary for every .so in its own folder. TensorRT refuses a library whole if it has one of its plugins
// already, as when two models bring a library each; what is new in it is then registered alone.
#include "registry_abi.h"

#include <dirent.h>
#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

namespace {

using trtconvert_abi::Registry;
using Creator = trtconvert_abi::IPluginCreatorInterface;
using GetCreators = Creator* const* (*)(int32_t& count);

std::string base_name(std::string const& path) { return path.substr(path.rfind('/') + 1); }

bool is_tensorrt(std::string const& name) {
    return name.rfind("libnvinfer.so", 0) == 0 || name.rfind("libtensorrt_rtx.so", 0) == 0;
}

// The TensorRT that is in this process already.
int find_tensorrt(dl_phdr_info* info, size_t, void* found) {
    if (!is_tensorrt(base_name(info->dlpi_name))) return 0;
    *static_cast<std::string*>(found) = info->dlpi_name;
    return 1;
}

std::vector<std::string> libraries_beside(std::string const& self) {
    std::string const folder = self.substr(0, self.rfind('/') + 1);
    std::vector<std::string> found;
    if (DIR* open = opendir(folder.empty() ? "." : folder.c_str())) {
        while (dirent* entry = readdir(open)) {
            std::string const name = entry->d_name;
            bool const library = name.size() > 3 && name.compare(name.size() - 3, 3, ".so") == 0;
            if (library && name[0] != '.' && name != base_name(self)) found.push_back(folder + name);
        }
        closedir(open);
    }
    std::sort(found.begin(), found.end());
    return found;
}

void say(std::string const& path, std::string const& what) {
    std::fprintf(stderr, "trtconvert: %s: %s\n", path.c_str(), what.c_str());
}

int register_new(GetCreators get_creators, Registry const& registry) {
    int32_t count = 0;
    Creator* const* const creators = get_creators(count);
    int made = 0;
    for (int32_t i = 0; i < count; ++i) {
        if (std::strcmp(creators[i]->getInterfaceInfo().kind, "PLUGIN CREATOR_V3ONE") != 0) continue;
        auto* const creator = static_cast<trtconvert_abi::IPluginCreatorV3One*>(creators[i]);
        made += registry.register_creator(*creator, creator->getPluginNamespace());
    }
    return made;
}

void load(std::string const& path, Registry const& registry) {
    void* const opened = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);  // a library that registers itself does it here
    if (opened == nullptr) return say(path, dlerror());
    auto const get_creators = reinterpret_cast<GetCreators>(dlsym(opened, "getCreators"));
    if (get_creators == nullptr) return say(path, "opened");
    if (registry.load_library(path.c_str())) return say(path, "plugins registered");
    say(path, std::to_string(register_new(get_creators, registry)) + " plugins registered, TensorRT has the others already");
}

__attribute__((constructor)) void load_beside() {
    Dl_info self;
    if (dladdr(reinterpret_cast<void*>(&load_beside), &self) == 0) return;
    std::string tensorrt;
    dl_iterate_phdr(find_tensorrt, &tensorrt);
    if (tensorrt.empty()) return say(self.dli_fname, "no TensorRT in this process, nothing registered");
    void* const library = dlopen(tensorrt.c_str(), RTLD_LAZY | RTLD_NOLOAD);
    auto const version = reinterpret_cast<int32_t (*)()>(library ? dlsym(library, "getInferLibVersion") : nullptr);
    auto const registry = reinterpret_cast<void* (*)()>(library ? dlsym(library, "getPluginRegistry") : nullptr);
    bool const rtx = base_name(tensorrt).rfind("libtensorrt_rtx", 0) == 0;
    int const place = version && registry ? trtconvert_abi::place_of_load_library(rtx, version()) : -1;
    if (place < 0) return say(tensorrt, "a TensorRT that this library does not know, nothing registered");
    for (std::string const& path : libraries_beside(self.dli_fname)) load(path, {registry(), place});
}

}  // namespace
