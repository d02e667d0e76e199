/// What each kind of fault takes, and where and when it may strike: one table, which the parser,
/// the printer and the checks read.
///
/// Threads: constant data; pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "simulator/faults/rules.h"

namespace accelerate::simulator {

/// An argument between a kind's brackets.
enum class FaultArgument : uint8_t {
  kSignal,    ///< a word, as SIGSEGV
  kMessage,   ///< a text between quotes
  kTarget,    ///< one of `words`
  kDuration,  ///< "30s"
  kOffset,    ///< a duration that may be negative
  kRange,     ///< "0..5ms"
  kFactor,    ///< above 0 and at most 1, "0.5" or "0.5 by 60s"
  kDrift,     ///< "50ppm"
  kCode,      ///< a whole number
  kSize,      ///< "8GiB"
  kBytes,     ///< "bytes 17"
  kBit,       ///< "bit 30"
  kElement,   ///< "element 5"
  kMedium,    ///< "on_medium"
};

constexpr uint32_t mask(FaultPlace place) { return uint32_t{1} << static_cast<uint32_t>(place); }
constexpr uint32_t mask(Site site) { return uint32_t{1} << static_cast<uint32_t>(site); }
/// The other points, in the same mask.
constexpr uint32_t mask(FaultPoint::Kind point) {
  return uint32_t{1} << (16 + static_cast<uint32_t>(point));
}

struct FaultKindInfo {
  FaultKind kind;
  /// In their order.
  std::vector<FaultArgument> arguments;
  /// How many of the arguments must be given.
  int num_needed;
  /// kTarget's; the first one is the usual.
  std::vector<const char*> words;
  uint32_t places;  ///< mask(FaultPlace)
  uint32_t points;  ///< mask(Site) and mask(FaultPoint::Kind)
  bool may_last;    ///< takes `for`
};

const FaultKindInfo& info_of(FaultKind kind);

/// "rank, node or cluster".
std::string places_text(const FaultKindInfo& info);
/// "collective, send or recv".
std::string points_text(const FaultKindInfo& info);

/// The mask of the point of a rule; 0 for one that follows another.
uint32_t point_mask(const FaultWhen& when);

/// Why a rule can never fire, whatever the cluster is; empty if it can. It names the rule's part.
std::string problem_of(const FaultRule& rule);

}  // namespace accelerate::simulator
