// Models on several devices, in host memory and in files give the bits of a run on one device.
// One shape of the cluster each: placements name its devices.
#include <cstdint>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "accelerate/dispatch/dispatch.h"
#include "accelerate/dispatch/offloaded_state.h"
#include "accelerate/modules/module_tensors.h"
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

void expect_all_run(const Case& each, const Placing& placing) {
  Cluster cluster("1x1:h100,devices=2", {.disk = std::make_shared<SimDisk>()});
  cluster.run_on_every_rank([&](Rank&) {
    const torch::NoGradGuard no_grad;
    const std::string what = absl::StrCat(each.name, " on ", placing.name);
    const auto plain = make(each);
    plain->eval();
    plain->to(sim(0));
    const std::vector<Tensor> expected = each.run(plain, nullptr, sim(0));
    const auto net = make(each);
    net->eval();
    const auto model = DispatchedModel::make(net, placing.map(each),
                                             {.main_device = sim(0), .offload_dir = kFolder});
    for (int pass = 0; pass < 3; ++pass) {
      const std::vector<Tensor> outputs = each.run(net, model, pass == 1 ? at::kCPU : sim(0));
      expect_equal(outputs, expected, what);
      for (const Tensor& output : outputs) {
        EXPECT_EQ(output.device(), pass == 1 ? c10::Device(at::kCPU) : sim(0)) << what;
      }
    }
    if (model->residency() != nullptr) {
      EXPECT_EQ(model->residency()->bytes_in_memory(), 0) << what;
    }
    std::cout << what << ": " << model->copies() << " copies between devices\n";
  });
}

TEST(Outputs, AreThoseOfOneDevice) {
  for (const Case& each : cases()) {
    for (const Placing& placing : placings()) expect_all_run(each, placing);
  }
}

// ---- Training.

// What a loss of all outputs leaves in the gradients of each parameter, in the model's order.
std::vector<Tensor> gradients_of(const Case& each, const std::shared_ptr<torch::nn::Module>& net,
                                 const std::shared_ptr<DispatchedModel>& model) {
  Tensor loss;
  for (const Tensor& output : each.run(net, model, sim(0))) {
    const Tensor part = output.square().mean();
    loss = loss.defined() ? loss + part : part;
  }
  loss.backward();
  std::vector<Tensor> gradients;
  for (const Tensor& parameter : net->parameters()) {
    const auto* offloaded = model == nullptr ? nullptr : model->find_offloaded(parameter);
    if (offloaded != nullptr) EXPECT_FALSE(parameter.grad().defined()) << offloaded->name;
    const Tensor& gradient = offloaded != nullptr ? offloaded->home.grad() : parameter.grad();
    EXPECT_TRUE(gradient.defined());
    EXPECT_EQ(gradient.device(), offloaded != nullptr ? at::kCPU : parameter.device());
    gradients.push_back(gradient.defined() ? gradient.clone() : torch::zeros({}));
  }
  return gradients;
}

TEST(Gradients, AreThoseOfOneDevice) {
  for (const Case& each : cases()) {
    for (const Placing& placing : placings()) {
      if (placing.has_files) continue;
      Cluster cluster("1x1:h100,devices=2");
      cluster.run_on_every_rank([&](Rank&) {
        const std::string what = absl::StrCat(each.name, " on ", placing.name);
        const auto plain = make(each);
        plain->to(sim(0));
        const auto net = make(each);
        const auto model = DispatchedModel::make(net, placing.map(each), {.main_device = sim(0)});
        // The second pass adds to them, with the groups in the order of the first.
        for (int pass = 0; pass < 2; ++pass) {
          expect_equal(gradients_of(each, net, model), gradients_of(each, plain, nullptr), what);
        }
      });
    }
  }
}

TEST(Training, OfAModelOnTwoDevicesAndTheHostGivesTheSameWeights) {
  Cluster cluster("1x1:h100,devices=2");
  cluster.run_on_every_rank([](Rank&) {
    const auto train = [](auto&& model, const std::vector<Tensor>& parameters) {
      torch::optim::AdamW adam(parameters, 0.01);
      std::vector<double> losses;
      for (int step = 0; step < 4; ++step) {
        const Tensor tokens = tokens_of({2, 9}, 41).to(sim(0));
        const Tensor logits = model.forward(tokens);
        const Tensor loss =
            torch::cross_entropy_loss(logits.flatten(0, 1), (tokens + step).flatten() % 41);
        losses.push_back(loss.template item<double>());
        loss.backward();
        adam.step();
        adam.zero_grad();
      }
      return losses;
    };
    torch::manual_seed(5);
    lm::Lm plain(lm_config(lm::Blocks::kGpt, true));
    plain->to(sim(0));
    torch::manual_seed(5);
    lm::Lm net(lm_config(lm::Blocks::kGpt, true));
    DeviceMap map = cut(lm_case("", lm::Blocks::kGpt, true).parts, {"0", "1", "cpu"});
    auto model = dispatch_model(net, map);
    EXPECT_EQ(train(model, model.parameters()), train(*plain, plain->parameters()));
    const NamedTensors trained = get_state_dict_offloaded_model(*net);
    const auto expected = plain->named_parameters();
    ASSERT_EQ(trained.size(), expected.size());
    for (const auto& [name, tensor] : trained) {
      EXPECT_TRUE(torch::equal(tensor, expected[name].detach().cpu())) << name;
    }
  });
}

TEST(Training, OfWhatIsInFilesIsRefused) {
  // LibTorch's engine keeps the rest of a backward pass that fails.
  Cluster cluster("1x1:h100", {.detect_leaks = false, .disk = std::make_shared<SimDisk>()});
  cluster.run_on_every_rank([](Rank&) {
    lm::Lm net(lm_config(lm::Blocks::kGpt, false));
    auto model = disk_offload(net, kFolder, {.execution_device = sim(0)});
    const Tensor loss = model(tokens_of({1, 5}, 41)).sum();
    EXPECT_THAT(error_of([&] { loss.backward(); }),
                AllOf(HasSubstr("parameter \"head.weight\""), HasSubstr("in a file"),
                      HasSubstr("ZeRO's offload")));
  });
}

struct ThreeImpl : torch::nn::Module {
  ThreeImpl() {
    for (const char* name : {"first", "frozen", "last"}) {
      layers.push_back(register_module(name, torch::nn::Linear(4, 4)));
    }
    for (const Tensor& each : layers[1]->parameters()) each.set_requires_grad(false);
  }
  Tensor forward(Tensor x) {
    for (auto& layer : layers) x = torch::tanh(layer(x));
    return x;
  }
  std::vector<torch::nn::Linear> layers;
};
TORCH_MODULE(Three);

TEST(Training, GoesThroughFrozenLayersInFiles) {
  Cluster cluster("1x1:h100", {.disk = std::make_shared<SimDisk>()});
  cluster.run_on_every_rank([](Rank&) {
    torch::manual_seed(4);
    Three plain;
    torch::manual_seed(4);
    Three net;
    plain->to(sim(0));
    DeviceMap map;
    map.set("first", DevicePlacement::accelerator(0));
    map.set("frozen", DevicePlacement::disk());
    map.set("last", DevicePlacement::accelerator(0));
    auto model = dispatch_model(net, map, {.offload_dir = kFolder});
    const Tensor x = torch::arange(12.).sin().view({3, 4}).to(torch::kFloat).to(sim(0));
    for (int step = 0; step < 2; ++step) {
      model(x).square().sum().backward();
      plain->forward(x).square().sum().backward();
    }
    for (const auto& each : plain->named_parameters()) {
      const Tensor gradient = net->named_parameters()[each.key()].grad();
      ASSERT_EQ(gradient.defined(), each.value().grad().defined()) << each.key();
      if (gradient.defined()) EXPECT_TRUE(torch::equal(gradient, each.value().grad()));
    }
  });
}

struct BufferedImpl : torch::nn::Module {
  BufferedImpl() {
    scale = register_buffer("scale", torch::arange(4.));
    shift = non_persistent(register_buffer("shift", torch::ones({4})));
    weight = register_parameter("weight", torch::full({4}, 2.));
  }
  Tensor forward(const Tensor& x) { return x * weight * scale + shift; }
  Tensor scale, shift, weight;
};
TORCH_MODULE(Buffered);

TEST(Buffers, ThatAreNotPersistentStayOnTheDevice) {
  Cluster cluster("1x1:h100");
  cluster.run_on_every_rank([](Rank&) {
    for (const bool offload_buffers : {false, true}) {
      Buffered plain, net;
      auto model =
          cpu_offload(net, {.execution_device = sim(0), .offload_buffers = offload_buffers});
      const torch::NoGradGuard no_grad;
      const Tensor x = torch::ones({4});
      EXPECT_TRUE(torch::equal(model(x).cpu(), plain->forward(x)));
      EXPECT_EQ(is_absent(net->scale), offload_buffers);
      EXPECT_FALSE(is_absent(net->shift));
      EXPECT_EQ(net->shift.device(), sim(0));
      EXPECT_TRUE(is_absent(net->weight));
    }
  });
}

TEST(Buffers, GoBackWhenTheHandleGoes) {
  Cluster cluster("1x1:h100,devices=2", {.disk = std::make_shared<SimDisk>()});
  cluster.run_on_every_rank([](Rank& rank) {
    const torch::NoGradGuard no_grad;
    const Tensor x = torch::ones({4});
    const Tensor expected = Buffered()->forward(x);
    for (const bool is_on_disk : {false, true}) {
      Buffered net;
      {
        const auto model = is_on_disk ? disk_offload(net, kFolder, {.execution_device = sim(0)})
                                      : cpu_offload(net, {.execution_device = sim(0)});
        EXPECT_EQ(net->scale.device(), sim(0));
        // A pass changes buffers there.
        net->shift.add_(1);
      }
      EXPECT_EQ(rank.device()->memory().in_use(), 0);
      EXPECT_TRUE(net->scale.is_cpu());
      EXPECT_TRUE(torch::equal(net->shift, torch::full({4}, 2.)));
      EXPECT_EQ(net->weight.is_meta(), is_on_disk);
      if (!is_on_disk) EXPECT_TRUE(torch::equal(net->forward(x), expected + 1));
    }
    // What the map places on a device stays there, as does what the program has moved.
    Buffered net;
    {
      DeviceMap map;
      map.set("", DevicePlacement::cpu());
      const auto model = dispatch_model(net, map, {.main_device = sim(0)});
      set_module_tensor_to_device(*net, "scale", sim(1));
    }
    EXPECT_EQ(net->scale.device(), sim(1));
    EXPECT_TRUE(net->shift.is_cpu());
  });
}

// ---- Generation.

template <typename Model>
Tensor generate(Model&& model, int tokens) {
  Tensor text = tokens_of({1, 4}, 41);
  for (int i = 0; i < tokens; ++i) {
    const Tensor logits = model.forward(text);
    text = torch::cat({text, logits.select(1, -1).argmax(-1, /*keepdim=*/true).cpu()}, 1);
  }
  return text;
}

TEST(Generation, OfTwentyTokensIsThatOfOneDevice) {
  for (const Placing& placing : placings()) {
    Cluster cluster("1x1:h100,devices=2", {.disk = std::make_shared<SimDisk>()});
    cluster.run_on_every_rank([&](Rank&) {
      const Case each = lm_case("", lm::Blocks::kLlama);
      const auto plain = std::dynamic_pointer_cast<lm::LmImpl>(make(each));
      const auto net = std::dynamic_pointer_cast<lm::LmImpl>(make(each));
      auto model =
          dispatch_model(net, placing.map(each), {.main_device = sim(0), .offload_dir = kFolder});
      const torch::InferenceMode mode;
      EXPECT_TRUE(torch::equal(generate(model, 20), generate(*plain, 20))) << placing.name;
    });
  }
}

// ---- Ties.

struct HeadImpl : torch::nn::Module {
  explicit HeadImpl(const Tensor& tied) : weight(register_parameter("weight", tied)) {}
  Tensor weight;
};
TORCH_MODULE(Head);

struct TiedImpl : torch::nn::Module {
  TiedImpl() {
    tokens = register_module("tokens", torch::nn::Embedding(512, 16));
    body = register_module("body", torch::nn::Linear(16, 16));
    head = register_module("head", Head(tokens->weight));
  }
  Tensor forward(const Tensor& x) {
    return torch::linear(torch::tanh(body(tokens(x))), head->weight);
  }
  torch::nn::Embedding tokens{nullptr};
  torch::nn::Linear body{nullptr};
  Head head{nullptr};
};
TORCH_MODULE(Tied);

DeviceMap tied_map(const std::string& tokens, const std::string& body, const std::string& head) {
  DeviceMap map;
  map.set("tokens", *DevicePlacement::parse(tokens));
  map.set("body", *DevicePlacement::parse(body));
  map.set("head", *DevicePlacement::parse(head));
  return map;
}

TEST(Ties, AcrossDevicesHaveOneCopyOnEach) {
  Cluster cluster("1x1:h100,devices=2");
  cluster.run_on_every_rank([](Rank& rank) {
    constexpr int64_t kBytes = 512 * 16 * 4;
    torch::manual_seed(3);
    Tied plain;
    plain->to(sim(0));
    torch::manual_seed(3);
    Tied net;
    auto model = dispatch_model(net, tied_map("0", "1", "1"));
    EXPECT_TRUE(net->head->weight.is_same(net->tokens->weight));
    const Tensor x = tokens_of({3, 5}, 512).to(sim(0));
    {
      const torch::NoGradGuard no_grad;
      const int64_t before = rank.devices()[1]->memory().in_use();
      for (int pass = 0; pass < 2; ++pass) EXPECT_TRUE(torch::equal(model(x), plain(x)));
      EXPECT_EQ(rank.devices()[1]->memory().in_use() - before, kBytes);
      // The activation goes over, and its result comes back with the call; not the weight again.
      EXPECT_EQ(model.state()->copies(), 1);
    }
    // LibTorch's SGD changes what tensors do not note.
    torch::optim::SGD sgd(net->parameters(), 1), plain_sgd(plain->parameters(), 1);
    for (int step = 0; step < 2; ++step) {
      for (torch::optim::SGD* each : {&sgd, &plain_sgd}) each->zero_grad();
      model(x).square().mean().backward();
      plain(x).square().mean().backward();
      EXPECT_TRUE(torch::equal(net->tokens->weight.grad(), plain->tokens->weight.grad()));
      for (torch::optim::SGD* each : {&sgd, &plain_sgd}) each->step();
      const torch::NoGradGuard no_grad;
      for (int pass = 0; pass < 2; ++pass) EXPECT_TRUE(torch::equal(model(x), plain(x)));
    }
  });
}

TEST(Ties, OfOffloadedModulesHaveOneHome) {
  Cluster cluster("1x1:h100,devices=2");
  cluster.run_on_every_rank([](Rank&) {
    torch::manual_seed(3);
    Tied plain;
    const Tensor x = tokens_of({3, 5}, 512);
    plain(x).square().mean().backward();
    for (const auto& map : {tied_map("cpu", "0", "cpu"), tied_map("cpu", "0", "1")}) {
      torch::manual_seed(3);
      Tied net;
      auto model = dispatch_model(net, map);
      EXPECT_LE(model.state()->offloaded().size(), 1);
      model(x).square().mean().backward();
      const Tensor gradient = model.parameters()[0].grad();
      EXPECT_TRUE(torch::equal(gradient.cpu(), plain->tokens->weight.grad()));
    }
  });
}

// ---- The rule by which operators are placed.

struct RuleImpl : torch::nn::Module {
  RuleImpl() {
    lower = register_module("lower", torch::nn::Linear(4, 4));
    upper = register_module("upper", torch::nn::Linear(4, 4));
  }
  Tensor forward(const Tensor& x) { return body(*this, x); }
  torch::nn::Linear lower{nullptr}, upper{nullptr};
  std::function<Tensor(RuleImpl&, const Tensor&)> body;
};
TORCH_MODULE(Rule);

// How many tensors a body copies between two devices, having given what it gives on one.
int64_t copies_of(const std::function<Tensor(RuleImpl&, const Tensor&)>& body,
                  bool has_gradients = false) {
  int64_t copies = -1;
  Cluster cluster("1x1:h100,devices=2");
  cluster.run_on_every_rank([&](Rank&) {
    const torch::AutoGradMode mode(has_gradients);
    torch::manual_seed(2);
    Rule plain;
    torch::manual_seed(2);
    Rule net;
    plain->body = net->body = body;
    DeviceMap map;
    map.set("lower", DevicePlacement::accelerator(0));
    map.set("upper", DevicePlacement::accelerator(1));
    auto model = dispatch_model(net, map);
    const Tensor x = torch::arange(12.).sin().view({3, 4}).to(torch::kFloat);
    const Tensor expected = plain(x), output = model(x);
    EXPECT_TRUE(torch::equal(output, expected));
    copies = model.state()->copies();
    if (!has_gradients) return;
    expected.square().sum().backward();
    output.square().sum().backward();
    for (const auto& each : net->named_parameters()) {
      EXPECT_TRUE(
          torch::equal(each.value().grad().cpu(), plain->named_parameters()[each.key()].grad()))
          << each.key();
    }
  });
  return copies;
}

TEST(Rule, CopiesAResidualOnceWithoutGradients) {
  const auto body = [](RuleImpl& net, const Tensor& x) {
    const Tensor lower = net.lower(x);
    return lower + net.upper(torch::relu(lower));
  };
  // relu runs on the first device, so what crosses is its result, and the residual.
  EXPECT_EQ(copies_of(body), 2);
  const auto normed = [](RuleImpl& net, const Tensor& x) {
    const Tensor lower = net.lower(x);
    return lower + net.upper(lower);
  };
  EXPECT_EQ(copies_of(normed), 1);
  EXPECT_EQ(copies_of(normed, /*has_gradients=*/true), 2);
}

TEST(Rule, KeepsWhatAnOperatorWritesTo) {
  // The sum comes back to the first device.
  EXPECT_EQ(copies_of([](RuleImpl& net, const Tensor& x) {
              Tensor lower = net.lower(x);
              const Tensor upper = net.upper(lower);
              lower += upper;
              return lower;
            }),
            2);
  EXPECT_EQ(copies_of([](RuleImpl& net, const Tensor& x) {
              const Tensor upper = net.upper(net.lower(x));
              Tensor all = torch::zeros({6, 4}, x.device());
              all.index_put_({torch::tensor({1, 3, 5})}, upper);
              all.narrow(0, 0, 3).copy_(upper);
              return all;
            }),
            3);  // the indices as well
  EXPECT_EQ(copies_of([](RuleImpl& net, const Tensor& x) {
              Tensor out = torch::empty({3, 4}, x.device());
              const Tensor upper = net.upper(net.lower(x));
              torch::mul_out(out, upper, 2 * upper);
              return out;
            }),
            3);
}

TEST(Rule, BringsWhatIsMadeOnTheInputsDevice) {
  EXPECT_EQ(copies_of([](RuleImpl& net, const Tensor& x) {
              const Tensor steps = torch::arange(4, x.device());
              Tensor upper = net.upper(net.lower(x));
              for (int i = 0; i < 3; ++i) upper = upper * (steps > i);
              return upper;
            }),
            4);  // each comparison is a tensor of its own
  EXPECT_EQ(copies_of([](RuleImpl& net, const Tensor& x) {
              const Tensor mask = torch::arange(4, x.device()) > 1;
              Tensor upper = net.upper(net.lower(x));
              for (int i = 0; i < 3; ++i) upper = upper.masked_fill(mask, i);
              return upper + torch::tensor(2.0);
            }),
            2);
  // A tensor that is changed in between is copied again.
  EXPECT_EQ(copies_of([](RuleImpl& net, const Tensor& x) {
              Tensor bias = torch::ones({4}, x.device());
              Tensor upper = net.upper(net.lower(x)) + bias;
              bias.add_(1);
              return upper + bias;
            }),
            3);
}

TEST(Rule, KeepsRunningStatisticsOfADividedNorm) {
  Cluster cluster("1x1:h100,devices=2");
  cluster.run_on_every_rank([](Rank&) {
    torch::nn::BatchNorm1d plain(4), net(4);
    DeviceMap map;
    for (const char* each : {"weight", "bias"}) map.set(each, DevicePlacement::accelerator(0));
    for (const char* each : {"running_mean", "running_var", "num_batches_tracked"}) {
      map.set(each, DevicePlacement::accelerator(1));
    }
    auto model = dispatch_model(net, map);
    const Tensor x = torch::arange(12.).sin().view({3, 4}).to(torch::kFloat);
    for (int step = 0; step < 2; ++step) {
      const Tensor output = model(x), expected = plain(x);
      EXPECT_TRUE(torch::equal(output, expected));
      output.square().sum().backward();
      expected.square().sum().backward();
    }
    EXPECT_EQ(net->running_var.device(), sim(1));
    EXPECT_TRUE(torch::equal(net->running_var.cpu(), plain->running_var));
    EXPECT_EQ(net->num_batches_tracked.item<int64_t>(), 2);
    EXPECT_TRUE(torch::equal(net->weight.grad().cpu(), plain->weight.grad()));
  });
}

TEST(Rule, LeavesTheModelsOwnCopies) {
  EXPECT_EQ(copies_of([](RuleImpl& net, const Tensor& x) {
              const Tensor lower = net.lower(x);
              const Tensor upper = net.upper(lower.to(net.upper->weight.device()));
              return torch::cat({lower, upper.to(lower.device())}).type_as(lower);
            }),
            0);
}

}  // namespace
}  // namespace accelerate
