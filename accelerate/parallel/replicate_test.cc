#include "accelerate/parallel/replicate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "accelerate/testing/fake_runtime.h"
#include "accelerate/testing/threaded_group.h"
#include "accelerate/testing/value_error.h"

namespace accelerate {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// The group's second rank is the job's third.
TEST(SameModel, IsRefusedWithTheNumbersOfRanksInTheJob) {
  run_ranks(2, [](const ProcessGroupPtr& group) {
    FakeRuntime runtime(Topology::uniform(1 + 2 * group->getRank(), 1, 4));
    const RuntimeScope scope(runtime);
    const torch::nn::Linear model(2, group->getRank() == 1 ? 3 : 2);
    EXPECT_THAT(value_error_of([&] { check_same_model(group, *model); }),
                AllOf(HasSubstr("parameter \"weight\": Float [2, 2] on rank 1, but "),
                      HasSubstr("parameter \"weight\": Float [3, 2] on rank 3 in group")));
  });
}

}  // namespace
}  // namespace accelerate
