// The functions around dispatched models, prepared ones, and what is refused.
// One shape of the cluster each: placements name its devices.
#include <cstddef>
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
#include "accelerate/big_model/infer_device_map.h"
#include "accelerate/checkpoint/folder/save_load.h"
#include "accelerate/dispatch/dispatch.h"
#include "accelerate/dispatch/offloaded_state.h"
#include "accelerate/hooks/model_hook.h"
#include "accelerate/modules/module_state_dict.h"
#include "accelerate/operators/managed_storage.h"
#include "integration_tests/dispatch/models.h"
#include "simulator/cluster/cluster.h"
#include "simulator/disk/sim_disk.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::ClusterOptions;
using simulator::FileFault;
using simulator::FileFaultKind;
using simulator::Rank;
using simulator::SimDisk;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kCheckpoint[] = "/sim/model";

lm::Lm make_lm(bool tied = false) {
  torch::manual_seed(11);
  return lm::Lm(lm_config(lm::Blocks::kGpt, tied));
}

const std::vector<std::string>& lm_parts() {
  static const auto* const parts =
      new std::vector<std::string>(lm_case("", lm::Blocks::kGpt).parts);
  return *parts;
}

Tensor text() { return tokens_of({2, 7}, 41); }

void on_a_disk(const std::function<void(Rank&)>& body,
               const std::string& shape = "1x1:h100,devices=2") {
  Cluster cluster(shape, {.disk = std::make_shared<SimDisk>()});
  cluster.run_on_every_rank(body);
}

void expect_state(const NamedTensors& state, const torch::nn::Module& expected) {
  const NamedTensors tensors = module_state_dict(expected);
  ASSERT_EQ(state.size(), tensors.size());
  for (size_t i = 0; i < state.size(); ++i) {
    EXPECT_EQ(state[i].first, tensors[i].first);
    EXPECT_TRUE(state[i].second.is_cpu());
    EXPECT_TRUE(torch::equal(state[i].second, tensors[i].second.cpu())) << state[i].first;
  }
}

// ---- cpu_offload, disk_offload, load_checkpoint_and_dispatch.

TEST(Offload, ToTheHostTakesEachArgument) {
  on_a_disk([](Rank&) {
    const torch::NoGradGuard no_grad;
    const auto expected = std::make_shared<ConvnetImpl>();
    expected->eval();
    const Tensor images = torch::arange(2. * 2 * 64).sin().view({2, 2, 8, 8}).to(torch::kFloat);
    const Tensor output = expected->forward(images);
    for (const bool buffers : {false, true}) {
      const auto net = std::make_shared<ConvnetImpl>();
      net->eval();
      auto model = cpu_offload(net, {.execution_device = sim(1),
                                     .offload_buffers = buffers,
                                     .state_dict = module_state_dict(*expected),
                                     .preload_module_classes = {"Convnet"}});
      for (const auto& each : net->named_buffers()) {
        if (!buffers) each.value().copy_(expected->named_buffers()[each.key()]);
      }
      EXPECT_TRUE(torch::equal(model(images), output));
      EXPECT_EQ(model.main_device(), sim(1));
      EXPECT_EQ(net->norm->running_mean.device(), sim(1));
      EXPECT_EQ(is_absent(net->norm->running_mean), buffers);
      EXPECT_TRUE(is_absent(net->head->weight));
      // One group: the whole model.
      EXPECT_EQ(model.state()->residency()->times_brought(), 1);
    }
    // The first parameter's device; that of the CPU has nothing to bring.
    const auto net = std::make_shared<ConvnetImpl>();
    auto model = cpu_offload(net);
    EXPECT_EQ(model.main_device(), c10::Device(at::kCPU));
    EXPECT_EQ(model.state()->residency(), nullptr);
  });
}

// Notes where it finds tensors, and doubles the output.
class Doubler final : public ModelHook {
 public:
  void pre_forward(torch::nn::Module& /*module*/, ForwardValues& arguments) override {
    inputs = arguments.find_device();
    TORCH_CHECK(!fails, "a hook that fails");
  }
  void post_forward(torch::nn::Module& /*module*/, ForwardValues& output) override {
    outputs = output.find_device();
    output.for_each_tensor([](Tensor& tensor) { tensor = tensor * 2; });
  }
  std::optional<c10::Device> inputs, outputs;
  bool fails = false;
};

TEST(Hooks, RunAroundTheModuleOnTheMainDevice) {
  on_a_disk([](Rank&) {
    const torch::NoGradGuard no_grad;
    const auto net = std::make_shared<ConvnetImpl>();
    net->eval();
    const Tensor images = torch::arange(2. * 2 * 64).sin().view({2, 2, 8, 8}).to(torch::kFloat);
    const Tensor output = net->forward(images);
    auto model = cpu_offload(net, {.execution_device = sim(1)});
    const auto hook = std::make_shared<Doubler>();
    add_hook_to_module(model, hook);
    const auto copy = model;
    hook->fails = true;
    EXPECT_THAT(error_of([&] { model(images); }), HasSubstr("a hook that fails"));
    hook->fails = false;
    EXPECT_TRUE(torch::equal(model(images), output * 2));
    EXPECT_EQ(hook->inputs, sim(1));
    EXPECT_EQ(hook->outputs, sim(1));
    EXPECT_EQ(find_hook(copy), hook);
    remove_hook_from_module(model);
    EXPECT_TRUE(torch::equal(model(images), output));
  });
}

TEST(Offload, ToTheDiskWritesWhatIsNotThere) {
  on_a_disk([](Rank& rank) {
    const torch::NoGradGuard no_grad;
    lm::Lm plain = make_lm();
    const Tensor expected = plain->forward(text());
    {
      lm::Lm net = make_lm();
      auto model = disk_offload(net, kFolder);
      EXPECT_EQ(model.main_device(), c10::Device(at::kCPU));
      EXPECT_TRUE(torch::equal(model(text()), expected));
      EXPECT_TRUE(torch::equal(model(text()), expected));
      EXPECT_THAT(model.parameters(), ElementsAre());
    }
    // The folder has the values; the model does not.
    lm::Lm net = [] {
      const EmptyInit empty = init_empty_weights();
      return make_lm();
    }();
    auto model = disk_offload(net, kFolder, {.execution_device = sim(0)});
    EXPECT_TRUE(torch::equal(model(text()), expected.to(sim(0)).cpu()));
    expect_state(get_state_dict_offloaded_model(*net), *plain);
    EXPECT_EQ(OffloadedWeightsLoader(rank.runtime().files(), {.save_folder = kFolder}).size(),
              plain->parameters().size());
  });
}

TEST(Offload, ToTheDiskWritesValuesThatAreGiven) {
  on_a_disk([](Rank&) {
    const torch::NoGradGuard no_grad;
    lm::Lm earlier = make_lm(), plain = make_lm();
    for (const Tensor& parameter : plain->parameters()) parameter.mul_(0.5);
    const Tensor before = earlier->forward(text());
    auto other = disk_offload(earlier, kFolder);
    lm::Lm net = [] {
      const EmptyInit empty = init_empty_weights();
      return make_lm();
    }();
    auto model = dispatch_model(net, whole("disk"),
                                {.state_dict = module_state_dict(*plain), .offload_dir = kFolder});
    EXPECT_TRUE(torch::equal(model(text()), plain->forward(text())));
    EXPECT_TRUE(torch::equal(other(text()), before)) << "each keeps its values";
  });
}

TEST(Offload, ReadsSafetensorsFilesThatAnIndexNames) {
  on_a_disk([](Rank& rank) {
    const torch::NoGradGuard no_grad;
    lm::Lm plain = make_lm();
    FileSystem& files = rank.runtime().files();
    NamedTensors halves;
    for (const auto& [name, tensor] : module_state_dict(*plain)) {
      halves.emplace_back("old." + name, tensor.to(torch::kHalf));
      tensor.copy_(tensor.to(torch::kHalf));
    }
    save_model(files, halves, kCheckpoint);
    OffloadIndex index;
    for (const auto& [name, tensor] : halves) {
      index.emplace_back(name.substr(4), OffloadedTensor{.safetensors_file = join_path(
                                                             kCheckpoint, "model.safetensors"),
                                                         .weight_name = name});
    }
    lm::Lm net = [] {
      const EmptyInit empty = init_empty_weights();
      return make_lm();
    }();
    // Values become what the model's tensors are, on each of the places.
    auto model =
        dispatch_model(net, cut(lm_parts(), {"0", "cpu", "disk"}), {.offload_index = index});
    EXPECT_TRUE(torch::equal(model(text()), plain->forward(text())));
    EXPECT_TRUE(torch::equal(model(text()), plain->forward(text())));
  });
}

TEST(LoadAndDispatch, TakesEachKindOfMap) {
  on_a_disk([](Rank& rank) {
    const torch::NoGradGuard no_grad;
    FileSystem& files = rank.runtime().files();
    lm::Lm plain = make_lm();
    save_model(files, module_state_dict(*plain), kCheckpoint);
    const Tensor expected = plain->forward(text());
    double bytes = 0;
    for (const Tensor& each : plain->parameters()) bytes += static_cast<double>(each.nbytes());
    for (const char* kind : {"auto", "balanced", "balanced_low_0", "sequential"}) {
      lm::Lm net = [] {
        const EmptyInit empty = init_empty_weights();
        return make_lm();
      }();
      auto model = load_checkpoint_and_dispatch(
          files, net, kCheckpoint,
          {.device_map = std::string(kind),
           .max_memory = MaxMemory{{DevicePlacement::accelerator(0), bytes / 2},
                                   {DevicePlacement::accelerator(1), bytes / 3},
                                   {DevicePlacement::cpu(), bytes / 3}},
           .no_split_module_classes = {"Block"},
           .offload_folder = absl::StrCat(kFolder, kind),
           .offload_state_dict = true,
           .skip_keys = {"cache"},
           .force_hooks = true,
           .strict = true});
      EXPECT_GT(model.hf_device_map().placements().size(), 1) << kind;
      EXPECT_TRUE(torch::equal(model(text()), expected)) << kind << model.hf_device_map().text();
      EXPECT_TRUE(verify_device_map(*net));
      EXPECT_FALSE(verify_device_map(*plain));
      expect_state(get_state_dict_offloaded_model(*net), *plain);
    }
    lm::Lm net = make_lm();
    EXPECT_THAT(error_of([&] {
                  auto model = load_checkpoint_and_dispatch(files, net, kCheckpoint,
                                                            {.device_map = std::string("even")});
                }),
                AllOf(HasSubstr("device_map is \"even\""), HasSubstr("\"balanced_low_0\"")));
    // Without a map it is loaded where it is.
    auto model = load_checkpoint_and_dispatch(files, net, kCheckpoint);
    EXPECT_TRUE(torch::equal(model(text()), expected));
    EXPECT_TRUE(model.hf_device_map().empty());
  });
}

TEST(LoadAndDispatch, ConvertsAndReadsOnOneRank) {
  Cluster cluster("1x2:h100", {.disk = std::make_shared<SimDisk>()});
  cluster.run_on_every_rank([](Rank& rank) {
    const torch::NoGradGuard no_grad;
    PartialState& state = PartialState::get(rank.runtime());
    FileSystem& files = rank.runtime().files();
    lm::Lm plain = make_lm();
    if (rank.index() == 0) save_model(files, module_state_dict(*plain), kCheckpoint);
    state.wait_for_everyone();
    plain->to(torch::kBFloat16);
    lm::Lm net = [] {
      const EmptyInit empty = init_empty_weights();
      return make_lm();
    }();
    const DeviceMap map = cut(lm_parts(), {absl::StrCat(rank.index()), "cpu", "disk"});
    auto model =
        load_checkpoint_and_dispatch(files, net, rank.index() == 0 ? kCheckpoint : "none",
                                     {.device_map = map,
                                      .offload_folder = absl::StrCat(kFolder, rank.index()),
                                      .dtype = torch::kBFloat16,
                                      .broadcast_from_rank0 = true,
                                      .process_group = state.group()});
    EXPECT_TRUE(torch::equal(model(text()), plain->forward(text())));
  });
}

// ---- State.

TEST(State, OfAModuleComesForAScope) {
  on_a_disk([](Rank&) {
    const torch::NoGradGuard no_grad;
    lm::Lm plain = make_lm();
    lm::Lm net = make_lm();
    const auto modules = net->named_children();
    auto model =
        dispatch_model(net, cut(lm_parts(), {"0", "1", "cpu", "disk"}), {.offload_dir = kFolder});
    const torch::nn::Module& head = *modules["head"];
    const torch::nn::Module& tokens = *modules["tokens"];
    const Tensor expected = plain->named_parameters()["head.weight"].detach();
    EXPECT_TRUE(has_offloaded_params(head));
    EXPECT_FALSE(has_offloaded_params(tokens));
    EXPECT_FALSE(has_offloaded_params(*net));  // its own tensors alone
    const Tensor weight = net->named_parameters()["head.weight"];
    for (const auto& device :
         std::vector<std::optional<c10::Device>>{std::nullopt, c10::Device(at::kCPU), sim(1)}) {
      const ModuleOnDevice scope = align_module_device(head, device);
      EXPECT_EQ(weight.device(), device.value_or(sim(0)));
      EXPECT_TRUE(torch::equal(weight.cpu(), expected));
      weight.zero_();  // is lost
    }
    EXPECT_TRUE(is_absent(weight));
    const Tensor embedding = net->named_parameters()["tokens.weight"];
    {
      const ModuleOnDevice scope = align_module_device(tokens);
      EXPECT_EQ(embedding.device(), sim(0));
    }
    {
      const ModuleOnDevice scope = align_module_device(tokens, c10::Device(at::kCPU));
      EXPECT_TRUE(embedding.is_cpu());
      embedding.mul_(2);  // stays
    }
    EXPECT_EQ(embedding.device(), sim(0));
    EXPECT_TRUE(
        torch::equal(embedding.cpu(), 2 * plain->named_parameters()["tokens.weight"].detach()));
    embedding.div_(2);
    EXPECT_TRUE(torch::equal(model(text()), plain->forward(text())));

    NamedTensors state = {{"head.weight", Tensor()}, {"other", torch::ones({1})}};
    state = get_state_dict_from_offload(head, "head.weight", state);
    EXPECT_TRUE(torch::equal(state[0].second, expected));
    state = get_state_dict_from_offload(head, "head.weight", state, sim(1));
    EXPECT_EQ(state[0].second.device(), sim(1));
    state =
        get_state_dict_from_offload(tokens, "tokens.weight", {{"tokens.weight", Tensor()}}, sim(1));
    EXPECT_EQ(state[0].second.device(), sim(0));
    expect_state(get_state_dict_offloaded_model(*net), *plain);
    // Who writes into what was offloaded does not change the model.
    for (const auto& [name, tensor] : get_state_dict_offloaded_model(*net)) tensor.zero_();
    get_state_dict_from_offload(head, "head.weight", {{"head.weight", Tensor()}})[0].second.zero_();
    expect_state(get_state_dict_offloaded_model(*net), *plain);
  });
}

TEST(State, IsTheModulesAgainWhenTheHandleGoes) {
  on_a_disk([](Rank& rank) {
    lm::Lm plain = make_lm();
    lm::Lm net = make_lm();
    const std::vector<Tensor> parameters = net->parameters();
    {
      auto model = dispatch_model(net, cut(lm_parts(), {"cpu", "cpu", "cpu", "disk"}),
                                  {.main_device = sim(0), .offload_dir = kFolder});
      auto copy = model;
      const torch::NoGradGuard no_grad;
      copy(text());
    }
    EXPECT_EQ(rank.device()->memory().in_use(), 0);
    const auto expected = plain->named_parameters();
    bool has_meta = false;
    for (const auto& each : net->named_parameters()) {
      has_meta |= each.value().is_meta();
      if (!each.value().is_meta()) EXPECT_TRUE(torch::equal(each.value(), expected[each.key()]));
      EXPECT_TRUE(each.value().requires_grad());
    }
    EXPECT_TRUE(has_meta);
    auto model = dispatch_model(net, whole("0"), {.offload_dir = kFolder});
    EXPECT_TRUE(torch::equal(model(text()), plain->forward(text())));
    for (size_t i = 0; i < parameters.size(); ++i) {
      EXPECT_TRUE(net->parameters()[i].is_same(parameters[i]));
    }
  });
}

TEST(State, IsThereForOtherUsesThanForward) {
  on_a_disk([](Rank&) {
    const torch::NoGradGuard no_grad;
    lm::Lm plain = make_lm(), net = make_lm();
    auto model =
        dispatch_model(net, cut(lm_parts(), {"0", "1", "cpu", "disk"}), {.offload_dir = kFolder});
    for (int pass = 0; pass < 2; ++pass) {
      const Tensor logits = model.run(
          [](lm::LmImpl& module) { return module.forward(text()) + module.forward(text()); });
      EXPECT_TRUE(torch::equal(logits.cpu(), 2 * plain->forward(text())));
    }
    EXPECT_EQ(model.state()->residency()->bytes_in_memory(), 0);
  });
}

// ---- Prepared models.

TEST(Prepare, TrainsADispatchedModelInOneProcess) {
  on_a_disk([](Rank& rank) {
    const auto train = [&](lm::Lm net, Accelerator& accelerator, bool model_first = true) {
      std::shared_ptr<torch::optim::Optimizer> adam =
          std::make_shared<torch::optim::AdamW>(net->parameters(), 0.01);
      // In any order.
      std::optional<AcceleratedOptimizer> first;
      if (!model_first) first.emplace(accelerator.prepare(adam));
      auto model = accelerator.prepare(net);
      AcceleratedOptimizer optimizer = model_first ? accelerator.prepare(adam) : *first;
      std::vector<double> losses;
      for (int step = 0; step < 4; ++step) {
        const Tensor tokens = text().to(accelerator.device());
        const Tensor logits = model(tokens);
        const Tensor loss =
            torch::cross_entropy_loss(logits.flatten(0, 1), (tokens + step).flatten() % 41);
        losses.push_back(loss.item<double>());
        accelerator.backward(loss);
        losses.push_back(accelerator.clip_grad_norm_(model, 0.5).template item<double>());
        optimizer.step();
        optimizer.zero_grad();
      }
      return std::pair(losses, accelerator.get_state_dict(model));
    };
    Accelerator accelerator;
    auto [expected, expected_state] = train(make_lm(), accelerator);
    for (auto& [name, tensor] : expected_state) tensor = tensor.cpu().clone();
    accelerator.free_memory();
    for (const bool model_first : {true, false}) {
      lm::Lm net = make_lm();
      auto dispatched = dispatch_model(net, cut(lm_parts(), {"0", "1", "cpu"}));
      EXPECT_TRUE(Accelerator::verify_device_map(*net));
      const auto [losses, state] = train(net, accelerator, model_first);
      ASSERT_EQ(losses.size(), expected.size());
      for (size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(losses[i], expected[i], 1e-5) << i;
      for (size_t i = 0; i < state.size(); ++i) {
        EXPECT_TRUE(torch::allclose(state[i].second.cpu(), expected_state[i].second, 1e-4, 1e-5))
            << state[i].first;
      }
      EXPECT_TRUE(is_absent(net->named_parameters()["head.weight"]));
      EXPECT_EQ(net->named_parameters()["tokens.weight"].device(), sim(0));
      accelerator.free_memory();
    }
  });
}

TEST(Prepare, TrainsADispatchedModelThatWasPreparedForEvaluationBefore) {
  on_a_disk([](Rank&) {
    Accelerator accelerator;
    lm::Lm net = make_lm();
    auto dispatched = dispatch_model(net, cut(lm_parts(), {"0", "cpu"}));
    auto evaluated = accelerator.prepare_model(net, {.evaluation_mode = true});
    const Tensor tokens = text().to(sim(0));
    const Tensor before = evaluated(tokens).detach().cpu();
    auto adam = std::make_shared<torch::optim::AdamW>(net->parameters(), 0.01);
    auto [model, optimizer] = accelerator.prepare(net, adam);
    accelerator.backward(model(tokens).square().mean());
    optimizer.step();
    EXPECT_FALSE(torch::equal(model(tokens).detach().cpu(), before));
  });
}

TEST(Dispatch, SendsInputsWhereAModelOnOneDeviceIs) {
  on_a_disk([](Rank&) {
    const Tensor expected = make_lm()->forward(text()).detach();
    lm::Lm net = make_lm();
    auto model = dispatch_model(net, DeviceMap({{"", DevicePlacement::accelerator(0)}}),
                                {.main_device = sim(1)});
    EXPECT_TRUE(torch::allclose(model(text()).cpu(), expected, 1e-5, 1e-6));
  });
}

TEST(Dispatch, LoadsNothingIntoADispatchedModel) {
  on_a_disk([](Rank& rank) {
    lm::Lm net = make_lm();
    auto model = cpu_offload(net, {.execution_device = sim(1)});
    try {
      (void)load_checkpoint_and_dispatch(rank.runtime().files(), net, "/sim/none",
                                         {.device_map = std::string("auto")});
      ADD_FAILURE() << "no error";
    } catch (const c10::ValueError& error) {
      EXPECT_THAT(error.what_without_backtrace(), HasSubstr("dispatched already"));
    }
  });
}

TEST(Dispatch, TrainsWhatIsUnfrozenLater) {
  on_a_disk([](Rank&) {
    lm::Lm plain = make_lm(), net = make_lm();
    for (const lm::Lm& each : {plain, net}) {
      for (Tensor& parameter : each->parameters()) parameter.set_requires_grad(false);
    }
    const Tensor weight = net->named_parameters()["head.weight"];
    const Tensor plain_weight = plain->named_parameters()["head.weight"];
    {
      auto model = cpu_offload(net, {.execution_device = sim(1)});
      EXPECT_FALSE(model(text()).requires_grad());
      for (const Tensor& each : {weight, plain_weight}) each.set_requires_grad(true);
      model(text()).sum().backward();
      plain->forward(text()).sum().backward();
      const Tensor home = model.state()->find_offloaded(weight)->home;
      EXPECT_TRUE(torch::allclose(home.grad(), plain_weight.grad(), 1e-5, 1e-6));
    }
    // The handle is gone, and so is what it did with gradients.
    EXPECT_TRUE(torch::allclose(weight.grad(), plain_weight.grad(), 1e-5, 1e-6));
    net->forward(text()).sum().backward();
    EXPECT_TRUE(torch::allclose(weight.grad(), 2 * plain_weight.grad(), 1e-5, 1e-6));
  });
}

TEST(Prepare, RefusesAnOptimizerThatWouldGoOnWithOffloadedParameters) {
  on_a_disk([](Rank&) {
    lm::Lm net = make_lm();
    torch::optim::AdamW adam(net->parameters(), 0.01);
    net->forward(text()).sum().backward();
    adam.step();
    auto dispatched = cpu_offload(net, {.execution_device = sim(0)});
    Accelerator accelerator;
    try {
      accelerator.prepare(net, adam);
      ADD_FAILURE() << "no error";
    } catch (const c10::ValueError& error) {
      EXPECT_THAT(error.what_without_backtrace(), HasSubstr("before its first step"));
    }
  });
}

TEST(Prepare, SavesAndLoadsTheStateOfADispatchedModel) {
  on_a_disk([](Rank& rank) {
    Accelerator accelerator({.project_dir = "/sim/project"});
    lm::Lm net = make_lm();
    auto dispatched = dispatch_model(net, cut(lm_parts(), {"0", "cpu"}));
    auto adam = std::make_shared<torch::optim::AdamW>(net->parameters(), 0.01);
    auto [model, optimizer] = accelerator.prepare(dispatched, adam);
    const auto step = [&, &model = model, &optimizer = optimizer] {
      accelerator.backward(model(text().to(sim(0))).square().mean());
      optimizer.step();
      optimizer.zero_grad();
    };
    step();
    accelerator.save_state("/sim/project/state");
    accelerator.save_model(model, "/sim/project/weights");
    step();
    const NamedTensors expected = get_state_dict_offloaded_model(*net);
    accelerator.load_state("/sim/project/state");
    step();
    const NamedTensors again = get_state_dict_offloaded_model(*net);
    for (size_t i = 0; i < again.size(); ++i) {
      EXPECT_TRUE(torch::equal(again[i].second, expected[i].second)) << again[i].first;
    }
    lm::Lm other = make_lm();
    load_checkpoint_in_model(rank.runtime().files(), *other, "/sim/project/weights",
                             {.strict = true});
  });
}

TEST(Prepare, RefusesASeveralDevicesModelInADistributedRun) {
  for (const bool bypasses : {false, true}) {
    Environment environment;
    if (bypasses) environment.set("ACCELERATE_BYPASS_DEVICE_MAP", "true");
    Cluster cluster("1x2:h100,devices=2", {.environment = environment});
    cluster.run_on_every_rank([&](Rank& rank) {
      Accelerator accelerator;
      const int first = 2 * rank.index();
      lm::Lm net = make_lm();
      auto dispatched =
          dispatch_model(net, cut(lm_parts(), {absl::StrCat(first), absl::StrCat(first + 1)}));
      const std::string error =
          error_of([&] { auto model = accelerator.prepare_model(net, {.evaluation_mode = true}); });
      if (bypasses) {
        EXPECT_EQ(error, "");
      } else {
        EXPECT_THAT(error, AllOf(HasSubstr("placed on several devices"),
                                 HasSubstr(absl::StrCat("rank ", rank.index(), " is one of 2")),
                                 HasSubstr("ACCELERATE_BYPASS_DEVICE_MAP")));
      }
      lm::Lm other = make_lm();
      auto offloaded = cpu_offload(other, {.execution_device = accelerator.device()});
      EXPECT_THAT(
          error_of([&] { auto model = accelerator.prepare(other); }),
          AllOf(HasSubstr("offloaded parameter \"positions\""), HasSubstr("evaluation_mode")));
      const torch::NoGradGuard no_grad;
      auto evaluated = accelerator.prepare_model(other, {.evaluation_mode = true});
      EXPECT_TRUE(torch::equal(evaluated(text()).cpu(), make_lm()->forward(text())));
    });
  }
}

// ---- What is refused.

TEST(Errors, NameWhatIsWrong) {
  on_a_disk([](Rank&) {
    const auto error_with = [](const DeviceMap& map, DispatchOptions options = {}) {
      lm::Lm net = make_lm();
      const std::string error =
          error_of([&] { auto model = dispatch_model(net, map, std::move(options)); });
      for (const Tensor& each : net->parameters()) EXPECT_TRUE(each.is_cpu());
      EXPECT_TRUE(torch::equal(net->forward(text()), make_lm()->forward(text())));
      return error;
    };
    DeviceMap part;
    part.set("tokens", DevicePlacement::cpu());
    EXPECT_THAT(error_with(part), HasSubstr("head.weight"));
    EXPECT_THAT(error_with(whole("7")), HasSubstr("there are 2 devices"));
    EXPECT_THAT(error_with(whole("meta")), HasSubstr("\"meta\""));
    EXPECT_THAT(error_with(whole("disk")),
                AllOf(HasSubstr("\"positions\""), HasSubstr("offload_dir")));
    EXPECT_THAT(error_with(whole("cpu"), {.main_device = sim(0),
                                          .state_dict = {{"head.weight", torch::ones({3})}}}),
                AllOf(HasSubstr("\"head.weight\" with sizes [3]")));
    lm::Lm net = make_lm();
    const Tensor view = net->parameters()[0].detach().narrow(0, 0, 1);
    EXPECT_THAT(error_of([&] { auto model = dispatch_model(net, whole("0")); }),
                AllOf(HasSubstr("\"positions\""), HasSubstr("a view of it is alive")));
    lm::Lm empty = [] {
      const EmptyInit scope = init_empty_weights();
      return make_lm();
    }();
    EXPECT_THAT(error_of([&] { auto model = dispatch_model(empty, whole("0")); }),
                AllOf(HasSubstr("meta device"), HasSubstr("load_checkpoint_and_dispatch")));
    EXPECT_THAT(error_of([&] { get_state_dict_offloaded_model(*empty); }),
                HasSubstr("head.weight"));
    lm::Lm twice = make_lm();
    auto model = dispatch_model(twice, whole("0"));
    EXPECT_THAT(error_of([&] { auto again = dispatch_model(twice, whole("1")); }),
                HasSubstr("dispatched already"));
  });
}

TEST(Errors, MeetWhoUsesOffloadedParametersOutside) {
  on_a_disk([](Rank&) {
    lm::Lm net = make_lm();
    auto model = cpu_offload(net, {.execution_device = sim(0)});
    const auto names_one = AllOf(HasSubstr("parameter \"tokens.weight\""), HasSubstr("outside of"));
    EXPECT_THAT(error_of([&] { net->forward(text().to(sim(0))); }), names_one);
    EXPECT_THAT(error_of([&] { net->to(at::kCPU); }), HasSubstr("parameter \""));
    EXPECT_THAT(error_of([&] { net->to(sim(1)); }), HasSubstr("parameter \""));
    EXPECT_THAT(error_of([&] { net->to(torch::kHalf); }), HasSubstr("parameter \""));
    const torch::NoGradGuard no_grad;
    EXPECT_TRUE(torch::equal(model(text()), make_lm()->forward(text())));
    // A failed forward pass leaves the model unchanged.
    EXPECT_THAT(error_of([&] { model(tokens_of({1, 41}, 41)); }), HasSubstr("longer than"));
    EXPECT_TRUE(torch::equal(model(text()), make_lm()->forward(text())));
  });
}

TEST(Errors, OfTheDiskReachTheCallerAndLeaveTheModelUsable) {
  for (const bool on_device : {true, false}) {
    const auto disk = std::make_shared<SimDisk>();
    // The operations of a run until its second pass, and in it.
    int64_t before = 0, after = 0;
    const auto body = [&](bool fails) {
      return [&, fails](Rank& rank) {
        const torch::NoGradGuard no_grad;
        const Tensor expected = make_lm()->forward(text());
        lm::Lm net = make_lm();
        auto model = disk_offload(net, kFolder,
                                  {.execution_device = on_device ? sim(0) : c10::Device(at::kCPU)});
        EXPECT_TRUE(torch::equal(model(text()), expected));
        if (!fails) before = disk->operations(rank.index());
        const std::string error = error_of([&] { model(text()); });
        if (!fails) after = disk->operations(rank.index());
        if (fails) {
          EXPECT_THAT(error,
                      AllOf(HasSubstr("cannot read the offloaded weight \""), HasSubstr(kFolder)));
        } else {
          EXPECT_EQ(error, "");
        }
        EXPECT_TRUE(torch::equal(model(text()), expected));
        EXPECT_TRUE(torch::equal(model(text()), expected));
      };
    };
    // The first run writes the files.
    for (int run = 0; run < 2; ++run) {
      Cluster("1x1:h100", {.disk = disk}).run_on_every_rank(body(false));
    }
    ASSERT_GT(after - before, 10);
    for (const int64_t at : {before + 2, (before + after) / 2}) {
      Cluster("1x1:h100",
              {.disk = disk,
               .file_faults = {FileFault{
                   .operation = at, .kind = FileFaultKind::kInputOutputError, .until = at + 1}}})
          .run_on_every_rank(body(true));
    }
    Cluster("1x1:h100", {.disk = disk}).run_on_every_rank([&](Rank& rank) {
      FileSystem& files = rank.runtime().files();
      EXPECT_TRUE(write_file(files, join_path(kFolder, "head.weight.dat"), "short").ok());
      lm::Lm empty = [] {
        const EmptyInit scope = init_empty_weights();
        return make_lm();
      }();
      EXPECT_THAT(error_of([&] { auto model = disk_offload(empty, kFolder); }),
                  AllOf(HasSubstr("head.weight.dat"), HasSubstr("it has 5 bytes")));
      // A model that has values writes them, whatever is there.
      const torch::NoGradGuard no_grad;
      lm::Lm net = make_lm();
      const Tensor expected = net->forward(text());
      auto model = disk_offload(net, kFolder);
      EXPECT_TRUE(torch::equal(model(text()), expected));
    });
  }
}

}  // namespace
}  // namespace accelerate
