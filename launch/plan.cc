#include "launch/plan.h"

#include <algorithm>

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

std::vector<ProcessPlan> plan_ranks(const LocalRun& run,
                                    absl::Span<const std::string> parent_environment,
                                    const Rendezvous& rendezvous) {
  const std::string world_size = absl::StrCat(run.num_processes);
  EnvironmentOverlay common = {
      {env::kWorldSize, world_size},
      {env::kLocalWorldSize, world_size},
      {env::kGroupRank, "0"},
      {env::kMasterAddr, kLoopback},
      {env::kSimulate, std::nullopt},
      {env::kSimulateSeed, std::nullopt},
      {env::kMasterPort, absl::StrCat(rendezvous.port)},
  };
  for (const auto& [name, value] : run.environment) common.try_emplace(name, value);
  // Ranks that share a machine would each take all of its cores and slow one another down.
  if (run.num_processes > 1 && !run.environment.contains(env::kOmpNumThreads) &&
      !has_value(parent_environment, env::kOmpNumThreads)) {
    common[env::kOmpNumThreads] = "1";
  }
  std::vector<ProcessPlan> plans(run.num_processes);
  for (int rank = 0; rank < run.num_processes; ++rank) {
    ProcessPlan& plan = plans[rank];
    plan.argv = run.command;
    plan.environment = common;
    plan.environment[env::kRank] = absl::StrCat(rank);
    plan.environment[env::kLocalRank] = absl::StrCat(rank);
    plan.environment[env::kStoreListenFd] = std::nullopt;
  }
  plans[0].environment[env::kStoreListenFd] = absl::StrCat(rendezvous.listen_fd);
  plans[0].inherited_fds = {rendezvous.listen_fd};
  return plans;
}

EnvironmentOverlay without_outer_run() {
  EnvironmentOverlay overlay;
  for (const char* name :
       {env::kRank, env::kWorldSize, env::kLocalRank, env::kLocalWorldSize, env::kGroupRank,
        env::kMasterAddr, env::kMasterPort, env::kStoreListenFd}) {
    overlay[name] = std::nullopt;
  }
  return overlay;
}

ProcessPlan plan_simulation(const SimulatedRun& run) {
  ProcessPlan plan;
  plan.argv = run.command;
  plan.environment = run.environment;
  plan.environment.merge(without_outer_run());
  plan.environment[env::kSimulate] = run.simulate;
  if (run.simulate_seed) plan.environment[env::kSimulateSeed] = *run.simulate_seed;
  if (run.report) plan.environment[env::kSimulateReport] = *run.report;
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
