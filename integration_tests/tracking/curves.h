/// Reads back what trackers left on the disk, without their help.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace accelerate::testing {

/// (step, value), in the order of the file.
using Curve = std::vector<std::pair<int64_t, double>>;

/// `name` in the folder's metrics.jsonl. Throws for a line that is not an object, but for a last
/// one without an end.
Curve jsonl_curve(const std::string& folder, const std::string& name);

/// `tag` in the folder's event files.
Curve tensorboard_curve(const std::string& folder, const std::string& tag);

}  // namespace accelerate::testing
