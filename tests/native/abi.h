// What a plugin library and TensorRT say to each other (C++, Itanium ABI), as far as the tests need it: the order of the
// virtual functions of creators and of plugins of version 3, and the structures that they pass. TensorRT's headers are
// not needed to compile a library against this.
#pragma once
#include <cstddef>
#include <cstdint>

namespace trt {

struct Kind {
    char const* name;
    int32_t major, minor;
};
struct Field {
    char const* name;
    void const* data;
    int32_t type, length;
};
struct Fields {
    int32_t count;
    Field const* first;
};
struct Dims {
    int32_t rank;
    int64_t size[8];
};
struct Symbols {  // dimensions as expressions, which TensorRT owns
    int32_t rank;
    void const* size[8];
};
struct Tensor {
    Dims dims;
    int32_t type, format;
    float scale;
};
struct Range {
    Tensor tensor;
    Dims min, max, opt;
};
enum Type : int32_t { FLOAT32 = 0, FLOAT16 = 1, INT8 = 2, INT32 = 3, BOOL = 4, UINT8 = 5, BF16 = 7, INT64 = 8 };
enum FieldType : int32_t { F_FLOAT32 = 1, F_INT32 = 5, F_CHAR = 6, F_INT64 = 10 };

struct Versioned {
    virtual int32_t language() const noexcept { return 0; }
    virtual Kind kind() const noexcept = 0;
    virtual ~Versioned() noexcept = default;
};
struct Capability : Versioned {};
struct Plugin : Versioned {
    Kind kind() const noexcept override { return {"PLUGIN", 1, 0}; }
    virtual Capability* capability(int32_t which) noexcept = 0;  // 0 core, 1 build, 2 runtime
    virtual Plugin* clone() noexcept = 0;
};
struct Core : Capability {
    Kind kind() const noexcept override { return {"PLUGIN_V3ONE_CORE", 1, 0}; }
    virtual char const* name() const noexcept = 0;
    virtual char const* version() const noexcept = 0;
    virtual char const* space() const noexcept = 0;
};
struct Build : Capability {
    Kind kind() const noexcept override { return {"PLUGIN_V3ONE_BUILD", 1, 0}; }
    virtual int32_t configure(Range const*, int32_t, Range const*, int32_t) noexcept = 0;
    virtual int32_t types(int32_t* out, int32_t outs, int32_t const* in, int32_t ins) const noexcept = 0;
    virtual int32_t shapes(
        Symbols const* in, int32_t ins, Symbols const*, int32_t, Symbols* out, int32_t outs, void* builder) noexcept = 0;
    virtual bool supports(int32_t position, Range const* tensors, int32_t ins, int32_t outs) noexcept = 0;
    virtual int32_t outputs() const noexcept = 0;
    virtual size_t workspace(Range const*, int32_t, Range const*, int32_t) const noexcept { return 0; }
    virtual int32_t tactics(int32_t*, int32_t) noexcept { return 0; }
    virtual int32_t tactic_count() noexcept { return 0; }
    virtual char const* timing_id() noexcept { return nullptr; }
    virtual int32_t format_limit() noexcept { return 100; }
    virtual char const* metadata() noexcept { return nullptr; }
};
struct Runtime : Capability {
    Kind kind() const noexcept override { return {"PLUGIN_V3ONE_RUNTIME", 1, 0}; }
    virtual int32_t set_tactic(int32_t) noexcept { return 0; }
    virtual int32_t shape_change(Tensor const*, int32_t, Tensor const*, int32_t) noexcept = 0;
    virtual int32_t enqueue(
        Tensor const*, Tensor const*, void const* const*, void* const*, void*, void* stream) noexcept = 0;
    virtual Plugin* attach(void*) noexcept = 0;
    virtual Fields const* serialize() noexcept = 0;
};
struct CreatorBase : Versioned {};
struct Creator : CreatorBase {
    Kind kind() const noexcept override { return {"PLUGIN CREATOR_V3ONE", 1, 0}; }
    virtual Plugin* create(char const* name, Fields const* given, int32_t phase) noexcept = 0;
    virtual Fields const* fields() noexcept = 0;
    virtual char const* name() const noexcept = 0;
    virtual char const* version() const noexcept = 0;
    virtual char const* space() const noexcept = 0;
};
struct OldCreator : CreatorBase {  // of plugins of version 2
    Kind kind() const noexcept override { return {"PLUGIN CREATOR_V1", 1, 0}; }
    virtual char const* name() const noexcept = 0;
    virtual char const* version() const noexcept = 0;
    virtual Fields const* fields() noexcept = 0;
    virtual void* create(char const* name, Fields const* given) noexcept = 0;
    virtual void* read(char const* name, void const* data, size_t size) noexcept = 0;
    virtual void set_space(char const*) noexcept = 0;
    virtual char const* space() const noexcept = 0;
};
struct Registry {
    virtual ~Registry() noexcept = default;
    virtual void set_recorder(void*) noexcept = 0;
    virtual void* recorder() const noexcept = 0;
    virtual bool parent_search() const = 0;
    virtual void set_parent_search(bool) = 0;
    virtual void* load_library(char const*) noexcept = 0;
    virtual void unload_library(void*) noexcept = 0;
    virtual bool add(CreatorBase&, char const* space) noexcept = 0;
};

}  // namespace trt
