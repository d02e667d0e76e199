#include "launch/perf/pairing.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "absl/log/absl_check.h"

namespace accelerate::launcher::perf {
namespace {

// Any, but always the same: the same times give the same interval.
constexpr uint64_t kSeed = 20;
// Resamples beyond each end of the interval, and how many of all there are.
constexpr double kResamplesBeyond = 25;
constexpr double kLeastResamples = 4'000;
constexpr double kMostResamples = 50'000;

double median(absl::Span<const double> values) {
  std::vector<double> sorted(values.begin(), values.end());
  std::ranges::sort(sorted);
  const size_t half = sorted.size() / 2;
  return sorted.size() % 2 == 1 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
}

// Sorts `values`.
double sorted_middle_mean(std::vector<double>& values) {
  std::ranges::sort(values);
  const size_t cut = values.size() / 4;
  double sum = 0;
  for (size_t i = cut; i < values.size() - cut; ++i) sum += values[i];
  return sum / static_cast<double>(values.size() - 2 * cut);
}

// The ends of the percentile interval of the estimate; `tail` is the probability beyond each.
std::pair<double, double> bootstrap_interval(absl::Span<const double> values, double tail) {
  const double wanted = kResamplesBeyond / tail;
  const size_t resamples = static_cast<size_t>(std::clamp(wanted, kLeastResamples, kMostResamples));
  std::mt19937_64 random(kSeed);
  std::vector<double> estimates(resamples);
  std::vector<double> drawn(values.size());
  for (double& estimate : estimates) {
    for (double& each : drawn) each = values[random() % values.size()];
    estimate = sorted_middle_mean(drawn);
  }
  std::ranges::sort(estimates);
  const size_t beyond = static_cast<size_t>(tail * static_cast<double>(resamples));
  return {estimates[beyond], estimates[resamples - 1 - beyond]};
}

}  // namespace

namespace internal {

double middle_mean(absl::Span<const double> values) {
  std::vector<double> copy(values.begin(), values.end());
  return sorted_middle_mean(copy);
}

double signed_rank_chance(absl::Span<const double> differences) {
  std::vector<double> counted;
  for (const double each : differences) {
    if (each != 0) counted.push_back(each);
  }
  std::ranges::sort(counted, {}, [](double value) { return std::abs(value); });
  // Twice the ranks, so that shared ones are whole numbers.
  std::vector<size_t> ranks;
  size_t positive = 0;
  for (size_t first = 0; first < counted.size();) {
    size_t end = first + 1;
    while (end < counted.size() && std::abs(counted[end]) == std::abs(counted[first])) ++end;
    const size_t rank = std::min(first + 1 + end, counted.size() + 1);
    for (size_t i = first; i < end; ++i) {
      ranks.push_back(rank);
      if (counted[i] > 0) positive += rank;
    }
    first = end;
  }
  const size_t total = std::accumulate(ranks.begin(), ranks.end(), size_t{0});
  // The probability of each sum of the ranks that have a plus, after each coin.
  std::vector<double> chance(total + 1);
  chance[0] = 1;
  size_t reached = 0;
  for (const size_t rank : ranks) {
    for (size_t sum = reached + 1; sum-- > 0;) {
      chance[sum] /= 2;
      chance[sum + rank] += chance[sum];
    }
    reached += rank;
  }
  double tail = 0;
  for (size_t sum = std::max(positive, total - positive); sum <= total; ++sum) tail += chance[sum];
  return std::min(1.0, 2 * tail);
}

}  // namespace internal

int least_pairs(int benchmarks) {
  // All signs alike, two ways of which there are among 2^pairs.
  int pairs = 1;
  while (std::ldexp(1.0, 1 - pairs) * std::max(benchmarks, 1) > kFalseAlarms) ++pairs;
  return pairs;
}

Difference paired_difference(absl::Span<const double> base, absl::Span<const double> present,
                             double threshold, int benchmarks) {
  ABSL_CHECK(!base.empty() && base.size() == present.size()) << "not pairs";
  const double family = std::max(benchmarks, 1);
  std::vector<double> logs;
  for (size_t i = 0; i < base.size(); ++i) logs.push_back(std::log(present[i] / base[i]));
  const auto [low, high] = bootstrap_interval(logs, (1 - kConfidence) / 2 / family);
  Difference result = {.base = median(base),
                       .present = median(present),
                       .ratio = std::exp(internal::middle_mean(logs)),
                       .low = std::exp(low),
                       .high = std::exp(high),
                       .chance = internal::signed_rank_chance(logs)};
  if (result.chance > kFalseAlarms / family) return result;
  if (result.low > 1 && result.ratio >= 1 + threshold) result.verdict = Verdict::kMore;
  if (result.high < 1 && result.ratio <= 1 - threshold) result.verdict = Verdict::kLess;
  return result;
}

Difference count_difference(absl::Span<const double> base, absl::Span<const double> present,
                            double threshold) {
  ABSL_CHECK(!base.empty() && !present.empty()) << "no counts";
  Difference result = {.base = median(base), .present = median(present)};
  result.ratio = result.present / result.base;
  result.low = std::ranges::min(present) / std::ranges::max(base);
  result.high = std::ranges::max(present) / std::ranges::min(base);
  if (result.low >= 1 + threshold) result.verdict = Verdict::kMore;
  if (result.high <= 1 - threshold) result.verdict = Verdict::kLess;
  return result;
}

}  // namespace accelerate::launcher::perf
