#include "accelerate/forward/prepared_model.h"

#include <memory>
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

}  // namespace
}  // namespace accelerate
