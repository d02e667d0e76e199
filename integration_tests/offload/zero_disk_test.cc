// ZeRO's stage 3 with its state on simulated disks, by DeepSpeed's configuration alone: what it
// computes, what it holds, and what becomes of a disk's errors.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iostream>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include "absl/time/time.h"
#include "accelerate/accelerate.h"
#include "accelerate/config/deepspeed_plugin.h"
#include "accelerate/optim/fused_optimizers.h"
#include "accelerate/parallel/sharded/sharded.h"
#include "integration_tests/offload/layers_on_disk.h"
#include "simulator/cluster/cluster.h"
#include "simulator/disk/sim_disk.h"
#include "simulator/trace/trace.h"

namespace accelerate {
namespace {

using Json = nlohmann::ordered_json;
using simulator::Cluster;
using simulator::ClusterError;
using simulator::FileFault;
using simulator::FileFaultKind;
using simulator::Rank;
using simulator::SimDisk;
using ::testing::AllOf;
using ::testing::HasSubstr;
using torch::Tensor;

constexpr char kDisk[] = ",disk=1GB/s,disk_latency=10us";
const Json kOnHost = {{"device", "cpu"}};

Json on_disk(Json more = Json::object()) {
  Json block = {{"device", "nvme"}, {"nvme_path", "/sim/nvme"}};
  block.update(more);
  return block;
}

struct Job {
  int64_t layers = 6, width = 16, rows = 4;
  Json zero;
  Json more = Json::object();
  PrecisionType precision = PrecisionType::kNo;

  Json config() const {
    Json zero_optimization = {
        {"stage", 3}, {"stage3_param_persistence_threshold", 0}, {"sub_group_size", 300}};
    zero_optimization.update(zero);
    Json config = {{"train_micro_batch_size_per_gpu", rows},
                   {"zero_allow_untested_optimizer", true},
                   {"zero_optimization", zero_optimization}};
    config.update(more);
    return config;
  }
};

// A model and its optimizer as a program has them.
class Training {
 public:
  Training(Rank& rank, const Job& job)
      : rank_(rank),
        job_(job),
        accelerator_({.mixed_precision = job.precision,
                      .gradient_accumulation_steps =
                          job.more.value("gradient_accumulation_steps", int64_t{1}),
                      .deepspeed_plugin = DeepSpeedPlugin{.hf_ds_config = job.config()}}) {
    torch::manual_seed(3);
    net_ = std::make_shared<LayersImpl>(job.layers, job.width);
    std::shared_ptr<torch::optim::Optimizer> base =
        std::make_shared<optim::AdamW>(net_->parameters(), torch::optim::AdamWOptions(1e-2));
    auto [model, optimizer] = accelerator_.prepare(net_, base);
    model_.emplace(std::move(model));
    optimizer_.emplace(std::move(optimizer));
  }

  // The ranks' mean loss.
  double step(int number) {
    const Tensor x =
        torch::cos(torch::arange(job_.rows * job_.width, torch::kFloat) + number + rank_.index())
            .view({job_.rows, job_.width})
            .to(accelerator_.device());
    const auto scope = accelerator_.accumulate(*model_);
    const Tensor loss = (*model_)(x).to(torch::kFloat).square().mean();
    accelerator_.backward(loss);
    optimizer_->step();
    optimizer_->zero_grad();
    return accelerator_.reduce(loss.detach(), Reduction::kMean).item<double>();
  }

  std::vector<Tensor> weights() {
    const auto whole = full_parameters(*model_, {.writeback = false});
    std::vector<Tensor> weights;
    for (const Tensor& each : net_->parameters()) weights.push_back(each.detach().cpu().clone());
    return weights;
  }

  // As a program that begins a step anew.
  void forget_gradients() {
    for (const Tensor& each : net_->parameters()) each.mutable_grad().reset();
  }

  Accelerator& accelerator() { return accelerator_; }
  AcceleratedOptimizer& optimizer() { return *optimizer_; }

 private:
  Rank& rank_;
  const Job job_;
  Accelerator accelerator_;
  std::shared_ptr<LayersImpl> net_;
  std::optional<PreparedModel<LayersImpl>> model_;
  std::optional<AcceleratedOptimizer> optimizer_;
};

struct Outcome {
  std::vector<double> losses;
  std::vector<Tensor> weights;
  int64_t peak = 0;  // of rank 0's device
};

Outcome train(const std::string& shape, const Job& job, int steps = 4) {
  Outcome outcome;
  Cluster cluster(shape + kDisk, {.seed = 3, .disk = std::make_shared<SimDisk>()});
  cluster.run_on_every_rank([&](Rank& rank) {
    Training training(rank, job);
    for (int step = 0; step < steps; ++step) {
      const double loss = training.step(step);
      if (rank.index() == 0) outcome.losses.push_back(loss);
    }
    const std::vector<Tensor> weights = training.weights();
    if (rank.index() != 0) return;
    outcome.weights = weights;
    outcome.peak = rank.runtime().device_memory()->peak;
  });
  return outcome;
}

void expect_equal(const Outcome& actual, const Outcome& expected) {
  EXPECT_EQ(actual.losses, expected.losses);
  ASSERT_EQ(actual.weights.size(), expected.weights.size());
  for (size_t i = 0; i < actual.weights.size(); ++i) {
    EXPECT_TRUE(torch::equal(actual.weights[i], expected.weights[i])) << i;
  }
}

TEST(ZeroOnDisk, TrainsBitForBitAsOnTheHost) {
  for (const PrecisionType precision : {PrecisionType::kNo, PrecisionType::kBf16}) {
    const Outcome host =
        train("2x2:h100", {.zero = {{"offload_optimizer", kOnHost}, {"offload_param", kOnHost}},
                           .precision = precision});
    EXPECT_LT(host.losses.back(), host.losses.front());
    const Json pipelines = {{"pipeline_read", true}, {"pipeline_write", true}};
    for (const Json& zero : std::vector<Json>{
             {{"offload_optimizer", on_disk()}},
             {{"offload_optimizer", on_disk(pipelines)}, {"offload_param", kOnHost}},
             {{"offload_optimizer", on_disk(pipelines)},
              {"offload_param", on_disk({{"max_in_cpu", 0}})}},
             {{"offload_optimizer", on_disk({{"buffer_count", 1}})},
              {"offload_param", on_disk({{"max_in_cpu", 200}, {"buffer_count", 1}})}},
             {{"offload_optimizer", kOnHost}, {"offload_param", on_disk({{"max_in_cpu", 0}})}},
             {{"offload_optimizer", on_disk()},
              {"stage3_param_persistence_threshold", 20},
              {"zero_hpz_partition_size", 2}},
         }) {
      SCOPED_TRACE(zero.dump());
      expect_equal(train("2x2:h100", {.zero = zero, .precision = precision}), host);
    }
    const Json aio = {{"aio", {{"block_size", 500}, {"queue_depth", 2}, {"thread_count", 2}}}};
    expect_equal(train("2x2:h100", {.zero = {{"offload_optimizer", on_disk(pipelines)},
                                             {"offload_param", on_disk({{"max_in_cpu", 0}})}},
                                    .more = aio,
                                    .precision = precision}),
                 host);
  }
}

// 48 MiB of parameters on two ranks, whose shards, gradients and moments have 96 MiB a rank.
TEST(ZeroOnDisk, TrainsOnDevicesThatHoldNoShareOfTheModel) {
  Job job{.layers = 12, .width = 1024, .zero = {{"sub_group_size", 1 << 20}}};
  EXPECT_THROW(train("1x2:h100,mem=64MiB,efficiency=ideal", job, 2), ClusterError);
  job.zero.update(
      Json{{"offload_optimizer", on_disk()}, {"offload_param", on_disk({{"max_in_cpu", 0}})}});
  const Outcome outcome = train("1x2:h100,mem=64MiB,efficiency=ideal", job, 2);
  EXPECT_GT(outcome.losses.back(), 0);
}

TEST(ZeroOnDisk, ABufferMustHoldWhatIsGatheredTogether) {
  try {
    train("1x2:h100",
          {.zero = {{"offload_param", on_disk({{"max_in_cpu", 0}, {"buffer_size", 8}})}}});
    ADD_FAILURE() << "eight elements";
  } catch (const ClusterError& error) {
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("rank 0"), HasSubstr("do not fit in a buffer of 32")));
  }
}

struct Work {
  int64_t operations = 0;
  absl::Duration elapsed;
  std::vector<std::string> folders;
};

Work work_of(const Job& job) {
  const auto disk = std::make_shared<SimDisk>();
  // The device is so slow that the disk can work beside it.
  Cluster cluster(std::string("1x1:h100,flops=100GFLOPS") + kDisk, {.seed = 3, .disk = disk});
  cluster.run_on_every_rank([&](Rank& rank) {
    Training training(rank, job);
    for (int step = 0; step < 3; ++step) training.step(step);
  });
  return {.operations = disk->operations(0),
          .elapsed = cluster.elapsed(),
          .folders = disk->list("/sim").value_or(std::vector<std::string>())};
}

TEST(ZeroOnDisk, EachKeyChangesWhatTheDiskDoes) {
  const Json optimizer = on_disk(), parameters = on_disk({{"max_in_cpu", 0}});
  const auto job = [&](Json more_of_optimizer, Json more_of_parameters, Json aio) {
    Job job{.layers = 4, .width = 512, .zero = {{"sub_group_size", 5000}}};
    job.zero["offload_optimizer"] = optimizer;
    job.zero["offload_optimizer"].update(more_of_optimizer);
    job.zero["offload_param"] = parameters;
    job.zero["offload_param"].update(more_of_parameters);
    if (!aio.empty()) job.more["aio"] = aio;
    return job;
  };
  const Json none = Json::object();
  const Work plain = work_of(job(none, none, none));
  EXPECT_EQ(plain.folders, std::vector<std::string>{"nvme"});
  EXPECT_EQ(work_of(job({{"nvme_path", "/sim/other"}}, none, none)).folders,
            (std::vector<std::string>{"nvme", "other"}));
  // What is read ahead or written behind passes beside other work.
  EXPECT_LT(work_of(job({{"pipeline_read", true}}, none, none)).elapsed, plain.elapsed);
  EXPECT_LT(work_of(job({{"pipeline_write", true}}, none, none)).elapsed, plain.elapsed);
  // Where all parts have buffers, none is read.
  EXPECT_LT(work_of(job({{"buffer_count", 20}}, none, none)).operations, plain.operations);
  EXPECT_GT(work_of(job(none, {{"buffer_count", 1}}, none)).operations, plain.operations);
  EXPECT_LT(work_of(job(none, {{"max_in_cpu", 600000}}, none)).operations, plain.operations);
  const Work blocks = work_of(job(none, none, {{"block_size", 65536}, {"queue_depth", 1}}));
  EXPECT_GT(blocks.operations, plain.operations);
  for (const char* key : {"queue_depth", "thread_count"}) {
    Json aio = {{"block_size", 65536}, {"queue_depth", 1}, {"thread_count", 1}};
    aio[key] = 4;
    EXPECT_NE(work_of(job(none, none, aio)).elapsed, blocks.elapsed) << key;
  }
}

// ---- Time.

struct StepTime {
  double step_ms = 0;
  double disk_ms = 0;  // of reading and of writing
};

StepTime step_time(const Job& job, const char* disk) {
  constexpr int kMicroSteps = 8;
  int64_t begin_ns = 0, end_ns = 0;
  // Passes take several times as long as reading for them.
  Cluster cluster(std::string("1x1:h100,efficiency=ideal,flops=6GFLOPS,") + disk,
                  {.record = true, .disk = std::make_shared<SimDisk>()});
  cluster.run_on_every_rank([&](Rank& rank) {
    Runtime& runtime = rank.runtime();
    const absl::Time start = runtime.now();
    Training training(rank, job);
    const auto train = [&](int steps) {
      for (int pass = 0; pass < steps * kMicroSteps; ++pass) training.step(pass);
      runtime.synchronize_device();
      return absl::ToInt64Nanoseconds(runtime.now() - start);
    };
    // States are made in the first step, and the second one knows the order of groups.
    begin_ns = train(2);
    end_ns = train(1);
  });
  StepTime time{.step_ms = static_cast<double>(end_ns - begin_ns) / 1e6};
  for (const simulator::Slice& slice : cluster.trace().slices) {
    if (slice.kind != simulator::SliceKind::kDisk || slice.stream == simulator::kHostWaitStream) {
      continue;
    }
    const int64_t from = std::max(slice.start_ns, begin_ns), to = std::min(slice.end_ns, end_ns);
    time.disk_ms += static_cast<double>(std::max<int64_t>(0, to - from)) / 1e6;
  }
  return time;
}

// Both tiers are on the disk. The optimizer steps in four parts, after eight micro-steps.
Job with_buffers(int count) {
  const Json ahead = {{"buffer_count", count}, {"pipeline_read", true}, {"pipeline_write", true}};
  return {.layers = 8,
          .width = 512,
          .rows = 32,
          .zero = {{"sub_group_size", 1 << 19},
                   {"stage3_max_live_parameters", 0},
                   {"offload_optimizer", on_disk(ahead)},
                   {"offload_param", on_disk({{"max_in_cpu", 0}, {"buffer_count", count}})}},
          .more = {{"gradient_accumulation_steps", 8}},
          .precision = PrecisionType::kBf16};
}

TEST(ZeroOnDisk, TwoBuffersHideMostOfTheDisksTime) {
  const StepTime without = step_time(with_buffers(2), "disk=off");
  // The share of the disk's time that does not make the step longer.
  const auto hidden = [&](int buffers) {
    const StepTime with = step_time(with_buffers(buffers), "disk=1GB/s,disk_latency=10us");
    const double share = 1 - (with.step_ms - without.step_ms) / with.disk_ms;
    std::cout << buffers << " buffers: a step of " << with.step_ms << " ms, " << without.step_ms
              << " without the disk, which works " << with.disk_ms << " ms, " << 100 * share
              << " % of them hidden\n";
    return share;
  };
  EXPECT_LT(hidden(1), 0.7);
  EXPECT_GE(hidden(2), 0.7);
}

// ---- Errors.

// What ranks were told of a step in which an operation of rank 1's disk fails.
struct Told {
  std::map<int, std::string> errors;  // by rank
  int64_t begin = 0, end = 0;         // rank 1's operations at the begin and the end of the step
  std::vector<double> losses;         // of three steps after a save, once more after an error
};

Told step_with(const std::vector<FileFault>& faults) {
  Told told;
  std::mutex mutex;
  const auto disk = std::make_shared<SimDisk>();
  const Job job{
      .layers = 3,
      .zero = {{"sub_group_size", 1},
               {"offload_optimizer", on_disk({{"pipeline_read", true}, {"pipeline_write", true}})},
               {"offload_param", on_disk({{"max_in_cpu", 0}})}}};
  Cluster cluster(std::string("1x2:h100") + kDisk,
                  {.seed = 5, .disk = disk, .file_faults = faults});
  cluster.run_on_every_rank([&](Rank& rank) {
    Training training(rank, job);
    training.step(0);
    training.accelerator().save_state("/sim/save");
    if (rank.index() == 1) told.begin = disk->operations(1);
    const auto train = [&] {
      std::vector<double> losses;
      for (const int number : {1, 2, 3}) {
        losses.push_back(training.step(number));
        if (rank.index() == 1 && number == 1) told.end = disk->operations(1);
      }
      if (rank.index() == 0) told.losses = losses;
    };
    try {
      return train();
    } catch (const c10::Error& error) {
      const std::lock_guard lock(mutex);
      told.errors[rank.index()] = error.what_without_backtrace();
    }
    // While a disk is full, not even a save can be loaded.
    for (int attempt = 0; attempt < 5; ++attempt) {
      try {
        training.accelerator().load_state("/sim/save");
        return train();
      } catch (const c10::Error& error) {
        EXPECT_THAT(error.what(), HasSubstr("no space left"));
      }
    }
  });
  return told;
}

TEST(ZeroOnDisk, AnErrorAtAnyOperationOfAStepIsAnErrorOnAllRanksAndTrainingGoesOnFromASave) {
  const Told sound = step_with({});
  ASSERT_TRUE(sound.errors.empty());
  ASSERT_EQ(sound.losses.size(), 3);
  ASSERT_GT(sound.end - sound.begin, 20);
  int64_t full = 0;
  for (int64_t operation = sound.begin; operation < sound.end; ++operation) {
    for (const auto kind : {FileFaultKind::kInputOutputError, FileFaultKind::kDiskFull}) {
      SCOPED_TRACE(std::to_string(operation) + (kind == FileFaultKind::kDiskFull ? " full" : ""));
      const Told after =
          step_with({{.rank = 1, .operation = operation, .kind = kind, .until = operation + 1}});
      EXPECT_EQ(after.losses, sound.losses);
      if (kind == FileFaultKind::kInputOutputError) EXPECT_EQ(after.errors.size(), 2);
      EXPECT_NE(after.errors.size(), 1);
      if (kind == FileFaultKind::kDiskFull && !after.errors.empty()) ++full;
      for (const auto& [rank, error] : after.errors) {
        EXPECT_THAT(error, AllOf(HasSubstr("rank "), HasSubstr("/sim/nvme/swapped_tensors")));
      }
    }
  }
  EXPECT_GE(full, (sound.end - sound.begin) / 4) << "a step writes nearly as often as it reads";
}

// An operation of rank 1 fails once, and the program goes on as if nothing had happened: what is
// read again is right, and the NaN of the failed pass is forgotten. With an optimizer on the host
// nothing of a step can be lost.
TEST(ZeroOnDisk, AFailedReadLeavesNothingBehind) {
  const auto train = [](int64_t failing, int64_t* begin, int64_t* end) {
    std::vector<double> losses;
    const auto disk = std::make_shared<SimDisk>();
    std::vector<FileFault> faults;
    if (failing >= 0) {
      faults.push_back({.rank = 1,
                        .operation = failing,
                        .kind = FileFaultKind::kInputOutputError,
                        .until = failing + 1});
    }
    const Job job{.layers = 3,
                  .zero = {{"stage3_param_persistence_threshold", 100},
                           {"offload_optimizer", kOnHost},
                           {"offload_param", on_disk({{"max_in_cpu", 0}})}},
                  .more = {{"gradient_accumulation_steps", 2}}};
    Cluster cluster(std::string("1x2:h100") + kDisk,
                    {.seed = 5, .disk = disk, .file_faults = faults});
    cluster.run_on_every_rank([&](Rank& rank) {
      Training training(rank, job);
      training.step(0);
      training.step(0);
      if (rank.index() == 1 && begin != nullptr) *begin = disk->operations(1);
      // Two micro-steps, which are repeated until both have worked.
      for (int number = 1; number < 4;) {
        try {
          training.step(number);
          const double loss = training.step(number);
          if (rank.index() == 0) losses.push_back(loss);
          ++number;
        } catch (const c10::Error& error) {
          EXPECT_THAT(error.what(), HasSubstr("/sim/nvme/swapped_tensors"));
          training.forget_gradients();
        }
      }
      if (rank.index() == 1 && end != nullptr) *end = disk->operations(1);
    });
    return losses;
  };
  int64_t begin = 0, end = 0;
  const std::vector<double> sound = train(-1, &begin, &end);
  ASSERT_GT(end - begin, 6);
  for (int64_t operation = begin; operation < end; ++operation) {
    SCOPED_TRACE(operation);
    for (const double loss : train(operation, nullptr, nullptr)) EXPECT_FALSE(std::isnan(loss));
  }
}

TEST(ZeroOnDisk, AStateIsLoadedWhereverTheOptimizerIs) {
  for (const Json& zero : std::vector<Json>{
           {{"offload_optimizer", kOnHost}, {"offload_param", on_disk({{"max_in_cpu", 0}})}},
           {{"offload_optimizer", kOnHost}},
           {{"offload_optimizer", on_disk()}, {"offload_param", kOnHost}},
           {{"offload_optimizer", on_disk()}, {"offload_param", on_disk({{"max_in_cpu", 0}})}},
           {{"stage", 2}, {"offload_optimizer", kOnHost}},
       }) {
    for (const PrecisionType precision : {PrecisionType::kNo, PrecisionType::kBf16}) {
      SCOPED_TRACE(zero.dump());
      const Job job{.zero = zero, .precision = precision};
      Cluster cluster(std::string("1x2:h100") + kDisk, {.disk = std::make_shared<SimDisk>()});
      cluster.run_on_every_rank([&](Rank& rank) {
        double expected = 0;
        {
          Training training(rank, job);
          training.step(0);
          training.accelerator().save_state("/sim/save");
          expected = training.step(1);
          training.step(2);
          training.accelerator().load_state("/sim/save");
          EXPECT_EQ(training.step(1), expected) << "in the middle of a run";
          training.accelerator().free_memory();
        }
        Training again(rank, job);
        again.accelerator().load_state("/sim/save");
        EXPECT_EQ(again.step(1), expected) << "in a new run";
      });
    }
  }
}

TEST(ZeroOnDisk, AFolderThatOneRankCannotUseIsAnErrorOnAll) {
  std::mutex mutex;
  std::vector<std::string> errors;
  Cluster cluster(
      std::string("1x2:h100") + kDisk,
      {.disk = std::make_shared<SimDisk>(),
       .file_faults = {
           {.rank = 1, .operation = 0, .kind = FileFaultKind::kInputOutputError, .until = 1}}});
  cluster.run_on_every_rank([&](Rank& rank) {
    try {
      Training(rank, {.zero = {{"offload_optimizer", on_disk()}}});
    } catch (const c10::Error& error) {
      const std::lock_guard lock(mutex);
      errors.push_back(error.what_without_backtrace());
    }
  });
  EXPECT_EQ(errors.size(), 2);
  EXPECT_THAT(errors, ::testing::Each(AllOf(HasSubstr("rank 1"), HasSubstr("/sim/nvme"))));
}

}  // namespace
}  // namespace accelerate
