#include "accelerate/step/memory_report.h"

#include <algorithm>
#include <memory>

#include <torch/nn/module.h>

#include "absl/strings/str_cat.h"
#include "accelerate/step/training_state.h"

namespace accelerate {
namespace {

int64_t bytes_of(const torch::nn::Module& module) {
  int64_t bytes = 0;
  auto add = [&bytes](const at::Tensor& tensor) {
    if (tensor.defined()) bytes += static_cast<int64_t>(tensor.nbytes());
  };
  for (const at::Tensor& parameter : module.parameters()) add(parameter);
  for (const at::Tensor& buffer : module.buffers()) add(buffer);
  return bytes;
}

class Witness {
 public:
  explicit Witness(const internal::TrainingState& training)
      : loaders_(training.loaders),
        optimizers_(training.optimizers),
        schedulers_(training.schedulers) {
    for (const auto& model : training.models) models_.push_back({model, model->module()});
  }

  MemoryReport operator()(const Runtime& runtime) const;

 private:
  struct Model {
    std::weak_ptr<ModelState> state;
    std::weak_ptr<torch::nn::Module> module;
  };
  std::vector<Model> models_;
  std::vector<std::weak_ptr<internal::LoaderCore>> loaders_;
  std::vector<std::weak_ptr<AcceleratedOptimizer::Shared>> optimizers_;
  std::vector<std::weak_ptr<AcceleratedScheduler::Shared>> schedulers_;
};

MemoryReport Witness::operator()(const Runtime& runtime) const {
  MemoryReport report;
  for (const Model& model : models_) {
    const std::shared_ptr<torch::nn::Module> module = model.module.lock();
    if (!module) continue;
    // Neither this function's own pointer counts, nor that of the handles' shared state.
    const int64_t handles = model.state.use_count();
    const int64_t owners = module.use_count() - 1 - (handles > 0 ? 1 : 0);
    report.survivors.push_back({.kind = "model",
                                .name = module->name(),
                                .bytes = bytes_of(*module),
                                .owners = std::max(owners, handles)});
  }
  auto add = [&report](const char* kind, const auto& known) {
    for (const auto& object : known) {
      if (const int64_t owners = object.use_count(); owners > 0) {
        report.survivors.push_back({.kind = kind, .owners = owners});
      }
    }
  };
  add("optimizer", optimizers_);
  add("scheduler", schedulers_);
  add("data loader", loaders_);
  report.device = runtime.device_memory();
  return report;
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
  return Witness(training);
}

}  // namespace accelerate
