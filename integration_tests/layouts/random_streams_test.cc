// Random numbers of ranks that have parts of one tensor: dropout is equal where values are equal
// and different where each rank has a part, in recomputations and when a training is resumed, too.
#include <cstddef>
#include <cstdint>
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
#include "accelerate/forward/prepared_model.h"
#include "accelerate/mesh/device_mesh.h"
#include "accelerate/mesh/mesh.h"
#include "accelerate/operators/checkpoint.h"
#include "accelerate/operators/operator_mode.h"
#include "accelerate/operators/random_streams.h"
#include "accelerate/parallel/layout/placement.h"
#include "integration_tests/layouts/cut_by_hand.h"
#include "integration_tests/layouts/whole_draws.h"
#include "integration_tests/mesh/arranged_ranks.h"
#include "simulator/cluster/cluster.h"
#include "simulator/disk/sim_disk.h"

namespace accelerate {
namespace {

using enum MeshAxis;
using simulator::Cluster;
using simulator::Rank;
using simulator::SimDisk;
using torch::Tensor;

constexpr char kFolder[] = "/sim/run/saved";
// Columns of what all ranks have, and of what they have parts of.
constexpr int64_t kWhole = 6, kCut = 16;
constexpr int kSteps = 6;

// Two layers as a technique along tp cuts them, without the sum behind the second one. Values in
// between have as many columns as the rank has rows of the first matrix.
class DropsImpl : public torch::nn::Module, public CutByHand {
 public:
  explicit DropsImpl(bool recomputes)
      : recomputes_(recomputes),
        up_(register_parameter("up", torch::linspace(-1, 1, kCut * kWhole).view({kCut, kWhole}))),
        down_(register_parameter("down",
                                 torch::linspace(1, -1, kWhole * kCut).view({kWhole, kCut}))) {}

  Tensor forward(const Tensor& input) {
    const auto block = [this](const Tensor& x) {
      const Tensor part = torch::dropout(x, 0.3, /*train=*/true).matmul(up_.t()).tanh();
      const Tensor sum = torch::dropout(part, 0.5, /*train=*/true).matmul(down_.t());
      return torch::dropout(sum, 0.3, /*train=*/true);
    };
    const OperatorModeScope scope(streams);
    return recomputes_ ? checkpoint(block, input) : block(input);
  }

  std::vector<TensorPlacement> placements() const override {
    return {{.name = "up", .shape = {kCut, kWhole}, .cuts = {{.axis = kTp, .dim = 0}}},
            {.name = "down", .shape = {kWhole, kCut}, .cuts = {{.axis = kTp, .dim = 1}}}};
  }

  std::shared_ptr<RandomStreams> streams;

 private:
  const bool recomputes_;
  Tensor up_, down_;
};

// One rank's part of a training.
struct Job {
  explicit Job(const ParallelismOptions& sizes, bool recomputes = false)
      : accelerator(with_mesh(sizes)), module(std::make_shared<DropsImpl>(recomputes)) {
    cut_modules_by_hand();
    const std::shared_ptr<torch::optim::Optimizer> sgd =
        std::make_shared<torch::optim::SGD>(module->parameters(), torch::optim::SGDOptions(0.1));
    auto [prepared, handle] = accelerator.prepare(module, sgd);
    model.emplace(prepared);
    optimizer.emplace(handle);
    const DeviceMesh& mesh = *accelerator.torch_device_mesh();
    columns = kCut / mesh.size(kTp);
    module->streams =
        RandomStreams::along(mesh.group(kTp), [columns = columns](const Tensor& tensor) {
          return tensor.dim() > 0 && tensor.size(-1) == columns;
        });
  }

  static AcceleratorOptions with_mesh(const ParallelismOptions& sizes) {
    AcceleratorOptions options;
    options.parallelism_config = ParallelismConfig(sizes);
    return arranged(std::move(options));
  }

  int share() const { return accelerator.state().data_share().index; }

  Tensor train(int step) {
    optimizer->zero_grad();
    const Tensor input = torch::full({4, kWhole}, 1.0 + step + share());
    const Tensor loss = (*model)(input.to(accelerator.device())).pow(2).mean();
    accelerator.backward(loss);
    optimizer->step();
    return loss.detach();
  }

  // What dropout multiplies with that many columns.
  Tensor drop(int64_t size) const {
    const OperatorModeScope scope(module->streams);
    return torch::dropout(torch::ones({8, size}).to(accelerator.device()), 0.5, /*train=*/true);
  }

  Accelerator accelerator;
  const std::shared_ptr<DropsImpl> module;
  std::optional<PreparedModel<DropsImpl>> model;
  std::optional<AcceleratedOptimizer> optimizer;
  int64_t columns = 0;
};

struct Layout {
  std::string cluster;
  ParallelismOptions sizes;
};

Layout tp_2() { return {"1x2:h100", {.tp_size = 2}}; }
Layout tp_4() { return {"1x4:h100", {.tp_size = 4}}; }

std::vector<Layout> layouts() {
  return {tp_2(),
          tp_4(),
          {"1x2", {.tp_size = 2}},
          {"1x4:h100", {.dp_replicate_size = 2, .tp_size = 2}},
          {"1x4:h100", {.dp_shard_size = 2, .tp_size = 2}}};
}

TEST(RandomStreamsOfRanks, AreEqualWhereValuesAreAndDifferWhereRanksHaveParts) {
  for (const Layout& layout : layouts()) {
    SCOPED_TRACE(layout.cluster);
    Cluster cluster(layout.cluster);
    cluster.run_on_every_rank([&layout](Rank& rank) {
      set_seed(7, {.device_specific = true});  // each rank otherwise, as without a mesh
      Job job(layout.sizes);
      rank.report("share", job.share());
      for (const char* when : {" at first", " later"}) {
        rank.report(absl::StrCat("whole", when), job.drop(kWhole));
        rank.report(absl::StrCat("part", when), job.drop(job.columns));
      }
    });
    const std::vector<Tensor> share = cluster.reports("share");
    for (const std::string when : {" at first", " later"}) {
      const std::vector<Tensor> whole = cluster.reports("whole" + when);
      const std::vector<Tensor> part = cluster.reports("part" + when);
      for (size_t a = 0; a < share.size(); ++a) {
        for (size_t b = a + 1; b < share.size(); ++b) {
          EXPECT_EQ(whole[a].equal(whole[b]), share[a].equal(share[b]))
              << a << " and " << b << when;
          EXPECT_FALSE(part[a].equal(part[b])) << a << " and " << b << when;
        }
      }
    }
    EXPECT_FALSE(cluster.reports("whole at first")[0].equal(cluster.reports("whole later")[0]));
    EXPECT_FALSE(cluster.reports("part at first")[0].equal(cluster.reports("part later")[0]));
  }
}

// ---- Training.

// Steps of a training; those behind the first ones are of a training that is resumed, and those
// before the last ones are followed by a save.
struct Steps {
  int first = 0;
  int last = kSteps;
  bool recomputes = false;
  std::shared_ptr<SimDisk> disk = nullptr;
};

// What ranks have at the end, and what they would draw next.
struct Trained {
  std::vector<Tensor> losses, up, down, whole, part;
};

Trained trained(const Layout& layout, const Steps& steps) {
  Cluster cluster(layout.cluster, {.disk = steps.disk});
  cluster.run_on_every_rank([&](Rank& rank) {
    Job job(layout.sizes, steps.recomputes);
    set_seed(steps.first == 0 ? 7 : 8, {.device_specific = true});
    if (steps.first > 0) job.accelerator.load_state(kFolder);
    std::vector<Tensor> losses;
    for (int step = steps.first; step < steps.last; ++step) losses.push_back(job.train(step));
    if (steps.last < kSteps) job.accelerator.save_state(kFolder);
    rank.report("losses", torch::stack(losses));
    for (const TrainedParameter& each : internal::Access::to(*job.model)->trained()) {
      rank.report(each.name, each.trained.detach().clone());
    }
    rank.report("whole", job.drop(kWhole));
    rank.report("part", job.drop(job.columns));
  });
  return {.losses = cluster.reports("losses"),
          .up = cluster.reports("up"),
          .down = cluster.reports("down"),
          .whole = cluster.reports("whole"),
          .part = cluster.reports("part")};
}

void expect_equal(const std::vector<Tensor>& a, const std::vector<Tensor>& b, const char* what) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t rank = 0; rank < a.size(); ++rank) {
    EXPECT_TRUE(a[rank].equal(b[rank])) << what << " of rank " << rank;
  }
}

TEST(RandomStreamsOfRanks, DrawAlikeInARecomputation) {
  for (const Layout& layout : layouts()) {
    SCOPED_TRACE(layout.cluster);
    const Trained kept = trained(layout, {});
    const Trained again = trained(layout, {.recomputes = true});
    expect_equal(again.losses, kept.losses, "losses");
    expect_equal(again.up, kept.up, "up");
    expect_equal(again.down, kept.down, "down");
    expect_equal(again.whole, kept.whole, "numbers for whole values");
    expect_equal(again.part, kept.part, "numbers for parts");
  }
}

TEST(RandomStreamsOfRanks, GoOnWhereATrainingIsResumed) {
  for (const Layout& layout : layouts()) {
    const Trained all = trained(layout, {});
    for (const int stop : {1, 4}) {
      SCOPED_TRACE(absl::StrCat(layout.cluster, " after ", stop));
      const auto disk = std::make_shared<SimDisk>();
      trained(layout, {.last = stop, .disk = disk});
      const Trained rest = trained(layout, {.first = stop, .disk = disk});
      for (size_t rank = 0; rank < all.losses.size(); ++rank) {
        EXPECT_TRUE(rest.losses[rank].equal(all.losses[rank].slice(0, stop))) << rank;
      }
      expect_equal(rest.up, all.up, "up");
      expect_equal(rest.down, all.down, "down");
      expect_equal(rest.whole, all.whole, "numbers for whole values");
      expect_equal(rest.part, all.part, "numbers for parts");
    }
  }
}

// A rank that the checkpoint did not have draws as if it had been there from the beginning.
TEST(RandomStreamsOfRanks, GoOnInAnotherLayoutAsThoseOfThatLayout) {
  for (const auto& [before, after] : {std::pair(tp_2(), tp_4()), std::pair(tp_4(), tp_2())}) {
    SCOPED_TRACE(absl::StrCat(before.cluster, " to ", after.cluster));
    const auto disk = std::make_shared<SimDisk>();
    trained(before, {.last = 3, .disk = disk});
    const Trained rest = trained(after, {.first = 3, .disk = disk});
    const Trained all = trained(after, {});
    expect_equal(rest.whole, all.whole, "numbers for whole values");
    expect_equal(rest.part, all.part, "numbers for parts");
  }
}

// ---- The numbers of one rank, in parts.

TEST(WholeDraws, GiveRanksThePartsOfWhatOneRankDraws) {
  Cluster one("1x1:h100");
  one.run_on_every_rank([](Rank& rank) {
    set_seed(7);
    for (const auto& [name, size] : {std::pair("whole", kWhole), std::pair("cut", kCut)}) {
      const Tensor ones = torch::ones({8, size}).to(rank.runtime().device());
      rank.report(name, torch::dropout(ones, 0.5, /*train=*/true));
    }
  });
  Cluster four("1x4:h100");
  four.run_on_every_rank([](Rank& rank) {
    Job job({.tp_size = 4});
    set_seed(7);
    const OperatorModeScope scope(
        std::make_shared<WholeDraws>([&](const Tensor& tensor) -> std::optional<WholeDraws::Part> {
          if (tensor.size(-1) != job.columns) return std::nullopt;
          return WholeDraws::Part{.dim = 1, .index = rank.index(), .count = 4};
        }));
    rank.report("whole", job.drop(kWhole));
    rank.report("cut", job.drop(job.columns));
  });
  EXPECT_TRUE(torch::cat(four.reports("cut"), 1).equal(one.reports("cut")[0]));
  for (const Tensor& each : four.reports("whole")) {
    EXPECT_TRUE(each.equal(one.reports("whole")[0]));
  }
}

}  // namespace
}  // namespace accelerate
