#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/autocast_mode.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "simulator/device/host_call.h"
#include "simulator/device/install.h"

namespace accelerate::simulator {
namespace {

constexpr c10::DeviceType kDevice = c10::kPrivateUse1;

enum class Policy { kLowerPrecision, kFloat, kFloatResult, kAppendFloat, kPromote };

// By the operator's full name, "aten::pow.Tensor_Scalar".
using PolicyTable = std::unordered_map<std::string, Policy>;

// The macros name operators as `op` or `op, overload`.
std::string full_name(absl::string_view listed) {
  return absl::StrCat("aten::", absl::StrReplaceAll(listed, {{", ", "."}}));
}

PolicyTable accelerator_policies() {
#define ACCELERATE_LISTED(...) #__VA_ARGS__,
#define ACCELERATE_NAMED(function, name, ...) name,
  const std::pair<Policy, std::vector<const char*>> lists[] = {
      {Policy::kLowerPrecision, {AT_FORALL_LOWER_PRECISION_FP(ACCELERATE_LISTED)}},
      {Policy::kFloat, {AT_FORALL_FP32(ACCELERATE_LISTED)}},
      {Policy::kFloatResult, {AT_FORALL_FP32_SET_OPT_DTYPE(ACCELERATE_LISTED)}},
      {Policy::kAppendFloat, {AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(ACCELERATE_NAMED)}},
      {Policy::kPromote, {AT_FORALL_PROMOTE(ACCELERATE_LISTED)}}};
#undef ACCELERATE_LISTED
#undef ACCELERATE_NAMED
  PolicyTable table;
  for (const auto& [policy, operators] : lists) {
    for (const char* listed : operators) table[full_name(listed)] = policy;
  }
  return table;
}

// LibTorch does not publish the CPU's lists, but registers a kernel for each entry. Its page on
// automatic mixed precision lists the operators that lower the precision and those that promote;
// all others compute in float32.
PolicyTable cpu_policies() {
  PolicyTable table;
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    auto op = dispatcher.findOp(name);
    if (!op || !op->hasKernelForDispatchKey(c10::DispatchKey::AutocastCPU)) continue;
    table[c10::toString(name)] = Policy::kFloat;
  }
  constexpr char kLower[] =
      "conv1d conv2d conv3d bmm mm linalg_vecdot baddbmm addmm addbmm linear "
      "_convolution.deprecated matmul conv_tbc mkldnn_rnn_layer conv_transpose1d "
      "conv_transpose2d.input conv_transpose3d.input prelu scaled_dot_product_attention "
      "_native_multi_head_attention";
  for (absl::string_view lower : absl::StrSplit(kLower, ' ')) {
    table[absl::StrCat("aten::", lower)] = Policy::kLowerPrecision;
  }
  for (const char* promote : {"stack", "cat", "index_copy", "index_copy.dimname"}) {
    table[absl::StrCat("aten::", promote)] = Policy::kPromote;
  }
  return table;
}

// By the operator's schema, whose address is constant. Written before any call.
std::unordered_map<const c10::FunctionSchema*, Policy>& policies_by_schema() {
  static auto& policies = *new std::unordered_map<const c10::FunctionSchema*, Policy>();
  return policies;
}

using Arguments = c10::ArrayRef<c10::IValue>;

template <typename Visit>
void for_each_tensor(torch::jit::Stack& stack, size_t count, Visit visit) {
  for (auto value = stack.end() - static_cast<ptrdiff_t>(count); value != stack.end(); ++value) {
    map_tensors(*value, visit);
  }
}

void cast_all(torch::jit::Stack& stack, size_t count, at::ScalarType dtype) {
  for_each_tensor(stack, count, [dtype](const at::Tensor& tensor) {
    return at::autocast::cached_cast(dtype, tensor, kDevice);
  });
}

bool is_eligible(const c10::IValue& value) {
  return value.isTensor() && at::autocast::is_autocast_eligible(value.toTensor(), kDevice) &&
         value.toTensor().scalar_type() != at::kDouble;
}

// The overload of a norm that takes the result's dtype: one more argument at the end.
c10::OperatorHandle overload_with_dtype(const c10::OperatorHandle& op) {
  static const std::unordered_map<std::string, std::string> kOverloads = {
      {"Scalar", "ScalarOpt_dtype"},
      {"ScalarOpt_dim", "ScalarOpt_dim_dtype"},
      {"names_ScalarOpt_dim", "names_ScalarOpt_dim_dtype"}};
  return c10::Dispatcher::singleton().findSchemaOrThrow(
      op.schema().name().c_str(), kOverloads.at(op.schema().overload_name()).c_str());
}

void cast_and_call(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  const size_t count = op.schema().arguments().size();
  c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::DispatchKey::AutocastPrivateUse1);
  const auto first = stack->end() - static_cast<ptrdiff_t>(count);
  switch (policies_by_schema().at(&op.schema())) {
    case Policy::kLowerPrecision:
      cast_all(*stack, count, at::autocast::get_autocast_dtype(kDevice));
      break;
    case Policy::kFloat: cast_all(*stack, count, at::kFloat); break;
    case Policy::kFloatResult:
      if (!is_eligible(*first)) break;
      for (size_t i = 0; i < count; ++i) {
        c10::IValue& value = first[static_cast<ptrdiff_t>(i)];
        if (op.schema().arguments()[i].name() == "dtype" && value.isNone()) value = at::kFloat;
      }
      break;
    case Policy::kAppendFloat: {
      const at::ScalarType dtype =
          is_eligible(*first) ? at::kFloat : first->toTensor().scalar_type();
      stack->emplace_back(dtype);
      overload_with_dtype(op).callBoxed(stack);
      return;
    }
    case Policy::kPromote: {
      at::ScalarType widest = at::autocast::get_autocast_dtype(kDevice);
      for_each_tensor(*stack, count, [&widest](const at::Tensor& tensor) {
        if (tensor.defined()) widest = at::autocast::prioritize(widest, tensor, kDevice);
        return tensor;
      });
      cast_all(*stack, count, widest);
      break;
    }
  }
  op.callBoxed(stack);
}

}  // namespace

void cast_like_cpu(bool like_cpu) {
  static auto& library = *new std::optional<torch::Library>();
  static bool is_like_cpu = false;
  if (library && is_like_cpu == like_cpu) return;
  is_like_cpu = like_cpu;
  // As in LibTorch, an operator that the list lacks has no kernel: a handler that sees operators
  // before their casts (accelerate/operators/operator_mode.h) sees all with a kernel once more.
  library.reset();
  library.emplace(torch::Library::IMPL, "aten", c10::DispatchKey::AutocastPrivateUse1, __FILE__,
                  __LINE__);
  policies_by_schema().clear();
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& [name, policy] : like_cpu ? cpu_policies() : accelerator_policies()) {
    const size_t dot = name.find('.');
    const std::string overload = dot == std::string::npos ? "" : name.substr(dot + 1);
    // The lists may name operators that this version of LibTorch does not have.
    auto op = dispatcher.findSchema({name.substr(0, dot), overload});
    if (!op) continue;
    policies_by_schema().emplace(&op->schema(), policy);
    library->impl(name.c_str(), torch::CppFunction::makeFromBoxedFunction<&cast_and_call>());
  }
}

}  // namespace accelerate::simulator
