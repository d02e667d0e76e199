// Tests of parallel/apply.h, which stands below the rooms that a plan refers to.

#include "accelerate/parallel/apply.h"

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include "accelerate/mesh/axis_set.h"
#include "accelerate/mesh/mesh.h"
#include "accelerate/parallel/layout/model_layout.h"
#include "accelerate/precision/job_precision.h"
#include "accelerate/testing/value_error.h"

namespace accelerate {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Strings = std::vector<std::string>;

// What the functions of rows have done, in order.
thread_local Strings calls;

class Named final : public Technique {
 public:
  explicit Named(std::string_view name) : name_(name) {}

  std::string_view name() const override { return name_; }
  void forward(ForwardPass& pass) override { pass.proceed(); }

 private:
  const std::string_view name_;
};

constexpr char kCut[] = "cut";
constexpr char kCast[] = "cast";
constexpr char kReduced[] = "reduced";

template <const char* name>
void check(const TechniqueContext& /*context*/) {
  calls.push_back(std::string("check ") + name);
}

void refuse(const TechniqueContext& /*context*/) { TORCH_CHECK_VALUE(false, "refused"); }

bool moves(const TechniqueContext& /*context*/) { return true; }
bool leaves(const TechniqueContext& /*context*/) { return false; }
template <const char* name>
bool moves_part(const TechniqueContext& /*context*/) {
  calls.push_back(std::string("move for ") + name);
  return true;
}

// With the names of the techniques that were made before.
template <const char* name>
std::unique_ptr<Technique> make(const TechniqueContext& context) {
  std::string call = std::string("make ") + name;
  for (const auto& technique : context.made) call.append(" after ").append(technique->name());
  calls.push_back(std::move(call));
  return std::make_unique<Named>(name);
}

// Rows of the weight over tp.
std::shared_ptr<const ModelLayout> cuts(const LayoutContext& context) {
  calls.emplace_back(context.layout == nullptr ? "layout" : "layout after another");
  return std::make_shared<const ModelLayout>(
      context.mesh,
      std::vector<TensorPlacement>{
          {.name = "weight", .shape = {2, 2}, .cuts = {{.axis = MeshAxis::kTp, .dim = 0}}},
          {.name = "bias", .shape = {2}}});
}

// The bias as well, beside what is cut already.
std::shared_ptr<const ModelLayout> cuts_bias(const LayoutContext& context) {
  if (context.layout == nullptr) return nullptr;
  std::vector<TensorPlacement> placements = context.layout->placements();
  placements.at(1).cuts = {{.axis = MeshAxis::kTp, .dim = 0}};
  return std::make_shared<const ModelLayout>(context.mesh, std::move(placements));
}

std::shared_ptr<const ModelLayout> cuts_nothing(const LayoutContext& context) {
  calls.emplace_back(context.layout == nullptr ? "none" : "none after another");
  return nullptr;
}

void cut(const TechniqueContext& context) {
  calls.emplace_back("cut");
  const at::NoGradGuard no_grad;
  const at::Tensor weight = context.model.module()->named_parameters()["weight"];
  weight.set_data(weight.detach().narrow(0, context.plan.rank, 1).clone());
}

std::unique_ptr<Technique> make_none(const TechniqueContext& /*context*/) { return nullptr; }
std::unique_ptr<Technique> refuse_to_make(const TechniqueContext& /*context*/) {
  TORCH_CHECK_VALUE(false, "refused");
  return nullptr;
}

// Tells when it is moved.
class Moved final : public torch::nn::LinearImpl {
 public:
  Moved() : LinearImpl(2, 2) {}

  void to(torch::Device /*device*/, bool /*non_blocking*/) override { calls.push_back("move"); }
  using LinearImpl::to;
};

Strings techniques_of(const ModelState& model) {
  Strings names;
  for (const auto& technique : model.techniques()) names.emplace_back(technique->name());
  return names;
}

class ApplyTechniquesTest : public ::testing::Test {
 protected:
  ApplyTechniquesTest() { calls.clear(); }

  // The plan of the second of two ranks along tp.
  ModelPlan plan_with_layout(TechniqueList list) const {
    const Mesh mesh({.tp = 2});
    return {.rank = 1,
            .num_ranks = 2,
            .mesh = mesh,
            .layout = layout_of(list, model_, mesh, handlers_),
            .handlers = handlers_,
            .precision = precision_};
  }
  at::Tensor weight() const { return model_.module()->named_parameters()["weight"]; }

  const KwargsHandlers handlers_;
  const JobPrecision precision_;
  const ModelPlan plan_{.handlers = handlers_, .precision = precision_};
  ModelState model_{std::make_shared<Moved>()};
};

TEST_F(ApplyTechniquesTest, MakesInTheOrderOfTheRowsAndSurroundsByDepth) {
  const TechniqueRow rows[] = {
      {.name = kCut, .depth = 1, .make = &make<kCut>},
      {.name = kCast, .depth = 2, .make = &make<kCast>},
      {.name = "none", .depth = 0, .make = &make_none},
      {.name = kReduced, .depth = 0, .make = &make<kReduced>},
  };
  apply_techniques(rows, model_, plan_);
  EXPECT_EQ(calls,
            (Strings{"make cut", "make cast after cut", "make reduced after cut after cast"}));
  EXPECT_EQ(techniques_of(model_), (Strings{kReduced, kCut, kCast}));
}

TEST_F(ApplyTechniquesTest, ChecksAllBeforeItChangesAnything) {
  TechniqueRow rows[] = {
      {.name = kCut, .check = &check<kCut>, .make = &make<kCut>},
      {.name = kCast, .check = &refuse, .make = &make<kCast>},
  };
  EXPECT_THROW(apply_techniques(rows, model_, plan_, {.moves = true}), c10::ValueError);
  EXPECT_EQ(calls, Strings{"check cut"});
  EXPECT_TRUE(model_.techniques().empty());
  EXPECT_FALSE(model_.is_trained);
  rows[1].check = nullptr;
  calls.clear();
  apply_techniques(rows, model_, plan_, {.moves = true});
  EXPECT_EQ(calls, (Strings{"check cut", "move", "make cut", "make cast after cut"}));
  EXPECT_TRUE(model_.is_trained);
}

TEST_F(ApplyTechniquesTest, ChecksAgainAModelThatKeepsItsTechniques) {
  const TechniqueRow rows[] = {{.name = kCut, .check = &check<kCut>, .make = &make<kCut>}};
  apply_techniques(rows, model_, plan_);
  calls.clear();
  apply_techniques(rows, model_, plan_, {.moves = true});
  EXPECT_EQ(calls, Strings{"check cut"});
  EXPECT_EQ(techniques_of(model_), Strings{kCut});
}

TEST_F(ApplyTechniquesTest, MovesAModelUnlessATechniqueDoes) {
  const TechniqueRow leaving[] = {{.name = kCut, .moves = &leaves}};
  apply_techniques(leaving, model_, plan_);
  EXPECT_EQ(calls, Strings()) << "not asked to";
  apply_techniques(leaving, model_, plan_, {.moves = true});
  EXPECT_EQ(calls, Strings{"move"});
  calls.clear();
  const TechniqueRow moving[] = {{.name = kCut, .moves = &leaves},
                                 {.name = kCast, .moves = &moves}};
  apply_techniques(moving, model_, plan_, {.moves = true});
  EXPECT_EQ(calls, Strings());
}

TEST_F(ApplyTechniquesTest, AsksEachTechniqueForItsPartOfAMove) {
  const TechniqueRow rows[] = {{.name = kCut, .moves = &moves_part<kCut>},
                               {.name = kCast, .moves = &moves_part<kCast>}};
  apply_techniques(rows, model_, plan_, {.moves = true});
  EXPECT_EQ(calls, (Strings{"move for cut", "move for cast"}));
}

// One that has techniques, of a time when it was not to be trained.
TEST_F(ApplyTechniquesTest, TrainsAModelAfterATechniqueHasRefusedIt) {
  TechniqueRow rows[] = {{.name = kCut, .make = &make<kCut>}};
  apply_techniques(rows, model_, plan_, {.trains = false});
  rows[0].make = &refuse_to_make;
  EXPECT_THROW(apply_techniques(rows, model_, plan_), c10::ValueError);
  EXPECT_FALSE(model_.is_trained);
  rows[0].make = &make<kCut>;
  calls.clear();
  apply_techniques(rows, model_, plan_);
  EXPECT_EQ(calls, Strings{"make cut"});
  EXPECT_TRUE(model_.is_trained);
}

TEST_F(ApplyTechniquesTest, CutsAModelAfterAllChecksAndBeforeItMoves) {
  const TechniqueRow rows[] = {
      {.name = kCut, .layout = &cuts, .check = &check<kCut>, .cut = &cut},
      {.name = kCast, .check = &check<kCast>, .make = &make<kCast>},
  };
  const at::Tensor parameter = weight();
  const at::Tensor whole = parameter.detach().clone();
  const ModelPlan plan = plan_with_layout(rows);
  apply_techniques(rows, model_, plan, {.moves = true});
  EXPECT_EQ(calls, (Strings{"layout", "check cut", "check cast", "cut", "move", "make cast"}));
  EXPECT_TRUE(weight().is_same(parameter));
  EXPECT_TRUE(at::equal(parameter, whole.narrow(0, 1, 1)));
  EXPECT_TRUE(model_.placements().is_cut);
  EXPECT_EQ(model_.placements().cuts, plan.layout);
}

TEST_F(ApplyTechniquesTest, CutsNothingWhenAModelIsRefused) {
  const TechniqueRow rows[] = {
      {.name = kCut, .layout = &cuts, .cut = &cut},
      {.name = kCast, .check = &refuse},
  };
  const ModelPlan plan = plan_with_layout(rows);
  EXPECT_THROW(apply_techniques(rows, model_, plan), c10::ValueError);
  EXPECT_EQ(calls, Strings{"layout"});
  EXPECT_EQ(weight().size(0), 2);
}

TEST_F(ApplyTechniquesTest, CutsAModelOnce) {
  const TechniqueRow rows[] = {{.name = kCut, .layout = &cuts, .check = &check<kCut>, .cut = &cut}};
  const ModelPlan plan = plan_with_layout(rows);
  apply_techniques(rows, model_, plan, {.trains = false});
  calls.clear();
  EXPECT_EQ(plan_with_layout(rows).layout, plan.layout);
  apply_techniques(rows, model_, plan_with_layout(rows));
  EXPECT_EQ(calls, Strings{"check cut"});
  EXPECT_TRUE(model_.is_trained);
  EXPECT_EQ(weight().size(0), 1);
}

TEST_F(ApplyTechniquesTest, ARowSeesTheCutsOfThoseBefore) {
  const TechniqueRow none[] = {{.name = kCut, .layout = &cuts_nothing, .cut = &cut}};
  EXPECT_EQ(plan_with_layout(none).layout, nullptr);
  apply_techniques(none, model_, plan_with_layout(none));
  EXPECT_EQ(calls, (Strings{"none", "none"})) << "no layout, no cut";
  EXPECT_EQ(model_.placements().cuts, nullptr);

  calls.clear();
  const ModelState other(std::make_shared<torch::nn::LinearImpl>(2, 2));
  const TechniqueRow some[] = {{.name = kCut, .layout = &cuts_nothing},
                               {.name = kCast, .layout = &cuts},
                               {.name = kReduced, .layout = &cuts_nothing}};
  const auto layout = layout_of(some, other, Mesh({.tp = 2}), handlers_);
  ASSERT_NE(layout, nullptr);
  EXPECT_TRUE(layout->divides().contains(MeshAxis::kTp));
  EXPECT_EQ(calls, (Strings{"none", "layout", "none after another"}));

  // What a later row gives has the place of what it was given.
  const TechniqueRow both[] = {{.name = kCut, .layout = &cuts},
                               {.name = kCast, .layout = &cuts_bias}};
  const auto of_both = layout_of(both, other, Mesh({.tp = 2}), handlers_);
  ASSERT_NE(of_both, nullptr);
  EXPECT_EQ(of_both->find("weight")->cut_axes(), AxisSet{MeshAxis::kTp});
  EXPECT_EQ(of_both->find("bias")->cut_axes(), AxisSet{MeshAxis::kTp});
}

TEST_F(ApplyTechniquesTest, RefusesAModuleThatDoesNotFitItsLayout) {
  const TechniqueRow rows[] = {{.name = kCut, .layout = &cuts, .cut = &cut}};
  apply_techniques(rows, model_, plan_with_layout(rows));
  // As after free_memory: the module is a part, and its state is gone.
  const ModelState again(model_.module());
  EXPECT_THAT(
      value_error_of([&] { layout_of(rows, again, Mesh({.tp = 2}), handlers_); }),
      AllOf(HasSubstr("\"weight\" is [1, 2]"), HasSubstr("[2, 2]"), HasSubstr("was cut before")));
}

TEST_F(ApplyTechniquesTest, FindsACutThatItsLayoutDoesNotHave) {
  const TechniqueRow rows[] = {{.name = kCut, .layout = &cuts}};
  const ModelPlan plan = plan_with_layout(rows);
  EXPECT_THROW(apply_techniques(rows, model_, plan), c10::Error);
  EXPECT_FALSE(model_.is_trained);
}

TEST_F(ApplyTechniquesTest, AddsATechniqueInsideOfThoseThatSurroundIt) {
  const TechniqueRow rows[] = {
      {.name = kReduced, .depth = 0, .make = &make<kReduced>},
      {.name = kCast, .depth = 2, .make = &make<kCast>},
      {.name = kCut, .depth = 1},
  };
  apply_techniques(rows, model_, plan_);
  add_technique(rows, model_, std::make_unique<Named>(kCut));
  EXPECT_EQ(techniques_of(model_), (Strings{kReduced, kCut, kCast}));
}

}  // namespace
}  // namespace accelerate
