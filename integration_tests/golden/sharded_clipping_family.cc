// Norms of gradients that lie differently, and clipping by them. The mesh's `dp` divides parameters
// here as FSDP's dp_shard does; along its `tp` ranks are replicas, so a gradient that tp divides is
// missing. By which dimension a gradient is divided is the engine's choice.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/nn/module.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include "accelerate/accelerator.h"
#include "accelerate/parallel/sharded/sharded.h"
#include "integration_tests/golden/answers.h"
#include "integration_tests/golden/family.h"
#include "integration_tests/golden/fields.h"

namespace accelerate::golden {
namespace {

using nlohmann::json;

struct Gradient {
  std::vector<int64_t> shape;
  json value;  // null: the parameter has none
  bool is_divided;
};

Gradient gradient_of(const json& in, int64_t dp, int64_t tp) {
  expect_fields(in, {"shape", "value", "on", "placements"});
  Gradient gradient = {
      .shape = ints_field(in, "shape"), .value = field(in, "value"), .is_divided = false};
  const json& on = field(in, "on");
  const json& placements = field(in, "placements");
  for (size_t i = 0; i < on.size(); ++i) {
    const std::string axis = on[i];
    const std::string placement = placements.at(i);
    if (axis != "dp" && axis != "tp") throw CaseError("on: unknown " + axis);
    if (placement == "R") continue;
    if (placement != "S0" && placement != "S1") throw CaseError("placements: " + placement);
    if (axis == "tp" && tp > 1) throw Missing("tensor parallelism");
    gradient.is_divided |= axis == "dp" && dp > 1;
  }
  return gradient;
}

// JSON has no infinity, and none that is not a number.
std::vector<float> numbers_of(const json& values) {
  std::vector<float> numbers;
  for (const json& value : values) {
    numbers.push_back(value.is_string() ? std::stof(value.get<std::string>()) : value.get<float>());
  }
  return numbers;
}
json number_json(double number) {
  if (std::isnan(number)) return {{"float", "nan"}};
  if (std::isinf(number)) return {{"float", number > 0 ? "inf" : "-inf"}};
  return number;
}

// Parameters of zeros.
class Zeros : public torch::nn::Module {
 public:
  torch::Tensor add(const std::vector<int64_t>& shape) {
    return register_parameter("p" + std::to_string(parameters().size()), torch::zeros(shape));
  }
};

// Its loss has the gradients of the case.
class Net : public torch::nn::Module {
 public:
  explicit Net(const std::vector<Gradient>& gradients)
      : divided_(register_module("divided", std::make_shared<Zeros>())),
        whole_(register_module("whole", std::make_shared<Zeros>())) {
    for (const Gradient& each : gradients) {
      parameters_.push_back((each.is_divided ? divided_ : whole_)->add(each.shape));
      values_.push_back(each.value.is_null()
                            ? torch::Tensor()
                            : torch::tensor(numbers_of(each.value)).view(each.shape));
    }
  }

  torch::Tensor forward() {
    torch::Tensor loss = torch::zeros({});
    for (size_t i = 0; i < parameters_.size(); ++i) {
      if (values_[i].defined()) loss = loss + (parameters_[i] * values_[i]).sum();
    }
    return loss;
  }

  // What a step of length 1 took off.
  json steps() const {
    const torch::NoGradGuard no_grad;
    json steps = json::array();
    for (size_t i = 0; i < parameters_.size(); ++i) {
      json step;
      if (values_[i].defined()) {
        for (const json& number : to_list(-parameters_[i].detach())) {
          step.push_back(number_json(number.get<double>()));
        }
      }
      steps.push_back(std::move(step));
    }
    return steps;
  }

 private:
  const std::shared_ptr<Zeros> divided_, whole_;
  std::vector<torch::Tensor> parameters_, values_;
};

double norm_type_of(const json& in) {
  const json& type = field(in, "norm_type");
  if (type == "inf") return std::numeric_limits<double>::infinity();
  if (type == "-inf") return -std::numeric_limits<double>::infinity();
  return double_field(in, "norm_type");
}

json run_rank(const json& in, const std::vector<Gradient>& gradients, int64_t dp, int64_t tp) {
  AcceleratorOptions options;
  const bool is_divided = std::ranges::any_of(gradients, &Gradient::is_divided);
  if (is_divided) {
    options.parallelism_config =
        ParallelismConfig({.dp_replicate_size = tp, .dp_shard_size = dp}, Environment());
    options.fsdp_plugin =
        FullyShardedDataParallelPlugin{.fsdp_version = 2, .ignored_modules = "whole"};
  }
  Accelerator accelerator(options);
  auto net = std::make_shared<Net>(gradients);
  auto sgd = std::make_shared<torch::optim::SGD>(net->parameters(), torch::optim::SGDOptions(1));
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  accelerator.backward(model());
  const at::Tensor norm =
      accelerator.clip_grad_norm_(model, double_field(in, "max_norm"), norm_type_of(in));
  optimizer.step();
  const WholeParameters whole = full_parameters(model);
  return {{"total_norm", number_json(norm.item<double>())}, {"grads", net->steps()}};
}

json run_case(const json& in) {
  expect_fields(in, {"num_processes", "mesh", "grads", "max_norm", "norm_type"});
  const std::vector<int64_t> mesh = ints_field(in, "mesh");
  const int ranks = ranks_field(in, "num_processes");
  if (mesh.size() != 2 || mesh[0] * mesh[1] != ranks) throw CaseError("mesh: not of these ranks");
  std::vector<Gradient> gradients;
  for (const json& each : field(in, "grads")) {
    gradients.push_back(gradient_of(each, mesh[0], mesh[1]));
  }
  return {{"ranks", ask_ranks(ranks, [&](int /*rank*/) {
             return run_rank(in, gradients, mesh[0], mesh[1]);
           })}};
}

Tolerance six_digits(const json& /*in*/) { return {.relative = 1e-5, .absolute = 1e-6}; }

const FamilyRegistration kRegistration("sharded_clipping", &run_case, &six_digits);

}  // namespace
}  // namespace accelerate::golden
