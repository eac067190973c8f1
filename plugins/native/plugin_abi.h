// What TensorRT and a plugin library say to each other (C++, Itanium ABI), as far as plugins of version 3 need it: enums,
// structures, and classes with their virtual functions in order. With it the library compiles where TensorRT's headers are
// not. Names, order and numbers are those of TensorRT's public C++ API, written after its documentation,
// https://docs.nvidia.com/deeplearning/tensorrt/latest/_static/c-api/ (namespace nvinfer1: IPluginV3, IPluginV3OneCore,
// IPluginV3OneBuild, IPluginV3OneRuntime, IPluginCreatorV3One, IVersionedInterface, IExprBuilder), the same from 10.0 on.
// layout.cpp compares it with the headers themselves, where they are.
#pragma once
#include <cstddef>
#include <cstdint>

struct CUstream_st;  // CUDA's, behind cudaStream_t

namespace trtconvert_abi {

enum class APILanguage : int32_t { kCPP = 0, kPYTHON = 1 };
enum class DataType : int32_t { kFLOAT = 0, kHALF = 1, kINT8 = 2, kINT32 = 3, kBOOL = 4, kUINT8 = 5, kBF16 = 7, kINT64 = 8 };
enum class TensorFormat : int32_t { kLINEAR = 0 };
enum class PluginFieldType : int32_t { kFLOAT32 = 1, kINT8 = 3, kINT32 = 5, kCHAR = 6, kUNKNOWN = 8, kINT64 = 10 };
enum class TensorRTPhase : int32_t { kBUILD = 0, kRUNTIME = 1 };
enum class PluginCapabilityType : int32_t { kCORE = 0, kBUILD = 1, kRUNTIME = 2 };
enum class DimensionOperation : int32_t { kSUM = 0, kPROD = 1, kMAX = 2, kMIN = 3, kSUB = 4, kFLOOR_DIV = 7, kCEIL_DIV = 8 };

struct InterfaceInfo {
    char const* kind;
    int32_t major, minor;
};
struct PluginField {
    char const* name;
    void const* data;
    PluginFieldType type;
    int32_t length;
};
struct PluginFieldCollection {
    int32_t nbFields;
    PluginField const* fields;
};
struct Dims {
    int32_t nbDims;
    int64_t d[8];
};
struct PluginTensorDesc {
    Dims dims;
    DataType type;
    TensorFormat format;
    float scale;
};
struct DynamicPluginTensorDesc {
    PluginTensorDesc desc;
    Dims min, max, opt;
};

// Dimensions as expressions. TensorRT's objects hold a pointer to what does the work, and that is what is called.
class VDimensionExpr {
public:
    virtual ~VDimensionExpr() noexcept = default;
    virtual bool isConstant() const = 0;
    virtual int64_t getConstantValue() const = 0;
};
class IDimensionExpr {
public:
    bool isConstant() const noexcept { return mImpl->isConstant(); }
    int64_t getConstantValue() const noexcept { return mImpl->getConstantValue(); }

protected:
    virtual ~IDimensionExpr() noexcept = default;
    VDimensionExpr* mImpl;
};
class VExprBuilder {
public:
    virtual ~VExprBuilder() noexcept = default;
    virtual IDimensionExpr const* constant(int64_t value) = 0;
    virtual IDimensionExpr const* operation(DimensionOperation, IDimensionExpr const&, IDimensionExpr const&) = 0;
    virtual IDimensionExpr const* declareSizeTensor(int32_t output, IDimensionExpr const& opt, IDimensionExpr const& upper) = 0;
};
class IExprBuilder {
public:
    IDimensionExpr const* constant(int64_t value) noexcept { return mImpl->constant(value); }
    IDimensionExpr const* operation(DimensionOperation op, IDimensionExpr const& a, IDimensionExpr const& b) noexcept {
        return mImpl->operation(op, a, b);
    }
    IDimensionExpr const* declareSizeTensor(int32_t output, IDimensionExpr const& opt, IDimensionExpr const& upper) {
        return mImpl->declareSizeTensor(output, opt, upper);
    }

protected:
    virtual ~IExprBuilder() noexcept = default;
    VExprBuilder* mImpl;
};
struct DimsExprs {
    int32_t nbDims;
    IDimensionExpr const* d[8];
};

class IVersionedInterface {
public:
    virtual APILanguage getAPILanguage() const noexcept { return APILanguage::kCPP; }
    virtual InterfaceInfo getInterfaceInfo() const noexcept = 0;
    virtual ~IVersionedInterface() noexcept = default;
};
class IPluginCapability : public IVersionedInterface {};
class IPluginResourceContext;
class IPluginV3 : public IVersionedInterface {
public:
    InterfaceInfo getInterfaceInfo() const noexcept override { return {"PLUGIN", 1, 0}; }
    virtual IPluginCapability* getCapabilityInterface(PluginCapabilityType) noexcept = 0;
    virtual IPluginV3* clone() noexcept = 0;
};
class IPluginV3OneCore : public IPluginCapability {
public:
    InterfaceInfo getInterfaceInfo() const noexcept override { return {"PLUGIN_V3ONE_CORE", 1, 0}; }
    virtual char const* getPluginName() const noexcept = 0;
    virtual char const* getPluginVersion() const noexcept = 0;
    virtual char const* getPluginNamespace() const noexcept = 0;
};
class IPluginV3OneBuild : public IPluginCapability {
public:
    InterfaceInfo getInterfaceInfo() const noexcept override { return {"PLUGIN_V3ONE_BUILD", 1, 0}; }
    virtual int32_t configurePlugin(
        DynamicPluginTensorDesc const* in, int32_t ins, DynamicPluginTensorDesc const* out, int32_t outs) noexcept = 0;
    virtual int32_t getOutputDataTypes(DataType* out, int32_t outs, DataType const* in, int32_t ins) const noexcept = 0;
    virtual int32_t getOutputShapes(
        DimsExprs const* in, int32_t ins, DimsExprs const* shapeIn, int32_t shapeIns, DimsExprs* out, int32_t outs,
        IExprBuilder&) noexcept = 0;
    virtual bool supportsFormatCombination(
        int32_t position, DynamicPluginTensorDesc const* inOut, int32_t ins, int32_t outs) noexcept = 0;
    virtual int32_t getNbOutputs() const noexcept = 0;
    virtual size_t getWorkspaceSize(
        DynamicPluginTensorDesc const*, int32_t, DynamicPluginTensorDesc const*, int32_t) const noexcept {
        return 0;
    }
    virtual int32_t getValidTactics(int32_t*, int32_t) noexcept { return 0; }
    virtual int32_t getNbTactics() noexcept { return 0; }
    virtual char const* getTimingCacheID() noexcept { return nullptr; }
    virtual int32_t getFormatCombinationLimit() noexcept { return 100; }
    virtual char const* getMetadataString() noexcept { return nullptr; }
};
class IPluginV3OneRuntime : public IPluginCapability {
public:
    InterfaceInfo getInterfaceInfo() const noexcept override { return {"PLUGIN_V3ONE_RUNTIME", 1, 0}; }
    virtual int32_t setTactic(int32_t) noexcept { return 0; }
    virtual int32_t onShapeChange(
        PluginTensorDesc const* in, int32_t ins, PluginTensorDesc const* out, int32_t outs) noexcept = 0;
    virtual int32_t enqueue(
        PluginTensorDesc const* inDesc, PluginTensorDesc const* outDesc, void const* const* in, void* const* out,
        void* workspace, CUstream_st* stream) noexcept = 0;
    virtual IPluginV3* attachToContext(IPluginResourceContext*) noexcept = 0;
    virtual PluginFieldCollection const* getFieldsToSerialize() noexcept = 0;
};
class IPluginCreatorInterface : public IVersionedInterface {};
class IPluginCreatorV3One : public IPluginCreatorInterface {
public:
    InterfaceInfo getInterfaceInfo() const noexcept override { return {"PLUGIN CREATOR_V3ONE", 1, 0}; }
    virtual IPluginV3* createPlugin(char const* name, PluginFieldCollection const*, TensorRTPhase) noexcept = 0;
    virtual PluginFieldCollection const* getFieldNames() noexcept = 0;
    virtual char const* getPluginName() const noexcept = 0;
    virtual char const* getPluginVersion() const noexcept = 0;
    virtual char const* getPluginNamespace() const noexcept = 0;
};

}  // namespace trtconvert_abi
