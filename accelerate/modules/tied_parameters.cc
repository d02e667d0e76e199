#include "accelerate/modules/tied_parameters.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#include <nlohmann/json.hpp>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "accelerate/modules/module_state_dict.h"
#include "accelerate/modules/module_tensors.h"
#include "accelerate/tensors/tensor_memory.h"

namespace accelerate {
namespace {

// All names of all parameters.
NamedTensors all_parameters(const torch::nn::Module& module) {
  return named_module_tensors(
      module, {.include_buffers = false, .recurse = true, .remove_duplicate = false});
}

bool says(const nlohmann::json& config, const char* key) {
  const auto found = config.find(key);
  return found != config.end() && found->is_boolean() && found->get<bool>();
}

}  // namespace

TiedParameters find_tied_parameters(const torch::nn::Module& module) {
  const NamedTensors parameters = all_parameters(module);
  const std::vector<size_t> firsts = internal::first_identical_views(parameters);
  std::vector<std::vector<std::string>> groups(parameters.size());  // at their first one
  for (size_t i = 0; i < parameters.size(); ++i) {
    groups[firsts[i]].push_back(parameters[i].first);
  }
  std::erase_if(groups, [](const auto& group) { return group.size() < 2; });
  for (std::vector<std::string>& group : groups) std::sort(group.begin(), group.end());
  return groups;
}

void retie_parameters(torch::nn::Module& module, const TiedParameters& tied_params) {
  absl::flat_hash_map<std::string, at::Tensor> parameters;
  for (auto& [name, tensor] : all_parameters(module)) parameters.emplace(std::move(name), tensor);
  std::vector<std::pair<at::Tensor, at::Tensor>> changes;
  for (const std::vector<std::string>& group : tied_params) {
    std::vector<at::Tensor> tensors;
    for (const std::string& name : group) {
      const auto found = parameters.find(name);
      TORCH_CHECK_VALUE(found != parameters.end(), "there is no parameter ", name,
                        " that could be tied to others");
      tensors.push_back(found->second);
    }
    const auto source = std::find_if(tensors.begin(), tensors.end(),
                                     [](const at::Tensor& each) { return !each.is_meta(); });
    if (source == tensors.end()) continue;
    for (size_t i = 0; i < tensors.size(); ++i) {
      TORCH_CHECK_VALUE(tensors[i].sizes() == source->sizes(), group[i], " of shape [",
                        absl::StrJoin(tensors[i].sizes(), ", "), "] cannot be tied to ",
                        group[static_cast<size_t>(source - tensors.begin())], " of shape [",
                        absl::StrJoin(source->sizes(), ", "), "]");
      if (!tensors[i].is_same(*source)) changes.emplace_back(tensors[i], *source);
    }
  }
  for (const auto& [tensor, source] : changes) internal::rebind(tensor, source);
}

bool check_tied_parameters_in_config(const nlohmann::json& config) {
  if (!config.is_object()) return false;
  const auto text = config.find("text_config");
  return says(config, "tie_word_embeddings") || says(config, "tie_encoder_decoder") ||
         (text != config.end() && text->is_object() && check_tied_parameters_in_config(*text));
}

bool check_tied_parameters_on_same_device(const TiedParameters& tied_params,
                                          const DeviceMap& device_map) {
  bool all_together = true;
  for (const std::vector<std::string>& group : tied_params) {
    std::vector<std::string> places;
    bool together = true;
    const DevicePlacement* first = nullptr;
    for (const std::string& name : group) {
      const DevicePlacement* const placement = device_map.find(name);
      TORCH_CHECK_VALUE(placement != nullptr, "the device map gives no device for ", name);
      if (first == nullptr) first = placement;
      together = together && *placement == *first;
      places.push_back(absl::StrCat(name, ": ", placement->text()));
    }
    if (together) continue;
    all_together = false;
    TORCH_WARN("Tied parameters are on different devices: ", absl::StrJoin(places, ", "),
               ". Modify the device map, or let infer_auto_device_map make it.");
  }
  return all_together;
}

}  // namespace accelerate
