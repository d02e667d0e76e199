#include "accelerate/examples/by_feature/fsdp/training.h"

#include <algorithm>
#include <memory>
#include <sstream>

#include <ATen/ops/cross_entropy_loss.h>
#include <torch/serialize.h>

#include "absl/strings/str_cat.h"
#include "accelerate/accelerator.h"
#include "accelerate/big_model/empty_model.h"
#include "accelerate/data/data_loader.h"
#include "accelerate/data/tensor_dataset.h"
#include "accelerate/examples/common/training.h"
#include "accelerate/examples/lm/model.h"
#include "accelerate/optim/fused_optimizers.h"
#include "accelerate/parallel/sharded/sharded.h"
#include "accelerate/parallel/sharded/units.h"
#include "accelerate/platform/file_system.h"
#include "accelerate/state/seed.h"

namespace fsdp {
namespace {

using accelerate::Accelerator;

// Without memory where ranks divide it: prepare gives the parameters their values unit by unit.
lm::Lm built_model(const Options& options, const Accelerator& accelerator) {
  const accelerate::DeviceMesh* mesh = accelerator.torch_device_mesh();
  const bool is_divided = mesh != nullptr && mesh->mesh().size(accelerate::MeshAxis::kDpShard) > 1;
  if (!is_divided) return lm::Lm(options.config);
  const accelerate::EmptyInit empty = accelerate::init_empty_weights();
  return lm::Lm(options.config);
}

void print_units(Accelerator& accelerator, const lm::Lm& net) {
  if (!accelerator.is_main_process()) return;
  if (accelerator.fsdp_plugin() == nullptr) {
    accelerator.print("no FSDP: every rank has the whole model");
    return;
  }
  for (const auto& unit : accelerate::fsdp_units(*net, *accelerator.fsdp_plugin())) {
    accelerator.print(absl::StrCat("unit ", unit.name, ": ", unit.parameters.size(), " parameters",
                                   unit.reshard_after_forward ? "" : ", kept until backward"));
  }
}

}  // namespace

Result train(const Options& options) {
  Accelerator accelerator;
  accelerate::set_seed(options.seed);
  const int64_t per_step = options.batch_size * accelerator.state().data_share().count;
  // Before the model, which draws its values when it is prepared where ranks divide it.
  const at::Tensor drawn = lm::counting_sequences(options.config, options.max_steps * per_step);
  lm::Lm net = built_model(options, accelerator);
  print_units(accelerator, net);
  const auto adam = std::make_shared<accelerate::optim::AdamW>(
      net->parameters(), torch::optim::AdamWOptions(options.learning_rate));
  accelerate::DataLoader data(accelerate::make_tensor_dataset(drawn),
                              {.batch_size = options.batch_size});
  auto [model, optimizer, loader] = accelerator.prepare(net, adam, data);

  Result result;
  accelerate::Runtime& runtime = accelerator.runtime();
  const absl::Time start = runtime.now();
  const int64_t length = options.config.sequence_length;
  for (auto& [batch] : loader) {
    const auto scope = accelerator.accumulate(model);
    const at::Tensor logits = model(batch.narrow(1, 0, length));
    const at::Tensor loss =
        at::cross_entropy_loss(logits.flatten(0, 1), batch.narrow(1, 1, length).flatten());
    accelerator.backward(loss);
    accelerator.clip_grad_norm_(model, 1.0);
    optimizer.step();
    optimizer.zero_grad();
    result.losses.push_back(
        accelerator.reduce(loss.detach(), accelerate::Reduction::kMean).item<double>());
  }
  runtime.synchronize_device();
  result.step_seconds = absl::ToDoubleSeconds(runtime.now() - start) /
                        static_cast<double>(std::max<size_t>(1, result.losses.size()));
  result.peak_memory_bytes = examples::peak_memory(accelerator);
  if (!options.weights.empty()) {
    const auto whole = accelerate::full_parameters(
        model, {.writeback = false, .rank0_only = true, .offload_to_cpu = true});
    if (accelerator.is_main_process()) {
      std::ostringstream bytes;
      torch::save(net, bytes);
      // By the Runtime, which keeps what a simulation without values writes off the disk.
      const absl::Status written =
          accelerate::write_file(runtime.files(), options.weights, bytes.str());
      TORCH_CHECK(written.ok(), written.message());
    }
  }
  accelerator.end_training();
  return result;
}

}  // namespace fsdp
