#include "simulator/faults/fault_run.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <set>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "accelerate/base/message_text.h"
#include "simulator/faults/kinds.h"

namespace accelerate::simulator {
namespace {

// Distinct from the random streams of ranks, disks and background work.
constexpr uint64_t kRuleStreams = uint64_t{1} << 42;

// How many places are listed for one rule.
constexpr size_t kMostPlaces = 10;

// How many words are kept that a rule's pattern does not match.
constexpr size_t kMostWords = 64;

// FNV-1a, the same with every compiler.
uint64_t hash_of(absl::string_view text) {
  uint64_t hash = 14695981039346656037u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  return hash;
}

// The sum, or what stands for "never" where that is less: both are 0 or more.
int64_t sum_of(int64_t from, int64_t more) {
  constexpr int64_t kNever = FaultRun::Lasting::kNever;
  return more > kNever - from ? kNever : from + more;
}

bool is_for_world(const FaultRule& rule, int world_size) {
  return world_size >= rule.world_at_least.value_or(0) &&
         world_size <= rule.world_at_most.value_or(world_size);
}

// Whether nodes have the fault as a whole, rather than each of their ranks by itself.
bool is_joint(const FaultEffect& effect) {
  constexpr FaultKind kJoint[] = {FaultKind::kCrash, FaultKind::kTerminate, FaultKind::kSlow,
                                  FaultKind::kShrink, FaultKind::kSkew};
  return std::ranges::find(kJoint, effect.kind) != std::end(kJoint);
}

// Whether all nodes of a set have it together.
bool is_of_all_nodes(const FaultRule& rule) {
  return std::ranges::any_of(rule.effects, [](const FaultEffect& effect) {
    return effect.kind == FaultKind::kLost || effect.kind == FaultKind::kPartition;
  });
}

std::vector<int> ranks_of_nodes(const std::vector<int>& nodes, const FaultGrounds& grounds) {
  std::vector<int> ranks;
  for (const int node : nodes) {
    for (int i = 0; i < grounds.ranks_per_node; ++i) {
      ranks.push_back(node * grounds.ranks_per_node + i);
    }
  }
  return ranks;
}

std::vector<std::vector<int>> each_alone(const std::vector<int>& ranks) {
  std::vector<std::vector<int>> units;
  for (const int rank : ranks) units.push_back({rank});
  return units;
}

// The numbers of the set; of drawn ones those that this run draws.
std::vector<int> chosen(const IndexSet& set, int size, const FaultRule& rule,
                        const FaultGrounds& grounds) {
  std::vector<int> numbers = set.below(size);
  if (set.any == 0) return numbers;
  DeterministicRandom random = DeterministicRandom::stream(
      grounds.seed, kRuleStreams + hash_of(rule.to_string()) + grounds.world_size);
  std::vector<int> drawn;
  for (int i = 0; i < set.any && !numbers.empty(); ++i) {
    const auto at = static_cast<ptrdiff_t>(random.below(numbers.size()));
    drawn.push_back(numbers[at]);
    numbers.erase(numbers.begin() + at);
  }
  std::ranges::sort(drawn);
  return drawn;
}

std::vector<int> ranks_at(const FaultWhere& where, const FaultGrounds& grounds) {
  std::vector<int> ranks;
  for (int rank = 0; rank < grounds.world_size; ++rank) {
    const bool is_there = std::ranges::all_of(where.coordinates, [&](const auto& along) {
      const std::vector<int> wanted = along.second.below(grounds.mesh_size(along.first));
      return std::ranges::find(wanted, grounds.coordinate(rank, along.first)) != wanted.end();
    });
    if (is_there) ranks.push_back(rank);
  }
  return ranks;
}

std::vector<int> all_ranks(const FaultGrounds& grounds) {
  return IndexSet::every().below(grounds.world_size);
}

int num_nodes(const FaultGrounds& grounds) { return grounds.world_size / grounds.ranks_per_node; }

// Each link that the rule names is for itself.
std::vector<std::vector<int>> units_of_link(const FaultRule& rule, const FaultGrounds& grounds) {
  const FaultLink& link = rule.where.link;
  const bool is_between = link.kind == FaultLink::Kind::kBetween;
  std::vector<int> numbers = {link.from};
  if (!is_between) {
    const int size = link.of_node ? num_nodes(grounds) : grounds.world_size;
    numbers = chosen(rule.where.set, size, rule, grounds);
  }
  std::vector<std::vector<int>> units;
  for (const int number : numbers) {
    if (grounds.ranks_of_link != nullptr) {
      units.push_back(grounds.ranks_of_link(link, number));
    } else if (is_between) {
      units.push_back(ranks_of_nodes({link.from, link.to}, grounds));
    } else {
      units.push_back(link.of_node ? ranks_of_nodes({number}, grounds) : std::vector<int>{number});
    }
  }
  return units;
}

// The ranks of each unit.
std::vector<std::vector<int>> units_of(const FaultRule& rule, const FaultGrounds& grounds) {
  const FaultWhere& where = rule.where;
  const bool joint = std::ranges::any_of(rule.effects, is_joint);
  switch (where.place) {
    case FaultPlace::kRank:
      return each_alone(where.coordinates.empty()
                            ? chosen(where.set, grounds.world_size, rule, grounds)
                            : ranks_at(where, grounds));
    case FaultPlace::kStore: return {all_ranks(grounds)};
    case FaultPlace::kGroup: return each_alone(all_ranks(grounds));
    case FaultPlace::kCluster:
      return joint ? std::vector<std::vector<int>>{all_ranks(grounds)}
                   : each_alone(all_ranks(grounds));
    case FaultPlace::kLink: return units_of_link(rule, grounds);
    case FaultPlace::kNode:
    case FaultPlace::kDisk: break;
  }
  const bool whole_disk = where.place == FaultPlace::kDisk && where.set == IndexSet();
  if (whole_disk && grounds.has_shared_disk) return {all_ranks(grounds)};
  const std::vector<int> nodes =
      chosen(whole_disk ? IndexSet::every() : where.set, num_nodes(grounds), rule, grounds);
  if (is_of_all_nodes(rule)) return {ranks_of_nodes(nodes, grounds)};
  if (where.place == FaultPlace::kNode && !joint) return each_alone(ranks_of_nodes(nodes, grounds));
  std::vector<std::vector<int>> units;
  for (const int node : nodes) units.push_back(ranks_of_nodes({node}, grounds));
  return units;
}

std::string problem_of_set(const IndexSet& set, int size, const char* what, const char* plural) {
  if (set.highest() >= size) {
    return absl::StrCat("there is no ", what, " ", set.highest(), ": the cluster has ", size, " ",
                        size == 1 ? what : plural, size == 1 ? ", number 0" : ", from 0 on");
  }
  if (set.any > size) {
    return absl::StrCat("it draws ", set.any, " ", plural, ", and the cluster has ", size);
  }
  return "";
}

std::string problem_of_coordinates(const FaultWhere& where, const FaultGrounds& grounds) {
  if (where.coordinates.empty()) return "";
  if (grounds.mesh_size == nullptr) {
    return "it names ranks by axes of a mesh, and this run has no mesh";
  }
  for (const auto& [axis, set] : where.coordinates) {
    const int size = grounds.mesh_size(axis);
    if (set.highest() < size) continue;
    return absl::StrCat("there is no ", accelerate::to_string(axis), "=", set.highest(),
                        ": the mesh has ", size, size == 1 ? " place" : " places",
                        " along that axis");
  }
  return "";
}

std::string problem_of_where(const FaultRule& rule, const FaultGrounds& grounds) {
  const FaultWhere& where = rule.where;
  const auto of_nodes = [&](const IndexSet& set) {
    return problem_of_set(set, num_nodes(grounds), "node", "nodes");
  };
  switch (where.place) {
    case FaultPlace::kRank: {
      std::string problem = problem_of_set(where.set, grounds.world_size, "rank", "ranks");
      return problem.empty() ? problem_of_coordinates(where, grounds) : problem;
    }
    case FaultPlace::kNode:
    case FaultPlace::kDisk: return of_nodes(where.set);
    case FaultPlace::kLink: {
      IndexSet ends = IndexSet::of(std::max(where.link.from, where.link.to));
      if (where.link.kind == FaultLink::Kind::kBetween) return of_nodes(ends);
      return where.link.of_node ? of_nodes(where.set)
                                : problem_of_set(where.set, grounds.world_size, "rank", "ranks");
    }
    default: return "";
  }
}

std::string problem_of_effect(const FaultRule& rule, const FaultEffect& effect,
                              const FaultGrounds& grounds) {
  const char* const kind = accelerate::to_string(effect.kind);
  if (rule.where.place == FaultPlace::kLink) {
    if (grounds.problem_of_link != nullptr) return grounds.problem_of_link(rule.where.link);
    return "communication takes no time in this run";
  }
  switch (effect.kind) {
    case FaultKind::kPowerLoss:
    case FaultKind::kTorn:
    case FaultKind::kBitFlip:
      return grounds.has_simulated_disk
                 ? ""
                 : absl::StrCat(kind,
                                " damages files, and the files of this run are the "
                                "machine's own; full and io_error strike those");
    case FaultKind::kSlow:
      if (rule.where.place == FaultPlace::kDisk) {
        return grounds.disk_takes_time ? "" : "files take no time in this run";
      }
      return grounds.has_devices ? ""
                                 : "work takes no time in this run, because the cluster names no "
                                   "device, as in 2x4:h100";
    case FaultKind::kShrink:
      return grounds.has_devices ? "" : "the cluster names no device, as in 2x4:h100";
    case FaultKind::kPartition:
      return static_cast<int>(units_of(rule, grounds)[0].size()) < grounds.world_size
                 ? ""
                 : "all nodes are on one side";
    default: return "";
  }
}

bool is_of_device(Site site) {
  return site == Site::kOp || site == Site::kAlloc || site == Site::kFree || site == Site::kSync;
}

std::string problem_on(const FaultRule& rule, const FaultGrounds& grounds) {
  if (std::string problem = problem_of(rule); !problem.empty()) return problem;
  if (std::string problem = problem_of_where(rule, grounds); !problem.empty()) return problem;
  const FaultPoint& point = rule.when.point;
  const bool counts_sites =
      rule.when.form != FaultWhen::Form::kAfter && point.kind == FaultPoint::Kind::kSite;
  if (counts_sites && is_of_device(point.site) && !grounds.has_devices) {
    return absl::StrCat("ranks come to ", accelerate::to_string(point.site),
                        " on devices, and the cluster names none, as in 2x4:h100");
  }
  for (const FaultEffect& effect : rule.effects) {
    std::string problem = problem_of_effect(rule, effect, grounds);
    if (!problem.empty()) return problem;
  }
  if (units_of(rule, grounds).empty()) return "it names no rank";
  return "";
}

// A rule follows only what can fire in this world.
std::string problem_of_leader(const FaultRules& plan, const FaultRule& rule,
                              const FaultGrounds& grounds) {
  if (rule.when.form != FaultWhen::Form::kAfter) return "";
  const auto leader = std::ranges::find(plan.rules, rule.when.after, &FaultRule::name);
  if (leader == plan.rules.end() || is_for_world(*leader, grounds.world_size)) return "";
  return absl::StrCat("\"", rule.when.after, "\", which it follows, is for worlds of another size");
}

// The parser has refused what no rule can have; a plan that was made in C++ has not met it yet.
std::string problem_of_values(const FaultRules& plan) {
  const std::string text = plan.to_string();
  const absl::StatusOr<FaultRules> read = FaultRules::parse(text);
  if (!read.ok()) return std::string(read.status().message());
  if (*read == plan) return "";
  return absl::StrCat("faults: the plan holds what its text cannot say: \"", text,
                      "\" is read as \"", read->to_string(), "\"");
}

}  // namespace

std::string problem_on(const FaultRules& plan, const FaultGrounds& grounds) {
  if (std::string problem = problem_of_values(plan); !problem.empty()) return problem;
  for (const FaultRule& rule : plan.rules) {
    if (!is_for_world(rule, grounds.world_size)) continue;
    std::string problem = problem_on(rule, grounds);
    if (problem.empty()) problem = problem_of_leader(plan, rule, grounds);
    if (!problem.empty()) {
      return absl::StrCat("the fault \"", rule.to_string(), "\" can never fire: ", problem);
    }
  }
  return "";
}

std::vector<int> ranks_touched(const FaultRules& plan, const FaultGrounds& grounds) {
  // Which problem_on() refuses.
  if (!problem_of_values(plan).empty()) return {};
  std::set<int> ranks;
  for (const FaultRule& rule : plan.rules) {
    if (!is_for_world(rule, grounds.world_size) || !problem_on(rule, grounds).empty()) continue;
    const bool is_shared = rule.where.place == FaultPlace::kDisk && grounds.has_shared_disk;
    if (rule.where.place == FaultPlace::kStore || is_shared) continue;
    for (const std::vector<int>& unit : units_of(rule, grounds)) {
      ranks.insert(unit.begin(), unit.end());
    }
  }
  return {ranks.begin(), ranks.end()};
}

std::string FaultOutcome::to_string() const {
  if (!unfired.empty()) return absl::StrCat("\"", rule, "\" did not fire: ", unfired);
  if (fired == 0) return absl::StrCat("\"", rule, "\" is for worlds of another size");
  return absl::StrCat("\"", rule, "\" fired ", fired == 1 ? "once" : absl::StrCat(fired, " times"),
                      ", ", absl::StrJoin(struck, "; "),
                      static_cast<size_t>(fired) > struck.size() ? "; ..." : "", ", and touched ",
                      touched == 0 ? "nothing" : absl::StrCat(touched));
}

std::optional<std::string> idle_fault(const std::vector<FaultOutcome>& outcomes) {
  for (const FaultOutcome& outcome : outcomes) {
    const bool is_of_another_world = outcome.fired == 0 && outcome.unfired.empty();
    if (is_of_another_world || outcome.touched > 0) continue;
    return absl::StrCat("a fault of the plan had no effect: ", outcome.to_string());
  }
  return std::nullopt;
}

FaultRun::FaultRun(FaultRules plan, FaultGrounds grounds)
    : plan_(std::move(plan)),
      grounds_(std::move(grounds)),
      states_(plan_.rules.size()),
      outcomes_(plan_.rules.size()),
      of_rank_(grounds_.world_size),
      counts_(grounds_.world_size),
      places_(grounds_.world_size) {
  for (size_t i = 0; i < plan_.rules.size(); ++i) {
    const FaultRule& rule = plan_.rules[i];
    State& state = states_[i];
    outcomes_[i].rule = rule.to_string();
    const uint64_t stream = kRuleStreams + hash_of(rule.to_string());
    for (int rank = 0; rank < grounds_.world_size; ++rank) {
      state.random.push_back(DeterministicRandom::stream(grounds_.seed, stream + rank));
    }
    if (!is_for_world(rule, grounds_.world_size)) continue;
    const FaultPoint& point = rule.when.point;
    std::vector<int> drawn;
    for (std::vector<int>& ranks : units_of(rule, grounds_)) {
      drawn.insert(drawn.end(), ranks.begin(), ranks.end());
      for (const int rank : ranks) of_rank_[rank].emplace_back(i, state.units.size());
      // Other points have counts here, whose sum may be too large for a number.
      const bool is_timed = point.kind == FaultPoint::Kind::kTime;
      state.units.push_back(
          {.ranks = std::move(ranks), .next_ns = is_timed ? rule.when.from + point.number : 0});
    }
    if (rule.where.set.any > 0) absl::StrAppend(&outcomes_[i].rule, " (", rank_list(drawn), ")");
  }
}

int64_t FaultRun::count_of(int rank, FaultPoint::Kind kind) const {
  switch (kind) {
    case FaultPoint::Kind::kSave: return counts_[rank].saves;
    case FaultPoint::Kind::kLoad: return counts_[rank].loads;
    default: return counts_[rank].steps;
  }
}

// Whether the rank is at a site that the point means. Keeps the words of others of its kind.
bool FaultRun::is_site_of(const FaultPoint& point, Unit& unit, const Moment& moment) {
  if (moment.kind != FaultPoint::Kind::kSite || moment.site != point.site) return false;
  if (point.pattern.empty() || matches(point.pattern, moment.words)) return true;
  if (unit.other_words.size() < kMostWords && !unit.other_words.contains(moment.words)) {
    unit.other_words.emplace(moment.words);
  }
  return false;
}

// Counts the site if it is one of the rule's.
bool FaultRun::is_due_at_point(const FaultWhen& when, Unit& unit, const Moment& moment) const {
  const FaultPoint& point = when.point;
  const bool every = when.form == FaultWhen::Form::kEvery;
  switch (point.kind) {
    case FaultPoint::Kind::kTime:
      if (moment.now_ns < (every ? unit.next_ns : point.number)) return false;
      if (every) unit.next_ns += ((moment.now_ns - unit.next_ns) / point.number + 1) * point.number;
      return true;
    case FaultPoint::Kind::kSite: {
      if (!is_site_of(point, unit, moment)) return false;
      const int64_t number = unit.matched++;
      if (!every) return number == point.number;
      return number >= when.from && (number + 1 - when.from) % point.number == 0;
    }
    case FaultPoint::Kind::kStart: return moment.kind == FaultPoint::Kind::kStart;
    default: break;
  }
  // Step 0 begins with the program; others where one has ended.
  const bool is_first_step =
      point.kind == FaultPoint::Kind::kStep && moment.kind == FaultPoint::Kind::kStart;
  if (moment.kind != point.kind && !is_first_step) return false;
  const int64_t number = count_of(moment.rank, point.kind);
  if (!every) return number >= point.number;
  // The unit is there when the first of its ranks is.
  if (number <= unit.latest) return false;
  unit.latest = number;
  const int64_t past = number - when.from;
  return past > 0 && past % point.number == 0;
}

bool FaultRun::is_due_with(size_t rule, Unit& unit, const Moment& moment) {
  const FaultWhen& when = plan_.rules[rule].when;
  if (!is_site_of(when.point, unit, moment)) return false;
  ++states_[rule].drawn;
  const uint64_t drawn = states_[rule].random[moment.rank].next() >> 11;
  return static_cast<double>(drawn) * 0x1p-53 < when.probability;
}

bool FaultRun::is_due(size_t rule, Unit& unit, const Moment& moment) {
  const FaultWhen& when = plan_.rules[rule].when;
  const bool may_again =
      when.form == FaultWhen::Form::kEvery || when.form == FaultWhen::Form::kWith;
  if (unit.is_done && !may_again) return false;
  if (outcomes_[rule].fired >= plan_.rules[rule].at_most.value_or(INT64_MAX)) return false;
  if (when.form == FaultWhen::Form::kWith) return is_due_with(rule, unit, moment);
  if (when.form != FaultWhen::Form::kAfter) return is_due_at_point(when, unit, moment);
  for (size_t other = 0; other < plan_.rules.size(); ++other) {
    if (plan_.rules[other].name != when.after) continue;
    const int64_t fired_ns = states_[other].first_fired_ns;
    return fired_ns >= 0 && moment.now_ns >= fired_ns + when.delay_ns;
  }
  return false;
}

std::vector<SiteFault> FaultRun::fire(const Moment& moment) {
  std::vector<SiteFault> faults;
  const std::string& place = places_[moment.rank];
  for (const auto& [rule, number] : of_rank_[moment.rank]) {
    const FaultWhere& where = plan_.rules[rule].where;
    if (where.place == FaultPlace::kGroup) {
      // The group's name ends the words of its calls, and is all of them where it is made.
      const bool is_made = moment.site == Site::kGroup;
      const std::string wanted = is_made ? where.group : absl::StrCat("* of ", where.group);
      if (!matches(wanted, moment.words)) continue;
    }
    Unit& unit = states_[rule].units[number];
    if (!is_due(rule, unit, moment)) continue;
    unit.is_done = true;
    FaultOutcome& outcome = outcomes_[rule];
    ++outcome.fired;
    if (states_[rule].first_fired_ns < 0) states_[rule].first_fired_ns = moment.now_ns;
    if (outcome.struck.size() < kMostPlaces) {
      outcome.struck.push_back(
          absl::StrCat("rank ", moment.rank, " ", place, ", ", duration_text(moment.now_ns)));
    }
    for (const FaultEffect& effect : plan_.rules[rule].effects) {
      SiteFault fault{.rule = rule,
                      .effect = &effect,
                      .ranks = unit.ranks,
                      .random = DeterministicRandom(states_[rule].random[moment.rank].next())};
      if (info_of(effect.kind).may_last) begin_lasting(fault, moment);
      faults.push_back(std::move(fault));
    }
  }
  return faults;
}

int64_t FaultRun::files_of(const std::vector<int>& ranks) const {
  int64_t files = 0;
  for (const int rank : ranks) files += counts_[rank].of(Site::kFile);
  return files;
}

void FaultRun::begin_lasting(const SiteFault& fault, const Moment& moment) {
  const FaultWhen& when = plan_.rules[fault.rule].when;
  const FaultSpan& span = fault.effect->lasts;
  const bool is_at_time =
      when.form == FaultWhen::Form::kAt && when.point.kind == FaultPoint::Kind::kTime;
  Lasting lasting{.fault = fault,
                  .from_ns = is_at_time ? when.point.number : moment.now_ns,
                  .counts_as = moment.rank};
  // A disk is full for all who use it.
  if (fault.effect->kind == FaultKind::kFull) {
    lasting.fault.ranks = grounds_.has_shared_disk
                              ? all_ranks(grounds_)
                              : ranks_of_nodes({moment.rank / grounds_.ranks_per_node}, grounds_);
  }
  const bool is_at_file = moment.kind == FaultPoint::Kind::kSite && moment.site == Site::kFile;
  switch (span.kind) {
    case FaultSpan::Kind::kTime: lasting.until_ns = lasting.from_ns + span.number; break;
    case FaultSpan::Kind::kSteps:
      lasting.until_step = sum_of(counts_[moment.rank].steps, span.number);
      break;
    case FaultSpan::Kind::kSites:
      lasting.counts_files_of = fault.ranks;
      // The operation at which the rule fires is counted already.
      lasting.until_file =
          sum_of(files_of(lasting.counts_files_of), span.number) - (is_at_file ? 1 : 0);
      break;
    default: break;
  }
  lasting_.push_back(std::move(lasting));
}

std::vector<SiteFault> FaultRun::reach(int rank, Site site, absl::string_view words,
                                       int64_t now_ns) {
  const int64_t number = counts_[rank].sites[static_cast<size_t>(site)]++;
  if (of_rank_[rank].empty()) return {};
  if (site == Site::kGroup) groups_.emplace(words);
  places_[rank] = absl::StrCat("at ", accelerate::to_string(site), "#", number,
                               words.empty() ? "" : absl::StrCat(" (", words, ")"));
  return fire({.rank = rank, .site = site, .words = words, .now_ns = now_ns});
}

std::vector<SiteFault> FaultRun::progress(int rank, FaultPoint::Kind kind, int64_t now_ns) {
  SiteCounts& counts = counts_[rank];
  if (kind == FaultPoint::Kind::kStep) ++counts.steps;
  std::vector<SiteFault> faults;
  if (!of_rank_[rank].empty()) {
    places_[rank] = absl::StrCat("at ", accelerate::to_string(kind));
    if (kind != FaultPoint::Kind::kStart) {
      absl::StrAppend(&places_[rank], " ", count_of(rank, kind));
    }
    faults = fire({.rank = rank, .kind = kind, .now_ns = now_ns});
  }
  // A save and a load have their numbers when they begin.
  if (kind == FaultPoint::Kind::kSave) ++counts.saves;
  if (kind == FaultPoint::Kind::kLoad) ++counts.loads;
  return faults;
}

std::vector<const FaultRun::Lasting*> FaultRun::lasting(FaultKind kind, int rank,
                                                        int64_t now_ns) const {
  std::vector<const Lasting*> found;
  for (const Lasting& each : lasting_) {
    if (each.fault.effect->kind != kind || now_ns < each.from_ns || now_ns >= each.until_ns) {
      continue;
    }
    if (counts_[each.counts_as].steps >= each.until_step) continue;
    // The operation that a rank makes is counted already.
    if (files_of(each.counts_files_of) > each.until_file) continue;
    if (rank >= 0 && !each.fault.has(rank)) continue;
    found.push_back(&each);
  }
  return found;
}

const FaultRun::Lasting& FaultRun::latest_of(const SiteFault& fault) const {
  return *std::ranges::find_if(lasting_.rbegin(), lasting_.rend(), [&](const Lasting& each) {
    return each.fault.effect == fault.effect && each.fault.ranks == fault.ranks;
  });
}

std::vector<std::vector<int>> FaultRun::units(size_t rule) const {
  std::vector<std::vector<int>> units;
  for (const Unit& unit : states_[rule].units) units.push_back(unit.ranks);
  return units;
}

double FaultRun::speed(int rank, int64_t now_ns, bool of_disk) {
  double speed = 1;
  for (const Lasting* each : lasting(FaultKind::kSlow, rank, now_ns)) {
    const FaultEffect& effect = *each->fault.effect;
    const FaultPlace place = plan_.rules[each->fault.rule].where.place;
    if (place == FaultPlace::kLink || (place == FaultPlace::kDisk) != of_disk) continue;
    const int64_t since_ns = now_ns - each->from_ns;
    const double share =
        since_ns >= effect.duration_ns
            ? 1
            : static_cast<double>(since_ns) / static_cast<double>(effect.duration_ns);
    speed *= 1 - share * (1 - effect.number);
    touched(each->fault.rule, 1);
  }
  return speed;
}

int64_t FaultRun::skew_ns(int rank, int64_t now_ns) const {
  int64_t skew_ns = 0;
  for (const Lasting* each : lasting(FaultKind::kSkew, rank, now_ns)) {
    const FaultEffect& effect = *each->fault.effect;
    const double drift = static_cast<double>(now_ns - each->from_ns) * effect.number * 1e-6;
    skew_ns += effect.duration_ns + std::llround(drift);
  }
  return skew_ns;
}

// Names the unit that came closest, and the group or words that the rule misspells.
std::string FaultRun::why_unfired_at_site(const FaultRule& rule, const State& state) const {
  const std::string& group = rule.where.group;
  const auto is_made = [&group](const std::string& name) { return matches(group, name); };
  if (rule.where.place == FaultPlace::kGroup && std::ranges::none_of(groups_, is_made)) {
    const std::vector<std::string> names(groups_.begin(), groups_.end());
    return absl::StrCat("there was no group \"", group, "\"",
                        names.empty() ? "; ranks made none" : "; ",
                        names.empty() ? "" : suggestion(group, names));
  }
  const Unit& unit = *std::ranges::max_element(state.units, {}, &Unit::matched);
  const FaultPoint& point = rule.when.point;
  std::string text = absl::StrCat(
      rank_list(unit.ranks), " came to ", accelerate::to_string(point.site), " ", unit.matched,
      unit.matched == 1 ? " time" : " times", point.pattern.empty() ? "" : " with these words");
  if (unit.matched == 0) {
    const std::vector<std::string> others(unit.other_words.begin(), unit.other_words.end());
    absl::StrAppend(&text, did_you_mean(point.pattern, others));
  }
  return text;
}

// What the ranks of the rule did instead; of several ranks the first is named.
std::string FaultRun::why_unfired(size_t rule, int64_t end_ns) const {
  const State& state = states_[rule];
  const FaultWhen& when = plan_.rules[rule].when;
  const Unit& unit = state.units.front();
  const std::string who = rank_list(unit.ranks);
  switch (when.form) {
    case FaultWhen::Form::kAfter:
      return absl::StrCat("\"", when.after, "\" did not fire, or ", who,
                          " came to no site after it");
    case FaultWhen::Form::kWith:
      if (state.drawn == 0) return why_unfired_at_site(plan_.rules[rule], state);
      return absl::StrCat("in ", state.drawn, " draws it was not drawn once");
    default: break;
  }
  const FaultPoint& point = when.point;
  switch (point.kind) {
    case FaultPoint::Kind::kSite: return why_unfired_at_site(plan_.rules[rule], state);
    case FaultPoint::Kind::kTime:
      return absl::StrCat("the run ended at ", duration_text(end_ns), ", and no site of ", who,
                          " came at that time or later");
    case FaultPoint::Kind::kStart: return absl::StrCat(who, " did not start");
    default: break;
  }
  int64_t most = 0;
  for (const int rank : unit.ranks) most = std::max(most, count_of(rank, point.kind));
  std::string text = absl::StrCat(who, " made ", most, " ", accelerate::to_string(point.kind), "s");
  if (point.kind == FaultPoint::Kind::kStep && most == 0) {
    absl::StrAppend(&text,
                    "; a step is that of an optimizer which an Accelerator has prepared, "
                    "or an update on a device");
  }
  return text;
}

std::vector<FaultOutcome> FaultRun::outcomes(int64_t end_ns) const {
  std::vector<FaultOutcome> outcomes = outcomes_;
  for (size_t i = 0; i < outcomes.size(); ++i) {
    const bool is_for_this_world = !states_[i].units.empty();
    if (outcomes[i].fired == 0 && is_for_this_world) outcomes[i].unfired = why_unfired(i, end_ns);
  }
  return outcomes;
}

}  // namespace accelerate::simulator
