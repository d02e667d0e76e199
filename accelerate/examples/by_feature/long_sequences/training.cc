#include "accelerate/examples/by_feature/long_sequences/training.h"

#include <algorithm>
#include <cstddef>

#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <torch/optim/adamw.h>

#include "absl/time/time.h"
#include "accelerate/accelerator.h"
#include "accelerate/data/data_loader.h"
#include "accelerate/data/tensor_dataset.h"
#include "accelerate/examples/common/training.h"
#include "accelerate/examples/lm/model.h"
#include "accelerate/state/seed.h"

namespace long_sequences {
namespace {

constexpr int64_t kIgnored = -100;  // the label of a token that does not count

// Tokens, the label of each, which is the next token, and the place of each in its sequence. All
// three before ranks divide sequences: a part has neither the token after its last one, nor the
// number of its first one. The first quarter of a sequence is a prompt, which is not to be learnt.
auto dataset(const lm::Config& config, int64_t count) {
  const int64_t length = config.sequence_length;
  const at::Tensor drawn = lm::counting_sequences(config, count);
  const at::Tensor labels = drawn.narrow(1, 1, length).clone();
  labels.narrow(1, 0, length / 4).fill_(kIgnored);
  const at::Tensor positions = at::arange(length, labels.options()).expand({count, length});
  return accelerate::make_tensor_dataset(drawn.narrow(1, 0, length), labels, positions);
}

}  // namespace

Result train(const Options& options) {
  accelerate::Accelerator accelerator;
  accelerate::set_seed(options.seed);
  const int64_t per_step = options.batch_size * accelerator.state().data_share().count;
  // Ranks along sp get their parts of what this loader reads.
  accelerate::DataLoader data(dataset(options.config, options.max_steps * per_step),
                              {.batch_size = options.batch_size});
  lm::Lm net(options.config,
             lm::LmOptions{.activation_checkpointing = options.activation_checkpointing,
                           .shares_key_heads = true});
  torch::optim::AdamW adam(net->parameters(), torch::optim::AdamWOptions(options.learning_rate));
  auto [model, optimizer, loader] = accelerator.prepare(net, adam, data);

  Result result;
  accelerate::Runtime& runtime = accelerator.runtime();
  const absl::Time start = runtime.now();
  for (auto& [tokens, labels, positions] : loader) {
    // Ranks along sp read in turn, and as many batches each.
    if (static_cast<int64_t>(result.losses.size()) == options.max_steps) break;
    at::Tensor loss;
    {
      // Ranks along cp get their parts of these tensors here, until the scope ends.
      const auto scope = accelerator.maybe_context_parallel({tokens, labels, positions}, {1, 1, 1},
                                                            {tokens, labels, positions});
      const at::Tensor logits = model(tokens, positions);
      const at::Tensor own = at::cross_entropy_loss(logits.flatten(0, 1), labels.flatten());
      // Ranks have different numbers of labels, and some may have none.
      loss = accelerator.mean_over_sequences(own, labels.ne(kIgnored).sum());
      accelerator.backward(loss);
    }
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

}  // namespace long_sequences
