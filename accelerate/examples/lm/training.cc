#include "accelerate/examples/lm/training.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <utility>

#include <ATen/core/Reduction.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/from_blob.h>
#include <torch/types.h>

#include "accelerate/accelerator.h"
#include "accelerate/base/enum_text.h"
#include "accelerate/big_model/empty_model.h"
#include "accelerate/data/data_loader.h"
#include "accelerate/data/tensor_dataset.h"
#include "accelerate/examples/common/training.h"
#include "accelerate/examples/lm/model.h"
#include "accelerate/operators/default_device.h"
#include "accelerate/optim/fused_optimizers.h"
#include "accelerate/optim/schedulers/lambda.h"
#include "accelerate/state/progress_bar.h"
#include "accelerate/state/seed.h"
#include "accelerate/values/texts.h"

namespace lm {
namespace {

using accelerate::Accelerator;

// Sequences of bytes and the byte after each, uint8 [n, sequence_length + 1]: views of the text.
struct Text {
  at::Tensor training;    // overlap: one begins at every sixteenth byte
  at::Tensor evaluation;  // of the last tenth, one behind the other
};

Text load(accelerate::Runtime& runtime, const Options& options) {
  constexpr int64_t kStride = 16;
  absl::StatusOr<std::string> text = read_file(runtime.files(), options.data);
  TORCH_CHECK(text.ok(), text.status().message());
  const auto size = static_cast<int64_t>(text->size());
  const int64_t length = options.config.sequence_length + 1, tenth = size / 10;
  TORCH_CHECK_VALUE(tenth >= length, options.data, " has ", size, " bytes, fewer than the ",
                    10 * length, " that sequences of ", length - 1, " tokens need");
  const auto largest = *std::max_element(text->begin(), text->end(), [](char a, char b) {
    return static_cast<uint8_t>(a) < static_cast<uint8_t>(b);
  });
  TORCH_CHECK_VALUE(static_cast<uint8_t>(largest) < options.config.vocabulary, options.data,
                    " has the byte ", int{static_cast<uint8_t>(largest)},
                    ", for which a vocabulary of ", options.config.vocabulary, " is too small");
  const at::Tensor bytes = at::from_blob(text->data(), {size}, at::kByte).clone();
  return {.training = bytes.narrow(0, 0, size - tenth).unfold(0, length, kStride),
          .evaluation = bytes.narrow(0, size - tenth, tenth).unfold(0, length, length)};
}

accelerate::AcceleratorOptions settings(const Options& options) {
  accelerate::AcceleratorOptions settings{
      .gradient_accumulation_steps = options.gradient_accumulation_steps,
      .dataloader_config = {.use_seedable_sampler = true,
                            .data_seed = options.seed,
                            .use_stateful_dataloader = true},
      // The warm-up takes the same steps on any number of ranks.
      .scheduler_unit = accelerate::SchedulerUnit::kPerOptimizerStep,
      .project_config = examples::project_of(options),
      // Gradients take as much memory as parameters; one copy of them is enough.
      .kwargs_handlers = {accelerate::DistributedDataParallelKwargs{.gradient_as_bucket_view =
                                                                        true}},
      .log_with = {options.log_with.begin(), options.log_with.end()}};
  if (!options.mixed_precision.empty()) {
    settings.mixed_precision =
        accelerate::from_string<accelerate::PrecisionType>(options.mixed_precision);
  }
  return settings;
}

accelerate::TrackerDict hyperparameters(const Options& options) {
  const Config& config = options.config;
  return {{"blocks", config.blocks == Blocks::kGpt ? "gpt" : "llama"},
          {"layers", config.layers},
          {"hidden", config.hidden},
          {"heads", config.heads},
          {"kv_heads", config.kv_heads},
          {"intermediate", config.intermediate},
          {"sequence_length", config.sequence_length},
          {"vocabulary", config.vocabulary},
          {"tied_head", config.tied_head},
          {"experts", config.experts},
          {"batch_size", options.batch_size},
          {"optimizer", options.optimizer},
          {"learning_rate", options.learning_rate},
          {"warmup_steps", options.warmup_steps},
          {"seed", static_cast<int64_t>(options.seed)}};
}

// On the device from the beginning: a large model would not fit into the host's memory. Where ranks
// divide it, it gets its values group by group in prepare, and no device ever has all of them.
Lm built_model(const Options& options, Accelerator& accelerator) {
  const accelerate::DefaultDeviceScope scope(accelerator.device());
  LmOptions rules{.activation_checkpointing = options.activation_checkpointing};
  rules.router.balance_loss = options.balance_loss;
  rules.router.z_loss = options.z_loss;
  rules.router.routing = accelerate::from_string<accelerate::Routing>(options.routing);
  rules.router.skew = options.skew;
  if (options.capacity_factor > 0) rules.router.capacity_factor = options.capacity_factor;
  const auto built = [&] { return Lm(options.config, rules); };
  if (accelerator.distributed_type() != accelerate::DistributedType::kFsdp) return built();
  const accelerate::EmptyInit empty = accelerate::init_empty_weights();
  return built();
}

std::shared_ptr<torch::optim::Optimizer> built_optimizer(const Options& options,
                                                         std::vector<at::Tensor> parameters) {
  if (options.optimizer == "sgd") {
    return std::make_shared<accelerate::optim::SGD>(
        std::move(parameters), torch::optim::SGDOptions(options.learning_rate));
  }
  TORCH_CHECK_VALUE(options.optimizer == "adamw", "there is no optimizer \"", options.optimizer,
                    "\" here: take adamw or sgd");
  return std::make_shared<accelerate::optim::AdamW>(
      std::move(parameters), torch::optim::AdamWOptions(options.learning_rate));
}

// The loss of each token, or their mean. Shapes: sequences [batch, length + 1]; the losses
// [batch * length].
template <typename Model>
at::Tensor loss_of(Model& model, const at::Tensor& sequences, at::Reduction::Reduction reduction) {
  const at::Tensor tokens = sequences.to(at::kLong);
  const int64_t length = tokens.size(1) - 1;
  const at::Tensor logits = model(tokens.narrow(1, 0, length));
  return at::cross_entropy_loss(logits.flatten(0, 1), tokens.narrow(1, 1, length).flatten(),
                                /*weight=*/{}, reduction);
}

// The mean over all sequences of the loader, on every rank. Collective.
template <typename Model, typename Loader>
double evaluate(Accelerator& accelerator, Model& model, Loader& loader) {
  const torch::NoGradGuard no_grad;
  model->eval();
  at::Tensor sum;
  int64_t count = 0;
  for (auto& [sequences] : loader) {
    const at::Tensor losses = loss_of(model, sequences, at::Reduction::None);
    const at::Tensor means =
        accelerator.gather_for_metrics(losses.view({sequences.size(0), -1}).mean(1));
    sum = sum.defined() ? sum + means.sum() : means.sum();
    count += means.numel();
  }
  model->train();
  return sum.item<double>() / static_cast<double>(count);
}

// Counts tokens of all ranks by the Runtime's clock.
class Speed {
 public:
  Speed(accelerate::Runtime& runtime, int64_t tokens_per_step)
      : runtime_(runtime), tokens_per_step_(tokens_per_step) {
    restart();
  }
  void restart() {
    runtime_.synchronize_device();
    start_ = runtime_.now();
    steps_ = 0;
  }
  void count_step() { ++steps_; }

  /// Waits for the device.
  double step_seconds() const {
    runtime_.synchronize_device();
    const double seconds = absl::ToDoubleSeconds(runtime_.now() - start_);
    return seconds / static_cast<double>(std::max<int64_t>(1, steps_));
  }
  /// 0 where time is not modelled.
  double tokens_per_second(double step_seconds) const {
    return step_seconds > 0 ? static_cast<double>(tokens_per_step_) / step_seconds : 0;
  }

 private:
  accelerate::Runtime& runtime_;
  const int64_t tokens_per_step_;
  absl::Time start_;
  int64_t steps_ = 0;
};

std::string model_text(const Config& config) {
  char text[160];
  std::snprintf(text, sizeof(text), "model: %s, layers %ld, hidden %ld, %.1f million parameters",
                config.blocks == Blocks::kGpt ? "gpt" : "llama", static_cast<long>(config.layers),
                static_cast<long>(config.hidden),
                static_cast<double>(parameter_count(config)) / 1e6);
  return text;
}

std::string table_row(int64_t step, double loss, double tokens_per_second) {
  char row[64];
  std::snprintf(row, sizeof(row), "%5ld  %8.4f  %10.0f", static_cast<long>(step), loss,
                tokens_per_second);
  return row;
}

}  // namespace

Result train(const Options& options) {
  Accelerator accelerator(settings(options));
  accelerator.init_trackers("lm", hyperparameters(options));
  accelerate::set_seed(options.seed);
  const Text text = load(accelerator.runtime(), options);
  const int64_t evaluated = std::min(options.evaluation_sequences, text.evaluation.size(0));
  Lm net = built_model(options, accelerator);
  const auto adam = built_optimizer(options, net->parameters());
  accelerate::optim::LambdaLR warm_up =
      accelerate::optim::get_constant_schedule_with_warmup(*adam, options.warmup_steps);
  accelerate::DataLoader training_data(
      accelerate::make_tensor_dataset(text.training),
      {.batch_size = options.batch_size, .shuffle = true, .drop_last = true});
  accelerate::DataLoader evaluation_data(
      accelerate::make_tensor_dataset(text.evaluation.narrow(0, 0, evaluated)),
      {.batch_size = options.batch_size});
  auto [model, optimizer, loader, evaluation_loader, scheduler] =
      accelerator.prepare(net, adam, training_data, evaluation_data, warm_up);
  const int num_shares = accelerator.state().data_share().count;
  TORCH_CHECK_VALUE(loader.size() > 0, options.data, " has too few sequences for a step of ",
                    options.batch_size * num_shares);

  examples::StepCount steps;
  accelerator.register_for_checkpointing(steps);
  if (options.resume) accelerator.load_latest_state();

  const int64_t tokens_per_step = options.batch_size * options.config.sequence_length *
                                  accelerator.gradient_accumulation_steps() * num_shares;
  accelerate::ProgressBar bar(accelerator.runtime(),
                              {.total = options.max_steps, .description = "training"});
  bar.advance(steps.value);
  bar.print(model_text(options.config));
  if (options.log_every > 0) bar.print(" step      loss    tokens/s");
  Result result;
  Speed whole(accelerator.runtime(), tokens_per_step), recent = whole;
  at::Tensor window_loss;  // the sum over the micro-steps since the last step
  int64_t micro_steps = 0;
  auto done = [&] { return steps.value >= options.max_steps; };
  result.is_done_before = done();
  while (!done()) {
    for (auto& [sequences] : loader) {
      auto scope = accelerator.accumulate(model);
      const at::Tensor loss = loss_of(model, sequences, at::Reduction::Mean);
      const at::Tensor of_routers = model->take_router_loss();
      accelerator.backward(of_routers.defined() ? loss + of_routers : loss);
      optimizer.step();
      scheduler.step();
      optimizer.zero_grad();
      window_loss = micro_steps == 0 ? loss.detach() : window_loss + loss.detach();
      ++micro_steps;
      if (!accelerator.sync_gradients()) continue;
      ++steps.value;
      whole.count_step();
      recent.count_step();
      bar.advance();
      // To read a loss is to wait for the device.
      if (options.log_every > 0 && (done() || steps.value % options.log_every == 0)) {
        const at::Tensor mean = accelerator.reduce(window_loss, accelerate::Reduction::kMean);
        const double value = mean.item<double>() / static_cast<double>(micro_steps);
        const double rate = recent.tokens_per_second(recent.step_seconds());
        result.losses.push_back(value);
        bar.print(table_row(steps.value, value, rate));
        accelerator.log({{"loss", value}, {"tokens_per_second", rate}}, steps.value);
        recent.restart();
      }
      micro_steps = 0;
      if (!options.output_dir.empty() && steps.value % options.checkpointing_steps == 0) {
        accelerator.save_state({}, {.asynchronous = true});
      }
      if (done()) break;
    }
  }
  if (!result.is_done_before) result.step_seconds = whole.step_seconds();
  if (evaluated > 0) {
    result.evaluation_loss = evaluate(accelerator, model, evaluation_loader);
    accelerator.log({{"evaluation_loss", *result.evaluation_loss}}, steps.value);
  }
  accelerator.end_training();
  accelerator.wait_for_save();
  if (!options.output_dir.empty()) {
    accelerator.save_model(model, options.output_dir + "/model");
  }
  result.peak_memory_bytes = examples::peak_memory(accelerator);
  return result;
}

}  // namespace lm
