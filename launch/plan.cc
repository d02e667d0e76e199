#include "launch/plan.h"

#include <algorithm>

#include "absl/log/absl_check.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "accelerate/runtime/env.h"

namespace accelerate::launch {
namespace {

constexpr char kLoopback[] = "127.0.0.1";

bool has_value(absl::Span<const std::string> environment, absl::string_view name) {
  return std::any_of(environment.begin(), environment.end(), [name](absl::string_view word) {
    return absl::ConsumePrefix(&word, name) && word.size() > 1 && word[0] == '=';
  });
}

}  // namespace

std::vector<ProcessPlan> plan_ranks(const LaunchOptions& options,
                                    absl::Span<const std::string> parent_environment,
                                    const Rendezvous& rendezvous) {
  ABSL_CHECK(!options.simulate.has_value());
  const std::string world_size = absl::StrCat(options.num_processes);
  EnvironmentOverlay common = {
      {env::kWorldSize, world_size},
      {env::kLocalWorldSize, world_size},
      {env::kGroupRank, "0"},
      {env::kMasterAddr, kLoopback},
      {env::kSimulate, std::nullopt},
      {env::kSimulateSeed, std::nullopt},
      {env::kMasterPort, absl::StrCat(rendezvous.port)},
  };
  // Ranks that share a machine would each take all of its cores and slow one another down.
  if (options.num_processes > 1 && !has_value(parent_environment, env::kOmpNumThreads)) {
    common[env::kOmpNumThreads] = "1";
  }
  std::vector<ProcessPlan> plans(options.num_processes);
  for (int rank = 0; rank < options.num_processes; ++rank) {
    ProcessPlan& plan = plans[rank];
    plan.argv = options.command;
    plan.environment = common;
    plan.environment[env::kRank] = absl::StrCat(rank);
    plan.environment[env::kLocalRank] = absl::StrCat(rank);
    plan.environment[env::kStoreListenFd] = std::nullopt;
  }
  plans[0].environment[env::kStoreListenFd] = absl::StrCat(rendezvous.listen_fd);
  plans[0].inherited_fds = {rendezvous.listen_fd};
  return plans;
}

ProcessPlan plan_simulation(const LaunchOptions& options) {
  ABSL_CHECK(options.simulate.has_value());
  ProcessPlan plan;
  plan.argv = options.command;
  for (const char* name :
       {env::kRank, env::kWorldSize, env::kLocalRank, env::kLocalWorldSize, env::kGroupRank,
        env::kMasterAddr, env::kMasterPort, env::kStoreListenFd}) {
    plan.environment[name] = std::nullopt;
  }
  plan.environment[env::kSimulate] = *options.simulate;
  if (options.simulate_seed) {
    plan.environment[env::kSimulateSeed] = absl::StrCat(*options.simulate_seed);
  }
  if (options.report) plan.environment[env::kSimulateReport] = *options.report;
  return plan;
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

std::string to_text(const ProcessPlan& plan) {
  std::string text = absl::StrCat("argv: ", absl::StrJoin(plan.argv, " "), "\n");
  for (const auto& [name, value] : plan.environment) {
    if (value) absl::StrAppend(&text, "set ", name, "=", *value, "\n");
  }
  for (const auto& [name, value] : plan.environment) {
    if (!value) absl::StrAppend(&text, "unset ", name, "\n");
  }
  for (int fd : plan.inherited_fds) absl::StrAppend(&text, "keep fd ", fd, "\n");
  return text;
}

}  // namespace accelerate::launch
