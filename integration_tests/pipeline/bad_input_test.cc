// What programs are told about stages, schedules and batches that do not fit: one sentence each,
// with the nearest thing that works, on all ranks.
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "absl/strings/str_cat.h"
#include "accelerate/accelerate.h"
#include "accelerate/config/kwargs_handlers.h"
#include "accelerate/config/model_parts.h"
#include "accelerate/config/pipeline_plan.h"
#include "accelerate/pipeline/schedule.h"
#include "accelerate/step/train_batch.h"
#include "accelerate/testing/recorded_warnings.h"
#include "accelerate/testing/value_error.h"
#include "integration_tests/pipeline/small_pipeline.h"
#include "simulator/cluster/cluster.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::Rank;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using torch::Tensor;
using enum pipeline::ScheduleKind;

// What each of two ranks along pp is told; the same, but for their numbers.
std::vector<std::string> told(const PipelinePlan& plan,
                              const std::function<void(Accelerator&, Rank&)>& program,
                              int64_t ranks = 2) {
  std::vector<std::string> errors(static_cast<size_t>(ranks));
  Cluster(absl::StrCat("1x", ranks, ":h100")).run_on_every_rank([&](Rank& rank) {
    Accelerator accelerator(with_stages({.pp_size = ranks}, plan));
    errors[static_cast<size_t>(rank.index())] = value_error_of([&] { program(accelerator, rank); });
  });
  return errors;
}

std::string told_alike(const PipelinePlan& plan,
                       const std::function<void(Accelerator&, Rank&)>& program, int64_t ranks = 2) {
  const std::vector<std::string> errors = told(plan, program, ranks);
  for (const std::string& error : errors) EXPECT_EQ(error, errors[0]);
  return errors[0];
}

void prepare_small(Accelerator& accelerator, Rank& /*rank*/) {
  accelerator.prepare(small_sequential().ptr());
}

std::string of_plan(const PipelinePlan& plan, int64_t ranks = 2) {
  return told_alike(plan, &prepare_small, ranks);
}

// A window of the small model; `change` changes its batch on one rank.
std::function<void(Accelerator&, Rank&)> window(
    const TrainBatchOptions& options, int64_t rows = 8,
    const std::function<void(Tensor& inputs, int rank)>& change = [](Tensor&, int) {}) {
  return [=](Accelerator& accelerator, Rank& rank) {
    auto model = accelerator.prepare(small_sequential().ptr());
    auto [inputs, labels] = small_batch(rows, 2, 0);
    inputs = inputs.to(accelerator.device());
    change(inputs, rank.index());
    accelerator.train_batch(model, std::pair(inputs, labels.to(accelerator.device())), &small_loss,
                            options);
  };
}

TEST(BadStages, AreMoreThanParts) {
  EXPECT_THAT(of_plan({.schedule = kInterleaved, .stages_per_rank = 5}),
              HasSubstr("a model of 8 parts cannot have 10 stages; it can have 8 at most"));
}

TEST(BadStages, BeginAtNamesThatAreNotParts) {
  EXPECT_THAT(of_plan({.split_points = {"lest"}}),
              AllOf(HasSubstr("a stage is to begin at \"lest\", which is not a part"),
                    HasSubstr("did you mean \"last\"")));
  EXPECT_THAT(of_plan({.split_points = {"4", "2"}}, 3),
              HasSubstr("\"2\" behind one that begins at \"4\""));
  EXPECT_THAT(of_plan({.split_points = {"first"}}), HasSubstr("the first part"));
  EXPECT_THAT(of_plan({.split_points = {"2", "4"}}),
              HasSubstr("2 split points make 3 stages, but the ranks along pp have 2 together; "
                        "name 1 parts"));
}

TEST(BadStages, HaveOtherWeightsThanParts) {
  EXPECT_THAT(of_plan({.weights = {1, 2}}), HasSubstr("2 weights for a model of 8 parts"));
}

TEST(BadStages, AreSeveralARankInSchedulesWithOne) {
  EXPECT_THAT(of_plan({.schedule = k1f1b, .stages_per_rank = 2}),
              HasSubstr("the pipeline schedule 1f1b has 1 stage a rank, but got 2"));
  EXPECT_THAT(of_plan({.schedule = kInterleaved}), HasSubstr("has 2 stages or more a rank"));
  EXPECT_THAT(value_error_of([] {
                const std::vector<KwargsHandler> handlers = {PipelinePlan{.stages_per_rank = 0}};
                KwargsHandlers::from_list(handlers);
              }),
              HasSubstr("PipelinePlan: stages_per_rank is 0, less than 1"));
}

// Two parts of a model with three layers.
class TwoPartsImpl : public torch::nn::Module, public ModelParts {
 public:
  explicit TwoPartsImpl(std::vector<ModelPart> parts) : parts_(std::move(parts)) {
    for (const char* name : {"a", "b", "c"}) register_module(name, torch::nn::Linear(2, 2));
  }
  Tensor forward(const Tensor& x) { return x; }
  std::vector<ModelPart> parts() const override { return parts_; }
  Tensor forward_parts(size_t /*begin*/, size_t /*end*/, Tensor x) override { return x; }

 private:
  const std::vector<ModelPart> parts_;
};

TEST(BadParts, LeaveOutAParameterOrNameWhatIsNotThere) {
  const auto of_parts = [](std::vector<ModelPart> parts) {
    return told_alike({}, [parts](Accelerator& accelerator, Rank&) {
      accelerator.prepare(std::make_shared<TwoPartsImpl>(parts));
    });
  };
  EXPECT_THAT(of_parts({{.name = "a"}, {.name = "c"}}),
              HasSubstr("no part of the model uses its parameter \"b.weight\""));
  EXPECT_THAT(of_parts({{.name = "a", .uses = {"a", "b"}}, {.name = "end", .uses = {"d"}}}),
              HasSubstr("part \"end\" uses \"d\", which the model does not have"));
  EXPECT_EQ(of_parts({{.name = "a", .uses = {"a", "b"}}, {.name = "c"}}), "no error");
}

// The output of whose first part grows.
class GrowingImpl : public torch::nn::Module, public ModelParts {
 public:
  Tensor forward(const Tensor& x) { return forward_parts(0, 2, x); }
  std::vector<ModelPart> parts() const override { return {{.name = "a"}, {.name = "b"}}; }
  Tensor forward_parts(size_t begin, size_t end, Tensor x) override {
    if (begin == 0) x = grows ? a_(x).repeat({1, 2, 1}) : a_(x);
    return end == 2 ? b_(x) : x;
  }
  bool grows = false;

 private:
  torch::nn::Linear a_ = register_module("a", torch::nn::Linear(8, 8));
  torch::nn::Linear b_ = register_module("b", torch::nn::Linear(8, 8));
};

TEST(BadStages, GiveAnotherOutputForABatchOfTheSameShape) {
  const auto run = [] {
    Cluster("1x2:h100").run_on_every_rank([](Rank&) {
      Accelerator accelerator(with_stages({.pp_size = 2}));
      const auto made = std::make_shared<GrowingImpl>();
      auto model = accelerator.prepare(made);
      const Tensor inputs = torch::ones({4, 2, 8}).to(accelerator.device());
      const auto train = [&] {
        accelerator.train_batch(model, std::pair(inputs, inputs),
                                [](const Tensor& output, const Tensor&) { return output.mean(); },
                                {.micro_batches = 2});
      };
      train();
      made->grows = true;
      train();
    });
  };
  try {
    run();
    FAIL() << "no error";
  } catch (const std::exception& error) {
    EXPECT_THAT(error.what(),
                HasSubstr("the output of stage 0 for micro-batch 0 is Float [2, 4, 8], but was "
                          "Float [2, 2, 8] before for a batch of the same shape"));
  }
}

class NoPartsImpl : public torch::nn::Module {
 public:
  NoPartsImpl() { register_module("layer", torch::nn::Linear(2, 2)); }
  Tensor forward(const Tensor& x) { return x; }
};

TEST(BadModel, HasNoParts) {
  EXPECT_THAT(told_alike({}, [](Accelerator& accelerator,
                                Rank&) { accelerator.prepare(std::make_shared<NoPartsImpl>()); }),
              AllOf(HasSubstr("pp_size=2, but nothing says which parts a NoParts has"),
                    HasSubstr("ModelParts"), HasSubstr("set pp_size to 1")));
}

TEST(BatchNorm, IsWorthAWarning) {
  Cluster("1x2:h100").run_on_every_rank([](Rank& rank) {
    const RecordedWarnings warnings;
    Accelerator accelerator(with_stages({.pp_size = 2}));
    accelerator.prepare(torch::nn::Sequential(torch::nn::Linear(4, 4), torch::nn::BatchNorm1d(4),
                                              torch::nn::Linear(4, 4))
                            .ptr());
    if (rank.index() != 0) return;
    EXPECT_THAT(warnings.texts(), Contains(AllOf(HasSubstr("\"1.running_mean\""),
                                                 HasSubstr("each micro-batch by itself"))));
  });
}

TEST(BadCalls, AreOfTheModelOrOfBackward) {
  const std::vector<std::string> of_model = told({}, [](Accelerator& accelerator, Rank&) {
    auto model = accelerator.prepare(small_sequential().ptr());
    model(torch::zeros({2, 2, 8}).to(accelerator.device()));
  });
  EXPECT_THAT(of_model[0], HasSubstr("rank 0 along pp has stage 0: first to 3; train with "));
  EXPECT_THAT(of_model[1], HasSubstr("rank 1 along pp has stage 1: 4 to last; train with "));
  const std::vector<std::string> of_backward = told({}, [](Accelerator& accelerator, Rank&) {
    accelerator.backward(torch::zeros({}, torch::requires_grad()));
  });
  EXPECT_THAT(of_backward[1], AllOf(HasSubstr("backward: rank 1 has stages of a pipeline"),
                                    HasSubstr("train_batch()")));
}

TEST(BadWindows, HaveMoreMicroBatchesThanRows) {
  EXPECT_THAT(told_alike({}, window({.micro_batches = 9})),
              HasSubstr("a batch of 8 rows has no 9 micro-batches; it has 8 at most"));
  EXPECT_THAT(told_alike({}, window({.micro_batches = 0})), HasSubstr("at least 1 micro-batch"));
}

TEST(BadWindows, DoNotDivideIntoGroups) {
  const PipelinePlan interleaved = {.schedule = kInterleaved, .stages_per_rank = 2};
  EXPECT_THAT(told_alike(interleaved, window({.micro_batches = 5})),
              AllOf(HasSubstr("cannot divide 5 micro-batches"), HasSubstr("4 or 6")));
  EXPECT_EQ(told_alike(interleaved, window({.micro_batches = 3})), "no error");
}

TEST(BadWindows, HaveSchedulesOfOtherStages) {
  EXPECT_THAT(told_alike({}, window({.micro_batches = 2, .schedule = kInterleaved})),
              HasSubstr("has 2 stages or more a rank"));
  const pipeline::Schedule own = {.stages = 1, .micro_batches = 1};
  EXPECT_NE(told_alike({}, window({.own_schedule = own})), "no error");
}

// All ranks are told before a window begins, in which they would wait for each other.
TEST(BadOptions, AreAStaticGraphOfReplicasWithStages) {
  Cluster("1x4:h100").run_on_every_rank([&](Rank& rank) {
    AcceleratorOptions options = with_stages({.dp_replicate_size = 2, .pp_size = 2});
    options.kwargs_handlers.emplace_back(DistributedDataParallelKwargs{.static_graph = true});
    Accelerator accelerator(options);
    EXPECT_THAT(value_error_of([&] { prepare_small(accelerator, rank); }),
                AllOf(HasSubstr("pipeline: static_graph"), HasSubstr("leave it out")));
  });
}

TEST(BadBatches, AreNotThoseOfTheOtherRanks) {
  const auto missing = window({.micro_batches = 2}, 8, [](Tensor& inputs, int rank) {
    if (rank == 1) inputs = Tensor();
  });
  for (const std::string& error : told({}, missing)) {
    EXPECT_THAT(error, HasSubstr("rank 1 along pp was given no inputs"));
  }
  const auto longer = window({.micro_batches = 2}, 8, [](Tensor& inputs, int rank) {
    if (rank == 1) inputs = inputs.repeat({1, 2, 1});
  });
  EXPECT_THAT(told_alike({}, longer),
              AllOf(HasSubstr("rank 0 along pp has a batch of Float [8, 2, 8] in 2"),
                    HasSubstr("rank 1 a batch of Float [8, 4, 8] in 2")));
  // The rank that needs no labels is told of them, too.
  const auto shorter = window({.micro_batches = 2}, 8, [](Tensor& inputs, int rank) {
    if (rank == 0) inputs = inputs.narrow(0, 0, 6);
  });
  EXPECT_THAT(told_alike({}, shorter),
              HasSubstr("rank 0: train_batch: a batch has 6 rows of inputs, and 8 of labels"));
}

}  // namespace
}  // namespace accelerate
