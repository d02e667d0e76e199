/// Two builds measured in turn: whether one of them is slower, though other programs disturb both.
///
/// A pair is a run of each build, one right after the other, so that load and clock rate are about
/// the same for both. Only the ratio of a pair's times counts; the logarithms of equal builds'
/// ratios are as often above zero as below, by as much. One pair says little, and a disturbed one
/// says something wrong, so the estimate leaves out the outer half of the ratios.
///
/// Units: any, the same for both builds.
/// Threads: pure functions, the same result for the same numbers.
#pragma once

#include "absl/types/span.h"

namespace accelerate::launcher::perf {

/// What the present build takes beside the base.
enum class Verdict { kNoDifference, kMore, kLess };

struct Difference {
  double base = 0;     ///< median
  double present = 0;  ///< median
  /// The estimate of present / base, and its interval.
  double ratio = 1;
  double low = 1;
  double high = 1;
  /// How often equal builds would differ by as much; 1 where that was not asked.
  double chance = 1;
  Verdict verdict = Verdict::kNoDifference;
};

/// All intervals of a run hold together with this probability.
inline constexpr double kConfidence = 0.95;

/// How often a run with equal builds may find a difference in any of its benchmarks.
inline constexpr double kFalseAlarms = 0.002;

/// The pairs that it takes to tell a difference from chance when so many benchmarks are compared at
/// once: 10 for one, 16 for up to 65.
int least_pairs(int benchmarks);

/// `base[i]` and `present[i]` are a pair, all above zero. A difference is told if three agree: the
/// estimate is off by `threshold` (0.01: 1 %) at least; its bootstrap interval, at kConfidence for
/// all `benchmarks` together, does not contain 1; and a signed-rank test, which is exact for few
/// pairs, too, gives kFalseAlarms / `benchmarks` at most.
Difference paired_difference(absl::Span<const double> base, absl::Span<const double> present,
                             double threshold, int benchmarks);

/// For counts that are about the same in each run: the interval is from the least to the largest
/// ratio of two runs, and a difference is told if all of it is off by `threshold` at least. Each
/// build has one run or several; counts are above zero.
Difference count_difference(absl::Span<const double> base, absl::Span<const double> present,
                            double threshold);

namespace internal {

/// The mean without the lower and the upper quarter.
double middle_mean(absl::Span<const double> values);

/// Wilcoxon's signed-rank test, but that no rank is above the middle one, lest one disturbed pair
/// outweighs several others: the two-sided probability of sums of ranks as uneven as these if signs
/// were thrown by coin. Zeros do not count; equal sizes share their ranks.
double signed_rank_chance(absl::Span<const double> differences);

}  // namespace internal
}  // namespace accelerate::launcher::perf
