#include "launch/process/process_plan.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "accelerate/platform/environment.h"

namespace accelerate::launcher::process {

EnvironmentOverlay without_outer_run() {
  EnvironmentOverlay overlay;
  for (const char* name :
       {env::kRank, env::kWorldSize, env::kLocalRank, env::kLocalWorldSize, env::kGroupRank,
        env::kMasterAddr, env::kMasterPort, env::kStoreListenFd}) {
    overlay[name] = std::nullopt;
  }
  return overlay;
}

Environment environment_of(absl::Span<const std::string> words) {
  Environment environment;
  for (const auto& [name, value] : environment.variables()) environment.unset(name);
  for (const std::string& word : words) {
    const size_t equals = word.find('=');
    if (equals == std::string::npos) continue;
    environment.set(word.substr(0, equals), word.substr(equals + 1));
  }
  return environment;
}

std::vector<std::string> apply_overlay(absl::Span<const std::string> parent,
                                       const EnvironmentOverlay& overlay) {
  std::vector<std::string> result;
  for (const std::string& word : parent) {
    if (!overlay.contains(word.substr(0, word.find('=')))) result.push_back(word);
  }
  for (const auto& [name, value] : overlay) {
    if (value) result.push_back(absl::StrCat(name, "=", *value));
  }
  return result;
}

std::string to_text(const EnvironmentOverlay& overlay) {
  std::string text;
  for (const auto& [name, value] : overlay) {
    if (value) absl::StrAppend(&text, "set ", name, "=", *value, "\n");
  }
  for (const auto& [name, value] : overlay) {
    if (!value) absl::StrAppend(&text, "unset ", name, "\n");
  }
  return text;
}

std::string to_text(const ProcessPlan& plan) {
  std::string text =
      absl::StrCat("argv: ", absl::StrJoin(plan.argv, " "), "\n", to_text(plan.environment));
  for (int fd : plan.inherited_fds) absl::StrAppend(&text, "keep fd ", fd, "\n");
  return text;
}

}  // namespace accelerate::launcher::process
