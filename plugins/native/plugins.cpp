// The plugins of all ops in one class. A plan holds a plugin as fields: its launches as text (written by trtconvert/launch.py,
// which says what each line means) and their kernels as machine code, one image per GPU architecture. This library reads them,
// loads the image that fits with the CUDA driver, and launches. It knows no op; creators.inc and -DMORE_CREATORS give names.
//
// To build an engine with it, a node has the same data as attributes (written by trtconvert/carried.py): "trtconvert_launch" and
// "trtconvert_images" as they go into the plan, and "trtconvert_build", which says in lines what the builder asks: the types and
// shapes of inputs and outputs, how much memory to lend, the images' names and sizes.
//
// Needs no library: TensorRT calls it, and the CUDA driver is opened when the first kernel is loaded. Nothing is thrown or
// aborted across the border; a failure is told to TensorRT's logger and returned as an error.
#ifdef TENSORRT_HEADERS
#include <NvInferRuntime.h>
namespace trt = nvinfer1;
#else
#include "plugin_abi.h"
namespace trt = trtconvert_abi;
#endif

#include <algorithm>
#include <atomic>
#include <cctype>
#include <cstdio>
#include <cstring>
#include <cxxabi.h>
#include <dlfcn.h>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <typeinfo>
#include <utility>
#include <vector>

#ifndef MORE_CREATORS
#define MORE_CREATORS
#endif
#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

constexpr int LAUNCH_FORMAT = 2, BUILD_FORMAT = 1;  // the newest that this library reads
constexpr int64_t SHARED_UNASKED = 32 * 1024;       // bytes of shared memory that every kernel may use without asking

struct Fault : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// --- messages ------------------------------------------------------------------------------------------------------

std::atomic<void*> loggerFinder{nullptr};

// TensorRT 11 and TensorRT-RTX number the interface of loggers, TensorRT 10 does not: its function is then the first of all,
// else it stands behind language, info and two destructors. The object's own type tells which it is.
int firstFunction(void* object) {
    auto const type = (*static_cast<std::type_info const***>(object))[-1];
    for (auto t = dynamic_cast<abi::__si_class_type_info const*>(type); t != nullptr;
         t = dynamic_cast<abi::__si_class_type_info const*>(t->__base_type))
        if (std::strstr(t->__base_type->name(), "5v_1_013ILoggerFinder") != nullptr) return 4;
    return 0;
}

void complain(std::string const& plugin, char const* what) noexcept {
    try {
        std::string const text = "trtconvert: plugin " + plugin + ": " + what;
        if (void* const finder = loggerFinder; finder != nullptr) {
            int const first = firstFunction(finder);
            using Find = void* (*)(void*);
            using Log = void (*)(void*, int32_t, char const*);
            if (void* const logger = (*static_cast<Find**>(finder))[first](finder); logger != nullptr)
                return (*static_cast<Log**>(logger))[first](logger, 1, text.c_str());  // 1: error
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

// --- sizes: postfix expressions of input dimensions ------------------------------------------------------------------

struct Token {
    char kind;  // 'n': the number a. 'i': dimension b of input a. 'm' and 'M': min and max. Else the operator itself.
    int64_t a = 0, b = 0;
};
using Size = std::vector<Token>;

int64_t integer(std::string const& text) {
    size_t used = 0;
    int64_t const value = std::stoll(text, &used);
    if (used != text.size()) throw Fault("not an integer: " + text);
    return value;
}

Size readSize(std::string const& text) {
    Size size;
    std::istringstream words(text);
    int depth = 0;
    for (std::string word; words >> word;) {
        if (word == "min" || word == "max") size.push_back({word == "min" ? 'm' : 'M'});
        else if (word.size() == 1 && std::strchr("+-*/^", word[0])) size.push_back({word[0]});
        else if (auto const dot = word.find('.'); word[0] == 'i' && dot != std::string::npos)
            size.push_back({'i', integer(word.substr(1, dot - 1)), integer(word.substr(dot + 1))});
        else size.push_back({'n', integer(word)});
        depth += size.back().kind == 'n' || size.back().kind == 'i' ? 1 : -1;
        if (depth < 1) break;
    }
    if (depth != 1) throw Fault("a damaged expression: " + text);
    return size;
}

// Computes it in any algebra: integers at run time, TensorRT's expressions when building.
template <class Value, class Constant, class Dim, class Apply>
Value fold(Size const& size, Constant constant, Dim dim, Apply apply) {
    std::vector<Value> stack;
    for (Token const& t : size) {
        if (t.kind == 'n') stack.push_back(constant(t.a));
        else if (t.kind == 'i') stack.push_back(dim(t.a, t.b));
        else {
            Value const right = stack.back();
            stack.pop_back();
            stack.back() = apply(t.kind, stack.back(), right);
        }
    }
    return stack.back();
}

int64_t arithmetic(char kind, int64_t a, int64_t b) {
    if (b == 0 && (kind == '/' || kind == '^')) throw Fault("a size is divided by zero");
    switch (kind) {
        case '+': return a + b;
        case '-': return a - b;
        case '*': return a * b;
        case '/': return a / b - (a % b != 0 && (a < 0) != (b < 0));
        case '^': return a / b + (a % b != 0 && (a < 0) == (b < 0));
        case 'm': return std::min(a, b);
        default: return std::max(a, b);
    }
}

// Its value, where shape(i) are the dimensions of input i of so many.
template <class Shape>
int64_t evaluate(Size const& size, int32_t inputs, Shape shape) {
    auto const dim = [&](int64_t input, int64_t axis) -> int64_t {
        if (input < 0 || input >= inputs || axis < 0 || axis >= shape(input).nbDims) throw Fault("an input or dimension is missing");
        return shape(input).d[axis];
    };
    return fold<int64_t>(size, [](int64_t value) { return value; }, dim, arithmetic);
}

// --- what the fields say ---------------------------------------------------------------------------------------------

struct Argument {
    enum Kind { IN, OUT, WORK, INT, FLOAT } kind;
    int64_t index = 0;  // of an input or output
    Size size;          // of an integer, or the offset into the lent memory
    float number = 0;
};
struct Launch {
    std::string kernel;
    std::vector<Size> sizes;  // grid, block, shared memory
    std::vector<Argument> arguments;
};
struct Described {  // a tensor as the builder asks for it; counted: dimensions that the kernel finds out
    trt::DataType type;
    std::vector<Size> shape;
    std::vector<bool> counted;
};
struct Program {
    std::string text;
    std::vector<Launch> launches;
    std::vector<std::pair<std::string, std::string>> images;  // architecture and machine code, in the plan's order
    std::set<std::pair<int64_t, int64_t>> dims;               // (input, axis) that the launches depend on
    int32_t outputs = 0;
    std::vector<Described> inputs, results;  // for building only, as is the next
    Size workspace;
    std::vector<trt::PluginField> fields;
    trt::PluginFieldCollection collection{};
};

std::vector<std::string> split(std::string const& text, char at) {
    std::vector<std::string> parts;
    std::istringstream stream(text);
    for (std::string part; std::getline(stream, part, at);) parts.push_back(part);
    return parts;
}

std::pair<std::string, std::string> cut(std::string const& line) {
    auto const space = line.find(' ');
    return {line.substr(0, space), space == std::string::npos ? "" : line.substr(space + 1)};
}

// The lines behind the header "MAGIC FORMAT", up to "end".
std::vector<std::string> body(std::string const& text, char const* magic, int newest) {
    auto lines = split(text, '\n');
    auto const [word, number] = cut(lines.empty() ? "" : lines[0]);
    bool const digits = !number.empty() && number.size() < 9 && std::all_of(number.begin(), number.end(), [](unsigned char c) { return std::isdigit(c); });
    if (word != magic || !digits) throw Fault("its description is not one of trtconvert's");
    if (integer(number) > newest)
        throw Fault(
            std::string("it uses ") + magic + " format " + number + ", this library reads up to " + std::to_string(newest) +
            "; bring the library of a newer trtconvert, or build the plan again");
    auto const end = std::find(lines.begin(), lines.end(), "end");
    if (end == lines.end()) throw Fault("its description is damaged: it has no end; copy the plan again, or build it again");
    return {lines.begin() + 1, end};
}

Argument readArgument(std::string const& text) {
    auto const [kind, value] = cut(text);
    if (kind == "in" || kind == "out") return {kind == "in" ? Argument::IN : Argument::OUT, integer(value), {}};
    if (kind == "work") return {Argument::WORK, 0, readSize(value)};
    if (kind == "int") return {Argument::INT, 0, readSize(value)};
    std::istringstream stream(value);
    stream.imbue(std::locale::classic());  // the point is a point, whatever the program's locale
    double number = 0;
    if (kind != "float" || !(stream >> number)) throw Fault("its description is damaged: argument " + text);
    return {Argument::FLOAT, 0, {}, static_cast<float>(number)};
}

void readLaunches(Program& program) {
    std::set<int64_t> outputs;
    for (std::string const& line : body(program.text, "trtconvert-launch", LAUNCH_FORMAT)) {
        auto const [key, value] = cut(line);
        if (key == "kernel") {
            program.launches.push_back({value, {}, {}});
            continue;
        }
        if (program.launches.empty()) continue;  // "op" and "attribute" are for people
        Launch& launch = program.launches.back();
        if (key == "arg") {
            launch.arguments.push_back(readArgument(value));
            if (launch.arguments.back().kind == Argument::OUT) outputs.insert(launch.arguments.back().index);
        } else if (key == "grid" || key == "block" || key == "shared") {
            for (std::string const& part : split(value, ',')) launch.sizes.push_back(readSize(part));
        }
    }
    program.outputs = static_cast<int32_t>(outputs.size());
    auto const note = [&](Size const& size) {
        for (Token const& t : size)
            if (t.kind == 'i') program.dims.insert({t.a, t.b});
    };
    for (Launch const& launch : program.launches) {
        if (launch.sizes.size() != 7) throw Fault("its description is damaged: kernel " + launch.kernel + "; copy the plan again, or build it again");
        std::for_each(launch.sizes.begin(), launch.sizes.end(), note);
        for (Argument const& argument : launch.arguments) note(argument.size);
    }
    if (program.launches.empty()) throw Fault("its description is damaged: no kernel; copy the plan again, or build it again");
}

trt::DataType typeOf(std::string const& name) {
    static std::map<std::string, int32_t> const types{
        {"float32", 0}, {"float16", 1}, {"int8", 2}, {"int32", 3}, {"bool", 4}, {"uint8", 5}, {"bfloat16", 7}, {"int64", 8}};
    auto const found = types.find(name);
    if (found == types.end()) throw Fault("unknown type " + name);
    return static_cast<trt::DataType>(found->second);
}

Described readTensor(std::string const& text) {
    auto const [type, shape] = cut(text);
    Described tensor{typeOf(type), {}, {}};
    for (std::string part : split(shape, ',')) {
        auto const at = part.find("counted ");
        tensor.counted.push_back(at != std::string::npos);
        tensor.shape.push_back(readSize(at == std::string::npos ? part : part.substr(at + 8)));
    }
    return tensor;
}

void readBuild(Program& program, std::string const& text, std::string const& images) {
    size_t start = 0;
    for (std::string const& line : body(text, "trtconvert-build", BUILD_FORMAT)) {
        auto const [key, value] = cut(line);
        if (key == "input") program.inputs.push_back(readTensor(value));
        else if (key == "output") program.results.push_back(readTensor(value));
        else if (key == "workspace") program.workspace = readSize(value);
        else if (key == "image") {
            auto const [arch, size] = cut(value);
            if (start + integer(size) > images.size()) throw Fault("the node's images are cut short");
            program.images.emplace_back(arch, images.substr(start, integer(size)));
            start += integer(size);
        }
    }
    if (start != images.size() || program.images.empty()) throw Fault("the node's images are not those of its description");
    program.outputs = static_cast<int32_t>(program.results.size());
}

std::shared_ptr<Program const> readFields(trt::PluginFieldCollection const& given, bool building) {
    auto program = std::make_shared<Program>();
    std::map<std::string, std::string> data;
    for (int32_t i = 0; i < given.nbFields; ++i) {
        trt::PluginField const& field = given.fields[i];
        std::string bytes(static_cast<char const*>(field.data), field.data == nullptr ? 0 : field.length);
        if (!building && std::strcmp(field.name, "launch") != 0) program->images.emplace_back(field.name, bytes);
        data[field.name] = std::move(bytes);
    }
    std::string const name = building ? "trtconvert_launch" : "launch";
    if (data.count(name) == 0 && building)
        throw Fault("the node does not carry its kernels; build the model with trtconvert, or let trtconvert write them into it");
    if (data.count(name) == 0) throw Fault("in this plan it was not built by trtconvert");
    program->text = data[name].substr(0, data[name].find('\0'));
    readLaunches(*program);
    if (building) readBuild(*program, data["trtconvert_build"], data["trtconvert_images"]);
    program->fields.push_back({"launch", program->text.data(), trt::PluginFieldType::kCHAR, static_cast<int32_t>(program->text.size())});
    for (auto const& [arch, image] : program->images)
        program->fields.push_back({arch.c_str(), image.data(), trt::PluginFieldType::kINT8, static_cast<int32_t>(image.size())});
    program->collection = {static_cast<int32_t>(program->fields.size()), program->fields.data()};
    return program;
}

// --- the CUDA driver -------------------------------------------------------------------------------------------------

using Pointer = void*;  // the driver's handles
enum { COMPUTE_MAJOR = 75, COMPUTE_MINOR = 76, SHARED_OPTIN = 97 };
enum { FUNCTION_SHARED = 1, FUNCTION_MAX_DYNAMIC_SHARED = 8 };

struct Driver {
    int (*text)(int, char const**);
    int (*current)(Pointer*);
    int (*identity)(Pointer, unsigned long long*);  // null in drivers before CUDA 12
    int (*device)(int*);
    int (*attribute)(int*, int, int);
    int (*load)(Pointer*, void const*);
    int (*function)(Pointer*, Pointer, char const*);
    int (*functionAttribute)(int*, int, Pointer);
    int (*setFunctionAttribute)(Pointer, int, int);
    int (*launch)(Pointer, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Pointer, void**, void**);

    Driver() {
        void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
        if (library == nullptr) throw Fault("there is no NVIDIA driver on this machine: libcuda.so.1 does not open");
        auto const find = [&](auto& place, char const* name, bool needed = true) {
            void* const symbol = dlsym(library, name);
            if (symbol == nullptr && needed) throw Fault(std::string("the CUDA driver is too old: it has no ") + name);
            std::memcpy(&place, &symbol, sizeof symbol);
        };
        find(text, "cuGetErrorString");
        find(current, "cuCtxGetCurrent");
        find(identity, "cuCtxGetId", false);
        find(device, "cuCtxGetDevice");
        find(attribute, "cuDeviceGetAttribute");
        find(load, "cuModuleLoadData");
        find(function, "cuModuleGetFunction");
        find(functionAttribute, "cuFuncGetAttribute");
        find(setFunctionAttribute, "cuFuncSetAttribute");
        find(launch, "cuLaunchKernel");
    }

    void check(int status, char const* what) const {
        char const* reason = nullptr;
        if (status == 0) return;
        if (text(status, &reason) != 0 || reason == nullptr) reason = "unknown error";
        throw Fault(std::string("the CUDA driver reports: ") + reason + " (" + std::to_string(status) + ", " + what + ")");
    }

    int ask(int what) const {
        int here = 0, value = 0;
        check(device(&here), "device");
        check(attribute(&value, what, here), "attribute");
        return value;
    }
};

Driver const& driver() {
    static Driver const opened;
    return opened;
}

struct Kernel {
    Pointer function = nullptr;
    int64_t allowed = SHARED_UNASKED;  // bytes of dynamic shared memory; only ever raised, since others use the kernel too
};

// The image for this architecture: its own cubin, one of the same major version and a lower minor one, else PTX.
std::string const& chooseImage(Program const& program, int arch) {
    std::string const* best = nullptr;
    std::string names;
    for (bool const ptx : {false, true}) {
        int highest = -1;
        for (auto const& [name, image] : program.images) {
            std::string const prefix = ptx ? "compute_" : "sm_";
            if (name.rfind(prefix, 0) != 0) continue;
            int const number = static_cast<int>(integer(name.substr(prefix.size())));
            names += (names.empty() ? "" : ", ") + name;
            if (number <= highest || number > arch || (!ptx && number / 10 != arch / 10)) continue;
            highest = number;
            best = &image;
        }
        if (best != nullptr) return *best;
    }
    std::string const here = "sm_" + std::to_string(arch);
    throw Fault("the plan's kernels were compiled for " + names + ", this GPU is " + here + "; build the plan again with --target " + here);
}

// Kernels of this process: by context, image and name. They stay loaded, since a CUDA graph may outlive its engine.
std::mutex loading;

Kernel& loadKernel(std::string const& image, std::string const& name) {
    static std::map<std::pair<unsigned long long, std::string>, Pointer> modules;
    static std::map<std::pair<Pointer, std::string>, Kernel> kernels;
    Driver const& cuda = driver();
    Pointer context = nullptr;
    cuda.check(cuda.current(&context), "context");
    if (context == nullptr) throw Fault("this thread has no current CUDA context; call cudaSetDevice before TensorRT");
    auto id = reinterpret_cast<unsigned long long>(context);
    if (cuda.identity != nullptr) cuda.check(cuda.identity(context, &id), "context");
    Pointer& module = modules[{id, image}];
    if (module == nullptr) cuda.check(cuda.load(&module, image.c_str()), "loading a kernel");
    Kernel& kernel = kernels[{module, name}];
    if (kernel.function == nullptr) cuda.check(cuda.function(&kernel.function, module, name.c_str()), name.c_str());
    return kernel;
}

// Lets the kernel use so much dynamic shared memory, or as much as a block of this GPU can have; returns how much.
int64_t allowShared(Kernel& kernel, int64_t wanted) {
    if (wanted <= SHARED_UNASKED) return wanted;
    Driver const& cuda = driver();
    int declared = 0;
    cuda.check(cuda.functionAttribute(&declared, FUNCTION_SHARED, kernel.function), "shared memory");
    int64_t const given = std::min<int64_t>(wanted, cuda.ask(SHARED_OPTIN) - declared);
    if (given > kernel.allowed) {
        cuda.check(cuda.setFunctionAttribute(kernel.function, FUNCTION_MAX_DYNAMIC_SHARED, static_cast<int>(given)), "shared memory");
        kernel.allowed = given;
    }
    return given;
}

// --- the plugin ------------------------------------------------------------------------------------------------------

struct Name {
    char const *name, *version, *space;
};

class Plugin final : public trt::IPluginV3, public trt::IPluginV3OneCore, public trt::IPluginV3OneBuild, public trt::IPluginV3OneRuntime {
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
                if (input >= ins || axis >= in[input].nbDims) throw Fault("an input or dimension is missing");
                return in[input].d[axis];
            };
            auto const apply = [&](char kind, Expr a, Expr b) -> Expr {
                static std::map<char, Op> const ops{{'+', Op::kSUM}, {'-', Op::kSUB}, {'*', Op::kPROD}, {'/', Op::kFLOOR_DIV},
                                                    {'^', Op::kCEIL_DIV}, {'m', Op::kMIN}, {'M', Op::kMAX}};
                return builder.operation(ops.at(kind), *a, *b);
            };
            int32_t count = outs;  // the size tensors are the last outputs
            for (Described const& tensor : mProgram->results) count -= std::count(tensor.counted.begin(), tensor.counted.end(), true);
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
                if (!same) throw Fault("input " + std::to_string(i) + " has another shape than its kernels were written for; let trtconvert write the model again");
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
    int32_t onShapeChange(trt::PluginTensorDesc const* in, int32_t ins, trt::PluginTensorDesc const*, int32_t outs) noexcept override {
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
            prepare(ins, outs, shape);
            mSizes.clear();
            for (auto const& [input, axis] : mProgram->dims) mSizes.push_back(in[input].dims.d[axis]);
            mPrepared = true;
            return 0;
        });
    }

    // Fills in the pointers and launches. Allocates nothing and waits for nothing, so that it can be captured.
    int32_t enqueue(
        trt::PluginTensorDesc const*, trt::PluginTensorDesc const*, void const* const* in, void* const* out, void* work,
        CUstream_st* stream) noexcept override {
        for (Slot const& slot : mSlots) {
            if (slot.kind == Argument::IN) mValues[slot.value].pointer = in[slot.offset];
            else if (slot.kind == Argument::OUT) mValues[slot.value].pointer = out[slot.offset];
            else mValues[slot.value].pointer = static_cast<char*>(work) + slot.offset;
        }
        for (Call& call : mCalls) {
            unsigned const* s = call.sizes;
            int const status = driver().launch(call.function, s[0], s[1], s[2], s[3], s[4], s[5], s[6], stream, call.arguments.data(), nullptr);
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
        std::vector<void*> arguments;  // addresses of elements of mValues
    };

    void checkCounts(int32_t ins, int32_t outs) const {
        if (static_cast<size_t>(ins) != mProgram->inputs.size() || static_cast<size_t>(outs) != mProgram->results.size())
            throw Fault("the node has " + std::to_string(ins) + " inputs and " + std::to_string(outs) + " outputs, its kernels were written for others");
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
                if (size < 0 || size > INT32_MAX) throw Fault("kernel " + launch.kernel + " cannot have a size of " + std::to_string(size));
                call.sizes[i] = static_cast<unsigned>(size);
            }
            if (call.sizes[0] == 0 || call.sizes[1] == 0 || call.sizes[2] == 0) continue;  // nothing to compute
            for (Argument const& a : launch.arguments) {
                bool const tensor = a.kind == Argument::IN || a.kind == Argument::OUT;
                if (tensor && (a.index < 0 || a.index >= (a.kind == Argument::IN ? ins : outs))) throw Fault("an input or output is missing");
                if (tensor) mSlots.push_back({a.kind, count, a.index});
                else if (a.kind == Argument::WORK) mSlots.push_back({a.kind, count, evaluate(a.size, ins, shape)});
                else if (a.kind == Argument::INT) mValues[count].integer = evaluate(a.size, ins, shape);
                else mValues[count].number = a.number;
                call.arguments.push_back(&mValues[count++]);
            }
            std::lock_guard<std::mutex> const lock(loading);
            int const arch = 10 * driver().ask(COMPUTE_MAJOR) + driver().ask(COMPUTE_MINOR);
            Kernel& kernel = loadKernel(chooseImage(*mProgram, arch), launch.kernel);
            call.function = kernel.function;
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

    trt::IPluginV3* createPlugin(char const*, trt::PluginFieldCollection const* fields, trt::TensorRTPhase phase) noexcept override {
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
