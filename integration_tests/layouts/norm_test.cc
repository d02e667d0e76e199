// Norms of gradients, and clipping by them, where ranks have parts of some parameters and all of
// others: what one process with the whole model has. On clusters of the shape that the mesh needs.
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <c10/util/accumulate.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "accelerate/accelerate.h"
#include "accelerate/base/access.h"
#include "accelerate/config/parallelism_config.h"
#include "accelerate/files/box_view.h"
#include "accelerate/forward/prepared_model.h"
#include "accelerate/mesh/mesh.h"
#include "accelerate/parallel/layout/model_layout.h"
#include "integration_tests/layouts/cut_by_hand.h"
#include "integration_tests/layouts/weighted_sum.h"
#include "integration_tests/mesh/arranged_ranks.h"
#include "simulator/cluster/cluster.h"

namespace accelerate {
namespace {

using enum MeshAxis;
using simulator::Cluster;
using simulator::Rank;
using torch::Tensor;

// From -9/16 to 9/16 in steps of 1/8: sums of them and of their squares are exact, and none is 0.
Tensor numbers(const std::string& name, at::IntArrayRef shape) {
  const Tensor counted = torch::arange(c10::multiply_integers(shape));
  return counted.mul(7)
      .add(static_cast<int64_t>(name.size()))
      .remainder(10)
      .to(torch::kFloat)
      .sub(4.5)
      .div(8)
      .reshape(shape);
}

const std::vector<std::pair<std::string, std::vector<int64_t>>> kShapes = {
    {"norm", {6}}, {"up", {8, 6}}, {"down", {6, 8}}, {"qkv", {12, 6}}, {"tokens", {5, 6}}};

std::vector<TensorPlacement> placements() {
  std::vector<TensorPlacement> all;
  for (const auto& [name, shape] : kShapes) all.push_back({.name = name, .shape = shape});
  all[1].cuts = {{.axis = kTp, .dim = 0}};
  all[2].cuts = {{.axis = kTp, .dim = 1}};
  all[3].cuts = {{.axis = kTp, .dim = 0, .blocks = {4, 4, 4}}};
  all[4].cuts = {{.axis = kTp, .dim = 0}};  // not evenly
  all.push_back({.name = "frozen", .shape = {4}});
  return all;
}

std::shared_ptr<WeightedSumImpl> made_sum() {
  auto sum = std::make_shared<WeightedSumImpl>(placements());
  for (const auto& [name, shape] : kShapes) {
    sum->add(name, torch::ones(shape), numbers(name, shape));
  }
  sum->register_parameter("frozen", torch::ones({4}), /*requires_grad=*/false);
  return sum;
}

// All elements of the gradients where the input is `input`.
Tensor all_gradients(double input) {
  std::vector<Tensor> all;
  for (const auto& [name, shape] : kShapes) {
    all.push_back(numbers(name, shape).to(torch::kDouble).flatten());
  }
  return torch::cat(all).mul(input);
}

// The input of a share of the data.
double input_of(const DataShare& share) { return 1 + share.index; }

double mean_input(int shares) { return (shares + 1) / 2.0; }

// What a rank trains, cut along tp, after a backward pass.
struct Job {
  explicit Job(const ParallelismOptions& sizes)
      : accelerator(arranged({.parallelism_config = ParallelismConfig(sizes)})) {
    cut_modules_by_hand();
    module = made_sum();
    const std::shared_ptr<torch::optim::Optimizer> sgd =
        std::make_shared<torch::optim::SGD>(module->parameters(), torch::optim::SGDOptions(0.1));
    auto [prepared, handle] = accelerator.prepare(module, sgd);
    state = internal::Access::to(prepared);
    layout = state->placements().layout;
    const DataShare share = accelerator.state().data_share();
    mean = mean_input(share.count);
    accelerator.backward(
        prepared(torch::full({}, input_of(share), torch::kFloat).to(accelerator.device())));
    model.emplace(prepared);
    optimizer.emplace(handle);
  }

  Accelerator accelerator;
  std::shared_ptr<const ModelLayout> layout;
  std::shared_ptr<WeightedSumImpl> module;
  std::shared_ptr<ModelState> state;
  std::optional<PreparedModel<WeightedSumImpl>> model;
  std::optional<AcceleratedOptimizer> optimizer;
  double mean = 1;  // of the inputs
};

// Whether what the rank trains has the gradients of its boxes of the whole tensors, times `factor`.
void expect_gradients(const Job& job, int rank, double factor) {
  for (const TrainedParameter& each : job.state->trained()) {
    if (each.name == "frozen") continue;
    ASSERT_NE(each.placement, nullptr) << each.name;
    const Tensor whole = numbers(each.name, each.placement->shape).mul(job.mean * factor);
    const Tensor own = each.trained.grad().cpu();
    int64_t elements = 0;
    for (const PlacedBox& box : boxes_of(*each.placement, job.layout->mesh(), rank)) {
      EXPECT_TRUE(torch::allclose(box_view(own, box.part), box_view(whole, box.whole)))
          << each.name << " on rank " << rank;
      elements += box.part.numel();
    }
    EXPECT_EQ(own.numel(), elements) << each.name << " on rank " << rank;
  }
}

struct Row {
  std::string cluster;
  ParallelismOptions sizes;
};

std::vector<Row> rows() {
  return {{"1x2:h100", {.tp_size = 2}},
          {"1x4:h100", {.tp_size = 4}},
          {"1x4:h100", {.dp_shard_size = 2, .tp_size = 2}},
          {"1x4:h100", {.dp_replicate_size = 2, .tp_size = 2}},
          {"2x4:h100", {.dp_replicate_size = 2, .dp_shard_size = 2, .tp_size = 2}},
          {"1x4:h100", {.dp_shard_size = 4}}};
}

TEST(NormOfParts, IsThatOfTheWholeModel) {
  for (const auto& [cluster, sizes] : rows()) {
    Cluster(cluster).run_on_every_rank([&sizes = sizes](Rank& rank) {
      Job job(sizes);
      const auto expected = all_gradients(job.mean).norm().item<double>();
      const Tensor norm = job.accelerator.clip_grad_norm_(job.module->parameters(), 1e9);
      EXPECT_NEAR(norm.item<double>(), expected, 1e-6 * expected)
          << job.layout->mesh().to_string() << ", rank " << rank.index();
      expect_gradients(job, rank.index(), 1);
    });
  }
}

TEST(NormOfParts, ScalesAllGradientsByOneFactor) {
  for (const auto& [cluster, sizes] : rows()) {
    Cluster(cluster).run_on_every_rank([&sizes = sizes](Rank& rank) {
      Job job(sizes);
      const auto expected = all_gradients(job.mean).norm().item<double>();
      job.accelerator.clip_grad_norm_(job.module->parameters(), 0.5);
      expect_gradients(job, rank.index(), 0.5 / (expected + 1e-6));
    });
  }
}

TEST(NormOfParts, MayBeOfAnyOrder) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const double order : {1.0, 3.0, kInfinity, -kInfinity, 0.0}) {
    Cluster("1x4:h100").run_on_every_rank([order](Rank&) {
      Job job(ParallelismOptions{.dp_shard_size = 2, .tp_size = 2});
      // The norm of order 0 counts tensors.
      const double expected = order == 0 ? static_cast<double>(kShapes.size())
                                         : all_gradients(job.mean).norm(order).item<double>();
      const Tensor norm = job.accelerator.clip_grad_norm_(job.module->parameters(), 1e9, order);
      EXPECT_NEAR(norm.item<double>(), expected, 1e-6 * expected) << order;
    });
  }
}

// A list as users put one together: parts, shards and whole ones, a frozen one, some of them twice,
// and one of no model.
TEST(NormOfParts, TakesAListOfAnything) {
  for (const auto& [cluster, sizes] : rows()) {
    Cluster(cluster).run_on_every_rank([&sizes = sizes](Rank& rank) {
      Job job(sizes);
      const Tensor beside = torch::ones({3}).to(job.accelerator.device()).requires_grad_();
      beside.mutable_grad() = torch::full_like(beside, 2);
      std::vector<Tensor> list = job.module->parameters();
      list.push_back(beside);
      for (const TrainedParameter& each : job.state->trained()) list.push_back(each.trained);
      list.push_back(beside);
      const Tensor all = torch::cat({all_gradients(job.mean), torch::full({3}, 2, torch::kDouble)});
      const auto expected = all.norm().item<double>();
      // The norm of order 0 counts tensors, among which a shard and its parameter are one.
      const auto tensors = static_cast<double>(kShapes.size() + 1);
      EXPECT_EQ(job.accelerator.clip_grad_norm_(list, 1e9, 0).item<double>(), tensors);
      const Tensor norm = job.accelerator.clip_grad_norm_(list, 1);
      EXPECT_NEAR(norm.item<double>(), expected, 1e-6 * expected) << rank.index();
      expect_gradients(job, rank.index(), 1 / (expected + 1e-6));
      EXPECT_TRUE(torch::allclose(beside.grad().cpu(), torch::full({3}, 2 / (expected + 1e-6))));
    });
  }
}

// A whole tensor is on every rank along tp, and counts once: sqrt(a + b), not sqrt(4a + b).
TEST(NormOfParts, CountsAWholeTensorOnceBesideOneThatIsCut) {
  Cluster("1x4:h100").run_on_every_rank([](Rank&) {
    Job job(ParallelismOptions{.tp_size = 4});
    const auto square = [](const char* name, at::IntArrayRef shape) {
      return numbers(name, shape).to(torch::kDouble).square().sum().item<double>();
    };
    const double a = square("norm", {6}), b = square("up", {8, 6});
    const auto parameters = job.module->named_parameters();
    const Tensor norm =
        job.accelerator.clip_grad_norm_({parameters["norm"], parameters["up"]}, 1e9);
    EXPECT_NEAR(norm.item<double>(), std::sqrt(a + b), 1e-6);
  });
}

TEST(NormOfParts, IsTheSameNumberOnEveryRank) {
  std::vector<float> norms(8);
  Cluster("2x4:h100").run_on_every_rank([&norms](Rank& rank) {
    Job job(ParallelismOptions{.dp_replicate_size = 2, .dp_shard_size = 2, .tp_size = 2});
    norms[static_cast<size_t>(rank.index())] =
        job.accelerator.clip_grad_norm_(job.module->parameters(), 1).item<float>();
  });
  EXPECT_GT(norms[0], 0);
  EXPECT_EQ(norms, std::vector<float>(8, norms[0]));
}

// One rank is the reference: nothing is cut there.
TEST(NormOfParts, IsThatOfOneRank) {
  Cluster("1x1:h100").run_on_every_rank([](Rank&) {
    Accelerator accelerator;
    const auto module = made_sum();
    const std::shared_ptr<torch::optim::Optimizer> sgd =
        std::make_shared<torch::optim::SGD>(module->parameters(), torch::optim::SGDOptions(0.1));
    auto [model, optimizer] = accelerator.prepare(module, sgd);
    accelerator.backward(model(torch::ones({}).to(accelerator.device())));
    const auto expected = all_gradients(1).norm().item<double>();
    EXPECT_NEAR(accelerator.clip_grad_norm_(module->parameters(), 1e9).item<double>(), expected,
                1e-6 * expected);
  });
}

}  // namespace
}  // namespace accelerate
