// Gradients that a layout sums, and tensors that it calls equal, where ranks have parts of a model.
#include <cmath>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "accelerate/accelerate.h"
#include "accelerate/base/access.h"
#include "accelerate/config/parallelism_config.h"
#include "accelerate/forward/model_state.h"
#include "accelerate/forward/prepared_model.h"
#include "accelerate/forward/technique.h"
#include "accelerate/mesh/mesh.h"
#include "accelerate/operators/checkpoint.h"
#include "accelerate/parallel/layout/placement.h"
#include "accelerate/testing/value_error.h"
#include "integration_tests/layouts/cut_by_hand.h"
#include "integration_tests/mesh/arranged_ranks.h"
#include "simulator/cluster/cluster.h"
#include "simulator/disk/sim_disk.h"

namespace accelerate {
namespace {

using enum MeshAxis;
using simulator::Cluster;
using simulator::ClusterOptions;
using simulator::Folding;
using simulator::Rank;
using ::testing::AllOf;
using ::testing::HasSubstr;
using torch::Tensor;

// A scale that all ranks have, and a matrix of which each has rows. The gradient of the scale is
// what the rank is told times the input.
class PartialScaleImpl : public torch::nn::Module, public CutByHand {
 public:
  // `sums`: along which the gradient of the scale is partial.
  explicit PartialScaleImpl(AxisSet sums, int64_t size = 4)
      : of_scale(torch::zeros({size})),
        sums_(sums),
        scale_(register_parameter("scale", torch::ones({size}))),
        matrix_(register_parameter("matrix", torch::ones({4, 2}))) {}

  Tensor forward(const Tensor& input) {
    return ((scale_ * of_scale.to(input.device())).sum() + matrix_.sum()) * input;
  }

  std::vector<TensorPlacement> placements() const override {
    return {{.name = "scale", .shape = {of_scale.numel()}, .sums = sums_},
            {.name = "matrix", .shape = {4, 2}, .cuts = {{.axis = kTp, .dim = 0}}}};
  }

  Tensor of_scale;

 private:
  const AxisSet sums_;
  Tensor scale_, matrix_;
};

// Returns the sum twice, once as it is.
class TwoOutputsImpl : public PartialScaleImpl {
 public:
  using PartialScaleImpl::PartialScaleImpl;

  std::pair<Tensor, Tensor> forward(const Tensor& input) {
    const Tensor sum = PartialScaleImpl::forward(input);
    return {sum, sum * 2};
  }
};

struct Job {
  Job(const ParallelismOptions& sizes, Rank& rank, AxisSet sums, AcceleratorOptions options = {})
      : Job(sizes, rank, std::make_shared<PartialScaleImpl>(sums), std::move(options)) {}
  Job(const ParallelismOptions& sizes, Rank& rank, AxisSet sums, int64_t size)
      : Job(sizes, rank, std::make_shared<PartialScaleImpl>(sums, size)) {}
  Job(const ParallelismOptions& sizes, Rank& rank, std::shared_ptr<PartialScaleImpl> cut,
      AcceleratorOptions options = {})
      : accelerator(with_mesh(sizes, std::move(options))), module(std::move(cut)) {
    tp = Mesh(*accelerator.parallelism_config()).coordinate(rank.index(), kTp);
    cut_modules_by_hand();
  }

  static AcceleratorOptions with_mesh(const ParallelismOptions& sizes, AcceleratorOptions options) {
    options.parallelism_config = ParallelismConfig(sizes);
    return arranged(std::move(options));
  }

  PreparedModel<PartialScaleImpl> prepared() {
    const std::shared_ptr<torch::optim::Optimizer> sgd =
        std::make_shared<torch::optim::SGD>(module->parameters(), torch::optim::SGDOptions(0.1));
    auto [model, handle] = accelerator.prepare(module, sgd);
    return model;
  }

  Tensor one() { return torch::ones({}).to(accelerator.device()); }

  // The scale's: the rows that this rank trains.
  Tensor gradient(const PreparedModel<PartialScaleImpl>& model) {
    for (const TrainedParameter& each : internal::Access::to(model)->trained()) {
      if (each.name == "scale") return each.trained.grad().cpu();
    }
    return {};
  }

  Accelerator accelerator;
  const std::shared_ptr<PartialScaleImpl> module;
  int tp = 0;
};

std::vector<std::pair<const char*, ParallelismOptions>> rows() {
  return {{"1x2:h100", {.tp_size = 2}},
          {"1x4:h100", {.tp_size = 4}},
          {"1x4:h100", {.dp_shard_size = 2, .tp_size = 2}},
          {"1x4:h100", {.dp_replicate_size = 2, .tp_size = 2}}};
}

// 1 + 2 + ... of the ranks along tp.
double sum_over_tp(const ParallelismOptions& sizes) {
  return static_cast<double>(*sizes.tp_size * (*sizes.tp_size + 1)) / 2;
}

TEST(GradientSums, AreOfTheRanksAlongTheAxis) {
  for (const auto& [cluster, sizes] : rows()) {
    Cluster(cluster).run_on_every_rank([&sizes = sizes](Rank& rank) {
      Job job(sizes, rank, {kTp});
      job.module->of_scale = torch::full({4}, 1.0 + job.tp);
      auto model = job.prepared();
      job.accelerator.backward(model(job.one()));
      const Tensor gradient = job.gradient(model);
      EXPECT_TRUE(torch::equal(gradient, torch::full_like(gradient, sum_over_tp(sizes))));
      // As one tensor it counts once in the norm, beside the eight ones of the matrix.
      const double expected = std::sqrt(4 * std::pow(sum_over_tp(sizes), 2) + 8);
      EXPECT_NEAR(job.accelerator.clip_grad_norm_(job.module->parameters(), 1e9).item<double>(),
                  expected, 1e-6 * expected);
    });
  }
}

// What was summed is not summed again, and what was not comes with the next sum.
TEST(GradientSums, AddUpOverBackwardPasses) {
  for (const auto& [cluster, sizes] : rows()) {
    Cluster(cluster).run_on_every_rank([&sizes = sizes](Rank& rank) {
      Job job(sizes, rank, {kTp});
      auto model = job.prepared();
      const auto pass = [&](double gradient) {
        job.module->of_scale = torch::full({4}, gradient * (1.0 + job.tp));
        job.accelerator.backward(model(job.one()));
      };
      const auto expect = [&](double factor) {
        const Tensor gradient = job.gradient(model);
        EXPECT_TRUE(torch::equal(gradient, torch::full_like(gradient, factor * sum_over_tp(sizes))))
            << factor << " on rank " << rank.index();
      };
      pass(1);
      pass(2);
      expect(3);
      {
        const NoSyncScope scope = job.accelerator.no_sync(model);
        pass(4);
      }
      pass(8);
      expect(15);
    });
  }
}

TEST(GradientSums, BeginAnewWhenGradientsAreReset) {
  for (const bool set_to_none : {true, false}) {
    Cluster("1x2:h100").run_on_every_rank([set_to_none](Rank& rank) {
      Job job({.tp_size = 2}, rank, {kTp});
      auto model = job.prepared();
      job.module->of_scale = torch::full({4}, 1.0 + job.tp);
      job.accelerator.backward(model(job.one()));
      const Tensor loss = model(job.one());
      model->zero_grad(set_to_none);
      job.accelerator.backward(loss);
      EXPECT_TRUE(torch::equal(job.gradient(model), torch::full({4}, 3.0F)));
    });
  }
}

// A caller that asks for gradients of an input changes none of the parameters.
TEST(GradientSums, AreOfPassesThatAddToGradients) {
  Cluster("1x2:h100").run_on_every_rank([](Rank& rank) {
    Job job({.tp_size = 2}, rank, {kTp});
    auto model = job.prepared();
    job.module->of_scale = torch::full({4}, 1.0 + job.tp);
    const Tensor input = job.one().requires_grad_();
    const Tensor loss = model(input);
    torch::autograd::grad({loss}, {input}, /*grad_outputs=*/{}, /*retain_graph=*/true);
    EXPECT_FALSE(job.module->parameters()[0].grad().defined());
    job.accelerator.backward(loss);
    EXPECT_TRUE(torch::equal(job.gradient(model), torch::full({4}, 3.0F)));
  });
}

TEST(GradientSums, WaitForAPassThatSynchronises) {
  Cluster("1x2:h100").run_on_every_rank([](Rank& rank) {
    Job job({.tp_size = 2}, rank, {kTp});
    auto model = job.prepared();
    job.module->of_scale = torch::full({4}, 1.0 + job.tp);
    const auto expect = [&](double gradient) {
      EXPECT_TRUE(torch::equal(job.gradient(model), torch::full({4}, gradient)))
          << gradient << " on rank " << rank.index();
    };
    const NoSyncScope scope = job.accelerator.no_sync(model);
    job.accelerator.backward(model(job.one()));
    expect(1 + job.tp);
    const Tensor loss = model(job.one());
    job.accelerator.trigger_sync_in_backward(model);
    job.accelerator.backward(loss);
    expect(2 * 3);
  });
}

// A recomputation has a backward pass of its own, inside of the one that adds to gradients.
TEST(GradientSums, AreThoseOfAModelThatItsCallerComputesAgain) {
  for (const auto& [cluster, sizes] : {rows()[0], rows()[1]}) {
    Cluster(cluster).run_on_every_rank([&sizes = sizes](Rank& rank) {
      Job job(sizes, rank, {kTp});
      auto model = job.prepared();
      job.module->of_scale = torch::full({4}, 1.0 + job.tp);
      const auto expect = [&](double gradient) {
        EXPECT_TRUE(torch::equal(job.gradient(model), torch::full({4}, gradient)))
            << gradient << " on rank " << rank.index() << " of " << *sizes.tp_size;
      };
      const double sum = sum_over_tp(sizes);
      const auto call = [&model](const Tensor& input) { return model(input); };
      const auto nested = [call](const Tensor& input) { return checkpoint(call, input); };
      job.accelerator.backward(checkpoint(call, job.one()));
      expect(sum);
      // In one pass, beside a model that is not computed again.
      job.accelerator.backward(checkpoint(call, job.one()) + checkpoint(nested, job.one()) +
                               model(job.one()));
      expect(4 * sum);
      Tensor loss;
      {
        const NoSyncScope scope = job.accelerator.no_sync(model);
        loss = checkpoint(call, job.one());
      }
      job.accelerator.backward(loss);
      expect(4 * sum + 1 + job.tp);
      job.accelerator.backward(checkpoint(call, job.one()));
      expect(6 * sum);
    });
  }
}

// An evaluation between a pass and its backward pass does not ask for the sums.
TEST(GradientSums, WaitWhateverIsEvaluatedMeanwhile) {
  Cluster("1x2:h100").run_on_every_rank([](Rank& rank) {
    Job job({.tp_size = 2}, rank, {kTp});
    auto model = job.prepared();
    job.module->of_scale = torch::full({4}, 1.0 + job.tp);
    Tensor loss;
    {
      const NoSyncScope scope = job.accelerator.no_sync(model);
      loss = model(job.one());
    }
    {
      const torch::NoGradGuard no_grad;
      EXPECT_FALSE(model(job.one()).requires_grad());
    }
    job.accelerator.backward(loss);
    EXPECT_TRUE(torch::equal(job.gradient(model), torch::full({4}, 1.0 + job.tp)));
  });
}

// Keeps whether the passes that it is in synchronise.
class Watching final : public Technique {
 public:
  explicit Watching(std::vector<bool>& seen) : seen_(seen) {}
  std::string_view name() const override { return "watching"; }
  void forward(ForwardPass& pass) override {
    seen_.push_back(pass.synchronises());
    pass.proceed();
  }

 private:
  std::vector<bool>& seen_;
};

// Techniques inside of a pass that synchronises may be collective, in each layout.
TEST(GradientSums, AreKnownToTechniquesInsideOfThePass) {
  for (const auto& [cluster, sizes] : rows()) {
    Cluster(cluster).run_on_every_rank([&sizes = sizes](Rank& rank) {
      std::vector<bool> seen;
      Job job(sizes, rank, {kTp});
      auto model = job.prepared();
      ModelState& state = *internal::Access::to(model);
      state.insert_technique(state.techniques().size(), std::make_unique<Watching>(seen));
      job.accelerator.backward(model(job.one()));
      {
        const NoSyncScope scope = job.accelerator.no_sync(model);
        job.accelerator.backward(model(job.one()));
      }
      job.accelerator.backward(model(job.one()));
      EXPECT_EQ(seen, (std::vector<bool>{true, false, true})) << rank.index();
    });
  }
}

// Each output tells that the pass has begun.
TEST(GradientSums, BeginOnceInAPassOfSeveralOutputs) {
  Cluster("1x2:h100").run_on_every_rank([](Rank& rank) {
    const auto module = std::make_shared<TwoOutputsImpl>(AxisSet{kTp});
    Job job({.tp_size = 2}, rank, module);
    module->of_scale = torch::full({4}, 1.0 + job.tp);
    auto model = job.accelerator.prepare(module);
    for (int pass = 1; pass <= 2; ++pass) {
      const auto [first, second] = model(job.one());
      job.accelerator.backward(first + second);
      const Tensor gradient = module->named_parameters()["scale"].grad().cpu();
      EXPECT_TRUE(torch::equal(gradient, torch::full({4}, pass * 3 * 3.0))) << pass;
    }
  });
}

// The checkpoint knows what of the gradients is summed, so that it is not summed again.
TEST(GradientSums, GoOnWhereAWindowIsResumed) {
  constexpr char kFolder[] = "/sim/run/saved";
  for (const auto& [cluster, sizes] : rows()) {
    SCOPED_TRACE(cluster);
    const auto disk = std::make_shared<simulator::SimDisk>();
    for (const bool is_rest : {false, true}) {
      Cluster(cluster, {.disk = disk}).run_on_every_rank([&, &sizes = sizes](Rank& rank) {
        AcceleratorOptions options;
        options.gradient_accumulation_plugin =
            GradientAccumulationPlugin{.num_steps = 4, .sync_each_batch = true};
        Job job(sizes, rank, {kTp}, options);
        auto model = job.prepared();
        if (is_rest) job.accelerator.load_state(kFolder);
        for (int i = is_rest ? 2 : 0; i < (is_rest ? 3 : 2); ++i) {
          const auto scope = job.accelerator.accumulate(model);
          // The loss is divided by the window's four micro-steps.
          job.module->of_scale = torch::full({4}, 4.0 * (i + 1) * (1 + job.tp));
          job.accelerator.backward(model(job.one()));
        }
        const Tensor gradient = job.gradient(model);
        const double factor = is_rest ? 1 + 2 + 3 : 1 + 2;
        EXPECT_TRUE(torch::equal(gradient, torch::full_like(gradient, factor * sum_over_tp(sizes))))
            << "rank " << rank.index();
        if (!is_rest) job.accelerator.save_state(kFolder);
      });
    }
  }
}

// ---- What a placement calls equal.

std::string error_of(const char* cluster, const ClusterOptions& options,
                     const std::function<void(Rank&)>& body) {
  try {
    Cluster(cluster, options).run_on_every_rank(body);
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}

// Where values differ along tp, or gradients.
std::string error_of(const ParallelismOptions& sizes, const char* cluster,
                     const ClusterOptions& options, bool in_values) {
  return error_of(cluster, options, [&](Rank& rank) {
    Job job(sizes, rank, AxisSet());
    if (in_values && job.tp == 1) {
      const torch::NoGradGuard no_grad;
      job.module->named_parameters()["scale"][2] = 0.5;
    }
    auto model = job.prepared();
    if (!in_values && job.tp == 1) job.module->of_scale[3] = 0.25;
    job.accelerator.backward(model(job.one()));
  });
}

TEST(EqualAlong, NamesGradientsThatAreNot) {
  EXPECT_THAT(error_of({.tp_size = 2}, "1x2:h100", {}, /*in_values=*/false),
              AllOf(HasSubstr("the gradients along tp of ranks 0,1 diverged: \"scale\" of rank "),
                    HasSubstr("rank 0"), HasSubstr("rank 1"), HasSubstr("first in element 3"),
                    HasSubstr("0.25")));
  // What ranks along the axis have is rows of the scale, of which the last differ.
  EXPECT_THAT(error_of({.dp_shard_size = 2, .tp_size = 2}, "1x4:h100", {}, /*in_values=*/false),
              AllOf(HasSubstr("the gradients along tp of ranks 2,3 diverged: \"scale\""),
                    HasSubstr("first in element 1")));
}

TEST(EqualAlong, NamesValuesThatAreNotWhenAModelIsPrepared) {
  EXPECT_THAT(error_of({.tp_size = 2}, "1x2:h100", {}, /*in_values=*/true),
              AllOf(HasSubstr("the values along tp of ranks 0,1 diverged: \"scale\" of rank "),
                    HasSubstr("first in element 2"), HasSubstr("0.5")));
}

// A rank that is ahead resets its gradients before the others compare theirs.
TEST(EqualAlong, NamesTheFirstElementOfLargeTensors) {
  EXPECT_THAT(error_of("1x2:h100", {},
                       [](Rank& rank) {
                         Job job({.tp_size = 2}, rank, {}, /*size=*/10'000);
                         auto model = job.prepared();
                         if (job.tp == 1) job.module->of_scale.slice(0, 7001, 7003).fill_(0.25);
                         job.accelerator.backward(model(job.one()));
                         model->zero_grad();
                       }),
              AllOf(HasSubstr("the gradients along tp of ranks 0,1 diverged: \"scale\" of rank "),
                    HasSubstr("first in element 7001: ")));
}

// Each rank counts for its copies along the folded axis, but ranks along tp are compared.
TEST(EqualAlong, IsComparedInAFoldedCluster) {
  ClusterOptions options = {.fold = Folding{.spot_checks = 0,
                                            .with_real_numerics = true,
                                            .mesh = Mesh({.dp_replicate = 2, .tp = 2}),
                                            .along = {kDpReplicate}}};
  ASSERT_EQ(Cluster("1x4:h100", options).executed().num_tasks(), 2);
  const ParallelismOptions sizes = {.dp_replicate_size = 2, .tp_size = 2};
  EXPECT_THAT(error_of(sizes, "1x4:h100", options, /*in_values=*/false),
              AllOf(HasSubstr("the gradients along tp of ranks 0,1 diverged: \"scale\" of rank "),
                    HasSubstr("first in element 3")));
  EXPECT_THAT(error_of(sizes, "1x4:h100", options, /*in_values=*/true),
              AllOf(HasSubstr("the values along tp of ranks 0,1 diverged: \"scale\" of rank "),
                    HasSubstr("first in element 2")));
}

// Replicas are DDP's, whose group is along dp_replicate.
TEST(EqualAlong, NamesTheAxisAlongWhichReplicasDrift) {
  const auto drifts = [](Rank& rank) {
    Job job({.dp_replicate_size = 2, .tp_size = 2}, rank, AxisSet());
    auto model = job.prepared();
    job.accelerator.backward(model(job.one()));
    if (rank.index() == 2) {
      const torch::NoGradGuard no_grad;
      job.module->named_parameters()["scale"][1] = 0.5;
    }
    job.accelerator.backward(model(job.one()));
  };
  const ClusterOptions folded = {.fold = Folding{.spot_checks = 0,
                                                 .with_real_numerics = true,
                                                 .mesh = Mesh({.dp_replicate = 2, .tp = 2}),
                                                 .along = {kTp}}};
  for (const ClusterOptions& options : {ClusterOptions(), folded}) {
    EXPECT_THAT(error_of("1x4:h100", options, drifts),
                AllOf(HasSubstr("the model in group \"dp_replicate of ranks 0,2\" diverged: "
                                "\"scale\" of rank "),
                      HasSubstr("first in element 1")));
  }
  ClusterOptions debug = {.detect_drift = false};
  EXPECT_EQ(error_of("1x4:h100", debug, drifts), "no error");
  debug.environment.set("ACCELERATE_DEBUG_MODE", "true");
  EXPECT_THAT(error_of("1x4:h100", debug, drifts),
              AllOf(HasSubstr("the values of \"scale\" differ along dp_replicate"),
                    HasSubstr("rank 0 and rank 2, first in element 1: 1 and 0.5")));
}

// Replicas are compared before passes, in a job without a mesh as well.
TEST(EqualAlong, ComparesReplicasByRanksInDebugMode) {
  const auto error_in = [](const ClusterOptions& options, bool drifts) {
    return error_of("1x2:h100", options, [drifts](Rank& rank) {
      Accelerator accelerator;
      const auto module = std::make_shared<torch::nn::LinearImpl>(64, 1);
      const std::shared_ptr<torch::optim::Optimizer> sgd =
          std::make_shared<torch::optim::SGD>(module->parameters(), torch::optim::SGDOptions(0.1));
      auto [model, optimizer] = accelerator.prepare(module, sgd);
      for (int step = 0; step < 3; ++step) {
        if (drifts && step == 2 && rank.index() == 1) {
          const torch::NoGradGuard no_grad;
          module->bias.fill_(7);
        }
        const Tensor input = torch::full({4, 64}, 1.0 + rank.index()).to(accelerator.device());
        accelerator.backward(model(input).sum());
        optimizer.step();
        optimizer.zero_grad();
      }
    });
  };
  ClusterOptions debug = {.detect_drift = false};
  EXPECT_EQ(error_in(debug, /*drifts=*/true), "no error");
  debug.environment.set("ACCELERATE_DEBUG_MODE", "true");
  EXPECT_EQ(error_in(debug, /*drifts=*/false), "no error");
  EXPECT_THAT(error_in(debug, /*drifts=*/true),
              AllOf(HasSubstr("the values of \"bias\" differ along dp_replicate"),
                    HasSubstr("rank 0 and rank 1, first in element 0: "), HasSubstr(" and 7")));
  // A simulation that compares by itself asks for no values that were not computed.
  ClusterOptions shapes = {.numerics = simulator::Numerics::kShapes, .largest_real_tensor = 64};
  shapes.environment.set("ACCELERATE_DEBUG_MODE", "true");
  EXPECT_EQ(error_in(shapes, /*drifts=*/false), "no error");
}

// Replicas of shards are compared before passes, also by the ranks themselves.
TEST(EqualAlong, NamesTheReplicaWhoseShardsDrift) {
  const auto error_in = [](const char* cluster, const ParallelismOptions& sizes,
                           const ClusterOptions& options, bool drifts) {
    return error_of(cluster, options, [&sizes, drifts](Rank& rank) {
      Job job(sizes, rank, AxisSet());
      auto model = job.prepared();
      job.accelerator.backward(model(job.one()));
      const Mesh mesh(*job.accelerator.parallelism_config());
      const bool is_other = mesh.coordinate(rank.index(), kDpReplicate) == 1 &&
                            mesh.coordinate(rank.index(), kDpShard) == 0;
      for (const TrainedParameter& each : internal::Access::to(model)->trained()) {
        if (!drifts || !is_other || each.name != "scale") continue;
        const torch::NoGradGuard no_grad;
        each.trained[1] = 0.5;
      }
      job.accelerator.backward(model(job.one()));
    });
  };
  ClusterOptions debug = {.detect_drift = false};
  debug.environment.set("ACCELERATE_DEBUG_MODE", "true");
  const ParallelismOptions hybrid = {.dp_replicate_size = 2, .dp_shard_size = 2};
  EXPECT_THAT(error_in("1x4:h100", hybrid, {}, /*drifts=*/true),
              AllOf(HasSubstr("the values along dp_replicate of ranks 0,2 diverged: \"scale\" of "
                              "rank "),
                    HasSubstr("first in element 1"), HasSubstr("0.5")));
  EXPECT_THAT(error_in("1x4:h100", hybrid, debug, /*drifts=*/true),
              AllOf(HasSubstr("the values of \"scale\" differ along dp_replicate"),
                    HasSubstr("rank 0 and rank 2, first in element 1: 1 and 0.5")));
  const ParallelismOptions cut = {.dp_replicate_size = 2, .dp_shard_size = 2, .tp_size = 2};
  EXPECT_THAT(error_in("2x4:h100", cut, debug, /*drifts=*/true),
              HasSubstr("the values of \"scale\" differ along dp_replicate"));
  for (const ClusterOptions& options : {ClusterOptions(), debug}) {
    EXPECT_EQ(error_in("1x4:h100", hybrid, options, /*drifts=*/false), "no error");
    EXPECT_EQ(error_in("2x4:h100", cut, options, /*drifts=*/false), "no error");
  }
}

TEST(GradientSums, AreRefusedAlongPpNamingTheParameter) {
  Cluster("1x2:h100").run_on_every_rank([](Rank& rank) {
    Job job({.pp_size = 2}, rank, {kPp});
    EXPECT_THAT(value_error_of([&] { job.prepared(); }),
                HasSubstr("the layout of \"scale\": gradients are summed along pp"));
  });
}

// As ranks on machines do, which do not see each other.
TEST(EqualAlong, IsComparedByRanksInDebugMode) {
  ClusterOptions options = {.detect_drift = false};
  EXPECT_EQ(error_of({.tp_size = 2}, "1x2:h100", options, /*in_values=*/true), "no error");
  options.environment.set("ACCELERATE_DEBUG_MODE", "true");
  EXPECT_THAT(error_of({.tp_size = 2}, "1x2:h100", options, /*in_values=*/true),
              AllOf(HasSubstr("the values of \"scale\" differ along tp"),
                    HasSubstr("rank 0 and rank 1, first in element 2: 1 and 0.5")));
  EXPECT_THAT(error_of({.tp_size = 2}, "1x2:h100", options, /*in_values=*/false),
              AllOf(HasSubstr("the gradients of \"scale\" differ along tp"),
                    HasSubstr("rank 0 and rank 1, first in element 3: 0 and 0.25")));
}

}  // namespace
}  // namespace accelerate
