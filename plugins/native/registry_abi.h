// IPluginRegistry, of which load_beside.cpp calls two functions. Their places among its virtual functions differ between the major
// versions: they follow the order of declaration in NvInferRuntimeCommon.h, the destructor counting for two. layout.cpp compares
// them with the headers.
#pragma once
#include "plugin_abi.h"

namespace trtconvert_abi {

// version: what getInferLibVersion returns. -1 for a TensorRT that is not known. TensorRT-RTX 1.x was seen to be as TensorRT 11.
inline int place_of_load_library(bool rtx, int32_t version) {
    int32_t const major = version / 10000;
    if (rtx) return major == 1 ? 6 : -1;
    return major == 10 ? 10 : major == 11 ? 6 : -1;
}
inline int place_of_register_creator(int load_library) { return load_library + 2; }

struct Registry {
    void* object;
    int load_library_at;

    bool load_library(char const* path) const {
        return reinterpret_cast<void* (*)(void*, char const*)>(function(load_library_at))(object, path) != nullptr;
    }
    bool register_creator(IPluginCreatorInterface& creator, char const* space) const {
        using Function = bool (*)(void*, IPluginCreatorInterface&, char const*);
        return reinterpret_cast<Function>(function(place_of_register_creator(load_library_at)))(object, creator, space);
    }
    void* function(int place) const { return (*static_cast<void***>(object))[place]; }
};

}  // namespace trtconvert_abi
