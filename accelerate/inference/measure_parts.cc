#include "accelerate/inference/measure_parts.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <c10/core/Device.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include "absl/time/time.h"
#include "accelerate/comm/agree.h"
#include "accelerate/config/model_parts.h"
#include "accelerate/parallel/pipeline/model_stages.h"
#include "accelerate/runtime/runtime.h"

namespace accelerate {
namespace {

// While it lives, tensors are on a device.
class OnDevice {
 public:
  OnDevice(const std::vector<at::Tensor>& tensors, c10::Device device) {
    for (const at::Tensor& tensor : tensors) {
      if (!tensor.defined() || tensor.device() == device) continue;
      before_.emplace_back(tensor, tensor.tensor_data());
      tensor.set_data(tensor.to(device));
    }
  }
  ~OnDevice() {
    for (const auto& [tensor, values] : before_) tensor.set_data(values);
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> before_;
};

// While it lives, all modules are in evaluation.
class InEvaluation {
 public:
  explicit InEvaluation(torch::nn::Module& module) {
    for (const std::shared_ptr<torch::nn::Module>& each : module.modules()) {
      was_training_.emplace_back(each, each->is_training());
    }
    module.eval();
  }
  ~InEvaluation() {
    // Outer modules come first, and take inner modules along.
    for (const auto& [each, training] : was_training_) each->train(training);
  }
  InEvaluation(const InEvaluation&) = delete;
  InEvaluation& operator=(const InEvaluation&) = delete;

 private:
  std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>> was_training_;
};

// The times on this rank.
std::vector<int64_t> own_times(torch::nn::Module& module, const at::Tensor& inputs,
                               c10::Device device, Runtime& runtime) {
  ModelStages parts = {.parts = parts_of(module), .cuts = {}, .ranks = {}};
  TORCH_CHECK_VALUE(!parts.parts.empty(),
                    "measure_parts: nothing says which parts the model has; derive it from "
                    "ModelParts (config/model_parts.h), or make it a Sequential");
  // Each part as a stage.
  for (size_t part = 0; part < parts.parts.size(); ++part) parts.cuts.push_back(part);
  const at::NoGradGuard no_grad;
  const InEvaluation evaluation(module);
  const OnDevice buffers(module.buffers(), device);
  std::vector<int64_t> times;
  at::Tensor x = inputs.to(device);
  for (size_t part = 0; part < parts.parts.size(); ++part) {
    const OnDevice parameters(parameters_of_stage(module, parts, static_cast<int>(part)), device);
    at::Tensor output;
    int64_t nanoseconds = 0;
    for (int pass = 0; pass < 2; ++pass) {
      // A part may change its input in place.
      const at::Tensor given = x.clone();
      runtime.synchronize_device();
      const absl::Time begin = runtime.now();
      output = forward_parts(module, part, part + 1, given);
      runtime.synchronize_device();
      nanoseconds = absl::ToInt64Nanoseconds(runtime.now() - begin);
    }
    times.push_back(std::max<int64_t>(1, nanoseconds));
    x = output;
  }
  return times;
}

}  // namespace

std::vector<int64_t> measure_parts(const std::shared_ptr<torch::nn::Module>& model,
                                   const at::Tensor& inputs, PartialState& state) {
  const std::vector<std::vector<int64_t>> all = internal::agree_on_values(
      state.group(), "measure_parts",
      [&] { return own_times(*model, inputs, state.device(), state.runtime()); });
  std::vector<int64_t> slowest = all[0];
  for (size_t rank = 1; rank < all.size(); ++rank) {
    TORCH_CHECK_VALUE(all[rank].size() == slowest.size(), "measure_parts: the model has ",
                      slowest.size(), " parts on rank 0, and ", all[rank].size(), " on rank ",
                      rank);
    std::ranges::transform(slowest, all[rank], slowest.begin(),
                           [](int64_t a, int64_t b) { return std::max(a, b); });
  }
  return slowest;
}

}  // namespace accelerate
