/// The rules of a plan in one run: which ranks each is for, what it counts, when it fires, and how
/// long it lasts.
///
/// A rule is for *units*: each rank that it names, each node for faults that a node has as a whole,
/// or all ranks together for the store and for nodes that are lost or cut off together. A unit
/// counts the sites of its ranks, and fires by itself.
///
/// Each rule draws from a stream of its own for each rank, which follows from the seed and the
/// rule's text: other rules do not change what it draws.
/// Threads: only the rank that holds the baton may call in.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "simulator/core/random.h"
#include "simulator/faults/rules.h"
#include "simulator/faults/sites.h"

namespace accelerate::simulator {

inline constexpr size_t kNumSites = 11;

/// The cluster that rules are for.
struct FaultGrounds {
  int world_size = 1;
  int ranks_per_node = 1;
  uint64_t seed = 0;
  bool has_devices = false;
  /// Files below a mount point are on a simulated disk, which can be damaged.
  bool has_simulated_disk = false;
  /// All nodes have the same disk.
  bool has_shared_disk = false;
  bool disk_takes_time = false;
  /// The mesh's size along an axis, and a rank's place; null without a mesh.
  std::function<int(MeshAxis)> mesh_size = nullptr;
  std::function<int(int rank, MeshAxis)> coordinate = nullptr;
  /// Why the cluster has no such link; empty if it has. Null: communication takes no time.
  std::function<std::string(const FaultLink&)> problem_of_link = nullptr;
  /// The ranks at whose links a fault of a link of that rank or node is; null: the ranks that the
  /// rule names.
  std::function<std::vector<int>(const FaultLink&, int number)> ranks_of_link = nullptr;
};

/// Why one of the rules cannot fire on the cluster, with the rule; empty if all can. Rules for
/// worlds of another size are left out. A plan made in C++ must be one that its text could say.
std::string problem_on(const FaultRules& plan, const FaultGrounds& grounds);

/// The ranks that rules name, ascending: those that must be executed. Rules for the store and for
/// a disk that all nodes share name none.
std::vector<int> ranks_touched(const FaultRules& plan, const FaultGrounds& grounds);

/// What became of one rule.
struct FaultOutcome {
  std::string rule;     ///< its text, and what was drawn
  int64_t fired = 0;    ///< how often
  int64_t touched = 0;  ///< how many things it had an effect on
  /// Where it fired, as "rank 3 at collective#40 (all_reduce of world), 1.5s": the first ten.
  std::vector<std::string> struck = {};
  /// Why it did not fire; empty if it did, or if it is for worlds of another size.
  std::string unfired = {};

  /// One line: the rule, where it fired or why not, and how much it touched.
  std::string to_string() const;
};

/// Names the first rule that had no effect; absent if each that is for this world had one.
std::optional<std::string> idle_fault(const std::vector<FaultOutcome>& outcomes);

/// How many sites of each kind each rank came to, and its steps.
struct SiteCounts {
  std::array<int64_t, kNumSites> sites = {};  ///< by Site
  int64_t steps = 0;
  int64_t saves = 0;
  int64_t loads = 0;

  int64_t of(Site site) const { return sites[static_cast<size_t>(site)]; }
};

class FaultRun {
 public:
  /// The rules can fire: see problem_on().
  FaultRun(FaultRules plan, FaultGrounds grounds);

  /// Counts a site of the rank and returns the faults that fire, in the plan's order.
  std::vector<SiteFault> reach(int rank, Site site, absl::string_view words, int64_t now_ns);
  /// The same for a start, step, save or load.
  std::vector<SiteFault> progress(int rank, FaultPoint::Kind kind, int64_t now_ns);

  const FaultRules& plan() const { return plan_; }
  std::string text(const SiteFault& fault) const { return plan_.rules[fault.rule].to_string(); }
  const FaultGrounds& grounds() const { return grounds_; }
  const SiteCounts& counts(int rank) const { return counts_[rank]; }
  const std::vector<SiteCounts>& all_counts() const { return counts_; }
  /// Where the rank is: its latest site or step.
  const std::string& place_of(int rank) const { return places_[rank]; }

  /// A fault that lasts.
  struct Lasting {
    static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

    SiteFault fault;
    int64_t from_ns = 0;
    int64_t until_ns = kNever;
    int64_t until_step = kNever;            ///< of `counts_as`
    int64_t until_file = kNever;            ///< of `counts_files_of` together
    int counts_as = 0;                      ///< the rank at whose site it began
    std::vector<int> counts_files_of = {};  ///< the rule's unit, if it lasts for files
  };
  /// Those of the kind that last for the rank at that time, or for any rank if that is -1. The
  /// pointers are valid as long as the FaultRun.
  std::vector<const Lasting*> lasting(FaultKind kind, int rank, int64_t now_ns) const;

  /// The latest that began by a fault which has just fired, and whose kind may last.
  const Lasting& latest_of(const SiteFault& fault) const;
  /// The ranks of each unit of a rule; none if it is for worlds of another size.
  std::vector<std::vector<int>> units(size_t rule) const;

  /// A factor of the speed of the rank, or of its disk. Notes that the faults had an effect.
  double speed(int rank, int64_t now_ns, bool of_disk);
  /// What a rank's clock shows beyond the time.
  int64_t skew_ns(int rank, int64_t now_ns) const;

  void touched(size_t rule, int64_t count) { outcomes_[rule].touched += count; }

  /// After the run.
  std::vector<FaultOutcome> outcomes(int64_t end_ns) const;

 private:
  struct Unit {
    std::vector<int> ranks;
    int64_t matched = 0;  // sites that the rule counts
    bool is_done = false;
    int64_t next_ns = 0;
    int64_t latest = 0;  // step, save or load at which the rule has been asked, of any of the ranks
    // At sites of the rule's kind: words that its pattern does not match, the first few of them.
    std::set<std::string, std::less<>> other_words = {};
  };
  struct State {
    std::vector<Unit> units;                  // none if the rule is for worlds of another size
    std::vector<DeterministicRandom> random;  // by rank
    int64_t drawn = 0;                        // draws of a rule with a probability
    int64_t first_fired_ns = -1;
  };
  // Where a rank is.
  struct Moment {
    int rank = 0;
    FaultPoint::Kind kind = FaultPoint::Kind::kSite;
    Site site = Site::kOp;
    absl::string_view words;
    int64_t now_ns = 0;
  };

  bool is_due(size_t rule, Unit& unit, const Moment& moment);
  bool is_due_at_point(const FaultWhen& when, Unit& unit, const Moment& moment) const;
  bool is_due_with(size_t rule, Unit& unit, const Moment& moment);
  static bool is_site_of(const FaultPoint& point, Unit& unit, const Moment& moment);
  std::vector<SiteFault> fire(const Moment& moment);
  void begin_lasting(const SiteFault& fault, const Moment& moment);
  int64_t files_of(const std::vector<int>& ranks) const;
  int64_t count_of(int rank, FaultPoint::Kind kind) const;
  std::string why_unfired(size_t rule, int64_t end_ns) const;
  std::string why_unfired_at_site(const FaultRule& rule, const State& state) const;

  const FaultRules plan_;
  const FaultGrounds grounds_;
  std::vector<State> states_;  // by rule
  std::vector<FaultOutcome> outcomes_;
  // By rank: the rules and units that it belongs to, in the plan's order.
  std::vector<std::vector<std::pair<size_t, size_t>>> of_rank_;
  std::vector<SiteCounts> counts_;
  std::vector<std::string> places_;  // by rank
  std::set<std::string> groups_;     // that ranks have made
  std::deque<Lasting> lasting_;      // at addresses that stay
};

}  // namespace accelerate::simulator
