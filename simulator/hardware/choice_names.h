/// The choices of a cluster's text and JSON, by their names.
///
/// Threads: pure functions.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "accelerate/base/enum_text.h"
#include "simulator/hardware/device_model.h"

namespace accelerate::simulator::internal {

/// Whether a user may choose it; a torus follows from the device.
template <typename Choice>
bool is_for_users(Choice) {
  return true;
}
inline bool is_for_users(NodeFabric fabric) { return fabric != NodeFabric::kTorus; }

/// The names that a user may choose.
template <typename Choice>
std::vector<std::string> choice_names() {
  std::vector<std::string> names;
  for (const Choice choice : accelerate::values<Choice>()) {
    if (is_for_users(choice)) names.emplace_back(accelerate::to_string(choice));
  }
  return names;
}

template <typename Choice>
std::optional<Choice> choice_of(absl::string_view name) {
  const std::optional<Choice> choice = accelerate::value_of<Choice>({name.data(), name.size()});
  return choice && is_for_users(*choice) ? choice : std::nullopt;
}

}  // namespace accelerate::simulator::internal
