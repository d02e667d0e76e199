#include "accelerate/examples/by_feature/deepspeed/training.h"

#include <algorithm>

#include <ATen/ops/cross_entropy_loss.h>

#include "accelerate/accelerator.h"
#include "accelerate/config/deepspeed_plugin.h"
#include "accelerate/config/dummy_objects.h"
#include "accelerate/data/data_loader.h"
#include "accelerate/data/tensor_dataset.h"
#include "accelerate/examples/common/training.h"
#include "accelerate/examples/lm/model.h"
#include "accelerate/optim/fused_optimizers.h"
#include "accelerate/optim/schedulers/lambda.h"
#include "accelerate/state/seed.h"

namespace deepspeed {
namespace {

using accelerate::Accelerator;

// The loop is the same with every optimizer, schedule and configuration.
template <typename Loader, typename Optimizer, typename Scheduler>
Result train_with(Accelerator& accelerator, const Options& options, lm::Lm& net, Loader& data,
                  Optimizer& base, Scheduler& schedule) {
  auto [model, optimizer, loader, scheduler] = accelerator.prepare(net, base, data, schedule);
  Result result;
  accelerate::Runtime& runtime = accelerator.runtime();
  const absl::Time start = runtime.now();
  const int64_t length = options.config.sequence_length;
  for (auto& [batch] : loader) {
    const auto scope = accelerator.accumulate(model);
    const at::Tensor logits = model(batch.narrow(1, 0, length)).to(at::kFloat);
    const at::Tensor loss =
        at::cross_entropy_loss(logits.flatten(0, 1), batch.narrow(1, 1, length).flatten());
    accelerator.backward(loss);
    optimizer.step();
    scheduler.step();
    optimizer.zero_grad();
    result.losses.push_back(
        accelerator.reduce(loss.detach(), accelerate::Reduction::kMean).template item<double>());
  }
  runtime.synchronize_device();
  result.step_seconds = absl::ToDoubleSeconds(runtime.now() - start) /
                        static_cast<double>(std::max<size_t>(1, result.losses.size()));
  result.learning_rate = scheduler.get_last_lr().front();
  if (auto* engine = accelerator.deepspeed_engine_wrapped()) {
    result.gradient_norm = engine->get_global_grad_norm().value_or(0);
  }
  result.peak_memory_bytes = examples::peak_memory(accelerator);
  return result;
}

}  // namespace

Result train(const Options& options) {
  Accelerator accelerator;
  accelerate::set_seed(options.seed);
  const int64_t shares = accelerator.state().data_share().count;
  lm::Lm net(options.config);
  accelerate::DataLoader data(accelerate::make_tensor_dataset(lm::counting_sequences(
                                  options.config, options.max_steps * options.batch_size * shares)),
                              {.batch_size = options.batch_size});
  const accelerate::DeepSpeedPlugin* plugin = accelerator.deepspeed_plugin();
  const auto has = [&](const char* block) {
    return plugin != nullptr && plugin->deepspeed_config().contains(block);
  };
  if (plugin == nullptr) accelerator.print("no ZeRO: every rank has the whole model");
  const int64_t steps = options.max_steps;
  Result result;
  if (has("optimizer")) {
    accelerate::DummyOptim optimizer(net->parameters(), {.lr = options.learning_rate});
    // The total is that of all ranks together.
    accelerate::DummyScheduler schedule(
        optimizer, {.total_num_steps = steps * shares, .warmup_num_steps = steps / 5});
    result = train_with(accelerator, options, net, data, optimizer, schedule);
  } else {
    accelerate::optim::AdamW optimizer(net->parameters(),
                                       torch::optim::AdamWOptions(options.learning_rate));
    accelerate::optim::LambdaLR schedule(optimizer, [steps](int64_t step) {
      return 1 - static_cast<double>(step) / static_cast<double>(2 * steps);
    });
    result = train_with(accelerator, options, net, data, optimizer, schedule);
  }
  accelerator.end_training();
  return result;
}

}  // namespace deepspeed
