#include "accelerate/examples/by_feature/tensor_parallel/training.h"

#include <algorithm>
#include <cstddef>

#include <torch/optim/adamw.h>
#include <torch/types.h>

#include "absl/time/time.h"
#include "accelerate/accelerator.h"
#include "accelerate/data/data_loader.h"
#include "accelerate/data/tensor_dataset.h"
#include "accelerate/examples/by_feature/tensor_parallel/model.h"
#include "accelerate/examples/common/training.h"
#include "accelerate/parallel/tensor/layout_report.h"
#include "accelerate/parallel/tensor/loss.h"
#include "accelerate/state/seed.h"

namespace tensor_parallel {
namespace {

// Sequences that count up from random tokens, with the token after each: [count, kLength + 1].
at::Tensor counting_sequences(int64_t count) {
  const at::Tensor first = torch::randint(kVocabulary, {count, 1}, torch::kLong);
  return (first + torch::arange(kLength + 1, torch::kLong)).remainder(kVocabulary);
}

}  // namespace

Result train(const Options& options) {
  accelerate::TensorParallelPlan plan = plan_of_small_lm();
  plan.sequence_parallel = options.sequence_parallel;
  plan.keep_gathered_inputs = options.keep_gathered_inputs;
  plan.parallel_loss = options.parallel_loss;
  accelerate::Accelerator accelerator({.kwargs_handlers = {plan}});
  accelerate::set_seed(options.seed);
  const int64_t per_step = options.batch_size * accelerator.state().data_share().count;
  accelerate::DataLoader data(
      accelerate::make_tensor_dataset(counting_sequences(options.max_steps * per_step)),
      {.batch_size = options.batch_size});
  SmallLm net(options.dropout);
  torch::optim::AdamW adam(net->parameters(), torch::optim::AdamWOptions(options.learning_rate));
  auto [model, optimizer, loader] = accelerator.prepare(net, adam, data);
  if (options.print_layout) accelerate::print_layout(model);

  Result result;
  accelerate::Runtime& runtime = accelerator.runtime();
  const absl::Time start = runtime.now();
  for (auto& [batch] : loader) {
    const at::Tensor logits = model(batch.narrow(1, 0, kLength));
    // The cross-entropy of whole logits, where each rank has all of them.
    const at::Tensor loss = accelerate::parallel_cross_entropy(
        model, logits.flatten(0, 1), batch.narrow(1, 1, kLength).flatten());
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
  accelerator.end_training();
  return result;
}

}  // namespace tensor_parallel
