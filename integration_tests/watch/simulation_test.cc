// Every collective method, called by one of two simulated ranks alone.
// One shape each: the report names both ranks.
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "integration_tests/watch/collective_calls.h"
#include "simulator/cluster/cluster.h"

namespace accelerate::watch_tests {
namespace {

using ::testing::HasSubstr;

std::vector<std::string> errors(const CollectiveCall& call, Others others, int caller) {
  simulator::Cluster cluster("1x2");
  std::vector<std::string> errors(2);
  try {
    cluster.run_on_every_rank([&](simulator::Rank& rank) {
      rank.runtime().environment().set("ACCELERATE_DEBUG_MODE", "1");  // Accepted; changes nothing.
      run_rank(call, others, caller);
    });
  } catch (const simulator::ClusterError& error) {
    for (const simulator::RankFailure& failure : error.failures()) {
      errors[failure.rank] = failure.message;
    }
  }
  return errors;
}

std::string rank_text(int rank) { return "rank " + std::to_string(rank); }

class CalledAlone : public ::testing::TestWithParam<CollectiveCall> {};

TEST_P(CalledAlone, NamesTheRankThatEndedItsProgram) {
  for (int caller : {0, 1}) {
    EXPECT_THAT(errors(GetParam(), Others::kEnd, caller)[caller], HasSubstr(rank_text(1 - caller)));
  }
}

TEST_P(CalledAlone, FailsTheRankThatComesLaterAsWell) {
  for (int caller : {0, 1}) {
    for (const std::string& error : errors(GetParam(), Others::kCompute, caller)) {
      EXPECT_THAT(error, HasSubstr(rank_text(1 - caller)));
    }
  }
}

TEST_P(CalledAlone, IsCompared) {
  for (int caller : {0, 1}) {
    for (const std::string& error : errors(GetParam(), Others::kDiffer, caller)) {
      EXPECT_THAT(error, HasSubstr(rank_text(1 - caller) + ": all_gather #"));
    }
  }
}

TEST(Differences, AreErrorsOnAllRanksThatNameBoth) {
  for (const Difference& difference : differences()) {
    SCOPED_TRACE(difference.what);
    try {
      simulator::Cluster("1x3").run_on_every_rank([&](simulator::Rank& rank) {
        Accelerator accelerator;
        difference.call(accelerator, rank.index());
        accelerator.wait_for_everyone();
      });
      ADD_FAILURE() << "no error";
    } catch (const simulator::ClusterError& error) {
      EXPECT_EQ(error.failures().size(), 3);
      for (const simulator::RankFailure& failure : error.failures()) {
        for (const std::string& text : difference.texts) {
          EXPECT_THAT(failure.message, HasSubstr(text)) << failure.rank;
        }
      }
    }
  }
}

// Simulated ranks make a group without a rendezvous, so making a group is not a call there.
std::vector<CollectiveCall> calls_in_a_group() {
  std::vector<CollectiveCall> calls;
  for (const CollectiveCall& call : collective_calls()) {
    if (call.comparable) calls.push_back(call);
  }
  return calls;
}

INSTANTIATE_TEST_SUITE_P(Simulator, CalledAlone, ::testing::ValuesIn(calls_in_a_group()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace accelerate::watch_tests
