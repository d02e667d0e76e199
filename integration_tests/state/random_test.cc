// Random number generators of many ranks, and of the devices that the simulator models.
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include "accelerate/accelerate.h"
#include "simulator/cluster/cluster.h"
#include "simulator/testing/topology_suite.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::Rank;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::vector<double> reports(const Cluster& cluster, const std::string& name) {
  std::vector<double> values;
  for (const at::Tensor& value : cluster.reports(name)) values.push_back(value.item<double>());
  return values;
}

double draw(c10::Device device) {
  return torch::rand({}, torch::TensorOptions(device)).item<double>();
}

bool all_equal(const std::vector<double>& values) {
  return values == std::vector<double>(values.size(), values[0]);
}

// Ranks that were seeded differently and have drawn differently much.
void diverge(Rank& rank) {
  set_seed(5, {.device_specific = true});
  for (int i = 0; i < rank.index(); ++i) {
    draw(c10::kCPU);
    draw(rank.runtime().device());
  }
}

TOPOLOGY_SUITE(SynchronizeRngStates, .min_ranks = 2, .hardware = simulator::Hardware::kGpu);

TEST_P(SynchronizeRngStates, BringsRankZerosStateToAll) {
  for (RNGType type : {RNGType::kDevice, RNGType::kCuda}) {
    Cluster cluster = make_cluster();
    cluster.run_on_every_rank([type](Rank& rank) {
      Accelerator accelerator;
      diverge(rank);
      synchronize_rng_states(accelerator.state().group(), {type});
      rank.report("device", draw(accelerator.device()));
      rank.report("cpu", draw(c10::kCPU));
      diverge(rank);
      synchronize_rng_states(accelerator.state().group(), {RNGType::kTorch});
      rank.report("other device", draw(accelerator.device()));
      rank.report("other cpu", draw(c10::kCPU));
    });
    EXPECT_TRUE(all_equal(reports(cluster, "device")));
    EXPECT_FALSE(all_equal(reports(cluster, "cpu"))) << "left alone";
    EXPECT_TRUE(all_equal(reports(cluster, "other cpu")));
    EXPECT_FALSE(all_equal(reports(cluster, "other device"))) << "left alone";
  }
}

// One shape: a kind of device that is not the one asked for.
TEST(SynchronizeRngStates, RefusesAnotherKindOfDeviceBeforeItBegins) {
  Cluster cluster("1x2:ascend910b");
  cluster.run_on_every_rank([](Rank& rank) {
    Accelerator accelerator;
    diverge(rank);
    const RngState before = capture_rng_state();
    try {
      synchronize_rng_states(accelerator.state().group(), {RNGType::kTorch, RNGType::kCuda});
      ADD_FAILURE() << "no exception";
    } catch (const c10::ValueError& error) {
      EXPECT_THAT(error.what_without_backtrace(),
                  AllOf(HasSubstr("\"cuda\""), HasSubstr("\"npu\""), HasSubstr("\"device\"")));
    }
    EXPECT_TRUE(torch::equal(capture_rng_state().states.at("torch"), before.states.at("torch")));
  });
}

TOPOLOGY_SUITE(RngStates, .hardware = simulator::Hardware::kGpu);

TEST_P(RngStates, RestoreDevicesAsWell) {
  Cluster cluster = make_cluster();
  cluster.run_on_every_rank([](Rank& rank) {
    Accelerator accelerator;
    diverge(rank);
    const nlohmann::json kept = rng_state_to_json(capture_rng_state());
    EXPECT_TRUE(kept.at("states").contains("cuda"));
    const double cpu = draw(c10::kCPU);
    const double device = draw(accelerator.device());
    set_seed(17);
    restore_rng_state(rng_state_from_json(nlohmann::json::parse(kept.dump())));
    EXPECT_EQ(draw(c10::kCPU), cpu);
    EXPECT_EQ(draw(accelerator.device()), device);
  });
}

// One shape each: two kinds of devices.
TEST(RngStates, AreOfOneKindOfDevice) {
  nlohmann::json kept;
  Cluster gpu("1x1:h100");
  gpu.run_on_every_rank([&](Rank&) { kept = rng_state_to_json(capture_rng_state()); });
  Cluster npu("1x1:ascend910b");
  npu.run_on_every_rank([&](Rank&) {
    try {
      restore_rng_state(rng_state_from_json(kept));
      ADD_FAILURE() << "no exception";
    } catch (const c10::ValueError& error) {
      EXPECT_THAT(error.what_without_backtrace(),
                  AllOf(HasSubstr("\"cuda\""), HasSubstr("it has npu, torch")));
    }
  });
}

TOPOLOGY_SUITE(SetSeed);

TEST_P(SetSeed, IsDeterministicOnTheRankThatAsked) {
  Cluster cluster = make_cluster();
  cluster.run_on_every_rank([](Rank& rank) {
    Accelerator accelerator;
    set_seed(1, {.deterministic = rank.index() == 1});
    // The other ranks run meanwhile.
    accelerator.wait_for_everyone();
    const at::Context& context = at::globalContext();
    EXPECT_EQ(context.deterministicAlgorithms(), rank.index() == 1);
    EXPECT_EQ(context.deterministicCuDNN(), rank.index() == 1);
  });
  EXPECT_FALSE(at::globalContext().deterministicAlgorithms()) << "nothing is left behind";
  EXPECT_FALSE(at::globalContext().deterministicCuDNN());
}

// Each sample is a random number.
struct Augmented {
  size_t samples = 0;
  size_t size() const { return samples; }
  int64_t get(size_t) const {
    return at::randint(1 << 30, {}, worker_info()->generator, at::kLong).item<int64_t>();
  }
};

std::vector<int64_t> read(const torch::Tensor& loaded) {
  const torch::Tensor batch = loaded.cpu();
  return {batch.const_data_ptr<int64_t>(), batch.const_data_ptr<int64_t>() + batch.numel()};
}

TOPOLOGY_SUITE(Workers);

TEST_P(Workers, AugmentAfterResumingAsIfNothingHadBeen) {
  for (int workers_after : {1, 3}) {
    Cluster cluster = make_cluster();
    cluster.run_on_every_rank([&](Rank&) {
      Accelerator accelerator;
      auto loader = [&](int num_workers) {
        return accelerator.prepare(
            DataLoader(Augmented{.samples = 12 * static_cast<size_t>(accelerator.num_processes())},
                       {.batch_size = 2, .shuffle = true, .num_workers = num_workers}));
      };
      set_seed(3, {.device_specific = true});
      auto whole = loader(2);
      std::vector<std::vector<int64_t>> expected;
      nlohmann::json state;
      for (auto& batch : whole) {
        expected.push_back(read(batch));
        if (expected.size() == 2) state = nlohmann::json::parse(whole.state_dict().dump());
      }
      ASSERT_EQ(expected.size(), 6);
      set_seed(4);
      auto rest = loader(workers_after);
      rest.load_state_dict(state);
      size_t i = 2;
      for (auto& batch : rest) EXPECT_EQ(read(batch), expected.at(i++)) << "batch " << i - 1;
      EXPECT_EQ(i, 6);
    });
  }
}

}  // namespace
}  // namespace accelerate
