#include "launch/agent/agent.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "accelerate/base/status.h"
#include "accelerate/base/version.h"
#include "accelerate/platform/environment.h"
#include "accelerate/platform/host_files.h"
#include "launch/agent/membership_client.h"
#include "launch/agent/membership_server.h"
#include "launch/agent/message.h"
#include "launch/process/child_process.h"
#include "launch/process/socket_address.h"
#include "launch/process/terminal_colour.h"
#include "launch/supervise/supervisor.h"

namespace accelerate::launcher::agent {
namespace {

// How long to wait until the server has received that this machine leaves.
constexpr std::chrono::seconds kLeaveTimeout(2);

// How long to wait for a slow reader of the last output after a second stop request.
constexpr std::chrono::milliseconds kLastOutputTimeout(500);

std::string counted(int count, absl::string_view what) {
  return absl::StrCat(count, " ", what, count == 1 ? "" : "s");
}

constexpr absl::Duration kResolveTimeout = absl::Seconds(4);

MembershipRules rules_of(const AgentOptions& options, const RendezvousTiming& timing) {
  return {.min_nodes = options.min_nodes,
          .max_nodes = options.max_nodes,
          .fixed_ranks = options.rendezvous == RendezvousKind::kStatic,
          .max_restarts = options.max_restarts,
          .join_timeout = timing.join_timeout,
          .last_call_timeout = timing.last_call_timeout,
          .gather_time = options.monitor_interval,
          .run_token = absl::StrCat(supervise::host_name(), ".", getpid(), ".",
                                    absl::ToUnixNanos(absl::Now()))};
}

Handshake handshake_of(const AgentOptions& options) {
  return {.version = kAccelerateVersion,
          .run_id = options.run_id,
          .min_nodes = options.min_nodes,
          .max_nodes = options.max_nodes,
          .max_restarts = options.max_restarts,
          .clock = absl::Now(),
          .machine = {.host = supervise::host_name(),
                      .address = options.local_addr.value_or(""),
                      .processes = options.processes_per_node,
                      .node_rank = options.node_rank}};
}

// Digits mean that address alone. A name may stand for the loopback address here and for another
// one elsewhere, so its machine listens everywhere; so does one behind an address translation.
absl::StatusOr<process::ListeningSocket> listen_at(
    const AgentOptions& options, const std::vector<process::SocketAddress>& addresses) {
  const bool exact = process::SocketAddress::from_text(options.endpoint_host).has_value() ||
                     options.endpoint_host == "localhost";
  if (exact && process::is_own_address(addresses[0]))
    return process::listen_on(addresses[0], options.endpoint_port);
  return process::listen_everywhere(options.endpoint_port);
}

// A run on this machine alone: it asks the rules directly.
class LocalLink final : public MembershipLink {
 public:
  LocalLink(const MembershipRules& rules, const Member& machine)
      : membership_(rules, Clock::now()) {
    // Cannot fail: it is the first, and a run on one machine has no ranks of machines.
    membership_.admit(kMember, machine).IgnoreError();
  }

  void ready(uint16_t store_port) override {
    membership_.ready(kMember, store_port);
    advance();
  }
  void failed(const Failure& failure) override {
    membership_.failed(kMember, failure);
    advance();
  }
  void done() override {
    membership_.done(kMember);
    advance();
  }
  void leave(const Failure&) override {}
  bool is_flushed() const override { return true; }

  void add_entries(std::vector<pollfd>&) override {}
  void react(absl::Span<const pollfd>) override {}

 private:
  static constexpr Membership::MemberId kMember = 0;

  void advance() {
    for (auto& [member, order] : membership_.advance(Clock::now())) {
      orders_.push_back(std::move(order));
    }
  }

  Membership membership_;
};

// This machine's part in the rendezvous: alone, as the host of the membership server, or as a
// client.
struct Rendezvous {
  // Only where the run's endpoint is.
  std::unique_ptr<MembershipServer> server;
  std::unique_ptr<MembershipLink> link;
  // How long the server waits for the others to receive the end.
  absl::Duration close_timeout = absl::ZeroDuration();
};

absl::StatusOr<Rendezvous> host_run(const AgentOptions& options, MembershipClientOptions client,
                                    process::ListeningSocket socket) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot open a socket: ", std::strerror(errno)));
  }
  UniqueFd server_end(ends[0]);
  UniqueFd client_end(ends[1]);
  Handshake own = handshake_of(options);
  // The other machines know this machine by the endpoint's host.
  if (own.machine.address.empty()) own.machine.address = options.endpoint_host;
  Rendezvous rendezvous = {.close_timeout = client.timing.close_timeout};
  rendezvous.server = std::make_unique<MembershipServer>(
      std::move(socket), rules_of(options, client.timing), own, client.timing.liveness_timeout());
  rendezvous.server->add_connection(std::move(server_end));
  rendezvous.link =
      std::make_unique<MembershipClient>(std::move(client), own, std::move(client_end));
  return rendezvous;
}

// Finds the endpoint, listens there if it is this machine's, and begins to connect otherwise. The
// options are checked.
// Errors: NotFound if the endpoint's name does not resolve, within 5 s; Unavailable if this machine
//         should listen and the port is taken or the address not its own; InvalidArgument for
//         `rdzv_conf`.
absl::StatusOr<Rendezvous> join_rendezvous(const AgentOptions& options) {
  ACCELERATE_ASSIGN_OR_RETURN(RendezvousTiming timing, rendezvous_timing(options.rdzv_conf));
  if (options.rendezvous == RendezvousKind::kStandalone) {
    const Member machine = {.host = supervise::host_name(),
                            .address = "127.0.0.1",
                            .processes = options.processes_per_node};
    return Rendezvous{.link = std::make_unique<LocalLink>(rules_of(options, timing), machine)};
  }
  ACCELERATE_ASSIGN_OR_RETURN(std::vector<process::SocketAddress> addresses,
                              process::resolve(options.endpoint_host, kResolveTimeout));
  MembershipClientOptions client = {.endpoint_host = options.endpoint_host,
                                    .endpoint_port = options.endpoint_port,
                                    .addresses = addresses,
                                    .timing = timing,
                                    .waits_for_unreachable = !options.preflight};
  const bool is_static = options.rendezvous == RendezvousKind::kStatic;
  const bool must_host = timing.is_host.value_or(is_static && options.node_rank == 0);
  if (must_host ||
      (!is_static && !timing.is_host && absl::c_any_of(addresses, process::is_own_address))) {
    absl::StatusOr<process::ListeningSocket> socket = listen_at(options, addresses);
    if (socket.ok()) return host_run(options, std::move(client), *std::move(socket));
    // Another agent of this machine may have been first.
    if (must_host || !absl::IsAlreadyExists(socket.status())) {
      return absl::UnavailableError(
          absl::StrCat(socket.status().message(), "; choose another port on all machines"));
    }
  }
  return Rendezvous{
      .link = std::make_unique<MembershipClient>(std::move(client), handshake_of(options))};
}

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

using Clock = process::EventSource::Clock;

class Agent {
 public:
  Agent(const AgentOptions& options, std::string program, absl::Span<const std::string> environment,
        std::unique_ptr<supervise::Supervisor> supervisor, Rendezvous rendezvous)
      : options_(options),
        program_(std::move(program)),
        environment_(environment),
        supervisor_(std::move(supervisor)),
        rendezvous_(std::move(rendezvous)) {}

  absl::StatusOr<int> run();

 private:
  // One of these is the present step; each returns the order that ended it.
  absl::StatusOr<Order> form_round();
  absl::Status start_round(const Round& round);
  Order supervise_round();

  void step(std::optional<Clock::time_point> until = std::nullopt);
  std::optional<Order> next_order();
  Order leave();
  void leave(const Failure& failure);
  void report_tail(const supervise::RankExit& failure);
  void report_round(absl::string_view text, bool with_tail);
  int finish(const Order& last);
  absl::Status open_store();
  absl::Status open_logs(const Round& round);
  bool is_alone() const { return options_.rendezvous == RendezvousKind::kStandalone; }
  MembershipLink& link() { return *rendezvous_.link; }
  supervise::Console& console() { return supervisor_->console(); }

  const AgentOptions& options_;
  const std::string program_;
  const absl::Span<const std::string> environment_;
  std::unique_ptr<supervise::Supervisor> supervisor_;
  Rendezvous rendezvous_;
  process::ListeningSocket store_;
  Round round_;
  std::string log_folder_;  // of this machine in all rounds; empty if no file is wanted
  std::string told_;        // why the ranks of the round had to stop
};

absl::StatusOr<int> Agent::run() {
  while (true) {
    ACCELERATE_ASSIGN_OR_RETURN(Order order, form_round());
    if (order.kind == Order::Kind::kEnd) return finish(order);
    if (absl::Status started = start_round(order.round); !started.ok()) {
      supervisor_->end_ranks();
      leave(
          {.text = absl::StrCat("machine ", supervise::host_name(), " left: ", started.message())});
      finish({.kind = Order::Kind::kEnd});
      return started;
    }
    const Order verdict = supervise_round();
    supervisor_->end_ranks();
    if (verdict.kind == Order::Kind::kEnd) return finish(verdict);
    report_round(verdict.text, /*with_tail=*/true);
    told_ = verdict.text;
  }
}

absl::StatusOr<Order> Agent::form_round() {
  ACCELERATE_RETURN_IF_ERROR(open_store());
  link().ready(store_.port);
  while (true) {
    while (std::optional<Order> order = next_order()) {
      if (order->kind != Order::Kind::kStop) return *order;
    }
    if (supervisor_->stop_request()) return leave();
    step();
  }
}

// Every machine has a socket for the store ready: it may be the one where rank 0 is.
absl::Status Agent::open_store() {
  absl::StatusOr<process::ListeningSocket> socket =
      is_alone() ? process::listen_on_loopback(options_.endpoint_port)
                 : process::listen_everywhere(0);
  if (absl::IsAlreadyExists(socket.status())) {
    console().print(absl::StrCat(socket.status().message(), "; taking a free port instead"));
    socket = process::listen_on_loopback(0);
  }
  if (!socket.ok()) return socket.status();
  store_ = *std::move(socket);
  return absl::OkStatus();
}

absl::Status Agent::open_logs(const Round& round) {
  const bool wants_logs =
      !options_.log_dir.empty() || is_set(options_.redirects) || is_set(options_.tee);
  if (!wants_logs || !log_folder_.empty()) return absl::OkStatus();
  ACCELERATE_ASSIGN_OR_RETURN(std::string log_dir, options_.log_dir.empty()
                                                       ? make_temporary_folder("accelerate_logs_")
                                                       : options_.log_dir);
  ACCELERATE_ASSIGN_OR_RETURN(log_folder_,
                              claim_log_folder(log_dir, options_.run_id, round.run_token));
  if (!options_.quiet && log_folder_ != plain_log_folder(options_.log_dir, options_.run_id)) {
    console().print(absl::StrCat("logs are in ", log_folder_));
  }
  return absl::OkStatus();
}

absl::Status Agent::start_round(const Round& round) {
  round_ = round;
  told_.clear();
  if (round.number > 0 && !options_.quiet) {
    std::string restart;
    if (round.restarts > 0) {
      restart = absl::StrCat(", restart ", round.restarts, " of ", options_.max_restarts);
    }
    console().print(absl::StrCat("round ", round.number, restart, ": ",
                                 counted(round.world_size, "rank"), " on ",
                                 counted(round.group_count, "machine")));
  }
  ACCELERATE_RETURN_IF_ERROR(open_logs(round));
  const bool own_streams = is_alone() && options_.processes_per_node == 1 && log_folder_.empty() &&
                           options_.local_ranks_filter.empty();
  const std::vector<supervise::RankStart> ranks =
      plan_round(options_, round, store_.fd.get(), log_folder_);
  absl::Status started = supervisor_->start_ranks(program_, ranks, environment_, own_streams);
  // From here on the port is rank 0's alone, and free again when rank 0 is gone.
  store_.fd.reset();
  return started;
}

Order Agent::supervise_round() {
  supervise::RankGroup& ranks = *supervisor_->ranks();
  std::optional<Order> verdict;
  bool reported = false;
  while (!verdict || !ranks.is_over()) {
    step();
    if (verdict) continue;
    if (supervisor_->stop_request()) {
      verdict = leave();
      continue;
    }
    if (!reported && ranks.first_failure()) {
      const bool others = ranks.stopped_any() || round_.world_size > options_.processes_per_node;
      link().failed({.exit_code = ranks.first_failure()->exit_code(),
                     .text = absl::StrCat(supervise::describe(*ranks.first_failure()),
                                          others ? "; stopped the other ranks" : "")});
      reported = true;
    } else if (!reported && ranks.all_exited()) {
      link().done();
      reported = true;
    }
    verdict = next_order();
    if (verdict && !ranks.all_exited()) supervisor_->stop_ranks();
  }
  return *verdict;
}

void Agent::step(std::optional<Clock::time_point> until) {
  std::vector<process::EventSource*> sources = {supervisor_.get(), &link()};
  if (rendezvous_.server) sources.push_back(rendezvous_.server.get());
  process::wait_for_events(sources, until);
}

std::optional<Order> Agent::next_order() {
  while (std::optional<Order> order = link().next_order()) {
    if (order->kind != Order::Kind::kNotice) return order;
    console().print(order->text);
  }
  return std::nullopt;
}

Order Agent::leave() {
  const supervise::StopRequest& request = *supervisor_->stop_request();
  leave({.exit_code = request.exit_code,
         .text = absl::StrCat("machine ", supervise::host_name(), " left: ", request.reason)});
  return {.kind = Order::Kind::kEnd,
          .exit_code = request.exit_code,
          .text = absl::StrCat(request.reason,
                               supervisor_->ranks() != nullptr ? "; stopped the ranks" : "")};
}

void Agent::leave(const Failure& failure) {
  if (rendezvous_.server) {
    // Without its server the run cannot go on.
    rendezvous_.server->end_run(failure);
  } else {
    link().leave(failure);
  }
}

void Agent::report_tail(const supervise::RankExit& failure) {
  const supervise::RankGroup& ranks = *supervisor_->ranks();
  std::vector<std::string> lines;
  if (!ranks.has_shown_failure(failure.rank)) lines = ranks.tail(failure.rank);
  if (!lines.empty()) {
    console().print(absl::StrCat("last lines of rank ", failure.rank, " on standard error:"));
  }
  const std::string prefix = process::rank_prefix(failure.rank, console().err().has_colour());
  for (const std::string& line : lines) {
    absl::StrAppend(&console().err().pending(), "  ", prefix, line, "\n");
  }
  if (const std::string path = ranks.log_path(failure.rank); !path.empty()) {
    console().print(absl::StrCat("all of it: ", path));
  }
}

// Says how the round ended here: its failure, if one was here, with the rank's last lines.
void Agent::report_round(absl::string_view text, bool with_tail) {
  if (options_.quiet) return;
  const supervise::RankGroup* ranks = supervisor_->ranks();
  if (ranks != nullptr && !ranks->killed().empty()) {
    const bool is_one = ranks->killed().size() == 1;
    console().print(absl::StrCat(is_one ? "rank " : "ranks ", absl::StrJoin(ranks->killed(), ", "),
                                 " did not stop in time and ", is_one ? "was" : "were", " killed"));
  }
  if (!text.empty()) console().print_error(text);
  if (with_tail && ranks != nullptr && ranks->first_failure() && !supervisor_->stop_request()) {
    report_tail(*ranks->first_failure());
  }
}

int Agent::finish(const Order& last) {
  // The text that was printed when the ranks had to stop is not printed again.
  absl::string_view text = last.text;
  const bool is_known = !told_.empty() && absl::ConsumePrefix(&text, told_);
  if (is_known) absl::ConsumePrefix(&text, "; ");
  report_round(text, /*with_tail=*/!is_known);
  const Clock::time_point told_by =
      Clock::now() + (rendezvous_.server ? absl::ToChronoMilliseconds(rendezvous_.close_timeout)
                                         : std::chrono::milliseconds(kLeaveTimeout));
  const bool asked_before = supervisor_->stop_request().has_value();
  while (!supervisor_->stops_waiting()) {
    // Asked to stop while only last words are left to pass on.
    if (!asked_before && supervisor_->stop_request()) break;
    const bool told = link().is_flushed() && (!rendezvous_.server || rendezvous_.server->is_over());
    const bool is_late = Clock::now() >= told_by;
    if (console().empty() && (told || is_late)) break;
    // A time that passed is nothing to wait for.
    step(is_late ? std::nullopt : std::optional(told_by));
  }
  const Clock::time_point last_words = Clock::now() + kLastOutputTimeout;
  while (supervisor_->stops_waiting() && !console().empty() && Clock::now() < last_words) {
    step(last_words);
  }
  return last.exit_code;
}

}  // namespace

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
  std::ranges::replace_if(
      name, [](char c) { return !absl::ascii_isalnum(c) && c != '-' && c != '_' && c != '.'; },
      '_');
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

absl::StatusOr<int> run_agent(const AgentOptions& options,
                              absl::Span<const std::string> environment) {
  ACCELERATE_RETURN_IF_ERROR(check_options(options));
  ACCELERATE_ASSIGN_OR_RETURN(
      std::string program,
      process::find_program(options.command[0], process::search_path_of(environment)));
  if (options.preflight && options.devices_needed > 0) {
    ACCELERATE_RETURN_IF_ERROR(check_devices(options.devices_needed, options.devices_present));
  }
  ACCELERATE_ASSIGN_OR_RETURN(Rendezvous rendezvous, join_rendezvous(options));
  supervise::SupervisorOptions supervision;
  if (options.kill_grace) {
    supervision = {.signal_grace = *options.kill_grace, .failure_grace = *options.kill_grace};
  }
  ACCELERATE_ASSIGN_OR_RETURN(std::unique_ptr<supervise::Supervisor> supervisor,
                              supervise::Supervisor::create(supervision));
  return Agent(options, program, environment, std::move(supervisor), std::move(rendezvous)).run();
}

}  // namespace accelerate::launcher::agent
