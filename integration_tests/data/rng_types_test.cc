// Which random generators a prepared loader sets to rank 0's state at the start of each pass.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "accelerate/accelerate.h"
#include "integration_tests/data/draw.h"
#include "simulator/cluster/cluster.h"
#include "simulator/testing/topology_suite.h"

namespace accelerate::data_tests {
namespace {

using simulator::Cluster;
using simulator::Rank;

double draw(c10::Device device) {
  return torch::rand({}, torch::TensorOptions(device)).item<double>();
}

TOPOLOGY_SUITE(RngTypes, .min_ranks = 2, .hardware = simulator::Hardware::kGpu);

TEST_P(RngTypes, NameTheDefaultGeneratorsThatEachPassBeginsWith) {
  struct Case {
    std::vector<RNGType> types;
    bool cpu, device;  // whether they are equal on all ranks after a pass began
  };
  for (const Case& each :
       {Case{{}, false, false}, Case{{RNGType::kGenerator}, false, false},
        Case{{RNGType::kTorch}, true, false}, Case{{RNGType::kDevice}, false, true},
        Case{{RNGType::kCuda}, false, true},
        Case{{RNGType::kTorch, RNGType::kDevice}, true, true}}) {
    Cluster cluster = make_cluster();
    cluster.run_on_every_rank([&](Rank& rank) {
      Accelerator accelerator({.rng_types = each.types});
      auto loader = accelerator.prepare(DataLoader(
          make_tensor_dataset(at::arange(4 * accelerator.num_processes())), {.batch_size = 2}));
      set_seed(5, {.device_specific = true});
      for (int pass = 0; pass < 2; ++pass) {
        for (auto& [batch] : loader) EXPECT_EQ(batch.numel(), 2);
        const std::string name = std::to_string(pass);
        rank.report("cpu" + name, draw(c10::kCPU));
        rank.report("device" + name, draw(accelerator.device()));
        // Ranks have drawn differently much when the next pass begins.
        for (int i = 0; i < rank.index(); ++i) {
          draw(c10::kCPU);
          draw(accelerator.device());
        }
      }
    });
    const auto equal_on_all_ranks = [&](const std::string& name) {
      const std::vector<at::Tensor> drawn = cluster.reports(name);
      return std::ranges::all_of(drawn,
                                 [&](const at::Tensor& number) { return number.equal(drawn[0]); });
    };
    std::string types;
    for (const RNGType type : each.types) types += std::string(to_string(type)) + " ";
    for (const char* pass : {"0", "1"}) {
      EXPECT_EQ(equal_on_all_ranks(std::string("cpu") + pass), each.cpu) << types << pass;
      EXPECT_EQ(equal_on_all_ranks(std::string("device") + pass), each.device) << types << pass;
    }
  }
}

// A generator of the user's own, which ranks seeded differently: with the default rng_types they
// walk one order, so that each sample comes once; without, each walks its own.
TEST_P(RngTypes, OfAGeneratorAreTheOrderOfTheSamples) {
  const int64_t samples = 6 * world_size();
  for (const bool is_default : {true, false}) {
    Cluster cluster = make_cluster();
    std::vector<std::vector<Values>> passes(static_cast<size_t>(world_size()));
    cluster.run_on_every_rank([&](Rank& rank) {
      AcceleratorOptions options;
      if (!is_default) options.rng_types = {};
      Accelerator accelerator(options);
      auto loader = accelerator.prepare(
          DataLoader(make_tensor_dataset(at::arange(samples)),
                     {.batch_size = 2,
                      .shuffle = true,
                      .generator = at::detail::createCPUGenerator(100 + rank.index())}));
      for (int pass = 0; pass < 2; ++pass) {
        Values all;
        for (auto& [batch] : loader) {
          const Values own = values(batch);
          all.insert(all.end(), own.begin(), own.end());
        }
        passes[static_cast<size_t>(rank.index())].push_back(std::move(all));
      }
    });
    for (size_t pass = 0; pass < 2; ++pass) {
      Values all;
      for (const auto& of_rank : passes) {
        all.insert(all.end(), of_rank[pass].begin(), of_rank[pass].end());
      }
      std::ranges::sort(all);
      EXPECT_EQ(all == values(at::arange(samples)), is_default) << "pass " << pass;
    }
  }
}

}  // namespace
}  // namespace accelerate::data_tests
