#include "accelerate/modules/module_state_dict.h"

#include <unordered_map>

#include <c10/util/Exception.h>
#include <c10/util/accumulate.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/nn/module.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "accelerate/comm/checkpoint_error.h"
#include "accelerate/modules/value_at_use.h"
#include "accelerate/tensors/tensor_memory.h"

namespace accelerate {
namespace {

constexpr char kWrapperPrefix[] = "module.";

void append_slots(const torch::nn::Module& module, const std::string& prefix, bool recurse,
                  std::vector<internal::ModuleSlot>& slots) {
  for (const bool is_buffer : {false, true}) {
    const auto tensors = is_buffer ? module.named_buffers(/*recurse=*/false)
                                   : module.named_parameters(/*recurse=*/false);
    for (const auto& item : tensors) {
      const at::Tensor& tensor = item.value();
      if (!tensor.defined()) continue;
      const std::string name = prefix + item.key();
      if (find_maker(tensor) == nullptr) {
        slots.push_back({.name = name, .tensor = tensor, .is_buffer = is_buffer});
        continue;
      }
      for (KeptTensor& kept : kept_tensors(name, tensor)) {
        slots.push_back({.name = std::move(kept.name),
                         .tensor = std::move(kept.tensor),
                         .is_buffer = is_buffer || !kept.is_values,
                         .is_text = kept.is_text,
                         .made_parameter = tensor,
                         .made_name = name});
      }
    }
  }
  if (!recurse) return;
  for (const auto& child : module.named_children()) {
    if (!child.value()) continue;
    append_slots(*child.value(), absl::StrCat(prefix, child.key(), "."), recurse, slots);
  }
}

NamedTensors detached(std::span<const internal::ModuleSlot> slots) {
  NamedTensors tensors;
  for (const internal::ModuleSlot& slot : slots) {
    tensors.emplace_back(slot.name, slot.tensor.detach());
  }
  return tensors;
}

void append_names(const char* label, const std::vector<std::string>& names, std::string& text) {
  if (!names.empty()) absl::StrAppend(&text, "\n  ", label, ": ", absl::StrJoin(names, ", "));
}

void check_memory(const std::string& class_name, const NamedTensors& tensors) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors) {
    if (tensor.is_meta()) names.push_back(name);
  }
  TORCH_CHECK_VALUE(
      names.empty(), "cannot load into ", class_name,
      ": these tensors are on the meta device and have no memory: ", absl::StrJoin(names, ", "));
}

}  // namespace

NamedTensors module_state_dict(const torch::nn::Module& module) {
  torch::NoGradGuard no_grad;
  return detached(internal::module_slots(module));
}

IncompatibleKeys load_module_state_dict(torch::nn::Module& module, const NamedTensors& state,
                                        const LoadModuleStateDictOptions& options) {
  torch::NoGradGuard no_grad;
  const std::vector<internal::ModuleSlot> slots = internal::module_slots(module);
  internal::StateDictMatch match(module, slots);
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;
  std::vector<std::pair<size_t, at::Tensor>> conversions;
  for (const auto& [name, value] : state) {
    TORCH_CHECK_VALUE(value.defined(), "the state dict's \"", name, "\" is undefined");
    const auto found = match.find(name, value.sizes(), value.scalar_type());
    if (!found) continue;
    if (found->is_converted) {
      conversions.emplace_back(found->position, value);
    } else {
      const at::Tensor& tensor = slots[found->position].tensor;
      copies.emplace_back(
          tensor, found->is_packed ? value.flatten().view(at::kByte).view(tensor.sizes()) : value);
    }
  }
  IncompatibleKeys keys = match.finish(options.strict);
  // What may fail because of values comes first.
  for (const auto& [position, value] : conversions) {
    const std::vector<at::Tensor> kept =
        find_maker(slots[position].made_parameter)->encode(value.to(at::kCPU));
    for (size_t i = 0; i < kept.size(); ++i) {
      copies.emplace_back(slots[position + i].tensor, kept[i]);
    }
  }
  for (auto& [destination, value] : copies) {
    if (destination.sizes() == value.sizes()) {
      destination.copy_(value);
    } else {  // a text of another length
      internal::rebind(destination, value.to(destination.device(), /*non_blocking=*/false,
                                             /*copy=*/true));
    }
  }
  return keys;
}

namespace internal {

std::vector<ModuleSlot> module_slots(const torch::nn::Module& module, bool recurse) {
  std::vector<ModuleSlot> slots;
  append_slots(module, "", recurse, slots);
  return slots;
}

StateDictMatch::StateDictMatch(const torch::nn::Module& module, std::span<const ModuleSlot> slots,
                               StateDictMatchOptions options)
    : class_name_(module.name()),
      options_(std::move(options)),
      slots_(slots),
      tensors_(detached(slots)),
      found_(tensors_.size(), false) {
  if (options_.needs_memory) check_memory(class_name_, tensors_);
  for (size_t i = 0; i < tensors_.size(); ++i) positions_.emplace(tensors_[i].first, i);
}

bool StateDictMatch::is_converted(const ModuleSlot& slot, at::IntArrayRef sizes,
                                  at::ScalarType dtype) const {
  return slot.made_parameter.defined() && slot.name == slot.made_name &&
         c10::isFloatingType(dtype) && slot.made_parameter.sizes() == sizes &&
         !find_maker(slot.made_parameter)->keeps_elements();
}

std::map<std::string, size_t>::const_iterator StateDictMatch::position_of(
    const std::string& name) const {
  const auto position = positions_.find(name);
  if (position != positions_.end() || !absl::StartsWith(name, kWrapperPrefix)) return position;
  return positions_.find(name.substr(sizeof(kWrapperPrefix) - 1));
}

void StateDictMatch::add_unreadable(const std::string& name, const std::string& why) {
  const auto position = position_of(name);
  const bool is_ours = position != positions_.end();
  if (options_.wanted && !options_.wanted(is_ours ? position->first : name)) return;
  if (!is_ours) {
    unexpected_.push_back(name);
    return;
  }
  unreadable_.push_back(absl::StrCat(name, " (", why, ")"));
  found_[position->second] = true;
}

bool StateDictMatch::is_packed(const ModuleSlot& slot, at::IntArrayRef sizes,
                               at::ScalarType dtype) {
  const at::Tensor& codes = slot.tensor;
  const bool is_codes = slot.made_parameter.defined() && slot.name == slot.made_name &&
                        codes.scalar_type() == at::kByte &&
                        !find_maker(slot.made_parameter)->keeps_elements();
  return is_codes && (dtype != at::kByte || sizes != codes.sizes()) &&
         c10::multiply_integers(sizes) * static_cast<int64_t>(c10::elementSize(dtype)) ==
             codes.numel();
}

std::optional<StateDictMatch::Match> StateDictMatch::find(const std::string& name,
                                                          at::IntArrayRef sizes,
                                                          at::ScalarType dtype) {
  const auto position = position_of(name);
  const bool is_ours = position != positions_.end();
  if (options_.wanted && !options_.wanted(is_ours ? position->first : name)) return std::nullopt;
  if (!is_ours || found_[position->second]) {
    unexpected_.push_back(name);
    return std::nullopt;
  }
  const size_t first = position->second;
  found_[first] = true;
  const ModuleSlot& slot = slots_[first];
  if (is_converted(slot, sizes, dtype)) {
    for (size_t i = first + 1; i < slots_.size() && slots_[i].made_name == slot.made_name; ++i) {
      found_[i] = true;
    }
    return Match{first, true};
  }
  const at::Tensor& tensor = slot.tensor;
  if (is_packed(slot, sizes, dtype)) return Match{first, false, true};
  // Codes are not converted.
  if (slot.made_parameter.defined() && tensor.scalar_type() != dtype &&
      !find_maker(slot.made_parameter)->keeps_elements()) {
    other_sizes_.push_back(
        c10::str(name, " (", dtype, " there, ", tensor.scalar_type(), " in the model)"));
    return std::nullopt;
  }
  constexpr int64_t kLongestText = 65536;
  const std::vector<int64_t> own =
      options_.whole_sizes ? options_.whole_sizes(tensor) : tensor.sizes().vec();
  if (sizes == own || (slot.is_text && sizes.size() == 1 && sizes[0] <= kLongestText)) {
    return Match{first, false};
  }
  other_sizes_.push_back(
      c10::str(name, " (", sizes, " there, ", at::IntArrayRef(own), " in the model)"));
  return std::nullopt;
}

std::vector<std::string> StateDictMatch::missing() const {
  const std::vector<size_t> firsts = first_identical_views(tensors_);
  std::vector<bool> loaded(tensors_.size(), false);  // at the first of its views
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (found_[i]) loaded[firsts[i]] = true;
  }
  std::vector<std::string> names;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (loaded[firsts[i]] || (options_.wanted && !options_.wanted(tensors_[i].first))) continue;
    names.push_back(tensors_[i].first);
  }
  return names;
}

IncompatibleKeys StateDictMatch::finish(bool strict) const {
  IncompatibleKeys keys{.missing_keys = missing(), .unexpected_keys = unexpected_};
  std::string text;
  if (strict) {
    append_names("missing", keys.missing_keys, text);
    append_names("unexpected", keys.unexpected_keys, text);
  }
  append_names("other sizes", other_sizes_, text);
  append_names("cannot be loaded", unreadable_, text);
  if (!text.empty()) {
    throw CheckpointError(absl::StrCat("the state dict does not fit ", class_name_, ":", text));
  }
  return keys;
}

std::vector<size_t> first_identical_views(const NamedTensors& tensors) {
  // Only looked up, so that the order of addresses has no effect.
  std::unordered_map<const c10::StorageImpl*, std::vector<size_t>> by_storage;
  std::vector<size_t> firsts(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    firsts[i] = i;
    const at::Tensor& tensor = tensors[i].second;
    if (!tensor.has_storage()) continue;
    std::vector<size_t>& others = by_storage[tensor.storage().unsafeGetStorageImpl()];
    for (size_t other : others) {
      if (!are_identical_views(tensors[other].second, tensor)) continue;
      firsts[i] = other;
      break;
    }
    if (firsts[i] == i) others.push_back(i);
  }
  return firsts;
}

}  // namespace internal
}  // namespace accelerate
