#include "accelerate/checkpoint/objects/module_state_dict.h"

#include <unordered_map>

#include <c10/util/Exception.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/nn/module.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "accelerate/checkpoint/objects/checkpoint_objects.h"
#include "accelerate/comm/checkpoint_error.h"
#include "accelerate/optim/optimizer_state_dict.h"
#include "accelerate/parallel/residency/value_at_use.h"
#include "accelerate/tensors/identical_views.h"

namespace accelerate {
namespace {

constexpr char kWrapperPrefix[] = "module.";

void append_tensors(const torch::nn::Module& module, const std::string& prefix,
                    NamedTensors& tensors) {
  for (const auto& named :
       {module.named_parameters(/*recurse=*/false), module.named_buffers(/*recurse=*/false)}) {
    for (const auto& item : named) {
      if (item.value().defined()) {
        tensors.emplace_back(prefix + item.key(), stored_tensor(item.value()).detach());
      }
    }
  }
  for (const auto& child : module.named_children()) {
    if (child.value())
      append_tensors(*child.value(), absl::StrCat(prefix, child.key(), "."), tensors);
  }
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
  NamedTensors tensors;
  append_tensors(module, "", tensors);
  return tensors;
}

IncompatibleKeys load_module_state_dict(torch::nn::Module& module, const NamedTensors& state,
                                        const LoadModuleStateDictOptions& options) {
  torch::NoGradGuard no_grad;
  internal::StateDictMatch match(module);
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;
  for (const auto& [name, value] : state) {
    TORCH_CHECK_VALUE(value.defined(), "the state dict's \"", name, "\" is undefined");
    const at::Tensor destination = match.find(name, value.sizes());
    if (destination.defined()) copies.emplace_back(destination, value);
  }
  IncompatibleKeys keys = match.finish(options.strict);
  for (auto& [destination, value] : copies) destination.copy_(value);
  return keys;
}

namespace internal {

StateDictMatch::StateDictMatch(const torch::nn::Module& module, StateDictMatchOptions options)
    : class_name_(module.name()),
      options_(std::move(options)),
      tensors_(module_state_dict(module)),
      found_(tensors_.size(), false) {
  if (options_.needs_memory) check_memory(class_name_, tensors_);
  for (size_t i = 0; i < tensors_.size(); ++i) positions_.emplace(tensors_[i].first, i);
}

std::optional<size_t> StateDictMatch::find_position(const std::string& name,
                                                    at::IntArrayRef sizes) {
  auto position = positions_.find(name);
  if (position == positions_.end() && absl::StartsWith(name, kWrapperPrefix)) {
    position = positions_.find(name.substr(sizeof(kWrapperPrefix) - 1));
  }
  const bool is_ours = position != positions_.end();
  if (options_.wanted && !options_.wanted(is_ours ? position->first : name)) return std::nullopt;
  if (!is_ours || found_[position->second]) {
    unexpected_.push_back(name);
    return std::nullopt;
  }
  found_[position->second] = true;
  const at::Tensor& tensor = tensors_[position->second].second;
  if (tensor.sizes() == sizes) return position->second;
  other_sizes_.push_back(c10::str(name, " (", sizes, " there, ", tensor.sizes(), " in the model)"));
  return std::nullopt;
}

at::Tensor StateDictMatch::find(const std::string& name, at::IntArrayRef sizes) {
  const std::optional<size_t> position = find_position(name, sizes);
  return position ? tensors_[*position].second : at::Tensor();
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

CheckpointedObject checkpointed(torch::nn::Module& module) {
  return {.state_dict = [&module] { return StateDict{.tensors = module_state_dict(module)}; },
          .load_state_dict =
              [&module](const StateDict& state) { load_module_state_dict(module, state.tensors); }};
}

CheckpointedObject checkpointed(torch::optim::Optimizer& optimizer) {
  return {
      .state_dict = [&optimizer] { return optimizer_state_dict(optimizer); },
      .load_state_dict =
          [&optimizer](const StateDict& state) { load_optimizer_state_dict(optimizer, state); }};
}

}  // namespace internal
}  // namespace accelerate
