// Checkpoints of a model whose experts ranks along ep divide: whole tensors under plain names, and
// the same bits under another layout.
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "absl/strings/str_cat.h"
#include "accelerate/accelerate.h"
#include "accelerate/base/access.h"
#include "accelerate/config/parallelism_config.h"
#include "integration_tests/experts/expert_training.h"
#include "integration_tests/layouts/placed_parts.h"
#include "simulator/cluster/cluster.h"
#include "simulator/disk/sim_disk.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::Rank;
using simulator::SimDisk;
using torch::Tensor;

constexpr char kFolder[] = "/sim/run/saved";

struct Layout {
  std::string name;
  std::string cluster;
  std::optional<ParallelismOptions> sizes = std::nullopt;
};

Layout one_rank() { return {"one rank", "1x1:h100"}; }
Layout shards() { return {"dp_shard 2", "1x2:h100", ParallelismOptions{.dp_shard_size = 2}}; }
Layout ep(int64_t ranks, int64_t ep_size) {
  return {absl::StrCat("dp_shard ", ranks, ", ep ", ep_size), absl::StrCat("1x", ranks, ":h100"),
          ParallelismOptions{.dp_shard_size = ranks, .ep_size = ep_size}};
}
Layout ep_and_tp() {
  return {"ep 2 x tp 2", "1x4:h100",
          ParallelismOptions{.dp_shard_size = 2, .tp_size = 2, .ep_size = 2}};
}
Layout ep_and_replicas() {
  return {"ep 2 x dp_replicate 2", "1x4:h100",
          ParallelismOptions{.dp_replicate_size = 2, .dp_shard_size = 2, .ep_size = 2}};
}

AcceleratorOptions options_of(const Layout& layout) {
  AcceleratorOptions options;
  if (layout.sizes) options.parallelism_config = ParallelismConfig(*layout.sizes);
  return options;
}

lm::Lm filled() {
  lm::Lm net(tiny_experts(/*layers=*/1), lm::LmOptions{.router = {.balance_loss = 0.01}});
  fill_experts_by_formula(*net, {});
  return net;
}

struct Job {
  explicit Job(const Layout& layout)
      : accelerator(options_of(layout)),
        net(filled()),
        adam(std::make_shared<torch::optim::AdamW>(net->parameters(),
                                                   torch::optim::AdamWOptions(1e-3))) {
    auto [prepared, handle] =
        accelerator.prepare(net.ptr(), std::static_pointer_cast<torch::optim::Optimizer>(adam));
    model.emplace(prepared);
    optimizer.emplace(handle);
  }

  void train(int step) {
    const auto [inputs, labels] = formula_batch(step, /*rows=*/1, /*length=*/16);
    const Tensor logits = (*model)(inputs.to(accelerator.device()));
    const Tensor loss =
        torch::cross_entropy_loss(logits.flatten(0, 1), labels.to(accelerator.device()).flatten());
    accelerator.backward(loss + net->take_router_loss());
    optimizer->step();
    optimizer->zero_grad();
  }

  Accelerator accelerator;
  lm::Lm net;
  std::shared_ptr<torch::optim::AdamW> adam;
  std::optional<PreparedModel<lm::LmImpl>> model;
  std::optional<AcceleratedOptimizer> optimizer;
};

// Weights and moments at the end of what ranks do.
WholeTensors whole_after(const Layout& layout, const std::shared_ptr<SimDisk>& disk,
                         const std::function<void(Job&)>& body) {
  Cluster cluster(layout.cluster, {.disk = disk});
  std::vector<PlacedParts> parts(static_cast<size_t>(cluster.world_size()));
  cluster.run_on_every_rank([&](Rank& rank) {
    Job job(layout);
    body(job);
    parts[static_cast<size_t>(rank.index())] =
        placed_parts(*internal::Access::to(*job.model), *job.adam, rank.index());
  });
  return assembled(parts);
}

TEST(CheckpointOfExperts, LoadsUnderAnyOtherLayoutBitByBit) {
  const std::vector<std::pair<Layout, Layout>> pairs = {{ep(2, 2), one_rank()},
                                                        {one_rank(), ep(2, 2)},
                                                        {ep(4, 2), ep(4, 4)},
                                                        {ep(4, 4), shards()},
                                                        {ep_and_tp(), ep(2, 2)},
                                                        {ep(2, 2), ep_and_replicas()},
                                                        {ep_and_replicas(), ep_and_tp()}};
  for (const auto& [a, b] : pairs) {
    for (const auto type : {StateDictType::kShardedStateDict, StateDictType::kFullStateDict}) {
      SCOPED_TRACE(absl::StrCat(a.name, " to ", b.name,
                                type == StateDictType::kFullStateDict ? ", whole" : ", in boxes"));
      const auto disk = std::make_shared<SimDisk>();
      const WholeTensors saved = whole_after(a, disk, [type](Job& job) {
        for (int step = 0; step < 2; ++step) job.train(step);
        job.accelerator.save_state(kFolder, {.state_dict_type = type});
      });
      EXPECT_TRUE(saved.contains("square of blocks.0.mlp.experts.down"));
      // The job has trained otherwise before it loads.
      expect_equal(whole_after(b, disk,
                               [](Job& job) {
                                 job.train(7);
                                 job.accelerator.load_state(kFolder);
                               }),
                   saved);
    }
  }
}

TEST(CheckpointOfExperts, HasTheModelInWholeTensorsUnderPlainNames) {
  constexpr char kWeights[] = "/sim/run/weights";
  for (const Layout& layout : {ep(2, 2), ep(4, 2), ep_and_tp()}) {
    SCOPED_TRACE(layout.name);
    const auto disk = std::make_shared<SimDisk>();
    const WholeTensors all = whole_after(layout, disk, [&](Job& job) {
      job.train(0);
      job.accelerator.save_model(*job.model, kWeights);
    });
    // A program without axes reads them.
    Cluster("1x1", {.disk = disk}).run_on_every_rank([&](Rank& rank) {
      lm::Lm read(tiny_experts(/*layers=*/1));
      load_checkpoint_in_model(rank.runtime().files(), *read, kWeights, {});
      for (const auto& item : read->named_parameters()) {
        EXPECT_TRUE(item.value().equal(all.at("weight of " + item.key()))) << item.key();
      }
    });
  }
}

// Into a model without values, of which each rank reads its own experts.
TEST(ValuesOfExperts, AreReadFromAFileInParts) {
  constexpr char kWeights[] = "/sim/run/weights";
  for (const Layout& layout : {ep(2, 2), ep(4, 2), ep_and_tp()}) {
    SCOPED_TRACE(layout.name);
    const auto disk = std::make_shared<SimDisk>();
    NamedTensors values;
    Cluster("1x1", {.disk = disk}).run_on_every_rank([&](Rank&) {
      for (const auto& item : filled()->named_parameters()) {
        values.emplace_back(item.key(), item.value().detach());
      }
      save_model(*disk, values, kWeights, {});
    });
    Cluster cluster(layout.cluster, {.disk = disk});
    std::vector<PlacedParts> parts(static_cast<size_t>(cluster.world_size()));
    cluster.run_on_every_rank([&](Rank& rank) {
      Accelerator accelerator(options_of(layout));
      lm::Lm net = [] {
        const EmptyInit empty = init_empty_weights();
        return lm::Lm(tiny_experts(/*layers=*/1));
      }();
      load_checkpoint_in_model(rank.runtime().files(), *net, kWeights, {.lazy = true});
      const auto adam = std::make_shared<torch::optim::AdamW>(net->parameters(),
                                                              torch::optim::AdamWOptions(1e-3));
      auto [model, optimizer] =
          accelerator.prepare(net.ptr(), std::static_pointer_cast<torch::optim::Optimizer>(adam));
      parts[static_cast<size_t>(rank.index())] =
          placed_parts(*internal::Access::to(model), *adam, rank.index());
    });
    const WholeTensors read = assembled(parts);
    for (const auto& [name, value] : values) {
      ASSERT_TRUE(read.contains("weight of " + name)) << name;
      EXPECT_TRUE(read.at("weight of " + name).equal(value)) << name;
    }
  }
}

}  // namespace
}  // namespace accelerate
