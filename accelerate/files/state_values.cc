// A StateDict's values in the metadata of its file.
#include "absl/strings/str_cat.h"
#include "accelerate/base/json_text.h"
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
  if (is_text_too_deep(text)) {
    throw CheckpointError(absl::StrCat(path, ": its JSON is nested too deeply, in more than ",
                                       kMaxJsonDepth, " levels"));
  }
  nlohmann::ordered_json values = parse_ordered_json(text, /*allow_exceptions=*/false);
  if (values.is_discarded()) {
    throw CheckpointError(absl::StrCat(path, ": it holds neither tensors nor JSON"));
  }
  return values;
}

}  // namespace accelerate::internal
