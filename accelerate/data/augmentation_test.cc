// Datasets that draw random numbers on a loader's workers: what they draw follows from the seed,
// the pass, the batch and the rank, and from nothing else.
#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/ops/randint.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "accelerate/data/data_loader.h"
#include "accelerate/testing/loader_passes.h"

namespace accelerate {
namespace {

using ::testing::SizeIs;

// Each sample is a random number from its worker's generator.
struct Augmented {
  size_t size() const { return 12; }
  int64_t get(size_t) const {
    return at::randint(1 << 30, {}, worker_info()->generator, at::kLong).item<int64_t>();
  }
};

TEST(Augmentation, SeedsItsWorkersFromItsGenerator) {
  auto passes = [](uint64_t seed) {
    DataLoader loader(Augmented{}, {.batch_size = 2, .generator = seeded(seed), .num_workers = 3});
    std::vector<Batches> passes;
    for (int pass = 0; pass < 2; ++pass) passes.push_back(one_pass(loader));
    return passes;
  };
  const std::vector<Batches> first = passes(1);
  EXPECT_EQ(passes(1), first);
  EXPECT_NE(passes(2), first);
  EXPECT_NE(first[0], first[1]) << "each pass has a base seed of its own";
}

// The same as a stream.
struct AugmentedStream {
  std::optional<int64_t> next() {
    if (position == 12) return std::nullopt;
    ++position;
    return at::randint(1 << 30, {}, worker_info()->generator, at::kLong).item<int64_t>();
  }
  void reset() { position = 0; }
  int64_t position = 0;
};

// The pass is left after so many batches and gone on with in another loader (0: not left).
template <typename Dataset>
Batches augmented_pass(const Dataset& dataset, int64_t left_after,
                       const std::vector<int>& num_workers, const ShardOptions& shard) {
  auto loader = [&](int workers) {
    return DataLoader(dataset, {.batch_size = 2, .generator = seeded(3), .num_workers = workers})
        .shard(shard);
  };
  Batches batches;
  auto first = loader(num_workers[0]);
  for (auto& batch : first) {
    batches.push_back(values(batch));
    if (static_cast<int64_t>(batches.size()) == left_after) break;
  }
  if (left_after == 0) return batches;
  auto second = loader(num_workers[1]);
  second.load_state_dict(first.state_dict());
  for (auto& batch : second) batches.push_back(values(batch));
  return batches;
}

TEST(Augmentation, AugmentsAsIfItWereNotLeftWhateverTheNumberOfWorkers) {
  for (int world_size : {1, 2}) {
    std::vector<Batches> of_rank;
    for (int rank = 0; rank < world_size; ++rank) {
      const ShardOptions shard{.share = rank, .num_shares = world_size, .rng_types = {}};
      const Batches whole = augmented_pass(Augmented{}, 0, {1}, shard);
      EXPECT_EQ(augmented_pass(Augmented{}, 0, {3}, shard), whole);
      for (int64_t left_after : {1, 2}) {
        for (const std::vector<int>& workers : {std::vector<int>{1, 1}, {3, 3}, {1, 3}, {3, 2}}) {
          EXPECT_EQ(augmented_pass(Augmented{}, left_after, workers, shard), whole)
              << "left after " << left_after << " with " << workers[0] << " and " << workers[1]
              << " workers, rank " << rank << " of " << world_size;
        }
      }
      of_rank.push_back(whole);
    }
    if (world_size == 2) EXPECT_NE(of_rank[0], of_rank[1]) << "seeded alike, they draw otherwise";
  }
}

TEST(Augmentation, AugmentsStreamsAsIfTheyWereNotLeft) {
  const ShardOptions shard{.rng_types = {}, .device_placement = false};
  const Batches whole = augmented_pass(AugmentedStream{}, 0, {1}, shard);
  EXPECT_THAT(whole, SizeIs(6));
  // Reading up to the position draws as well, without a worker.
  struct Quiet : AugmentedStream {
    std::optional<int64_t> next() {
      if (worker_info() != nullptr) return AugmentedStream::next();
      if (position == 12) return std::nullopt;
      return position++;
    }
  };
  for (int64_t left_after : {1, 4}) {
    EXPECT_EQ(augmented_pass(Quiet{}, left_after, {1, 2}, shard), whole);
  }
}

}  // namespace
}  // namespace accelerate
