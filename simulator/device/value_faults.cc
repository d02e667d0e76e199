#include "simulator/device/value_faults.h"

#include <cstddef>
#include <limits>
#include <optional>
#include <string>

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/GradMode.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

#include "simulator/device/device_memory.h"
#include "simulator/device/host_call.h"
#include "simulator/device/shapes.h"

namespace accelerate::simulator {
namespace {

bool can_be_struck(const SiteFault& fault, const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage() || tensor.numel() == 0) return false;
  return fault.effect->kind != FaultKind::kNan || tensor.is_floating_point();
}

// Where an element lies, in elements from the tensor's first.
int64_t offset_of(const at::Tensor& tensor, int64_t element) {
  int64_t offset = 0;
  for (int64_t d = tensor.dim() - 1; d >= 0; --d) {
    offset += element % tensor.size(d) * tensor.stride(d);
    element /= tensor.size(d);
  }
  return offset;
}

void strike_element(const SiteFault& fault, DeterministicRandom& random, const at::Tensor& tensor,
                    int64_t element) {
  TORCH_CHECK_VALUE(has_values(tensor), "the fault ", fault.effect->to_string(),
                    " strikes a tensor of shape ", tensor.sizes(),
                    " whose values are not computed (numerics = shapes)");
  const at::NoGradGuard no_grad;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const at::Tensor host = host_alias(tensor);
  const int64_t offset = offset_of(host, element);
  if (fault.effect->kind == FaultKind::kNan) {
    host.as_strided({}, {}, host.storage_offset() + offset)
        .fill_(std::numeric_limits<double>::quiet_NaN());
    return;
  }
  const auto itemsize = static_cast<int64_t>(host.itemsize());
  // A truth value has one bit.
  const int64_t bits = host.scalar_type() == at::kBool ? 1 : 8 * itemsize;
  const auto drawn = static_cast<int64_t>(random.below(bits));
  const int64_t bit = fault.effect->bit.value_or(drawn) % bits;
  auto* const bytes = static_cast<std::byte*>(host.mutable_data_ptr()) + offset * itemsize;
  bytes[bit / 8] ^= std::byte{1} << (bit % 8);
}

// The memory that a target means; absent: any.
std::optional<MemoryCategory> category_of(const std::string& target) {
  if (target == "parameter") return MemoryCategory::kParameters;
  if (target == "gradient") return MemoryCategory::kGradients;
  if (target == "activation") return MemoryCategory::kActivations;
  return std::nullopt;
}

}  // namespace

int64_t strike_values(const SiteFault& fault, absl::Span<const at::Tensor> tensors) {
  int64_t elements = 0;
  for (const at::Tensor& tensor : tensors) {
    if (can_be_struck(fault, tensor)) elements += tensor.numel();
  }
  if (elements == 0) return 0;
  DeterministicRandom random = fault.random;
  const auto drawn = static_cast<int64_t>(random.below(elements));
  int64_t element = fault.effect->element.value_or(drawn) % elements;
  for (const at::Tensor& tensor : tensors) {
    if (!can_be_struck(fault, tensor)) continue;
    if (element < tensor.numel()) {
      strike_element(fault, random, tensor, element);
      return 1;
    }
    element -= tensor.numel();
  }
  return 0;
}

OperatorFaults::OperatorFaults(FaultSites& sites, const SimDevice& device, const char* name,
                               c10::ArrayRef<c10::IValue> arguments)
    : sites_(sites), for_results_(sites.reach(device.rank(), Site::kOp, name)) {
  for (const SiteFault& fault : for_results_) strike(fault, arguments, /*are_results=*/false);
}

void OperatorFaults::strike_results(c10::ArrayRef<c10::IValue> results) {
  for (const SiteFault& fault : for_results_) strike(fault, results, /*are_results=*/true);
}

// What is among the arguments and the results of an operator was struck before.
void OperatorFaults::strike(const SiteFault& fault, c10::ArrayRef<c10::IValue> values,
                            bool are_results) {
  const std::string& target = fault.effect->word;
  const bool is_for_results = target == "output" || target == "activation";
  if (is_for_results != are_results) return;
  const std::optional<MemoryCategory> category = category_of(target);
  std::vector<at::Tensor> tensors;
  const auto add = [&](const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.is_privateuseone() || !tensor.has_storage()) return false;
    const MemoryBlock* const block = block_of(tensor.storage().data_ptr());
    const bool is_meant = !category || (block != nullptr && block->category == *category);
    if (is_meant) tensors.push_back(tensor);
    return false;  // so that all are looked at
  };
  for (const c10::IValue& value : values) any_tensor(value, add);
  if (const int64_t changed = strike_values(fault, tensors)) sites_.touched(fault, changed);
}

}  // namespace accelerate::simulator
