// Lion, LAMB and schedule-free AdamW, each against its paper's formulas, element by element.
#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "accelerate/optim/foreach_optimizers.h"

namespace accelerate::optim {
namespace {

using ::testing::HasSubstr;
using torch::Tensor;
using Tensors = std::vector<Tensor>;
using Values = std::vector<double>;

Values values_of(const Tensor& tensor) {
  const Tensor flat = tensor.detach().to(torch::kDouble).contiguous().reshape({-1});
  return Values(flat.data_ptr<double>(), flat.data_ptr<double>() + flat.numel());
}

double norm_of(const Values& values) {
  double square = 0;
  for (double value : values) square += value * value;
  return std::sqrt(square);
}

// The values of one parameter, updated by the optimizer's formulas.
class Formula {
 public:
  virtual ~Formula() = default;
  virtual void step(const Values& grad, double lr) = 0;
  // Where the gradient is taken, and what is evaluated.
  virtual Values trained() const = 0;
  virtual Values evaluated() const { return trained(); }
};

class LionFormula : public Formula {
 public:
  explicit LionFormula(Values start) : theta_(std::move(start)), m_(theta_.size()) {}
  void step(const Values& grad, double lr) override {
    for (size_t i = 0; i < theta_.size(); ++i) {
      const double c = 0.8 * m_[i] + 0.2 * grad[i];
      theta_[i] -= lr * ((c > 0) - (c < 0) + 0.1 * theta_[i]);
      m_[i] = 0.9 * m_[i] + 0.1 * grad[i];
    }
  }
  Values trained() const override { return theta_; }

 private:
  Values theta_, m_;
};

class LambFormula : public Formula {
 public:
  explicit LambFormula(Values start) : theta_(std::move(start)), m_(theta_.size()), v_(m_) {}
  void step(const Values& grad, double lr) override {
    ++t_;
    Values u(theta_.size());
    for (size_t i = 0; i < theta_.size(); ++i) {
      m_[i] = 0.8 * m_[i] + 0.2 * grad[i];
      v_[i] = 0.9 * v_[i] + 0.1 * grad[i] * grad[i];
      const double m = m_[i] / (1 - std::pow(0.8, t_));
      const double v = v_[i] / (1 - std::pow(0.9, t_));
      u[i] = m / (std::sqrt(v) + 1e-6) + 0.1 * theta_[i];
    }
    const double length = norm_of(theta_), change = norm_of(u);
    const double ratio = length > 0 && change > 0 ? length / change : 1;
    for (size_t i = 0; i < theta_.size(); ++i) theta_[i] -= lr * ratio * u[i];
  }
  Values trained() const override { return theta_; }

 private:
  Values theta_, m_, v_;
  int t_ = 0;
};

class ScheduleFreeFormula : public Formula {
 public:
  explicit ScheduleFreeFormula(Values start) : x_(std::move(start)), z_(x_), v_(x_.size()) {}
  void step(const Values& grad, double lr) override {
    ++k_;
    lr *= std::min(1.0, k_ / 3.0);
    lr_max_ = std::max(lr_max_, lr);
    const double weight = std::pow(k_, 0.5) * lr_max_ * lr_max_;
    weights_ += weight;
    const Values y = trained();
    for (size_t i = 0; i < x_.size(); ++i) {
      v_[i] = 0.9 * v_[i] + 0.1 * grad[i] * grad[i];
      z_[i] -= lr * (grad[i] / (std::sqrt(v_[i] / (1 - std::pow(0.9, k_))) + 1e-8) + 0.1 * y[i]);
      const double c = weight / weights_;
      x_[i] = (1 - c) * x_[i] + c * z_[i];
    }
  }
  Values trained() const override {
    Values y(x_.size());
    for (size_t i = 0; i < x_.size(); ++i) y[i] = 0.2 * z_[i] + 0.8 * x_[i];
    return y;
  }
  Values evaluated() const override { return x_; }

 private:
  Values x_, z_, v_;
  int k_ = 0;
  double lr_max_ = 0, weights_ = 0;
};

struct Kind {
  std::string name;
  double lr;
  std::function<std::unique_ptr<torch::optim::Optimizer>(Tensors)> make;
  std::function<std::unique_ptr<Formula>(Values)> formula;
};

template <typename Optimizer, typename FormulaType, typename Options>
Kind kind(std::string name, double lr, Options options) {
  options.lr(lr).betas({0.8, 0.9}).weight_decay(0.1);
  return {std::move(name), lr,
          [options](Tensors parameters) {
            return std::make_unique<Optimizer>(std::move(parameters), options);
          },
          [](Values start) { return std::make_unique<FormulaType>(std::move(start)); }};
}

class ForeachOptimizerTest : public ::testing::TestWithParam<Kind> {};
INSTANTIATE_TEST_SUITE_P(Kinds, ForeachOptimizerTest,
                         ::testing::Values(kind<Lion, LionFormula>("Lion", 0.02, LionOptions()),
                                           kind<Lamb, LambFormula>("Lamb", 0.02, LambOptions()),
                                           kind<ScheduleFreeAdamW, ScheduleFreeFormula>(
                                               "ScheduleFreeAdamW", 0.05,
                                               ScheduleFreeAdamWOptions().warmup_steps(3).r(0.5))),
                         [](const auto& info) { return info.param.name; });

Tensors make_parameters(at::ScalarType dtype = at::kDouble) {
  torch::manual_seed(6);
  Tensors parameters;
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{3}, {}, {4, 5}, {0}, {33}}) {
    parameters.push_back(torch::randn(shape, torch::kDouble).to(dtype).requires_grad_());
  }
  // A length of zero, which LAMB divides by.
  parameters.push_back(torch::zeros({4}).to(dtype).requires_grad_());
  return parameters;
}

void set_gradients(const Tensors& parameters, int step) {
  torch::manual_seed(100 + step);
  for (const Tensor& parameter : parameters) {
    parameter.mutable_grad() =
        torch::randn(parameter.sizes(), torch::kDouble).to(parameter.scalar_type());
  }
}

void train(torch::optim::Optimizer& optimizer, const Tensors& parameters, int from, int to) {
  for (int step = from; step < to; ++step) {
    set_gradients(parameters, step);
    optimizer.step();
  }
}

void expect_values(const Tensors& parameters, const std::vector<std::unique_ptr<Formula>>& formulas,
                   bool evaluated, double tolerance) {
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Values expected = evaluated ? formulas[i]->evaluated() : formulas[i]->trained();
    EXPECT_THAT(values_of(parameters[i]),
                ::testing::Pointwise(::testing::DoubleNear(tolerance), expected));
  }
}

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

TEST_P(ForeachOptimizerTest, EqualsThePapersFormulas) {
  for (const auto& [dtype, tolerance] :
       {std::pair(at::kDouble, 1e-12), std::pair(at::kFloat, 1e-5)}) {
    const Tensors parameters = make_parameters(dtype);
    auto optimizer = GetParam().make(parameters);
    std::vector<std::unique_ptr<Formula>> formulas;
    for (const Tensor& parameter : parameters) {
      formulas.push_back(GetParam().formula(values_of(parameter)));
    }
    for (int step = 0; step < 8; ++step) {
      // As a scheduler would.
      const double lr = step < 5 ? GetParam().lr : GetParam().lr / 2;
      optimizer->param_groups()[0].options().set_lr(lr);
      set_gradients(parameters, step);
      for (size_t i = 0; i < parameters.size(); ++i) {
        formulas[i]->step(values_of(parameters[i].grad()), lr);
      }
      optimizer->step();
      expect_values(parameters, formulas, false, tolerance);
      if (auto* modes = dynamic_cast<TrainMode*>(optimizer.get())) {
        modes->eval();
        modes->eval();
        expect_values(parameters, formulas, true, tolerance);
        modes->train();
        modes->train();
        expect_values(parameters, formulas, false, tolerance);
      }
    }
  }
}

TEST_P(ForeachOptimizerTest, ParametersWithoutAGradientStay) {
  const Tensors parameters = make_parameters();
  auto optimizer = GetParam().make(parameters);
  optimizer->step();
  for (int step = 0; step < 3; ++step) {
    set_gradients(parameters, step);
    parameters[2].mutable_grad().reset();
    optimizer->step();
  }
  EXPECT_TRUE(torch::equal(parameters[2], make_parameters()[2]));
  EXPECT_FALSE(torch::equal(parameters[4], make_parameters()[4]));
  GetParam().make({})->step();
}

TEST_P(ForeachOptimizerTest, ArchiveContinues) {
  const Tensors parameters = make_parameters();
  const Tensors expected = make_parameters();
  auto uninterrupted = GetParam().make(expected);
  train(*uninterrupted, expected, 0, 6);
  auto first = GetParam().make(parameters);
  train(*first, parameters, 0, 3);
  std::stringstream bytes;
  torch::serialize::OutputArchive out;
  first->save(out);
  out.save_to(bytes);
  torch::serialize::InputArchive in;
  in.load_from(bytes);
  auto second = GetParam().make(parameters);
  second->param_groups()[0].options().set_lr(77);
  second->load(in);
  EXPECT_EQ(second->param_groups()[0].options().get_lr(), GetParam().lr);
  train(*second, parameters, 3, 6);
  for (size_t i = 0; i < parameters.size(); ++i) {
    EXPECT_TRUE(torch::equal(parameters[i], expected[i])) << i;
  }
}

TEST_P(ForeachOptimizerTest, TakesSeveralTypes) {
  Tensors parameters = make_parameters();
  for (const Tensor& parameter : make_parameters(at::kBFloat16)) parameters.push_back(parameter);
  auto optimizer = GetParam().make(parameters);
  train(*optimizer, parameters, 0, 3);
  const Tensors alone = make_parameters();
  auto reference = GetParam().make(alone);
  train(*reference, alone, 0, 3);
  for (size_t i = 0; i < alone.size(); ++i) {
    EXPECT_TRUE(torch::equal(parameters[i], alone[i])) << i;
    const Tensor half = parameters[alone.size() + i];
    EXPECT_FALSE(half.isnan().any().item<bool>()) << i;
  }
  EXPECT_EQ(parameters.back().scalar_type(), at::kBFloat16);
}

TEST_P(ForeachOptimizerTest, TrainsComplexNumbersAsPairsOfRealOnes) {
  torch::manual_seed(2);
  const Tensor pairs = torch::randn({5, 2}, torch::kDouble).requires_grad_();
  const Tensor numbers = torch::view_as_complex(pairs.detach().clone()).requires_grad_();
  const auto of_pairs = GetParam().make({pairs}), of_numbers = GetParam().make({numbers});
  for (int step = 0; step < 3; ++step) {
    const Tensor gradient = torch::randn({5, 2}, torch::kDouble);
    pairs.mutable_grad() = gradient;
    numbers.mutable_grad() = torch::view_as_complex(gradient.clone());
    of_pairs->step();
    of_numbers->step();
    EXPECT_TRUE(torch::allclose(torch::view_as_real(numbers.detach()), pairs.detach()));
  }
}

TEST_P(ForeachOptimizerTest, SparseGradientIsAnErrorAndChangesNothing) {
  const Tensors parameters = make_parameters();
  auto optimizer = GetParam().make(parameters);
  set_gradients(parameters, 0);
  parameters[0].mutable_grad() = torch::ones({3}, torch::kDouble).to_sparse();
  EXPECT_THAT(message_of([&] { optimizer->step(); }),
              HasSubstr("does not support sparse gradients: that of parameter 0 of group 0"));
  EXPECT_TRUE(torch::equal(parameters[4], make_parameters()[4]));
}

TEST_P(ForeachOptimizerTest, TrainsARegression) {
  torch::manual_seed(9);
  const Tensor x = torch::randn({64, 4});
  const Tensor y = x.matmul(torch::tensor({1.0f, -2.0f, 0.5f, 3.0f})).unsqueeze(1) + 1;
  torch::nn::Linear model(4, 1);
  auto optimizer = GetParam().make(model->parameters());
  auto loss = [&] { return torch::mse_loss(model(x), y); };
  const double before = loss().item<double>();
  for (int step = 0; step < 400; ++step) {
    // Weight decay keeps it from the exact solution.
    for (auto& group : optimizer->param_groups()) {
      if (auto* lion = dynamic_cast<LionOptions*>(&group.options())) lion->weight_decay(0);
      if (auto* lamb = dynamic_cast<LambOptions*>(&group.options())) lamb->weight_decay(0);
      if (auto* free = dynamic_cast<ScheduleFreeAdamWOptions*>(&group.options())) {
        free->weight_decay(0);
      }
    }
    const Tensor returned = optimizer->step([&] {
      optimizer->zero_grad();
      Tensor value = loss();
      value.backward();
      return value;
    });
    EXPECT_TRUE(returned.defined());
  }
  if (auto* modes = dynamic_cast<TrainMode*>(optimizer.get())) modes->eval();
  EXPECT_LT(loss().item<double>(), 0.02 * before);
}

TEST(Lamb, RatioStaysWithinItsLimits) {
  // One element: without weight decay the change is 1 after correction, and its ratio the element.
  const auto step_of = [](double value, LambOptions options) {
    const Tensor parameter = torch::tensor({value}, torch::kDouble).requires_grad_();
    parameter.mutable_grad() = torch::ones({1}, torch::kDouble);
    Lamb optimizer(Tensors{parameter}, options.lr(1).eps(0).weight_decay(0));
    optimizer.step();
    return value - parameter.item<double>();
  };
  EXPECT_DOUBLE_EQ(step_of(8, LambOptions()), 8);
  EXPECT_DOUBLE_EQ(step_of(8, LambOptions().max_coeff(5)), 5);
  EXPECT_DOUBLE_EQ(step_of(0.5, LambOptions().min_coeff(2)), 2);
  EXPECT_DOUBLE_EQ(step_of(0, LambOptions().min_coeff(2)), 1) << "there is no ratio";
  // (1 - 0.9) / sqrt(1 - 0.99)
  EXPECT_NEAR(step_of(0, LambOptions().betas({0.9, 0.99}).bias_correction(false)), 1, 1e-12);
  EXPECT_NEAR(step_of(0, LambOptions().betas({0.8, 0.99}).bias_correction(false)), 2, 1e-12);
}

TEST(ScheduleFreeAdamW, StepInEvaluationModeSaysWhatToCall) {
  const Tensors parameters = make_parameters();
  ScheduleFreeAdamW optimizer(parameters);
  train(optimizer, parameters, 0, 1);
  optimizer.eval();
  EXPECT_THAT(message_of([&] { optimizer.step(); }), HasSubstr("call its train() before step()"));
  optimizer.train();
  optimizer.step();
}

TEST(ScheduleFreeAdamW, ArchiveKeepsTheMode) {
  const Tensors parameters = make_parameters();
  ScheduleFreeAdamW first(parameters);
  train(first, parameters, 0, 2);
  first.eval();
  std::stringstream bytes;
  torch::serialize::OutputArchive out;
  first.save(out);
  out.save_to(bytes);
  torch::serialize::InputArchive in;
  in.load_from(bytes);
  ScheduleFreeAdamW second(parameters);
  second.load(in);
  EXPECT_THROW(second.step(), c10::Error);
  second.train();
  first.train();  // of the same parameters, twice
  second.step();
}

TEST(Adagrad, IsLibTorchsWithoutStateBeforeTheFirstStep) {
  const auto options = torch::optim::AdagradOptions(0.1).lr_decay(0.2).weight_decay(0.3);
  const Tensors expected = make_parameters(), parameters = make_parameters();
  torch::optim::Adagrad libtorchs(expected, torch::optim::AdagradOptions(options));
  Adagrad ours(parameters, options);
  EXPECT_TRUE(ours.state().empty());
  for (int step = 0; step < 3; ++step) {
    for (const auto& [of, optimizer] :
         {std::pair<Tensors, torch::optim::Optimizer*>(expected, &libtorchs),
          std::pair<Tensors, torch::optim::Optimizer*>(parameters, &ours)}) {
      set_gradients(of, step);
      of[1].mutable_grad().reset();
      optimizer->step();
    }
  }
  for (size_t i = 0; i < parameters.size(); ++i) {
    EXPECT_TRUE(torch::equal(parameters[i], expected[i])) << i;
  }
  EXPECT_EQ(ours.state().size(), parameters.size() - 1);
}

TEST(ForeachOptimizers, GroupsHaveTheOptionsThatTheyWereGiven) {
  auto group = [](double lr) {
    return torch::optim::OptimizerParamGroup({torch::ones({2})}, std::make_unique<LionOptions>(lr));
  };
  std::vector<torch::optim::OptimizerParamGroup> groups{group(0.5)};
  groups.emplace_back(std::vector<torch::Tensor>{torch::ones({2})});
  Lion lion(groups, LionOptions(0.25));
  lion.add_param_group(group(LionOptions().lr()));
  std::vector<double> rates;
  for (const auto& each : lion.param_groups()) rates.push_back(each.options().get_lr());
  EXPECT_EQ(rates, (std::vector{0.5, 0.25, LionOptions().lr()}));
}

TEST(ForeachOptimizers, RefuseBadOptions) {
  const Tensors parameters = make_parameters();
  EXPECT_THROW(Lion(parameters, LionOptions(-1)), c10::ValueError);
  EXPECT_THROW(Lion(parameters, LionOptions(NAN)), c10::ValueError);
  EXPECT_THROW(Lamb(parameters, LambOptions().betas({1.0, 0.9})), c10::ValueError);
  EXPECT_THROW(Lamb(parameters, LambOptions().eps(-1)), c10::ValueError);
  EXPECT_THROW(Lamb(parameters, LambOptions().min_coeff(2).max_coeff(1)), c10::ValueError);
  EXPECT_THROW(ScheduleFreeAdamW(parameters, ScheduleFreeAdamWOptions().betas({0.0, 0.9})),
               c10::ValueError);
}

}  // namespace
}  // namespace accelerate::optim
