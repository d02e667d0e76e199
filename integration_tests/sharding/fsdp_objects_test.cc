// Models and optimizers that are saved and loaded by themselves, in every form and under every
// layout, and the pieces of FSDP 2's preparation.
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "absl/strings/str_cat.h"
#include "accelerate/accelerate.h"
#include "accelerate/config/fsdp_plugin.h"
#include "accelerate/files/formats/merge_weights.h"
#include "accelerate/fsdp_utils.h"
#include "accelerate/modules/module_state_dict.h"
#include "accelerate/parallel/sharded/fsdp2.h"
#include "accelerate/platform/environment.h"
#include "integration_tests/sharding/small_job.h"
#include "simulator/cluster/cluster.h"

namespace accelerate {
namespace {

using simulator::Rank;
using simulator::SimDisk;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using torch::Tensor;
namespace nn = torch::nn;

constexpr StateDictType kTypes[] = {StateDictType::kShardedStateDict, StateDictType::kFullStateDict,
                                    StateDictType::kLocalStateDict};

FullyShardedDataParallelPlugin plugin_of(StateDictType type) {
  return {.fsdp_version = 1, .state_dict_type = type};
}

// What `body` does with a job of the layout after a step, and the losses of the two steps after it.
std::vector<float> losses_after(const Layout& layout, const std::shared_ptr<SimDisk>& disk,
                                uint64_t seed, const std::function<void(Job&)>& body) {
  std::vector<float> losses;
  EXPECT_THAT(run(layout, disk,
                  [&](Rank& rank) {
                    Job job(layout, seed);
                    if (seed == 3) job.step(0);
                    body(job);
                    for (int i = 1; i < 3; ++i) {
                      const float loss = job.step(i);
                      if (rank.index() == 0) losses.push_back(loss);
                    }
                  }),
              Each(IsEmpty()));
  return losses;
}

std::vector<float> save_objects(const Layout& layout, const std::shared_ptr<SimDisk>& disk,
                                StateDictType type, bool use_dcp = true) {
  return losses_after(layout, disk, /*seed=*/3, [&](Job& job) {
    const auto plugin = plugin_of(type);
    save_fsdp_model(plugin, job.accelerator, *job.model, kFolder, {.use_dcp = use_dcp});
    save_fsdp_optimizer(plugin, job.accelerator, *job.optimizer, *job.model, kFolder,
                        {.use_dcp = use_dcp});
  });
}

void load_objects(Job& job, StateDictType type, bool use_dcp = true) {
  const auto plugin = plugin_of(type);
  load_fsdp_model(plugin, job.accelerator, *job.model, kFolder, {.use_dcp = use_dcp});
  load_fsdp_optimizer(plugin, job.accelerator, *job.optimizer, *job.model, kFolder,
                      {.use_dcp = use_dcp});
}

void expect_near(const std::vector<float>& found, const std::vector<float>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], 2e-6);
}

TEST(FsdpObjects, LoadUnderAnyOtherLayout) {
  const Layout four = shards("1x4", 4), hybrid = shards("2x2", 2, 2);
  for (const StateDictType type :
       {StateDictType::kShardedStateDict, StateDictType::kFullStateDict}) {
    for (const Layout& saved : {four, hybrid, replicas("1x2")}) {
      auto disk = std::make_shared<SimDisk>();
      const std::vector<float> expected = save_objects(saved, disk, type);
      for (const Layout& layout : {four, shards("1x3", 3), hybrid, replicas("1x2")}) {
        SCOPED_TRACE(absl::StrCat(to_string(type), ": ", saved.name, " to ", layout.name));
        // Whatever the loading plugin's type is.
        expect_near(losses_after(layout, disk, /*seed=*/99,
                                 [&](Job& job) { load_objects(job, kTypes[1]); }),
                    expected);
      }
    }
  }
}

TEST(FsdpObjects, RanksOwnPartsLoadIntoTheSameLayoutOnly) {
  const Layout four = shards("1x4", 4), two = shards("1x2", 2);
  for (const bool is_local : {true, false}) {
    SCOPED_TRACE(is_local);
    const StateDictType type = kTypes[is_local ? 2 : 0];
    auto disk = std::make_shared<SimDisk>();
    const std::vector<float> expected = save_objects(four, disk, type, /*use_dcp=*/false);
    EXPECT_EQ(losses_after(four, disk, /*seed=*/99,
                           [&](Job& job) { load_objects(job, type, /*use_dcp=*/false); }),
              expected);
    EXPECT_THAT(run(two, disk,
                    [&](Rank&) {
                      Job job(two);
                      load_objects(job, type, /*use_dcp=*/false);
                    }),
                Each(HasSubstr("loads into the same layout only")));
    // A rank's file is missing, or is of another save.
    const std::string third = absl::StrCat(
        kFolder, is_local ? "/pytorch_model_fsdp_rank2" : "/pytorch_model_fsdp_0_rank2",
        ".safetensors");
    const std::string kept = contents(*disk, third);
    losses_after(four, disk, /*seed=*/3, [&](Job& job) {
      job.accelerator.runtime().random_bits();  // so that this save gets another id
      save_fsdp_model(plugin_of(type), job.accelerator, *job.model, kFolder, {.use_dcp = false});
    });
    const auto errors = [&] {
      return run(four, disk, [&](Rank&) {
        Job job(four);
        load_objects(job, type, /*use_dcp=*/false);
      });
    };
    ASSERT_TRUE(write_file(*disk, third, kept).ok());
    EXPECT_THAT(errors(), Each(AllOf(HasSubstr("rank 2 would load"), HasSubstr(third),
                                     HasSubstr("not of the same save"))));
    ASSERT_TRUE(disk->remove(third).ok());
    EXPECT_THAT(errors(),
                Each(AllOf(HasSubstr("rank 2"), HasSubstr("there is none of"), HasSubstr(third))));
  }
}

TEST(FsdpObjects, HaveTheNamesOfHfAccelerate) {
  auto disk = std::make_shared<SimDisk>();
  for (const StateDictType type : kTypes) save_objects(shards("1x2", 2), disk, type);
  save_objects(shards("1x2", 2), disk, kTypes[0], /*use_dcp=*/false);
  EXPECT_THAT(
      files_in(*disk, ""),
      ElementsAre("optimizer.safetensors", "optimizer_0", "optimizer_0_rank0.safetensors",
                  "optimizer_0_rank1.safetensors", "pytorch_model_fsdp.safetensors",
                  "pytorch_model_fsdp_0", "pytorch_model_fsdp_0_rank0.safetensors",
                  "pytorch_model_fsdp_0_rank1.safetensors", "pytorch_model_fsdp_rank0.safetensors",
                  "pytorch_model_fsdp_rank1.safetensors"));
  EXPECT_THAT(files_in(*disk, "pytorch_model_fsdp_0"),
              ElementsAre("manifest.json", "metadata.json", "replicated.safetensors",
                          "shard_00000.safetensors", "shard_00001.safetensors"));
  const auto merged =
      merge_weights(*disk, absl::StrCat(kFolder, "/pytorch_model_fsdp_0"), "/sim/run/merged");
  ASSERT_TRUE(merged.ok()) << merged.status();
  EXPECT_EQ(contents(*disk, "/sim/run/merged/model.safetensors"),
            contents(*disk, absl::StrCat(kFolder, "/pytorch_model_fsdp.safetensors")));
}

TEST(FsdpObjects, LoadOutOfACheckpoint) {
  for (const StateDictType type : kTypes) {
    SCOPED_TRACE(to_string(type));
    auto disk = std::make_shared<SimDisk>();
    const std::vector<float> expected = losses_after(
        shards("1x2", 2), disk, /*seed=*/3,
        [&](Job& job) { job.accelerator.save_state(kFolder, {.state_dict_type = type}); });
    expect_near(losses_after(shards("1x2", 2), disk, /*seed=*/99,
                             [&](Job& job) { load_objects(job, type); }),
                expected);
    if (type != StateDictType::kShardedStateDict) continue;
    // The very folder.
    losses_after(shards("1x2", 2), disk, /*seed=*/99, [&](Job& job) {
      load_fsdp_model(plugin_of(type), job.accelerator, *job.model,
                      absl::StrCat(kFolder, "/pytorch_model_fsdp_0"));
    });
  }
}

TEST(FsdpObjects, MayBeAFewTensorsByName) {
  const Layout layout = shards("1x2", 2);
  const auto is_body = [](const std::string& name) { return name.starts_with("body."); };
  for (const StateDictType type :
       {StateDictType::kShardedStateDict, StateDictType::kFullStateDict}) {
    EXPECT_THAT(run(layout, std::make_shared<SimDisk>(),
                    [&](Rank&) {
                      const auto plugin = plugin_of(type);
                      Job job(layout);
                      save_fsdp_model(plugin, job.accelerator, *job.model, kFolder,
                                      {.adapter_only = is_body});
                      Job other(layout, /*seed=*/99);
                      EXPECT_THAT(error_of([&] {
                                    load_fsdp_model(plugin, other.accelerator, *other.model,
                                                    kFolder);
                                  }),
                                  HasSubstr("missing: "));
                      load_fsdp_model(plugin, other.accelerator, *other.model, kFolder,
                                      {.adapter_only = is_body});
                      const auto whole = full_parameters(*job.model, {.writeback = false});
                      const auto others = full_parameters(*other.model, {.writeback = false});
                      EXPECT_TRUE(torch::equal(other.net->body->weight, job.net->body->weight));
                      EXPECT_FALSE(torch::equal(other.net->back->weight, job.net->back->weight));
                    }),
                Each(IsEmpty()));
  }
}

TEST(FsdpObjects, SayWhatIsWrongOnAllRanks) {
  const Layout layout = shards("1x4", 4);
  auto disk = std::make_shared<SimDisk>();
  const auto errors = [&](const std::string& folder) {
    return run(layout, disk, [&](Rank&) {
      Job job(layout);
      load_fsdp_model(plugin_of(kTypes[0]), job.accelerator, *job.model, folder);
    });
  };
  EXPECT_THAT(errors("/sim/run/none"), Each(HasSubstr("there is no folder /sim/run/none")));
  EXPECT_THAT(run(layout, disk,
                  [&](Rank&) {
                    Accelerator accelerator(options_of(layout));
                    nn::Linear other(4, 4);
                    auto model = accelerator.prepare(other);
                    save_fsdp_model(plugin_of(kTypes[0]), accelerator, model, kFolder);
                  }),
              Each(IsEmpty()));
  EXPECT_THAT(errors(kFolder), Each(AllOf(HasSubstr("pytorch_model_fsdp_0"),
                                          HasSubstr("does not fit"), HasSubstr("missing: "))));
  const std::string file = absl::StrCat(kFolder, "/pytorch_model_fsdp_0/shard_00002.safetensors");
  ASSERT_TRUE(disk->remove(file).ok());
  EXPECT_THAT(errors(kFolder), Each(HasSubstr(absl::StrCat(file, " is missing"))));
}

// ---- The pieces of FSDP 2's preparation.

TEST(Fsdp2, LoadsAFullStateDictFromRankZero) {
  for (const Layout& layout : {shards("1x3", 3), shards("2x2", 2, 2), replicas("1x2")}) {
    SCOPED_TRACE(layout.name);
    EXPECT_THAT(run(layout, std::make_shared<SimDisk>(),
                    [&](Rank& rank) {
                      Job job(layout, /*seed=*/rank.index());
                      EXPECT_EQ(model_has_dtensor(*job.net), layout.parallelism.has_value());
                      torch::manual_seed(77);
                      Net other;
                      EXPECT_FALSE(model_has_dtensor(*other));
                      NamedTensors full;
                      if (rank.index() == 0) full = module_state_dict(*other);
                      fsdp2_load_full_state_dict(job.accelerator, *job.model, full);
                      {
                        const auto whole = full_parameters(*job.model, {.writeback = false});
                        for (const auto& item : other->named_parameters()) {
                          EXPECT_TRUE(torch::equal(job.net->named_parameters()[item.key()].cpu(),
                                                   item.value()))
                              << item.key();
                        }
                      }
                      if (rank.index() == 0) full.pop_back();
                      EXPECT_THAT(error_of([&] {
                                    fsdp2_load_full_state_dict(job.accelerator, *job.model, full);
                                  }),
                                  AllOf(HasSubstr("rank 0"), HasSubstr("back.bias"),
                                        HasSubstr("missing from full state dict")));
                    }),
                Each(IsEmpty()));
  }
}

TEST(Fsdp2, SwitchesTheParametersOfAnOptimizer) {
  const Tensor a = torch::ones({2}), b = torch::ones({3}), other = torch::zeros({1});
  torch::optim::SGD sgd({a, b}, 0.1);
  EXPECT_THAT(
      error_of([&] { fsdp2_switch_optimizer_parameters(sgd, {{a.unsafeGetTensorImpl(), other}}); }),
      HasSubstr("number 1 of group 0 is not in the mapping"));
  EXPECT_TRUE(sgd.param_groups()[0].params()[0].is_same(a));
  fsdp2_switch_optimizer_parameters(
      sgd, {{a.unsafeGetTensorImpl(), other}, {b.unsafeGetTensorImpl(), b}});
  EXPECT_TRUE(sgd.param_groups()[0].params()[0].is_same(other));
  EXPECT_TRUE(sgd.param_groups()[0].params()[1].is_same(b));
}

TEST(Fsdp2, TellsWhichModulesAPolicyPicks) {
  Environment environment;
  const Net net;
  const ModulePolicy by_size = fsdp2_prepare_auto_wrap_policy(
      resolve({.fsdp_version = 2, .auto_wrap_policy = "size_based_wrap", .min_num_params = 48},
              environment),
      *net);
  EXPECT_TRUE(by_size(*net->body));   // 49 parameters
  EXPECT_FALSE(by_size(*net->back));  // 48
  const ModulePolicy by_class = fsdp2_prepare_auto_wrap_policy(
      resolve({.fsdp_version = 2,
               .auto_wrap_policy = "transformer_based_wrap",
               .transformer_cls_names_to_wrap = std::vector<std::string>{"Embedding"}},
              environment),
      *net);
  EXPECT_TRUE(by_class(*net->embedding));
  EXPECT_FALSE(by_class(*net->body));
  EXPECT_EQ(fsdp2_prepare_auto_wrap_policy(resolve({.fsdp_version = 2}, environment), *net),
            nullptr);
}

TEST(Fsdp2, NoticesTiedParametersThatAreMadeAnew) {
  Net net;
  const auto fill = ensure_weights_retied(
      [](nn::Module& module) {
        const torch::NoGradGuard no_grad;
        for (Tensor& each : module.parameters(/*recurse=*/false)) each.fill_(1);
      },
      *net);
  fill(*net);
  fill(*net->embedding);
  EXPECT_TRUE(net->head.is_same(net->embedding->weight));
  struct TiedImpl : nn::Module {
    explicit TiedImpl(const Tensor& weight) { register_parameter("weight", weight); }
    void make_anew() {
      parameters_.erase("weight");
      register_parameter("weight", torch::zeros({2}));
    }
  };
  const Tensor weight = torch::ones({2});
  nn::ModuleList tied;
  for (int i = 0; i < 2; ++i) tied->push_back(std::make_shared<TiedImpl>(weight));
  const auto replace = ensure_weights_retied(
      [](nn::Module& module) { dynamic_cast<TiedImpl&>(module).make_anew(); }, *tied);
  EXPECT_THAT(error_of([&] { replace(*tied->ptr(1)); }),
              HasSubstr("param_init_fn replaced the parameter \"weight\""));
}

TEST(Fsdp2, RecomputesWithoutThePluginsOption) {
  EXPECT_THAT(run({.name = "FSDP 2",
                   .shape = "1x2",
                   .plugin = FullyShardedDataParallelPlugin{.fsdp_version = 2}},
                  std::make_shared<SimDisk>(),
                  [&](Rank&) {
                    Accelerator accelerator(
                        {.fsdp_plugin = FullyShardedDataParallelPlugin{.fsdp_version = 2}});
                    Net net;
                    auto model = fsdp2_apply_ac(accelerator, fsdp2_prepare_model(accelerator, net));
                    // The model has no calls of accelerate::block().
                    EXPECT_THAT(error_of([&] { model(torch::arange(4)); }),
                                HasSubstr("accelerate::block(module, inputs...)"));
                    Accelerator other;
                    fsdp2_prepare_model(other, net);
                  }),
              Each(IsEmpty()));
  EXPECT_THAT(run(replicas("1x2"), std::make_shared<SimDisk>(),
                  [&](Rank&) {
                    Accelerator accelerator;
                    fsdp2_prepare_model(accelerator, Net());
                  }),
              Each(HasSubstr("fsdp_version 2")));
}

}  // namespace
}  // namespace accelerate
