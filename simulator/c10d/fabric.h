/// The state that the ranks of one simulated cluster share: the scheduler, the network, the
/// contents of the rendezvous store, the communicators by group name, and the outcome of ranks that
/// have ended.
///
/// Threads: only the rank that holds the scheduler's baton may call in.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "accelerate/comm/watch/operation_log.h"
#include "simulator/c10d/call_order.h"
#include "simulator/c10d/fold_plan.h"
#include "simulator/c10d/replicas.h"
#include "simulator/c10d/semantics.h"
#include "simulator/c10d/spot_check.h"
#include "simulator/core/executed_ranks.h"
#include "simulator/core/run_log.h"
#include "simulator/core/scheduler.h"
#include "simulator/faults/sites.h"
#include "simulator/hardware/cluster_spec.h"
#include "simulator/network/flows.h"
#include "simulator/network/link_speeds.h"
#include "simulator/network/network.h"
#include "simulator/network/shared_links.h"
#include "simulator/trace/trace.h"

namespace accelerate::simulator {

class Communicator;
class Recorder;

class Fabric {
 public:
  struct Options {
    /// The first words of every report: the topology and the seed.
    std::string headline;
    Recorder* recorder = nullptr;
    /// Whether tensors are watched from a call to its wait.
    bool detect_races = true;
    /// Whether replicas are compared.
    bool detect_drift = true;
    TimeOuts time_outs = TimeOuts::kDiagnose;
    Semantics semantics = Semantics::kAny;
  };
  Fabric(const ClusterSpec& spec, FoldPlan folds, Options options);

  /// What a run has besides; all of it outlives the run.
  struct Hooks {
    Scheduler* scheduler = nullptr;
    /// Called on a rank's thread whenever the rank uses the store or a group, and again after each
    /// wait. Throws if the rank is dead.
    std::function<void(int rank)> on_use = nullptr;
    /// Whether a rank runs a step of a background task.
    std::function<bool(int rank)> in_background = nullptr;
    FaultSites* faults = nullptr;   ///< what goes wrong
    RunWitness* witness = nullptr;  ///< who writes down what the run does
  };
  /// The scheduler calls back for the report, so it is made second and attached for the run.
  void attach(Hooks hooks) { hooks_ = std::move(hooks); }
  /// Errors: c10::Error outside of a run. A store or group may outlive the run, but not be used
  /// then.
  Scheduler& scheduler();

  void use() {
    if (hooks_.on_use) hooks_.on_use(running_rank());
  }
  FaultSites* faults() const { return hooks_.faults; }
  RunWitness* witness() const { return hooks_.witness; }

  /// For a rank that will ask again: lets a millisecond pass, in which other ranks run. Does
  /// nothing in a background step, which costs the rank no time.
  void poll() {
    if (!hooks_.in_background || !hooks_.in_background(running_rank())) scheduler().poll();
  }

  int world_size() const { return executed().world_size(); }
  /// The ranks that run, which are the scheduler's tasks, and what counts as theirs.
  const ExecutedRanks& executed() const { return folds_.executed(); }
  const FoldPlan& folds() const { return folds_; }
  /// The rank that holds the baton.
  int running_rank() { return executed().rank_of(scheduler().running()); }

  const Network& network() const { return network_; }
  const Options& options() const { return options_; }
  Recorder* recorder() const { return options_.recorder; }
  /// Whether communication takes time: the specification names a device.
  bool models_time() const { return network_.spec().device.has_value(); }
  /// What the communicator of these ranks takes of each member's device; see driver_memory.h.
  int64_t communicator_bytes(const std::vector<int>& ranks) const;

  /// The running rank's program waits for what ends then, or for time to pass while other ranks
  /// run. The wait is recorded.
  void host_waits(int64_t until_ns);
  void sleep_for(absl::Duration duration, SliceKind kind = SliceKind::kHost);

  /// Sends a message on the network. `arrived` is called when the message ends and returns the
  /// tasks to wake.
  void start_flow(int source, int target, int64_t bytes, int64_t at_ns,
                  std::function<std::vector<int>(int64_t end_ns)> arrived);
  /// For the scheduler: the time of the next event that happens without a rank: the arrival of a
  /// message, or that a collective gets its time out of turn. See run_event (communicators.h).
  int64_t next_event_ns();
  /// Whether it is a message, which arrives before the collective begins.
  bool message_is_next() const;
  /// The next message arrives. Returns the tasks to wake.
  std::vector<int> receive_next_message();

  /// A side of a message waits for the other one (`count` 1), or has ceased to (-1).
  void add_waiting_messages(int count) { waiting_messages_ += count; }
  /// What used links before then does not matter to a call of that time any more, nor to a message.
  int64_t oldest_use_ns(int64_t called_ns) const;

  CallOrder& call_order() { return call_order_; }
  /// How fast links are: a plan of faults changes it.
  LinkSpeeds& link_speeds() { return link_speeds_; }
  /// Tells the plan which of its rules have slowed those members between the two times.
  void record_slow_links(absl::Span<const SharedLinks::Member> members, int64_t from_ns,
                         int64_t to_ns);
  /// Errors: none; the specification names a device.
  SharedLinks& shared_links() { return *shared_links_; }

  /// Those of the run, by the names of their groups: see communicators.h.
  using Communicators = std::map<std::string, std::shared_ptr<Communicator>>;
  Communicators& communicators() { return communicators_; }
  const Communicators& communicators() const { return communicators_; }

  int number_of_next_group() { return num_groups_++; }

  /// Whether the run, or one of its groups, behaves so: a group may name its library.
  bool has_groups_of(Semantics semantics) const {
    return options_.semantics == semantics || has_groups_of_[static_cast<size_t>(semantics)];
  }
  void record_group_of(Semantics semantics) {
    has_groups_of_[static_cast<size_t>(semantics)] = true;
  }

  /// Records that a rank's program has ended; `failure` is empty if the program succeeded. Peers
  /// that notice the end are woken.
  void end_rank(int rank, std::string failure);

  /// The first of these ranks that is executed and whose process has ended; -1 if there is none.
  int first_ended(const std::vector<int>& ranks) const;
  /// How that rank has ended, as the running rank sees it where ranks see closed connections. Moves
  /// the running rank's clock to the time at which it sees that.
  std::string see_closed_connection(int rank);

  /// Whether default time-outs pass.
  bool waits_for_time_outs() const { return options_.time_outs == TimeOuts::kWait; }

  /// One report for all ranks: the condition that each rank waits for, or how it ended.
  std::string stall_report() const;

  /// Keeps where each rank is now, for ranks_at_failure(). The first call of a run counts: that of
  /// the first failure. `running` is the state of the rank that runs. Does nothing unless the run
  /// is recorded.
  void save_states(const std::string& running = "running");
  /// The states that were kept; those of now if none were.
  std::vector<RankAtFailure> ranks_at_failure() const;

  /// The last operations of an executed rank.
  OperationLog& log(int rank) { return logs_[executed().task_of(rank)]; }
  const OperationLog& log(int rank) const { return logs_[executed().task_of(rank)]; }

  Replicas& replicas() { return replicas_; }
  /// Compares executed ranks with those that are counted for others; see ExecutedRanks.
  SpotCheck& spot_check() { return spot_check_; }

  struct Store {
    struct Value {
      std::vector<uint8_t> bytes;
      int64_t written_ns = 0;  ///< in virtual time; a reader's clock moves forward to it
    };
    std::unordered_map<std::string, Value> values;
    std::unordered_map<std::string, std::vector<int>> waiting;  ///< tasks, by missing key
  };
  Store& store() { return store_; }
  const Store& store() const { return store_; }

 private:
  void record_wait(int64_t from_ns, SliceKind kind);
  std::string state_of(int rank) const;
  std::vector<SharedLinks::Member> members_of(int source, int target, int64_t bytes) const;
  void share_with_new_messages();

  struct Outcome {
    bool ended = false;
    std::string failure;  // the first line; the rest is a backtrace
    int64_t ended_ns = 0;
  };

  const Options options_;
  const FoldPlan folds_;
  Hooks hooks_;
  // By Semantics.
  std::array<bool, std::size(EnumTable<Semantics>::kTexts)> has_groups_of_ = {};
  // A message on its way.
  struct Message {
    int source = 0;
    int target = 0;
    int64_t bytes = 0;
    int64_t at_ns = 0;
    std::function<std::vector<int>(int64_t end_ns)> arrived = nullptr;
  };

  const Network network_;
  LinkSpeeds link_speeds_;
  std::optional<SharedLinks> shared_links_;
  Flows flows_;
  CallOrder call_order_;
  int num_groups_ = 0;
  int waiting_messages_ = 0;
  std::map<Flows::Id, Message> under_way_;
  std::vector<Flows::Id> new_messages_;  // which shared_links_ does not know
  std::vector<Outcome> outcomes_;        // by task
  std::vector<RankAtFailure> kept_states_;
  std::deque<OperationLog> logs_;  // by task
  // Ordered, so that reports are deterministic.
  Communicators communicators_;
  Store store_;
  Replicas replicas_;
  SpotCheck spot_check_;
};

}  // namespace accelerate::simulator
