// Checkpoints of a model of which ranks along pp have stages: whole tensors under plain names, the
// same bits with other stages, and a training that goes on as if it had not been stopped.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "absl/strings/str_cat.h"
#include "accelerate/accelerate.h"
#include "accelerate/config/parallelism_config.h"
#include "accelerate/config/pipeline_plan.h"
#include "accelerate/files/formats/merge_weights.h"
#include "accelerate/files/formats/sharded_metadata.h"
#include "accelerate/forward/model_state.h"
#include "accelerate/pipeline/schedule.h"
#include "accelerate/platform/file_system.h"
#include "accelerate/step/train_batch.h"
#include "integration_tests/layouts/placed_parts.h"
#include "integration_tests/pipeline/small_pipeline.h"
#include "simulator/cluster/cluster.h"
#include "simulator/disk/sim_disk.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::Rank;
using simulator::SimDisk;
using torch::Tensor;

constexpr char kFolder[] = "/sim/run/saved";
constexpr char kModel[] = "/sim/run/saved/pytorch_model_fsdp_0";
constexpr int64_t kRows = 8, kLength = 4;
constexpr int kSteps = 4, kMicroSteps = 2;
constexpr StateDictType kTypes[] = {StateDictType::kShardedStateDict,
                                    StateDictType::kFullStateDict};

struct Layout {
  std::string name;
  int ranks = 1;
  ParallelismOptions sizes = {};
  PipelinePlan plan = {};
};

Layout one_rank() { return {"one rank"}; }
Layout pp(int ranks) { return {absl::StrCat("pp ", ranks), ranks, {.pp_size = ranks}}; }
Layout pp_with_several_stages() {
  Layout layout = pp(2);
  layout.name = "pp 2, interleaved";
  layout.plan = {.schedule = pipeline::ScheduleKind::kInterleaved, .stages_per_rank = 2};
  return layout;
}
Layout pp_and_shards() { return {"pp 2 x dp_shard 2", 4, {.dp_shard_size = 2, .pp_size = 2}}; }
Layout pp_and_replicas() {
  return {"pp 2 x dp_replicate 2", 4, {.dp_replicate_size = 2, .pp_size = 2}};
}
Layout shards() { return {"dp_shard 2", 2, {.dp_shard_size = 2}}; }

// How the optimizer is made.
struct Changes {
  std::vector<std::string> frozen = {};  ///< parameters that are not trained
  bool reverses_parameters = false;
};

// A rank of a training whose model has means over batches, which only forward passes change.
class Job {
 public:
  explicit Job(const Layout& layout, double dropout = 0, const Changes& changes = {})
      : accelerator_(options_of(layout)), module_(small_sequential()) {
    module_->push_back("means", torch::nn::BatchNorm1d(kLength));
    module_->push_back("dropout", torch::nn::Dropout(dropout));
    auto by_name = module_->named_parameters();
    for (const std::string& name : changes.frozen) by_name[name].set_requires_grad(false);
    std::vector<Tensor> parameters = module_->parameters();
    if (changes.reverses_parameters) std::ranges::reverse(parameters);
    adam_ = std::make_shared<torch::optim::AdamW>(parameters, torch::optim::AdamWOptions(0.01));
    auto [model, optimizer] =
        accelerator_.prepare(module_.ptr(), std::shared_ptr<torch::optim::Optimizer>(adam_));
    model_.emplace(model);
    optimizer_.emplace(optimizer);
  }

  Accelerator& accelerator() { return accelerator_; }
  const ModelState& state() const { return *internal::Access::to(*model_); }
  const torch::optim::AdamW& adam() const { return *adam_; }
  NamedTensors whole() const { return accelerator_.get_state_dict(*model_); }
  void save_model(const std::string& folder) { accelerator_.save_model(*model_, folder); }

  // One of the windows of a step.
  Tensor train_window(int step, int micro_step) {
    const DataShare share = accelerator_.state().data_share();
    const auto [inputs, labels] = small_batch(kRows, kLength, step);
    const int64_t own = kRows / kMicroSteps / share.count;
    const int64_t first = (share.index * kMicroSteps + micro_step) * own;
    const auto scope = accelerator_.accumulate(*model_);
    return accelerator_.train_batch(
        *model_,
        std::pair(inputs.narrow(0, first, own).to(accelerator_.device()),
                  labels.narrow(0, first, own).to(accelerator_.device())),
        &small_loss, {.micro_batches = 2});
  }
  void end_step() {
    optimizer_->step();
    optimizer_->zero_grad();
  }
  Tensor train(int step) {
    Tensor loss = train_window(step, 0);
    loss = loss + train_window(step, 1);
    end_step();
    return loss.cpu();
  }

 private:
  static AcceleratorOptions options_of(const Layout& layout) {
    AcceleratorOptions options = with_stages(layout.sizes, layout.plan);
    options.gradient_accumulation_steps = kMicroSteps;
    return options;
  }

  Accelerator accelerator_;
  torch::nn::Sequential module_;
  std::shared_ptr<torch::optim::AdamW> adam_;
  std::optional<PreparedModel<torch::nn::SequentialImpl>> model_;
  std::optional<AcceleratedOptimizer> optimizer_;
};

using Body = std::function<void(Job&, Rank&)>;

// What there is at the end of what ranks do.
struct Whole {
  WholeTensors trained;  ///< weights and moments
  NamedTensors model;    ///< by get_state_dict
};

Whole whole_after(const Layout& layout, const std::shared_ptr<SimDisk>& disk, const Body& body,
                  double dropout = 0, const Changes& changes = {}) {
  Cluster cluster(absl::StrCat("1x", layout.ranks, ":h100"), {.disk = disk});
  std::vector<PlacedParts> parts(static_cast<size_t>(layout.ranks));
  Whole whole;
  cluster.run_on_every_rank([&](Rank& rank) {
    Job job(layout, dropout, changes);
    body(job, rank);
    parts[static_cast<size_t>(rank.index())] = placed_parts(job.state(), job.adam(), rank.index());
    NamedTensors model = job.whole();
    if (rank.index() != 0) return;
    for (auto& [name, tensor] : model) tensor = tensor.cpu().clone();
    whole.model = std::move(model);
  });
  whole.trained = assembled(parts);
  return whole;
}

void expect_same_tensors(const NamedTensors& tensors, const NamedTensors& expected) {
  const std::map<std::string, Tensor> found(tensors.begin(), tensors.end());
  EXPECT_EQ(found.size(), expected.size());
  for (const auto& [name, tensor] : expected) {
    ASSERT_TRUE(found.contains(name)) << name;
    EXPECT_TRUE(found.at(name).equal(tensor)) << name;
  }
}

void expect_same(const Whole& a, const Whole& b) {
  expect_equal(a.trained, b.trained);
  expect_same_tensors(a.model, b.model);
}

// ---- The model alone.

TEST(StateDictOfStages, IsThatOfTheWholeModel) {
  const Body body = [](Job& job, Rank&) { job.train(0); };
  const Whole one = whole_after(one_rank(), nullptr, body);
  ASSERT_EQ(one.model.size(), 15U) << "5 layers with 2 parameters, and one with 3 buffers more";
  for (const Layout& layout : {pp(2), pp(4), pp_with_several_stages(), pp_and_shards()}) {
    SCOPED_TRACE(layout.name);
    const Whole stages = whole_after(layout, nullptr, body);
    const std::map<std::string, Tensor> found(stages.model.begin(), stages.model.end());
    ASSERT_EQ(found.size(), one.model.size());
    for (const auto& [name, tensor] : one.model) {
      ASSERT_TRUE(found.contains(name)) << name;
      // Means over batches are those of other batches where shares have each their own.
      if (name.starts_with("means.running") && layout.sizes.dp_shard_size) continue;
      EXPECT_EQ(found.at(name).sizes(), tensor.sizes()) << name;
      if (layout.sizes.dp_shard_size) continue;
      EXPECT_TRUE(torch::allclose(found.at(name), tensor, 1e-4, 1e-5)) << name;
    }
  }
}

// A rank may have cast its stage. It alone knows the dtype of what it has.
TEST(StateDictOfStages, HasTheDtypesOfTheRanksThatHaveTheTensors) {
  Cluster("1x2:h100").run_on_every_rank([](Rank& rank) {
    Job job(pp(2));
    if (rank.index() == 1) {
      const torch::NoGradGuard no_grad;
      for (const Tensor& each : job.state().module()->parameters()) {
        each.set_data(each.to(torch::kDouble));
      }
    }
    const NamedTensors whole = job.whole();
    if (rank.index() != 0) return;
    std::map<std::string, Tensor> found(whole.begin(), whole.end());
    for (const char* name : {"first.weight", "2.weight", "4.bias"}) {
      EXPECT_EQ(found.at(name).scalar_type(), torch::kFloat) << name;
    }
    for (const char* name : {"6.weight", "last.weight", "last.bias"}) {
      EXPECT_EQ(found.at(name).scalar_type(), torch::kDouble) << name;
      EXPECT_GT(found.at(name).numel(), 0) << name;
    }
  });
}

TEST(WeightsOfStages, AreReadByAProgramWithoutStages) {
  constexpr char kWeights[] = "/sim/run/weights";
  for (const Layout& layout : {pp(2), pp(4), pp_and_shards(), pp_and_replicas()}) {
    SCOPED_TRACE(layout.name);
    const auto disk = std::make_shared<SimDisk>();
    const Whole whole = whole_after(layout, disk, [&](Job& job, Rank&) {
      job.train(0);
      job.save_model(kWeights);
    });
    expect_same_tensors(load(*disk, join_path(kWeights, "model.safetensors")).tensors, whole.model);
  }
}

// ---- With other stages.

void expect_moves(const Layout& a, const Layout& b, StateDictType type) {
  SCOPED_TRACE(absl::StrCat(a.name, " to ", b.name,
                            type == StateDictType::kFullStateDict ? ", whole" : ", in boxes"));
  const auto disk = std::make_shared<SimDisk>();
  const Whole saved = whole_after(a, disk, [type](Job& job, Rank&) {
    for (int step = 0; step < 2; ++step) job.train(step);
    job.accelerator().save_state(kFolder, {.state_dict_type = type});
  });
  EXPECT_TRUE(saved.trained.contains("square of last.weight"));
  std::string folder = kFolder;
  if (exists(*disk, join_path(kModel, kShardedMetadataFile)).value_or(false)) {
    EXPECT_EQ(type, StateDictType::kShardedStateDict);
    folder = "/sim/run/merged";
    ASSERT_TRUE(merge_weights(*disk, kModel, folder).ok());
  }
  expect_same_tensors(load(*disk, join_path(folder, "model.safetensors")).tensors, saved.model);
  // The job has trained otherwise before it loads.
  expect_same(whole_after(b, disk,
                          [](Job& job, Rank&) {
                            job.train(7);
                            job.accelerator().load_state(kFolder);
                          }),
              saved);
}

TEST(CheckpointOfStages, LoadsWithAnyOtherStagesBitByBit) {
  const std::vector<std::pair<Layout, Layout>> pairs = {{pp(2), pp(4)},
                                                        {pp(4), pp(2)},
                                                        {one_rank(), pp(4)},
                                                        {pp(2), one_rank()},
                                                        {pp_with_several_stages(), pp(4)},
                                                        {pp(4), pp_with_several_stages()},
                                                        {pp_and_shards(), pp(4)},
                                                        {shards(), pp_and_replicas()},
                                                        {pp_and_replicas(), pp_and_shards()},
                                                        {pp_and_shards(), shards()}};
  for (const auto& [a, b] : pairs) {
    for (const StateDictType type : kTypes) expect_moves(a, b, type);
  }
}

// A rank that has loaded a checkpoint of all stages saves the states of its own alone: those of
// other stages would be older ones.
TEST(CheckpointOfStages, HasTheNewestStatesOfAllStages) {
  for (const StateDictType type : kTypes) {
    const auto disk = std::make_shared<SimDisk>();
    whole_after(one_rank(), disk, [&](Job& job, Rank&) {
      job.train(0);
      job.accelerator().save_state(kFolder, {.state_dict_type = type});
    });
    constexpr char kAgain[] = "/sim/run/again";
    whole_after(pp(4), disk, [&](Job& job, Rank&) {
      job.accelerator().load_state(kFolder);
      for (int step = 1; step < 3; ++step) job.train(step);
      job.accelerator().save_state(kAgain, {.state_dict_type = type});
    });
    whole_after(one_rank(), disk, [&](Job& job, Rank&) {
      job.accelerator().load_state(kAgain);
      int64_t known = 0;
      for (const auto& [parameter, state] : job.adam().state()) {
        EXPECT_EQ(static_cast<const torch::optim::AdamWParamState&>(*state).step(), 3);
        ++known;
      }
      EXPECT_EQ(known, 12);
    });
  }
}

// The first rank of the job, which writes for all, has a stage without states.
TEST(CheckpointOfStages, HasTheStatesOfStagesBehindAFrozenOne) {
  const Changes frozen = {
      .frozen = {"first.weight", "first.bias", "2.weight", "2.bias", "4.weight", "4.bias"}};
  for (const StateDictType type : kTypes) {
    const auto disk = std::make_shared<SimDisk>();
    const auto save = [&](Job& job, Rank&) {
      for (int step = 0; step < 2; ++step) job.train(step);
      job.accelerator().save_state(kFolder, {.state_dict_type = type});
    };
    const auto load = [](Job& job, Rank&) {
      job.train(7);
      job.accelerator().load_state(kFolder);
    };
    const Whole saved = whole_after(pp(2), disk, save, /*dropout=*/0, frozen);
    EXPECT_FALSE(saved.trained.contains("square of 4.weight"));
    EXPECT_TRUE(saved.trained.contains("square of last.weight"));
    expect_same(whole_after(one_rank(), disk, load, /*dropout=*/0, frozen), saved);
    expect_same(whole_after(pp(4), disk, load, /*dropout=*/0, frozen), saved);
  }
}

// The program that loads numbers parameters otherwise.
TEST(CheckpointOfStages, HasStatesByTheNamesOfParameters) {
  for (const StateDictType type : kTypes) {
    const auto disk = std::make_shared<SimDisk>();
    const Whole saved = whole_after(pp(2), disk, [type](Job& job, Rank&) {
      for (int step = 0; step < 2; ++step) job.train(step);
      job.accelerator().save_state(kFolder, {.state_dict_type = type});
    });
    for (const Layout& layout : {pp(4), pp(2), one_rank()}) {
      SCOPED_TRACE(layout.name);
      const auto load = [](Job& job, Rank&) { job.accelerator().load_state(kFolder); };
      expect_same(whole_after(layout, disk, load, /*dropout=*/0, {.reverses_parameters = true}),
                  saved);
    }
  }
}

// ---- In the middle of a training.

struct Trained {
  std::vector<Tensor> losses;  ///< by rank, of the steps from the first on
  Whole whole;
};

// The job saves behind the step before `last`, and in the middle of it, if that is not the end.
Trained trained(const Layout& layout, const std::shared_ptr<SimDisk>& disk, int first, int last,
                double dropout = 0) {
  Trained found{.losses = std::vector<Tensor>(static_cast<size_t>(layout.ranks)), .whole = {}};
  found.whole = whole_after(
      layout, disk,
      [&](Job& job, Rank& rank) {
        set_seed(first == 0 ? 7 : 8, {.device_specific = true});
        if (first > 0) job.accelerator().load_state(kFolder);
        std::vector<Tensor> losses;
        for (int step = first; step < last; ++step) losses.push_back(job.train(step));
        if (last < kSteps) job.accelerator().save_state(kFolder);
        found.losses[static_cast<size_t>(rank.index())] = torch::stack(losses);
      },
      dropout);
  return found;
}

TEST(CheckpointOfStages, IsNotNoticedByATrainingThatGoesOn) {
  for (const Layout& layout : {pp(2), pp(4), pp_with_several_stages(), pp_and_shards()}) {
    const Trained all = trained(layout, nullptr, 0, kSteps, /*dropout=*/0.5);
    for (int stop = 1; stop < kSteps; ++stop) {
      SCOPED_TRACE(absl::StrCat(layout.name, " after ", stop, " steps"));
      const auto disk = std::make_shared<SimDisk>();
      trained(layout, disk, 0, stop, /*dropout=*/0.5);
      const Trained rest = trained(layout, disk, stop, kSteps, /*dropout=*/0.5);
      expect_same(rest.whole, all.whole);
      for (size_t rank = 0; rank < all.losses.size(); ++rank) {
        EXPECT_TRUE(rest.losses[rank].equal(all.losses[rank].slice(0, stop))) << rank;
      }
    }
  }
}

TEST(CheckpointOfStages, GoesOnWithOtherStagesAsOneProcessDoes) {
  const Tensor all = trained(one_rank(), nullptr, 0, kSteps).losses[0];
  for (const auto& [a, b] :
       {std::pair(pp(2), pp(4)), std::pair(one_rank(), pp(2)), std::pair(pp(4), one_rank())}) {
    SCOPED_TRACE(absl::StrCat(a.name, " to ", b.name));
    const auto disk = std::make_shared<SimDisk>();
    constexpr int kStop = 2;
    trained(a, disk, 0, kStop);
    EXPECT_TRUE(
        torch::allclose(trained(b, disk, kStop, kSteps).losses[0], all.slice(0, kStop), 1e-5, 0));
  }
}

// Gradients of a window that goes on belong to the ranks that have saved them.
TEST(CheckpointInsideAWindow, GoesOnWithTheSameStages) {
  for (const Layout& layout : {pp(2), pp_and_shards()}) {
    SCOPED_TRACE(layout.name);
    const auto disk = std::make_shared<SimDisk>();
    const Whole all = whole_after(layout, disk, [](Job& job, Rank&) {
      job.train(0);
      job.train_window(1, 0);
      job.accelerator().save_state(kFolder);
      job.train_window(1, 1);
      job.end_step();
    });
    expect_same(whole_after(layout, disk,
                            [](Job& job, Rank&) {
                              job.accelerator().load_state(kFolder);
                              job.train_window(1, 1);
                              job.end_step();
                            }),
                all);
  }
}

}  // namespace
}  // namespace accelerate
