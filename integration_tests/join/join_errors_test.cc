// An error in a join scope names the rank that caused it, and no rank waits forever.
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "accelerate/accelerate.h"
#include "accelerate/parallel/replicated/ddp.h"
#include "simulator/cluster/cluster.h"
#include "simulator/testing/topology_suite.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::ClusterError;
using simulator::Rank;
using simulator::RankFailure;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kRanks = 3;

struct Setting {
  Rank& rank;
  Accelerator& accelerator;
  PreparedModel<torch::nn::LinearImpl>& first;
  PreparedModel<torch::nn::LinearImpl>& second;

  void train(PreparedModel<torch::nn::LinearImpl>& model, int passes) const {
    for (int i = 0; i < passes; ++i) {
      model(torch::ones({2, 4}).to(accelerator.device())).mean().backward();
    }
  }
};

// Each rank's failure, "" where there was none.
std::vector<std::string> failures(const std::string& spec,
                                  const std::function<void(const Setting&)>& body) {
  Cluster cluster(spec, {.seed = simulator::seed_of_run(5)});
  std::vector<std::string> messages(cluster.world_size());
  try {
    cluster.run_on_every_rank([&](Rank& rank) {
      Accelerator accelerator;
      torch::nn::Linear one(4, 1), other(4, 1);
      auto [first, second] = accelerator.prepare(one, other);
      body({rank, accelerator, first, second});
    });
  } catch (const ClusterError& error) {
    for (const RankFailure& failure : error.failures()) {
      messages[failure.rank] = failure.message;
    }
  }
  return messages;
}

// Each of the three ranks has a part of its own; the messages name them.
TOPOLOGY_SUITE(JoinErrors, .also = {"1x3", "1x3:h100"}, .min_ranks = 3, .max_ranks = 3,
               .hardware = simulator::Hardware::kNoTpu);

TEST_P(JoinErrors, AnotherNumberOfModels) {
  const auto messages = failures(GetParam(), [](const Setting& my) {
    std::vector<Joinable*> models{find_technique<DistributedDataParallel>(my.first)};
    if (my.rank.index() == 1) models.push_back(find_technique<DistributedDataParallel>(my.second));
    JoinScope join(models, true);
  });
  for (const std::string& message : messages) {
    EXPECT_THAT(message, AllOf(HasSubstr("rank 1 opens a scope for 2 models"),
                               HasSubstr("rank 2 opens a scope for 1 model ")));
  }
}

TEST_P(JoinErrors, AnotherOrderOfModels) {
  const auto messages = failures(GetParam(), [](const Setting& my) {
    std::vector<Joinable*> models{find_technique<DistributedDataParallel>(my.first),
                                  find_technique<DistributedDataParallel>(my.second)};
    if (my.rank.index() == 0) std::swap(models[0], models[1]);
    JoinScope join(models, true);
  });
  for (const std::string& message : messages) {
    EXPECT_THAT(message, AllOf(HasSubstr("rank 0 opens a scope for 2 models"),
                               HasSubstr("in the same order")));
  }
}

TEST_P(JoinErrors, EnabledOnSomeRanksOnly) {
  const auto messages = failures(GetParam(), [](const Setting& my) {
    JoinScope join({find_technique<DistributedDataParallel>(my.first)}, my.rank.index() != 1);
  });
  for (const std::string& message : messages) {
    EXPECT_THAT(message, AllOf(HasSubstr("rank 1 opens"), HasSubstr("joining off; rank 2"),
                               HasSubstr("joining on.")));
  }
}

TEST_P(JoinErrors, NestedScopes) {
  for (const bool enabled : {false, true}) {
    const auto messages = failures(GetParam(), [enabled](const Setting& my) {
      JoinScope join({find_technique<DistributedDataParallel>(my.first)}, true);
      JoinScope nested({find_technique<DistributedDataParallel>(my.second)}, enabled);
    });
    for (int rank = 0; rank < kRanks; ++rank) {
      EXPECT_THAT(messages[rank],
                  HasSubstr("rank " + std::to_string(rank) + " is in such a scope"));
    }
  }
}

TEST_P(JoinErrors, AModelPassedTwice) {
  const auto messages = failures(GetParam(), [](const Setting& my) {
    JoinScope join({find_technique<DistributedDataParallel>(my.first),
                    find_technique<DistributedDataParallel>(my.first)},
                   true);
  });
  for (const std::string& message : messages) EXPECT_THAT(message, HasSubstr("passed twice"));
}

TEST_P(JoinErrors, OtherModelsRunByThoseThatTrain) {
  const auto messages = failures(GetParam(), [](const Setting& my) {
    JoinScope join({find_technique<DistributedDataParallel>(my.first),
                    find_technique<DistributedDataParallel>(my.second)},
                   true);
    my.train(my.first, 1);
    if (my.rank.index() == 0) return;  // It follows, and gets the same error.
    my.train(my.rank.index() == 1 ? my.first : my.second, 1);
  });
  for (const std::string& message : messages) {
    EXPECT_THAT(message, AllOf(HasSubstr("rank 1 begins a forward pass of model 0"),
                               HasSubstr("rank 2 begins a forward pass of model 1")));
  }
}

TEST_P(JoinErrors, GradientsSynchronisedBySomeOfThoseThatTrain) {
  const auto messages = failures(GetParam(), [](const Setting& my) {
    JoinScope join({find_technique<DistributedDataParallel>(my.first)}, true);
    my.train(my.first, 1);
    if (my.rank.index() == 1) {
      auto scope = my.accelerator.no_sync(my.first);
      my.train(my.first, 1);
    } else {
      my.train(my.first, 1);
    }
  });
  for (const std::string& message : messages) {
    EXPECT_THAT(message, AllOf(HasSubstr("rank 1 begins a forward pass of model 0 that only accum"),
                               HasSubstr("rank 2 begins"), HasSubstr("synchronises gradients")));
  }
}

// It does not follow the others, which are told by the simulator that it left.
TEST_P(JoinErrors, AnExceptionLeavesTheScopeAtOnce) {
  for (const int passes : {0, 1, 3}) {
    const auto messages = failures(GetParam(), [passes](const Setting& my) {
      JoinScope join({find_technique<DistributedDataParallel>(my.first)}, true,
                     [](int) { FAIL() << "nobody got there"; });
      my.train(my.first, my.rank.index() == 0 ? 2 : passes);
      if (my.rank.index() == 1) throw std::runtime_error("out of luck");
      my.train(my.first, 5);
    });
    EXPECT_THAT(messages[1], HasSubstr("out of luck"));
    EXPECT_THAT(messages[0], HasSubstr("rank 1"));
    EXPECT_THAT(messages[2], HasSubstr("rank 1"));
  }
}

TEST_P(JoinErrors, AnExceptionWhileOthersFollow) {
  const auto messages = failures(GetParam(), [](const Setting& my) {
    JoinScope join({find_technique<DistributedDataParallel>(my.first)}, true);
    my.train(my.first, my.rank.index());
    if (my.rank.index() == 2) throw std::runtime_error("out of luck");
  });
  EXPECT_THAT(messages[2], HasSubstr("out of luck"));
  EXPECT_THAT(messages[0], HasSubstr("rank 2"));
  EXPECT_THAT(messages[1], HasSubstr("rank 2"));
}

// The models are usable afterwards, and so are scopes.
TEST_P(JoinErrors, AFailureOfAllCanBeCaught) {
  const auto messages = failures(GetParam(), [](const Setting& my) {
    for (int attempt = 0; attempt < 2; ++attempt) {
      EXPECT_THROW(
          {
            JoinScope join({find_technique<DistributedDataParallel>(my.first)}, true);
            my.train(my.first, 2);
            throw std::runtime_error("everywhere");
          },
          std::runtime_error);
      EXPECT_FALSE(find_technique<DistributedDataParallel>(my.first)->joined());
      my.train(my.first, 1);
    }
    // An exception that is on its way out already does not count.
    struct Cleanup {
      const Setting& my;
      ~Cleanup() {
        JoinScope join({find_technique<DistributedDataParallel>(my.first)}, true);
        my.train(my.first, my.rank.index());
      }
    };
    EXPECT_THROW(
        {
          Cleanup cleanup{my};
          throw std::runtime_error("everywhere");
        },
        std::runtime_error);
    my.train(my.first, 1);
  });
  EXPECT_THAT(messages, ::testing::Each(""));
}

TEST_P(JoinErrors, APassThatNobodyElseExpects) {
  const auto messages = failures(GetParam(), [](const Setting& my) {
    if (my.rank.index() == 1) return my.train(my.first, 1);  // without a scope
    JoinScope join({find_technique<DistributedDataParallel>(my.first)}, true);
    my.train(my.first, 1);
  });
  for (const std::string& message : messages) EXPECT_NE(message, "");
}

}  // namespace
}  // namespace accelerate
