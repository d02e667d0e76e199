#include "accelerate/parallel/replicated/ddp.h"

#include <limits>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "accelerate/parallel/replicated/communication_hook.h"
#include "accelerate/testing/fake_runtime.h"
#include "accelerate/testing/threaded_group.h"

namespace accelerate {
namespace {

using Hook = DDPCommunicationHookType;
using ::testing::HasSubstr;

std::string refusal(const DistributedDataParallelKwargs& options) {
  try {
    check_ddp_options(options);
  } catch (const c10::ValueError& error) {
    return error.what_without_backtrace();
  }
  return "none";
}

TEST(CheckDdpOptions, NamesWhatIsWrong) {
  FakeRuntime runtime;
  const RuntimeScope scope(runtime);
  EXPECT_EQ(refusal({}), "none");
  EXPECT_EQ(refusal({.bucket_cap_mb = 1e-5, .comm_hook = Hook::kPowerSgd}), "none");
  EXPECT_THAT(refusal({.dim = 1}), HasSubstr("dim=1"));
  for (const double cap : {0., -1., 1e300, std::nan(""), std::numeric_limits<double>::infinity()}) {
    EXPECT_THAT(refusal({.bucket_cap_mb = cap}), HasSubstr("bucket_cap_mb")) << cap;
  }
  EXPECT_THAT(refusal({.comm_wrapper = Hook::kPowerSgd}), HasSubstr("comm_wrapper"));
  EXPECT_THAT(refusal({.comm_hook = Hook::kBatchedPowerSgd,
                       .comm_state_option = {.matrix_approximation_rank = 0}}),
              HasSubstr("matrix_approximation_rank"));
}

TEST(CheckDdpOptions, IsWhatTheModelAsks) {
  run_ranks(1, [](const auto& group) {
    FakeRuntime runtime;
    const RuntimeScope scope(runtime);
    const auto net = torch::nn::Linear(1, 1).ptr();
    EXPECT_THROW(DistributedDataParallel(net, group, {.dim = 1}), c10::ValueError);
    EXPECT_THROW(DistributedDataParallel(net, group, {.bucket_cap_mb = 0}, /*hook=*/nullptr),
                 c10::ValueError);
  });
}

}  // namespace
}  // namespace accelerate
