#include "accelerate/compile/recorder.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include <ATen/core/enum_tag.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/Storage.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/intrusive_ptr.h>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "accelerate/operators/call_arguments.h"

namespace accelerate {
namespace {

using Json = nlohmann::ordered_json;

c10::StorageImpl* storage_of(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
}

bool is_dense(const at::Tensor& tensor) {
  return tensor.layout() == at::kStrided && tensor.has_storage() && !tensor.is_quantized() &&
         !tensor.is_nested() && !tensor.is_complex() && !tensor.is_neg() &&
         !tensor.unsafeGetTensorImpl()->is_python_dispatch();
}

void add_line(std::string& text, const Json& line) { absl::StrAppend(&text, line.dump(), "\n"); }

Json number_json(double number) {
  if (std::isfinite(number)) return number;
  return {{"f", std::isnan(number) ? "nan" : number > 0 ? "inf" : "-inf"}};
}

// Operators whose results hold whatever was in their memory.
bool leaves_memory_as_it_is(std::string_view name) {
  return name == "aten::empty" || name == "aten::empty_like" || name == "aten::empty_strided" ||
         name == "aten::new_empty" || name == "aten::new_empty_strided" ||
         name == "aten::empty_permuted";
}

}  // namespace

struct RegionRecorder::Place {
  const c10::StorageImpl* storage;
  int64_t offset;
  at::ScalarType dtype;
  std::vector<int64_t> sizes, strides;

  bool operator==(const Place&) const = default;

  static Place of(const at::Tensor& tensor) {
    return {.storage = storage_of(tensor),
            .offset = tensor.storage_offset(),
            .dtype = tensor.scalar_type(),
            .sizes = tensor.sizes().vec(),
            .strides = tensor.strides().vec()};
  }
};

struct RegionRecorder::PlaceHash {
  size_t operator()(const Place& place) const {
    return std::hash<const void*>()(place.storage) ^ static_cast<size_t>(place.offset * 31) ^
           (place.sizes.empty() ? 0 : static_cast<size_t>(place.sizes.front()) * 131);
  }
};

struct RegionRecorder::Values {
  std::unordered_map<Place, int, PlaceHash> numbers;
  // Their addresses are not given to others as long as these are here.
  std::vector<Memory> known;
  std::unordered_set<const c10::StorageImpl*> unwritten;
  std::unordered_set<const c10::StorageImpl*> inputs;
  std::unordered_set<const c10::StorageImpl*> buffers;
  int count = 0;

  // The tensor's number, a new one where it has none.
  int define(const at::Tensor& tensor) {
    const auto [found, is_new] = numbers.emplace(Place::of(tensor), count);
    if (is_new) {
      ++count;
      known.push_back(tensor.storage().getWeakStorageImpl());
    }
    return found->second;
  }
  std::optional<int> find(const at::Tensor& tensor) const {
    const auto found = numbers.find(Place::of(tensor));
    return found == numbers.end() ? std::nullopt : std::optional(found->second);
  }
};

namespace {

// A value as JSON; fn(tensor) gives that of a tensor. Null problem: it has been written.
template <typename Fn>
Json json_of(const c10::IValue& value, std::string& problem, const Fn& tensor_json) {
  if (value.isNone()) return nullptr;
  if (value.isTensor()) {
    return value.toTensor().defined() ? tensor_json(value.toTensor()) : Json(nullptr);
  }
  if (value.isBool()) return value.toBool();
  if (value.isInt()) return value.toInt();
  if (value.isDouble()) return number_json(value.toDouble());
  if (value.isString()) return value.toStringRef();
  if (value.isDevice()) return {{"device", value.toDevice().str()}};
  if (value.isList()) {
    Json list = Json::array();
    for (const c10::IValue& each : value.toListRef()) {
      list.push_back(json_of(each, problem, tensor_json));
    }
    return list;
  }
  problem = value.isGenerator() ? "it draws random numbers from a generator of its own"
                                : absl::StrCat("it takes a ", value.tagKind());
  return nullptr;
}

Json number_tensor_json(const at::Tensor& tensor) {
  const OperatorModeScope unseen{OperatorHandlers()};
  const at::Scalar number = tensor.item();
  Json json;
  if (number.isBoolean()) {
    json["number"] = number.toBool();
  } else if (number.isIntegral(/*includeBool=*/false)) {
    json["number"] = number.toLong();
  } else {
    const double value = number.toDouble();
    json["number"] = std::isfinite(value) ? Json(value) : number_json(value)["f"];
  }
  json["dtype"] = static_cast<int>(tensor.scalar_type());
  return json;
}

}  // namespace

RegionRecorder::RegionRecorder()
    : OperatorHandler(OperatorOrder::kRecording), values_(std::make_unique<Values>()) {}
RegionRecorder::~RegionRecorder() = default;

void RegionRecorder::note(const std::string& problem) {
  if (problem_.empty()) problem_ = problem;
}

void RegionRecorder::begin(const std::vector<at::Tensor>& tensors, size_t first_buffer,
                           size_t first_input) {
  Json inputs = Json::array();
  for (size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor& tensor = tensors[i];
    if (!tensor.defined()) {
      inputs.push_back(nullptr);
      ++values_->count;
      continue;
    }
    if (!is_dense(tensor)) return note("an input or a parameter is not dense");
    // In promotions its dtype counts for less than that of the tensor that a package would get.
    if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
      return note("an input is a number that LibTorch made a tensor of");
    }
    inputs.push_back({{"dtype", static_cast<int>(tensor.scalar_type())},
                      {"sizes", tensor.sizes().vec()},
                      {"strides", tensor.strides().vec()},
                      {"device", tensor.device().str()},
                      {"requires_grad", tensor.requires_grad()}});
    // Two inputs that are one tensor have the first number; each has its place among the inputs.
    values_->count = static_cast<int>(i);
    values_->define(tensor);
    values_->count = static_cast<int>(i) + 1;
    const bool is_buffer = i >= first_buffer && i < first_input;
    (is_buffer ? values_->buffers : values_->inputs).insert(storage_of(tensor));
  }
  Json head = {{"region", 1}, {"inputs", std::move(inputs)}};
  // Operators that are given no dtype are recorded without one, so that their results follow it.
  if (const at::ScalarType dtype = c10::get_default_dtype_as_scalartype(); dtype != at::kFloat) {
    head["default_dtype"] = static_cast<int>(dtype);
  }
  add_line(text_, head);
}

void RegionRecorder::end_forward(const std::vector<at::Tensor>& outputs) {
  if (!problem_.empty()) return;
  Json numbers = Json::array();
  Json differentiable = Json::array();
  for (const at::Tensor& output : outputs) {
    differentiable.push_back(output.defined() && output.requires_grad());
    if (!output.defined()) {
      numbers.push_back(nullptr);
      continue;
    }
    if (!is_dense(output)) return note("an output is not dense");
    const std::optional<int> number = values_->find(output);
    if (!number) return note("an output is a tensor that no operator in it has made");
    const c10::StorageImpl* storage = storage_of(output);
    if (values_->inputs.contains(storage) || values_->buffers.contains(storage)) {
      return note("an output shares its memory with an input");
    }
    if (values_->unwritten.contains(storage)) return note("an output has no values of operators");
    numbers.push_back(*number);
  }
  add_line(text_, {{"outputs", std::move(numbers)},
                   {"differentiable", std::move(differentiable)},
                   {"tensors", values_->count}});
}

std::vector<RegionRecorder::Memory> RegionRecorder::inner_memory(
    const std::vector<at::Tensor>& outputs) const {
  std::vector<Memory> inner;
  for (const Memory& memory : values_->known) {
    const c10::StorageImpl* storage = memory._unsafe_get_target();
    const bool is_outer =
        values_->inputs.contains(storage) || values_->buffers.contains(storage) ||
        std::ranges::any_of(outputs, [storage](const at::Tensor& output) {
          return output.defined() && output.has_storage() && storage_of(output) == storage;
        });
    if (!is_outer) inner.push_back(memory);
  }
  return inner;
}

bool RegionRecorder::has(const at::Tensor& tensor) const {
  return is_dense(tensor) && values_->find(tensor).has_value();
}

void RegionRecorder::begin_backward(const std::vector<at::Tensor>& grads) {
  if (!problem_.empty()) return;
  Json numbers = Json::array();
  Json strides = Json::array();
  for (const at::Tensor& grad : grads) {
    if (!is_dense(grad)) return note("a gradient of an output is not dense");
    numbers.push_back(values_->define(grad));
    strides.push_back(grad.strides().vec());
  }
  add_line(text_, {{"gradients_of", std::move(numbers)}, {"strides", std::move(strides)}});
}

void RegionRecorder::end_backward(const std::vector<std::pair<int, at::Tensor>>& gradients) {
  if (!problem_.empty()) return;
  Json list = Json::array();
  for (const auto& [input, gradient] : gradients) {
    if (!gradient.defined()) {
      list.push_back({{"input", input}, {"t", nullptr}});
      continue;
    }
    const std::optional<int> number = is_dense(gradient) ? values_->find(gradient) : std::nullopt;
    if (!number) return note("a gradient is a tensor that no operator has made");
    list.push_back({{"input", input}, {"t", *number}});
  }
  add_line(text_, {{"gradients", std::move(list)}, {"tensors", values_->count}});
}

bool RegionRecorder::passes(const OperatorCall& call) {
  const c10::DispatchKeySet keys = call.keys();
  const c10::OperatorHandle& op = call.op();
  const c10::DispatchKeySet casts = keys & c10::autocast_dispatch_keyset;
  if (!casts.empty() && op.hasKernelForDispatchKey(casts.highestPriorityTypeId())) return true;
  if (!op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd)) return false;
  // Also where a device has a kernel of its own for it, whose parts are what autograd sees.
  if (!op.hasKernelForDispatchKey(c10::DispatchKey::Autograd)) return true;
  const c10::DispatchKey backend =
      c10::toRuntimePerBackendFunctionalityKey(c10::DispatchKey::Dense, keys.highestBackendKey());
  return backend == c10::DispatchKey::Undefined || !op.hasKernelForDispatchKey(backend);
}

void RegionRecorder::call(const OperatorCall& call) {
  if (!problem_.empty()) return call.proceed();
  if (passes(call)) {
    // Parameters that come and go (managed_storage.h) come for the parts, unseen.
    const c10::DispatchKeySet keys =
        call.keys().remove(c10::DispatchKey::TESTING_ONLY_GenericWrapper);
    return call.op().redispatchBoxed(keys, &call.stack());
  }
  const std::string& name = call.op().schema().name();
  // Marks of profilers.
  if (absl::StartsWith(name, "profiler::")) return call.proceed();
  if (!may_be_recorded(call)) {
    const OperatorModeScope unseen{OperatorHandlers()};
    return call.proceed();
  }
  record(call);
}

bool RegionRecorder::may_be_recorded(const OperatorCall& call) {
  const c10::FunctionSchema& schema = call.op().schema();
  const std::string& name = schema.name();
  const auto refuse = [&](std::string_view why) {
    note(absl::StrCat(name, " ", std::string(why)));
    return false;
  };
  if (absl::StrContains(name, "c10d")) return refuse("communicates with other ranks");
  if (call.op().hasTag(at::Tag::data_dependent_output)) {
    return refuse("gives values of tensors to the program");
  }
  // The sizes that an index gives depend on values only where a mask is among its tensors.
  if (name != "aten::index" && call.op().hasTag(at::Tag::dynamic_output_shape)) {
    return refuse("gives results whose sizes depend on values");
  }
  if (name == "aten::set_" || name == "aten::resize_" || name == "aten::resize_as_") {
    return refuse("gives a tensor other memory");
  }
  const auto& arguments = schema.arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    const c10::IValue& value = torch::jit::peek(call.stack(), i, arguments.size());
    // A mask's result has as many elements as the mask has true ones.
    const bool is_index = name == "aten::index" && i == 1;
    // Places in memory, not in the tensor.
    if (absl::StartsWith(name, "aten::as_strided") && arguments[i].name() == "storage_offset" &&
        !value.isNone()) {
      return refuse("reads a place in memory");
    }
    bool is_fine = true;
    // An operator that gives a view of the argument reads no values.
    const auto* const alias = arguments[i].alias_info();
    for_each_tensor(value, [&](const at::Tensor& tensor) {
      if (!is_fine) return;
      if (!is_dense(tensor)) {
        is_fine = refuse("has an argument that is not dense");
        return;
      }
      const c10::StorageImpl* storage = storage_of(tensor);
      if (is_index && (tensor.scalar_type() == at::kBool || tensor.scalar_type() == at::kByte)) {
        is_fine = refuse("gives results whose sizes depend on values");
      } else if (alias != nullptr && alias->isWrite()) {
        if (values_->inputs.contains(storage)) is_fine = refuse("changes an input in place");
        values_->unwritten.erase(storage);
      } else if (alias == nullptr && tensor.numel() > 0 && values_->unwritten.contains(storage) &&
                 !leaves_memory_as_it_is(name)) {
        is_fine = refuse("reads a tensor that no operator has written");
      }
    });
    if (!is_fine) return false;
  }
  return true;
}

void RegionRecorder::record(const OperatorCall& call) {
  const c10::FunctionSchema& schema = call.op().schema();
  std::string problem;
  const auto tensor_json = [&](const at::Tensor& tensor) -> Json {
    if (const std::optional<int> number = values_->find(tensor)) return {{"t", *number}};
    if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) return number_tensor_json(tensor);
    problem = "takes a tensor that is neither an input, nor a parameter, nor a result";
    return nullptr;
  };
  Json arguments = Json::array();
  for (const c10::IValue& argument : arguments_of(call)) {
    arguments.push_back(json_of(argument, problem, tensor_json));
  }
  if (!problem.empty()) note(absl::StrCat(schema.name(), ": ", problem));
  {
    const OperatorModeScope unseen{OperatorHandlers()};
    call.proceed();
  }
  if (!problem_.empty()) return;
  Json results = Json::array();
  for (const c10::IValue& result : torch::jit::last(call.stack(), schema.returns().size())) {
    for_each_tensor(result, [&](const at::Tensor& tensor) {
      if (!is_dense(tensor)) return note(absl::StrCat(schema.name(), " gives what is not dense"));
      if (leaves_memory_as_it_is(schema.name())) values_->unwritten.insert(storage_of(tensor));
    });
    if (!problem_.empty()) return;
    std::string ignored;
    results.push_back(!result.isTensor() && !result.isTensorList()
                          ? Json(nullptr)
                          : json_of(result, ignored, [&](const at::Tensor& tensor) {
                              return Json(values_->define(tensor));
                            }));
  }
  add_line(text_, {{"op", c10::toString(call.op().operator_name())},
                   {"args", std::move(arguments)},
                   {"out", std::move(results)}});
}

}  // namespace accelerate
