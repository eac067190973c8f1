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

namespace {

bool const loud = std::getenv("LOUD") != nullptr;

struct Same : trt::Plugin, trt::Core, trt::Build, trt::Runtime {
    trt::Fields none{0, nullptr};
    trt::Capability* capability(int32_t which) noexcept override {
        if (which == 1) return static_cast<trt::Build*>(this);
        if (which == 2) return static_cast<trt::Runtime*>(this);
        return static_cast<trt::Core*>(this);
    }
    trt::Plugin* clone() noexcept override { return new Same(*this); }
    char const* name() const noexcept override { return NAME; }
    char const* version() const noexcept override { return VERSION; }
    char const* space() const noexcept override { return SPACE; }
    int32_t configure(trt::Range const*, int32_t, trt::Range const*, int32_t) noexcept override { return 0; }
    int32_t types(int32_t* out, int32_t, int32_t const* in, int32_t ins) const noexcept override {
        if (loud) std::fprintf(stderr, "inputs %d first type %d\n", ins, in[0]);
        out[0] = in[0];
        return 0;
    }
    int32_t shapes(
        trt::Symbols const* in, int32_t, trt::Symbols const*, int32_t given, trt::Symbols* out, int32_t,
        void*) noexcept override {
        if (loud) std::fprintf(stderr, "shape inputs %d\n", given);
        out[0] = in[0];
        return 0;
    }
    bool supports(int32_t position, trt::Range const* tensors, int32_t ins, int32_t) noexcept override {
        trt::Tensor const& tensor = tensors[position].tensor;
#ifdef ACCEPTS0
        if (position == 0 && tensor.type != ACCEPTS0) return false;
#endif
#ifdef ACCEPTS
        if (position == 1 && position < ins && tensor.type != ACCEPTS) return false;
#endif
        return tensor.format == 0;
    }
    int32_t outputs() const noexcept override { return 1; }
    int32_t shape_change(trt::Tensor const*, int32_t, trt::Tensor const*, int32_t) noexcept override { return 0; }
    int32_t enqueue(
        trt::Tensor const*, trt::Tensor const*, void const* const*, void* const*, void*, void*) noexcept override {
        return 0;
    }
    trt::Plugin* attach(void*) noexcept override { return new Same(*this); }
    trt::Fields const* serialize() noexcept override { return &none; }
};

#ifdef OLD
struct Maker : trt::OldCreator {
    void* create(char const*, trt::Fields const*) noexcept override { return nullptr; }
    void* read(char const*, void const*, size_t) noexcept override { return nullptr; }
    void set_space(char const*) noexcept override {}
#else
struct Maker : trt::Creator {
    trt::Plugin* create(char const*, trt::Fields const* given, int32_t) noexcept override {
        for (int32_t i = 0; loud && i < given->count; ++i) {
            trt::Field const& f = given->first[i];
            std::fprintf(stderr, "field %s type %d length %d", f.name, f.type, f.length);
            if (f.data == nullptr) std::fputs(" no data", stderr);
            else if (f.type == trt::F_FLOAT32) std::fprintf(stderr, " first %g", *static_cast<float const*>(f.data));
            else if (f.type == trt::F_INT32) std::fprintf(stderr, " first %d", *static_cast<int32_t const*>(f.data));
            else if (f.type == trt::F_CHAR) std::fprintf(stderr, " text %.*s", f.length, static_cast<char const*>(f.data));
            std::fputc('\n', stderr);
        }
        return new Same;
    }
#endif
    trt::Field const declared[20]{FIELDS};
    trt::Fields list{0, declared};
    trt::Fields const* fields() noexcept override {
        list.count = 0;
        while (declared[list.count].name != nullptr) ++list.count;
        return &list;
    }
    char const* name() const noexcept override { return NAME; }
    char const* version() const noexcept override { return VERSION; }
    char const* space() const noexcept override { return SPACE; }
};

[[maybe_unused]] Maker maker;

}  // namespace

#if defined(STATIC)
extern "C" trt::Registry* getPluginRegistry();
static bool const added = getPluginRegistry()->add(maker, SPACE);
#elif defined(PLAIN_OLD)
extern "C" void* getPluginCreators(int32_t& count) {
    count = 0;
    return nullptr;
}
#else
extern "C" void setLoggerFinder(void*) {}
extern "C" trt::CreatorBase* const* getCreators(int32_t& count) {
#ifdef EMPTY
    count = 0;
    return nullptr;
#else
    static trt::CreatorBase* const all[]{&maker};
    count = 1;
    return all;
#endif
}
#endif
