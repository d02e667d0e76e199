// Tests of parallel/apply.h, which stands below the rooms that a plan refers to.

#include "accelerate/parallel/apply.h"

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <c10/util/Exception.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include "accelerate/precision/job_precision.h"

namespace accelerate {
namespace {

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
