/// The shape of a simulated cluster as text: `NODESxRANKS`, as in "2x4".
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace accelerate::simulator {

struct ClusterSpec {
  int num_nodes = 1;
  int ranks_per_node = 1;

  int world_size() const { return num_nodes * ranks_per_node; }
  std::string to_string() const;

  /// Errors: InvalidArgument that points at the character.
  static absl::StatusOr<ClusterSpec> parse(absl::string_view text);
};

}  // namespace accelerate::simulator
