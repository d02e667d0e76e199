#include "accelerate/step/memory_report.h"

#include <algorithm>
#include <memory>
#include <utility>

#include <torch/nn/module.h>

#include "absl/strings/str_cat.h"
#include "accelerate/forward/model_state.h"
#include "accelerate/modules/value_at_use.h"
#include "accelerate/operators/managed_storage.h"
#include "accelerate/step/training_state.h"

namespace accelerate {
namespace {

// `model` is null where no handle is left, and then nothing has the shards but optimizers.
int64_t bytes_of(const torch::nn::Module& module, const ModelState* model) {
  int64_t bytes = 0;
  auto add = [&bytes](const at::Tensor& tensor) {
    if (tensor.defined()) bytes += static_cast<int64_t>(tensor.nbytes());
  };
  // What is absent has its memory elsewhere, or none.
  auto add_kept = [&add](const at::Tensor& tensor) {
    for (const KeptTensor& each : kept_tensors("weight", tensor)) {
      if (storage_owner(each.tensor) == nullptr) add(each.tensor);
    }
  };
  if (model != nullptr) {
    for (const TrainedParameter& each : model->trained()) {
      if (!each.trained.is_same(each.parameter)) add(each.trained);
    }
  }
  for (const at::Tensor& parameter : module.parameters()) add_kept(parameter);
  for (const at::Tensor& buffer : module.buffers()) add_kept(buffer);
  return bytes;
}

}  // namespace

std::string MemoryReport::to_string() const {
  std::string text;
  for (const Survivor& survivor : survivors) {
    absl::StrAppend(&text, survivor.kind, survivor.name.empty() ? "" : " ", survivor.name);
    if (survivor.bytes > 0) absl::StrAppend(&text, ", ", survivor.bytes, " bytes");
    absl::StrAppend(&text, ", is kept alive by ", survivor.owners,
                    survivor.owners == 1 ? " owner\n" : " owners\n");
  }
  if (device) {
    absl::StrAppend(&text, "device: ", device->in_use, " of ", device->capacity, " bytes in use\n");
  }
  return text;
}

std::function<MemoryReport(const Runtime&)> internal::watch_prepared(
    const TrainingState& training) {
  std::vector<std::pair<std::weak_ptr<ModelState>, std::weak_ptr<torch::nn::Module>>> models;
  for (const auto& model : training.models) models.emplace_back(model, model->module());
  return [models, loaders = training.loaders, optimizers = training.optimizers,
          schedulers = training.schedulers](const Runtime& runtime) {
    MemoryReport report;
    for (const auto& [state, watched] : models) {
      const std::shared_ptr<torch::nn::Module> module = watched.lock();
      if (!module) continue;
      // Neither this function's own pointer counts, nor that of the handles' shared state.
      const int64_t handles = state.use_count();
      const int64_t owners = module.use_count() - 1 - (handles > 0 ? 1 : 0);
      report.survivors.push_back({.kind = "model",
                                  .name = module->name(),
                                  .bytes = bytes_of(*module, state.lock().get()),
                                  .owners = std::max(owners, handles)});
    }
    auto add = [&report](const char* kind, const auto& known) {
      for (const auto& object : known) {
        if (const int64_t owners = object.use_count(); owners > 0) {
          report.survivors.push_back({.kind = kind, .owners = owners});
        }
      }
    };
    add("optimizer", optimizers);
    add("scheduler", schedulers);
    add("data loader", loaders);
    report.device = runtime.device_memory();
    return report;
  };
}

}  // namespace accelerate
