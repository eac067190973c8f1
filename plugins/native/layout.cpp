// A program that compares plugin_abi.h with TensorRT's own headers: sizes, offsets and numbers when it is compiled, the order of
// virtual functions when it runs. It needs none of TensorRT's libraries. Prints the headers' version; fails where they differ.
#include <NvInferRuntime.h>

#include "registry_abi.h"
#include <cstdio>
#include <cstring>

namespace ours = trtconvert_abi;
namespace theirs = nvinfer1;

#define SAME_SIZE(type) static_assert(sizeof(ours::type) == sizeof(theirs::type) && alignof(ours::type) == alignof(theirs::type))
#define SAME_OFFSET(type, member) static_assert(offsetof(ours::type, member) == offsetof(theirs::type, member))
#define SAME_NUMBER(type, value) static_assert(static_cast<int>(ours::type::value) == static_cast<int>(theirs::type::value))

SAME_SIZE(InterfaceInfo);
SAME_SIZE(PluginField);
SAME_OFFSET(PluginField, name);
SAME_OFFSET(PluginField, data);
SAME_OFFSET(PluginField, type);
SAME_OFFSET(PluginField, length);
SAME_SIZE(PluginFieldCollection);
SAME_OFFSET(PluginFieldCollection, nbFields);
SAME_OFFSET(PluginFieldCollection, fields);
SAME_SIZE(Dims);
SAME_OFFSET(Dims, nbDims);
SAME_OFFSET(Dims, d);
SAME_SIZE(PluginTensorDesc);
SAME_OFFSET(PluginTensorDesc, dims);
SAME_OFFSET(PluginTensorDesc, type);
SAME_OFFSET(PluginTensorDesc, format);
SAME_SIZE(DynamicPluginTensorDesc);
SAME_OFFSET(DynamicPluginTensorDesc, desc);
SAME_OFFSET(DynamicPluginTensorDesc, min);
SAME_OFFSET(DynamicPluginTensorDesc, max);
SAME_OFFSET(DynamicPluginTensorDesc, opt);
SAME_SIZE(DimsExprs);
SAME_OFFSET(DimsExprs, nbDims);
SAME_OFFSET(DimsExprs, d);
SAME_SIZE(IDimensionExpr);
SAME_SIZE(IExprBuilder);
SAME_SIZE(IPluginV3);
SAME_SIZE(IPluginCreatorV3One);
SAME_NUMBER(APILanguage, kCPP);
SAME_NUMBER(DataType, kFLOAT);
SAME_NUMBER(DataType, kHALF);
SAME_NUMBER(DataType, kINT8);
SAME_NUMBER(DataType, kINT32);
SAME_NUMBER(DataType, kBOOL);
SAME_NUMBER(DataType, kUINT8);
SAME_NUMBER(DataType, kBF16);
SAME_NUMBER(DataType, kINT64);
SAME_NUMBER(TensorFormat, kLINEAR);
SAME_NUMBER(PluginFieldType, kINT8);
SAME_NUMBER(PluginFieldType, kCHAR);
SAME_NUMBER(TensorRTPhase, kBUILD);
SAME_NUMBER(TensorRTPhase, kRUNTIME);
SAME_NUMBER(PluginCapabilityType, kCORE);
SAME_NUMBER(PluginCapabilityType, kBUILD);
SAME_NUMBER(PluginCapabilityType, kRUNTIME);
SAME_NUMBER(DimensionOperation, kSUM);
SAME_NUMBER(DimensionOperation, kPROD);
SAME_NUMBER(DimensionOperation, kMAX);
SAME_NUMBER(DimensionOperation, kMIN);
SAME_NUMBER(DimensionOperation, kSUB);
SAME_NUMBER(DimensionOperation, kFLOOR_DIV);
SAME_NUMBER(DimensionOperation, kCEIL_DIV);

// A pointer to a virtual member function begins with its place in the table (Itanium C++ ABI, 2.3).
template <class Function>
long place(Function function) {
    long first = 0;
    std::memcpy(&first, &function, sizeof first);
    return first;
}

int faults = 0;

void compare(char const* name, long mine, long other) {
    if (mine == other) return;
    std::printf("%s: place %ld here, %ld in the headers\n", name, mine, other);
    ++faults;
}

#define SAME_PLACE(type, function) compare(#type "::" #function, place(&ours::type::function), place(&theirs::type::function))
#define SAME_PLACE_INSIDE(type, function) \
    compare(#type "::" #function, place(&ours::type::function), place(&theirs::apiv::type::function))

// The registry's functions, which are called by their place; the compiler gives it in bytes, and one more.
void compare_registry() {
    using Register = bool (theirs::IPluginRegistry::*)(theirs::IPluginCreatorInterface&, char const*) noexcept;
    int const load_library = ours::place_of_load_library(false, NV_TENSORRT_MAJOR * 10000);
    long const size = sizeof(void*);
    compare("IPluginRegistry::loadLibrary", 1 + size * load_library, place(&theirs::IPluginRegistry::loadLibrary));
    Register const register_creator = &theirs::IPluginRegistry::registerCreator;
    compare("IPluginRegistry::registerCreator", 1 + size * ours::place_of_register_creator(load_library), place(register_creator));
}

int main() {
    compare_registry();
    SAME_PLACE(IVersionedInterface, getAPILanguage);
    SAME_PLACE(IVersionedInterface, getInterfaceInfo);
    SAME_PLACE(IPluginV3, getCapabilityInterface);
    SAME_PLACE(IPluginV3, clone);
    SAME_PLACE(IPluginV3OneCore, getPluginName);
    SAME_PLACE(IPluginV3OneCore, getPluginVersion);
    SAME_PLACE(IPluginV3OneCore, getPluginNamespace);
    SAME_PLACE(IPluginV3OneBuild, configurePlugin);
    SAME_PLACE(IPluginV3OneBuild, getOutputDataTypes);
    SAME_PLACE(IPluginV3OneBuild, getOutputShapes);
    SAME_PLACE(IPluginV3OneBuild, supportsFormatCombination);
    SAME_PLACE(IPluginV3OneBuild, getNbOutputs);
    SAME_PLACE(IPluginV3OneBuild, getWorkspaceSize);
    SAME_PLACE(IPluginV3OneBuild, getValidTactics);
    SAME_PLACE(IPluginV3OneBuild, getNbTactics);
    SAME_PLACE(IPluginV3OneBuild, getTimingCacheID);
    SAME_PLACE(IPluginV3OneBuild, getFormatCombinationLimit);
    SAME_PLACE(IPluginV3OneBuild, getMetadataString);
    SAME_PLACE(IPluginV3OneRuntime, setTactic);
    SAME_PLACE(IPluginV3OneRuntime, onShapeChange);
    SAME_PLACE(IPluginV3OneRuntime, enqueue);
    SAME_PLACE(IPluginV3OneRuntime, attachToContext);
    SAME_PLACE(IPluginV3OneRuntime, getFieldsToSerialize);
    SAME_PLACE(IPluginCreatorV3One, createPlugin);
    SAME_PLACE(IPluginCreatorV3One, getFieldNames);
    SAME_PLACE(IPluginCreatorV3One, getPluginName);
    SAME_PLACE(IPluginCreatorV3One, getPluginVersion);
    SAME_PLACE(IPluginCreatorV3One, getPluginNamespace);
    SAME_PLACE_INSIDE(VDimensionExpr, isConstant);
    SAME_PLACE_INSIDE(VDimensionExpr, getConstantValue);
    SAME_PLACE_INSIDE(VExprBuilder, constant);
    SAME_PLACE_INSIDE(VExprBuilder, operation);
    SAME_PLACE_INSIDE(VExprBuilder, declareSizeTensor);
    if (faults == 0) std::printf("TensorRT %d.%d.%d\n", NV_TENSORRT_MAJOR, NV_TENSORRT_MINOR, NV_TENSORRT_PATCH);
    return faults != 0;
}
