// The virtual time of saves and loads on a disk with a rate.
// One shape each: the times are worked out for this disk.
#include <algorithm>
#include <memory>
#include <string>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "accelerate/accelerate.h"
#include "integration_tests/checkpoint/sim_saves.h"

namespace accelerate::checkpoint_tests {
namespace {

// The model's bytes, on a disk so slow that all else hardly counts.
constexpr int64_t kWidth = 100'000;
constexpr int64_t kBytes = 4 * 5 * kWidth;
constexpr char kShape[] = "2x1:h100,disk=10MB/s,disk_latency=10us";
constexpr absl::Duration kWriting = absl::Microseconds(kBytes / 10);
// Descriptions, random states and latencies.
constexpr absl::Duration kRest = absl::Milliseconds(20);

bool is_about(absl::Duration took, absl::Duration expected) {
  return took >= expected && took <= expected + kRest;
}

// Trains for a time, in many short steps, and returns the time that it took.
absl::Duration train(Runtime& runtime, absl::Duration duration) {
  constexpr int kSteps = 500;
  const absl::Time start = runtime.now();
  for (int step = 0; step < kSteps; ++step) runtime.sleep_for(duration / kSteps);
  return runtime.now() - start;
}

TEST(SaveTime, ASaveAndALoadTakeTheTimeOfTheDisk) {
  auto disk = std::make_shared<SimDisk>();
  Cluster cluster(kShape, {.disk = disk});
  cluster.run_on_every_rank([](Rank& rank) {
    Accelerator accelerator;
    Net net(1, kWidth);
    auto model = accelerator.prepare(net);
    Runtime& runtime = rank.runtime();
    const absl::Time start = runtime.now();
    accelerator.save_state(kFolder);
    const absl::Time saved = runtime.now();
    EXPECT_TRUE(is_about(saved - start, kWriting)) << saved - start;
    accelerator.load_state(kFolder);
    // Both ranks read the model from the one disk.
    EXPECT_TRUE(is_about(runtime.now() - saved, 2 * kWriting)) << runtime.now() - saved;
  });
}

TEST(SaveTime, WithoutADiskThatTakesTimeASaveTakesHardlyAny) {
  Cluster cluster("2x1:h100,disk=off", {.disk = std::make_shared<SimDisk>()});
  cluster.run_on_every_rank([](Rank&) {
    Accelerator accelerator;
    Net net(1, kWidth);
    auto model = accelerator.prepare(net);
    accelerator.save_state(kFolder);
  });
  EXPECT_LT(cluster.elapsed(), kRest);
}

// What `training` does not cover of an asynchronous save is waited for.
void save_behind(absl::Duration training, uint64_t seed) {
  Cluster cluster(kShape, {.seed = seed, .disk = std::make_shared<SimDisk>()});
  cluster.run_on_every_rank([&](Rank& rank) {
    Accelerator accelerator;
    Net net(1, kWidth);
    auto model = accelerator.prepare(net);
    Runtime& runtime = rank.runtime();
    const absl::Time start = runtime.now();
    accelerator.save_state(kFolder, {.asynchronous = true});
    EXPECT_LE(runtime.now() - start, kRest);
    const absl::Duration trained = train(runtime, training);
    EXPECT_TRUE(is_about(trained, training)) << trained << ", seed " << seed;
    accelerator.wait_for_save();
    const absl::Duration took = runtime.now() - start;
    EXPECT_GE(took, std::max(training, kWriting)) << "seed " << seed;
    // The save begins at a moment of training that the seed draws.
    EXPECT_LE(took, training + kWriting + 2 * kRest) << "seed " << seed;
    if (training > 2 * kWriting) EXPECT_LE(took, training + 2 * kRest) << "seed " << seed;
    EXPECT_TRUE(verify_checkpoint(runtime.files(), kFolder).ok());
  });
}

TEST(SaveTime, ASaveBehindTrainingIsFreeWhereTrainingCoversIt) {
  for (const uint64_t seed : {1, 2, 3}) save_behind(4 * kWriting, seed);
}

TEST(SaveTime, ASaveBehindTrainingTakesTheRestWhereItDoesNot) {
  for (const uint64_t seed : {1, 2, 3}) save_behind(kWriting / 4, seed);
}

}  // namespace
}  // namespace accelerate::checkpoint_tests
