#include "simulator/faults/kinds.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace accelerate::simulator {
namespace {

using enum FaultArgument;
using Point = FaultPoint::Kind;

constexpr uint32_t kSites = (uint32_t{1} << 11) - 1;
constexpr uint32_t kMoments = mask(Point::kStep) | mask(Point::kTime) | mask(Point::kStart);
constexpr uint32_t kProgress = kMoments | mask(Point::kSave) | mask(Point::kLoad);
constexpr uint32_t kAnywhere = kSites | kProgress;
// What a release of memory calls must return at once.
constexpr uint32_t kMayWait = kAnywhere & ~mask(Site::kFree);
// Where a program's own code runs.
constexpr uint32_t kOwnCode = mask(Site::kBatch) | mask(Point::kStep) | mask(Point::kStart) |
                              mask(Point::kSave) | mask(Point::kLoad);
constexpr uint32_t kValues =
    mask(Site::kOp) | mask(Site::kCollective) | mask(Site::kSend) | mask(Site::kRecv);

constexpr uint32_t kRanks =
    mask(FaultPlace::kRank) | mask(FaultPlace::kNode) | mask(FaultPlace::kCluster);
constexpr uint32_t kCallers = kRanks | mask(FaultPlace::kGroup);
constexpr uint32_t kFiles = mask(FaultPlace::kRank) | mask(FaultPlace::kDisk);

constexpr int64_t kShortestPeriodNs = 1'000;

// By FaultKind.
std::vector<FaultKindInfo> kinds() {
  const std::vector<const char*> targets = {"output",     "input",  "parameter", "gradient",
                                            "activation", "result", "buffer"};
  const std::vector<const char*> unsynced = {"lost", "kept", "drawn"};
  return {
      {FaultKind::kCrash, {kSignal}, 0, {}, kCallers, kAnywhere, false},
      {FaultKind::kExit, {kCode}, 0, {}, kRanks, kOwnCode, false},
      {FaultKind::kException, {kMessage}, 0, {}, kRanks, kOwnCode, false},
      {FaultKind::kHang, {}, 0, {}, kCallers, kMayWait, true},
      {FaultKind::kTerminate, {kDuration}, 0, {}, kRanks, kAnywhere, false},
      {FaultKind::kSlow,
       {kFactor},
       1,
       {},
       kRanks | mask(FaultPlace::kLink) | mask(FaultPlace::kDisk),
       kAnywhere,
       true},
      {FaultKind::kLost, {}, 0, {}, mask(FaultPlace::kNode), kAnywhere, true},
      {FaultKind::kDelay, {kRange}, 1, {}, kCallers | mask(FaultPlace::kStore), kMayWait, false},
      {FaultKind::kOutOfMemory, {}, 0, {}, kRanks, mask(Site::kAlloc), false},
      {FaultKind::kShrink, {kSize}, 1, {}, kRanks, kMayWait, false},
      {FaultKind::kFlip, {kTarget, kBit, kElement}, 1, targets, kCallers, kValues, false},
      {FaultKind::kNan, {kTarget, kElement}, 1, targets, kCallers, kValues, false},
      {FaultKind::kStall, {kDuration}, 1, {}, kRanks, mask(Site::kBatch), false},
      {FaultKind::kFail, {kMessage}, 0, {}, kRanks, mask(Site::kBatch), false},
      {FaultKind::kShort, {}, 0, {}, kRanks, mask(Site::kBatch), false},
      {FaultKind::kSlowStart, {kDuration}, 1, {}, kRanks, mask(Point::kStart), false},
      {FaultKind::kPowerLoss, {kTarget}, 0, unsynced, kFiles, mask(Site::kFile), false},
      {FaultKind::kTorn, {kTarget, kBytes}, 0, unsynced, kFiles, mask(Site::kFile), false},
      {FaultKind::kFull, {}, 0, {}, kFiles, kMoments | mask(Site::kFile), true},
      {FaultKind::kIoError, {}, 0, {}, kFiles, kMoments | mask(Site::kFile), true},
      {FaultKind::kBitFlip, {kBit, kMedium}, 0, {}, kFiles, mask(Site::kFile), false},
      {FaultKind::kSilent, {}, 0, {}, mask(FaultPlace::kStore), kAnywhere, true},
      {FaultKind::kGone, {}, 0, {}, mask(FaultPlace::kStore), kAnywhere, false},
      {FaultKind::kSkew, {kOffset, kDrift}, 1, {}, kRanks, kAnywhere, true},
      {FaultKind::kPartition,
       {kTarget},
       0,
       {"both", "data", "store"},
       mask(FaultPlace::kNode),
       kAnywhere,
       true},
      {FaultKind::kDown, {}, 0, {}, mask(FaultPlace::kLink), kAnywhere, true},
      {FaultKind::kFlap, {kDuration}, 1, {}, mask(FaultPlace::kLink), kAnywhere, true},
      {FaultKind::kOneWay, {}, 0, {}, mask(FaultPlace::kLink), kAnywhere, true},
  };
}

// The points that make sense where a place has no program of its own.
uint32_t points_of(FaultPlace place) {
  switch (place) {
    case FaultPlace::kGroup:
      return mask(Site::kCollective) | mask(Site::kSend) | mask(Site::kRecv) | mask(Site::kGroup);
    case FaultPlace::kStore: return kMoments | mask(Site::kStore);
    case FaultPlace::kDisk: return kMoments | mask(Site::kFile);
    default: return kAnywhere;
  }
}

std::string joined(const std::vector<std::string>& names) {
  if (names.size() < 2) return absl::StrJoin(names, "");
  const std::vector<std::string> first(names.begin(), names.end() - 1);
  return absl::StrCat(absl::StrJoin(first, ", "), " or ", names.back());
}

std::vector<std::string> names_of_points(uint32_t points) {
  if (points == kAnywhere) return {"any point"};
  std::vector<std::string> names;
  for (const Site site : accelerate::values<Site>()) {
    if ((points & mask(site)) != 0) names.emplace_back(to_string(site));
  }
  for (const Point point : accelerate::values<Point>()) {
    if ((points & mask(point)) != 0) names.emplace_back(to_string(point));
  }
  return names;
}

// Whether the value is there when the call begins or ends.
bool has_target(Site site, absl::string_view target) {
  if (site == Site::kOp) return target != "result" && target != "buffer";
  if (target == "input" || target == "buffer") return site != Site::kRecv;
  return target == "result" && site != Site::kSend;
}

std::string problem_of_span(const FaultEffect& effect) {
  using Span = FaultSpan::Kind;
  const char* const kind = to_string(effect.kind);
  const FaultSpan& lasts = effect.lasts;
  if (lasts.kind == Span::kUsual) return "";
  if (!info_of(effect.kind).may_last) return absl::StrCat(kind, " does not last: leave out `for`");
  if (lasts.kind == Span::kEver) return "";
  if (lasts.number <= 0) return absl::StrCat(kind, " is over before it begins");
  const bool is_of_disk = effect.kind == FaultKind::kFull || effect.kind == FaultKind::kIoError;
  if (lasts.kind == Span::kSites && (!is_of_disk || lasts.site != Site::kFile)) {
    return absl::StrCat(kind, " does not last for a number of ", to_string(lasts.site), " sites");
  }
  const bool waits = effect.kind == FaultKind::kHang || effect.kind == FaultKind::kLost ||
                     effect.kind == FaultKind::kSilent || effect.kind == FaultKind::kPartition ||
                     effect.kind == FaultKind::kDown || effect.kind == FaultKind::kOneWay;
  if (lasts.kind == Span::kSteps && waits) {
    return absl::StrCat(kind,
                        " lasts for a time, because ranks that wait for its end make no "
                        "steps");
  }
  return "";
}

// What has an amount that leaves everything as it is, or more changes than a run can follow.
std::string problem_of_amount(const FaultEffect& effect) {
  if (effect.kind == FaultKind::kSlow && effect.number == 1) return "slow(1) is the usual speed";
  if (effect.kind == FaultKind::kSkew && effect.duration_ns == 0 && effect.number == 0) {
    return "skew(0) leaves the clock as it is";
  }
  if (effect.kind == FaultKind::kFlap && effect.duration_ns < kShortestPeriodNs) {
    return "flap has a period of at least 1us";
  }
  return "";
}

std::string problem_of_effect(const FaultRule& rule, const FaultEffect& effect) {
  const FaultKindInfo& info = info_of(effect.kind);
  const char* const kind = to_string(effect.kind);
  if ((info.places & mask(rule.where.place)) == 0) {
    return absl::StrCat(kind, " is a fault of a ", places_text(info), ", not of a ",
                        to_string(rule.where.place));
  }
  const bool follows = rule.when.form == FaultWhen::Form::kAfter;
  const uint32_t point = follows ? mask(Point::kTime) : point_mask(rule.when);
  if ((info.points & point) == 0) {
    return absl::StrCat(kind, " strikes at ", points_text(info), ", not ",
                        follows ? "after another rule" : rule.when.to_string());
  }
  const bool changes_values = effect.kind == FaultKind::kFlip || effect.kind == FaultKind::kNan;
  if (changes_values && !has_target(rule.when.point.site, effect.word)) {
    return absl::StrCat("a ", to_string(rule.when.point.site), " has no ", effect.word);
  }
  if (std::string problem = problem_of_amount(effect); !problem.empty()) return problem;
  return problem_of_span(effect);
}

}  // namespace

const FaultKindInfo& info_of(FaultKind kind) {
  static const auto* all = new std::vector<FaultKindInfo>(kinds());
  return (*all)[static_cast<size_t>(kind)];
}

std::string places_text(const FaultKindInfo& info) {
  std::vector<std::string> names;
  for (const FaultPlace place : accelerate::values<FaultPlace>()) {
    if ((info.places & mask(place)) != 0) names.emplace_back(to_string(place));
  }
  return joined(names);
}

std::string points_text(const FaultKindInfo& info) { return joined(names_of_points(info.points)); }

uint32_t point_mask(const FaultWhen& when) {
  if (when.form == FaultWhen::Form::kAfter) return 0;
  return when.point.kind == Point::kSite ? mask(when.point.site) : mask(when.point.kind);
}

std::string problem_of(const FaultRule& rule) {
  const uint32_t points = points_of(rule.where.place);
  const uint32_t point = point_mask(rule.when);
  if (point != 0 && (points & point) == 0) {
    return absl::StrCat("a ", to_string(rule.where.place), " comes to ",
                        joined(names_of_points(points)), ", not to what is said in \"",
                        rule.when.to_string(), "\"");
  }
  if (point == 0 && rule.where.place == FaultPlace::kGroup) {
    return "a group comes to collective, send, recv or group, so its rule follows no other";
  }
  if (rule.effects.empty()) return "it says nothing that happens";
  for (const FaultEffect& effect : rule.effects) {
    if (std::string problem = problem_of_effect(rule, effect); !problem.empty()) return problem;
  }
  if (rule.in_life.value_or(0) > 0) {
    return absl::StrCat("this version has one life of a job, number 0, so life ", *rule.in_life,
                        " never comes");
  }
  if (rule.at_most == 0) return "at most 0 is never";
  if (rule.world_at_most && *rule.world_at_most < std::max(1, rule.world_at_least.value_or(1))) {
    return absl::StrCat(
        "no world has at most ", *rule.world_at_most, " ranks",
        rule.world_at_least ? absl::StrCat(" and at least ", *rule.world_at_least) : std::string());
  }
  return "";
}

}  // namespace accelerate::simulator
