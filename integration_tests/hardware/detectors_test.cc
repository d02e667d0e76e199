// Mistakes that real hardware lets pass and the simulator does not.
// One shape each, but for the races under every seed: the messages name the ranks and devices.
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "accelerate/accelerate.h"
#include "simulator/cluster/cluster.h"
#include "simulator/testing/topology_suite.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::ClusterError;
using simulator::Rank;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Tensors = std::vector<at::Tensor>;

// The failure of a run on these ranks; empty if it has none.
std::string error_of(const std::string& spec, const std::function<void(Rank&)>& body,
                     simulator::ClusterOptions options = {}) {
  Cluster cluster(spec, std::move(options));
  try {
    cluster.run_on_every_rank(body);
    return "";
  } catch (const ClusterError& error) {
    return error.what();
  }
}

c10::intrusive_ptr<c10d::ProcessGroup> world(Rank& rank) {
  return rank.runtime().new_group({.name = "world"});
}

void use_a_result_too_early(Rank& rank) {
  auto group = world(rank);
  Tensors tensors{torch::ones({4}, rank.runtime().device())};
  auto work = group->allreduce(tensors);
  if (rank.index() == 1) tensors[0].add_(1);
  work->wait();
}

TEST(Races, AResultUsedBeforeTheWaitIsAnErrorOnADevice) {
  EXPECT_THAT(
      error_of("1x2:h100", use_a_result_too_early),
      AllOf(HasSubstr("rank 1 failed: aten::add_ uses memory that all_reduce #0 (sum, "
                      "Float[4]) of group \"world\" is still writing on rank 1's sim:1 (h100)"),
            HasSubstr("wait for the collective")));
}

TEST(Races, AResultWrittenBeforeTheWaitIsAnErrorOnTheCpu) {
  EXPECT_THAT(error_of("1x2", use_a_result_too_early),
              HasSubstr("rank 1 wrote to the result of all_reduce #0 (sum, Float[4]) of group "
                        "\"world\" before it had waited for it"));
}

TEST(Races, AResultReadsAsNanUntilTheWaitOnTheCpu) {
  EXPECT_EQ(error_of("1x2",
                     [](Rank& rank) {
                       auto group = world(rank);
                       Tensors tensors{torch::ones({4})};
                       auto work = group->allreduce(tensors);
                       EXPECT_TRUE(tensors[0].isnan().all().item<bool>());
                       work->wait();
                       EXPECT_TRUE(tensors[0].eq(2).all().item<bool>());
                     }),
            "");
}

void change_an_input_too_early(Rank& rank) {
  auto group = world(rank);
  at::Tensor input = torch::ones({4}, rank.runtime().device());
  at::Tensor output = torch::zeros({8}, rank.runtime().device());
  auto work = group->_allgather_base(output, input);
  EXPECT_EQ(input.sum().item<float>(), 4);  // Reading is fine.
  if (rank.index() == 0) input.zero_();
  work->wait();
}

TEST(Races, AnInputChangedBeforeTheWaitIsAnErrorOnADevice) {
  EXPECT_THAT(error_of("1x2:h100", change_an_input_too_early),
              HasSubstr("rank 0 failed: aten::zero_ writes to memory that all_gather"));
}

TEST(Races, AnInputChangedBeforeTheWaitIsAnErrorOnTheCpu) {
  EXPECT_THAT(error_of("1x2", change_an_input_too_early),
              HasSubstr("rank 0 changed the input of all_gather"));
}

TEST(Races, NothingIsWatchedWhenDetectionIsOff) {
  EXPECT_EQ(error_of("1x2:h100", use_a_result_too_early, {.detect_races = false}), "");
  EXPECT_EQ(error_of("1x2", use_a_result_too_early, {.detect_races = false}), "");
}

TOPOLOGY_SUITE(RacesOnDevices, .min_ranks = 2, .hardware = simulator::Hardware::kGpu);

TEST_P(RacesOnDevices, AreFoundUnderEverySeed) {
  std::string first;
  for (const uint64_t seed : simulator::kSeeds) {
    const std::string error =
        error_of(topology(), use_a_result_too_early, {.seed = simulator::seed_of_run(seed)});
    const std::string found = error.substr(0, error.find("\nsimulated"));
    EXPECT_THAT(found, HasSubstr("rank 1 failed: aten::add_ uses memory that all_reduce #0"));
    if (first.empty()) first = found;
    EXPECT_EQ(found, first) << "seed " << seed;
  }
}

TEST(Ownership, ATensorOfAnotherRankIsAnError) {
  // On two nodes both ranks' devices are sim:0.
  for (const char* spec : {"1x2:h100", "2x1:h100"}) {
    at::Tensor shared;
    EXPECT_THAT(error_of(spec,
                         [&shared](Rank& rank) {
                           auto group = world(rank);
                           if (rank.index() == 0) {
                             shared = torch::ones({4}, rank.runtime().device());
                           }
                           group->barrier()->wait();
                           if (rank.index() == 1) shared.add_(1);
                           group->barrier()->wait();
                           if (rank.index() == 0) shared.reset();
                         }),
                AllOf(HasSubstr("rank 1 passed a tensor on sim:0 to aten::add_, but its memory is "
                                "rank 0's"),
                      HasSubstr("through collectives and messages only")))
        << spec;
    shared.reset();
  }
}

TEST(Ownership, AnAllocationOnAnotherRanksDeviceIsAnError) {
  EXPECT_THAT(error_of("1x2:h100", [](Rank& rank) { torch::ones({1}, c10::Device("sim:1")); }),
              HasSubstr("rank 0 allocates on sim:1, which is rank 1's device"));
}

TEST(Ownership, ADeviceThatTheNodeLacksIsAnError) {
  EXPECT_THAT(error_of("2x1:h100", [](Rank& rank) { torch::ones({1}, c10::Device("sim:1")); }),
              HasSubstr("uses sim:1, but its node has the devices sim:0 to sim:0 only"));
  // The name exists in this process by now, the device does not.
  EXPECT_THAT(error_of("1x1", [](Rank& rank) { torch::ones({1}, c10::Device("sim:0")); }),
              HasSubstr("rank 0 uses sim:0, but its cluster has no devices: name hardware"));
}

TEST(Leaks, MemoryHeldAtARanksEndIsAnErrorThatSaysWhatItIs) {
  at::Tensor kept;
  const std::string error = error_of("1x2:h100", [&kept](Rank& rank) {
    const at::Tensor value = torch::ones({1000}, rank.runtime().device());
    if (rank.index() == 1) kept = value + 1;
  });
  EXPECT_THAT(
      error, AllOf(HasSubstr("rank 1's sim:1 (h100) held 4.00 KiB in 1 blocks when the rank ended"),
                   HasSubstr("4.00 KiB by aten::add in step 0")));
  kept.reset();
}

TEST(Leaks, AreForgivenWhenDetectionIsOff) {
  at::Tensor kept;
  EXPECT_EQ(error_of("1x1:h100",
                     [&kept](Rank& rank) { kept = torch::ones({4}, rank.runtime().device()); },
                     {.detect_leaks = false}),
            "");
  EXPECT_EQ(kept.sum().item<float>(), 4);  // A tensor may outlive its cluster.
  kept.reset();
}

// One rank changes an element behind everybody's back between two steps: of the weight of the last
// layer, which has this many features.
void train_and_drift_in(Rank& rank, int64_t features, int64_t element, double by) {
  Accelerator accelerator;
  torch::manual_seed(0);
  torch::nn::Sequential net(torch::nn::Linear(4, features), torch::nn::ReLU(),
                            torch::nn::Linear(features, 2));
  torch::optim::SGD sgd(net->parameters(), 0.1);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  for (int step = 0; step < 3; ++step) {
    torch::Tensor loss = model(torch::ones({2, 4}).to(accelerator.device())).square().mean();
    accelerator.backward(loss);
    optimizer.step();
    optimizer.zero_grad();
    if (step == 1 && rank.index() == 2) {
      const torch::NoGradGuard no_grad;
      net->named_parameters()["2.weight"].view(-1)[element].add_(by);
    }
  }
}

void train_and_drift(Rank& rank) { train_and_drift_in(rank, 8, 3, 1e-6); }

TEST(Replicas, ThatDriftApartAreAnErrorThatNamesTheParameter) {
  for (const char* spec : {"1x4:h100", "1x4"}) {
    const std::string error = error_of(spec, train_and_drift);
    EXPECT_THAT(error,
                AllOf(HasSubstr("the model in group \"world\" diverged: \"2.weight\" of rank "),
                      HasSubstr("rank 2"), HasSubstr("at the 3. synchronisation")))
        << spec;
  }
}

TEST(Replicas, ThatDriftApartInALargeParameterAreAnErrorThatNamesTheElement) {
  for (const char* spec : {"1x4:h100", "1x4"}) {
    const std::string error =
        error_of(spec, [](Rank& rank) { train_and_drift_in(rank, 8000, 12'345, 1e-3); });
    EXPECT_THAT(error, AllOf(HasSubstr("diverged: \"2.weight\" of rank "), HasSubstr("rank 2"),
                             HasSubstr(", first in element 12345: ")))
        << spec;
  }
}

TEST(Replicas, MayDriftWhereThatIsMeant) {
  EXPECT_EQ(error_of("1x4", train_and_drift, {.detect_drift = false}), "");
}

}  // namespace
}  // namespace accelerate
