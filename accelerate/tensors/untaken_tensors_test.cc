#include "accelerate/tensors/state_dict.h"

#include <functional>
#include <string>

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

namespace accelerate::internal {
namespace {

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const c10::ValueError& error) {
    return error.what_without_backtrace();
  }
  return "";
}

TEST(UntakenTensors, AreGivenOnce) {
  UntakenTensors tensors({{"a", at::ones({1})}, {"b", at::ones({2})}}, "the state");
  EXPECT_EQ(tensors.take("b").numel(), 2);
  EXPECT_FALSE(tensors.take("b").defined());
  EXPECT_FALSE(tensors.take("c").defined());
  EXPECT_EQ(error_of([&] { tensors.check_all_taken("no parameter has"); }),
            "the state has \"a\", which no parameter has");
  EXPECT_EQ(tensors.take("a").numel(), 1);
  EXPECT_EQ(error_of([&] { tensors.check_all_taken("no parameter has"); }), "");
}

TEST(UntakenTensors, HaveDifferentNames) {
  EXPECT_EQ(error_of([] {
              UntakenTensors tensors({{"a", at::ones({1})}, {"a", at::ones({1})}}, "the state");
            }),
            "the state has two \"a\"");
}

}  // namespace
}  // namespace accelerate::internal
