#include "accelerate/config/tensor_parallel_plan.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "accelerate/base/tp_plan.h"
#include "accelerate/config/kwargs_handlers.h"
#include "accelerate/testing/value_error.h"

namespace accelerate {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

TEST(TensorParallelPlan, IsReadInTheWordsOfADictionary) {
  const TensorParallelPlan plan =
      tensor_parallel_plan({{"layers.*.down", "rowwise"},
                            {"layers.*.gate_up", "packed_colwise"},
                            {"layers.*.up", "colwise"},
                            {"lm_head", "colwise_rep"},
                            {"norm", "replicate"},
                            {"q_norm", "replicated_with_grad_allreduce"},
                            {"router", "rowwise_rep"}});
  const TensorParallelPlan expected = {
      {.pattern = "layers.*.down", .style = TensorStyle::kRow},
      {.pattern = "layers.*.gate_up", .style = TensorStyle::kColumn, .blocks = {1, 1}},
      {.pattern = "layers.*.up", .style = TensorStyle::kColumn},
      {.pattern = "lm_head", .style = TensorStyle::kColumn, .gather_output = true},
      {.pattern = "norm"},
      {.pattern = "q_norm", .partial_gradient = true},
      {.pattern = "router", .style = TensorStyle::kRow, .split_input = true}};
  EXPECT_EQ(plan, expected);
}

TEST(TensorParallelPlan, KnowsEveryWordAndKeepsTheOrderOfTheDictionary) {
  for (const std::string& word : tp_plan_words()) {
    EXPECT_EQ(tensor_parallel_plan({{"up", word}}).rules.size(), 1) << word;
  }
  const TensorParallelPlan plan =
      tensor_parallel_plan({{"layers.0.up", "replicate"}, {"layers.*.up", "colwise"}});
  EXPECT_EQ(plan.rules[0].pattern, "layers.0.up");
}

TEST(TensorParallelPlan, HasSequenceShardsWhereANormDoes) {
  const TensorParallelPlan plan =
      tensor_parallel_plan({{"norm", "sequence_parallel"}, {"up", "colwise"}});
  EXPECT_TRUE(plan.sequence_parallel);
  EXPECT_EQ(plan.rules[0], (TensorRule{.pattern = "norm", .sequence = true}));
}

TEST(TensorParallelPlan, RefusesAnotherWordWithANearOne) {
  EXPECT_THAT(value_error_of([] { tensor_parallel_plan({{"up", "colwize"}}); }),
              AllOf(HasSubstr("tp_plan: \"up\" is \"colwize\""), HasSubstr("\"colwise\"")));
}

TEST(TensorParallelPlan, IsAHandlerOfAnAccelerator) {
  const TensorParallelPlan plan = {{.pattern = "up", .style = TensorStyle::kColumn}};
  EXPECT_EQ(KwargsHandlers::from_list({plan}).tensor_parallel, plan);
  EXPECT_FALSE(KwargsHandlers::from_list({}).tensor_parallel);
  EXPECT_THAT(value_error_of([&] { KwargsHandlers::from_list({plan, plan}); }),
              HasSubstr("only one TensorParallelPlan can be given"));
}

TEST(TensorParallelPlan, IsOneOfSeveralHandlersWhereItNamesAClass) {
  const TensorParallelPlan of_all = {{.pattern = "up", .style = TensorStyle::kColumn}};
  TensorParallelPlan of_teachers = {{.pattern = "down", .style = TensorStyle::kRow}};
  of_teachers.model_class = "Teacher";
  const KwargsHandlers handlers = KwargsHandlers::from_list({of_teachers, of_all});
  EXPECT_EQ(handlers.tensor_parallel, of_all);
  EXPECT_THAT(handlers.tensor_parallel_by_class, ElementsAre(Pair("Teacher", of_teachers)));
  EXPECT_THAT(value_error_of([&] { KwargsHandlers::from_list({of_teachers, of_teachers}); }),
              HasSubstr("only one TensorParallelPlan for models of class \"Teacher\""));
}

}  // namespace
}  // namespace accelerate
