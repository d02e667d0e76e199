#include "integration_tests/golden/deepspeed_objects.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/module.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include "absl/strings/match.h"
#include "accelerate/accelerator.h"
#include "accelerate/config/deepspeed_plugin.h"
#include "accelerate/optim/foreach_optimizers.h"
#include "accelerate/optim/fused_optimizers.h"
#include "accelerate/optim/zero_objects.h"
#include "integration_tests/golden/answers.h"
#include "integration_tests/golden/fields.h"

namespace accelerate::golden {
namespace {

using nlohmann::json;

// ---- A job of one rank and one number.

struct Square : torch::nn::Module {
  Square() { weight = register_parameter("weight", at::ones({1})); }
  // A loss of this value, with a gradient of the same value.
  at::Tensor forward(double value) {
    middle = weight + 1;
    return (middle * middle).sum() * (value / 4);
  }
  at::Tensor weight;
  at::Tensor middle;  // of the last pass
};

struct Job {
  explicit Job(bool in_fp16 = false) : accelerator(options(in_fp16)) {}

  static AcceleratorOptions options(bool in_fp16) {
    return {.deepspeed_plugin = DeepSpeedPlugin{
                .hf_ds_config = {{"train_micro_batch_size_per_gpu", 1},
                                 {"gradient_clipping", 0},
                                 {"fp16", {{"enabled", in_fp16}, {"initial_scale_power", 4}}},
                                 {"zero_optimization", {{"stage", 2}}}}}};
  }
  DeepSpeedEngineWrapper& engine() { return *accelerator.deepspeed_engine_wrapped(); }
  at::Tensor trained() const { return sgd.param_groups()[0].params()[0]; }

  Accelerator accelerator;
  std::shared_ptr<Square> net = std::make_shared<Square>();
  torch::optim::SGD sgd{net->parameters(), 0.1};
  std::pair<PreparedModel<Square>, AcceleratedOptimizer> prepared = [this] {
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    return std::pair(model, optimizer);
  }();
};

bool fails(const std::function<void()>& body) {
  try {
    body();
    return false;
  } catch (const c10::Error&) {
    return true;
  }
}

// ---- kind: engine

// The calls of DeepSpeed's engine that have the same effect.
json calls_of_backward(const json& in) {
  BackwardOptions options;
  for (const auto& [name, value] : field(in, "kwargs").items()) {
    if (name != "retain_graph") throw CaseError("kwargs: unknown " + name);
    options.retain_graph = value.get<bool>();
  }
  Job job;
  const at::Tensor before = job.trained().detach().clone();
  const at::Tensor loss = job.prepared.first(double_field(in, "loss"));
  json calls = json::array();
  const unsigned hook = loss.register_hook([&](const at::Tensor& /*gradient*/) {
    calls.push_back({"set_gradient_accumulation_boundary", job.accelerator.sync_gradients()});
  });
  job.engine().backward(loss, bool_field(in, "sync_gradients"), options);
  loss.remove_hook(hook);
  json kwargs = json::object();
  // A graph that is not retained cannot be used again.
  const auto use_again = [&] {
    torch::autograd::grad({loss}, {job.net->middle}, /*grad_outputs=*/{}, /*retain_graph=*/true);
  };
  if (options.retain_graph) kwargs["retain_graph"] = !fails(use_again);
  calls.push_back({"backward", loss.item<double>(), std::move(kwargs)});
  if (!at::equal(job.trained(), before)) calls.push_back({"step"});
  return {{"calls", std::move(calls)}};
}

// DeepSpeed's engine has no norm until its first step.
json norm_after(const json& returns) {
  Job job;
  if (!returns.is_null()) {
    const json& norm = returns.is_object() && returns.size() == 1 ? *returns.begin() : returns;
    if (!norm.is_number()) throw CaseError("engine_returns: unknown " + returns.dump());
    job.engine().backward(job.prepared.first(norm.get<double>()));
  }
  const std::optional<double> found = job.engine().get_global_grad_norm();
  return {{"value", found ? json(*found) : json()}};
}

json run_engine(const json& in) {
  expect_fields(in, {"kind", "call", "loss", "sync_gradients", "kwargs", "engine_returns", "note"});
  const std::string call = string_field(in, "call");
  return ask_ranks(1,
                   [&](int /*rank*/) {
                     if (call == "backward") return calls_of_backward(in);
                     if (call == "get_global_grad_norm")
                       return norm_after(field(in, "engine_returns"));
                     throw CaseError("call: unknown " + call);
                   })
      .front();
}

// ---- kind: optimizer_wrapper

// The optimizer of DeepSpeed's that notes overflows is the one of fp16.
json run_optimizer_wrapper(const json& in) {
  expect_fields(in, {"kind", "overflow_attribute", "note"});
  const bool notes_overflows = bool_field(in, "overflow_attribute");
  return ask_ranks(1,
                   [&](int /*rank*/) -> json {
                     Job job(notes_overflows);
                     AcceleratedOptimizer& optimizer = job.prepared.second;
                     const at::Tensor loss = job.prepared.first(1);
                     job.engine().backward(
                         notes_overflows ? loss * std::numeric_limits<double>::infinity() : loss);
                     // Neither of these does anything.
                     const at::Tensor trained = job.trained(), before = trained.detach().clone();
                     trained.mutable_grad() = at::ones_like(trained);
                     const bool returns = optimizer.step().defined();
                     const bool steps = returns || !at::equal(trained, before);
                     optimizer.zero_grad();
                     const bool resets =
                         !trained.grad().defined() || !trained.grad().equal(at::ones({1}));
                     return {{"step_was_skipped", optimizer.step_was_skipped()},
                             {"step", steps ? json("stepped") : json()},
                             {"zero_grad", resets ? json("reset") : json()}};
                   })
      .front();
}

// ---- kind: map_optimizer

using Groups = std::vector<torch::optim::OptimizerParamGroup>;

template <typename Optimizer, typename Options>
std::unique_ptr<torch::optim::Optimizer> made(const json& arguments, const Groups& groups) {
  Options options(arguments.value("lr", Options().lr()));
  if (arguments.contains("weight_decay")) {
    options.weight_decay(arguments["weight_decay"].get<double>());
  }
  return std::make_unique<Optimizer>(groups, options);
}

template <typename Options>
json numbers_of(const torch::optim::OptimizerOptions& options) {
  const auto& own = dynamic_cast<const Options&>(options);
  return {{"lr", own.lr()},
          {"weight_decay", own.weight_decay()},
          {"adamw_mode", std::is_same_v<Options, torch::optim::AdamWOptions>}};
}

bool has_same_groups(const torch::optim::Optimizer& a, const torch::optim::Optimizer& b) {
  if (a.param_groups().size() != b.param_groups().size()) return false;
  for (size_t i = 0; i < a.param_groups().size(); ++i) {
    const auto &own = a.param_groups()[i].params(), &other = b.param_groups()[i].params();
    if (own.size() != other.size()) return false;
    for (size_t j = 0; j < own.size(); ++j) {
      if (!own[j].is_same(other[j])) return false;
    }
    if (a.param_groups()[i].options().get_lr() != b.param_groups()[i].options().get_lr()) {
      return false;
    }
  }
  return true;
}

json run_map_optimizer(const json& in) {
  expect_fields(in,
                {"kind", "optimizer", "arguments", "bits", "bitsandbytes", "bits_in_args", "note"});
  const std::string asked = string_field(in, "optimizer");
  if (absl::StartsWith(asked, "bnb.")) throw DoesNotCompile();
  const std::string name = asked.substr(asked.rfind('.') + 1);
  const json& arguments = field(in, "arguments");
  const Groups groups = {Groups::value_type({at::ones({2})}), Groups::value_type({at::ones({3})})};
  namespace theirs = torch::optim;
  std::unique_ptr<theirs::Optimizer> optimizer;
  if (name == "Adam") {
    optimizer = made<theirs::Adam, theirs::AdamOptions>(arguments, groups);
  } else if (name == "AdamW") {
    optimizer = made<theirs::AdamW, theirs::AdamWOptions>(arguments, groups);
  } else if (name == "Adagrad") {
    optimizer = made<theirs::Adagrad, theirs::AdagradOptions>(arguments, groups);
  } else if (name == "SGD") {
    theirs::SGDOptions options(double_field(arguments, "lr"));
    options.weight_decay(arguments.value("weight_decay", 0.));
    optimizer = std::make_unique<theirs::SGD>(groups, options);
  } else {
    throw CaseError("optimizer: unknown " + asked);
  }
  const auto mapped = optim::map_pytorch_optim_to_deepspeed(*optimizer);
  json out = {{"same_groups", has_same_groups(*optimizer, *mapped)}};
  const theirs::OptimizerOptions& defaults = mapped->defaults();
  if (dynamic_cast<optim::AdamW*>(mapped.get()) != nullptr) {
    out["class"] = "DeepSpeedCPUAdam";
    out["arguments"] = numbers_of<theirs::AdamWOptions>(defaults);
  } else if (dynamic_cast<optim::Adam*>(mapped.get()) != nullptr) {
    out["class"] = "DeepSpeedCPUAdam";
    out["arguments"] = numbers_of<theirs::AdamOptions>(defaults);
  } else if (dynamic_cast<optim::Adagrad*>(mapped.get()) != nullptr) {
    out["class"] = "DeepSpeedCPUAdagrad";
    out["arguments"] = numbers_of<theirs::AdagradOptions>(defaults);
  } else if (dynamic_cast<optim::SGD*>(mapped.get()) != nullptr) {
    out["class"] = "SGD";
    out["arguments"] = numbers_of<theirs::SGDOptions>(defaults);
  }
  return out;
}

// ---- kind: optimizer_mode

class ModalSgd final : public torch::optim::SGD, public optim::TrainMode {
 public:
  ModalSgd(std::vector<at::Tensor> parameters, const char* name, json& calls)
      : SGD(std::move(parameters), torch::optim::SGDOptions(1)), name_(name), calls_(calls) {}

  void train() override { calls_.push_back({name_, "train"}); }
  void eval() override { calls_.push_back({name_, "eval"}); }

 private:
  const char* const name_;
  json& calls_;
};

// Whether the optimizer has modes, which are both or none in C++.
bool has_modes(const json& methods) {
  if (methods.is_null() || methods.empty()) return false;
  const json both = {"train", "eval"};
  for (const json& method : methods) {
    if (std::ranges::count(both, method) == 0) throw CaseError("unknown mode " + method.dump());
  }
  if (methods.size() < both.size()) throw DoesNotCompile();
  return true;
}

// DeepSpeed's wrapper and the optimizer inside of it are one optimizer here.
json run_optimizer_mode(const json& in) {
  expect_fields(in, {"kind", "optimizer", "inside", "note"});
  const bool outside = has_modes(field(in, "optimizer"));
  const bool inside = has_modes(field(in, "inside"));
  return ask_ranks(1,
                   [&](int /*rank*/) {
                     json calls = json::array();
                     Accelerator accelerator(
                         {.deepspeed_plugin = DeepSpeedPlugin{
                              .hf_ds_config = {{"train_micro_batch_size_per_gpu", 1},
                                               {"zero_optimization", {{"stage", 0}}}}}});
                     auto net = std::make_shared<Square>();
                     std::shared_ptr<torch::optim::Optimizer> sgd;
                     if (outside || inside) {
                       sgd = std::make_shared<ModalSgd>(net->parameters(),
                                                        outside ? "optimizer" : "inside", calls);
                     } else {
                       sgd = std::make_shared<torch::optim::SGD>(net->parameters(),
                                                                 torch::optim::SGDOptions(1));
                     }
                     auto [model, optimizer] = accelerator.prepare(net, sgd);
                     optimizer.train();
                     optimizer.eval();
                     return json{{"calls", calls}};
                   })
      .front();
}

}  // namespace

std::optional<json> run_deepspeed_objects(const json& in) {
  const std::string kind = string_field(in, "kind");
  if (kind == "engine") return run_engine(in);
  if (kind == "optimizer_wrapper") return run_optimizer_wrapper(in);
  if (kind == "map_optimizer") return run_map_optimizer(in);
  if (kind == "optimizer_mode") return run_optimizer_mode(in);
  return std::nullopt;
}

}  // namespace accelerate::golden
