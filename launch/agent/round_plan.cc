#include "launch/agent/round_plan.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "accelerate/platform/environment.h"

namespace accelerate::launcher::agent {
namespace {

// The rest of torchrun's contract, which programs may look at and this library does not.
constexpr char kRoleName[] = "ROLE_NAME";
constexpr char kRoleRank[] = "ROLE_RANK";
constexpr char kRoleWorldSize[] = "ROLE_WORLD_SIZE";
constexpr char kGroupWorldSize[] = "GROUP_WORLD_SIZE";
constexpr char kRestartCount[] = "TORCHELASTIC_RESTART_COUNT";
constexpr char kMaxRestarts[] = "TORCHELASTIC_MAX_RESTARTS";
constexpr char kRunId[] = "TORCHELASTIC_RUN_ID";
constexpr char kUseAgentStore[] = "TORCHELASTIC_USE_AGENT_STORE";

bool is_set(const StreamsByRank& streams) {
  return streams.fallback != Streams::kNone || !streams.by_local_rank.empty();
}

bool has(const StreamsByRank& streams, int local_rank, Streams stream) {
  const auto found = streams.by_local_rank.find(local_rank);
  const Streams chosen = found == streams.by_local_rank.end() ? streams.fallback : found->second;
  return (static_cast<int>(chosen) & static_cast<int>(stream)) != 0;
}

supervise::StreamTarget target(const AgentOptions& options, int local_rank, Streams stream,
                               const std::string& log_path) {
  // A log folder without --redirects and --tee gets all output, and the console shows it too.
  const bool logs_all = !is_set(options.redirects) && !is_set(options.tee);
  const bool redirected = has(options.redirects, local_rank, stream);
  const bool teed = has(options.tee, local_rank, stream) || logs_all;
  const bool shown =
      options.local_ranks_filter.empty() || options.local_ranks_filter.contains(local_rank);
  return {.console = shown && (teed || !redirected),
          .log_path = (redirected || teed) ? log_path : ""};
}

absl::Status cannot_make(const std::string& folder, const std::string& why) {
  return absl::UnavailableError(absl::StrCat("cannot make a folder for logs, ", folder, ": ", why,
                                             "; give another --log_dir"));
}

}  // namespace

bool wants_logs(const AgentOptions& options) {
  return !options.log_dir.empty() || is_set(options.redirects) || is_set(options.tee);
}

std::vector<supervise::RankStart> plan_round(const AgentOptions& options, const Round& round,
                                             int store_fd, const std::string& log_folder) {
  process::EnvironmentOverlay common = options.environment;
  for (const char* name : env::kSimulation) common[name] = std::nullopt;
  common[env::kWorldSize] = common[kRoleWorldSize] = absl::StrCat(round.world_size);
  common[env::kLocalWorldSize] = absl::StrCat(options.processes_per_node);
  common[env::kGroupRank] = absl::StrCat(round.group_rank);
  common[kGroupWorldSize] = absl::StrCat(round.group_count);
  common[env::kMasterAddr] = round.master_addr;
  common[env::kMasterPort] = absl::StrCat(round.master_port);
  common[kRoleName] = options.role;
  common[kRestartCount] = absl::StrCat(round.restarts);
  common[kMaxRestarts] = absl::StrCat(options.max_restarts);
  common[kRunId] = options.run_id;
  // Rank 0 serves the store itself.
  common[kUseAgentStore] = "False";
  std::vector<supervise::RankStart> ranks;
  for (int local_rank = 0; local_rank < options.processes_per_node; ++local_rank) {
    const int rank = round.first_rank + local_rank;
    supervise::RankStart start = {.rank = rank, .local_rank = local_rank};
    start.plan = {.argv = options.command, .environment = common};
    process::EnvironmentOverlay& environment = start.plan.environment;
    environment[env::kRank] = environment[kRoleRank] = absl::StrCat(rank);
    environment[env::kLocalRank] = absl::StrCat(local_rank);
    environment[env::kStoreListenFd] = std::nullopt;
    if (rank == 0) {
      environment[env::kStoreListenFd] = absl::StrCat(store_fd);
      start.plan.inherited_fds = {store_fd};
    }
    std::string folder;
    if (!log_folder.empty()) {
      folder = absl::StrCat(log_folder, "/attempt_", round.number, "/", rank, "/");
    }
    const auto log = [&](const char* name) { return folder.empty() ? "" : folder + name; };
    start.out = target(options, local_rank, Streams::kOut, log("stdout.log"));
    start.err = target(options, local_rank, Streams::kErr, log("stderr.log"));
    ranks.push_back(std::move(start));
  }
  return ranks;
}

std::string plain_log_folder(const std::string& log_dir, const std::string& run_id) {
  std::string name = run_id;
  std::replace_if(
      name.begin(), name.end(),
      [](char c) { return !absl::ascii_isalnum(c) && c != '-' && c != '_' && c != '.'; }, '_');
  return absl::StrCat(log_dir, name.empty() || name[0] == '.' ? "/_" : "/", name);
}

absl::StatusOr<std::string> claim_log_folder(const std::string& log_dir, const std::string& run_id,
                                             const std::string& run_token) {
  const std::string plain = plain_log_folder(log_dir, run_id);
  for (int number = 1;; ++number) {
    const std::string folder = number == 1 ? plain : absl::StrCat(plain, ".", number);
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    const bool is_new = !error && std::filesystem::is_empty(folder, error);
    if (error) return cannot_make(folder, error.message());
    // The first entry of the folder names its owner: a link appears atomically, with its text.
    const std::string owner = absl::StrCat(folder, "/.run");
    if (is_new && symlink(run_token.c_str(), owner.c_str()) != 0 && errno != EEXIST) {
      return cannot_make(owner, std::strerror(errno));
    }
    if (std::filesystem::read_symlink(owner, error) == run_token) return folder;
  }
}

}  // namespace accelerate::launcher::agent
