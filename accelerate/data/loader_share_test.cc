// What a loader is as the share of a rank: its rounds, its order, its workers, and what it counts.
#include "accelerate/data/loader_core.h"

#include <memory>

#include <c10/core/GradMode.h>
#include <gtest/gtest.h>

#include "accelerate/data/data_loader.h"
#include "accelerate/runtime/shared_objects.h"
#include "accelerate/testing/fake_runtime.h"
#include "accelerate/testing/loader_passes.h"

namespace accelerate {
namespace {

using internal::LoaderCore;

// A round of several shares is short if it lacks samples for all of them.
TEST(LoaderShare, EndsAPassThatIsLeftBeforeItsLastShortRound) {
  const auto next_pass = [](int64_t batches) {
    const DataLoader loader(list(11), {.batch_size = 2, .shuffle = true, .generator = seeded(3)});
    const DataLoader share = loader.shard({.num_shares = 2});
    begin_of_pass(share, batches);
    return one_pass(share);
  };
  constexpr int64_t kWhole = -1;
  EXPECT_EQ(next_pass(2), next_pass(kWhole)) << "three samples are left, of a round of four";
  EXPECT_NE(next_pass(1), next_pass(kWhole));
}

// Only what is placed on a device is read ahead for it.
TEST(LoaderShare, HasAWorkerForADeviceThatIsFedAhead) {
  const auto workers = [](const ShardOptions& options, int asked = 0) {
    return LoaderCore({.size = 10}, {.num_workers = asked}).shard(options)->options().num_workers;
  };
  EXPECT_EQ(workers({.device_prefetch = 2}), 1);
  EXPECT_EQ(workers({.device_prefetch = 2}, 3), 3);
  EXPECT_EQ(workers({.device_placement = false, .device_prefetch = 2}), 0);
  EXPECT_EQ(workers({}), 0);
}

TEST(LoaderShare, CountsWhatAllSharesTrainOn) {
  FakeRuntime runtime;
  const RuntimeScope scope(runtime);
  const auto counted = [&runtime] {
    const TrainingSamples* found = runtime.find_shared<TrainingSamples>();
    return found == nullptr ? int64_t{0} : found->count;
  };
  const DataLoader loader(list(10), {.batch_size = 2});
  one_pass(loader);
  EXPECT_EQ(counted(), 0) << "nobody prepared it";
  const DataLoader share = loader.shard({.num_shares = 2});
  one_pass(share);
  EXPECT_EQ(counted(), 12) << "three rounds of four";
  const c10::NoGradGuard evaluates;
  one_pass(share);
  EXPECT_EQ(counted(), 12);
}

// The seedable sampler visits as many samples as the one that it replaces, and as often.
TEST(LoaderShare, ReplacesARandomSamplerByOneOfItsKind) {
  const auto sampler = std::make_shared<RandomSampler>(
      6, RandomSamplerOptions{.replacement = true, .num_samples = 10});
  const DataLoader loader = DataLoader(list(6), {.batch_size = 5, .sampler = sampler})
                                .shard({.use_seedable_sampler = true, .data_seed = 3});
  EXPECT_EQ(loader.size(), 2);
  SeedableRandomSampler same(6, {.replacement = true, .num_samples = 10, .data_seed = 3});
  const at::Tensor order = same.indices();
  const int64_t* indices = order.const_data_ptr<int64_t>();
  EXPECT_EQ(one_pass(loader),
            (Batches{Values(indices, indices + 5), Values(indices + 5, indices + 10)}));
}

}  // namespace
}  // namespace accelerate
