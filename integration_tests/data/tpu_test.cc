// Prepared loaders on simulated TPUs, whose batches are sent ahead of the loop.
// One shape each: two chips, compared with two ranks elsewhere.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "accelerate/accelerate.h"
#include "integration_tests/data/draw.h"
#include "simulator/cluster/cluster.h"

namespace accelerate::data_tests {
namespace {

using simulator::Cluster;
using simulator::Rank;
using ::testing::Each;
using ::testing::ElementsAre;

// One rank's view of one pass over 21 samples in batches of two: six rounds, the last of which has
// one real sample.
struct Pass {
  std::vector<Values> batches;
  std::vector<int> ends;        // whether the loop is told of each that it is the last
  std::vector<int64_t> copies;  // to the device, when the loop gets each batch
  Values gathered;
  int64_t size = 0;

  bool operator==(const Pass&) const = default;
};

std::vector<Pass> passes_on(const std::string& spec) {
  Cluster cluster(spec);
  std::vector<Pass> passes(static_cast<size_t>(cluster.world_size()));
  cluster.run_on_every_rank([&](Rank& rank) {
    Pass& pass = passes[static_cast<size_t>(rank.index())];
    Accelerator accelerator;
    auto loader =
        accelerator.prepare(DataLoader(make_tensor_dataset(at::arange(21)), {.batch_size = 2}));
    pass.size = loader.size();
    int64_t copies = 0;
    if (rank.device() != nullptr) {
      rank.device()->observe([&](const char* name, int, int64_t, int64_t, bool) {
        copies += std::string_view(name) == "copy to device" ? 1 : 0;
      });
    }
    for (auto& [batch] : loader) {
      pass.copies.push_back(copies);
      EXPECT_EQ(batch.device(), accelerator.device());
      pass.batches.push_back(values(batch));
      pass.ends.push_back(accelerator.gradient_state().end_of_dataloader() ? 1 : 0);
    }
    if (rank.device() != nullptr) rank.device()->observe(nullptr);
    for (auto& [batch] : loader) {
      const Values now = values(accelerator.gather_for_metrics(batch));
      pass.gathered.insert(pass.gathered.end(), now.begin(), now.end());
    }
  });
  return passes;
}

TEST(TpuLoaders, GiveEachRankWhatItGetsElsewhere) {
  std::vector<Pass> elsewhere = passes_on("1x2");
  for (const char* spec : {"tpu-v5e:2", "tpu-v4:2x1"}) {
    std::vector<Pass> passes = passes_on(spec);
    for (std::vector<Pass>* each : {&passes, &elsewhere}) {
      for (Pass& pass : *each) pass.copies.clear();
    }
    EXPECT_EQ(passes, elsewhere) << spec;
    for (const Pass& pass : passes) {
      EXPECT_EQ(pass.size, 6);
      EXPECT_THAT(pass.ends, ElementsAre(0, 0, 0, 0, 0, 1));
      EXPECT_EQ(pass.gathered, values(at::arange(21)));
    }
  }
}

// As torch_xla's MpDeviceLoader, which HF Accelerate wraps loaders in: two beside the loop's own.
TEST(TpuLoaders, SendTwoBatchesAhead) {
  for (const Pass& pass : passes_on("tpu-v5e:2")) {
    EXPECT_THAT(pass.copies, ElementsAre(3, 4, 5, 6, 6, 6));
  }
  for (const Pass& pass : passes_on("1x2:h100")) {
    EXPECT_THAT(pass.copies, ElementsAre(1, 2, 3, 4, 5, 6));
  }
  for (const Pass& pass : passes_on("1x2")) EXPECT_THAT(pass.copies, Each(0));
}

}  // namespace
}  // namespace accelerate::data_tests
