// The free functions prepare_data_loader and get_sampler: each field of the options.
#include <tuple>
#include <vector>

#include <ATen/ops/arange.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "accelerate/accelerate.h"
#include "simulator/cluster/cluster.h"
#include "simulator/testing/topology_suite.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::Rank;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

using Loader = DataLoader<TensorDataset<1>>;
using Samples = std::vector<int64_t>;

Loader numbers(int64_t samples, const DataLoaderOptions& options = {.batch_size = 2}) {
  return Loader(make_tensor_dataset(at::arange(samples)), options);
}

Samples one_pass(const Loader& loader) {
  Samples samples;
  for (auto& [batch] : loader) {
    const at::Tensor host = batch.cpu();
    const int64_t* data = host.const_data_ptr<int64_t>();
    samples.insert(samples.end(), data, data + host.numel());
  }
  return samples;
}

TOPOLOGY_SUITE(PreparedFreely, .also = {"1x2:h100"});

TEST_P(PreparedFreely, IsTheRanksShare) {
  make_cluster().run_on_every_rank([](Rank& rank) {
    const Loader loader = prepare_data_loader(numbers(4 * world_size()));
    EXPECT_TRUE(loader.is_prepared());
    const int64_t first = 2 * rank.index(), second = first + 2 * world_size();
    EXPECT_THAT(one_pass(loader), ElementsAre(first, first + 1, second, second + 1));
    EXPECT_EQ(prepare_data_loader(loader).size(), loader.size()) << "a second time";
  });
}

TEST_P(PreparedFreely, PutsBatchesOnTheDeviceIfAsked) {
  make_cluster().run_on_every_rank([](Rank&) {
    const c10::Device device = PartialState::get().device();
    const auto device_of = [](const Loader& loader) {
      return std::get<0>(*loader.begin()).device();
    };
    EXPECT_TRUE(device_of(prepare_data_loader(numbers(8))).is_cpu());
    EXPECT_EQ(device_of(prepare_data_loader(numbers(8), {.put_on_device = true})), device);
    EXPECT_TRUE(
        device_of(prepare_data_loader(numbers(8), {.device = at::kCPU, .put_on_device = true}))
            .is_cpu());
  });
}

TEST_P(PreparedFreely, RegistersItsPasses) {
  make_cluster().run_on_every_rank([](Rank&) {
    Accelerator accelerator;
    const Loader loader = prepare_data_loader(numbers(2 * world_size()));
    for ([[maybe_unused]] auto& batch : loader) {
      EXPECT_TRUE(accelerator.gradient_state().in_dataloader());
      EXPECT_TRUE(accelerator.gradient_state().end_of_dataloader());
    }
    EXPECT_FALSE(accelerator.gradient_state().in_dataloader());
  });
}

TEST_P(PreparedFreely, TakesAnotherPlaceThanTheRanks) {
  make_cluster().run_on_every_rank([](Rank&) {
    EXPECT_THAT(one_pass(prepare_data_loader(numbers(8), {.num_processes = 4, .process_index = 3})),
                ElementsAre(6, 7));
    EXPECT_THAT(one_pass(prepare_data_loader(
                    numbers(8, {.batch_size = 4}),
                    {.num_processes = 4, .process_index = 1, .split_batches = true})),
                ElementsAre(1, 5));
    EXPECT_THAT(one_pass(prepare_data_loader(
                    numbers(3), {.num_processes = 2, .process_index = 1, .even_batches = false})),
                ElementsAre(2));
    EXPECT_THAT(one_pass(prepare_data_loader(numbers(3), {.num_processes = 2, .process_index = 1})),
                ElementsAre(2, 0));
  });
}

// One shape: the rows of two ranks are listed, and swapped between them.
TEST(PrepareDataLoader, DispatchesWhatItPutsOnTheDevice) {
  Cluster("1x2").run_on_every_rank([](Rank& rank) {
    const Loader loader = numbers(8);
    try {
      prepare_data_loader(loader, {.dispatch_batches = true});
      ADD_FAILURE() << "took it";
    } catch (const c10::ValueError& error) {
      EXPECT_THAT(error.what(), HasSubstr("dispatch_batches needs the batches to be placed"));
    }
    const Loader dispatched =
        prepare_data_loader(loader, {.put_on_device = true, .dispatch_batches = true});
    const Samples expected = rank.index() == 0 ? Samples{0, 1, 4, 5} : Samples{2, 3, 6, 7};
    EXPECT_THAT(one_pass(dispatched), ElementsAreArray(expected));
    // The user's slices: each rank gets what the other one would.
    const auto swapped = [](const Loader::Batch& batch, int64_t begin, int64_t end, int, int) {
      const int64_t other = begin == 0 ? end : 0;
      return Loader::Batch(std::get<0>(batch).slice(0, other, other + (end - begin)));
    };
    const Samples swapped_rows = rank.index() == 0 ? Samples{2, 3, 6, 7} : Samples{0, 1, 4, 5};
    EXPECT_THAT(one_pass(prepare_data_loader(
                    loader, {.put_on_device = true, .dispatch_batches = true}, swapped)),
                ElementsAreArray(swapped_rows));
  });
}

TEST_P(PreparedFreely, HasASamplerThatIsSeededAndShown) {
  make_cluster().run_on_every_rank([](Rank&) {
    const Loader shuffled = numbers(8 * world_size(), {.batch_size = 2, .shuffle = true});
    const auto prepared = [&](uint64_t seed) {
      return prepare_data_loader(shuffled, {.use_seedable_sampler = true, .data_seed = seed});
    };
    EXPECT_EQ(get_sampler(shuffled), shuffled.sampler());
    EXPECT_EQ(dynamic_cast<SeedableRandomSampler*>(get_sampler(shuffled).get()), nullptr);
    EXPECT_NE(dynamic_cast<SeedableRandomSampler*>(get_sampler(prepared(1)).get()), nullptr);
    EXPECT_EQ(one_pass(prepared(1)), one_pass(prepared(1)));
    EXPECT_NE(one_pass(prepared(1)), one_pass(prepared(2)));
  });
}

}  // namespace
}  // namespace accelerate
