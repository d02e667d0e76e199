// LocalSGD of models of which ranks have parts: each part is averaged among the ranks that have it,
// and the ranks of one replica train together. On a cluster of the shape that the mesh needs.
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "absl/strings/str_cat.h"
#include "accelerate/accelerate.h"
#include "accelerate/config/parallelism_config.h"
#include "accelerate/forward/prepared_model.h"
#include "accelerate/mesh/mesh.h"
#include "accelerate/parallel/layout/model_layout.h"
#include "accelerate/parallel/layout/placement.h"
#include "accelerate/testing/value_error.h"
#include "integration_tests/layouts/cut_by_hand.h"
#include "integration_tests/mesh/arranged_ranks.h"
#include "simulator/cluster/cluster.h"

namespace accelerate {
namespace {

using enum MeshAxis;
using simulator::Cluster;
using simulator::Rank;
using ::testing::HasSubstr;
using torch::Tensor;

// A matrix of which each rank has rows, not as many on each, and, unless it is left out, a scale
// that all have, of whose gradient each computes a part. The gradients are the input times 1, and
// times the rank's number along tp, from 1.
class PartsImpl : public torch::nn::Module, public CutByHand {
 public:
  explicit PartsImpl(MeshAxis axis, bool has_scale = true) : axis_(axis) {
    matrix_ = register_parameter("matrix", torch::arange(10.).reshape({5, 2}));
    if (has_scale) scale_ = register_parameter("scale", torch::ones({4}));
  }

  Tensor forward(const Tensor& input) {
    Tensor sum = matrix_.sum();
    if (scale_.defined()) sum = sum + scale_.sum() * part_;
    return sum * input;
  }

  std::vector<TensorPlacement> placements() const override {
    std::vector<TensorPlacement> all = {
        {.name = "matrix", .shape = {5, 2}, .cuts = {{.axis = axis_, .dim = 0}}}};
    if (scale_.defined()) all.push_back({.name = "scale", .shape = {4}, .sums = {axis_}});
    return all;
  }
  void was_cut(const ModelLayout& layout, int rank) override {
    part_ = 1 + layout.mesh().coordinate(rank, axis_);
  }

  Tensor matrix() const { return matrix_.detach().cpu().clone(); }
  Tensor scale() const { return scale_.detach().cpu().clone(); }
  Tensor gradient_of_scale() const { return scale_.grad().cpu().clone(); }

 private:
  const MeshAxis axis_;
  Tensor matrix_, scale_;
  double part_ = 1;
};

// A rank of a job that trains the model.
struct Job {
  Job(const std::shared_ptr<PartsImpl>& parts, const ParallelismOptions& sizes,
      AcceleratorOptions options = {})
      : accelerator(with_mesh(sizes, std::move(options))), module(parts) {
    cut_modules_by_hand();
    const std::shared_ptr<torch::optim::Optimizer> sgd = std::make_shared<torch::optim::SGD>(
        module->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    auto [prepared, handle] = accelerator.prepare(module, sgd);
    model.emplace(prepared);
    optimizer.emplace(handle);
  }

  static AcceleratorOptions with_mesh(const ParallelismOptions& sizes, AcceleratorOptions options) {
    options.parallelism_config = ParallelismConfig(sizes);
    return arranged(std::move(options));
  }

  // On the share's input, of which the loss is `factor` times what it would be.
  void train(double factor = 1) {
    optimizer->zero_grad();
    const double input = 1 + accelerator.state().data_share().index;
    accelerator.backward((*model)(torch::full({}, input, torch::kFloat).to(accelerator.device())) *
                         factor);
    optimizer->step();
  }

  Accelerator accelerator;
  const std::shared_ptr<PartsImpl> module;
  std::optional<PreparedModel<PartsImpl>> model;
  std::optional<AcceleratedOptimizer> optimizer;
};

ParallelismOptions replicas_of_parts() { return {.dp_replicate_size = 2, .tp_size = 2}; }

TEST(LocalSgdOfParts, AveragesEachPartAmongTheRanksThatHaveIt) {
  Cluster cluster("1x4:h100");
  cluster.run_on_every_rank([](Rank& rank) {
    Job job(std::make_shared<PartsImpl>(kTp), replicas_of_parts());
    const auto report = [&](const std::string& when) {
      rank.report("matrix " + when, job.module->matrix());
      rank.report("scale " + when, job.module->scale());
    };
    {
      LocalSGD local_sgd(job.accelerator, *job.model, /*local_sgd_steps=*/2);
      for (int step = 1; step <= 3; ++step) {
        job.train();
        report(absl::StrCat("before ", step));
        local_sgd.step();
        report(absl::StrCat("after ", step));
      }
    }
    report("at the end");
    job.train();
    report("later");
  });
  for (const std::string name : {"matrix ", "scale "}) {
    const auto of = [&](const char* when) { return cluster.reports(name + when); };
    const std::vector<Tensor> before = of("before 2"), averaged = of("after 2");
    const std::vector<Tensor> last = of("after 3"), end = of("at the end"), later = of("later");
    // Ranks of one place along tp, one in each replica.
    for (const auto& [a, b] : {std::pair(0, 2), std::pair(1, 3)}) {
      SCOPED_TRACE(absl::StrCat(name, "of ranks ", a, " and ", b));
      EXPECT_FALSE(torch::equal(before[a], before[b]));
      EXPECT_TRUE(torch::allclose(averaged[a], (before[a] + before[b]) / 2));
      EXPECT_TRUE(torch::equal(averaged[a], averaged[b]));
      EXPECT_FALSE(torch::equal(last[a], last[b]));
      EXPECT_TRUE(torch::allclose(end[a], (last[a] + last[b]) / 2));
      EXPECT_TRUE(torch::equal(end[a], end[b]));
      // The momentum of both is that of the first.
      EXPECT_TRUE(torch::equal(later[a], later[b]));
    }
  }
  EXPECT_EQ(cluster.reports("matrix later")[0].sizes(), at::IntArrayRef({3, 2}));
  EXPECT_EQ(cluster.reports("matrix later")[1].sizes(), at::IntArrayRef({2, 2}));
}

// The ranks of a replica add their parts of a gradient up, and replicas do not.
TEST(LocalSgdOfParts, SumsPartialGradientsWithinAReplica) {
  Cluster("1x4:h100").run_on_every_rank([](Rank& rank) {
    Job job(std::make_shared<PartsImpl>(kTp), replicas_of_parts());
    {
      LocalSGD local_sgd(job.accelerator, *job.model, /*local_sgd_steps=*/8);
      job.train();
      const double input = rank.index() < 2 ? 1 : 2;
      EXPECT_TRUE(torch::equal(job.module->gradient_of_scale(), torch::full({4}, (1 + 2) * input)))
          << rank.index();
    }
    job.train();
    EXPECT_TRUE(torch::equal(job.module->gradient_of_scale(), torch::full({4}, (1 + 2) * 1.5)))
        << rank.index();
  });
}

TEST(LocalSgdOfParts, RanksOfAReplicaSkipStepsTogether) {
  Cluster("1x4:h100").run_on_every_rank([](Rank& rank) {
    Job job(std::make_shared<PartsImpl>(kTp, /*has_scale=*/false), replicas_of_parts(),
            {.mixed_precision = PrecisionType::kFp16});
    const auto overflow_on = [&](int which) {
      job.train(rank.index() == which ? std::numeric_limits<double>::infinity() : 1.0);
      return job.accelerator.optimizer_step_was_skipped();
    };
    const double scale = job.accelerator.scaler()->get_scale();
    {
      LocalSGD local_sgd(job.accelerator, *job.model, /*local_sgd_steps=*/8);
      EXPECT_EQ(overflow_on(1), rank.index() < 2) << rank.index();
      EXPECT_EQ(job.accelerator.scaler()->get_scale(), rank.index() < 2 ? scale / 2 : scale);
    }
    EXPECT_EQ(job.accelerator.scaler()->get_scale(), scale / 2) << rank.index();
    // Without the scope all ranks do.
    EXPECT_TRUE(overflow_on(3)) << rank.index();
    EXPECT_FALSE(overflow_on(-1)) << rank.index();
  });
}

TEST(LocalSgdOfParts, OnlyCountsInOneReplica) {
  Cluster("1x2:h100").run_on_every_rank([](Rank&) {
    Job job(std::make_shared<PartsImpl>(kTp), {.tp_size = 2});
    LocalSGD local_sgd(job.accelerator, *job.model, /*local_sgd_steps=*/1);
    job.train();
    const Tensor matrix = job.module->matrix();
    local_sgd.step();
    EXPECT_TRUE(torch::equal(job.module->matrix(), matrix));
    EXPECT_TRUE(torch::equal(job.module->gradient_of_scale(), torch::full({4}, 3.0F)));
  });
}

TEST(LocalSgdOfParts, RefusesPartsOnRanksWithOtherBatches) {
  Cluster("1x4:h100").run_on_every_rank([](Rank& rank) {
    Accelerator accelerator(Job::with_mesh(replicas_of_parts(), {}));
    cut_modules_by_hand();
    const auto module = std::make_shared<PartsImpl>(kDpReplicate, /*has_scale=*/false);
    const auto model = accelerator.prepare_model(module, {.evaluation_mode = true});
    EXPECT_THAT(value_error_of([&] { LocalSGD(accelerator, model, 2); }),
                HasSubstr(absl::StrCat("LocalSGD: parameter \"matrix\" is cut along dp_replicate, ",
                                       "and rank ", rank.index(), " has a part of it")));
  });
}

}  // namespace
}  // namespace accelerate
