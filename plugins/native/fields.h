// What the fields of a plugin say: launches with sizes as expressions of input dimensions, images, and what the builder asks.
// The texts are those of trtconvert/launch.py and trtconvert/carried.py, which say what each line means.
#pragma once
#ifdef TENSORRT_HEADERS
#include <NvInferRuntime.h>
namespace trt = nvinfer1;
#else
#include "plugin_abi.h"
namespace trt = trtconvert_abi;
#endif

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <locale>
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace {

constexpr int LAUNCH_FORMAT = 2, BUILD_FORMAT = 1;  // the newest that this library reads

struct Fault : std::runtime_error {
    using std::runtime_error::runtime_error;
};

Fault damaged(std::string const& what) {
    return Fault("its description is damaged: " + what + "; copy the plan again, or build it again");
}

// --- sizes: postfix expressions of input dimensions ------------------------------------------------------------------

struct Token {
    char kind;  // 'n': the number a. 'i': dimension b of input a. 'm' and 'M': min and max. Else the operator itself.
    int64_t a = 0, b = 0;
};
using Size = std::vector<Token>;

int64_t integer(std::string const& text) {
    char* end = nullptr;
    int64_t const value = std::strtoll(text.c_str(), &end, 10);
    if (text.empty() || *end != '\0') throw damaged("'" + text + "' should be an integer");
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
    if (depth != 1) throw damaged("the size '" + text + "'");
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
    if ((kind == '/' || kind == '^') && (b == 0 || (b == -1 && a == INT64_MIN))) throw Fault("a size is divided by zero, or overflows");
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

// Dimension `axis` of input `input`, where shape(i) are the dimensions of input i of so many.
template <class Shape>
int64_t sizeOf(int32_t inputs, Shape shape, int64_t input, int64_t axis) {
    if (input < 0 || input >= inputs || axis < 0 || axis >= shape(input).nbDims) throw Fault("an input or dimension is missing");
    return shape(input).d[axis];
}

template <class Shape>
int64_t evaluate(Size const& size, int32_t inputs, Shape shape) {
    auto const dim = [&](int64_t input, int64_t axis) { return sizeOf(inputs, shape, input, axis); };
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
    bool overlaps;  // it may start while the launch before it still runs, for which its kernel waits by itself
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
    bool const counts = !number.empty() && number.size() < 9 && number.find_first_not_of("0123456789") == std::string::npos;
    if (word != magic || !counts) throw Fault("its description is not one of trtconvert's");
    if (integer(number) > newest)
        throw Fault(
            std::string("it uses ") + magic + " format " + number + ", this library reads up to " + std::to_string(newest) +
            "; bring the library of a newer trtconvert, or build the plan again");
    auto const end = std::find(lines.begin(), lines.end(), "end");
    if (end == lines.end()) throw damaged("it has no end");
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
    if (kind != "float" || !(stream >> number)) throw damaged("argument " + text);
    return {Argument::FLOAT, 0, {}, static_cast<float>(number)};
}

void readLaunches(Program& program) {
    std::set<int64_t> outputs;
    for (std::string const& line : body(program.text, "trtconvert-launch", LAUNCH_FORMAT)) {
        auto const [key, value] = cut(line);
        if (key == "kernel") {
            program.launches.push_back({value, {}, {}, false});
            continue;
        }
        if (program.launches.empty()) continue;  // "op" and "attribute" are for people
        Launch& launch = program.launches.back();
        if (key == "arg") {
            launch.arguments.push_back(readArgument(value));
            if (launch.arguments.back().kind == Argument::OUT) outputs.insert(launch.arguments.back().index);
        } else if (key == "grid" || key == "block" || key == "shared") {
            for (std::string const& part : split(value, ',')) launch.sizes.push_back(readSize(part));
        } else if (key == "overlaps") {
            launch.overlaps = value == "1";
        }
    }
    program.outputs = static_cast<int32_t>(outputs.size());
    auto const note = [&](Size const& size) {
        for (Token const& t : size)
            if (t.kind == 'i') program.dims.insert({t.a, t.b});
    };
    for (Launch const& launch : program.launches) {
        if (launch.sizes.size() != 7) throw damaged("kernel " + launch.kernel);
        std::for_each(launch.sizes.begin(), launch.sizes.end(), note);
        for (Argument const& argument : launch.arguments) note(argument.size);
    }
    if (program.launches.empty()) throw damaged("no kernel");
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
        throw Fault("the node has no kernels inside; build it with trtconvert, or write them with: trtconvert plugins carry");
    if (data.count(name) == 0) throw Fault("in this plan it was not built by trtconvert");
    program->text = data[name].substr(0, data[name].find('\0'));
    readLaunches(*program);
    if (building) readBuild(*program, data["trtconvert_build"], data["trtconvert_images"]);
    auto const keep = [&](char const* field, std::string const& bytes, trt::PluginFieldType type) {
        program->fields.push_back({field, bytes.data(), type, static_cast<int32_t>(bytes.size())});
    };
    keep("launch", program->text, trt::PluginFieldType::kCHAR);
    for (auto const& [arch, image] : program->images) keep(arch.c_str(), image, trt::PluginFieldType::kINT8);
    program->collection = {static_cast<int32_t>(program->fields.size()), program->fields.data()};
    return program;
}

}  // namespace
