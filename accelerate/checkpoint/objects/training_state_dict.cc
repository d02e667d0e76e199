#include "accelerate/checkpoint/objects/training_state_dict.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <typeinfo>
#include <unordered_set>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <c10/util/Exception.h>
#include <c10/util/Type.h>
#include <torch/nn/module.h>
#include <torch/optim/schedulers/lr_scheduler.h>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "accelerate/comm/random.h"
#include "accelerate/forward/model_state.h"
#include "accelerate/operators/managed_storage.h"
#include "accelerate/parallel/apply.h"
#include "accelerate/tensors/tensor_memory.h"
#include "accelerate/values/fields.h"
#include "accelerate/values/json_values.h"

namespace accelerate::internal {
namespace {

using nlohmann::ordered_json;

constexpr char kWhere[] = "the state of training";

ACCELERATE_FIELDS(AccumulationWindow, steps, rescaled, divides_by_steps, divides_by_tokens, tokens,
                  token_unit, tokens_are_summed)

AccumulationWindow window_of(const ordered_json& values, const TrainingState& training) {
  const std::string where = "the window in " + std::string(kWhere);
  AccumulationWindow window;
  visit_fields(window, [&](const char* name, auto& field) {
    read_field(values, name, where, field);
    if constexpr (std::is_same_v<std::decay_t<decltype(field)>, int64_t>) {
      TORCH_CHECK_VALUE(field >= 0, where, ": \"", name, "\" is ", field);
    }
  });
  for (const int64_t place : field_of<std::vector<int64_t>>(values, "models", where)) {
    TORCH_CHECK_VALUE(place >= 0, where, " has model ", place);
    if (place >= static_cast<int64_t>(training.models.size())) continue;
    window.models.push_back(training.models[static_cast<size_t>(place)]->module().get());
  }
  return window;
}

}  // namespace

StateDict training_state_dict(const TrainingState& training, const GradientState& gradients) {
  TORCH_CHECK_VALUE(
      !gradients.joining(),
      "training cannot be saved inside join_uneven_inputs: no rank could go on there");
  std::vector<int64_t> models;
  for (const torch::nn::Module* module : gradients.window().models) {
    const auto found = std::ranges::find(training.models, module,
                                         [](const auto& known) { return known->module().get(); });
    if (found != training.models.end()) models.push_back(found - training.models.begin());
  }
  ordered_json window;
  visit_fields(gradients.window(),
               [&window](const char* name, const auto& field) { window[name] = field; });
  window["models"] = models;
  auto optimizers = ordered_json::array();
  for (const auto& optimizer : alive(training.optimizers)) {
    const StepState step = optimizer->owner->state(*optimizer);
    optimizers.push_back(
        {{"step_was_skipped", step.was_skipped}, {"are_averaged", step.has_averages}});
  }
  return {.values = {{"step", gradients.step()},
                     {"sync_gradients", gradients.sync_gradients()},
                     {"is_xla_gradients_synced", gradients.is_xla_gradients_synced()},
                     {"window", std::move(window)},
                     {"optimizers", std::move(optimizers)}}};
}

void load_training_state_dict(TrainingState& training, GradientState& gradients,
                              const StateDict& state) {
  const ordered_json& values = state.values;
  const auto step = field_of<int64_t>(values, "step", kWhere);
  TORCH_CHECK_VALUE(step >= 0, kWhere, ": \"step\" is ", step);
  const auto sync = field_of<bool>(values, "sync_gradients", kWhere);
  const auto xla_synced = field_of<bool>(values, "is_xla_gradients_synced", kWhere);
  const ordered_json saved_window = json_member(values, "window", kWhere);
  AccumulationWindow window = window_of(saved_window, training);
  const ordered_json saved = json_member(values, "optimizers", kWhere);
  const auto optimizers = alive(training.optimizers);
  TORCH_CHECK_VALUE(saved.is_array() && saved.size() >= optimizers.size(), kWhere, " is of ",
                    saved.size(), " optimizers, prepared were ", optimizers.size());
  std::vector<StepState> steps;
  for (const ordered_json& optimizer : saved) {
    steps.push_back({.was_skipped = field_of<bool>(optimizer, "step_was_skipped", kWhere),
                     .has_averages = field_of<bool>(optimizer, "are_averaged", kWhere)});
  }
  gradients.set_step(step);
  gradients.window() = std::move(window);
  gradients.set_sync_gradients(sync);
  gradients.set_is_xla_gradients_synced(xla_synced);
  for (size_t i = 0; i < optimizers.size(); ++i) {
    optimizers[i]->owner->load_state(*optimizers[i], steps[i]);
  }
}

}  // namespace accelerate::internal

namespace accelerate {
namespace {

using internal::field_of;
using nlohmann::ordered_json;

constexpr char kWhere[] = "the gradients' state";
constexpr char kSparse[] = "sparse";
constexpr char kIsCoalesced[] = "is_coalesced";

// Each once.
NamedTensors parameters_of(const torch::nn::Module& module) {
  NamedTensors parameters;
  std::unordered_set<const at::TensorImpl*> seen;
  for (const auto& item : module.named_parameters()) {
    const at::Tensor& parameter = item.value();
    if (!parameter.defined() || !seen.insert(parameter.unsafeGetTensorImpl()).second) continue;
    parameters.emplace_back(item.key(), parameter);
  }
  return parameters;
}

void check(bool fits, const std::string& name, const at::Tensor& tensor,
           const at::Tensor& parameter) {
  TORCH_CHECK_VALUE(fits, kWhere, ": \"", name, "\" has shape ", tensor.sizes(), " and dtype ",
                    tensor.scalar_type(), ", its parameter ", parameter.sizes(), " and ",
                    parameter.scalar_type());
}

bool is_of_kind(const at::Tensor& tensor, const at::Tensor& parameter) {
  return tensor.is_complex() == parameter.is_complex() &&
         tensor.is_floating_point() == parameter.is_floating_point();
}

at::Tensor dense(at::Tensor tensor, const std::string& name, const at::Tensor& parameter) {
  check(tensor.sizes() == parameter.sizes() && is_of_kind(tensor, parameter), name, tensor,
        parameter);
  return internal::conform_to_parameter(std::move(tensor), parameter, parameter.scalar_type(),
                                        /*like_parameter=*/true);
}

at::Tensor sparse(const ordered_json& entry, internal::UntakenTensors& tensors,
                  const std::string& name, const at::Tensor& parameter) {
  const auto is_coalesced = field_of<bool>(entry, kIsCoalesced, name + " in " + kWhere);
  at::Tensor indices = tensors.take(name + ".indices"), values = tensors.take(name + ".values");
  TORCH_CHECK_VALUE(indices.defined() && values.defined(), kWhere,
                    " lacks the indices or values of \"", name, "\"");
  TORCH_CHECK_VALUE(indices.scalar_type() == at::kLong && indices.dim() == 2 &&
                        indices.size(0) >= 1 && indices.size(0) <= parameter.dim(),
                    kWhere, ": \"", name, ".indices\" has shape ", indices.sizes(), " and dtype ",
                    indices.scalar_type());
  std::vector<int64_t> sizes = {indices.size(1)};
  for (int64_t dim = indices.size(0); dim < parameter.dim(); ++dim) {
    sizes.push_back(parameter.size(dim));
  }
  check(values.sizes() == at::IntArrayRef(sizes) && is_of_kind(values, parameter), name + ".values",
        values, parameter);
  for (int64_t dim = 0; dim < indices.size(0) && indices.size(1) > 0; ++dim) {
    const auto least = indices[dim].min().item<int64_t>();
    const auto most = indices[dim].max().item<int64_t>();
    TORCH_CHECK_VALUE(least >= 0 && most < parameter.size(dim), kWhere, ": \"", name,
                      ".indices\" points outside of its parameter: ", least, " to ", most);
  }
  indices = internal::conform_to_parameter(std::move(indices), parameter, at::kLong,
                                           /*like_parameter=*/false);
  values = internal::conform_to_parameter(std::move(values), parameter, parameter.scalar_type(),
                                          /*like_parameter=*/false);
  at::Tensor gradient = at::_sparse_coo_tensor_unsafe(indices, values, parameter.sizes());
  return gradient._coalesced_(is_coalesced);
}

void check_bytes(const std::string& name, const at::Tensor& bytes) {
  TORCH_CHECK_VALUE(bytes.defined() && bytes.scalar_type() == at::kByte && bytes.dim() == 1,
                    "the state of generator \"", name, "\" is not a vector of bytes");
}

constexpr char kOurs[] = "accelerate";

std::string type_of(const internal::SharedScheduler& scheduler) {
  const torch::optim::LRScheduler& object = *scheduler.scheduler;
  const std::string type = c10::demangle(typeid(object).name());
  const std::string prefix = "accelerate::optim::";
  return type.starts_with(prefix) ? type.substr(prefix.size()) : type;
}

}  // namespace

StateDict gradient_state_dict(const torch::nn::Module& module) {
  at::NoGradGuard no_grad;
  StateDict state;
  for (const auto& [name, parameter] : parameters_of(module)) {
    const at::Tensor& gradient = parameter.grad();
    // One that was reduced to shards has no values here; see shard_gradient_state_dict.
    if (!gradient.defined() || is_absent(gradient)) continue;
    if (gradient.layout() == at::kStrided) {
      state.tensors.emplace_back(name, gradient.detach());
      continue;
    }
    TORCH_CHECK_VALUE(gradient.layout() == at::kSparse, "the gradient of \"", name, "\" is ",
                      gradient.layout(), ", which a checkpoint cannot hold");
    state.tensors.emplace_back(name + ".indices", gradient._indices());
    state.tensors.emplace_back(name + ".values", gradient._values().detach());
    state.values[kSparse][name] = {{kIsCoalesced, gradient.is_coalesced()}};
  }
  return state;
}

void load_gradient_state_dict(torch::nn::Module& module, StateDict state) {
  at::NoGradGuard no_grad;
  // Gradients lie as their parameters do, whose values may be elsewhere.
  const UnwatchedOperators unwatched;
  ordered_json sparse_ones = ordered_json::object();
  if (!state.values.is_null()) {
    sparse_ones = internal::json_member(state.values, kSparse, kWhere);
    TORCH_CHECK_VALUE(sparse_ones.is_object(), kWhere, ": \"", kSparse, "\" is not an object");
  }
  for (const auto& [name, tensor] : state.tensors) {
    TORCH_CHECK_VALUE(tensor.defined() && tensor.layout() == at::kStrided, kWhere, ": \"", name,
                      "\" is not a dense tensor");
  }
  internal::UntakenTensors tensors(std::move(state.tensors), kWhere);
  const NamedTensors parameters = parameters_of(module);
  std::vector<at::Tensor> gradients;
  for (const auto& [name, parameter] : parameters) {
    if (const auto entry = sparse_ones.find(name); entry != sparse_ones.end()) {
      gradients.push_back(sparse(*entry, tensors, name, parameter));
      continue;
    }
    at::Tensor gradient = tensors.take(name);
    if (gradient.defined()) gradient = dense(std::move(gradient), name, parameter);
    gradients.push_back(std::move(gradient));
  }
  tensors.check_all_taken("is not a parameter of this model");
  for (size_t i = 0; i < parameters.size(); ++i) {
    parameters[i].second.mutable_grad() = std::move(gradients[i]);
  }
}

namespace {

// Null where the model's parameters are not divided by rows.
const TrainedInPlace* shards_of(const ModelState& model) {
  const TrainedInPlace* in_place = model.in_place();
  return in_place != nullptr && in_place->set_gradient != nullptr ? in_place : nullptr;
}

}  // namespace

StateDict shard_gradient_state_dict(const ModelState& model) {
  StateDict state;
  const TrainedInPlace* shards = shards_of(model);
  if (shards == nullptr) return state;
  for (const TrainedParameter& each : shards->tensors) {
    const at::Tensor& gradient = each.trained.grad();
    if (gradient.defined()) state.tensors.emplace_back(each.name, gradient.detach());
  }
  return state;
}

void load_shard_gradient_state_dict(ModelState& model, StateDict state) {
  const TrainedInPlace* shards = shards_of(model);
  TORCH_CHECK_VALUE(shards != nullptr || state.tensors.empty(),
                    "the state has gradients of shards, and the model is not sharded");
  if (shards == nullptr) return;
  internal::UntakenTensors tensors(std::move(state.tensors), kWhere);
  std::vector<at::Tensor> gradients;
  for (const TrainedParameter& each : shards->tensors) {
    at::Tensor gradient = tensors.take(each.name);
    if (gradient.defined()) gradient = dense(std::move(gradient), each.name, each.trained);
    gradients.push_back(std::move(gradient));
  }
  tensors.check_all_taken("is not a parameter of this model");
  for (size_t i = 0; i < gradients.size(); ++i) shards->set_gradient(i, std::move(gradients[i]));
}

StateDict replica_state_dict(const ModelState& model) {
  StateDict all;
  for (const auto& technique : model.techniques()) {
    StateDict state = technique->state_dict();
    const std::string name(technique->name());
    if (!state.values.empty()) all.values[name] = std::move(state.values);
    for (auto& [tensor_name, tensor] : state.tensors) {
      all.tensors.emplace_back(name + "." + tensor_name, std::move(tensor));
    }
  }
  return all;
}

void load_replica_state_dict(ModelState& model, const StateDict& state,
                             const LoadReplicaStateDictOptions& options) {
  for (const auto& [name, tensor] : state.tensors) {
    const std::string_view technique = std::string_view(name).substr(0, name.find('.'));
    // A model may lack techniques that a checkpoint has.
    const bool is_known = is_technique(options.known, technique) ||
                          std::ranges::any_of(model.techniques(), [technique](const auto& each) {
                            return each->name() == technique;
                          });
    TORCH_CHECK_VALUE(is_known, "the state of a model's replica has an unknown tensor \"", name,
                      "\"");
  }
  // Innermost first: an error in the state of replication leaves that of fp8 loaded.
  for (auto technique = model.techniques().rbegin(); technique != model.techniques().rend();
       ++technique) {
    const std::string name((*technique)->name());
    const std::string prefix = name + ".";
    StateDict own;
    for (const auto& [tensor_name, tensor] : state.tensors) {
      if (!tensor_name.starts_with(prefix)) continue;
      own.tensors.emplace_back(tensor_name.substr(prefix.size()), tensor);
    }
    if (state.values.contains(name)) own.values = state.values.at(name);
    (*technique)->load_state_dict(own, options.same_ranks);
  }
}

StateDict rng_state_dict(const RngState& state) {
  return {.tensors = {state.states.begin(), state.states.end()}};
}

RngState rng_state_of(const StateDict& state) {
  RngState result;
  for (const auto& [name, bytes] : state.tensors) {
    check_bytes(name, bytes);
    TORCH_CHECK_VALUE(result.states.emplace(name, bytes.cpu().contiguous()).second,
                      "there are two states of generator \"", name, "\"");
  }
  return result;
}

RngState derive_rng_state(const RngState& rank0, int rank, const NamedGenerators& generators,
                          const Runtime& runtime) {
  TORCH_CHECK_VALUE(rank >= 0, "rank ", rank, " does not exist");
  RngState derived;
  for (const auto& [name, own] : all_generators(generators, runtime)) {
    auto found = rank0.states.find(name);
    if (found == rank0.states.end()) found = rank0.states.find("torch");
    TORCH_CHECK_VALUE(found != rank0.states.end(), "rank 0 has no state of a generator \"", name,
                      "\", nor of \"torch\", that one for rank ", rank, " could be derived from");
    check_bytes(found->first, found->second);
    derived.states.emplace(
        name, generator_state(derived_generator(own, found->second.cpu().contiguous(), rank)));
  }
  return derived;
}

StateDict scheduler_state_dict(const internal::SharedScheduler& scheduler) {
  StateDict state;
  state.values = internal::spell_numbers(scheduler.state_dict());
  state.values[kOurs] = {{"type", type_of(scheduler)},
                         {"steps", scheduler.steps},
                         {"asked_steps", scheduler.asked_steps}};
  return state;
}

void load_scheduler_state_dict(internal::SharedScheduler& scheduler, const StateDict& state) {
  using internal::field_of;
  const std::string type = type_of(scheduler);
  const std::string where = absl::StrCat("the state of a scheduler of type ", type);
  TORCH_CHECK_VALUE(state.tensors.empty(), where, " has tensors, as \"",
                    state.tensors.front().first, "\"");
  nlohmann::ordered_json values = internal::read_numbers(state.values);
  const nlohmann::ordered_json ours = internal::json_member(values, kOurs, where);
  const auto saved_type = field_of<std::string>(ours, "type", where);
  TORCH_CHECK_VALUE(saved_type == type, "the state is of a scheduler of type ", saved_type,
                    ", this one is of type ", type);
  const auto steps = field_of<int64_t>(ours, "steps", where);
  const auto asked_steps = field_of<int64_t>(ours, "asked_steps", where);
  TORCH_CHECK_VALUE(0 <= steps && steps <= asked_steps, where, ": \"steps\" is ", steps,
                    " and \"asked_steps\" ", asked_steps);
  values.erase(kOurs);
  scheduler.load_state_dict(values);
  scheduler.steps = steps;
  scheduler.asked_steps = asked_steps;
}

}  // namespace accelerate
