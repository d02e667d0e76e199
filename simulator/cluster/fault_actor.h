/// Does what a run's plan of faults says: it makes ranks wait, fail and die, shortens their
/// devices' memory, and keeps what the run tells about its faults.
///
/// simulator/faults decides when a rule fires; what strikes tensors, memory and files goes back to
/// the site that asked.
/// Threads: only the rank that holds the baton may call in.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "simulator/c10d/fabric.h"
#include "simulator/core/run_log.h"
#include "simulator/core/scheduler.h"
#include "simulator/device/sim_device.h"
#include "simulator/faults/deaths.h"
#include "simulator/faults/fault_run.h"
#include "simulator/faults/rules.h"
#include "simulator/faults/sites.h"
#include "simulator/network/link_speeds.h"

namespace accelerate::simulator {

class FaultActor final : public FaultSites {
 public:
  struct Surroundings {
    Fabric& fabric;
    std::shared_ptr<Deaths> deaths;
    /// The devices of an executed rank.
    std::function<absl::Span<SimDevice* const>(int rank)> devices_of;
    /// Wakes all ranks, so that blocked ones see that they are dead.
    std::function<void()> wake_all;
    /// Sees what ranks come to; null: none.
    RunWitness* witness = nullptr;
  };
  FaultActor(FaultRules plan, FaultGrounds grounds, Surroundings surroundings);

  std::vector<SiteFault> reach(int rank, Site site, absl::string_view words,
                               absl::Span<const int> peers = {}) override;
  void touched(const SiteFault& fault, int64_t count) override { run_.touched(fault.rule, count); }
  double speed(int rank, int64_t now_ns) override { return run_.speed(rank, now_ns, false); }
  std::optional<SiteFault> lasting(int rank, FaultKind kind) override;

  /// The rank's program has begun, or has come to a step, save or load.
  /// Errors: as reach().
  void progress(int rank, FaultPoint::Kind kind);
  /// A loader is about to give a batch. Returns whether it may. Errors: as reach().
  bool batch(int rank);

  /// As speed(), of the disk that the rank uses.
  double disk_speed(int rank, int64_t now_ns) { return run_.speed(rank, now_ns, true); }
  int64_t skew_ns(int rank, int64_t now_ns) const { return run_.skew_ns(rank, now_ns); }
  /// When the rank will be ended, in virtual time.
  std::optional<absl::Duration> termination(int rank) const;

  const FaultRun& run() const { return run_; }

 private:
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

  // Whether the rank's program can have faults now.
  bool is_open(int rank, bool may_throw) const;
  // Does what the simulator does itself, and returns the rest.
  std::vector<SiteFault> act(int rank, std::vector<SiteFault> faults, bool may_throw);
  bool act_on_ranks(int rank, const SiteFault& fault);
  bool act_on_rank(int rank, SiteFault& fault);
  void kill(int rank, const SiteFault& fault, absl::string_view how);
  void kill_at_its_end(int rank);
  void shrink(const SiteFault& fault);
  void begin_timed_link_faults();
  void change_links(const SiteFault& fault);
  void end_link_faults();
  void pause(const SiteFault& fault, int64_t ns);
  void hang(int rank, const SiteFault& fault);
  // Waits until the fault that lasts is over. Returns false if it never is.
  bool wait_for_end(const FaultRun::Lasting& lasting, absl::string_view what);
  void wait_for_store(int rank);
  void wait_for_peers(int rank, absl::Span<const int> peers);
  // What rules do at a point of the rank's progress.
  void advance(int rank, FaultPoint::Kind kind);
  void count_updates(int rank);
  std::string by(const SiteFault& fault) const;
  void witness(int rank, absl::string_view words, bool is_work, bool may_throw);
  void record_fired(int rank, const std::vector<SiteFault>& faults);

  // A change of links that is known before it begins, or that ends at a step.
  struct LinkFault {
    const FaultEffect* effect;
    std::vector<int> ranks;
    size_t change;  // its number
    int counts_as = -1;
    int64_t until_step = FaultRun::Lasting::kNever;
  };

  FaultRun run_;
  const Surroundings to_;
  std::vector<LinkFault> link_faults_;
  std::vector<int64_t> ends_ns_;      // by rank: when it is ended, after a notice
  std::vector<std::string> ends_by_;  // by rank: by what
  std::vector<bool> notes_steps_;     // by rank: its program says when it steps
  std::optional<SiteFault> gone_;     // the store
};

}  // namespace accelerate::simulator
