/// What goes wrong in a simulated run, said in rules: `where when: what`.
///
///     rank 3 at step 12: crash
///     rank any every 20 steps: crash at most 40
///     rank pp=1 dp=* at collective#40 of "all_reduce of world": hang for 2m
///     rank 2 at op#1000 of aten::mm: flip(output, bit 30)
///     store at store#50: silent for 40s
///     disk of node 0 at file#17: torn
///     rank * with 0.01 at store: delay(0..5ms)
///
/// A rule has three forms, which are each other's inverse: text (parse, to_string), JSON
/// (from_json, to_json) and C++:
///
///     FaultRule{.where = on_rank(3), .when = at_step(12), .effects = {{FaultKind::kCrash}}}
///
/// README.md in this folder has the grammar, the kinds and where each of them may stand. Sites,
/// steps, ranks and nodes count from 0; times are virtual nanoseconds.
/// Threads: values; pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "accelerate/base/enum_text.h"
#include "accelerate/base/mesh_axis.h"

namespace accelerate::simulator {

/// What a rank's program does, where a fault may strike. Each kind is counted on its own.
enum class Site : uint8_t {
  kOp,          ///< an operator on a simulated device, by its name
  kAlloc,       ///< memory of a device is allocated, by the operator's name
  kFree,        ///< memory of a device is released
  kCollective,  ///< a call of a collective, "all_reduce of world"
  kSend,        ///< "send of world"
  kRecv,        ///< "recv of world"
  kStore,       ///< "get key"
  kFile,        ///< an operation on files, "write_at /sim/part"
  kBatch,       ///< a loader is asked for a batch
  kSync,        ///< the host waits for a device, by the call's name
  kGroup,       ///< a process group is made, by its name
};

/// The numbers that a set names: ranks, nodes, or coordinates along an axis.
struct IndexSet {
  struct Range {
    int first = 0;
    int last = 0;
    bool operator==(const Range&) const = default;
  };
  std::vector<Range> ranges = {};  ///< ascending, with gaps between them
  bool all = false;                ///< "*"
  int any = 0;                     ///< so many that the run draws; 1 is "any"

  static IndexSet of(int number) { return {.ranges = {{number, number}}}; }
  static IndexSet every() { return {.all = true}; }
  static IndexSet drawn(int count) { return {.any = count}; }

  /// "0-3,8", "*", "any", "any 2".
  std::string to_string() const;
  /// Those below `size`, ascending; drawn ones are all candidates.
  std::vector<int> below(int size) const;
  /// The highest number that it names; -1 where it names none.
  int highest() const;
  bool operator==(const IndexSet&) const = default;
};

enum class FaultPlace : uint8_t { kRank, kNode, kLink, kGroup, kStore, kDisk, kCluster };

/// Links of ranks or nodes, or those between two nodes.
struct FaultLink {
  enum class Kind : uint8_t { kNic, kNodeLink, kHostLink, kBetween };
  Kind kind = Kind::kNic;
  int nic = -1;          ///< of several on a node; -1: all of them
  bool of_node = false;  ///< the set of the place has nodes, else ranks
  int from = 0;          ///< kBetween: the two nodes
  int to = 0;
  bool operator==(const FaultLink&) const = default;
};

struct FaultWhere {
  FaultPlace place = FaultPlace::kCluster;
  /// kRank, kNode, kLink and kDisk ("disk of node 0"); empty: see `coordinates`; "disk": all nodes.
  IndexSet set = {};
  /// kRank: instead of `set`, along axes of the mesh.
  std::vector<std::pair<MeshAxis, IndexSet>> coordinates = {};
  std::string group = {};  ///< kGroup
  FaultLink link = {};     ///< kLink
  std::string to_string() const;
  bool operator==(const FaultWhere&) const = default;
};

struct FaultPoint {
  enum class Kind : uint8_t { kStep, kTime, kSite, kStart, kSave, kLoad };
  Kind kind = Kind::kStart;
  int64_t number = 0;  ///< of the step, site, save or load; kTime: nanoseconds
  Site site = Site::kOp;
  /// kSite: counts only sites whose words match, in which `*` stands for any characters and `?` for
  /// one. Empty: all.
  std::string pattern = {};
  bool operator==(const FaultPoint&) const = default;
};

struct FaultWhen {
  enum class Form : uint8_t {
    kAt,     ///< once, at `point`
    kEvery,  ///< each time that `point.number` more have been, counted from `from` on
    kWith,   ///< with `probability` at each site of `point`
    kAfter,  ///< once, at the first site `delay_ns` after the rule of that name has fired
  };
  Form form = Form::kAt;
  FaultPoint point = {};
  int64_t from = 0;
  double probability = 0;
  std::string after = {};
  int64_t delay_ns = 0;
  std::string to_string() const;
  bool operator==(const FaultWhen&) const = default;
};

enum class FaultKind : uint8_t {
  // What ranks do.
  kCrash,
  kExit,
  kException,
  kHang,
  kTerminate,
  kSlow,
  kLost,
  kDelay,
  kOutOfMemory,
  kShrink,
  kFlip,
  kNan,
  kStall,
  kFail,
  kShort,
  kSlowStart,
  // What disks do.
  kPowerLoss,
  kTorn,
  kFull,
  kIoError,
  kBitFlip,
  // The store, clocks and the network.
  kSilent,
  kGone,
  kSkew,
  kPartition,
  kDown,
  kFlap,
  kOneWay,
};

/// How long an effect lasts.
struct FaultSpan {
  enum class Kind : uint8_t { kUsual, kTime, kSteps, kSites, kEver };
  Kind kind = Kind::kUsual;  ///< as the kind of fault has it
  int64_t number = 0;        ///< nanoseconds, steps or sites
  Site site = Site::kOp;     ///< kSites: of this kind, beginning with that of the fault
  std::string to_string() const;
  bool operator==(const FaultSpan&) const = default;
};

/// What happens, with the arguments that its kind has; the others stay as they are.
struct FaultEffect {
  FaultKind kind = FaultKind::kCrash;
  /// kCrash: a signal; kException, kFail: the message; kFlip, kNan: the target; kPartition: the
  /// part; kPowerLoss, kTorn: what happens to data that is not durable. Empty: the usual one.
  std::string word = {};
  /// kDelay: the shortest; kTerminate: the notice; kSlow: until the factor is reached; kStall,
  /// kSlowStart; kFlap: the period; kSkew: the offset.
  int64_t duration_ns = 0;
  int64_t longest_ns = 0;               ///< kDelay
  double number = 0;                    ///< kSlow: a factor of the speed; kSkew: parts per million
  std::optional<int64_t> count = {};    ///< kExit: the code; kShrink, kTorn: bytes
  std::optional<int64_t> bit = {};      ///< kFlip, kBitFlip; drawn if absent
  std::optional<int64_t> element = {};  ///< kFlip, kNan: drawn if absent
  bool on_medium = false;               ///< kBitFlip
  FaultSpan lasts = {};
  std::string to_string() const;
  bool operator==(const FaultEffect&) const = default;
};

struct FaultRule {
  std::string name = {};
  FaultWhere where = {};
  FaultWhen when = {};
  std::vector<FaultEffect> effects = {};
  /// Guards: the life of the job, how often it fires, and the size of the world.
  std::optional<int64_t> in_life = {};
  std::optional<int64_t> at_most = {};
  std::optional<int> world_at_least = {};
  std::optional<int> world_at_most = {};

  std::string to_string() const;
  bool operator==(const FaultRule&) const = default;
};

/// A plan: rules in order. Two that fire at one site act in this order, and a death ends the list.
struct FaultRules {
  std::vector<FaultRule> rules = {};

  /// Rules between `;` or on lines of their own; `#` begins a comment, at the beginning of a word.
  /// Errors: InvalidArgument that points at the character, says what is expected there, and names
  ///         the nearest word.
  static absl::StatusOr<FaultRules> parse(absl::string_view text);
  /// A list of objects with the keys where, when and what (a list), whose texts are those of the
  /// grammar, and perhaps name, in_life, at_most, world_at_least and world_at_most.
  /// Errors: InvalidArgument.
  static absl::StatusOr<FaultRules> from_json(absl::string_view text);

  /// The rules that parse() reads as these, between "; ".
  std::string to_string() const;
  nlohmann::ordered_json to_json() const;

  bool empty() const { return rules.empty(); }
  bool operator==(const FaultRules&) const = default;
};

// Short forms for plans in C++.

inline FaultWhere on_rank(int rank) {
  return {.place = FaultPlace::kRank, .set = IndexSet::of(rank)};
}
inline FaultWhere on_every_rank() { return {.place = FaultPlace::kRank, .set = IndexSet::every()}; }
inline FaultWhere on_node(int node) {
  return {.place = FaultPlace::kNode, .set = IndexSet::of(node)};
}
inline FaultWhen at_step(int64_t step) {
  return {.point = {.kind = FaultPoint::Kind::kStep, .number = step}};
}
inline FaultWhen at_time(int64_t ns) {
  return {.point = {.kind = FaultPoint::Kind::kTime, .number = ns}};
}
inline FaultWhen at_site(Site site, int64_t number, std::string pattern = {}) {
  return {.point = {.kind = FaultPoint::Kind::kSite,
                    .number = number,
                    .site = site,
                    .pattern = std::move(pattern)}};
}

/// "2m", "1500ms", "0": a duration in the largest unit that divides it.
std::string duration_text(int64_t ns);

/// Whether the words match a pattern of FaultPoint.
bool matches(absl::string_view pattern, absl::string_view words);

}  // namespace accelerate::simulator

namespace accelerate {

ACCELERATE_ENUM_TEXTS(simulator::Site, "site", "op", "alloc", "free", "collective", "send", "recv",
                      "store", "file", "batch", "sync", "group")

ACCELERATE_ENUM_TEXTS(simulator::FaultPoint::Kind, "point", "step", "time", "site", "start", "save",
                      "load")

ACCELERATE_ENUM_TEXTS(simulator::FaultPlace, "place", "rank", "node", "link", "group", "store",
                      "disk", "cluster")

ACCELERATE_ENUM_TEXTS(simulator::FaultKind, "kind of fault", "crash", "exit", "exception", "hang",
                      "terminate", "slow", "lost", "delay", "out_of_memory", "shrink", "flip",
                      "nan", "stall", "fail", "short", "slow_start", "power_loss", "torn", "full",
                      "io_error", "bit_flip", "silent", "gone", "skew", "partition", "down", "flap",
                      "one_way")

ACCELERATE_ENUM_TEXTS(simulator::FaultLink::Kind, "link", "nic", "node-link", "host-link",
                      "between")

}  // namespace accelerate
