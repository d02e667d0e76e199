#include "accelerate/parallel/replicated/reducer_group.h"

#include <string>
#include <vector>

#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "accelerate/comm/watch/collective_call.h"

namespace accelerate::internal {
namespace {

constexpr char kSecond[] = "gradients of backward pass 2 since the last step";

TEST(NamedPasses, AreThoseAfterTheFirstSinceAStep) {
  NamedPasses passes;
  EXPECT_FALSE(passes.prepare(/*steps=*/5, /*reduced=*/true));
  EXPECT_EQ(passes.purpose(), "");
  // Two forward passes before the backward pass.
  EXPECT_FALSE(passes.prepare(/*steps=*/5, /*reduced=*/false));
  EXPECT_TRUE(passes.prepare(/*steps=*/5, /*reduced=*/true));
  EXPECT_EQ(passes.purpose(), kSecond);
  EXPECT_FALSE(passes.prepare(/*steps=*/5, /*reduced=*/false));
  EXPECT_TRUE(passes.prepare(/*steps=*/5, /*reduced=*/true));
  EXPECT_EQ(passes.purpose(), "gradients of backward pass 3 since the last step");
  EXPECT_TRUE(passes.prepare(/*steps=*/6, /*reduced=*/true));
  EXPECT_EQ(passes.purpose(), "");
  // Steps that nobody notes.
  for (int64_t pass = 2; pass < NamedPasses::kMost; ++pass) {
    EXPECT_TRUE(passes.prepare(/*steps=*/6, /*reduced=*/true));
  }
  EXPECT_NE(passes.purpose(), "");
  EXPECT_TRUE(passes.prepare(/*steps=*/6, /*reduced=*/true));
  EXPECT_EQ(passes.purpose(), "");
  EXPECT_FALSE(passes.prepare(/*steps=*/6, /*reduced=*/true));
}

// Notes the purposes of its all-reduces.
class NotingGroup final : public c10d::ProcessGroup {
 public:
  NotingGroup() : c10d::ProcessGroup(/*rank=*/0, /*size=*/1) {}
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& /*tensors*/,
                                           const c10d::AllreduceOptions& /*options*/) override {
    purposes.push_back(CollectivePurpose::current());
    return nullptr;
  }
  std::vector<std::string> purposes;
};

TEST(NamedPasses, AreThePurposesOfTheirAllReduces) {
  const auto noting = c10::make_intrusive<NotingGroup>();
  NamedPasses passes;
  for (int pass = 0; pass < 2; ++pass) {
    passes.prepare(/*steps=*/5, /*reduced=*/true);
    std::vector<at::Tensor> gradients = {at::zeros({2})};
    passes.named(noting)->allreduce(gradients);
  }
  EXPECT_EQ(noting->purposes, std::vector<std::string>({"", kSecond}));
  EXPECT_EQ(CollectivePurpose::current(), "");
}

}  // namespace
}  // namespace accelerate::internal
