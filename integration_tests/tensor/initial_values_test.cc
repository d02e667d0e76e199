// What ranks along tp and pp begin with, on clusters of the shape that the mesh needs: their parts
// of the values of one process, however the model was built.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "accelerate/accelerate.h"
#include "accelerate/base/access.h"
#include "accelerate/config/parallelism_config.h"
#include "accelerate/examples/lm/config.h"
#include "accelerate/examples/lm/model.h"
#include "accelerate/files/box_view.h"
#include "accelerate/forward/model_state.h"
#include "accelerate/operators/default_device.h"
#include "accelerate/parallel/layout/model_layout.h"
#include "integration_tests/sharding/gauges.h"
#include "simulator/cluster/cluster.h"
#include "simulator/disk/sim_disk.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::Rank;
using simulator::SimDisk;
using torch::Tensor;

constexpr char kWeights[] = "/sim/weights";

std::vector<std::pair<std::string, ParallelismOptions>> layouts() {
  return {{"1x2:h100", {.tp_size = 2}},
          {"1x4:h100", {.tp_size = 4}},
          {"1x4:h100", {.dp_shard_size = 2, .tp_size = 2}},
          {"1x4:h100", {.dp_replicate_size = 2, .tp_size = 2}},
          {"2x4:h100", {.dp_replicate_size = 2, .dp_shard_size = 2, .tp_size = 2}},
          {"2x4:h100", {.dp_shard_size = 2, .tp_size = 4}},
          {"1x2:h100", {.pp_size = 2}},
          {"1x4:h100", {.pp_size = 4}},
          {"1x4:h100", {.tp_size = 2, .pp_size = 2}},
          {"1x4:h100", {.dp_shard_size = 2, .pp_size = 2}},
          {"1x4:h100", {.dp_replicate_size = 2, .pp_size = 2}}};
}

lm::Config config() {
  return lm::model_config("tiny", {.blocks = lm::Blocks::kLlama, .layers = 2, .kv_heads = 4});
}

lm::Lm built() {
  torch::manual_seed(3);
  return lm::Lm(config());
}

lm::Lm built_empty() {
  torch::manual_seed(3);
  const EmptyInit empty = init_empty_weights();
  return lm::Lm(config());
}

// Whether what the rank trains has its boxes of the whole model's values, bit by bit. Returns their
// bytes.
int64_t expect_values(Accelerator& accelerator, lm::Lm model, const NamedTensors& whole) {
  const std::shared_ptr<torch::optim::Optimizer> sgd =
      std::make_shared<torch::optim::SGD>(model->parameters(), torch::optim::SGDOptions(0.1));
  auto [prepared, optimizer] = accelerator.prepare(model.ptr(), sgd);
  const std::shared_ptr<ModelState>& state = internal::Access::to(prepared);
  const ModelLayout& layout = *state->placements().layout;
  size_t found = 0;
  int64_t bytes = 0;
  for (const TrainedParameter& each : state->trained()) {
    for (const auto& [name, values] : whole) {
      if (name != each.name) continue;
      EXPECT_NE(each.placement, nullptr) << name;
      if (each.placement == nullptr) continue;
      if (part_number(*each.placement, layout.mesh(), accelerator.process_index()) >= 0) ++found;
      EXPECT_FALSE(each.trained.is_meta()) << name;
      const Tensor own = each.trained.detach().cpu();
      for (const PlacedBox& box :
           boxes_of(*each.placement, layout.mesh(), accelerator.process_index())) {
        EXPECT_TRUE(torch::equal(box_view(own, box.part), box_view(values, box.whole)))
            << name << " on rank " << accelerator.process_index();
        bytes += box.whole.numel() * static_cast<int64_t>(own.element_size());
      }
    }
  }
  // Each stage of a pipeline has some of them, and all stages together have all.
  const auto stages = static_cast<size_t>(layout.mesh().size(MeshAxis::kPp));
  const Tensor sum = accelerator.reduce(
      torch::tensor({static_cast<int64_t>(found)}, torch::kLong).to(accelerator.device()));
  EXPECT_EQ(static_cast<size_t>(sum.item<int64_t>()) * stages,
            whole.size() * static_cast<size_t>(accelerator.num_processes()));
  return bytes;
}

NamedTensors values_of(const lm::Lm& model) {
  NamedTensors values;
  for (const auto& item : model->named_parameters()) {
    values.emplace_back(item.key(), item.value().detach().clone());
  }
  return values;
}

// And so is what the program draws next.
TEST(InitialValues, AreThoseOfOneProcess) {
  for (const auto& [cluster, sizes] : layouts()) {
    SCOPED_TRACE(cluster);
    for (const bool is_empty : {false, true}) {
      Cluster(cluster).run_on_every_rank([&, &sizes = sizes](Rank&) {
        Accelerator accelerator({.parallelism_config = ParallelismConfig(sizes)});
        const NamedTensors whole = values_of(built());
        const Tensor state = at::detail::getDefaultCPUGenerator().get_state();
        expect_values(accelerator, is_empty ? built_empty() : built(), whole);
        EXPECT_TRUE(torch::equal(at::detail::getDefaultCPUGenerator().get_state(), state));
      });
    }
  }
}

// Rank 0 draws what the others do not.
TEST(InitialValues, LeaveGeneratorsAlikeWhereRankZeroSendsThem) {
  for (const bool syncs : {false, true}) {
    Cluster cluster("1x2:h100");
    cluster.run_on_every_rank([&](Rank& rank) {
      FullyShardedDataParallelPlugin plugin;
      (syncs ? plugin.sync_module_states : plugin.cpu_ram_efficient_loading) = true;
      if (!syncs) plugin.fsdp_version = 2;
      Accelerator accelerator({.fsdp_plugin = plugin});
      auto model = accelerator.prepare(built_empty());
      rank.report("generator", at::detail::getDefaultCPUGenerator().get_state());
    });
    const std::vector<Tensor> states = cluster.reports("generator");
    EXPECT_TRUE(torch::equal(states[0], states[1])) << syncs;
  }
}

// Where shapes alone are computed a rank may have a gibibyte on the host, and parts are more here.
TEST(InitialValues, AreMadeOnTheDeviceAlone) {
  simulator::ClusterOptions options;
  options.numerics = simulator::Numerics::kShapes;
  options.unknown_value = [](const std::string&) { return std::nan(""); };
  Cluster("1x4:h100", options).run_on_every_rank([](Rank&) {
    Accelerator accelerator(
        {.parallelism_config = ParallelismConfig({.dp_replicate_size = 2, .tp_size = 2})});
    const auto made = [&] {
      const DefaultDeviceScope scope(accelerator.device());
      const EmptyInit empty = init_empty_weights();
      return lm::Lm(lm::model_config("7b", {.blocks = lm::Blocks::kLlama, .layers = 2}));
    };
    auto model = accelerator.prepare(made());
    size_t bytes = 0;
    for (const Tensor& parameter : model->parameters()) {
      EXPECT_EQ(parameter.device(), accelerator.device());
      bytes += parameter.nbytes();
    }
    EXPECT_GT(bytes, size_t{1} << 30);
  });
}

// A rank reads its runs of each tensor, and no more.
TEST(InitialValues, AreReadFromAFileInParts) {
  for (const auto& [cluster, sizes] : layouts()) {
    const auto disk = std::make_shared<SimDisk>();
    Cluster("1x1", {.disk = disk}).run_on_every_rank([&](Rank&) {
      save_model(*disk, values_of(built()), kWeights, {});
    });
    Cluster(cluster, {.disk = disk}).run_on_every_rank([&, &sizes = sizes](Rank& rank) {
      Accelerator accelerator({.parallelism_config = ParallelismConfig(sizes)});
      const NamedTensors whole = values_of(built());
      CountedFiles files(rank.runtime().files());
      lm::Lm model = built_empty();
      load_checkpoint_in_model(files, *model, kWeights, {.lazy = true});
      const int64_t bytes = expect_values(accelerator, model, whole);
      EXPECT_GE(files.total(), bytes);
      EXPECT_LE(files.total(), bytes + 16384) << "what is read beside are heads of files";
    });
  }
}

}  // namespace
}  // namespace accelerate
