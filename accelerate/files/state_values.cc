// A StateDict's values in the metadata of its file.
#include "accelerate/base/document.h"
#include "accelerate/comm/checkpoint_error.h"
#include "accelerate/files/safetensors.h"

namespace accelerate::internal {

static constexpr char kValues[] = "values";

SafetensorsMetadata state_metadata(const std::string& values) {
  SafetensorsMetadata metadata = {{"format", "pt"}};
  if (!values.empty()) metadata[kValues] = values;
  return metadata;
}

std::optional<nlohmann::ordered_json> state_values(const SafetensorsFile& file,
                                                   const std::string& path) {
  const std::optional<SafetensorsMetadata>& metadata = file.header().metadata;
  if (!metadata) return std::nullopt;
  const auto values = metadata->find(kValues);
  if (values == metadata->end()) return std::nullopt;
  return parse_state_values(values->second, path);
}

nlohmann::ordered_json parse_state_values(const std::string& text, const std::string& path) {
  return value_or_throw(json_value(text, {.name = path}));
}

}  // namespace accelerate::internal
