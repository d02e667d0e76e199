#include "accelerate/megatron/sample_order.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>

#include <c10/util/Exception.h>

#include "absl/numeric/bits.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

namespace accelerate {
namespace {

// NumPy's sum of doubles, whose order of additions decides the last bit.
double numpy_sum(absl::Span<const double> values) {
  constexpr size_t kLanes = 8;
  constexpr size_t kBlock = 128;
  if (values.size() < kLanes) return std::accumulate(values.begin(), values.end(), 0.0);
  if (values.size() > kBlock) {
    const size_t half = values.size() / 2 / kLanes * kLanes;
    return numpy_sum(values.first(half)) + numpy_sum(values.subspan(half));
  }
  std::array<double, kLanes> lanes;
  std::copy_n(values.begin(), kLanes, lanes.begin());
  const size_t whole = values.size() / kLanes * kLanes;
  for (size_t i = kLanes; i < whole; ++i) lanes[i % kLanes] += values[i];
  const double sum = ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) +
                     ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
  return std::accumulate(values.begin() + whole, values.end(), sum);
}

// Sequences of so many passes, shuffled together.
std::vector<int64_t> shuffled_passes(absl::Span<const int64_t> sequences, int64_t passes,
                                     NumpyShuffle& shuffle) {
  std::vector<int64_t> documents;
  documents.reserve(sequences.size() * static_cast<size_t>(passes));
  for (int64_t i = 0; i < passes; ++i) {
    documents.insert(documents.end(), sequences.begin(), sequences.end());
  }
  shuffle(absl::MakeSpan(documents));
  return documents;
}

// The places of `count` samples, which the documents have tokens for.
std::vector<SamplePlace> places_of(absl::Span<const int64_t> documents,
                                   absl::Span<const int64_t> lengths, int64_t sequence_length,
                                   int64_t count) {
  std::vector<SamplePlace> places = {{}};
  places.reserve(static_cast<size_t>(count) + 1);
  SamplePlace place;
  for (int64_t i = 0; i < count; ++i) {
    // With one token more; the next sample begins with it.
    int64_t missing = sequence_length + 1;
    while (true) {
      const int64_t left = lengths[documents[place.document]] - place.offset;
      if (left >= missing) {
        place.offset += missing - 1;
        break;
      }
      missing -= left;
      ++place.document;
      place.offset = 0;
    }
    places.push_back(place);
  }
  return places;
}

// The set that is furthest behind its weight after `samples` samples; the first one of several.
template <typename Sets>
int32_t furthest_behind(const Sets& sets, absl::Span<const double> weights,
                        absl::Span<const int64_t> counts, int64_t samples) {
  const double taken = std::max(static_cast<double>(samples), 1.0);
  double largest = std::numeric_limits<double>::lowest();
  int32_t furthest = *sets.begin();
  for (const int32_t set : sets) {
    const double behind = weights[set] * taken - static_cast<double>(counts[set]);
    if (behind > largest) {
      largest = behind;
      furthest = set;
    }
  }
  return furthest;
}

void take(BlendOrder& order, std::vector<int64_t>& counts, int32_t set) {
  order.datasets.push_back(set);
  order.samples.push_back(counts[set]++);
}

}  // namespace

uint64_t NumpyShuffle::below(uint64_t end) {
  const uint64_t most = end - 1;
  if (most == 0) return 0;
  const uint64_t mask = std::numeric_limits<uint64_t>::max() >> absl::countl_zero(most);
  constexpr uint64_t kLow = 0xFFFFFFFF;
  while (true) {
    uint64_t value = engine_();
    if (most > kLow) value = value << 32 | engine_();
    if ((value & mask) <= most) return value & mask;
  }
}

SampleOrder sample_order(absl::Span<const int64_t> sequences, absl::Span<const int64_t> lengths,
                         const SampleOptions& options) {
  TORCH_CHECK_VALUE(options.sequence_length >= 1, "sequence_length is ", options.sequence_length,
                    ", but it is at least 1");
  int64_t tokens = 0;
  for (const int64_t sequence : sequences) {
    TORCH_CHECK_VALUE(sequence >= 0 && sequence < static_cast<int64_t>(lengths.size()),
                      "sample_order: there is no sequence ", sequence);
    tokens += lengths[sequence];
  }
  const int64_t length = options.sequence_length;
  TORCH_CHECK_VALUE(tokens > 1, "sample_order: the ", sequences.size(), " sequences have ", tokens,
                    " tokens, too few for a sample");
  int64_t passes = 1;
  if (options.num_samples >= 0) {
    const int64_t needed = options.num_samples * length + 1;
    passes = std::max<int64_t>(1, needed / tokens + (needed % tokens == 0 ? 0 : 1));
  }
  // A last pass of which little is used is shuffled for itself, so that it is not mixed with whole
  // ones.
  const int64_t before_last = std::max<int64_t>(0, ((passes - 1) * tokens - 1) / length);
  bool is_last_apart = false;
  if (passes > 1) {
    constexpr double kShare = 0.80;
    const int64_t per_pass = (tokens - 1) / length;
    is_last_apart = options.num_samples - before_last <
                    static_cast<int64_t>(kShare * static_cast<double>(per_pass));
  }
  NumpyShuffle shuffle(options.seed);
  SampleOrder order;
  order.documents = shuffled_passes(sequences, is_last_apart ? passes - 1 : passes, shuffle);
  if (is_last_apart) {
    const std::vector<int64_t> last = shuffled_passes(sequences, 1, shuffle);
    order.documents.insert(order.documents.end(), last.begin(), last.end());
  }
  const int64_t count = (passes * tokens - 1) / length;
  order.places = places_of(order.documents, lengths, length, count);
  order.shuffle.resize(static_cast<size_t>(count));
  std::iota(order.shuffle.begin(), order.shuffle.end(), 0);
  const size_t first = static_cast<size_t>(is_last_apart ? before_last : count);
  shuffle(absl::MakeSpan(order.shuffle).first(first));
  if (is_last_apart && first < order.shuffle.size()) {
    shuffle(absl::MakeSpan(order.shuffle).subspan(first));
  }
  return order;
}

std::vector<double> normalized_weights(absl::Span<const double> weights) {
  for (const double weight : weights) {
    TORCH_CHECK_VALUE(weight >= 0 && std::isfinite(weight), "a weight of a blend is ", weight,
                      ", but weights are finite and not negative");
  }
  const double sum = numpy_sum(weights);
  TORCH_CHECK_VALUE(sum > 0, "the weights of a blend have the sum ", sum);
  std::vector<double> normalized(weights.begin(), weights.end());
  for (double& weight : normalized) weight /= sum;
  return normalized;
}

BlendOrder blend_order(absl::Span<const double> weights, int64_t size) {
  // Twice, as there: the last bits of the weights decide between sets that are equally far behind.
  const std::vector<double> normalized = normalized_weights(normalized_weights(weights));
  std::vector<int32_t> sets(weights.size());
  std::iota(sets.begin(), sets.end(), 0);
  std::vector<int64_t> counts(weights.size(), 0);
  BlendOrder order;
  for (int64_t i = 0; i < size; ++i) {
    take(order, counts, furthest_behind(sets, normalized, counts, i));
  }
  return order;
}

BlendOrder exhaustive_blend_order(absl::Span<const int64_t> sizes) {
  int64_t total = 0;
  for (const int64_t size : sizes) {
    TORCH_CHECK_VALUE(size >= 0, "a set of a blend has ", size, " samples");
    total += size;
  }
  std::vector<double> weights;
  std::set<int32_t> unspent;
  for (const int64_t size : sizes) {
    if (size > 0) unspent.insert(static_cast<int32_t>(weights.size()));
    weights.push_back(static_cast<double>(size) / static_cast<double>(total));
  }
  std::vector<int64_t> counts(sizes.size(), 0);
  BlendOrder order;
  for (int64_t i = 0; i < total; ++i) {
    const int32_t set = furthest_behind(unspent, weights, counts, i);
    take(order, counts, set);
    if (counts[set] == sizes[set]) unspent.erase(set);
  }
  return order;
}

std::vector<int64_t> blend_sizes(absl::Span<const double> weights, int64_t size, double surplus) {
  std::vector<int64_t> sizes;
  for (const double weight : normalized_weights(weights)) {
    const double own = std::ceil(static_cast<double>(size) * weight);
    sizes.push_back(static_cast<int64_t>(std::ceil(own * (1 + surplus))));
  }
  return sizes;
}

std::array<std::pair<int64_t, int64_t>, 3> split_sequences(const std::string& split,
                                                           int64_t count) {
  std::vector<double> shares;
  for (const auto part : absl::StrSplit(split, ',')) {
    double share = 0;
    TORCH_CHECK_VALUE(absl::SimpleAtod(part, &share) && share >= 0 && std::isfinite(share),
                      "split is \"", split,
                      "\", but it is up to three numbers between commas, such as \"949,50,1\"");
    shares.push_back(share);
  }
  TORCH_CHECK_VALUE(shares.size() <= 3, "split is \"", split, "\", which has ", shares.size(),
                    " numbers, but there are three parts: training, validation and test");
  shares.resize(3, 0);
  const std::vector<double> normalized = normalized_weights(shares);
  std::array<std::pair<int64_t, int64_t>, 3> parts;
  double end = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    // To the nearest, of two to the even one.
    const auto place = [count](double share) {
      return static_cast<int64_t>(std::nearbyint(share * static_cast<double>(count)));
    };
    const double begin = end;
    end += normalized[i];
    parts[i] = {place(begin), place(end)};
  }
  return parts;
}

}  // namespace accelerate
