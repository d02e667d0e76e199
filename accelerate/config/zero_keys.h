/// The table of the keys of a DeepSpeed configuration, one row each, and of their other names.
///
/// Threads: constants.
#pragma once

#include <vector>

#include <nlohmann/json.hpp>

#include "absl/types/span.h"
#include "accelerate/config/zero_key.h"

namespace accelerate::internal {

/// Another name of a key, or of a block.
struct ZeroName {
  const char* name;
  const char* key;
  /// What a value under the name is under the key; null: itself.
  nlohmann::ordered_json (*value)(const nlohmann::ordered_json& value) = nullptr;
};

/// One that stands for several keys has a row for each.
absl::Span<const ZeroName> zero_names();

/// Sorted as the documentation is.
const std::vector<ZeroKey>& zero_keys();

}  // namespace accelerate::internal
