// A shared library that hands the plugin libraries beside it to TensorRT when it is opened.
//
// Triton's TensorRT backend opens the files of its option `plugins` with dlopen and does nothing more with them (its
// src/tensorrt.cc, 2026), so a library that exports getCreators, which IPluginRegistry::loadLibrary would call, stays unknown
// there. This one calls loadLibrary for every .so in its own folder. Needs no header of TensorRT and links none of its libraries.
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

using Load = void* (*)(void* registry, char const* path);

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

// The place of loadLibrary among IPluginRegistry's virtual functions: NvInferRuntimeCommon.h of TensorRT 10.0 to 10.16 and of
// 11.0 and 11.1, in the order of declaration, the destructor counting for two. TensorRT-RTX 1.7 (10701) has that of 11.
int slot_of_load_library(std::string const& library, int32_t version) {
    if (library.rfind("libtensorrt_rtx", 0) == 0) return version / 10000 == 1 ? 6 : -1;
    return version / 10000 == 10 ? 10 : version / 10000 == 11 ? 6 : -1;
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

void load(std::string const& path, void* registry, int slot) {
    void* const opened = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);  // a library that registers itself does it here
    if (opened == nullptr) return say(path, dlerror());
    if (dlsym(opened, "getCreators") == nullptr) return say(path, "opened");
    Load const load_library = (*static_cast<Load**>(registry))[slot];
    bool const loaded = load_library(registry, path.c_str()) != nullptr;
    say(path, loaded ? "plugins registered" : "TensorRT did not register its plugins, or has them already");
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
    int const slot = version && registry ? slot_of_load_library(base_name(tensorrt), version()) : -1;
    if (slot < 0) return say(tensorrt, "a TensorRT that this library does not know, nothing registered");
    for (std::string const& path : libraries_beside(self.dli_fname)) load(path, registry(), slot);
}

}  // namespace
