#include "simulator/trace/step_shares.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "simulator/trace/recorder.h"

namespace accelerate::simulator {
namespace {

using ::testing::ElementsAre;

class StepShares : public ::testing::Test {
 protected:
  void slice(int64_t start_ns, int64_t end_ns, const char* name, SliceKind kind, int stream = 0,
             double flops = 0, int rank = 0) {
    const uint32_t number = recorder_.intern(name);
    recorder_.slice({.start_ns = start_ns,
                     .end_ns = end_ns,
                     .rank = rank,
                     .stream = stream,
                     .name = number,
                     .kind = kind});
    if (kind == SliceKind::kKernel) recorder_.op_cost(rank, number, end_ns - start_ns, flops, 1);
  }

  Recorder recorder_{{.world_size = 2}};
};

TEST_F(StepShares, AddUpToTheMedianStep) {
  recorder_.step(100);
  slice(90, 120, "aten::mm", SliceKind::kKernel, 0, 1e6);  // 20 of it in the step
  slice(125, 140, "aten::add", SliceKind::kKernel);        // 5 behind the product: nothing
  slice(140, 150, "aten::_flash_attention_forward", SliceKind::kKernel, 0, 1e6);
  slice(130, 170, "ALLREDUCE", SliceKind::kCollective, 1);  // exposed from 150 on
  slice(165, 180, "copy to host", SliceKind::kCopy, 2);
  slice(170, 190, "wait", SliceKind::kWait, 1);
  slice(0, 300, "sleep", SliceKind::kHost, kHostStream);
  slice(100, 200, "aten::mm", SliceKind::kKernel, 0, 1e6, /*rank=*/1);
  recorder_.step(200);
  const Trace trace = recorder_.finish({.device = "h100"});
  // Attention, products, other kernels, communication, copies, nothing.
  const auto spent = step_shares(trace);
  ASSERT_TRUE(spent.has_value());
  EXPECT_THAT(*spent, ElementsAre(10, 20, 15, 40, 0, 15));
}

TEST_F(StepShares, AreNoneWithoutStepsOrTimes) {
  slice(0, 10, "aten::add", SliceKind::kKernel);
  EXPECT_FALSE(step_shares(recorder_.finish({.device = "h100"})).has_value());
  Recorder without_device({});
  without_device.step(10);
  EXPECT_FALSE(step_shares(without_device.finish({})).has_value());
  Recorder full({.max_slices = 1});
  full.slice({.start_ns = 0, .end_ns = 5});
  full.slice({.start_ns = 5, .end_ns = 9});
  full.step(10);
  EXPECT_FALSE(step_shares(full.finish({.device = "h100"})).has_value());
}

}  // namespace
}  // namespace accelerate::simulator
