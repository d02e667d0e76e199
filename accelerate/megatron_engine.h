/// Training in the manner of Megatron-LM: one call is a whole step of all ranks.
///
///   Accelerator accelerator(
///       {.megatron_lm_plugin = MegatronLMPlugin{.tp_degree = 2, .num_micro_batches = 4}});
///   auto [engine, loader, optimizer] = prepare_megatron_lm(accelerator, net, data, adam);
///   for (const MegatronBatch& batch : loader) engine->train_step(batch);
///
/// A model takes one tensor, which for Megatron-LM's GPT is tokens, int64 [rows, length], and gives
/// logits, [rows, length, vocabulary]. Models of BERT's and T5's kinds take several tensors, as
/// BertTrainStep and T5TrainStep say, and are whole on each rank along pp and cp. Other models need
/// a custom_get_batch_function, whose first tensor is the model's input, and a
/// custom_loss_function, which gets the tensors behind that one and the model's output; or a
/// custom_train_step_class with both, or with a forward_step_func. Each tensor has a row for each
/// row of the batch. With stages of a pipeline a model says its parts (config/model_parts.h).
///
/// With context_parallel_size a model takes positions of tokens behind its input, int64 [tokens of
/// this rank], and its stages do (config/model_parts.h).
///
/// The loss is that of all tokens of a global batch, divided by their number, with
/// calculate_per_token_loss; without it, and with losses that the program computes, it is the mean
/// of the means of micro-batches.
///
/// With recompute_activations, or a recompute_granularity among other_megatron_args, "full"
/// computes the model's calls of accelerate::block() again in the backward pass: each of them, or
/// of each stage the first recompute_num_layers with the method "block". "selective" is for
/// attention that keeps its scores; fused attention does not.
///
/// Units:   rates follow the number of samples that were trained (megatron/schedule.h).
/// Errors:  c10::ValueError naming the argument, the field or the tensor.
/// Threads: the rank's thread.
/// Mirrors: accelerate utils/megatron_lm.py, MegatronEngine, MegatronLMOptimizerWrapper,
///          MegatronLMSchedulerWrapper and avg_losses_across_data_parallel_group.
/// Differs: what the engine cannot do, it refuses by name; the main process is rank 0, which has
///          the loss as all ranks have it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <c10/core/Device.h>
#include <c10/util/Exception.h>
#include <nlohmann/json.hpp>

#include "accelerate/accelerator.h"
#include "accelerate/base/access.h"
#include "accelerate/base/libtorch_fwd.h"
#include "accelerate/config/megatron_lm_plugin.h"
#include "accelerate/forward/model_state.h"
#include "accelerate/forward/prepared_model.h"
#include "accelerate/megatron/optimizer.h"
#include "accelerate/megatron/schedule.h"
#include "accelerate/megatron/train_step.h"
#include "accelerate/megatron_call.h"
#include "accelerate/optim/accelerated_optimizer.h"
#include "accelerate/parallel/sequence/context_scope.h"
#include "accelerate/step/train_batch.h"

namespace accelerate {

/// The losses' means over all data-parallel ranks, on every rank. Collective.
std::vector<at::Tensor> average_losses_across_data_parallel_group(
    const Accelerator& accelerator, const std::vector<at::Tensor>& losses);

/// The tensors of all shares of the data, one after another along dim 0, on every rank. Collective.
at::Tensor gather_across_data_parallel_groups(const Accelerator& accelerator,
                                              const at::Tensor& tensor);

struct MegatronStep {
  /// 0-dim, the same on all ranks, without a gradient.
  at::Tensor loss;
  /// With return_logits, on the ranks with the last stage: the outputs for all rows of the batch.
  at::Tensor logits = {};
  /// The norm of gradients before they were clipped; absent without clip_grad, and in evaluation.
  std::optional<double> grad_norm = std::nullopt;
  /// In fp16: a gradient was infinite, and nothing was changed.
  bool skipped = false;
};

struct MegatronGenerateOptions {
  /// How many tokens rows get at most, or how many they have with those at the end. Both absent: 64
  /// more.
  std::optional<int64_t> max_new_tokens = std::nullopt;
  std::optional<int64_t> max_length = std::nullopt;
  /// What logits are divided by.
  double temperature = 1;
  /// The most likely tokens that one is drawn of; 1: the most likely one; 0: all.
  int64_t top_k = 0;
  /// The fewest of the most likely tokens that have this probability together, without top_k; 0:
  /// all.
  double top_p = 0;
  /// The seed of draws, which are the same on all ranks.
  uint64_t seed = 0;
};

/// The engine steps and empties gradients by itself; calls of these have no effect.
class MegatronLMOptimizerWrapper {
 public:
  explicit MegatronLMOptimizerWrapper(const AcceleratedOptimizer& optimizer)
      : optimizer_(optimizer) {}
  void step() const {}
  void zero_grad(bool /*set_to_none*/ = true) const {}
  /// Whether the engine's last step changed nothing, in fp16.
  bool step_was_skipped() const { return optimizer_.step_was_skipped(); }

 private:
  AcceleratedOptimizer optimizer_;
};

/// The same for rates.
class MegatronLMSchedulerWrapper {
 public:
  void step() const {}
};

namespace internal {

/// What a window computes with: what the train step's get_batch gives.
struct MegatronInputs {
  at::Tensor model;
  std::vector<at::Tensor> loss;
  /// The numbers of tokens in their sequences; undefined where ranks have whole sequences.
  at::Tensor positions = {};
};

/// Errors: c10::ValueError for an Accelerator without one.
MegatronLMPlugin& megatron_plugin_of(const Accelerator& accelerator);

/// The parts of an engine that do not depend on the model's type.
class MegatronCore {
 public:
  /// From now on the Accelerator may prepare the model, and no other; it divides the model as the
  /// arguments say.
  MegatronCore(Accelerator& accelerator, const torch::nn::Module& model);

  /// How many models the Accelerator has prepared.
  static int64_t num_models(const Accelerator& accelerator);

  const MegatronOptimizer& optimizer() const { return optimizer_; }
  bool counts_tokens() const { return counts_tokens_; }
  bool returns_logits() const { return plugin_.return_logits; }
  double clip_grad() const { return clip_grad_; }
  /// Whether ranks along cp have some tokens of each sequence.
  bool divides_sequences() const { return divides_sequences_; }
  int64_t samples() const { return samples_; }
  /// Lets a prepared model compute its blocks again, as the arguments say.
  void recompute(ModelState& model) const;

  /// Whether the train step calls the model.
  bool has_forward_step() const { return forward_step_ != nullptr; }
  /// The mean loss of this rank's rows, by the train step's calls of `model`, whose state that is.
  at::Tensor run_forward_steps(Accelerator& accelerator, const ModelState& state,
                               const MegatronInputs& inputs, bool is_training,
                               const MegatronModel& model) const;

  MegatronInputs inputs_of(const MegatronBatch& batch, bool is_training) const;
  /// Collective over the ranks that divide the rows of the model's parameters, unless
  /// `is_training`.
  TrainBatchOptions window(const ModelState& model, const MegatronInputs& inputs,
                           bool is_training) const;
  TokenLoss token_loss(const at::Tensor& output, const std::vector<at::Tensor>& rows) const;
  at::Tensor mean_loss(const at::Tensor& output, const std::vector<at::Tensor>& rows) const;

  /// `last_logits(tokens)`: on the CPU, in float32, those behind the last token of each row;
  /// undefined on ranks without the model's last stage.
  at::Tensor generate(const ModelState& model, const at::Tensor& inputs,
                      const MegatronGenerateOptions& options,
                      const std::function<at::Tensor(const at::Tensor& tokens)>& last_logits) const;

  /// The tokens, and behind them as many as ranks with shards of sequences need to divide them,
  /// which those before do not see.
  at::Tensor divisible(const at::Tensor& tokens) const;

  void set_rates() const;
  void count_step() { samples_ += *plugin_.global_batch_size; }
  nlohmann::ordered_json state_dict() const { return {{"samples", samples_}}; }
  void load_state_dict(const nlohmann::ordered_json& state);

 private:
  MegatronLMPlugin plugin_;
  c10::Device device_;
  MegatronSchedule schedule_;
  std::shared_ptr<AbstractTrainStep> step_;
  MegatronForwardStep forward_step_;
  MegatronOptimizer optimizer_;
  double clip_grad_ = 0;
  bool is_gpt_ = false;
  bool counts_tokens_ = false;
  bool divides_sequences_ = false;
  /// Sequences have a multiple of so many tokens.
  int64_t length_unit_ = 1;
  int64_t samples_ = 0;
};

}  // namespace internal

template <typename Module>
class MegatronEngine {
 public:
  /// Prepares the model, and the optimizer that the arguments describe, as the Accelerator's
  /// megatron_lm_plugin says, for which set_prepared_args was called: prepare_megatron_lm does
  /// both. The engine's number of samples is saved and loaded with the Accelerator's state, so the
  /// engine must live as long as states are saved and loaded. Collective.
  /// Errors: also for an Accelerator without the plugin, or with another model; for gradients that
  ///         accumulate beside micro-batches; for stages of unequal numbers of layers, virtual ones
  ///         without "num_layers", and a model without a plan where shards of sequences need one;
  ///         and for arguments that ask for what the engine does not do, all of which are named.
  MegatronEngine(Accelerator& accelerator, const std::shared_ptr<Module>& model)
      : accelerator_(accelerator), core_(accelerator, *model) {
    auto [prepared, optimizer] = accelerator.prepare(model, core_.optimizer().optimizer);
    model_.emplace(prepared);
    optimizer_.emplace(optimizer);
    core_.recompute(*internal::Access::to(*model_));
    accelerator.register_for_checkpointing(core_);
  }
  MegatronEngine(const MegatronEngine&) = delete;
  MegatronEngine& operator=(const MegatronEngine&) = delete;

  const PreparedModel<Module>& model() const { return *model_; }
  MegatronLMOptimizerWrapper optimizer() const { return MegatronLMOptimizerWrapper(*optimizer_); }
  MegatronLMSchedulerWrapper scheduler() const { return {}; }
  /// Samples of all ranks that steps have trained.
  int64_t consumed_samples() const { return core_.samples(); }

  /// What the model and the loss take of a batch, on the rank's device.
  std::vector<at::Tensor> get_batch(const MegatronBatch& batch) const {
    internal::MegatronInputs inputs = core_.inputs_of(batch, /*is_training=*/false);
    inputs.loss.insert(inputs.loss.begin(), inputs.model);
    return std::move(inputs.loss);
  }
  /// The mean loss of some rows, of what get_batch gives behind the first tensor and the model's
  /// output for these rows. With a train step that calls the model: of what its loss takes.
  at::Tensor loss_func(const std::vector<at::Tensor>& inputs, const at::Tensor& output) const {
    return core_.mean_loss(output, inputs);
  }

  /// Forward and backward passes of the rows of this rank's share, micro_batch_size times
  /// num_micro_batches, then clipping, a step of the optimizer and of the rates. All ranks of a
  /// replica give the same batch. Collective.
  MegatronStep train_step(const MegatronBatch& batch) {
    (*model_)->train();
    core_.set_rates();
    MegatronStep step = run(core_.inputs_of(batch, /*is_training=*/true), /*is_training=*/true);
    if (core_.clip_grad() > 0) {
      const at::Tensor norm = accelerator_.clip_grad_norm_(*model_, core_.clip_grad());
      step.grad_norm = norm.template item<double>();
    }
    optimizer_->step();
    optimizer_->zero_grad();
    step.skipped = optimizer_->step_was_skipped();
    if (!step.skipped) core_.count_step();
    return step;
  }

  /// Forward passes alone, of any number of rows above 0. Collective.
  MegatronStep eval_step(const MegatronBatch& batch) {
    (*model_)->eval();
    return run(core_.inputs_of(batch, /*is_training=*/false), /*is_training=*/false);
  }

  /// Tokens behind those of `inputs`, int64 [rows, length], each by the logits of all before it:
  /// [rows, length and more], on the rank's device. A row that has ended goes on with ends of
  /// documents; it stops when all have ended. Each token goes through the stages of a pipeline in
  /// their order; the last one chooses it, and tells the others. Collective over the ranks along tp
  /// and pp, which give the same tokens and options; over those that divide rows of parameters or
  /// experts (use_distributed_optimizer, expert_model_parallel_size), which may give others, and
  /// make passes for each other until all have ended; and over replicas of a model with buffers.
  /// Errors: also for a model of another kind than GPT's, and for tokens or options that differ
  ///         along tp and pp, naming two ranks.
  at::Tensor megatron_generate(const at::Tensor& inputs,
                               const MegatronGenerateOptions& options = {}) {
    (*model_)->eval();
    return core_.generate(*internal::Access::to(*model_), inputs, options,
                          [this](const at::Tensor& tokens) { return last_logits(tokens); });
  }

  void train() { is_training_ = true; }
  void eval() { is_training_ = false; }
  /// train_step, or eval_step after eval().
  MegatronStep forward(const MegatronBatch& batch) {
    return is_training_ ? train_step(batch) : eval_step(batch);
  }

  /// The Accelerator's state, this engine's number of samples in it. Collective; errors as
  /// Accelerator::save_state and load_state.
  std::string save_checkpoint(const std::string& output_dir) {
    return accelerator_.save_state(output_dir);
  }
  std::string load_checkpoint(const std::string& input_dir) {
    return accelerator_.load_state(input_dir);
  }

 private:
  using Tensors = std::vector<at::Tensor>;

  // As long as the result lives, ranks along cp have some tokens of each sequence.
  std::optional<ContextParallelScope> divide(internal::MegatronInputs& inputs) {
    if (!core_.divides_sequences()) return std::nullopt;
    Tensors buffers = {inputs.model, inputs.positions};
    std::vector<int64_t> dims = {1, 0};
    for (const at::Tensor& each : inputs.loss) {
      buffers.push_back(each);
      dims.push_back(1);
    }
    return accelerator_.maybe_context_parallel(buffers, dims);
  }

  MegatronStep run(internal::MegatronInputs inputs, bool is_training) {
    const std::optional<ContextParallelScope> context = divide(inputs);
    MegatronStep step;
    Tensors outputs;
    const auto keep = [&](const at::Tensor& output) {
      if (core_.returns_logits()) outputs.push_back(output.detach());
    };
    if (core_.has_forward_step()) {
      const at::Tensor own =
          core_.run_forward_steps(accelerator_, *internal::Access::to(*model_), inputs, is_training,
                                  [&](const Tensors& given) {
                                    Tensors made = internal::call_with_tensors(*model_, given);
                                    if (!made.empty()) keep(made.front());
                                    return made;
                                  });
      step.loss = average_losses_across_data_parallel_group(accelerator_, {own}).front();
    } else if (core_.counts_tokens()) {
      step.loss =
          run_window(inputs, is_training, [&](const at::Tensor& output, const Tensors& rows) {
            keep(output);
            return core_.token_loss(output, rows);
          });
    } else {
      const at::Tensor own =
          run_window(inputs, is_training, [&](const at::Tensor& output, const Tensors& rows) {
            keep(output);
            return core_.mean_loss(output, rows);
          });
      step.loss = average_losses_across_data_parallel_group(accelerator_, {own}).front();
    }
    if (!outputs.empty()) step.logits = at::cat(outputs);
    if (context && step.logits.defined()) {
      step.logits = accelerator_.gather_sequences(step.logits);
    }
    return step;
  }

  at::Tensor last_logits(const at::Tensor& tokens) {
    at::Tensor logits;
    const auto keep = [&](const at::Tensor& output, const at::Tensor& /*rows*/) {
      logits = output.select(1, tokens.size(1) - 1).to(at::kCPU, at::kFloat);
      return logits.sum();
    };
    const at::Tensor given = core_.divisible(tokens);
    accelerator_.evaluate_batch(*model_, std::pair(given, given), keep, {.micro_batches = 1});
    return logits;
  }

  template <typename LossFn>
  at::Tensor run_window(const internal::MegatronInputs& inputs, bool is_training, LossFn loss_fn) {
    if constexpr (internal::TakesOneTensor<Module>) {
      const std::pair<at::Tensor, Tensors> batch(inputs.model, inputs.loss);
      const TrainBatchOptions options =
          core_.window(*internal::Access::to(*model_), inputs, is_training);
      return is_training ? accelerator_.train_batch(*model_, batch, loss_fn, options)
                         : accelerator_.evaluate_batch(*model_, batch, loss_fn, options);
    } else {
      TORCH_CHECK_VALUE(false,
                        "MegatronEngine: the model's forward does not take one tensor and give "
                        "one, as a train step without forward_step_func needs");
      return {};
    }
  }

  Accelerator& accelerator_;
  internal::MegatronCore core_;
  std::optional<PreparedModel<Module>> model_;
  std::optional<AcceleratedOptimizer> optimizer_;
  bool is_training_ = true;
};

}  // namespace accelerate
