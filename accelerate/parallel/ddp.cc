#include "accelerate/parallel/ddp.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/embedding.h>
#include <torch/csrc/distributed/c10d/comm.hpp>
#include <torch/csrc/distributed/c10d/logger.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include "accelerate/runtime/runtime.h"

namespace accelerate {
namespace {

constexpr size_t kMebibyte = 1024 * 1024;
// The peer's figures: a small first bucket starts the communication early; large broadcasts.
constexpr size_t kFirstBucketBytes = kMebibyte;
constexpr size_t kBroadcastBytes = 250 * kMebibyte;

struct Parameters {
  std::vector<at::Tensor> tensors;
  std::vector<bool> sparse;  // its gradient is sparse
  std::unordered_map<size_t, std::string> names;
};

Parameters trainable_parameters(const torch::nn::Module& module) {
  std::unordered_set<const void*> sparse_weights;
  for (const auto& part : module.modules()) {
    if (auto* table = part->as<torch::nn::EmbeddingImpl>(); table && table->options.sparse()) {
      sparse_weights.insert(table->weight.unsafeGetTensorImpl());
    }
    if (auto* bag = part->as<torch::nn::EmbeddingBagImpl>(); bag && bag->options.sparse()) {
      sparse_weights.insert(bag->weight.unsafeGetTensorImpl());
    }
  }
  Parameters parameters;
  std::unordered_set<const void*> seen;
  for (const auto& item : module.named_parameters()) {
    const at::Tensor& tensor = item.value();
    if (!tensor.requires_grad()) continue;
    // A tied parameter has several names and one gradient.
    if (!seen.insert(tensor.unsafeGetTensorImpl()).second) continue;
    parameters.names.emplace(parameters.tensors.size(), item.key());
    parameters.tensors.push_back(tensor);
    parameters.sparse.push_back(sparse_weights.contains(tensor.unsafeGetTensorImpl()));
  }
  return parameters;
}

}  // namespace

struct DistributedDataParallel::Reducer : c10d::Reducer {
  using c10d::Reducer::Reducer;
};

DistributedDataParallel::DistributedDataParallel(std::shared_ptr<torch::nn::Module> module,
                                                 c10::intrusive_ptr<c10d::ProcessGroup> group,
                                                 const DistributedDataParallelKwargs& options)
    : module_(std::move(module)),
      group_(std::move(group)),
      options_(options),
      buffers_(module_->buffers()) {
  TORCH_CHECK_VALUE(options.bucket_cap_mb > 0, "bucket_cap_mb must be positive, got ",
                    options.bucket_cap_mb);
  Parameters parameters = trainable_parameters(*module_);
  c10d::verify_params_across_processes(group_, parameters.tensors, std::nullopt);
  std::vector<at::Tensor> state = module_->parameters();
  state.insert(state.end(), buffers_.begin(), buffers_.end());
  broadcast_from_main(state);
  if (parameters.tensors.empty()) return;  // Nothing to reduce; buffers still follow rank 0.

  for (size_t i = 0; i < parameters.tensors.size(); ++i) {
    replicas_.emplace_back(parameters.names.at(i), parameters.tensors[i]);
  }
  replicas_name_ = "the model in group \"" + group_->getGroupName() + "\"";
  const auto cap = static_cast<size_t>(options.bucket_cap_mb * kMebibyte);
  auto [buckets, limits] = c10d::compute_bucket_assignment_by_size(
      parameters.tensors, {kFirstBucketBytes, cap}, parameters.sparse);
  // Gradients become ready roughly from the last layer to the first.
  std::reverse(buckets.begin(), buckets.end());
  std::reverse(limits.begin(), limits.end());
  reducer_ = std::make_shared<Reducer>(
      parameters.tensors, std::move(buckets), limits, group_, parameters.sparse,
      static_cast<int64_t>(cap), options.find_unused_parameters, options.gradient_as_bucket_view,
      std::move(parameters.names), static_cast<int64_t>(kFirstBucketBytes));
  logger_ = std::make_shared<c10d::Logger>(reducer_);
  reducer_->set_logger(logger_);
}

DistributedDataParallel::~DistributedDataParallel() = default;

void DistributedDataParallel::broadcast_from_main(const std::vector<at::Tensor>& tensors) const {
  at::NoGradGuard no_grad;
  if (!tensors.empty()) c10d::broadcast_coalesced(group_, tensors, kBroadcastBytes, /*rank=*/0);
}

void DistributedDataParallel::before_forward() {
  const bool grad = at::GradMode::is_enabled();
  if (reducer_ && grad && require_sync_) reducer_->prepare_for_forward();
  if (reducer_ && grad) reducer_->rebuild_buckets();
  // After the Reducer, which explains an unfinished reduction better than its consequence would be.
  if (reducer_ && grad && require_sync_) {
    Runtime::current().check_replicas(replicas_name_, group_->getSize(), replicas_);
  }
  if (require_buffer_sync_ && options_.broadcast_buffers) broadcast_from_main(buffers_);
}

void DistributedDataParallel::after_forward(const std::vector<at::Tensor>& outputs) {
  require_buffer_sync_ = at::GradMode::is_enabled() && require_sync_;
  if (reducer_ && require_buffer_sync_) reducer_->prepare_for_backward(outputs);
}

}  // namespace accelerate
