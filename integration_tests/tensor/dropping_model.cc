#include "integration_tests/tensor/dropping_model.h"

#include <cstddef>
#include <utility>
#include <vector>

#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "absl/strings/str_cat.h"
#include "accelerate/base/access.h"
#include "accelerate/mesh/device_mesh.h"
#include "accelerate/operators/operator_mode.h"
#include "accelerate/parallel/tensor/tensor_mark.h"
#include "integration_tests/layouts/whole_draws.h"
#include "integration_tests/tensor/formula_model.h"

namespace accelerate {
namespace {

using torch::Tensor;
using Masks = DroppingImpl::Masks;

constexpr int64_t kVocabulary = 32, kWidth = 16, kFeatures = 32, kHeadSize = 4, kBlocks = 2;
constexpr int64_t kRows = 4, kLength = 8;  // of a step

Tensor dropped(const Tensor& x, double p, const std::string& name, Masks& masks) {
  Tensor result = torch::dropout(x, p, /*train=*/true);
  masks[name] = result.detach().ne(0).cpu();
  return result;
}

torch::nn::LayerNorm made_norm() {
  return torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth}));
}

class BlockImpl : public torch::nn::Module {
 public:
  BlockImpl(int64_t number, const DroppingOptions& options, std::shared_ptr<Masks> masks)
      : number_(number),
        dropout_(options.dropout),
        masks_(std::move(masks)),
        norm_(register_module("norm", made_norm())),
        gate_up_(register_module("gate_up", torch::nn::Linear(kWidth, 2 * kFeatures))),
        down_(register_module("down", torch::nn::Linear(kFeatures, kWidth))) {
    if (options.key_heads == 0) return;
    keys_ = register_module("keys", torch::nn::Linear(kWidth, options.key_heads * kHeadSize));
  }

  Tensor forward(const Tensor& x) {
    const Tensor normal = norm_(x);
    const std::vector<Tensor> halves = gate_up_(normal).chunk(2, -1);
    Tensor heads = (torch::silu(halves[0]) * halves[1]).unflatten(-1, {-1, kHeadSize});
    if (keys_) heads = heads * factors(normal, heads.size(2));
    const Tensor kept = dropped(heads, dropout_, absl::StrCat("heads ", number_), *masks_);
    const Tensor sum = down_(kept.flatten(-2, -1));
    return x + dropped(sum, dropout_, absl::StrCat("residual ", number_), *masks_);
  }

 private:
  // One plus the keys, for each of so many heads.
  Tensor factors(const Tensor& normal, int64_t heads) {
    const Tensor keys = keys_(normal).unflatten(-1, {-1, kHeadSize}).unsqueeze(3);
    const int64_t times = heads / keys.size(2);
    const Tensor repeated =
        keys.expand({keys.size(0), keys.size(1), keys.size(2), times, kHeadSize});
    return repeated.flatten(2, 3) + 1;
  }

  const int64_t number_;
  const double dropout_;
  const std::shared_ptr<Masks> masks_;
  torch::nn::LayerNorm norm_;
  torch::nn::Linear gate_up_, down_;
  torch::nn::Linear keys_{nullptr};
};

AcceleratorOptions with_mesh(AcceleratorOptions options,
                             const std::optional<ParallelismOptions>& sizes) {
  if (sizes) options.parallelism_config = ParallelismConfig(*sizes);
  return options;
}

}  // namespace

DroppingImpl::DroppingImpl(const DroppingOptions& options)
    : options_(options),
      tokens_(register_module("tokens", torch::nn::Embedding(kVocabulary, kWidth))),
      blocks_(register_module("blocks", torch::nn::ModuleList())),
      norm_(register_module("norm", made_norm())) {
  for (int64_t i = 0; i < kBlocks; ++i) {
    blocks_->push_back(std::make_shared<BlockImpl>(i, options, masks_));
  }
  fill_by_formula(*this);
}

Tensor DroppingImpl::forward(const Tensor& words) {
  Tensor x = dropped(tokens_(words), options_.dropout, "embedded", *masks_);
  for (size_t i = 0; i < blocks_->size(); ++i) {
    const auto block = blocks_->ptr<BlockImpl>(i);
    x = options_.recomputes ? checkpoint([block](Tensor input) { return block->forward(input); }, x)
                            : block->forward(x);
  }
  return torch::linear(norm_(x), tokens_->weight);
}

std::optional<TensorParallelPlan> DroppingImpl::tensor_parallel_plan() const {
  using enum TensorStyle;
  TensorParallelPlan plan = {{.pattern = "tokens", .style = kEmbedding, .sequence = true},
                             {.pattern = "blocks.*.norm", .sequence = true},
                             {.pattern = "blocks.*.gate_up",
                              .style = kColumn,
                              .blocks = {1, 1},
                              .groups = kFeatures / kHeadSize},
                             {.pattern = "blocks.*.down", .style = kRow},
                             {.pattern = "norm", .sequence = true}};
  if (options_.key_heads > 0) {
    plan.rules.push_back(
        {.pattern = "blocks.*.keys", .style = kColumn, .groups = options_.key_heads});
  }
  plan.sequence_parallel = options_.sequence_shards;
  return plan;
}

DroppingJob::DroppingJob(const std::optional<ParallelismOptions>& sizes,
                         const DroppingOptions& options, AcceleratorOptions given)
    : accelerator(with_mesh(std::move(given), sizes)),
      module(std::make_shared<DroppingImpl>(options)),
      draws_as_one_device_(options.draws_as_one_device) {
  std::shared_ptr<torch::optim::Optimizer> made;
  if (options.adam) {
    made = adam = std::make_shared<torch::optim::AdamW>(module->parameters(),
                                                        torch::optim::AdamWOptions(0.01));
  } else {
    made = std::make_shared<torch::optim::SGD>(module->parameters(),
                                               torch::optim::SGDOptions(0.1).momentum(0.9));
  }
  auto [prepared, handle] = accelerator.prepare(module, made);
  model.emplace(prepared);
  optimizer.emplace(handle);
}

Tensor DroppingJob::forward(const Tensor& words) {
  const DeviceMesh* const mesh = accelerator.torch_device_mesh();
  if (!draws_as_one_device_ || mesh == nullptr) return (*model)(words);
  const auto part_of = [index = mesh->coordinate(MeshAxis::kTp), count = mesh->size(MeshAxis::kTp)](
                           const Tensor& x) -> std::optional<WholeDraws::Part> {
    const TensorMark* const mark = find_part(x);
    if (mark == nullptr) return std::nullopt;
    return WholeDraws::Part{.dim = x.dim() - mark->from_end, .index = index, .count = count};
  };
  const OperatorModeScope scope(std::make_shared<WholeDraws>(part_of));
  return (*model)(words);
}

Tensor DroppingJob::backward(int step) {
  const DataShare share = accelerator.state().data_share();
  const int64_t own = kRows / share.count;
  const auto part = [&](const Tensor& all) {
    return all.remainder(kVocabulary).narrow(0, share.index * own, own).to(accelerator.device());
  };
  const auto [words, labels] = formula_batch(step, kRows, kLength);
  const Tensor logits = forward(part(words));
  const Tensor loss = torch::cross_entropy_loss(logits.flatten(0, 1), part(labels).flatten());
  accelerator.backward(loss);
  return loss.detach();
}

Tensor DroppingJob::train(int step) {
  Tensor loss = backward(step);
  optimizer->step();
  optimizer->zero_grad();
  return loss;
}

const ModelState& DroppingJob::state() const { return *internal::Access::to(*model); }

}  // namespace accelerate
