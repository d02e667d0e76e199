#include "accelerate/compile/region_program.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <optional>
#include <utility>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/jit_type.h>
#include <ATen/core/stack.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>
#include <nlohmann/json.hpp>

#include "absl/strings/str_split.h"

namespace accelerate {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kVersion = 1;

// ---- From the text.

double number_named(const std::string& name) {
  if (name == "inf") return std::numeric_limits<double>::infinity();
  if (name == "-inf") return -std::numeric_limits<double>::infinity();
  TORCH_CHECK(name == "nan", "a region has the number \"", name, "\", which there is not");
  return std::numeric_limits<double>::quiet_NaN();
}

// The type within an optional one.
c10::TypePtr wanted(const c10::TypePtr& type) {
  const auto optional = type->cast<c10::OptionalType>();
  return optional ? optional->getElementType() : type;
}

RegionArgument constant(c10::IValue value) {
  return {.kind = RegionArgument::Kind::kConstant, .constant = std::move(value)};
}

// A number as operators make tensors of them: it takes part in no promotion of types.
c10::IValue number_tensor(const Json& json) {
  const auto dtype = static_cast<at::ScalarType>(json.at("dtype").get<int>());
  const Json& value = json.at("number");
  const at::Scalar number = value.is_boolean()          ? at::Scalar(value.get<bool>())
                            : value.is_number_integer() ? at::Scalar(value.get<int64_t>())
                            : value.is_string() ? at::Scalar(number_named(value.get<std::string>()))
                                                : at::Scalar(value.get<double>());
  at::Tensor tensor = at::scalar_tensor(number, at::TensorOptions().dtype(dtype));
  tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return tensor;
}

RegionArgument argument_of(const Json& json, const c10::TypePtr& type);

RegionArgument list_of(const Json& json, const c10::TypePtr& type) {
  const auto list_type = wanted(type)->cast<c10::ListType>();
  TORCH_CHECK(list_type, "a region has a list where ", type->str(), " is expected");
  c10::TypePtr element = list_type->getElementType();
  if (element->kind() == c10::TypeKind::OptionalType &&
      wanted(element)->kind() == c10::TypeKind::TensorType) {
    element = c10::getTypePtr<std::optional<at::Tensor>>();
  }
  RegionArgument argument{.kind = RegionArgument::Kind::kList, .element_type = element};
  for (const Json& each : json) argument.list.push_back(argument_of(each, element));
  const bool has_tensors = std::ranges::any_of(argument.list, [](const RegionArgument& each) {
    return each.kind != RegionArgument::Kind::kConstant;
  });
  if (has_tensors) return argument;
  c10::impl::GenericList list(element);
  for (RegionArgument& each : argument.list) list.push_back(std::move(each.constant));
  return constant(std::move(list));
}

RegionArgument argument_of(const Json& json, const c10::TypePtr& type) {
  switch (json.type()) {
    case Json::value_t::null:
      return constant(type->kind() == c10::TypeKind::TensorType ? c10::IValue(at::Tensor())
                                                                : c10::IValue());
    case Json::value_t::boolean: return constant(json.get<bool>());
    case Json::value_t::number_integer:
    case Json::value_t::number_unsigned: return constant(json.get<int64_t>());
    case Json::value_t::number_float: return constant(json.get<double>());
    case Json::value_t::string: return constant(json.get<std::string>());
    case Json::value_t::array: return list_of(json, type);
    default: break;
  }
  if (json.contains("t")) {
    return {.kind = RegionArgument::Kind::kTensor, .tensor = json["t"].get<int>()};
  }
  if (json.contains("number")) return constant(number_tensor(json));
  if (json.contains("f")) return constant(number_named(json["f"].get<std::string>()));
  return constant(c10::Device(json.at("device").get<std::string>()));
}

c10::OperatorHandle operator_named(const std::string& name) {
  const std::pair<std::string, std::string> parts = absl::StrSplit(name, absl::MaxSplits('.', 1));
  const auto op = c10::Dispatcher::singleton().findSchema({parts.first, parts.second});
  TORCH_CHECK(op, "a region has the operator ", name, ", which LibTorch does not have");
  return *op;
}

// The number of a tensor; -1 for null.
int tensor_of(const Json& json) { return json.is_null() ? -1 : json.get<int>(); }

std::vector<int> tensors_of(const Json& list) {
  std::vector<int> tensors;
  std::ranges::transform(list, std::back_inserter(tensors), tensor_of);
  return tensors;
}

RegionStep step_of(const Json& line) {
  RegionStep step{.op = operator_named(line.at("op").get<std::string>())};
  const auto& expected = step.op.schema().arguments();
  const Json& arguments = line.at("args");
  TORCH_CHECK(arguments.size() == expected.size(), "a region gives ", line.at("op").dump(), " ",
              arguments.size(), " arguments, and it takes ", expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    step.arguments.push_back(argument_of(arguments[i], expected[i].type()));
  }
  for (const Json& result : line.at("out")) {
    step.results.push_back(tensors_of(result.is_array() ? result : Json::array({result})));
  }
  return step;
}

// ---- Lives of tensors.

template <typename Fn>
void for_each_tensor(const RegionArgument& argument, Fn&& fn) {
  if (argument.kind == RegionArgument::Kind::kTensor) fn(argument.tensor);
  for (const RegionArgument& each : argument.list) for_each_tensor(each, fn);
}

// Calls read(tensor) for each that the step's operator takes, then make(tensor) for each result.
template <typename Read, typename Make>
void for_each_tensor(const RegionStep& step, Read&& read, Make&& make) {
  for (const RegionArgument& argument : step.arguments) for_each_tensor(argument, read);
  for (const std::vector<int>& tensors : step.results) {
    for (const int tensor : tensors) {
      if (tensor >= 0) make(tensor);
    }
  }
}

void check_numbers(const RegionProgram& program) {
  const auto check = [&program](int tensor) {
    TORCH_CHECK(tensor >= 0 && tensor < program.num_tensors, "a region has tensor ", tensor, " of ",
                program.num_tensors);
  };
  for (const auto* steps : {&program.forward, &program.backward}) {
    for (const RegionStep& step : *steps) for_each_tensor(step, check, check);
  }
  for (const int output : program.outputs) {
    if (output >= 0) check(output);
  }
  std::ranges::for_each(program.gradients_of, check);
  for (const RegionGradient& each : program.gradients) {
    if (each.tensor >= 0) check(each.tensor);
    TORCH_CHECK(each.input >= 0 && each.input < program.num_inputs, "a region has a gradient of ",
                "input ", each.input, " of ", program.num_inputs);
  }
}

// What the backward half reads and does not make.
void find_saved(RegionProgram& program) {
  std::vector<bool> made(program.num_tensors, false);
  for (const int tensor : program.gradients_of) made[tensor] = true;
  const auto read = [&](int tensor) {
    if (made[tensor]) return;
    made[tensor] = true;
    program.saved.push_back(tensor);
  };
  for (const RegionStep& step : program.backward) {
    for_each_tensor(step, read, [&made](int tensor) { made[tensor] = true; });
  }
  for (const RegionGradient& each : program.gradients) {
    if (each.tensor >= 0) read(each.tensor);
  }
}

void find_last_uses(std::vector<RegionStep>& steps, std::vector<bool> is_kept) {
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    const auto use = [&](int tensor) {
      if (is_kept[tensor]) return;
      is_kept[tensor] = true;
      step->last_uses.push_back(tensor);
    };
    for_each_tensor(*step, use, use);
  }
}

void find_lives(RegionProgram& program) {
  find_saved(program);
  std::vector<bool> is_kept(program.num_tensors, false);
  const auto keep = [&is_kept](int tensor) {
    if (tensor >= 0) is_kept[tensor] = true;
  };
  std::ranges::for_each(program.outputs, keep);
  std::ranges::for_each(program.saved, keep);
  find_last_uses(program.forward, is_kept);
  is_kept.assign(program.num_tensors, false);
  for (const RegionGradient& each : program.gradients) keep(each.tensor);
  find_last_uses(program.backward, is_kept);
}

// ---- Running.

using Values = std::vector<at::Tensor>;

c10::IValue value_of(const RegionArgument& argument, const Values& values) {
  switch (argument.kind) {
    case RegionArgument::Kind::kConstant: return argument.constant;
    case RegionArgument::Kind::kTensor: return values[argument.tensor];
    case RegionArgument::Kind::kList: break;
  }
  c10::impl::GenericList list(argument.element_type);
  for (const RegionArgument& each : argument.list) list.push_back(value_of(each, values));
  return list;
}

void keep_result(const c10::IValue& result, const std::vector<int>& tensors, Values& values) {
  if (result.isTensor()) {
    if (tensors.front() >= 0) values[tensors.front()] = result.toTensor();
  } else if (result.isTensorList()) {
    const auto list = result.toTensorVector();
    TORCH_CHECK(list.size() == tensors.size(), "an operator of a region gave ", list.size(),
                " tensors, and ", tensors.size(), " when it was recorded");
    for (size_t i = 0; i < list.size(); ++i) {
      if (tensors[i] >= 0) values[tensors[i]] = list[i];
    }
  }
}

void run(const std::vector<RegionStep>& steps, Values& values) {
  // Casts of mixed precision are among the operators.
  const c10::impl::ExcludeDispatchKeyGuard no_casts(c10::autocast_dispatch_keyset);
  // As below autograd in a plain call. The mode stays that of the caller, because kernels look at
  // it: those of recurrent layers keep a workspace for the backward pass only with gradients.
  const at::AutoDispatchBelowAutograd below;
  torch::jit::Stack stack;
  for (const RegionStep& step : steps) {
    stack.clear();
    for (const RegionArgument& each : step.arguments) stack.push_back(value_of(each, values));
    step.op.callBoxed(&stack);
    for (size_t i = 0; i < step.results.size(); ++i) {
      keep_result(stack[i], step.results[i], values);
    }
    for (const int tensor : step.last_uses) values[tensor].reset();
  }
}

}  // namespace

std::shared_ptr<const RegionProgram> parse_region(const std::string& text) {
  auto program = std::make_shared<RegionProgram>();
  program->text = text;
  try {
    bool is_backward = false;
    for (const absl::string_view line_text : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
      const Json line = Json::parse(line_text.begin(), line_text.end());
      if (line.contains("region")) {
        TORCH_CHECK(line["region"] == kVersion, "a region's text has version ",
                    line["region"].dump(), ", and ", kVersion, " is known");
        program->num_inputs = static_cast<int>(line.at("inputs").size());
        for (const Json& input : line["inputs"]) {
          if (input.is_null()) continue;
          const c10::Device device(input.at("device").get<std::string>());
          if (!device.is_cpu()) program->device = device;
        }
      } else if (line.contains("op")) {
        (is_backward ? program->backward : program->forward).push_back(step_of(line));
      } else if (line.contains("outputs")) {
        program->outputs = tensors_of(line["outputs"]);
        program->differentiable = line.at("differentiable").get<std::vector<bool>>();
        program->num_tensors = line.at("tensors").get<int>();
      } else if (line.contains("gradients_of")) {
        is_backward = program->has_backward = true;
        program->gradients_of = line["gradients_of"].get<std::vector<int>>();
        program->gradient_strides = line.at("strides").get<std::vector<std::vector<int64_t>>>();
      } else {
        for (const Json& each : line.at("gradients")) {
          program->gradients.push_back({each.at("input").get<int>(), tensor_of(each.at("t"))});
        }
        program->num_tensors = line.at("tensors").get<int>();
      }
    }
  } catch (const Json::exception& error) {
    TORCH_CHECK(false, "a region's text cannot be read: ", error.what());
  }
  TORCH_CHECK(program->differentiable.size() == program->outputs.size() &&
                  program->gradient_strides.size() == program->gradients_of.size(),
              "a region's text is cut off");
  TORCH_CHECK(program->num_inputs <= program->num_tensors, "a region's text is cut off");
  const size_t end = text.find("{\"gradients_of\"");
  program->forward_text = text.substr(0, end);
  check_numbers(*program);
  find_lives(*program);
  return program;
}

RegionResult run_forward(const RegionProgram& program, const std::vector<at::Tensor>& inputs) {
  TORCH_CHECK(inputs.size() == static_cast<size_t>(program.num_inputs), "a region takes ",
              program.num_inputs, " tensors, and got ", inputs.size());
  Values values(program.num_tensors);
  std::ranges::copy(inputs, values.begin());
  run(program.forward, values);
  RegionResult result;
  for (const int output : program.outputs) {
    result.outputs.push_back(output >= 0 ? values[output] : at::Tensor());
  }
  for (const int tensor : program.saved) result.saved.push_back(values[tensor]);
  return result;
}

std::vector<at::Tensor> run_backward(const RegionProgram& program,
                                     const std::vector<at::Tensor>& saved,
                                     const std::vector<at::Tensor>& grads) {
  TORCH_CHECK(saved.size() == program.saved.size() && grads.size() == program.gradients_of.size(),
              "a region's backward half takes ", program.saved.size(), " tensors and ",
              program.gradients_of.size(), " gradients, and got ", saved.size(), " and ",
              grads.size());
  Values values(program.num_tensors);
  for (size_t i = 0; i < saved.size(); ++i) values[program.saved[i]] = saved[i];
  for (size_t i = 0; i < grads.size(); ++i) values[program.gradients_of[i]] = grads[i];
  run(program.backward, values);
  std::vector<at::Tensor> gradients;
  for (const RegionGradient& each : program.gradients) {
    gradients.push_back(each.tensor >= 0 ? values[each.tensor] : at::Tensor());
  }
  return gradients;
}

}  // namespace accelerate
