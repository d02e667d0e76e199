#include "accelerate/optim/accelerated_optimizer.h"

#include <algorithm>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include <torch/optim/optimizer.h>
#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>

#include "accelerate/base/json_text.h"
#include "accelerate/comm/objects.h"
#include "accelerate/comm/operations.h"
#include "accelerate/operators/managed_storage.h"
#include "accelerate/optim/foreach_optimizers.h"
#include "accelerate/optim/lomo.h"
#include "accelerate/optim/optimizer_state_dict.h"
#include "accelerate/optim/shared_objects.h"
#include "accelerate/optim/step_in_parts.h"
#include "accelerate/precision/autocast.h"
#include "accelerate/runtime/shared_objects.h"
#include "accelerate/tensors/portable.h"
#include "accelerate/tensors/state_dict.h"

namespace accelerate {
AcceleratedOptimizer::AcceleratedOptimizer(std::shared_ptr<torch::optim::Optimizer> optimizer,
                                           GradientState& gradient_state, OptimizerPolicy policy)
    : shared_(std::make_shared<internal::SharedOptimizer>(
          internal::SharedOptimizer{.optimizer = std::move(optimizer)})),
      gradient_state_(&gradient_state) {
  shared_->scaler = SharedScaler::User(std::move(policy.scaler), *shared_->optimizer);
  if (policy.packs_moments) {
    shared_->moments = std::make_unique<Fp8Moments>(*shared_->optimizer);
  }
}

void internal::SharedOptimizer::average_gradients(const GradientState& gradient_state) {
  if (!averages || std::exchange(averages->are_made, true)) return;
  if (gradient_state.is_xla_gradients_synced()) return;
  accelerate::average_gradients(averages->group, parameters());
}

void internal::SharedOptimizer::average_and_unscale_gradients(const GradientState& gradient_state) {
  average_gradients(gradient_state);
  if (scaler) scaler.unscale();
}

void internal::SharedOptimizer::wait_for_readers() {
  for (const std::weak_ptr<OptimizerStateReader>& each : readers) {
    if (const auto reader = each.lock()) reader->finish();
  }
  readers.clear();
}

at::Tensor internal::SharedOptimizer::update(StepOptions options) {
  at::Tensor loss;
  const auto update = [&] {
    // LibTorch's SGD changes `parameter.data()`, which leaves the version as it is. A shard has its
    // parameter's version, by which what is made of it part by part is told from what was before.
    for (const at::Tensor& parameter : whole) {
      if (!parameter.is_inference()) parameter.unsafeGetTensorImpl()->bump_version();
    }
    if (on_disk) {
      on_disk->step(options.elements);
    } else if (options.closure) {
      // It may be called several times, each with other weights.
      loss = optimizer->step([&options] {
        drop_cast_weights();
        return options.closure();
      });
    } else {
      step_in_parts(*optimizer, options.elements);
    }
  };
  step_was_skipped = false;
  if (scaler) {
    step_was_skipped = !scaler.step(update);
  } else {
    update();
  }
  drop_cast_weights();
  return loss;
}

at::Tensor internal::SharedOptimizer::step(GradientState& gradient_state, StepOptions options) {
  TORCH_CHECK_VALUE(!options.closure || (!scaler && !averages),
                    "step: what a closure computes would be neither scaled nor averaged");
  TORCH_CHECK_VALUE(!options.closure || on_disk == nullptr,
                    "step: an optimizer whose state is on a disk takes no closure");
  for (const auto& scopes : overwriting_scopes) {
    TORCH_CHECK_VALUE(*scopes == 0,
                      "step: the end of a full_parameters scope with writeback would undo it; step "
                      "outside of the scope, or let its options have writeback = false");
  }
  average_gradients(gradient_state);
  if (averages) averages->are_made = false;
  wait_for_readers();
  if (moments) moments->unpack();
  at::Tensor loss = update(std::move(options));
  if (moments) moments->pack();
  gradient_state.set_is_xla_gradients_synced(false);
  // The others made their step in the backward pass.
  const bool made_before =
      dynamic_cast<const optim::FusedBackwardOptimizer*>(optimizer.get()) != nullptr;
  if (!made_before) record_optimizer_step();
  return loss;
}

std::vector<at::Tensor> internal::SharedOptimizer::parameters() const {
  std::vector<at::Tensor> all;
  for (const torch::optim::OptimizerParamGroup& group : optimizer->param_groups()) {
    all.insert(all.end(), group.params().begin(), group.params().end());
  }
  return all;
}

bool internal::SharedOptimizer::has_gradients() const {
  return std::ranges::any_of(optimizer->param_groups(), [](const auto& group) {
    return std::ranges::any_of(
        group.params(), [](const at::Tensor& parameter) { return parameter.grad().defined(); });
  });
}

void internal::SharedOptimizer::zero_grad(bool set_to_none) {
  if (scaler) scaler.clear_unscaled();
  const auto forget = [set_to_none](const at::Tensor& parameter) {
    at::Tensor& grad = parameter.mutable_grad();
    if (!grad.defined()) return;
    // Not detach_(), as LibTorch's own does: a gradient may be a view into a DDP bucket.
    if (set_to_none) {
      grad.reset();
    } else if (!is_absent(grad)) {
      at::NoGradGuard no_grad;
      grad.zero_();
    }
  };
  for (const torch::optim::OptimizerParamGroup& group : optimizer->param_groups()) {
    for (const at::Tensor& parameter : group.params()) forget(parameter);
  }
  for (const at::Tensor& parameter : whole) forget(parameter);
}

StateDict internal::SharedOptimizer::state_dict(const OptimizerStateDictOptions& options) {
  if (moments) moments->unpack();
  StateDict state = optimizer_state_dict(*optimizer, options);
  if (moments) moments->pack();
  return state;
}

void internal::SharedOptimizer::load_state_dict(StateDict state,
                                                const OptimizerStateDictOptions& options) {
  load_optimizer_state_dict(*optimizer, std::move(state),
                            {.parameters = options.parameters, .wide_moments = moments != nullptr});
  if (moments) moments->pack();
  if (on_disk) on_disk->store();
}

at::Tensor AcceleratedOptimizer::step(torch::optim::Optimizer::LossClosure closure) {
  if (!gradient_state_->sync_gradients()) return {};
  return alive().owner->step(*shared_, *gradient_state_, std::move(closure));
}

void AcceleratedOptimizer::zero_grad(bool set_to_none) {
  if (!gradient_state_->sync_gradients()) return;
  alive().owner->zero_grad(*shared_, set_to_none);
}

internal::SharedOptimizer& AcceleratedOptimizer::alive() const {
  TORCH_CHECK(shared_ != nullptr, "this prepared optimizer was freed");
  return *shared_;
}

torch::optim::Optimizer& AcceleratedOptimizer::operator*() const { return *alive().optimizer; }

bool AcceleratedOptimizer::step_was_skipped() const {
  return shared_ != nullptr && shared_->step_was_skipped;
}

void AcceleratedOptimizer::train() const {
  if (auto* mode = dynamic_cast<optim::TrainMode*>(&**this)) mode->train();
}

void AcceleratedOptimizer::eval() const {
  if (auto* mode = dynamic_cast<optim::TrainMode*>(&**this)) mode->eval();
}

StateDict AcceleratedOptimizer::state_dict() const { return alive().state_dict(); }

void AcceleratedOptimizer::load_state_dict(StateDict state) {
  alive().wait_for_readers();
  shared_->load_state_dict(std::move(state));
}

void broadcast_optimizer_state(const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                               torch::optim::Optimizer& optimizer, int source, c10::Device device) {
  const bool sends = group->getRank() == source;
  PortableWriter writer;
  if (sends) {
    const StateDict own = optimizer_state_dict(optimizer);
    writer.write_string(internal::exact_json_text(own.values));
    const size_t count = own.tensors.size();
    writer.write_bytes(&count, sizeof(count));
    for (const auto& [name, tensor] : own.tensors) {
      writer.write_string(name);
      writer.write_tensor(tensor.to(device).contiguous());
    }
  }
  PortableReader reader(broadcast_bytes(group, writer.bytes(), source));
  if (sends) return broadcast_tensors(group, writer.tensors(), source);
  reader.set_device(device);
  StateDict state{.values = internal::parse_ordered_json(reader.read_string())};
  size_t count = 0;
  reader.read_bytes(&count, sizeof(count));
  for (size_t i = 0; i < count; ++i) {
    std::string name = reader.read_string();
    state.tensors.emplace_back(std::move(name), reader.read_tensor());
  }
  broadcast_tensors(group, reader.tensors(), source);
  load_optimizer_state_dict(optimizer, std::move(state));
}

void move_optimizer_state(torch::optim::Optimizer& optimizer, c10::Device device) {
  if (optimizer.state().empty() || device.is_cpu()) return;
  // Not by load_optimizer_state_dict, which follows the parameters; they may be elsewhere.
  torch::serialize::OutputArchive saved;
  optimizer.save(saved);
  std::stringstream bytes;
  saved.save_to(bytes);
  torch::serialize::InputArchive archive;
  archive.load_from(bytes, device);
  optimizer.load(archive);
}

}  // namespace accelerate
