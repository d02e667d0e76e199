#include "simulator/trace/step_shares.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/string_view.h"
#include "simulator/trace/recorder.h"

namespace accelerate::simulator {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Two ranks, which train a step from 100 to 200.
class SequenceExchangesOfAStep : public ::testing::Test {
 protected:
  void slice(int rank, int64_t start_ns, int64_t end_ns, SliceKind kind = SliceKind::kKernel,
             int stream = 0, int64_t operation = -1) {
    recorder_.slice({.start_ns = start_ns,
                     .end_ns = end_ns,
                     .rank = rank,
                     .stream = stream,
                     .kind = kind,
                     .operation = operation});
  }
  int64_t operation(absl::string_view name, absl::string_view group) {
    return recorder_.operation(
        {.name = recorder_.intern(name), .group = recorder_.intern(group), .ranks = {0, 1}});
  }
  void train(absl::string_view name, absl::string_view group) {
    const int64_t hop = operation(name, group);
    recorder_.step(100);
    slice(0, 90, 150);
    slice(0, 110, 120, SliceKind::kWait, 1, hop);
    slice(0, 120, 170, SliceKind::kCollective, 1, hop);
    slice(1, 120, 170, SliceKind::kCollective, 1, hop);
    slice(1, 160, 190);
    recorder_.step(200);
  }

  Recorder recorder_{{.world_size = 2}};
};

TEST_F(SequenceExchangesOfAStep, AreMeansOverRanks) {
  train("all_to_all_single", "cp of ranks 0,1");
  // 60 and 50 long; 20 and 40 of them have no kernel beside.
  EXPECT_THAT(sequence_exchanges(recorder_.finish({.device = "h100"})),
              ElementsAre(SequenceExchanges{.axis = "cp", .exchange_ns = 55, .exposed_ns = 30}));
}

TEST_F(SequenceExchangesOfAStep, AreThoseOfTheirAxis) {
  train("all_to_all_single", "sp of ranks 0,1");
  EXPECT_THAT(sequence_exchanges(recorder_.finish({.device = "h100"})),
              ElementsAre(SequenceExchanges{.axis = "sp", .exchange_ns = 55, .exposed_ns = 30}));
}

TEST_F(SequenceExchangesOfAStep, AreNoOtherCollectives) {
  train("all_reduce", "cp of ranks 0,1");
  EXPECT_THAT(sequence_exchanges(recorder_.finish({.device = "h100"})), IsEmpty());
}

// As of experts.
TEST_F(SequenceExchangesOfAStep, AreNotThoseOfOtherGroups) {
  train("all_to_all_single", "ep of ranks 0,1");
  EXPECT_THAT(sequence_exchanges(recorder_.finish({.device = "h100"})), IsEmpty());
}

}  // namespace
}  // namespace accelerate::simulator
