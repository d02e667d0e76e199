/// In which order Megatron-LM reads samples from sets of tokens: the same as its own, for the same
/// seed.
///
/// A set's documents, shuffled for each pass over them, are one long run of tokens, which falls
/// into samples of `sequence_length` tokens and one more, so that the last token has a label; the
/// samples are shuffled as well. In a blend of several sets, each sample
/// comes from the set that is furthest behind its weight.
///
/// Units:   lengths are tokens.
/// Errors:  c10::ValueError naming the argument.
/// Threads: pure functions.
/// Source:  Megatron-LM, megatron/core/datasets: gpt_dataset.py, helpers.cpp,
///          blended_megatron_dataset_builder.py. NumPy's RandomState for the shuffles: Matsumoto
///          and Nishimura, "Mersenne Twister", 1998.
#pragma once

#include <array>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"

namespace accelerate {

/// numpy.random.RandomState(seed), as far as shuffles of arrays of one dim are concerned.
class NumpyShuffle {
 public:
  /// From 0 to 2^32 - 1.
  explicit NumpyShuffle(uint32_t seed) : engine_(seed) {}

  template <typename T>
  void operator()(absl::Span<T> values) {
    for (uint64_t i = values.size(); i > 1; --i) std::swap(values[i - 1], values[below(i)]);
  }

 private:
  // A number below `end`, from 1 on.
  uint64_t below(uint64_t end);

  std::mt19937 engine_;
};

/// Where a sample begins; it goes on to where the next one begins, and one token further.
struct SamplePlace {
  /// Index into SampleOrder::documents.
  int64_t document = 0;
  /// The sample's first token in the document.
  int64_t offset = 0;

  bool operator==(const SamplePlace&) const = default;
};

struct SampleOrder {
  /// The sequences of all passes, in the order in which they are read.
  std::vector<int64_t> documents = {};
  /// One more than there are samples.
  std::vector<SamplePlace> places = {};
  /// The place of each sample, in the order in which samples are read.
  std::vector<int64_t> shuffle = {};

  int64_t num_samples() const { return static_cast<int64_t>(shuffle.size()); }
};

struct SampleOptions {
  int64_t sequence_length = 0;
  /// Absent, -1: those of one pass over the documents.
  int64_t num_samples = -1;
  uint32_t seed = 1234;
};

/// The order of the sequences `sequences`, whose lengths are `lengths[sequence]`; as many passes as
/// the samples need.
/// Errors: also where the sequences have no tokens.
SampleOrder sample_order(absl::Span<const int64_t> sequences, absl::Span<const int64_t> lengths,
                         const SampleOptions& options);

/// Which sample of which set each sample of a blend is.
struct BlendOrder {
  std::vector<int32_t> datasets = {};
  std::vector<int64_t> samples = {};
};

/// `size` samples of sets with these weights. Errors: for weights that are negative or all 0.
BlendOrder blend_order(absl::Span<const double> weights, int64_t size);

/// All of these numbers of samples. Errors: for a negative number.
BlendOrder exhaustive_blend_order(absl::Span<const int64_t> sizes);

/// How many samples are built of each set for a blend of `size`; `surplus` is a share of them.
std::vector<int64_t> blend_sizes(absl::Span<const double> weights, int64_t size,
                                 double surplus = 0.005);

/// The weights, divided by their sum. Errors: as blend_order.
std::vector<double> normalized_weights(absl::Span<const double> weights);

/// The first and the end of the sequences of training, validation and test: "949,50,1" are shares
/// of `count`. Errors: for a text that is not at most three such numbers.
std::array<std::pair<int64_t, int64_t>, 3> split_sequences(const std::string& split, int64_t count);

}  // namespace accelerate
