// The plugins of all ops in one class. A plan holds a plugin as fields: its launches as text (written by trtconvert/launch.py) and
// their kernels as machine code, one image per GPU architecture. This library reads them (fields.h), loads the image that fits
// (driver.h), and launches. It knows no op; creators.inc and -DMORE_CREATORS give names.
//
// To build an engine with it, a node has the same data as attributes (written by trtconvert/carried.py): "trtconvert_launch" and
// "trtconvert_images" as they go into the plan, and "trtconvert_build", which says in lines what the builder asks: types and
// shapes of inputs and outputs, how much memory to lend, the images' names and sizes.
//
// Needs no library: TensorRT calls it, and the CUDA driver is opened when the first kernel is loaded. Nothing is thrown or
// aborted across the border; a failure is told to TensorRT's logger and returned as an error.
#include "driver.h"
#include "fields.h"
#include <atomic>
#include <cstdio>
#include <cxxabi.h>
#include <typeinfo>

#ifndef MORE_CREATORS
#define MORE_CREATORS
#endif
#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

// --- messages ------------------------------------------------------------------------------------------------------

std::atomic<void*> loggerFinder{nullptr};

// TensorRT 11 and TensorRT-RTX number the interfaces of loggers, TensorRT 10 does not: their function is then the first of all,
// else it stands behind language, info and two destructors. The finder's base class tells which; -1 if it is no such class.
int loggerFunction(void* finder) {
    auto const type = (*static_cast<std::type_info const***>(finder))[-1];
    for (auto t = dynamic_cast<abi::__si_class_type_info const*>(type); t != nullptr;
         t = dynamic_cast<abi::__si_class_type_info const*>(t->__base_type)) {
        if (std::strcmp(t->__base_type->name(), "N8nvinfer15v_1_013ILoggerFinderE") == 0) return 4;
        if (std::strcmp(t->__base_type->name(), "N8nvinfer113ILoggerFinderE") == 0) return 0;
    }
    return -1;
}

void complain(std::string const& plugin, char const* what) noexcept {
    try {
        std::string const text = "trtconvert: plugin " + plugin + ": " + what;
        void* const finder = loggerFinder;
        if (int const place = finder != nullptr ? loggerFunction(finder) : -1; place >= 0) {
            using Find = void* (*)(void*);
            using Log = void (*)(void*, int32_t, char const*);
            if (void* const logger = (*static_cast<Find**>(finder))[place](finder); logger != nullptr)
                return (*static_cast<Log**>(logger))[place](logger, 1, text.c_str());  // 1: error
        }
        std::fprintf(stderr, "%s\n", text.c_str());
    } catch (...) {
        std::fputs("trtconvert: a plugin failed\n", stderr);
    }
}

// Runs it; when it fails, says so and returns `otherwise`.
template <class Result, class Work>
Result guarded(std::string const& plugin, Result otherwise, Work&& work) noexcept {
    try {
        return work();
    } catch (std::exception const& error) {
        complain(plugin, error.what());
    } catch (...) {
        complain(plugin, "an unknown failure");
    }
    return otherwise;
}

// --- the plugin ------------------------------------------------------------------------------------------------------

struct Name {
    char const *name, *version, *space;
};

class Plugin final : public trt::IPluginV3,
                     public trt::IPluginV3OneCore,
                     public trt::IPluginV3OneBuild,
                     public trt::IPluginV3OneRuntime {
public:
    Plugin(Name const& name, std::shared_ptr<Program const> program) : mName(name), mProgram(std::move(program)) {}

    trt::IPluginCapability* getCapabilityInterface(trt::PluginCapabilityType type) noexcept override {
        if (type == trt::PluginCapabilityType::kBUILD) return static_cast<trt::IPluginV3OneBuild*>(this);
        if (type == trt::PluginCapabilityType::kRUNTIME) return static_cast<trt::IPluginV3OneRuntime*>(this);
        return static_cast<trt::IPluginV3OneCore*>(this);
    }
    trt::IPluginV3* clone() noexcept override {
        return guarded<trt::IPluginV3*>(mName.name, nullptr, [&] { return new Plugin(mName, mProgram); });
    }
    trt::IPluginV3* attachToContext(trt::IPluginResourceContext*) noexcept override { return clone(); }
    char const* getPluginName() const noexcept override { return mName.name; }
    char const* getPluginVersion() const noexcept override { return mName.version; }
    char const* getPluginNamespace() const noexcept override { return mName.space; }
    trt::PluginFieldCollection const* getFieldsToSerialize() noexcept override { return &mProgram->collection; }

    // build

    int32_t getNbOutputs() const noexcept override { return mProgram->outputs; }

    int32_t getOutputDataTypes(trt::DataType* out, int32_t outs, trt::DataType const*, int32_t ins) const noexcept override {
        return guarded(mName.name, -1, [&] {
            checkCounts(ins, outs);
            for (int32_t i = 0; i < outs; ++i) out[i] = mProgram->results[i].type;
            return 0;
        });
    }

    int32_t getOutputShapes(
        trt::DimsExprs const* in, int32_t ins, trt::DimsExprs const*, int32_t, trt::DimsExprs* out, int32_t outs,
        trt::IExprBuilder& builder) noexcept override {
        return guarded(mName.name, -1, [&] {
            checkCounts(ins, outs);
            using Expr = trt::IDimensionExpr const*;
            using Op = trt::DimensionOperation;
            auto const constant = [&](int64_t value) -> Expr { return builder.constant(value); };
            auto const dim = [&](int64_t input, int64_t axis) -> Expr {
                if (input < 0 || input >= ins || axis < 0 || axis >= in[input].nbDims) throw Fault("an input or dimension is missing");
                return in[input].d[axis];
            };
            auto const apply = [&](char kind, Expr a, Expr b) -> Expr {
                static std::map<char, Op> const ops{{'+', Op::kSUM}, {'-', Op::kSUB}, {'*', Op::kPROD}, {'/', Op::kFLOOR_DIV},
                                                    {'^', Op::kCEIL_DIV}, {'m', Op::kMIN}, {'M', Op::kMAX}};
                return builder.operation(ops.at(kind), *a, *b);
            };
            int32_t count = outs;  // the size tensors are the last outputs
            for (Described const& tensor : mProgram->results)
                count -= static_cast<int32_t>(std::count(tensor.counted.begin(), tensor.counted.end(), true));
            for (int32_t i = 0; i < outs; ++i) {
                Described const& tensor = mProgram->results[i];
                out[i].nbDims = static_cast<int32_t>(tensor.shape.size());
                for (int32_t axis = 0; axis < out[i].nbDims; ++axis) {
                    Expr size = fold<Expr>(tensor.shape[axis], constant, dim, apply);
                    if (tensor.counted[axis]) size = builder.declareSizeTensor(count++, *apply('^', size, constant(2)), *size);
                    out[i].d[axis] = size;
                }
            }
            return 0;
        });
    }

    bool supportsFormatCombination(
        int32_t position, trt::DynamicPluginTensorDesc const* inOut, int32_t ins, int32_t outs) noexcept override {
        return guarded(mName.name, false, [&] {
            checkCounts(ins, outs);
            auto const& asked = inOut[position].desc;
            auto const& tensor = position < ins ? mProgram->inputs[position] : mProgram->results[position - ins];
            return asked.format == trt::TensorFormat::kLINEAR && asked.type == tensor.type;
        });
    }

    // The launches were written for sizes known then; others would make them wrong.
    int32_t configurePlugin(
        trt::DynamicPluginTensorDesc const* in, int32_t ins, trt::DynamicPluginTensorDesc const*, int32_t outs) noexcept override {
        return guarded(mName.name, -1, [&] {
            checkCounts(ins, outs);
            for (int32_t i = 0; i < ins; ++i) {
                auto const& shape = mProgram->inputs[i].shape;
                trt::Dims const& dims = in[i].desc.dims;
                bool same = static_cast<size_t>(dims.nbDims) == shape.size();
                for (int32_t axis = 0; same && axis < dims.nbDims; ++axis)
                    same = shape[axis][0].kind == 'i' || shape[axis][0].a == dims.d[axis];
                if (!same)
                    throw Fault(
                        "input " + std::to_string(i) + " has another shape than the kernels inside the node are for; write them again "
                        "with: trtconvert plugins carry");
            }
            return 0;
        });
    }

    size_t getWorkspaceSize(
        trt::DynamicPluginTensorDesc const* in, int32_t ins, trt::DynamicPluginTensorDesc const*, int32_t) const noexcept override {
        return guarded<size_t>(mName.name, 0, [&]() -> size_t {
            if (mProgram->workspace.empty()) return 0;
            return evaluate(mProgram->workspace, ins, [&](int64_t i) -> trt::Dims const& { return in[i].max; });
        });
    }

    // run

    // Evaluates the launches for these shapes. TensorRT calls this before every execution: what is known already is kept.
    int32_t onShapeChange(
        trt::PluginTensorDesc const* in, int32_t ins, trt::PluginTensorDesc const*, int32_t outs) noexcept override {
        auto const shape = [&](int64_t i) -> trt::Dims const& { return in[i].dims; };
        auto const known = [&] {
            size_t i = 0;
            for (auto const& [input, axis] : mProgram->dims)
                if (input >= ins || axis >= in[input].dims.nbDims || mSizes[i++] != in[input].dims.d[axis]) return false;
            return true;
        };
        if (mPrepared && known()) return 0;
        return guarded(mName.name, -1, [&] {
            mPrepared = false;
            mSizes.clear();
            for (auto const& [input, axis] : mProgram->dims) mSizes.push_back(sizeOf(ins, shape, input, axis));
            prepare(ins, outs, shape);
            mPrepared = true;
            return 0;
        });
    }

    // Fills in the pointers and launches. Allocates nothing and waits for nothing, so that it can be captured.
    int32_t enqueue(
        trt::PluginTensorDesc const*, trt::PluginTensorDesc const*, void const* const* in, void* const* out, void* work,
        CUstream_st* stream) noexcept override {
        if (!mPrepared) return -1;  // onShapeChange has said why
        for (Slot const& slot : mSlots) {
            if (slot.kind == Argument::IN) mValues[slot.value].pointer = in[slot.offset];
            else if (slot.kind == Argument::OUT) mValues[slot.value].pointer = out[slot.offset];
            else mValues[slot.value].pointer = static_cast<char*>(work) + slot.offset;
        }
        for (Call& call : mCalls) {
            int const status = launch(call, stream);
            if (status != 0)
                return guarded(mName.name, -1, [&] {
                    driver().check(status, "launching a kernel");
                    return 0;
                });
        }
        return 0;
    }

private:
    union Value {
        void const* pointer;
        int64_t integer;
        float number;
    };
    struct Slot {  // a pointer that enqueue fills in; offset: its input's or output's number, or bytes into the lent memory
        Argument::Kind kind;
        size_t value;
        int64_t offset;
    };
    struct Call {
        Pointer function;
        unsigned sizes[7];
        bool overlaps;
        std::vector<void*> arguments;  // addresses of elements of mValues
    };

    static int launch(Call& call, CUstream_st* stream) {
        unsigned const* s = call.sizes;
        if (!call.overlaps)
            return driver().launch(
                call.function, s[0], s[1], s[2], s[3], s[4], s[5], s[6], stream, call.arguments.data(), nullptr);
        LaunchConfig const config{{s[0], s[1], s[2]}, {s[3], s[4], s[5]}, s[6], stream, &OVERLAPPING, 1};
        return driver().launchAsTold(&config, call.function, call.arguments.data(), nullptr);
    }

    void checkCounts(int32_t ins, int32_t outs) const {
        if (static_cast<size_t>(ins) != mProgram->inputs.size() || static_cast<size_t>(outs) != mProgram->results.size())
            throw Fault(
                "the node has " + std::to_string(ins) + " inputs and " + std::to_string(outs) + " outputs, the kernels inside it have "
                "others");
    }

    template <class Shape>
    void prepare(int32_t ins, int32_t outs, Shape shape) {
        size_t count = 0;
        for (Launch const& launch : mProgram->launches) count += launch.arguments.size();
        mCalls.clear();
        mSlots.clear();
        mValues.assign(count, {});  // never resized below: calls hold addresses
        count = 0;
        for (Launch const& launch : mProgram->launches) {
            Call call{};
            for (size_t i = 0; i < 7; ++i) {
                int64_t const size = evaluate(launch.sizes[i], ins, shape);
                if (size < 0 || size > INT32_MAX)
                    throw Fault("kernel " + launch.kernel + " cannot have a size of " + std::to_string(size));
                call.sizes[i] = static_cast<unsigned>(size);
            }
            if (call.sizes[0] == 0 || call.sizes[1] == 0 || call.sizes[2] == 0) continue;  // nothing to compute
            for (Argument const& a : launch.arguments) {
                bool const tensor = a.kind == Argument::IN || a.kind == Argument::OUT;
                if (tensor && (a.index < 0 || a.index >= (a.kind == Argument::IN ? ins : outs)))
                    throw Fault("an input or output is missing");
                if (tensor) mSlots.push_back({a.kind, count, a.index});
                else if (a.kind == Argument::WORK) mSlots.push_back({a.kind, count, evaluate(a.size, ins, shape)});
                else if (a.kind == Argument::INT) mValues[count].integer = evaluate(a.size, ins, shape);
                else mValues[count].number = a.number;
                call.arguments.push_back(&mValues[count++]);
            }
            std::lock_guard<std::mutex> const lock(loading);
            int const arch = 10 * driver().ask(COMPUTE_MAJOR) + driver().ask(COMPUTE_MINOR);
            Image const image = chooseImage(*mProgram, arch);
            Kernel& kernel = loadKernel(*image.code, launch.kernel);
            call.function = kernel.function;
            // The first would not wait for all that is before it.
            call.overlaps =
                launch.overlaps && !mCalls.empty() && image.arch >= OVERLAP_ARCH && driver().launchAsTold != nullptr;
            call.sizes[6] = static_cast<unsigned>(allowShared(kernel, call.sizes[6]));
            mCalls.push_back(std::move(call));
        }
    }

    Name const& mName;
    std::shared_ptr<Program const> const mProgram;
    bool mPrepared = false;
    std::vector<int64_t> mSizes;  // the dimensions that it is prepared for
    std::vector<Value> mValues;
    std::vector<Slot> mSlots;
    std::vector<Call> mCalls;
};

class Creator final : public trt::IPluginCreatorV3One {
public:
    explicit Creator(Name const& name) : mName(name) {}

    trt::IPluginV3* createPlugin(
        char const*, trt::PluginFieldCollection const* fields, trt::TensorRTPhase phase) noexcept override {
        return guarded<trt::IPluginV3*>(mName.name, nullptr, [&] {
            return new Plugin(mName, readFields(*fields, phase == trt::TensorRTPhase::kBUILD));
        });
    }
    trt::PluginFieldCollection const* getFieldNames() noexcept override {
        static trt::PluginField const fields[]{
            {"trtconvert_launch", nullptr, trt::PluginFieldType::kCHAR, 1},
            {"trtconvert_build", nullptr, trt::PluginFieldType::kCHAR, 1},
            {"trtconvert_images", nullptr, trt::PluginFieldType::kINT8, 1},
        };
        static trt::PluginFieldCollection const collection{3, fields};
        return &collection;
    }
    char const* getPluginName() const noexcept override { return mName.name; }
    char const* getPluginVersion() const noexcept override { return mName.version; }
    char const* getPluginNamespace() const noexcept override { return mName.space; }

private:
    Name mName;
};

Creator creators[]{
#define CREATOR(name, version, space) Creator({name, version, space}),
#include "creators.inc"
    MORE_CREATORS
};

}  // namespace

EXPORT void setLoggerFinder(void* finder) {
    loggerFinder = finder;
}

EXPORT trt::IPluginCreatorInterface* const* getCreators(int32_t& count) {
    static std::vector<trt::IPluginCreatorInterface*> const all = [] {
        std::vector<trt::IPluginCreatorInterface*> found;
        for (Creator& creator : creators) found.push_back(&creator);
        return found;
    }();
    count = static_cast<int32_t>(all.size());
    return all.data();
}
