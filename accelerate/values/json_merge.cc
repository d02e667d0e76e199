#include "accelerate/values/json_merge.h"

#include <string>

#include <c10/util/Exception.h>

namespace accelerate {
namespace {

void merge_into(nlohmann::json& destination, const nlohmann::json& source,
                const std::string& path) {
  for (const auto& [key, value] : source.items()) {
    TORCH_CHECK_VALUE(destination.is_object(), "merge_dicts: an object cannot be merged into ",
                      destination.type_name(), " at \"", path, "\"");
    if (!value.is_object()) {
      destination[key] = value;
    } else {
      auto [entry, is_new] = destination.emplace(key, nlohmann::json::object());
      merge_into(*entry, value, path.empty() ? key : path + "." + key);
    }
  }
}

}  // namespace

nlohmann::json merge_dicts(const nlohmann::json& source, nlohmann::json destination) {
  TORCH_CHECK_VALUE(source.is_object() && destination.is_object(),
                    "merge_dicts takes two objects, got ", source.type_name(), " and ",
                    destination.type_name());
  merge_into(destination, source, "");
  return destination;
}

}  // namespace accelerate
