// What each engine makes of a backward pass, of clipping, and of a user's calls of what is
// prepared.
#include "accelerate/step/step_engine.h"

#include <limits>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "accelerate/forward/prepared_model.h"
#include "accelerate/forward/technique.h"
#include "accelerate/optim/accelerated_optimizer.h"
#include "accelerate/optim/accelerated_scheduler.h"
#include "accelerate/optim/lomo.h"
#include "accelerate/optim/schedulers/decay.h"
#include "accelerate/runtime/runtime.h"
#include "accelerate/step/lomo_engine.h"
#include "accelerate/step/loop_engine.h"
#include "accelerate/step/training_state.h"
#include "accelerate/step/xla_engine.h"
#include "accelerate/step/zero_engine.h"
#include "accelerate/tensors/state_dict.h"
#include "accelerate/testing/threaded_group.h"
#include "accelerate/testing/value_error.h"

namespace accelerate::internal {
namespace {

using ::testing::HasSubstr;
using Numbers = std::vector<float>;
using OptimizerPtr = std::shared_ptr<torch::optim::Optimizer>;

at::Tensor made_weight() { return at::zeros({2}).requires_grad_(); }

Numbers numbers_of(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.detach().contiguous();
  return Numbers(flat.const_data_ptr<float>(), flat.const_data_ptr<float>() + flat.numel());
}

auto is_near(const Numbers& numbers) {
  return ::testing::Pointwise(::testing::FloatNear(1e-5), numbers);
}

// A loss whose gradient is {3, 4} times the factor, with the norm 5 times the factor.
at::Tensor loss_of(const at::Tensor& weight, double factor = 1) {
  return (weight * at::tensor({3.0F, 4.0F})).sum() * factor;
}

OptimizerPtr made_sgd(const at::Tensor& weight) {
  return std::make_shared<torch::optim::SGD>(std::vector<at::Tensor>{weight},
                                             torch::optim::SGDOptions(1.0));
}

OptimizerPtr made_lomo(const at::Tensor& weight) {
  return std::make_shared<optim::Lomo>(std::vector<at::Tensor>{weight}, 1.0);
}

// A job's prepared objects and its chain: at first the user's loop, and LOMO's engine around it.
class Job {
 public:
  explicit Job(ProcessGroupPtr ranks = nullptr) : ranks_(std::move(ranks)) {
    training.engine = std::make_shared<LoopEngine>(job_);
    surround<LomoEngine>();
  }

  template <typename Engine>
  Engine& surround() {
    auto engine = std::make_shared<Engine>(job_, training.engine);
    training.engine = engine;
    return *engine;
  }
  StepEngine& engine() const { return *training.engine; }

  AcceleratedOptimizer prepare(OptimizerPtr optimizer) {
    engine().check(*optimizer);
    AcceleratedOptimizer prepared(std::move(optimizer), gradients,
                                  {.scaler = training.precision.scaler()});
    const std::shared_ptr<SharedOptimizer>& shared = Access::to(prepared);
    shared->owner = training.engine;
    engine().prepare(shared, ranks_);
    register_in(training.optimizers, shared);
    engine().prepare_models();
    return prepared;
  }
  // As the schedule of a placeholder.
  AcceleratedScheduler prepare(torch::optim::LRScheduler& scheduler,
                               const AcceleratedOptimizer& optimizer) {
    AcceleratedScheduler prepared(scheduler, gradients, {}, {optimizer});
    const std::shared_ptr<SharedScheduler>& shared = Access::to(prepared);
    shared->owner = training.engine;
    engine().prepare(shared);
    return prepared;
  }
  void backward(const at::Tensor& loss) {
    engine().backward(loss, {});
    engine().end_backward();
  }

  GradientState gradients;
  TrainingState training;

 private:
  const StepJob job_{.device = c10::kCPU, .gradients = gradients, .training = training};
  const ProcessGroupPtr ranks_;
};

// With such an engine around the chain, and an optimizer of a weight.
template <typename Engine>
struct JobWith : Job {
  explicit JobWith(ProcessGroupPtr ranks = nullptr,
                   OptimizerPtr (*make)(const at::Tensor& weight) = &made_sgd)
      : Job(std::move(ranks)), around(surround<Engine>()), optimizer(prepare(make(weight))) {}

  Engine& around;
  const at::Tensor weight = made_weight();
  AcceleratedOptimizer optimizer;
};

// ---- The user's loop.

TEST(LoopEngine, StepsAndZeroesWhereTheUserDoes) {
  Job job;
  const at::Tensor weight = made_weight();
  AcceleratedOptimizer optimizer = job.prepare(made_sgd(weight));
  job.backward(loss_of(weight));
  EXPECT_THAT(numbers_of(weight), is_near({0, 0}));
  EXPECT_THAT(numbers_of(weight.grad()), is_near({3, 4}));
  optimizer.step();
  EXPECT_THAT(numbers_of(weight), is_near({-3, -4}));
  EXPECT_TRUE(weight.grad().defined());
  optimizer.zero_grad();
  EXPECT_FALSE(weight.grad().defined());
  EXPECT_FALSE(job.engine().norm().defined());
  job.gradients.set_sync_gradients(false);
  job.backward(loss_of(weight));
  optimizer.step();
  optimizer.zero_grad();
  EXPECT_THAT(numbers_of(weight), is_near({-3, -4})) << "gradients accumulate";
  EXPECT_THAT(numbers_of(weight.grad()), is_near({3, 4}));
}

TEST(LoopEngine, ClipsWhatTheUserNames) {
  Job job;
  const at::Tensor weight = made_weight(), other = made_weight();
  const AcceleratedOptimizer optimizer = job.prepare(made_sgd(weight));
  job.backward(loss_of(weight) + loss_of(other));
  EXPECT_FLOAT_EQ(job.engine().clip_grad_norm({weight}, 1, {}).item<float>(), 5);
  EXPECT_THAT(numbers_of(weight.grad()), is_near({0.6F, 0.8F}));
  EXPECT_THAT(numbers_of(other.grad()), is_near({3, 4}));
  job.engine().clip_grad_value({other}, 3.5);
  EXPECT_THAT(numbers_of(other.grad()), is_near({3, 3.5F}));
}

// Trains another tensor in place of its module's weight, as of what is on the host.
class Elsewhere final : public Technique {
 public:
  Elsewhere(const at::Tensor& weight, const at::Tensor& home)
      : trained_{.tensors = {{"weight", weight, home}}} {}
  std::string_view name() const override { return "elsewhere"; }
  void forward(ForwardPass& pass) override { pass.proceed(); }
  const TrainedInPlace* trained() const override { return &trained_; }

 private:
  const TrainedInPlace trained_;
};

TEST(LoopEngine, ClipsWhatOneRankTrainsInPlaceOfParameters) {
  Job job;
  const auto net =
      std::make_shared<torch::nn::LinearImpl>(torch::nn::LinearOptions(2, 1).bias(false));
  const at::Tensor home = at::zeros({1, 2}).requires_grad_(), beside = made_weight();
  const auto model = std::make_shared<ModelState>(net);
  Techniques techniques;
  techniques.push_back(std::make_unique<Elsewhere>(net->weight, home));
  model->set_techniques(std::move(techniques));
  job.training.models.push_back(model);
  home.mutable_grad() = at::tensor({3.0F, 4.0F}).view({1, 2});
  beside.mutable_grad() = at::tensor({0.0F, 12.0F});
  EXPECT_FLOAT_EQ(job.engine().clip_grad_norm({net->weight, beside}, 1.3, {}).item<float>(), 13);
  EXPECT_THAT(numbers_of(home.grad()), is_near({0.3F, 0.4F}));
  EXPECT_THAT(numbers_of(beside.grad()), is_near({0, 1.2F}));
  EXPECT_FALSE(net->weight.grad().defined());
  job.engine().clip_grad_value({net->weight}, 0.35);
  EXPECT_THAT(numbers_of(home.grad()), is_near({0.3F, 0.35F}));
}

TEST(LoopEngine, ScalesALossAndUnscalesItsGradientsOnce) {
  Job job;
  job.training.precision.choose(PrecisionType::kFp16, /*in_fp8=*/false, {}, DistributedType::kNo,
                                /*group=*/nullptr, Environment());
  const at::Tensor weight = made_weight();
  AcceleratedOptimizer optimizer = job.prepare(made_sgd(weight));
  job.backward(loss_of(weight));
  const auto scale = static_cast<float>(job.training.precision.scaler()->scaler().get_scale());
  EXPECT_GT(scale, 1);
  EXPECT_EQ(numbers_of(weight.grad()), (Numbers{3 * scale, 4 * scale}));
  job.engine().finalise_gradients();
  job.engine().finalise_gradients();
  EXPECT_EQ(numbers_of(weight.grad()), (Numbers{3, 4}));
  optimizer.step();
  EXPECT_EQ(numbers_of(weight), (Numbers{-3, -4}));
}

TEST(LoopEngine, KeepsAGraphThatIsAskedForWithAndWithoutInputs) {
  Job job;
  for (const bool has_inputs : {false, true}) {
    const at::Tensor weight = made_weight();
    BackwardOptions options{.retain_graph = true};
    if (has_inputs) options.inputs = std::vector<at::Tensor>{weight};
    const at::Tensor loss = loss_of(weight.exp());
    job.engine().backward(loss, options);
    EXPECT_FALSE(weight.grad().requires_grad()) << has_inputs;
    EXPECT_NO_THROW(job.engine().backward(loss, options)) << has_inputs;
    EXPECT_THAT(numbers_of(weight.grad()), is_near({6, 8})) << has_inputs;
  }
}

TEST(LoopEngine, LeavesASchedulesMovesToTheUser) {
  Job job;
  const at::Tensor weight = made_weight();
  const AcceleratedOptimizer optimizer = job.prepare(made_sgd(weight));
  optim::StepLR halves(*optimizer, {.step_size = 1, .gamma = 0.5});
  AcceleratedScheduler scheduler = job.prepare(halves, optimizer);
  job.backward(loss_of(weight));
  EXPECT_EQ(scheduler.get_last_lr(), (std::vector<double>{1}));
  scheduler.step();
  EXPECT_EQ(scheduler.get_last_lr(), (std::vector<double>{0.5}));
}

// ---- LOMO.

TEST(LomoEngine, StepsInThePassAndNowhereElse) {
  Job job;
  const at::Tensor weight = made_weight(), other = made_weight();
  AcceleratedOptimizer optimizer = job.prepare(made_lomo(weight));
  AcceleratedOptimizer others = job.prepare(made_sgd(other));
  job.backward(loss_of(weight) + loss_of(other));
  EXPECT_THAT(numbers_of(weight), is_near({-3, -4}));
  EXPECT_FALSE(weight.grad().defined());
  EXPECT_EQ(job.engine().clip_grad_norm({weight}, 1, {}).item<float>(), 0) << "nothing is left";
  optimizer.step();
  optimizer.zero_grad();
  EXPECT_THAT(numbers_of(weight), is_near({-3, -4}));
  EXPECT_THAT(numbers_of(other.grad()), is_near({3, 4})) << "an optimizer of the user's loop";
  others.step();
  EXPECT_THAT(numbers_of(other), is_near({-3, -4}));
}

TEST(LomoEngine, TakesTheRateOfAPassAndNoneOfAutogradsOptions) {
  Job job;
  const at::Tensor weight = made_weight();
  const AcceleratedOptimizer optimizer = job.prepare(made_lomo(weight));
  job.engine().backward(loss_of(weight), {.learning_rate = 0.5});
  EXPECT_THAT(numbers_of(weight), is_near({-1.5F, -2}));
  EXPECT_THAT(
      value_error_of([&] { job.engine().backward(loss_of(weight), {.create_graph = true}); }),
      HasSubstr("none of autograd's options"));
}

// Keeps the weight as it is when a save must have read it.
class Reader final : public OptimizerStateReader {
 public:
  explicit Reader(at::Tensor weight) : weight_(std::move(weight)) {}
  void finish() noexcept override { seen = numbers_of(weight_); }
  Numbers seen;

 private:
  const at::Tensor weight_;
};

TEST(LomoEngine, WaitsForASaveThatReads) {
  Job job;
  const at::Tensor weight = made_weight();
  AcceleratedOptimizer optimizer = job.prepare(made_lomo(weight));
  const auto reader = std::make_shared<Reader>(weight);
  Access::to(optimizer)->readers.push_back(reader);
  job.backward(loss_of(weight));
  EXPECT_EQ(reader->seen, (Numbers{0, 0}));
  EXPECT_THAT(numbers_of(weight), is_near({-3, -4}));
}

TEST(LomoEngine, IsThereAsLongAsOneSuchOptimizer) {
  Job job;
  auto* const lomo = find_engine<LomoEngine>(&job.engine());
  ASSERT_NE(lomo, nullptr);
  const at::Tensor weight = made_weight();
  EXPECT_THAT(value_error_of([&] { lomo->fused_backward(loss_of(weight), std::nullopt); }),
              HasSubstr("no prepared optimizer steps during the backward pass"));
  AcceleratedOptimizer first = job.prepare(made_lomo(weight));
  AcceleratedOptimizer second = job.prepare(made_lomo(weight));
  EXPECT_THAT(value_error_of([&] { job.backward(loss_of(weight)); }),
              HasSubstr("2 prepared optimizers step during the backward pass"));
  first.reset();
  EXPECT_TRUE(lomo->has_optimizer());
  job.backward(loss_of(weight));
  EXPECT_FALSE(weight.grad().defined());
  second.reset();
  EXPECT_FALSE(lomo->has_optimizer());
  job.backward(loss_of(weight));
  EXPECT_THAT(numbers_of(weight.grad()), is_near({3, 4})) << "the user's loop again";
}

TEST(LomoEngine, RefusesAnOptimizerWhoseGradientsWouldBeScaled) {
  Job job;
  job.training.precision.choose(PrecisionType::kFp16, /*in_fp8=*/false, {}, DistributedType::kNo,
                                /*group=*/nullptr, Environment());
  const at::Tensor weight = made_weight();
  EXPECT_THAT(value_error_of([&] { job.prepare(made_lomo(weight)); }), HasSubstr("use bf16"));
  EXPECT_FALSE(find_engine<LomoEngine>(&job.engine())->has_optimizer());
}

// ---- TPUs.

TEST(XlaEngine, AveragesGradientsAtTheStep) {
  run_ranks(2, [](const ProcessGroupPtr& group) {
    const float factor = static_cast<float>(group->getRank()) + 1;
    JobWith<XlaEngine> job(group);
    job.backward(loss_of(job.weight, factor));
    EXPECT_THAT(numbers_of(job.weight.grad()), is_near({3 * factor, 4 * factor})) << "a rank's own";
    EXPECT_THAT(value_error_of([&] { job.optimizer.step([] { return at::Tensor(); }); }),
                HasSubstr("neither scaled nor averaged"));
    job.optimizer.step();
    EXPECT_THAT(numbers_of(job.weight), is_near({-4.5F, -6}));
    EXPECT_THAT(numbers_of(job.weight.grad()), is_near({4.5F, 6}));
  });
}

TEST(XlaEngine, AveragesGradientsBeforeTheyAreClippedAndNotAgainAtTheStep) {
  run_ranks(2, [](const ProcessGroupPtr& group) {
    const float factor = static_cast<float>(group->getRank()) + 1;
    JobWith<XlaEngine> job(group);
    const auto has_averages = [&] {
      return job.engine().state(*Access::to(job.optimizer)).has_averages;
    };
    job.backward(loss_of(job.weight, factor));
    EXPECT_FALSE(has_averages());
    EXPECT_FLOAT_EQ(job.engine().clip_grad_norm({job.weight}, 1, {}).item<float>(), 7.5F);
    EXPECT_TRUE(has_averages());
    EXPECT_TRUE(job.gradients.is_xla_gradients_synced());
    // What the ranks have by now stays, so that it shows whether they average once more.
    job.weight.mutable_grad() = at::full({2}, factor);
    job.optimizer.step();
    EXPECT_THAT(numbers_of(job.weight), is_near({-factor, -factor}));
    EXPECT_FALSE(has_averages());
    EXPECT_FALSE(job.gradients.is_xla_gradients_synced());
  });
}

TEST(XlaEngine, AveragesGradientsBeforeTheirElementsAreClipped) {
  run_ranks(2, [](const ProcessGroupPtr& group) {
    JobWith<XlaEngine> job(group);
    job.backward(loss_of(job.weight, group->getRank() + 1));
    job.engine().clip_grad_value({job.weight}, 5);
    EXPECT_THAT(numbers_of(job.weight.grad()), is_near({4.5F, 5}));
    EXPECT_TRUE(job.gradients.is_xla_gradients_synced());
  });
}

TEST(XlaEngine, GoesOnFromAStateThatHasAverages) {
  run_ranks(2, [](const ProcessGroupPtr& group) {
    const float factor = static_cast<float>(group->getRank()) + 1;
    JobWith<XlaEngine> job(group);
    job.backward(loss_of(job.weight, factor));
    job.engine().load_state(*Access::to(job.optimizer),
                            {.was_skipped = true, .has_averages = true});
    EXPECT_TRUE(job.optimizer.step_was_skipped());
    EXPECT_TRUE(job.engine().state(*Access::to(job.optimizer)).has_averages);
    job.optimizer.step();
    EXPECT_THAT(numbers_of(job.weight), is_near({-3 * factor, -4 * factor}));
    EXPECT_FALSE(job.optimizer.step_was_skipped());
  });
}

TEST(XlaEngine, LeavesALomoOptimizerToItsPass) {
  run_ranks(2, [](const ProcessGroupPtr& group) {
    JobWith<XlaEngine> job(group, &made_lomo);
    job.backward(loss_of(job.weight, group->getRank() + 1));
    EXPECT_THAT(numbers_of(job.weight), is_near({-4.5F, -6})) << "the pass averages";
    EXPECT_FALSE(Access::to(job.optimizer)->averages);
    job.optimizer.step();
    EXPECT_THAT(numbers_of(job.weight), is_near({-4.5F, -6}));
  });
}

// ---- ZeRO.

TEST(ZeroEngine, ClipsStepsZeroesAndSchedulesBehindThePass) {
  Job job;
  job.surround<ZeroEngine>().set_steps({.max_norm = 1});
  const at::Tensor weight = made_weight();
  AcceleratedOptimizer optimizer = job.prepare(made_sgd(weight));
  optim::StepLR halves(*optimizer, {.step_size = 1, .gamma = 0.5});
  AcceleratedScheduler scheduler = job.prepare(halves, optimizer);
  EXPECT_FALSE(job.engine().norm().defined());
  EXPECT_EQ(job.engine().clip_grad_norm({weight}, 9, {}).item<float>(), 0) << "no step yet";
  job.backward(loss_of(weight));
  EXPECT_THAT(numbers_of(weight), is_near({-0.6F, -0.8F}));
  EXPECT_FALSE(weight.grad().defined());
  EXPECT_EQ(scheduler.get_last_lr(), (std::vector<double>{0.5}));
  EXPECT_FLOAT_EQ(job.engine().norm().item<float>(), 5);
  EXPECT_FLOAT_EQ(job.engine().clip_grad_norm({weight}, 1e-9, {}).item<float>(), 5);
  EXPECT_THAT(value_error_of([&] { job.engine().clip_grad_value({weight}, 1); }),
              HasSubstr("there are no gradients left"));
}

TEST(ZeroEngine, GivesTheUsersCallsNoEffect) {
  JobWith<ZeroEngine> job;
  optim::StepLR halves(*job.optimizer, {.step_size = 1, .gamma = 0.5});
  AcceleratedScheduler scheduler = job.prepare(halves, job.optimizer);
  job.weight.mutable_grad() = at::ones({2});
  EXPECT_FALSE(job.optimizer.step().defined());
  job.optimizer.zero_grad();
  scheduler.step();
  EXPECT_THAT(numbers_of(job.weight), is_near({0, 0}));
  EXPECT_TRUE(job.weight.grad().defined());
  EXPECT_EQ(scheduler.get_last_lr(), (std::vector<double>{1}));
  EXPECT_THAT(value_error_of([&] { job.optimizer.step([] { return at::Tensor(); }); }),
              HasSubstr("backward() makes this optimizer's step, without a closure"));
}

TEST(ZeroEngine, StepsWhereGradientsAreSynchronised) {
  JobWith<ZeroEngine> job;
  job.gradients.set_sync_gradients(false);
  job.backward(loss_of(job.weight));
  EXPECT_THAT(numbers_of(job.weight), is_near({0, 0}));
  EXPECT_THAT(numbers_of(job.weight.grad()), is_near({3, 4}));
  job.gradients.set_sync_gradients(true);
  job.backward(loss_of(job.weight));
  EXPECT_THAT(numbers_of(job.weight), is_near({-6, -8})) << "without a limit nothing is clipped";
}

TEST(ZeroEngine, StepsTheOptimizersOfALossEachByItsOwnLimit) {
  Job job;
  ZeroEngine& zero = job.surround<ZeroEngine>();
  const at::Tensor first = made_weight(), second = made_weight(), unused = made_weight();
  const AcceleratedOptimizer free = job.prepare(made_sgd(first));
  zero.set_steps({.max_norm = 1});
  const AcceleratedOptimizer limited = job.prepare(made_sgd(second));
  const AcceleratedOptimizer other = job.prepare(made_sgd(unused));
  optim::StepLR halves(*other, {.step_size = 1, .gamma = 0.5});
  const AcceleratedScheduler scheduler = job.prepare(halves, other);
  job.backward(loss_of(first) + loss_of(second, 2));
  EXPECT_THAT(numbers_of(first), is_near({-3, -4}));
  EXPECT_THAT(numbers_of(second), is_near({-0.6F, -0.8F}));
  EXPECT_THAT(numbers_of(unused), is_near({0, 0}));
  EXPECT_EQ(scheduler.get_last_lr(), (std::vector<double>{1})) << "its optimizer has not stepped";
  EXPECT_FLOAT_EQ(job.engine().norm().item<float>(), 10) << "of the optimizer that stepped last";
}

TEST(ZeroEngine, LeavesTheScheduleOfAStepThatWasSkipped) {
  Job job;
  job.training.precision.choose(PrecisionType::kFp16, /*in_fp8=*/false, {}, DistributedType::kNo,
                                /*group=*/nullptr, Environment());
  job.surround<ZeroEngine>();
  const at::Tensor weight = made_weight();
  AcceleratedOptimizer optimizer = job.prepare(made_sgd(weight));
  optim::StepLR halves(*optimizer, {.step_size = 1, .gamma = 0.5});
  const AcceleratedScheduler scheduler = job.prepare(halves, optimizer);
  job.backward(loss_of(weight, std::numeric_limits<double>::infinity()));
  EXPECT_TRUE(optimizer.step_was_skipped());
  EXPECT_THAT(numbers_of(weight), is_near({0, 0}));
  EXPECT_EQ(scheduler.get_last_lr(), (std::vector<double>{1}));
  job.backward(loss_of(weight));
  EXPECT_FALSE(optimizer.step_was_skipped());
  EXPECT_THAT(numbers_of(weight), is_near({-3, -4}));
  EXPECT_EQ(scheduler.get_last_lr(), (std::vector<double>{0.5}));
}

TEST(ZeroEngine, LeavesEarlierOptimizersToTheUser) {
  Job job;
  const at::Tensor early = made_weight(), late = made_weight();
  AcceleratedOptimizer users = job.prepare(made_sgd(early));
  job.surround<ZeroEngine>();
  const AcceleratedOptimizer its = job.prepare(made_sgd(late));
  job.backward(loss_of(early) + loss_of(late));
  EXPECT_THAT(numbers_of(late), is_near({-3, -4}));
  EXPECT_THAT(numbers_of(early), is_near({0, 0}));
  users.step();
  EXPECT_THAT(numbers_of(early), is_near({-3, -4}));
  users.zero_grad();
  EXPECT_FALSE(early.grad().defined());
}

TEST(ZeroEngine, KeepsWhatItStepsUntilTheJobForgets) {
  Job job;
  job.surround<ZeroEngine>();
  const at::Tensor weight = made_weight();
  OptimizerPtr sgd = made_sgd(weight);
  const std::weak_ptr<torch::optim::Optimizer> watched = sgd;
  job.prepare(std::move(sgd));
  job.backward(loss_of(weight));
  EXPECT_THAT(numbers_of(weight), is_near({-3, -4})) << "without a handle";
  job.training.engine.reset();
  job.training.kept.clear();
  EXPECT_TRUE(watched.expired());
}

TEST(ZeroEngine, SurroundsThePassOfALomoOptimizer) {
  JobWith<ZeroEngine> job(/*ranks=*/nullptr, &made_lomo);
  job.backward(loss_of(job.weight));
  EXPECT_THAT(numbers_of(job.weight), is_near({-3, -4}));
  EXPECT_FALSE(job.engine().norm().defined()) << "the pass leaves nothing to step by";
}

// Could not read what its passes used.
class FailingReads final : public Technique {
 public:
  std::string_view name() const override { return "failing_reads"; }
  void forward(ForwardPass& pass) override { pass.proceed(); }
  void check_reads() override { TORCH_CHECK_VALUE(false, "this read failed"); }
};

TEST(ZeroEngine, LetsGradientsGoAfterAPassWhoseReadsFailed) {
  for (const bool synchronises : {true, false}) {
    JobWith<ZeroEngine> job;
    job.gradients.set_sync_gradients(synchronises);
    const auto model = std::make_shared<ModelState>(std::make_shared<torch::nn::LinearImpl>(2, 1));
    Techniques techniques;
    techniques.push_back(std::make_unique<FailingReads>());
    model->set_techniques(std::move(techniques));
    job.training.models.push_back(model);
    EXPECT_THAT(value_error_of([&] { job.backward(loss_of(job.weight)); }),
                HasSubstr("this read failed"));
    EXPECT_FALSE(job.weight.grad().defined()) << synchronises;
    EXPECT_THAT(numbers_of(job.weight), is_near({0, 0})) << synchronises;
  }
}

class FailingSgd final : public torch::optim::SGD {
 public:
  using SGD::SGD;
  at::Tensor step(LossClosure closure = nullptr) override {
    TORCH_CHECK_VALUE(false, "this step fails");
  }
};

TEST(ZeroEngine, LetsGradientsGoAfterAStepThatFails) {
  Job job;
  job.surround<ZeroEngine>();
  const at::Tensor weight = made_weight();
  const AcceleratedOptimizer optimizer = job.prepare(
      std::make_shared<FailingSgd>(std::vector<at::Tensor>{weight}, torch::optim::SGDOptions(1.0)));
  EXPECT_THAT(value_error_of([&] { job.backward(loss_of(weight)); }), HasSubstr("this step fails"));
  EXPECT_FALSE(weight.grad().defined());
}

}  // namespace
}  // namespace accelerate::internal
