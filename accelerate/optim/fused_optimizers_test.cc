// The multi-tensor optimizers against torch::optim's: equal values in every case, and archives that
// either can read.
#include <cstdint>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "accelerate/optim/fused_optimizers.h"
#include "accelerate/testing/recorded_warnings.h"

namespace accelerate::optim {
namespace {

using ::testing::HasSubstr;
using torch::optim::AdamOptions;
using torch::optim::AdamWOptions;
using torch::optim::Optimizer;
using torch::optim::OptimizerParamGroup;
using torch::optim::SGDOptions;
using Tensors = std::vector<torch::Tensor>;

// One way to train: by our optimizer, or by LibTorch's, of the same kind and with the same options.
struct Pair {
  std::string name;
  std::function<std::unique_ptr<Optimizer>(std::vector<OptimizerParamGroup>)> ours;
  std::function<std::unique_ptr<Optimizer>(std::vector<OptimizerParamGroup>)> theirs;
};

template <typename Ours, typename Theirs, typename Options>
Pair pair_of(std::string name, Options options) {
  return {std::move(name),
          [options](auto groups) { return std::make_unique<Ours>(std::move(groups), options); },
          [options](auto groups) { return std::make_unique<Theirs>(std::move(groups), options); }};
}

Pair adam(std::string name, AdamOptions options) {
  return pair_of<Adam, torch::optim::Adam>("Adam" + name, options);
}
Pair adamw(std::string name, AdamWOptions options) {
  return pair_of<AdamW, torch::optim::AdamW>("AdamW" + name, options);
}
Pair sgd(std::string name, SGDOptions options) {
  return pair_of<SGD, torch::optim::SGD>("SGD" + name, options);
}

std::vector<Pair> all_pairs() {
  return {
      sgd("", SGDOptions(0.1)),
      sgd("WeightDecay", SGDOptions(0.1).weight_decay(0.2)),
      sgd("Momentum", SGDOptions(0.1).momentum(0.9)),
      sgd("Dampening", SGDOptions(0.1).momentum(0.9).dampening(0.3).weight_decay(0.1)),
      sgd("Nesterov", SGDOptions(0.1).momentum(0.9).nesterov(true).weight_decay(0.1)),
      adam("", AdamOptions(1e-2)),
      adam("All", AdamOptions(1e-2).betas({0.8, 0.95}).eps(1e-5).weight_decay(0.1).amsgrad(true)),
      adamw("", AdamWOptions(1e-2)),
      adamw("NoDecay", AdamWOptions(1e-2).weight_decay(0)),
      adamw("All", AdamWOptions(1e-2).betas({0.8, 0.95}).eps(1e-5).amsgrad(true)),
  };
}

class FusedOptimizerTest : public ::testing::TestWithParam<Pair> {};
INSTANTIATE_TEST_SUITE_P(Kinds, FusedOptimizerTest, ::testing::ValuesIn(all_pairs()),
                         [](const auto& info) { return info.param.name; });

// Sizes below, at and above the vector width, none at all, a scalar, several dimensions.
Tensors make_parameters(at::ScalarType dtype = at::kFloat) {
  torch::manual_seed(1);
  Tensors parameters;
  for (const std::vector<int64_t>& shape :
       {std::vector<int64_t>{1}, {}, {0}, {7}, {16}, {33}, {4, 9}, {2, 3, 5}, {1000}}) {
    parameters.push_back(torch::randn(shape).to(dtype).requires_grad_());
  }
  return parameters;
}

void set_gradients(const Tensors& parameters, int step) {
  torch::manual_seed(100 + step);
  for (const torch::Tensor& parameter : parameters) {
    parameter.mutable_grad() = torch::randn(parameter.sizes()).to(parameter.options());
  }
}

void expect_equal(const Tensors& ours, const Tensors& theirs, double tolerance = 1e-6) {
  ASSERT_EQ(ours.size(), theirs.size());
  for (size_t i = 0; i < ours.size(); ++i) {
    EXPECT_TRUE(torch::allclose(ours[i], theirs[i], tolerance, tolerance))
        << "parameter " << i << " of shape " << ours[i].sizes() << " and type " << ours[i].dtype()
        << "\n"
        << (ours[i] - theirs[i]).abs().max();
  }
}

void train(Optimizer& optimizer, const Tensors& parameters, int from, int to) {
  for (int step = from; step < to; ++step) {
    set_gradients(parameters, step);
    optimizer.step();
  }
}

std::string saved(const Optimizer& optimizer) {
  torch::serialize::OutputArchive archive;
  optimizer.save(archive);
  std::ostringstream out;
  archive.save_to(out);
  return out.str();
}

void load(Optimizer& optimizer, const std::string& bytes) {
  std::istringstream in(bytes);
  torch::serialize::InputArchive archive;
  archive.load_from(in);
  optimizer.load(archive);
}

TEST_P(FusedOptimizerTest, EqualsTorch) {
  const Tensors ours = make_parameters();
  const Tensors theirs = make_parameters();
  auto our_optimizer = GetParam().ours({OptimizerParamGroup(ours)});
  auto their_optimizer = GetParam().theirs({OptimizerParamGroup(theirs)});
  for (int step = 0; step < 8; ++step) {
    train(*our_optimizer, ours, step, step + 1);
    train(*their_optimizer, theirs, step, step + 1);
    expect_equal(ours, theirs);
  }
}

TEST_P(FusedOptimizerTest, EqualsTorchInDouble) {
  const Tensors ours = make_parameters(at::kDouble);
  const Tensors theirs = make_parameters(at::kDouble);
  auto our_optimizer = GetParam().ours({OptimizerParamGroup(ours)});
  auto their_optimizer = GetParam().theirs({OptimizerParamGroup(theirs)});
  train(*our_optimizer, ours, 0, 8);
  train(*their_optimizer, theirs, 0, 8);
  expect_equal(ours, theirs, 1e-12);
}

// LibTorch's own rounds to half precision after each operation, where 1e-8 may be nothing, so half
// is compared with what it does in full precision.
TEST_P(FusedOptimizerTest, EqualsTorchWithMixedTypes) {
  auto mixed = [](const std::vector<at::ScalarType>& dtypes) {
    Tensors parameters;
    for (at::ScalarType dtype : dtypes) {
      for (const torch::Tensor& parameter : make_parameters(dtype)) parameters.push_back(parameter);
    }
    return parameters;
  };
  const Tensors ours = mixed({at::kHalf, at::kFloat, at::kBFloat16, at::kDouble});
  const Tensors theirs = mixed({at::kFloat, at::kFloat, at::kFloat, at::kDouble});
  auto our_optimizer = GetParam().ours({OptimizerParamGroup(ours)});
  auto their_optimizer = GetParam().theirs({OptimizerParamGroup(theirs)});
  train(*our_optimizer, ours, 0, 3);
  train(*their_optimizer, theirs, 0, 3);
  for (size_t i = 0; i < ours.size(); ++i) {
    const bool is_half = ours[i].element_size() == 2;
    expect_equal({ours[i].to(theirs[i].scalar_type())}, {theirs[i]}, is_half ? 2e-2 : 1e-6);
  }
}

// Groups with options of their own, changed on the way as a scheduler does.
TEST_P(FusedOptimizerTest, EqualsTorchWithSeveralGroups) {
  const Tensors ours = make_parameters();
  const Tensors theirs = make_parameters();
  auto trained = [](const auto& make, const Tensors& parameters) {
    std::vector<OptimizerParamGroup> groups;
    groups.emplace_back(Tensors(parameters.begin(), parameters.begin() + 4));
    std::unique_ptr<Optimizer> optimizer = make(groups);
    auto options = optimizer->defaults().clone();
    options->set_lr(0.5);
    optimizer->add_param_group(OptimizerParamGroup(
        Tensors(parameters.begin() + 4, parameters.end() - 1), std::move(options)));
    train(*optimizer, parameters, 0, 3);
    optimizer->param_groups()[0].options().set_lr(0.01);
    train(*optimizer, parameters, 3, 5);
    optimizer->add_param_group(OptimizerParamGroup(Tensors{parameters.back()}));
    train(*optimizer, parameters, 5, 8);
    return optimizer;
  };
  auto our_optimizer = trained(GetParam().ours, ours);
  auto their_optimizer = trained(GetParam().theirs, theirs);
  expect_equal(ours, theirs);
}

// A parameter that has no gradient in some steps stays, and falls behind in its step count.
TEST_P(FusedOptimizerTest, EqualsTorchWithGradientsMissing) {
  const Tensors ours = make_parameters();
  const Tensors theirs = make_parameters();
  auto our_optimizer = GetParam().ours({OptimizerParamGroup(ours)});
  auto their_optimizer = GetParam().theirs({OptimizerParamGroup(theirs)});
  for (int step = 0; step < 10; ++step) {
    for (const Tensors* parameters : {&ours, &theirs}) {
      set_gradients(*parameters, step);
      for (size_t i = 0; i < parameters->size(); ++i) {
        if ((step + i) % 3 == 0 || (step == 4)) (*parameters)[i].mutable_grad().reset();
      }
    }
    our_optimizer->step();
    their_optimizer->step();
    expect_equal(ours, theirs);
  }
}

// Layouts that the fused kernel could not walk through, or only if all lie alike.
TEST_P(FusedOptimizerTest, EqualsTorchWhereMemoryLiesOtherwise) {
  auto parameters = [] {
    torch::manual_seed(3);
    return Tensors{
        torch::randn({6, 5}).t().requires_grad_(),                  // dense, transposed
        torch::randn({6, 5}).requires_grad_(),                      // gradient is transposed
        torch::randn({6, 10}).slice(1, 0, 10, 2).requires_grad_(),  // with gaps
        torch::randn({2, 3, 4, 4}).contiguous(at::MemoryFormat::ChannelsLast).requires_grad_(),
        torch::randn({5, 1}).requires_grad_(),  // strides of size 1 differ
    };
  };
  const Tensors ours = parameters();
  const Tensors theirs = parameters();
  auto our_optimizer = GetParam().ours({OptimizerParamGroup(ours)});
  auto their_optimizer = GetParam().theirs({OptimizerParamGroup(theirs)});
  for (int step = 0; step < 4; ++step) {
    for (const Tensors* all : {&ours, &theirs}) {
      set_gradients(*all, step);
      torch::Tensor& transposed = (*all)[1].mutable_grad();
      transposed = transposed.t().contiguous().t();
      (*all)[4].mutable_grad() = (*all)[4].grad().t().contiguous().t();
    }
    our_optimizer->step();
    their_optimizer->step();
    expect_equal(ours, theirs);
  }
}

// What the next backward pass, or zero_grad(set_to_none=false), writes into a gradient must not
// reach the optimizer's state: also where there is no fused kernel, as for half precision on the
// host and for a gradient that lies otherwise.
TEST_P(FusedOptimizerTest, EqualsTorchWhereGradientsAreWrittenInPlace) {
  for (const at::ScalarType dtype : {at::kFloat, at::kHalf}) {
    const Tensors ours = make_parameters(dtype);
    const Tensors theirs = make_parameters();
    auto our_optimizer = GetParam().ours({OptimizerParamGroup(ours)});
    auto their_optimizer = GetParam().theirs({OptimizerParamGroup(theirs)});
    for (int step = 0; step < 3; ++step) {
      set_gradients(theirs, step);
      for (size_t i = 0; i < ours.size(); ++i) {
        torch::Tensor& grad = ours[i].mutable_grad();
        if (step == 0) {
          grad = torch::empty_like(ours[i].detach());
          if (grad.dim() == 2 && dtype == at::kFloat) grad = grad.t().contiguous().t();
        }
        grad.copy_(theirs[i].grad());
      }
      our_optimizer->step();
      their_optimizer->step();
      for (const torch::Tensor& each : ours) each.grad().fill_(1e4);
    }
    for (size_t i = 0; i < ours.size(); ++i) {
      expect_equal({ours[i].to(at::kFloat)}, {theirs[i]}, dtype == at::kHalf ? 2e-2 : 1e-6);
    }
  }
}

// Module::to changes a parameter under its optimizer.
TEST_P(FusedOptimizerTest, EqualsTorchAfterTheParametersMoved) {
  const Tensors ours = make_parameters();
  const Tensors theirs = make_parameters();
  auto our_optimizer = GetParam().ours({OptimizerParamGroup(ours)});
  auto their_optimizer = GetParam().theirs({OptimizerParamGroup(theirs)});
  auto run = [](Optimizer& optimizer, const Tensors& parameters) {
    train(optimizer, parameters, 0, 2);
    for (torch::Tensor parameter : parameters) {
      parameter.mutable_grad().reset();
      parameter.set_data(parameter.detach().clone());
    }
    train(optimizer, parameters, 2, 4);
    parameters[6].mutable_grad().reset();
    torch::Tensor(parameters[6]).set_data(parameters[6].detach().t().contiguous().t());
    train(optimizer, parameters, 4, 6);
  };
  run(*our_optimizer, ours);
  run(*their_optimizer, theirs);
  expect_equal(ours, theirs);
}

TEST_P(FusedOptimizerTest, ArchivesAreInterchangeable) {
  const Tensors never_saved = make_parameters();
  auto reference = GetParam().theirs({OptimizerParamGroup(never_saved)});
  train(*reference, never_saved, 0, 6);
  for (const bool from_ours : {false, true}) {
    const Tensors parameters = make_parameters();
    auto first =
        (from_ours ? GetParam().ours : GetParam().theirs)({OptimizerParamGroup(parameters)});
    train(*first, parameters, 0, 3);
    auto second =
        (from_ours ? GetParam().theirs : GetParam().ours)({OptimizerParamGroup(parameters)});
    load(*second, saved(*first));
    EXPECT_EQ(second->state().size(), first->state().size());
    train(*second, parameters, 3, 6);
    expect_equal(parameters, never_saved);
  }
}

// Loading into an optimizer that has already stepped replaces its state.
TEST_P(FusedOptimizerTest, GoesOnFromWhatWasLoaded) {
  const Tensors parameters = make_parameters();
  auto optimizer = GetParam().ours({OptimizerParamGroup(parameters)});
  train(*optimizer, parameters, 0, 3);
  Tensors kept;
  for (const torch::Tensor& parameter : parameters) kept.push_back(parameter.detach().clone());
  const std::string archive = saved(*optimizer);
  train(*optimizer, parameters, 3, 6);
  Tensors expected;
  for (const torch::Tensor& parameter : parameters) expected.push_back(parameter.detach().clone());
  {
    torch::NoGradGuard no_grad;
    for (size_t i = 0; i < parameters.size(); ++i) torch::Tensor(parameters[i]).copy_(kept[i]);
  }
  load(*optimizer, archive);
  train(*optimizer, parameters, 3, 6);
  for (size_t i = 0; i < parameters.size(); ++i) {
    EXPECT_TRUE(torch::equal(parameters[i], expected[i])) << i;
  }
}

TEST_P(FusedOptimizerTest, ReturnsTheClosuresLossAndUsesItsGradients) {
  const torch::Tensor parameter = torch::ones({4}).requires_grad_();
  auto optimizer = GetParam().ours({OptimizerParamGroup(Tensors{parameter})});
  const torch::Tensor loss = optimizer->step([&] {
    EXPECT_TRUE(at::GradMode::is_enabled());
    optimizer->zero_grad();
    torch::Tensor sum = parameter.square().sum();
    sum.backward();
    return sum;
  });
  EXPECT_EQ(loss.item<float>(), 4);
  EXPECT_TRUE((parameter < 1).all().item<bool>());
  EXPECT_FALSE(optimizer->step().defined());
}

TEST_P(FusedOptimizerTest, NothingToDoIsNoError) {
  auto empty = GetParam().ours({OptimizerParamGroup(Tensors{})});
  empty->step();
  const Tensors parameters = make_parameters();
  auto without_gradients = GetParam().ours({OptimizerParamGroup(parameters)});
  without_gradients->step();
  expect_equal(parameters, make_parameters());
  EXPECT_TRUE(without_gradients->state().empty());
}

TEST_P(FusedOptimizerTest, HoldsNoGradientAfterwards) {
  const torch::Tensor parameter = torch::ones({4}).requires_grad_();
  auto optimizer = GetParam().ours({OptimizerParamGroup(Tensors{parameter})});
  train(*optimizer, {parameter}, 0, 2);
  EXPECT_EQ(parameter.grad().use_count(), 1);
  // This test's, the optimizer's.
  EXPECT_EQ(parameter.use_count(), 2);
}

// As with any other change in place, a graph that still needs the old value is told.
TEST_P(FusedOptimizerTest, BackwardAfterAStepIsAnError) {
  const torch::Tensor parameter = torch::ones({4}).requires_grad_();
  auto optimizer = GetParam().ours({OptimizerParamGroup(Tensors{parameter})});
  const torch::Tensor loss = parameter.square().sum();
  train(*optimizer, {parameter}, 0, 1);
  EXPECT_THROW(loss.backward(), c10::Error);
}

TEST_P(FusedOptimizerTest, NotANumberStaysWhereItIs) {
  const Tensors ours = make_parameters();
  auto optimizer = GetParam().ours({OptimizerParamGroup(ours)});
  set_gradients(ours, 0);
  ours[3].mutable_grad().fill_(NAN);
  optimizer->step();
  for (size_t i = 0; i < ours.size(); ++i) {
    EXPECT_EQ(ours[i].isnan().any().item<bool>(), i == 3) << i;
  }
}

torch::Tensor sparse_ones(int64_t size) { return torch::ones({size}).to_sparse(); }

TEST(Adam, SparseGradientIsAnErrorThatNamesItAndChangesNothing) {
  const Tensors parameters = make_parameters();
  Adam adam({OptimizerParamGroup(Tensors{parameters[4]}),
             OptimizerParamGroup(Tensors{parameters[5], parameters[3]})});
  set_gradients(parameters, 0);
  parameters[3].mutable_grad() = sparse_ones(7);
  try {
    adam.step();
    FAIL();
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("Adam does not support sparse gradients"));
    EXPECT_THAT(error.what(), HasSubstr("parameter 1 of group 1"));
  }
  EXPECT_TRUE(adam.state().empty());
  expect_equal(parameters, make_parameters());
  parameters[3].mutable_grad() = torch::ones({7});
  adam.step();
  EXPECT_EQ(adam.state().size(), 3);
}

TEST(SGD, TakesSparseGradientsAsTorchDoes) {
  const Tensors ours = make_parameters();
  const Tensors theirs = make_parameters();
  SGD our_optimizer(ours, SGDOptions(0.1));
  torch::optim::SGD their_optimizer(theirs, SGDOptions(0.1));
  for (int step = 0; step < 3; ++step) {
    set_gradients(ours, step);
    set_gradients(theirs, step);
    ours[3].mutable_grad() = sparse_ones(7);
    theirs[3].mutable_grad() = sparse_ones(7);
    our_optimizer.step();
    their_optimizer.step();
    expect_equal(ours, theirs);
  }
}

// With a gradient that is the conjugate of what is in memory.
TEST_P(FusedOptimizerTest, TrainsComplexNumbersAsPairsOfRealOnes) {
  torch::manual_seed(2);
  const torch::Tensor pairs = torch::randn({5, 2}).requires_grad_();
  const torch::Tensor numbers = torch::view_as_complex(pairs.detach().clone()).requires_grad_();
  const auto of_pairs = GetParam().ours({OptimizerParamGroup(Tensors{pairs})});
  const auto of_numbers = GetParam().ours({OptimizerParamGroup(Tensors{numbers})});
  for (int step = 0; step < 3; ++step) {
    const torch::Tensor gradient = torch::view_as_complex(torch::randn({5, 2}));
    numbers.mutable_grad() = gradient.conj();
    pairs.mutable_grad() = torch::view_as_real(gradient.conj().resolve_conj()).clone();
    of_pairs->step();
    of_numbers->step();
    expect_equal({torch::view_as_real(numbers.detach())}, {pairs.detach()});
  }
}

TEST(WarningOfComplexParameters, IsOfLibTorchsClassesThatSquareThem) {
  const Tensors real = {torch::zeros({2})}, complex = {torch::zeros({2}, torch::kComplexFloat)};
  const RecordedWarnings warnings;
  const auto count_after = [&](const Optimizer& optimizer) {
    internal::warn_of_complex_parameters(optimizer);
    return warnings.texts().size();
  };
  EXPECT_EQ(count_after(torch::optim::Adam(real)), 0u);
  EXPECT_EQ(count_after(Adam(complex)), 0u);
  EXPECT_EQ(count_after(torch::optim::SGD(complex, SGDOptions(0.1))), 0u);
  EXPECT_EQ(count_after(torch::optim::Adam(complex)), 1u);
  EXPECT_EQ(count_after(torch::optim::RMSprop(complex)), 2u);
}

TEST(Adam, AmsgradMayBeTurnedOnLater) {
  const Tensors parameters = make_parameters();
  Adam adam(parameters, AdamOptions(1e-2));
  train(adam, parameters, 0, 2);
  static_cast<AdamOptions&>(adam.param_groups()[0].options()).amsgrad(true);
  train(adam, parameters, 2, 4);
  const auto& state = static_cast<const torch::optim::AdamParamState&>(
      *adam.state().at(parameters[4].unsafeGetTensorImpl()));
  EXPECT_TRUE((state.max_exp_avg_sq() >= state.exp_avg_sq()).all().item<bool>());
}

TEST(Adam, RefusesTheOptionsThatTorchRefuses) {
  EXPECT_THROW(Adam(make_parameters(), AdamOptions(-1)), c10::Error);
  EXPECT_THROW(AdamW(make_parameters(), AdamWOptions(1e-3).betas({1.0, 0.9})), c10::Error);
  EXPECT_THROW(SGD(make_parameters(), SGDOptions(0.1).nesterov(true)), c10::Error);
}

}  // namespace
}  // namespace accelerate::optim
