// The virtual time of saves and loads on a disk with a rate.
// One shape each: the times are worked out for this disk.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "accelerate/accelerate.h"
#include "accelerate/files/formats/manifest.h"
#include "accelerate/platform/host_files.h"
#include "integration_tests/checkpoint/sim_saves.h"

namespace accelerate::checkpoint_tests {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// The model's bytes, on a disk so slow that all else hardly counts.
constexpr int64_t kWidth = 100'000;
constexpr int64_t kBytes = 4 * 5 * kWidth;
constexpr char kShape[] = "2x1:h100,disk=10MB/s,disk_latency=10us";
constexpr absl::Duration kWriting = absl::Microseconds(kBytes / 10);
// Descriptions, random states and latencies.
constexpr absl::Duration kRest = absl::Milliseconds(20);

bool is_about(absl::Duration took, absl::Duration expected) {
  return took >= expected && took <= expected + kRest;
}

// Trains for a time, in many short steps, and returns the time that it took.
absl::Duration train(Runtime& runtime, absl::Duration duration) {
  constexpr int kSteps = 500;
  const absl::Time start = runtime.now();
  for (int step = 0; step < kSteps; ++step) runtime.sleep_for(duration / kSteps);
  return runtime.now() - start;
}

TEST(SaveTime, ASaveAndALoadTakeTheTimeOfTheDisk) {
  auto disk = std::make_shared<SimDisk>();
  Cluster cluster(kShape, {.disk = disk});
  cluster.run_on_every_rank([](Rank& rank) {
    Accelerator accelerator;
    Net net(1, kWidth);
    auto model = accelerator.prepare(net);
    Runtime& runtime = rank.runtime();
    const absl::Time start = runtime.now();
    accelerator.save_state(kFolder);
    const absl::Time saved = runtime.now();
    EXPECT_TRUE(is_about(saved - start, kWriting)) << saved - start;
    accelerator.load_state(kFolder);
    // Both ranks read the model from the one disk.
    EXPECT_TRUE(is_about(runtime.now() - saved, 2 * kWriting)) << runtime.now() - saved;
  });
}

TEST(SaveTime, WithoutADiskThatTakesTimeASaveTakesHardlyAny) {
  Cluster cluster("2x1:h100,disk=off", {.disk = std::make_shared<SimDisk>()});
  cluster.run_on_every_rank([](Rank&) {
    Accelerator accelerator;
    Net net(1, kWidth);
    auto model = accelerator.prepare(net);
    accelerator.save_state(kFolder);
  });
  EXPECT_LT(cluster.elapsed(), kRest);
}

// What `training` does not cover of an asynchronous save is waited for.
void save_behind(absl::Duration training, uint64_t seed) {
  Cluster cluster(kShape, {.seed = seed, .disk = std::make_shared<SimDisk>()});
  cluster.run_on_every_rank([&](Rank& rank) {
    Accelerator accelerator;
    Net net(1, kWidth);
    auto model = accelerator.prepare(net);
    Runtime& runtime = rank.runtime();
    const absl::Time start = runtime.now();
    accelerator.save_state(kFolder, {.asynchronous = true});
    EXPECT_LE(runtime.now() - start, kRest);
    const absl::Duration trained = train(runtime, training);
    EXPECT_TRUE(is_about(trained, training)) << trained << ", seed " << seed;
    accelerator.wait_for_save();
    const absl::Duration took = runtime.now() - start;
    EXPECT_GE(took, std::max(training, kWriting)) << "seed " << seed;
    // The save begins at a moment of training that the seed draws.
    EXPECT_LE(took, training + kWriting + 2 * kRest) << "seed " << seed;
    if (training > 2 * kWriting) EXPECT_LE(took, training + 2 * kRest) << "seed " << seed;
    EXPECT_TRUE(verify_checkpoint(runtime.files(), kFolder).ok());
  });
}

TEST(SaveTime, ASaveBehindTrainingIsFreeWhereTrainingCoversIt) {
  for (const uint64_t seed : {1, 2, 3}) save_behind(4 * kWriting, seed);
}

TEST(SaveTime, ASaveBehindTrainingTakesTheRestWhereItDoesNot) {
  for (const uint64_t seed : {1, 2, 3}) save_behind(kWriting / 4, seed);
}

// ---- Runs with shapes alone: what they save was not computed.

simulator::ClusterOptions shapes_alone() {
  return {.numerics = simulator::Numerics::kShapes,
          .unknown_value = [](const std::string&) { return std::nan(""); },
          .largest_real_tensor = 16};
}

// Every way to write a file, in a folder of the machine or of the disk.
void train_and_write(const std::string& folder) {
  Accelerator accelerator(
      {.project_config = {
           .project_dir = folder, .automatic_checkpoint_naming = true, .total_limit = 1}});
  Net net(1);
  const auto sgd = sgd_for(net);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  accelerator.load_latest_state();
  const torch::Tensor loss = model(torch::ones({2, 4}).to(accelerator.device())).sum();
  accelerator.backward(loss);
  optimizer.step();
  accelerator.save_state({}, {.asynchronous = true});
  accelerator.wait_for_save();
  accelerator.save_model(model, join_path(folder, "model"));
  const auto weights = accelerator.get_state_dict(model);
  accelerator.save(weights, join_path(folder, "weights.safetensors"));
  if (accelerator.is_main_process()) {
    FileSystem& files = accelerator.runtime().files();
    offload_state_dict(files, join_path(folder, "offload"), weights);
    files.remove(join_path(folder, "kept")).IgnoreError();
  }
  EXPECT_THAT(accelerator.load_state(), HasSubstr("checkpoint_")) << "it finds its own";
}

std::map<std::string, std::string> files_in(const std::string& folder) {
  std::map<std::string, std::string> files;
  HostFiles host;
  for (const auto& each : std::filesystem::recursive_directory_iterator(folder)) {
    files[each.path().string()] = each.is_directory() ? "" : *read_file(host, each.path().string());
  }
  return files;
}

TEST(ShapesAlone, ChangeNoFileOfTheMachine) {
  const TemporaryFolder folder;
  HostFiles host;
  const std::string out = folder.path("out"), unused = folder.path("unused");
  Cluster("1x2:h100").run_on_every_rank([&](Rank&) { train_and_write(out); });
  ASSERT_TRUE(write_file(host, join_path(out, "kept"), "a file").ok());
  const auto before = files_in(folder.path());
  ASSERT_GT(before.size(), 10u);
  for (const char* spec : {"1x2:h100", "1x2:h100,disk=off"}) {
    for (const bool with_time : {false, true}) {
      simulator::ClusterOptions options = shapes_alone();
      options.host_files_take_time = with_time;
      Cluster shapes(spec, options);
      shapes.run_on_every_rank([&](Rank&) { train_and_write(out); });
      shapes.run_on_every_rank([&](Rank&) { train_and_write(unused); });
      EXPECT_EQ(files_in(folder.path()), before);
      EXPECT_GT(shapes.files_in_memory()->use().files, 10);
      // The real checkpoint_0 was loaded, and rotated away in memory alone.
      shapes.run_on_every_rank([&](Rank& rank) {
        FileSystem& files = rank.runtime().files();
        EXPECT_FALSE(*exists(files, join_path(out, "checkpoints/checkpoint_0")));
        const auto manifest = verify_checkpoint(files, join_path(out, "checkpoints/checkpoint_1"));
        ASSERT_TRUE(manifest.ok()) << manifest.status();
        EXPECT_EQ(manifest->numerics, kShapesNumerics);
      });
    }
  }
}

TEST(ShapesAlone, TheirCheckpointsAreNotLoadedByARunWithValues) {
  auto disk = std::make_shared<SimDisk>();
  simulator::ClusterOptions options = shapes_alone();
  options.disk = disk;
  Cluster("1x2:h100", options).run_on_every_rank([](Rank&) { train_and_write("/sim/run"); });
  for (const char* folder : {"", "/sim/run/checkpoints/checkpoint_0"}) {
    EXPECT_THAT(
        run(Cluster("1x2:h100", {.disk = disk}),
            [&](Rank&) {
              Accelerator accelerator({.project_config = {.project_dir = "/sim/run",
                                                          .automatic_checkpoint_naming = true}});
              Net net(1);
              const auto sgd = sgd_for(net);
              auto [model, optimizer] = accelerator.prepare(net, sgd);
              accelerator.load_state(folder);
            }),
        Each(AllOf(HasSubstr("ValueError: "), HasSubstr("checkpoint_0"),
                   HasSubstr("computed shapes without values"))));
  }
  // Its own kind may go on with it.
  EXPECT_THAT(run(Cluster("1x2:h100", options), [](Rank&) { train_and_write("/sim/run"); }),
              Each(IsEmpty()));
}

}  // namespace
}  // namespace accelerate::checkpoint_tests
