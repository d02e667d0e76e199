/// The parts of a new process: command, environment, descriptors; and looking into an environment
/// that is a list of `NAME=value` words.
///
/// Pure: nothing is started and the machine is not asked, so a plan can be printed and compared as
/// text.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/types/span.h"
#include "accelerate/platform/environment.h"

namespace accelerate::launcher::process {

/// More ranks than this on one machine is taken for a typing error.
inline constexpr int kMaxProcesses = 1024;

/// Changes to an inherited environment; a name without a value is removed from it.
using EnvironmentOverlay = std::map<std::string, std::optional<std::string>>;

/// One process to start.
struct ProcessPlan {
  std::vector<std::string> argv;
  EnvironmentOverlay environment;
  /// Descriptors of the launcher that this process keeps, under the same numbers. Standard input,
  /// output and error are not listed.
  std::vector<int> inherited_fds;
};

/// Removes what an outer run said about its ranks, lest a program takes itself for one of them.
EnvironmentOverlay without_outer_run();

/// The environment of `NAME=value` words, without this process's own variables.
Environment environment_of(absl::Span<const std::string> words);

/// The environment that results; of a name that occurs twice in `parent` both are replaced.
std::vector<std::string> apply_overlay(absl::Span<const std::string> parent,
                                       const EnvironmentOverlay& overlay);

/// The changes as lines: `set NAME=value` for all, then `unset NAME` for all.
std::string to_text(const EnvironmentOverlay& overlay);

/// The plan as lines `argv: …`, the environment's, `keep fd N`, in this order.
std::string to_text(const ProcessPlan& plan);

/// The value of the last word of that name; nothing if there is none.
inline std::optional<std::string> find_in_environment(absl::Span<const std::string> environment,
                                                      absl::string_view name) {
  std::optional<std::string> value;
  for (absl::string_view word : environment) {
    if (absl::ConsumePrefix(&word, name) && absl::ConsumePrefix(&word, "=")) value.emplace(word);
  }
  return value;
}

/// The same; empty if there is none.
inline std::string environment_value(absl::Span<const std::string> environment,
                                     absl::string_view name) {
  return find_in_environment(environment, name).value_or("");
}

}  // namespace accelerate::launcher::process
