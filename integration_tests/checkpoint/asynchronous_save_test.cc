// Saves behind training: they follow each other closely, after a reset, from two Accelerators at
// once, and what they save is of the moment of the save, whatever training does meanwhile.
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "accelerate/accelerate.h"
#include "accelerate/checkpoint/folder/checkpoint_folder.h"
#include "accelerate/optim/fused_optimizers.h"
#include "accelerate/optim/lomo.h"
#include "accelerate/platform/file_system.h"
#include "integration_tests/checkpoint/one_rank_runtime.h"
#include "integration_tests/checkpoint/sim_saves.h"
#include "simulator/testing/topology_suite.h"

namespace accelerate::checkpoint_tests {
namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

Cluster on(const std::shared_ptr<SimDisk>& disk, uint64_t seed = 1) {
  return simulator::TopologyTest::make_cluster({.seed = seed, .disk = disk});
}

TOPOLOGY_SUITE(AsynchronousSave, .hardware = simulator::Hardware::kNoTpu);

// ---- Saves that follow each other.

TEST_P(AsynchronousSave, AsynchronousSavesAfterAResetAreSavesOfTheirOwn) {
  for (const uint64_t seed : simulator::kSeeds) {
    for (const std::string second : {"/sim/x", "/sim/y"}) {
      auto disk = std::make_shared<SimDisk>();
      EXPECT_THAT(run(on(disk, seed),
                      [&](Rank& rank) {
                        {
                          Accelerator accelerator;
                          Net net(1);
                          auto model = accelerator.prepare(net);
                          accelerator.save_state(kFolder, {.asynchronous = true});
                          accelerator.wait_for_save();
                        }
                        AcceleratorState::reset(rank.runtime());
                        Accelerator accelerator;
                        set_seed(5 + rank.index());
                        torch::rand(3);
                        Net net(2);
                        auto model = accelerator.prepare(net);
                        if (rank.index() == 1) rank.runtime().sleep_for(absl::Seconds(1));
                        accelerator.save_state(second, {.asynchronous = true});
                        if (rank.index() == 1) rank.runtime().sleep_for(absl::Seconds(1));
                        accelerator.wait_for_save();
                        EXPECT_TRUE(verify_checkpoint(accelerator.runtime().files(), second).ok());
                      }),
                  Each(IsEmpty()))
          << "seed " << seed;
      EXPECT_EQ(load(on(disk), second), 2) << "seed " << seed;
    }
  }
}

TEST_P(AsynchronousSave, TwoAcceleratorsMaySaveInTurnBehindTraining) {
  for (const uint64_t seed : simulator::kSeeds) {
    auto disk = std::make_shared<SimDisk>();
    EXPECT_THAT(run(on(disk, seed),
                    [&](Rank&) {
                      Accelerator one, other;
                      Net net(1);
                      auto model = one.prepare(net);
                      one.save_state("/sim/a", {.asynchronous = true});
                      net->fill(2);
                      other.save_state("/sim/b", {.asynchronous = true});
                      other.save_state("/sim/c", {.asynchronous = true});
                      one.save_state("/sim/a", {.asynchronous = true});
                      other.wait_for_save();
                      one.wait_for_save();
                    }),
                Each(IsEmpty()))
        << "seed " << seed;
    for (const char* folder : {"/sim/a", "/sim/b", "/sim/c"}) EXPECT_EQ(load(on(disk), folder), 2);
  }
}

// ---- Optimizers whose moments are copied behind training.

torch::Tensor loss_of(Accelerator& accelerator, PreparedModel<NetImpl>& model) {
  return model(torch::full({2, 4}, 0.5).to(accelerator.device())).square().mean();
}

// A step of training; AdaLomo's is part of the backward pass.
void step(Accelerator& accelerator, PreparedModel<NetImpl>& model,
          const std::shared_ptr<torch::optim::Optimizer>& own, AcceleratedOptimizer& optimizer) {
  const torch::Tensor loss = loss_of(accelerator, model);
  if (dynamic_cast<optim::AdaLomo*>(own.get()) != nullptr) {
    return accelerator.lomo_backward(loss, 0.1);
  }
  accelerator.backward(loss);
  optimizer.step();
  optimizer.zero_grad();
}

using MakeOptimizer = std::shared_ptr<torch::optim::Optimizer> (*)(const Net& net);

std::shared_ptr<torch::optim::Optimizer> fused_adam_for(const Net& net) {
  return std::make_shared<optim::Adam>(net->parameters(), torch::optim::AdamOptions(0.1));
}
std::shared_ptr<torch::optim::Optimizer> adalomo_for(const Net& net) {
  return std::make_shared<optim::AdaLomo>(net->parameters());
}

// Saves at a moment, once waiting and once behind `train`: both are the same.
using Train =
    std::function<void(Accelerator&, PreparedModel<NetImpl>&,
                       const std::shared_ptr<torch::optim::Optimizer>&, AcceleratedOptimizer&)>;
void expect_the_moment_of_the_save(MakeOptimizer make, uint64_t seed, const Train& train) {
  auto disk = std::make_shared<SimDisk>();
  EXPECT_THAT(run(on(disk, seed),
                  [&](Rank&) {
                    Accelerator accelerator;
                    Net net(1);
                    const auto own = make(net);
                    auto model = accelerator.prepare(net);
                    auto optimizer = accelerator.prepare(own);
                    step(accelerator, model, own, optimizer);
                    accelerator.save_state("/sim/waits");
                    accelerator.save_state("/sim/behind", {.asynchronous = true});
                    train(accelerator, model, own, optimizer);
                    accelerator.wait_for_save();
                  }),
              Each(IsEmpty()))
      << "seed " << seed;
  for (const char* file : {"model.safetensors", "optimizer.safetensors"}) {
    const auto waited = read_file(*disk, absl::StrCat("/sim/waits/", file));
    const auto behind = read_file(*disk, absl::StrCat("/sim/behind/", file));
    ASSERT_TRUE(waited.ok() && behind.ok()) << file;
    EXPECT_TRUE(*waited == *behind) << file << ", seed " << seed;
  }
}

TEST_P(AsynchronousSave, WhatIsSavedBehindTrainingIsOfTheMomentOfTheSave) {
  for (const MakeOptimizer make : {sgd_for, fused_adam_for, adalomo_for}) {
    for (const uint64_t seed : simulator::kSeeds) {
      expect_the_moment_of_the_save(
          make, seed, [](auto& accelerator, auto& model, const auto& own, auto& optimizer) {
            for (int i = 0; i < 3; ++i) step(accelerator, model, own, optimizer);
          });
    }
  }
}

// One shape, and seeds of its own: the step comes before the save has copied in some of these only.
TEST(AsynchronousSave, AStepPastThePreparedOptimizerFailsTheSaveThatItWouldFalsify) {
  int failed = 0;
  constexpr int kSeeds = 20;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    auto disk = std::make_shared<SimDisk>();
    const Errors errors = run(Cluster("1x2", {.seed = seed, .disk = disk}), [&](Rank&) {
      Accelerator accelerator;
      Net net(1);
      const auto own = sgd_for(net);
      auto model = accelerator.prepare(net);
      auto optimizer = accelerator.prepare(own);
      step(accelerator, model, own, optimizer);
      accelerator.save_state(kFolder);
      accelerator.save_state("/sim/waits");
      accelerator.save_state(kFolder, {.asynchronous = true});
      accelerator.backward(loss_of(accelerator, model));
      own->step();
      accelerator.wait_for_save();
    });
    EXPECT_EQ(errors[0], errors[1]);
    if (!errors[0].empty()) {
      ++failed;
      EXPECT_THAT(errors[0],
                  AllOf(StartsWith("CheckpointError: "), HasSubstr("rank 0: "),
                        HasSubstr("\"optimizer: state.0.momentum_buffer\" changed while")));
    }
    // The one before, or a right one.
    EXPECT_TRUE(verify_checkpoint(*disk, kFolder).ok());
    EXPECT_TRUE(*read_file(*disk, "/sim/waits/optimizer.safetensors") ==
                *read_file(*disk, "/sim/x/optimizer.safetensors"))
        << "seed " << seed;
  }
  EXPECT_GT(failed, 0);
}

TEST_P(AsynchronousSave, AnOptimizerThatIsPreparedAgainWaitsAsWell) {
  for (const uint64_t seed : simulator::kSeeds) {
    expect_the_moment_of_the_save(
        sgd_for, seed, [](auto& accelerator, auto& model, const auto& own, auto& optimizer) {
          optimizer.reset();
          auto again = accelerator.prepare(own);
          step(accelerator, model, own, again);
        });
  }
}

// ---- With a thread of its own for the save, which writes only when it is let.

class GatedFiles final : public FilesOnDisk {
 public:
  absl::Notification reached, open_gate;

  absl::StatusOr<std::unique_ptr<WritableFile>> create(const std::string& path) override {
    // Tensors that are copied behind training were copied before.
    const bool is_first = path.find("/behind.tmp/model") != std::string::npos;
    if (is_first && !reached.HasBeenNotified()) {
      reached.Notify();
      open_gate.WaitForNotification();
    }
    return FilesOnDisk::create(path);
  }
};

struct GatedRuntime : OneRankRuntime<GatedFiles> {
  GatedFiles& gated = own_files;
};

// A save whose copy is made and which waits for the disk while `train` runs.
std::string error_beside_a_save(
    GatedRuntime& runtime,
    const std::function<void(AcceleratedOptimizer&, torch::optim::Optimizer&)>& train) {
  const RuntimeScope scope(runtime);
  Accelerator accelerator({}, runtime);
  Net net(1);
  const auto own = fused_adam_for(net);
  auto model = accelerator.prepare(net);
  auto optimizer = accelerator.prepare(own);
  step(accelerator, model, own, optimizer);
  accelerator.save_state("/sim/waits");
  accelerator.backward(loss_of(accelerator, model));
  accelerator.save_state("/sim/behind", {.asynchronous = true});
  runtime.gated.reached.WaitForNotification();
  train(optimizer, *own);
  runtime.gated.open_gate.Notify();
  return error_of([&] { accelerator.wait_for_save(); });
}

TEST(AsynchronousSave, TrainingStepsWhileItWrites) {
  GatedRuntime runtime;
  EXPECT_EQ(error_beside_a_save(runtime,
                                [](auto& optimizer, auto&) {
                                  for (int i = 0; i < 3; ++i) optimizer.step();
                                }),
            "");
  EXPECT_TRUE(*read_file(runtime.gated, "/sim/waits/optimizer.safetensors") ==
              *read_file(runtime.gated, "/sim/behind/optimizer.safetensors"));
}

TEST(AsynchronousSave, AStepPastThePreparedOptimizerIsNoticedUntilAllIsWritten) {
  GatedRuntime runtime;
  EXPECT_THAT(error_beside_a_save(runtime, [](auto&, auto& own) { own.step(); }),
              AllOf(StartsWith("CheckpointError: "), HasSubstr("exp_avg\" changed while")));
  EXPECT_FALSE(*exists(runtime.gated, "/sim/behind"));
  EXPECT_TRUE(verify_checkpoint(runtime.gated, "/sim/waits").ok());
}

TEST_P(AsynchronousSave, AWaitThatIsMissingIsMadeUpForAtTheEnd) {
  auto disk = std::make_shared<SimDisk>();
  EXPECT_THAT(run(on(disk),
                  [](Rank&) {
                    Accelerator accelerator;
                    Net net(2);
                    auto model = accelerator.prepare(net);
                    accelerator.save_state(kFolder, {.asynchronous = true});
                  }),
              Each(IsEmpty()));
  EXPECT_EQ(load(on(disk)), 2);
}

}  // namespace
}  // namespace accelerate::checkpoint_tests
