#include "accelerate/forward/prepared_model.h"

#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

namespace accelerate {
namespace {

using ::testing::ElementsAre;

using Log = std::vector<std::string>;

class Logging : public Technique {
 public:
  Logging(std::string name, Log& log) : name_(std::move(name)), log_(log) {}
  std::string_view name() const override { return name_; }
  void forward(ForwardPass& pass) override {
    log_.push_back("before " + name_);
    pass.set_synchronises(true);
    pass.proceed();
    log_.push_back("after " + name_);
    std::vector<at::Tensor> outputs = pass.outputs();
    for (at::Tensor& output : outputs) output = output + 1;
    pass.set_outputs(std::move(outputs));
  }

 private:
  const std::string name_;
  Log& log_;
};

class Twice final : public Technique {
 public:
  std::string_view name() const override { return "twice"; }
  void forward(ForwardPass& pass) override {
    synchronises = pass.synchronises();
    pass.proceed();
    pass.proceed();
  }
  NoSyncCount no_sync_count() const override { return count; }
  bool synchronises = false;
  const NoSyncCount count = std::make_shared<int>(0);
};

struct NetImpl : torch::nn::Module {
  explicit NetImpl(Log& log) : log(log) {}
  std::pair<torch::Tensor, std::vector<torch::Tensor>> forward(const torch::Tensor& x) {
    log.push_back("module");
    TORCH_CHECK(x.numel() > 0, "empty");
    return {x, {x * 2}};
  }
  Log& log;
};

class Absent final : public Technique {
 public:
  std::string_view name() const override { return "absent"; }
  void forward(ForwardPass& pass) override { pass.proceed(); }
};

PreparedModel<NetImpl> prepared(Log& log, Techniques techniques) {
  auto net = std::make_shared<NetImpl>(log);
  auto state = std::make_shared<ModelState>(net);
  state->set_techniques(std::move(techniques));
  return {net, state};
}

TEST(PreparedModel, RunsItsTechniquesFromTheOutermostToTheModule) {
  Log log;
  Techniques techniques;
  techniques.push_back(std::make_unique<Logging>("outer", log));
  techniques.push_back(std::make_unique<Logging>("inner", log));
  auto model = prepared(log, std::move(techniques));
  const auto [first, rest] = model(torch::ones({1}));
  EXPECT_THAT(log,
              ElementsAre("before outer", "before inner", "module", "after inner", "after outer"));
  EXPECT_EQ(first.item<double>(), 3);
  EXPECT_EQ(rest.at(0).item<double>(), 4);
}

TEST(PreparedModel, LetsATechniqueRunTheInnerTechniquesAgain) {
  Log log;
  Techniques techniques;
  techniques.push_back(std::make_unique<Logging>("outer", log));
  techniques.push_back(std::make_unique<Twice>());
  techniques.push_back(std::make_unique<Logging>("inner", log));
  auto model = prepared(log, std::move(techniques));
  model(torch::ones({1}));
  EXPECT_THAT(log, ElementsAre("before outer", "before inner", "module", "after inner",
                               "before inner", "module", "after inner", "after outer"));
  EXPECT_TRUE(find_technique<Twice>(model)->synchronises);
  EXPECT_EQ(find_technique<Absent>(model), nullptr);
}

// Keeps the weights on the host.
class OnHost final : public Technique {
 public:
  explicit OnHost(const torch::nn::LinearImpl& net)
      : trained_{.tensors = {{"weight", net.weight, torch::zeros({2, 2})},
                             {"bias", net.bias, net.bias}}} {}
  std::string_view name() const override { return "on_host"; }
  void forward(ForwardPass& pass) override { pass.proceed(); }
  const TrainedInPlace* trained() const override { return &trained_; }

 private:
  const TrainedInPlace trained_;
};

TEST(ModelState, TellsWhatIsTrainedElsewhereFromWhatRanksDivide) {
  const auto net = std::make_shared<torch::nn::LinearImpl>(2, 2);
  ModelState model(net);
  EXPECT_FALSE(model.trains_other_tensors());
  EXPECT_TRUE(model.trained().at(0).trained.is_same(net->weight));
  EXPECT_EQ(model.find_divided(net->weight), nullptr);
  Techniques techniques;
  techniques.push_back(std::make_unique<Absent>());
  techniques.push_back(std::make_unique<OnHost>(*net));
  model.set_techniques(std::move(techniques));
  EXPECT_TRUE(model.trains_other_tensors());
  EXPECT_TRUE(model.is_divided());
  EXPECT_EQ(model.trained().at(0).shards, nullptr);
  EXPECT_FALSE(model.trained().at(0).trained.is_same(net->weight));
  EXPECT_TRUE(model.trained().at(1).trained.is_same(net->bias));
  const TrainedParameter* weight = model.find_divided(net->weight);
  ASSERT_NE(weight, nullptr);
  EXPECT_EQ(weight->name, "weight");
  EXPECT_EQ(model.find_divided(weight->trained), weight);
  EXPECT_EQ(model.find_divided(torch::zeros({2, 2})), nullptr);
  model.set_techniques({});
  EXPECT_FALSE(model.trains_other_tensors());
  EXPECT_EQ(model.find_divided(net->weight), nullptr);
}

TEST(ModelState, OfWhichTheModuleHasPartsIsDivided) {
  ModelState model(std::make_shared<torch::nn::LinearImpl>(2, 2));
  EXPECT_FALSE(model.is_divided());
  model.set_placements({.by_name = {{"bias", {.counts = false}}}, .is_cut = true});
  EXPECT_TRUE(model.is_divided());
  EXPECT_FALSE(model.trains_other_tensors());
  const at::Tensor bias = model.module()->named_parameters()["bias"];
  ASSERT_NE(model.find_divided(bias), nullptr);
  EXPECT_FALSE(model.find_divided(bias)->counts);
}

TEST(PreparedModel, StartsAnewAfterAnException) {
  Log log;
  Techniques techniques;
  techniques.push_back(std::make_unique<Logging>("outer", log));
  auto model = prepared(log, std::move(techniques));
  EXPECT_THROW(model(torch::ones({0})), c10::Error);
  log.clear();
  model(torch::ones({1}));
  EXPECT_THAT(log, ElementsAre("before outer", "module", "after outer"));
}

TEST(PreparedModel, HoldsBackTheTechniquesThatSynchronise) {
  Log log;
  Techniques techniques;
  techniques.push_back(std::make_unique<Logging>("outer", log));
  techniques.push_back(std::make_unique<Twice>());
  auto model = prepared(log, std::move(techniques));
  NoSyncScope::Counts counts;
  internal::Access::to(model)->add_no_sync_counts(counts);
  EXPECT_THAT(counts, ElementsAre(find_technique<Twice>(model)->count));
}

// ---- Techniques that see inputs.

// Calls a function in place of a technique's forward.
class Around final : public Technique {
 public:
  using Forward = std::function<void(ForwardPass&)>;
  explicit Around(Forward forward) : forward_(std::move(forward)) {}
  std::string_view name() const override { return "around"; }
  void forward(ForwardPass& pass) override { forward_(pass); }

 private:
  const Forward forward_;
};

struct SumImpl : torch::nn::Module {
  torch::Tensor forward(const std::map<std::string, torch::Tensor>& batch,
                        const std::optional<torch::Tensor>& mask, int times,
                        std::vector<int64_t>& rows) {
    torch::Tensor sum = batch.at("x").sum() * times;
    TORCH_CHECK(!sum.isnan().item<bool>(), "not a number");
    rows.push_back(batch.at("x").size(0));
    return mask ? sum + mask->sum() : sum;
  }
};

PreparedModel<SumImpl> summing(std::vector<Around::Forward> techniques) {
  auto net = std::make_shared<SumImpl>();
  auto state = std::make_shared<ModelState>(net);
  Techniques all;
  for (auto& each : techniques) all.push_back(std::make_unique<Around>(std::move(each)));
  state->set_techniques(std::move(all));
  return {net, state};
}

// The first half of the rows of each input that has rows.
void halve(ForwardPass& pass) {
  std::vector<torch::Tensor> inputs = pass.inputs();
  for (torch::Tensor& each : inputs) {
    if (each.dim() > 0) each = each.narrow(0, 0, each.size(0) / 2);
  }
  pass.set_inputs(std::move(inputs));
  pass.proceed();
}

TEST(Techniques, ReplaceInputsWhichTheModuleAndInnerTechniquesSee) {
  std::vector<int64_t> inner_rows, rows;
  auto model = summing({&halve, [&inner_rows](ForwardPass& pass) {
                          for (const torch::Tensor& each : pass.inputs()) {
                            inner_rows.push_back(each.size(0));
                          }
                          pass.proceed();
                        }});
  const std::map<std::string, torch::Tensor> batch{{"x", torch::ones({4, 3})}};
  const torch::Tensor sum = model(batch, std::optional(torch::ones({2, 1})), 10, rows);
  EXPECT_EQ(sum.item<double>(), 2 * 3 * 10 + 1);
  EXPECT_THAT(inner_rows, ElementsAre(2, 1));
  EXPECT_THAT(rows, ElementsAre(2));
  EXPECT_EQ(batch.at("x").size(0), 4);
}

TEST(Techniques, RunTheModuleOncePerPartOfTheInputs) {
  auto model = summing({[](ForwardPass& pass) {
    const std::vector<torch::Tensor> inputs = pass.inputs();
    torch::Tensor total = torch::zeros({});
    for (const torch::Tensor& part : inputs.at(0).chunk(2)) {
      pass.set_inputs({part});
      pass.proceed();
      total = total + pass.outputs().at(0);
    }
    pass.set_outputs({total});
  }});
  const std::map<std::string, torch::Tensor> batch{{"x", torch::arange(6.0)}};
  std::vector<int64_t> rows;
  EXPECT_EQ(model(batch, std::nullopt, 1, rows).item<double>(), 15);
  EXPECT_THAT(rows, ElementsAre(3, 3));
}

TEST(Techniques, ChooseTheDtypeOfInputsAfterReplacingThem) {
  at::ScalarType inside = at::kLong;
  auto model = summing({[](ForwardPass& pass) {
                          pass.set_input_dtype(at::kBFloat16);
                          pass.proceed();
                        },
                        [&inside](ForwardPass& pass) {
                          pass.set_inputs({torch::ones({5})});
                          inside = pass.inputs().at(0).scalar_type();
                          pass.proceed();
                        }});
  std::vector<int64_t> rows;
  const std::map<std::string, torch::Tensor> batch{{"x", torch::zeros({2})}};
  const torch::Tensor sum = model(batch, std::nullopt, 2, rows);
  EXPECT_EQ(sum.scalar_type(), at::kBFloat16);
  EXPECT_EQ(sum.item<double>(), 10);
  EXPECT_EQ(inside, at::kFloat);
}

TEST(Techniques, EndInOrderWhenTheModuleThrows) {
  Log log;
  const auto logging = [&log](const std::string& name) {
    return [&log, name](ForwardPass& pass) {
      try {
        pass.proceed();
        log.push_back(name + " returns");
      } catch (const c10::Error&) {
        log.push_back(name + " fails");
        throw;
      }
    };
  };
  auto model = summing({logging("outer"), logging("inner")});
  std::vector<int64_t> rows;
  const auto sum_of = [&](double value) {
    const std::map<std::string, torch::Tensor> batch{{"x", torch::full({2}, value)}};
    return model(batch, std::nullopt, 1, rows).item<double>();
  };
  EXPECT_THROW(sum_of(NAN), c10::Error);
  EXPECT_EQ(sum_of(3), 6);
  EXPECT_THAT(log, ElementsAre("inner fails", "outer fails", "inner returns", "outer returns"));
}

TEST(Techniques, MayProceedAgainAfterAnException) {
  Log log;
  auto model = summing({[](ForwardPass& pass) {
                          EXPECT_THROW(pass.proceed(), c10::Error);
                          pass.set_inputs({torch::ones({2})});
                          pass.proceed();
                        },
                        [&log](ForwardPass& pass) {
                          log.push_back("inner");
                          pass.proceed();
                        }});
  std::vector<int64_t> rows;
  const std::map<std::string, torch::Tensor> batch{{"x", torch::full({2}, NAN)}};
  EXPECT_EQ(model(batch, std::nullopt, 1, rows).item<double>(), 2);
  EXPECT_THAT(log, ElementsAre("inner", "inner"));
}

TEST(Techniques, HaveEachPassToThemselvesWhenPassesNest) {
  std::vector<int64_t> rows;
  PreparedModel<SumImpl>* handle = nullptr;
  int depth = 0;
  auto model = summing({&halve, [&](ForwardPass& pass) {
                          if (++depth < 3) {
                            const std::map<std::string, torch::Tensor> inner{
                                {"x", pass.inputs().at(0) * 10}};
                            const torch::Tensor sum = (*handle)(inner, std::nullopt, 1, rows);
                            pass.set_inputs({pass.inputs().at(0) + sum});
                          }
                          pass.proceed();
                        }});
  handle = &model;
  const std::map<std::string, torch::Tensor> batch{{"x", torch::ones({8})}};
  // Innermost: one row of 100. Around it: two rows of 10 + 100. Outermost: four rows of 1 + 220.
  EXPECT_EQ(model(batch, std::nullopt, 1, rows).item<double>(), 4 * (1 + 220));
  EXPECT_THAT(rows, ElementsAre(1, 2, 4));
}

TEST(Techniques, MustRunTheModule) {
  auto model = summing({[](ForwardPass& /*pass*/) {}});
  std::vector<int64_t> rows;
  const std::map<std::string, torch::Tensor> batch{{"x", torch::ones({1})}};
  EXPECT_THROW(model(batch, std::nullopt, 1, rows), c10::Error);
}

struct SilentImpl : torch::nn::Module {
  void forward(std::vector<torch::Tensor>& xs) {
    for (torch::Tensor& each : xs) each = each * 7;
  }
};

TEST(Techniques, SurroundModulesThatReturnNothing) {
  auto net = std::make_shared<SilentImpl>();
  auto state = std::make_shared<ModelState>(net);
  Techniques techniques;
  techniques.push_back(std::make_unique<Around>([](ForwardPass& pass) {
    pass.set_inputs({pass.inputs().at(0) + 1});
    pass.proceed();
    EXPECT_TRUE(pass.outputs().empty());
  }));
  state->set_techniques(std::move(techniques));
  PreparedModel<SilentImpl> model(net, state);
  std::vector<torch::Tensor> xs{torch::ones({1})};
  model(xs);
  EXPECT_EQ(xs.at(0).item<double>(), 14);
}

}  // namespace
}  // namespace accelerate
