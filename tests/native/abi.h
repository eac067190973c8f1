// What the test libraries need beyond plugins/native/plugin_abi.h: creators of plugins of version 2, and the registry.
#pragma once
#include "../../plugins/native/plugin_abi.h"

namespace trtconvert_abi {

class IPluginCreator : public IPluginCreatorInterface {
public:
    InterfaceInfo getInterfaceInfo() const noexcept override { return {"PLUGIN CREATOR_V1", 1, 0}; }
    virtual char const* getPluginName() const noexcept = 0;
    virtual char const* getPluginVersion() const noexcept = 0;
    virtual PluginFieldCollection const* getFieldNames() noexcept = 0;
    virtual void* createPlugin(char const* name, PluginFieldCollection const*) noexcept = 0;
    virtual void* deserializePlugin(char const* name, void const* data, size_t size) noexcept = 0;
    virtual void setPluginNamespace(char const*) noexcept = 0;
    virtual char const* getPluginNamespace() const noexcept = 0;
};
class IPluginRegistry {
public:
    virtual ~IPluginRegistry() noexcept = default;
    virtual void setErrorRecorder(void*) noexcept = 0;
    virtual void* getErrorRecorder() const noexcept = 0;
    virtual bool isParentSearchEnabled() const = 0;
    virtual void setParentSearchEnabled(bool) = 0;
    virtual void* loadLibrary(char const*) noexcept = 0;
    virtual void deregisterLibrary(void*) noexcept = 0;
    virtual bool registerCreator(IPluginCreatorInterface&, char const* space) noexcept = 0;
};

}  // namespace trtconvert_abi
