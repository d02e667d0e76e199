/// Where a project's checkpoints and logs go, and how many checkpoints are kept.
///
/// Mirrors: accelerate utils/dataclasses.py, ProjectConfiguration.
/// Differs: a checkpoint that is loaded restores `iteration`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "accelerate/base/fields.h"

namespace accelerate {

struct ProjectConfiguration {
  /// Holds `checkpoints/`. Absent: checkpoints need a folder of their own each time.
  std::optional<std::string> project_dir = std::nullopt;
  /// For trackers. Absent: project_dir.
  std::optional<std::string> logging_dir = std::nullopt;
  /// save_state() saves to project_dir/checkpoints/checkpoint_{iteration}, and load_state() finds
  /// the latest complete one there.
  bool automatic_checkpoint_naming = false;
  /// How many automatically named checkpoints are kept; absent: all. What is over it is removed,
  /// oldest first, after the new one is complete. The new one stays whatever the limit, so that 0
  /// and negative limits keep one.
  std::optional<int64_t> total_limit = std::nullopt;
  /// Number of the next checkpoint.
  int64_t iteration = 0;
  /// Nodes share no disk: the first rank of each saves what otherwise rank 0 alone does.
  bool save_on_each_node = false;

  /// project_dir, and logging_dir where there is none.
  void set_directories(std::optional<std::string> directory = std::nullopt) {
    project_dir = directory;
    if (!logging_dir) logging_dir = project_dir;
  }

  bool operator==(const ProjectConfiguration&) const = default;
};
ACCELERATE_FIELDS(ProjectConfiguration, project_dir, logging_dir, automatic_checkpoint_naming,
                  total_limit, iteration, save_on_each_node)

}  // namespace accelerate
