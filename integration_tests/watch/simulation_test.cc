// Every collective method, called by one of two simulated ranks alone.
// One shape each: the report names both ranks.
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

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

// Rank 1 has two losses in its first step, each with a backward pass, and the others have one. What
// rank 1 sends of the second is of the size of what the others send in their next step.
TEST(BackwardPasses, OfOneRankAloneAreErrorsThatNameThePass) {
  using Hook = DDPCommunicationHookType;
  for (const DistributedDataParallelKwargs& options :
       {DistributedDataParallelKwargs{}, DistributedDataParallelKwargs{.comm_hook = Hook::kBf16},
        DistributedDataParallelKwargs{.find_unused_parameters = true}}) {
    const auto train = [&](bool alone) {
      simulator::Cluster("1x3").run_on_every_rank([&](simulator::Rank& rank) {
        Accelerator accelerator({.kwargs_handlers = {options}});
        torch::nn::Linear net(2, 1);
        torch::optim::SGD sgd(net->parameters(), 0.1);
        auto [model, optimizer] = accelerator.prepare(net, sgd);
        for (int step = 0; step < 4; ++step) {
          const torch::Tensor output = model(torch::ones({1, 2}));
          accelerator.backward(output.sum(), {.retain_graph = true});
          // Gradient buckets are put together anew before the second step.
          if (step == 2 && (!alone || rank.index() == 1)) {
            accelerator.backward(output.pow(2).sum());
          }
          optimizer.step();
          optimizer.zero_grad();
        }
      });
    };
    EXPECT_NO_THROW(train(/*alone=*/false));
    try {
      train(/*alone=*/true);
      ADD_FAILURE() << "no error";
    } catch (const simulator::ClusterError& error) {
      EXPECT_EQ(error.failures().size(), 3);
      for (const simulator::RankFailure& failure : error.failures()) {
        EXPECT_THAT(failure.message, HasSubstr("gradients of backward pass 2 since the last step"));
        EXPECT_THAT(failure.message, HasSubstr("rank 1: all_reduce #"));
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
