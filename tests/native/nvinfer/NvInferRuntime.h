// The calls into TensorRT that the exported C++ example makes, as its documentation gives them: enough to compile it against.
#pragma once
#include <cstddef>
#include <cstdint>

using cudaStream_t = struct Stream*;

namespace nvinfer1 {

struct Dims { int32_t nbDims; int64_t d[8]; };
enum class DataType : int32_t { kFLOAT };
enum class TensorIOMode : int32_t { kNONE, kINPUT, kOUTPUT };

struct ILogger {
    enum class Severity : int32_t { kINTERNAL_ERROR, kERROR, kWARNING, kINFO, kVERBOSE };
    virtual void log(Severity severity, char const* text) noexcept = 0;
    virtual ~ILogger() = default;
};

struct IPluginRegistry {
    virtual void* loadLibrary(char const* path) noexcept = 0;

protected:
    virtual ~IPluginRegistry() = default;
};

struct IExecutionContext {
    virtual ~IExecutionContext() = default;
    bool setTensorAddress(char const* name, void* data) noexcept;
    bool setInputShape(char const* name, Dims const& dims) noexcept;
    int64_t getMaxOutputSize(char const* name) const noexcept;
    Dims getTensorShape(char const* name) const noexcept;
    bool enqueueV3(cudaStream_t stream) noexcept;
};

struct ICudaEngine {
    virtual ~ICudaEngine() = default;
    IExecutionContext* createExecutionContext() noexcept;
    int32_t getNbIOTensors() const noexcept;
    char const* getIOTensorName(int32_t index) const noexcept;
    TensorIOMode getTensorIOMode(char const* name) const noexcept;
};

struct IRuntime {
    virtual ~IRuntime() = default;
    IPluginRegistry& getPluginRegistry() noexcept;
    ICudaEngine* deserializeCudaEngine(void const* plan, size_t size) noexcept;
};

IRuntime* createInferRuntime(ILogger& logger) noexcept;

}  // namespace nvinfer1
