/// A dictionary as YAML, as PyYAML's `dump` writes it: blocks, keys in the order of their bytes,
/// words in quotes where they would be read as something else.
///
///   yaml_text({{"lr", 0.1}, {"sizes", TrackerList{2, 3}}})  // "lr: 0.1\nsizes:\n- 2\n- 3\n"
///
/// Tensors are lists of their elements, or a number. Of a name that comes twice the last counts.
/// Differs: texts with control characters and long ones that are not ASCII stay on one line.
/// Threads: a pure function.
#pragma once

#include <string>

#include "accelerate/tracking/value.h"

namespace accelerate::trackers {

/// A line's end last.
std::string yaml_text(const TrackerDict& values);

}  // namespace accelerate::trackers
