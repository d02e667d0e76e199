#include "accelerate/parallel/equal_along.h"

#include <cstddef>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "accelerate/testing/fake_runtime.h"
#include "accelerate/testing/threaded_group.h"

namespace accelerate {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// What ranks 4 and 6 of a job, which gather, find.
std::string error_of(const ProcessGroupPtr& group, const at::Tensor& first,
                     const at::Tensor& second) {
  FakeRuntime runtime;
  const RanksAlong along{.axis = MeshAxis::kTp, .group = group, .ranks = {4, 6}};
  try {
    check_equal_along(along, "values", {{"first", first}, {"second", second}}, runtime,
                      /*gathers=*/true);
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "no error";
}

TEST(EqualAlong, NamesTheFirstTensorAndElementThatDiffer) {
  run_ranks(2, [](const ProcessGroupPtr& group) {
    at::Tensor other = at::zeros({2, 3});
    if (group->getRank() == 1) other[1][2].fill_(7);
    EXPECT_EQ(error_of(group, at::ones({4}), at::ones({})), "no error");
    EXPECT_THAT(error_of(group, at::ones({4}), other),
                AllOf(HasSubstr("the values of \"second\" differ along tp"),
                      HasSubstr("rank 4 and rank 6, first in element 5: 0 and 7")));
  });
}

TEST(EqualAlong, IsOfBytes) {
  run_ranks(2, [](const ProcessGroupPtr& group) {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    const at::Tensor alike = at::tensor({1.0F, nan, -0.0F});
    EXPECT_EQ(error_of(group, alike, alike.clone()), "no error");
    const bool is_first = group->getRank() == 0;
    const at::Tensor behind_nan = at::tensor({1.0F, nan, is_first ? 3.0F : 4.0F});
    EXPECT_THAT(error_of(group, alike, behind_nan), HasSubstr("first in element 2: 3 and 4"));
    const at::Tensor zeros = at::tensor({1.0F, 2.0F, is_first ? 0.0F : -0.0F});
    EXPECT_THAT(error_of(group, alike, zeros), HasSubstr("first in element 2: 0 and -0"));
  });
}

TEST(EqualAlong, NamesTheRankOfSeveralThatDiffers) {
  run_ranks(4, [](const ProcessGroupPtr& group) {
    const RanksAlong along{.axis = MeshAxis::kCp, .group = group, .ranks = {1, 3, 5, 7}};
    FakeRuntime runtime;
    const at::Tensor values = at::full({2}, group->getRank() == 2 ? 9 : 4);
    EXPECT_THAT(
        [&] { check_equal_along(along, "values", {{"one", values}}, runtime, /*gathers=*/true); },
        ::testing::ThrowsMessage<c10::Error>(AllOf(
            HasSubstr("along cp"), HasSubstr("rank 1 and rank 5, first in element 0: 4 and 9"))));
  });
}

// One that sees all ranks.
class SeeingRuntime : public FakeRuntime {
 public:
  bool check_replicas(const std::string& /*what*/, const ProcessGroupPtr& /*group*/,
                      const std::vector<int>& /*without*/,
                      const std::vector<std::pair<std::string, at::Tensor>>& tensors) override {
    names = tensors.size();
    return true;
  }

  size_t names = 0;
};

TEST(EqualAlong, IsLeftToARuntimeThatCompares) {
  run_ranks(2, [](const ProcessGroupPtr& group) {
    SeeingRuntime runtime;
    const RanksAlong along{.axis = MeshAxis::kTp, .group = group, .ranks = {4, 6}};
    const at::Tensor differs = at::full({3}, group->getRank());
    EXPECT_NO_THROW(
        check_equal_along(along, "values", {{"differs", differs}}, runtime, /*gathers=*/true));
    EXPECT_EQ(runtime.names, 1);
  });
}

TEST(EqualAlong, ComparesValuesWhateverTheirStridesAre) {
  run_ranks(2, [](const ProcessGroupPtr& group) {
    const at::Tensor values = at::arange(6.0).view({2, 3});
    const at::Tensor turned = values.t().contiguous().t();
    EXPECT_EQ(error_of(group, at::ones({1}), group->getRank() == 0 ? values : turned), "no error");
    // A part of a larger tensor, whose first bytes are equal.
    const at::Tensor part = at::zeros({2, 3}).narrow(1, 0, 2);
    if (group->getRank() == 1) part[1][1].fill_(7);
    EXPECT_THAT(error_of(group, at::ones({1}), part), HasSubstr("first in element 3: 0 and 7"));
  });
}

}  // namespace
}  // namespace accelerate
