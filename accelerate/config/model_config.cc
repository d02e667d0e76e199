#include "accelerate/config/model_config.h"

#include <set>

#include <c10/util/Exception.h>
#include <torch/nn/module.h>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "accelerate/config/model_structure.h"
#include "accelerate/values/module_class.h"

namespace accelerate {
namespace {

using nlohmann::json;

// The value under a key; null where there is none.
json value_of(const json& object, const char* key) {
  return object.is_object() ? object.value(key, json()) : json();
}

std::set<std::string> layer_types(const json& config) {
  std::set<std::string> types;
  const json listed = value_of(config, "layer_types");
  if (listed.is_array()) {
    for (const json& type : listed) {
      TORCH_CHECK_VALUE(type.is_string(), "layer_types: expected names, not ", type.dump());
      types.insert(type.get<std::string>());
    }
  }
  return types;
}

}  // namespace

std::optional<int64_t> get_model_tp_size(std::optional<int64_t> tp_size, const json& config) {
  if (tp_size) return tp_size;
  const json size = value_of(value_of(config, "distributed_config"), "tp_size");
  if (size.is_null()) return std::nullopt;
  TORCH_CHECK_VALUE(size.is_number_integer(),
                    "distributed_config: tp_size is a number of ranks, not ", size.dump());
  return size.get<int64_t>();
}

void check_attention_layers(const json& config, MeshAxis axis, const std::string& model_class) {
  TORCH_CHECK_VALUE(axis == MeshAxis::kCp || axis == MeshAxis::kSp,
                    "check_attention_layers: ", to_string(axis), " divides no sequences");
  const json text = value_of(config, "text_config");
  const json& asked = text.is_null() ? config : text;
  std::set<std::string> types = layer_types(asked);
  if (axis == MeshAxis::kSp) {
    std::erase_if(types, [](const std::string& type) {
      return !absl::StrContains(type, "linear_attention");
    });
  } else {
    const json window = value_of(asked, "sliding_window");
    if (types.empty() && !window.is_null() && window != 0) types.insert("sliding_attention");
    types.erase("full_attention");
  }
  if (types.empty()) return;
  const std::string names = absl::StrCat("['", absl::StrJoin(types, "', '"), "']");
  TORCH_CHECK_VALUE(axis == MeshAxis::kSp,
                    "Context parallelism does not support attention layers of type ", names,
                    " (model ", model_class,
                    "). Their masks would be dropped, and they would be trained with full causal "
                    "attention. Use a full-attention model, or disable context parallelism.");
  TORCH_CHECK_VALUE(false, "Sequence parallelism does not support attention layers of type ", names,
                    " (model ", model_class,
                    "). They keep a state along the sequence, which would begin anew on each rank. "
                    "Use a full-attention model, or disable sequence parallelism.");
}

void check_attention_layers(const torch::nn::Module& model, MeshAxis axis) {
  const auto* const structure = dynamic_cast<const ModelStructure*>(&model);
  if (structure == nullptr) return;
  check_attention_layers(json{{"layer_types", structure->layer_types()}}, axis,
                         module_class_name(model));
}

}  // namespace accelerate
