// Dispatched models in files and inside of other modules, as `prepare` takes them: their state,
// what is refused, and what memory_report counts. One shape of the cluster each: placements name
// its devices.
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "absl/strings/str_cat.h"
#include "accelerate/accelerate.h"
#include "accelerate/checkpoint/folder/save_load.h"
#include "accelerate/comm/checkpoint_error.h"
#include "accelerate/dispatch/dispatch.h"
#include "accelerate/dispatch/offloaded_state.h"
#include "accelerate/modules/module_state_dict.h"
#include "accelerate/operators/managed_storage.h"
#include "integration_tests/dispatch/models.h"
#include "simulator/cluster/cluster.h"
#include "simulator/disk/sim_disk.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::Rank;
using simulator::SimDisk;
using ::testing::AllOf;
using ::testing::HasSubstr;

lm::Lm make_lm(uint64_t seed = 11) {
  torch::manual_seed(seed);
  return lm::Lm(lm_config(lm::Blocks::kGpt, /*tied=*/true));
}

DeviceMap map_of(const std::vector<std::string>& placements) {
  return cut(lm_case("", lm::Blocks::kGpt, true).parts, placements);
}

Tensor text() { return tokens_of({2, 7}, 41); }

void on_a_disk(const std::function<void(Rank&)>& body,
               const std::string& shape = "1x1:h100,devices=2",
               const Environment& environment = {}) {
  Cluster cluster(shape, {.environment = environment, .disk = std::make_shared<SimDisk>()});
  cluster.run_on_every_rank(body);
}

std::string rank_folder(const Rank& rank) { return absl::StrCat(kFolder, rank.index()); }

// ---- State.

TEST(SaveState, HasWhatIsInFiles) {
  Environment bypass;
  bypass.set("ACCELERATE_BYPASS_DEVICE_MAP", "true");
  for (const char* shape : {"1x1:h100", "1x2:h100"}) {
    on_a_disk(
        [](Rank& rank) {
          const torch::NoGradGuard no_grad;
          Accelerator accelerator;
          const std::string own = absl::StrCat(rank.index());
          for (const bool offload_buffers : {false, true}) {
            for (const auto& placements :
                 {std::vector<std::string>{"disk"}, {own, "disk"}, {"cpu", own, "disk"}}) {
              lm::Lm plain = make_lm();
              auto dispatched = dispatch_model(make_lm(), map_of(placements),
                                               {.main_device = sim(rank.index()),
                                                .offload_dir = rank_folder(rank),
                                                .offload_buffers = offload_buffers});
              // Each rank's model is its own.
              auto model = accelerator.prepare_model(dispatched, {.evaluation_mode = true});
              const Tensor expected = plain->forward(text());
              EXPECT_TRUE(torch::equal(model(text()).cpu(), expected));
              accelerator.save_state("/sim/state");
              accelerator.load_state("/sim/state");
              EXPECT_TRUE(torch::equal(model(text()).cpu(), expected));
              accelerator.free_memory();
              // Another model in memory takes it.
              lm::Lm other = make_lm(12);
              auto prepared = accelerator.prepare_model(other, {.evaluation_mode = true});
              accelerator.load_state("/sim/state");
              EXPECT_TRUE(torch::equal(prepared(text().to(sim(rank.index()))).cpu(), expected));
              accelerator.free_memory();
            }
          }
        },
        shape, bypass);
  }
}

TEST(LoadState, DoesNotChangeFiles) {
  on_a_disk([](Rank& rank) {
    const torch::NoGradGuard no_grad;
    Accelerator accelerator;
    auto other = accelerator.prepare_model(make_lm(12), {.evaluation_mode = true});
    accelerator.save_state("/sim/other");
    accelerator.free_memory();
    auto dispatched =
        dispatch_model(make_lm(), map_of({"0", "cpu", "disk"}), {.offload_dir = kFolder});
    auto model = accelerator.prepare_model(dispatched, {.evaluation_mode = true});
    EXPECT_THAT(error_of([&] { accelerator.load_state("/sim/other"); }),
                AllOf(HasSubstr("has other values there than in the file"), HasSubstr("blocks."),
                      HasSubstr("load_checkpoint_and_dispatch"), HasSubstr("/sim/other")));
    // Nothing was loaded.
    EXPECT_TRUE(torch::equal(model(text()).cpu(), make_lm()->forward(text())));
    // A file that is gone is named.
    EXPECT_TRUE(rank.runtime().files().remove(join_path(kFolder, "norm.weight.dat")).ok());
    EXPECT_THAT(error_of([&] { accelerator.save_state("/sim/none"); }),
                HasSubstr("norm.weight.dat"));
  });
}

TEST(AlignModuleDevice, KeepsGradients) {
  on_a_disk([](Rank&) {
    torch::nn::Linear layer(4, 4);
    layer(torch::ones({2, 4})).sum().backward();
    const Tensor expected = layer->weight.grad().clone();
    {
      const ModuleOnDevice scope = align_module_device(*layer, sim(1));
      EXPECT_EQ(layer->weight.grad().device(), sim(1));
      layer(torch::ones({2, 4}).to(sim(1))).sum().backward();
    }
    EXPECT_TRUE(layer->weight.is_cpu());
    ASSERT_TRUE(layer->weight.grad().defined());
    EXPECT_TRUE(torch::equal(layer->weight.grad(), 2 * expected));
  });
}

TEST(MemoryReport, CountsADispatchedModelOnce) {
  on_a_disk([](Rank&) {
    Accelerator accelerator;
    lm::Lm net = make_lm();
    int64_t in_memory = 0;
    const DeviceMap map = map_of({"0", "cpu", "disk"});
    for (const auto& each : net->named_parameters()) {
      if (!map.find(each.key())->is_disk()) in_memory += each.value().nbytes();
    }
    auto dispatched = dispatch_model(net, map, {.offload_dir = kFolder});
    auto model = accelerator.prepare_model(dispatched, {.evaluation_mode = true});
    const MemoryReport report = accelerator.free_memory();
    ASSERT_EQ(report.survivors.size(), 1U);
    EXPECT_EQ(report.survivors[0].kind, "model");
    EXPECT_EQ(report.survivors[0].bytes, in_memory);
  });
}

// Each model computes with the values that it had when it was offloaded, whatever the folder has.
TEST(OffloadFolder, OfAnotherModelIsWrittenAnew) {
  on_a_disk([](Rank& rank) {
    const torch::NoGradGuard no_grad;
    std::vector<std::optional<Dispatched<lm::LmImpl>>> models;
    std::vector<Tensor> expected;
    const auto check = [&](const std::string& what) {
      for (size_t i = 0; i < models.size(); ++i) {
        if (!models[i]) continue;
        EXPECT_TRUE(torch::equal((*models[i])(text()).cpu(), expected[i]))
            << what << ": model " << i;
      }
    };
    // By each way into the folder, and under each way to write its path.
    for (int seed = 1; seed <= 6; ++seed) {
      lm::Lm net = make_lm(seed);
      expected.push_back(net->forward(text()));
      switch (seed) {
        case 1: models.push_back(disk_offload(net, kFolder)); break;
        case 2: models.push_back(disk_offload(net, absl::StrCat(kFolder, "/"))); break;
        case 3:
          models.push_back(dispatch_model(net, map_of({"0", "disk"}),
                                          {.offload_dir = kFolder, .offload_buffers = true}));
          break;
        case 4:
          models.push_back(
              dispatch_model(net, map_of({"cpu", "disk", "0"}), {.offload_dir = kFolder}));
          break;
        case 5:
          save_model(rank.runtime().files(), module_state_dict(*net), "/sim/five");
          models.push_back(load_checkpoint_and_dispatch(
              rank.runtime().files(), make_lm(99), "/sim/five",
              {.device_map = map_of({"disk", "0"}), .offload_folder = kFolder}));
          break;
        default:
          save_model(rank.runtime().files(), module_state_dict(*net), "/sim/six");
          models.push_back(load_checkpoint_and_dispatch(
              rank.runtime().files(), make_lm(99), "/sim/six",
              {.device_map = whole("disk"), .offload_folder = kFolder}));
      }
      check(absl::StrCat("after ", seed));
    }
    // Their state is what they compute with.
    const NamedTensors state = get_state_dict_offloaded_model(**models[0]);
    const NamedTensors plain = module_state_dict(*make_lm(1));
    for (size_t i = 0; i < state.size(); ++i) {
      EXPECT_TRUE(torch::equal(state[i].second, plain[i].second)) << state[i].first;
    }
    models[2].reset();
    check("without one");
  });
}

TEST(OffloadFolder, OfAnEarlierRunIsWrittenAnew) {
  const auto disk = std::make_shared<SimDisk>();
  const auto offload = [&](const std::function<void(Rank&)>& body) {
    Cluster cluster("1x1:h100,devices=2", {.disk = disk});
    cluster.run_on_every_rank(body);
  };
  offload([](Rank&) { auto stale = disk_offload(make_lm(), kFolder); });
  offload([](Rank& rank) {
    const torch::NoGradGuard no_grad;
    // In another dtype, and trained since.
    lm::Lm net = make_lm(12);
    net->to(torch::kBFloat16);
    const Tensor expected = net->forward(text());
    auto model = disk_offload(net, kFolder);
    EXPECT_TRUE(torch::equal(model(text()), expected));
    // An empty model has no values of its own.
    lm::Lm empty = [] {
      const EmptyInit scope = init_empty_weights();
      return make_lm();
    }();
    empty->to(torch::kBFloat16);
    auto other = disk_offload(empty, kFolder);
    EXPECT_TRUE(torch::equal(other(text()), expected));
    // An index that is given is asked for.
    auto given = dispatch_model(make_lm(), whole("disk"),
                                {.offload_dir = kFolder,
                                 .offload_index = internal::value_or_throw(
                                     read_offload_index(rank.runtime().files(), kFolder))});
    lm::Lm converted = make_lm(12);
    converted->to(torch::kBFloat16);
    converted->to(torch::kFloat);
    EXPECT_TRUE(torch::equal(given(text()), converted->forward(text())));
  });
}

// A model that has no memory since it was offloaded, or loaded, is that model, whatever was
// offloaded meanwhile.
TEST(OffloadFolder, IsKnownToAModelWithoutMemory) {
  on_a_disk([](Rank& rank) {
    const torch::NoGradGuard no_grad;
    FileSystem& files = rank.runtime().files();
    lm::Lm first = make_lm(1), second = make_lm(2);
    const Tensor of_first = first->forward(text()), of_second = second->forward(text());
    for (const lm::Lm& each : {first, second}) {
      auto model = disk_offload(each, kFolder);
    }
    auto again = disk_offload(first, kFolder);
    EXPECT_TRUE(torch::equal(again(text()), of_first));
    auto other = disk_offload(second, kFolder);
    EXPECT_TRUE(torch::equal(other(text()), of_second));

    const auto load = [&](int seed) {
      lm::Lm net = make_lm(99);
      const std::string checkpoint = absl::StrCat("/sim/checkpoint_", seed);
      save_model(files, module_state_dict(*make_lm(seed)), checkpoint);
      load_checkpoint_in_model(files, *net, checkpoint,
                               {.device_map = whole("disk"), .offload_folder = "/sim/loaded"});
      return net;
    };
    lm::Lm third = load(3), fourth = load(4);
    auto of_third = disk_offload(third, "/sim/loaded/");
    auto of_fourth = disk_offload(fourth, "/sim/loaded");
    EXPECT_TRUE(torch::equal(of_third(text()), make_lm(3)->forward(text())));
    EXPECT_TRUE(torch::equal(of_fourth(text()), make_lm(4)->forward(text())));
    // A model that asks for another folder gets what that has.
    auto elsewhere = disk_offload(load(5), kFolder);
    EXPECT_TRUE(torch::equal(elsewhere(text()), of_second));
  });
}

// A checkpoint without a tensor does not get another run's value for it.
TEST(OffloadFolder, IsNoCheckpoint) {
  on_a_disk([](Rank& rank) {
    const torch::NoGradGuard no_grad;
    FileSystem& files = rank.runtime().files();
    {
      auto stale = disk_offload(make_lm(), kFolder);
    }
    NamedTensors state = module_state_dict(*make_lm(12));
    std::erase_if(state, [](const auto& each) { return each.first == "norm.weight"; });
    save_model(files, state, "/sim/part");
    lm::Lm empty = [] {
      const EmptyInit scope = init_empty_weights();
      return make_lm();
    }();
    EXPECT_THAT(error_of([&] {
                  (void)load_checkpoint_and_dispatch(
                      files, empty, "/sim/part",
                      {.device_map = whole("disk"), .offload_folder = kFolder});
                }),
                AllOf(HasSubstr("\"norm.weight\""), HasSubstr("has no values")));
    // A model that had a value keeps it.
    lm::Lm net = make_lm(11);
    lm::Lm plain = make_lm(12);
    net->named_parameters()["norm.weight"].fill_(0.5);
    plain->named_parameters()["norm.weight"].fill_(0.5);
    auto model = load_checkpoint_and_dispatch(
        files, net, "/sim/part", {.device_map = whole("disk"), .offload_folder = kFolder});
    EXPECT_TRUE(torch::equal(model(text()), plain->forward(text())));
  });
}

// Two names of one tensor, of which the folder has other values under each, and a buffer.
struct TiedNetImpl : torch::nn::Module {
  explicit TiedNetImpl(double value, bool is_tied) {
    first = register_parameter("first", torch::full({3}, value));
    second = register_parameter("second", is_tied ? first : torch::full({3}, 2 * value));
    table = register_buffer("table", torch::full({3}, 3 * value));
  }
  Tensor forward(const Tensor& x) { return x * first + second * table; }
  Tensor first, second, table;
};
TORCH_MODULE(TiedNet);

TEST(OffloadFolder, HasTiedTensorsAndBuffersOfEachModel) {
  on_a_disk([](Rank&) {
    const torch::NoGradGuard no_grad;
    const Tensor x = torch::arange(3.).to(torch::kFloat);
    std::vector<Dispatched<TiedNetImpl>> models;
    std::vector<Tensor> expected;
    for (const bool is_tied : {false, true, false, true}) {
      TiedNet net(static_cast<double>(models.size()) + 1, is_tied);
      expected.push_back(net->forward(x));
      models.push_back(dispatch_model(
          net, whole("disk"),
          {.main_device = sim(0), .offload_dir = kFolder, .offload_buffers = models.size() != 2}));
    }
    for (size_t i = 0; i < models.size(); ++i) {
      EXPECT_TRUE(torch::equal(models[i](x).cpu(), expected[i])) << i;
    }
  });
}

// Ranks are processes, which do not know of each other: none computes with another's values.
TEST(OffloadFolder, OfSeveralRanksIsRefusedWhereTheirValuesDiffer) {
  on_a_disk(
      [](Rank& rank) {
        const torch::NoGradGuard no_grad;
        lm::Lm net = make_lm(rank.index());
        const Tensor expected = net->forward(text());
        auto model = disk_offload(net, kFolder);
        Accelerator accelerator;
        accelerator.wait_for_everyone();
        Tensor output;
        const std::string error = error_of([&] { output = model(text()); });
        if (error.empty()) {
          EXPECT_TRUE(torch::equal(output, expected));
        } else {
          EXPECT_THAT(error, AllOf(HasSubstr(kFolder), HasSubstr("a folder of its own")));
        }
      },
      "1x2");
}

// ---- Modules around dispatched models.

// A head of its own behind a model that a device map has placed.
struct WrapperImpl : torch::nn::Module {
  explicit WrapperImpl(Dispatched<lm::LmImpl> model, bool by_handle)
      : body(std::move(model)), by_handle(by_handle) {
    register_module("body", body.module());
    torch::manual_seed(2);
    head = register_module("head", torch::nn::Linear(41, 5));
    scale = register_buffer("scale", torch::full({5}, 2.));
  }
  Tensor forward(const Tensor& tokens) {
    const Tensor logits = by_handle ? body(tokens) : body->forward(tokens);
    return head(logits) * scale;
  }
  Dispatched<lm::LmImpl> body;
  const bool by_handle;
  torch::nn::Linear head{nullptr};
  Tensor scale;
};
TORCH_MODULE(Wrapper);

TEST(Wrappers, TrainWhatIsDispatchedInside) {
  struct Result {
    std::vector<double> losses;
    NamedTensors state;
  };
  const auto train = [](const std::vector<std::string>& placements, bool by_handle) {
    Result result;
    on_a_disk([&](Rank&) {
      Accelerator accelerator;
      Wrapper net(dispatch_model(make_lm(), map_of(placements)), by_handle);
      auto adam = std::make_shared<torch::optim::AdamW>(net->parameters(), 0.01);
      auto [model, optimizer] = accelerator.prepare(net, adam);
      EXPECT_EQ(net->head->weight.device(), sim(0));
      EXPECT_EQ(net->scale.device(), sim(0));
      for (int step = 0; step < 4; ++step) {
        const Tensor tokens = text().to(sim(0));
        const Tensor loss =
            torch::cross_entropy_loss(model(tokens).flatten(0, 1), tokens.flatten() % 5);
        result.losses.push_back(loss.item<double>());
        accelerator.backward(loss);
        result.losses.push_back(accelerator.clip_grad_norm_(model, 0.5).template item<double>());
        optimizer.step();
        optimizer.zero_grad();
      }
      accelerator.save_state("/sim/state");
      accelerator.load_state("/sim/state");
      result.state = accelerator.get_state_dict(model);
      for (auto& [name, tensor] : result.state) tensor = tensor.detach().cpu().clone();
    });
    return result;
  };
  const Result expected = train({"0"}, true);
  EXPECT_LT(expected.losses[6], expected.losses[0]);
  for (const bool by_handle : {true, false}) {
    for (const auto& placements :
         {std::vector<std::string>{"0", "1"}, {"0", "cpu"}, {"cpu", "0", "1"}}) {
      const Result some = train(placements, by_handle);
      ASSERT_EQ(some.losses.size(), expected.losses.size());
      for (size_t i = 0; i < some.losses.size(); ++i) {
        EXPECT_NEAR(some.losses[i], expected.losses[i], 1e-5) << i;
      }
      ASSERT_EQ(some.state.size(), expected.state.size());
      for (size_t i = 0; i < some.state.size(); ++i) {
        EXPECT_EQ(some.state[i].first, expected.state[i].first);
        EXPECT_TRUE(torch::allclose(some.state[i].second, expected.state[i].second, 1e-4, 1e-5))
            << some.state[i].first;
      }
    }
  }
}

// Two models of one module, each on a device of its own, called as plain modules.
struct PairImpl : torch::nn::Module {
  explicit PairImpl(const lm::Lm& first, const lm::Lm& second)
      : first(register_module("first", first)), second(register_module("second", second)) {}
  Tensor forward(const Tensor& tokens) { return first->forward(tokens) + second->forward(tokens); }
  lm::Lm first, second;
};
TORCH_MODULE(Pair);

TEST(Wrappers, ComputeWithSeveralDispatchedModels) {
  on_a_disk([](Rank&) {
    const torch::NoGradGuard no_grad;
    const Tensor expected = make_lm(1)->forward(text()) + make_lm(2)->forward(text());
    lm::Lm first = make_lm(1), second = make_lm(2);
    auto one = dispatch_model(first, map_of({"0", "cpu"}));
    auto other = dispatch_model(second, map_of({"1", "disk"}), {.offload_dir = kFolder});
    Accelerator accelerator;
    auto model = accelerator.prepare_model(Pair(first, second), {.evaluation_mode = true});
    for (int pass = 0; pass < 2; ++pass) {
      EXPECT_TRUE(torch::equal(model(text().to(sim(0))).cpu(), expected));
    }
  });
}

TEST(Wrappers, AreRefusedWhereTheModelInsideIs) {
  on_a_disk(
      [](Rank& rank) {
        Accelerator accelerator;
        const auto error_with = [&](const DeviceMap& map) {
          Wrapper net(dispatch_model(
                          make_lm(), map,
                          {.main_device = sim(2 * rank.index()), .offload_dir = rank_folder(rank)}),
                      true);
          return error_of([&] { (void)accelerator.prepare(net); });
        };
        const std::string own = absl::StrCat(2 * rank.index());
        EXPECT_THAT(error_with(map_of({own, absl::StrCat(2 * rank.index() + 1)})),
                    HasSubstr("placed on several devices"));
        EXPECT_THAT(error_with(whole("cpu")),
                    AllOf(HasSubstr("offloaded parameter"), HasSubstr("evaluation_mode")));
      },
      "1x2:h100,devices=2");
}

}  // namespace
}  // namespace accelerate
