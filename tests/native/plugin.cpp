// A library with one plugin, which the tests compile in several ways. Its kernel does nothing: engines are only built.
// -DNAME -DVERSION -DSPACE: of the creator. -DFIELDS: its fields. -DACCEPTS: element type of input 1, and of input 0 with
// -DACCEPTS0. -DSTATIC: registers itself when it is opened. -DOLD: a creator of plugins of version 2.
// -DPLAIN_OLD: the entry point of before TensorRT 10. -DEMPTY: no creator at all. Calls are told on stderr.
#include "abi.h"
#include <cstdio>
#include <cstdlib>
#include <cstring>

#ifndef NAME
#define NAME "MyGelu"
#endif
#ifndef VERSION
#define VERSION "1"
#endif
#ifndef SPACE
#define SPACE ""
#endif
#ifndef FIELDS
#define FIELDS
#endif

namespace trt = trtconvert_abi;

namespace {

bool const loud = std::getenv("LOUD") != nullptr;

struct Same : trt::IPluginV3, trt::IPluginV3OneCore, trt::IPluginV3OneBuild, trt::IPluginV3OneRuntime {
    trt::PluginFieldCollection none{0, nullptr};
    trt::IPluginCapability* getCapabilityInterface(trt::PluginCapabilityType which) noexcept override {
        if (which == trt::PluginCapabilityType::kBUILD) return static_cast<trt::IPluginV3OneBuild*>(this);
        if (which == trt::PluginCapabilityType::kRUNTIME) return static_cast<trt::IPluginV3OneRuntime*>(this);
        return static_cast<trt::IPluginV3OneCore*>(this);
    }
    trt::IPluginV3* clone() noexcept override { return new Same(*this); }
    char const* getPluginName() const noexcept override { return NAME; }
    char const* getPluginVersion() const noexcept override { return VERSION; }
    char const* getPluginNamespace() const noexcept override { return SPACE; }
    int32_t configurePlugin(
        trt::DynamicPluginTensorDesc const*, int32_t, trt::DynamicPluginTensorDesc const*, int32_t) noexcept override { return 0; }
    int32_t getOutputDataTypes(
        trt::DataType* out, int32_t, trt::DataType const* in, int32_t ins) const noexcept override {
        if (loud) std::fprintf(stderr, "inputs %d first type %d\n", ins, static_cast<int>(in[0]));
        out[0] = in[0];
        return 0;
    }
    int32_t getOutputShapes(
        trt::DimsExprs const* in, int32_t, trt::DimsExprs const*, int32_t given, trt::DimsExprs* out, int32_t,
        trt::IExprBuilder&) noexcept override {
        if (loud) std::fprintf(stderr, "shape inputs %d\n", given);
        out[0] = in[0];
        return 0;
    }
    bool supportsFormatCombination(
        int32_t position, trt::DynamicPluginTensorDesc const* tensors, int32_t ins, int32_t) noexcept override {
        trt::PluginTensorDesc const& tensor = tensors[position].desc;
#ifdef ACCEPTS0
        if (position == 0 && static_cast<int>(tensor.type) != ACCEPTS0) return false;
#endif
#ifdef ACCEPTS
        if (position == 1 && position < ins && static_cast<int>(tensor.type) != ACCEPTS) return false;
#endif
        return tensor.format == trt::TensorFormat::kLINEAR;
    }
    int32_t getNbOutputs() const noexcept override { return 1; }
    int32_t onShapeChange(
        trt::PluginTensorDesc const*, int32_t, trt::PluginTensorDesc const*, int32_t) noexcept override { return 0; }
    int32_t enqueue(
        trt::PluginTensorDesc const*, trt::PluginTensorDesc const*, void const* const*, void* const*, void*,
        CUstream_st*) noexcept override {
        return 0;
    }
    trt::IPluginV3* attachToContext(trt::IPluginResourceContext*) noexcept override { return new Same(*this); }
    trt::PluginFieldCollection const* getFieldsToSerialize() noexcept override { return &none; }
};

#ifdef OLD
struct Maker : trt::IPluginCreator {
    void* createPlugin(char const*, trt::PluginFieldCollection const*) noexcept override { return nullptr; }
    void* deserializePlugin(char const*, void const*, size_t) noexcept override { return nullptr; }
    void setPluginNamespace(char const*) noexcept override {}
#else
struct Maker : trt::IPluginCreatorV3One {
    trt::IPluginV3* createPlugin(char const*, trt::PluginFieldCollection const* given, trt::TensorRTPhase) noexcept override {
        for (int32_t i = 0; loud && i < given->nbFields; ++i) {
            trt::PluginField const& f = given->fields[i];
            std::fprintf(stderr, "field %s type %d length %d", f.name, static_cast<int>(f.type), f.length);
            if (f.data == nullptr) std::fputs(" no data", stderr);
            else if (f.type == trt::PluginFieldType::kFLOAT32) std::fprintf(stderr, " first %g", *static_cast<float const*>(f.data));
            else if (f.type == trt::PluginFieldType::kINT32) std::fprintf(stderr, " first %d", *static_cast<int32_t const*>(f.data));
            else if (f.type == trt::PluginFieldType::kCHAR) std::fprintf(stderr, " text %.*s", f.length, static_cast<char const*>(f.data));
            std::fputc('\n', stderr);
        }
        return new Same;
    }
#endif
    trt::PluginField const declared[20]{FIELDS};
    trt::PluginFieldCollection list{0, declared};
    trt::PluginFieldCollection const* getFieldNames() noexcept override {
        list.nbFields = 0;
        while (declared[list.nbFields].name != nullptr) ++list.nbFields;
        return &list;
    }
    char const* getPluginName() const noexcept override { return NAME; }
    char const* getPluginVersion() const noexcept override { return VERSION; }
    char const* getPluginNamespace() const noexcept override { return SPACE; }
};

[[maybe_unused]] Maker maker;

}  // namespace

#if defined(STATIC)
extern "C" trt::IPluginRegistry* getPluginRegistry();
static bool const added = getPluginRegistry()->registerCreator(maker, SPACE);
#elif defined(PLAIN_OLD)
extern "C" void* getPluginCreators(int32_t& count) {
    count = 0;
    return nullptr;
}
#else
extern "C" void setLoggerFinder(void*) {}
extern "C" trt::IPluginCreatorInterface* const* getCreators(int32_t& count) {
#ifdef EMPTY
    count = 0;
    return nullptr;
#else
    static trt::IPluginCreatorInterface* const all[]{&maker};
    count = 1;
    return all;
#endif
}
#endif
