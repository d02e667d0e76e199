#include "accelerate/megatron_engine.h"

#include <algorithm>

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include "absl/strings/str_join.h"
#include "accelerate/base/enums.h"
#include "accelerate/base/json_text.h"
#include "accelerate/comm/operations.h"
#include "accelerate/comm/process_group.h"
#include "accelerate/config/kwargs_handlers.h"
#include "accelerate/config/pipeline_plan.h"
#include "accelerate/config/tensor_parallel_plan.h"
#include "accelerate/operators/block.h"
#include "accelerate/parallel/apply.h"
#include "accelerate/parallel/experts/mixture.h"
#include "accelerate/parallel/sharded/activation_checkpointing.h"
#include "accelerate/parallel/tensor/plan_layout.h"
#include "accelerate/pipeline/schedule.h"
#include "accelerate/step/training_state.h"
#include "accelerate/step/training_step.h"
#include "accelerate/techniques/technique_list.h"

namespace accelerate {
namespace {

using Json = nlohmann::ordered_json;
using Tensors = std::vector<at::Tensor>;

// Null for one that is missing.
Json argument(const MegatronLMPlugin& plugin, const char* name) {
  return plugin.megatron_lm_default_args.value(name, Json());
}

bool is_true(const MegatronLMPlugin& plugin, const char* name) {
  const Json& value = argument(plugin, name);
  return value.is_boolean() && value.get<bool>();
}

int64_t whole(const MegatronLMPlugin& plugin, const char* name, int64_t least) {
  const Json& value = argument(plugin, name);
  TORCH_CHECK_VALUE(value.is_number_integer() && value.get<int64_t>() >= least, name,
                    ": expected a whole number of at least ", least, ", got ", json_text(value));
  return value.get<int64_t>();
}

// Chunks of layers that a rank of the pipeline has.
int64_t chunks_of(const MegatronLMPlugin& plugin, int64_t pp) {
  constexpr char kLayers[] = "num_layers_per_virtual_pipeline_stage";
  if (argument(plugin, kLayers).is_null()) return 1;
  const int64_t of_chunk = whole(plugin, kLayers, 1), layers = whole(plugin, "num_layers", 1);
  TORCH_CHECK_VALUE(pp > 1, kLayers, "=", of_chunk,
                    " is for stages of a pipeline, but pipeline_model_parallel_size is 1");
  TORCH_CHECK_VALUE(layers % (pp * of_chunk) == 0, kLayers, "=", of_chunk,
                    " times pipeline_model_parallel_size=", pp,
                    " does not divide num_layers=", layers);
  return layers / (pp * of_chunk);
}

void check_even_stages(const MegatronLMPlugin& plugin) {
  for (const char* name :
       {"decoder_last_pipeline_num_layers", "pipeline_model_parallel_split_rank"}) {
    TORCH_CHECK_VALUE(argument(plugin, name).is_null(), name, "=",
                      json_text(argument(plugin, name)),
                      ", but the engine's stages have as many layers each; leave it out, or give "
                      "the Accelerator a PipelinePlan and train_batch");
  }
}

// Arguments that change a training and that the engine does not follow.
void refuse_what_is_not_done(const MegatronLMPlugin& plugin) {
  std::vector<std::string> names;
  for (const char* name : {"use_custom_fsdp", "no_load_optim", "no_save_optim",
                           "optimizer_cpu_offload", "use_precision_aware_optimizer"}) {
    if (is_true(plugin, name)) names.emplace_back(name);
  }
  const bool reads_tokens = !plugin.custom_get_batch_function && !plugin.custom_train_step_class;
  for (const char* name : {"reset_position_ids", "reset_attention_mask"}) {
    if (reads_tokens && is_true(plugin, name)) names.emplace_back(name);
  }
  TORCH_CHECK_VALUE(names.empty(), "MegatronEngine does not follow ", absl::StrJoin(names, ", "),
                    "; leave it out");
}

// A model computes as the Accelerator says, whatever other_megatron_args or its configuration have.
void check_precision(PrecisionType precision, const MegatronLMPlugin& plugin) {
  TORCH_CHECK_VALUE(!is_true(plugin, "fp16") || precision == PrecisionType::kFp16,
                    "MegatronEngine: fp16 is among Megatron-LM's arguments, but is not the "
                    "Accelerator's mixed_precision; set mixed_precision to \"fp16\"");
  const bool has_bf16 = precision == PrecisionType::kBf16 || precision == PrecisionType::kFp8;
  TORCH_CHECK_VALUE(!is_true(plugin, "bf16") || has_bf16,
                    "MegatronEngine: bf16 is among Megatron-LM's arguments, but is not the "
                    "Accelerator's mixed_precision; set mixed_precision to \"bf16\"");
}

// Fields are words of the plug-in, but other_megatron_args may have others.
void check_word(const MegatronLMPlugin& plugin, const char* name, const char* one,
                const char* other) {
  const Json& value = argument(plugin, name);
  TORCH_CHECK_VALUE(value == one || value == other, name, ": expected \"", one, "\" or \"", other,
                    "\", got ", json_text(value));
}

void check_ranks(const Accelerator& accelerator, const MegatronLMPlugin& plugin) {
  TORCH_CHECK_VALUE(accelerator.gradient_accumulation_steps() == 1,
                    "MegatronEngine: gradients accumulate over num_micro_batches, so "
                    "gradient_accumulation_steps is 1, but it is ",
                    accelerator.gradient_accumulation_steps());
  const int64_t shares = accelerator.state().data_share().count;
  TORCH_CHECK_VALUE(
      plugin.data_parallel_size == shares, "MegatronEngine: data_parallel_size is ",
      plugin.data_parallel_size ? std::to_string(*plugin.data_parallel_size) : "not known",
      ", but the job has ", shares,
      " shares of the data; call set_prepared_args for as many ranks, as prepare_megatron_lm does");
}

// Ranks along tp have parts of the inside of experts as the model's mixtures say. Where nobody says
// otherwise the plug-in has 1, as HF Accelerate does, which asks for nothing.
void check_experts(const MegatronLMPlugin& plugin, const torch::nn::Module& model) {
  constexpr char kSize[] = "expert_tensor_parallel_size";
  const int64_t tp = whole(plugin, "tensor_model_parallel_size", 1);
  const int64_t size = whole(plugin, kSize, 1);
  const bool is_asked =
      size > 1 || (plugin.other_megatron_args && plugin.other_megatron_args->contains(kSize));
  if (tp == 1 || !is_asked) return;
  for (const auto& item : model.named_modules()) {
    const auto* const mixture = dynamic_cast<const MixtureOfExpertsImpl*>(item.value().get());
    if (mixture == nullptr) continue;
    const bool divides = mixture->options().divides_along_tp;
    TORCH_CHECK_VALUE(divides == (size == tp), "MegatronEngine: ", kSize, " is ", size,
                      ", but ranks along tp have ", divides ? "parts" : "all",
                      " of the experts of mixture \"", item.key(), "\"; set it to ",
                      divides ? tp : 1, ", or divides_along_tp of its MixtureOptions");
  }
}

// The schedule of a pipeline, and the plan with shards of sequences.
KwargsHandlers with_arguments(KwargsHandlers handlers, const MegatronLMPlugin& plugin,
                              const torch::nn::Module& model) {
  check_even_stages(plugin);
  const int64_t chunks = chunks_of(plugin, whole(plugin, "pipeline_model_parallel_size", 1));
  handlers.pipeline = {
      .schedule = chunks > 1 ? pipeline::ScheduleKind::kInterleaved : pipeline::ScheduleKind::k1f1b,
      .stages_per_rank = static_cast<int>(chunks),
      .micro_batches = static_cast<int>(whole(plugin, "num_micro_batches", 1))};
  if (!is_true(plugin, "sequence_parallel")) return handlers;
  std::optional<TensorParallelPlan> plan = find_plan(model, handlers);
  TORCH_CHECK_VALUE(plan,
                    "MegatronEngine: with sequence_parallelism a model needs a plan of tensor "
                    "parallelism, of its own (ModelStructure) or among the kwargs_handlers");
  plan->sequence_parallel = true;
  handlers.tensor_parallel_by_class.clear();
  handlers.tensor_parallel = std::move(plan);
  return handlers;
}

std::shared_ptr<AbstractTrainStep> step_of(const MegatronLMPlugin& plugin) {
  const Json& args = plugin.megatron_lm_default_args;
  if (!plugin.custom_train_step_class) return make_train_step(args);
  auto step = plugin.custom_train_step_class(
      args, plugin.custom_train_step_kwargs.value_or(Json::object()));
  TORCH_CHECK_VALUE(step != nullptr, "custom_train_step_class has made no train step");
  return step;
}

Tensors with_output(const Tensors& rows, const at::Tensor& output) {
  Tensors inputs = rows;
  inputs.push_back(output);
  return inputs;
}

// As a mask that does not depend on the row.
bool is_for_all_rows(const at::Tensor& tensor) { return tensor.dim() > 1 && tensor.size(0) == 1; }

}  // namespace

std::vector<at::Tensor> average_losses_across_data_parallel_group(
    const Accelerator& accelerator, const std::vector<at::Tensor>& losses) {
  if (losses.empty()) return {};
  // Each share of the data has as many ranks.
  const at::Tensor means =
      accelerator.reduce(at::stack(losses).detach().to(accelerator.device()), Reduction::kMean);
  return means.unbind();
}

at::Tensor gather_across_data_parallel_groups(const Accelerator& accelerator,
                                              const at::Tensor& tensor) {
  const DataShare share = accelerator.state().data_share();
  return share.group == nullptr ? tensor : accelerate::gather(share.group, tensor);
}

namespace internal {

MegatronLMPlugin& megatron_plugin_of(const Accelerator& accelerator) {
  MegatronLMPlugin* const plugin = accelerator.megatron_lm_plugin();
  TORCH_CHECK_VALUE(plugin != nullptr, "Megatron-LM: rank ", accelerator.process_index(),
                    "'s Accelerator has no megatron_lm_plugin; give it one, or set "
                    "ACCELERATE_USE_MEGATRON_LM=true");
  return *plugin;
}

MegatronCore::MegatronCore(Accelerator& accelerator, const torch::nn::Module& model)
    : plugin_(megatron_plugin_of(accelerator)), device_(accelerator.device()) {
  TORCH_CHECK_VALUE(num_models(accelerator) == 0,
                    "MegatronEngine: the Accelerator has prepared a model, and has one engine");
  refuse_what_is_not_done(plugin_);
  check_ranks(accelerator, plugin_);
  check_precision(accelerator.mixed_precision(), plugin_);
  check_word(plugin_, "recompute_granularity", "full", "selective");
  check_word(plugin_, "recompute_method", "uniform", "block");
  check_experts(plugin_, model);
  schedule_ = megatron_schedule(plugin_.megatron_lm_default_args);
  step_ = step_of(plugin_);
  const bool has_batch = plugin_.custom_get_batch_function != nullptr;
  const bool has_loss = plugin_.custom_loss_function != nullptr;
  TORCH_CHECK_VALUE(has_batch == has_loss || plugin_.custom_train_step_class,
                    "MegatronEngine: there is a ",
                    has_batch ? "custom_get_batch_function" : "custom_loss_function", ", but no ",
                    has_batch ? "custom_loss_function" : "custom_get_batch_function",
                    "; without a custom_train_step_class give both or none, because ",
                    step_->name(), " needs tensors of its own");
  is_gpt_ = dynamic_cast<const GPTTrainStep*>(step_.get()) != nullptr && !has_batch && !has_loss;
  if (!has_batch && !has_loss) forward_step_ = step_->forward_step_func();
  const int64_t pp = whole(plugin_, "pipeline_model_parallel_size", 1);
  TORCH_CHECK_VALUE(forward_step_ == nullptr || pp == 1,
                    "MegatronEngine: pipeline_model_parallel_size is ", pp,
                    ", but a stage of a pipeline takes one tensor, and ", step_->name(),
                    " gives the model several; set it to 1, or give a custom_get_batch_function, "
                    "whose first tensor is the model's input, and a custom_loss_function");
  counts_tokens_ = is_gpt_ && is_true(plugin_, "calculate_per_token_loss");
  const int64_t cp = whole(plugin_, "context_parallel_size", 1);
  divides_sequences_ = cp > 1;
  TORCH_CHECK_VALUE(!divides_sequences_ || counts_tokens_,
                    "MegatronEngine: context_parallel_size is ", cp,
                    ", but only the loss of GPTTrainStep's tokens is made of parts of sequences; "
                    "set calculate_per_token_loss, without functions of the program, or "
                    "context_parallel_size=1");
  if (is_true(plugin_, "sequence_parallel")) {
    length_unit_ = whole(plugin_, "tensor_model_parallel_size", 1);
  }
  const Json& clip = argument(plugin_, "clip_grad");
  TORCH_CHECK_VALUE(clip.is_number() && clip.get<double>() >= 0,
                    "clip_grad: expected a number of at least 0, got ", json_text(clip));
  clip_grad_ = clip.get<double>();
  optimizer_ = make_megatron_optimizer(model, plugin_);
  KwargsHandlers handlers = with_arguments(accelerator.handlers_, plugin_, model);
  check_technique_options(all_techniques(), handlers, accelerator.mixed_precision());
  accelerator.handlers_ = std::move(handlers);
  accelerator.engine_model_ = &model;
}

int64_t MegatronCore::num_models(const Accelerator& accelerator) {
  return static_cast<int64_t>(accelerator.training_.models.size());
}

void MegatronCore::recompute(ModelState& model) const {
  const bool is_asked = plugin_.recompute_activations.value_or(false) ||
                        (plugin_.other_megatron_args &&
                         plugin_.other_megatron_args->contains("recompute_granularity"));
  if (!is_asked || argument(plugin_, "recompute_granularity") == "selective") return;
  Recomputation recomputation;
  if (argument(plugin_, "recompute_method") == "block") {
    recomputation.first_calls = static_cast<int>(whole(plugin_, "recompute_num_layers", 1));
  }
  add_technique(all_techniques(), model,
                std::make_unique<ActivationCheckpointingTechnique>(std::move(recomputation)));
}

MegatronInputs MegatronCore::inputs_of(const MegatronBatch& batch, bool is_training) const {
  Tensors tensors = plugin_.custom_get_batch_function ? plugin_.custom_get_batch_function(batch)
                                                      : step_->get_batch(batch);
  TORCH_CHECK_VALUE(!tensors.empty() && tensors.front().defined() && tensors.front().dim() > 0,
                    "MegatronEngine: the first tensor of a batch is the model's input, which has "
                    "rows");
  MegatronInputs inputs = {.model = tensors.front()};
  // GPT's masks and positions are those that its models have by themselves.
  const auto end = is_gpt_ ? tensors.begin() + 3 : tensors.end();
  inputs.loss.assign(tensors.begin() + 1, end);
  const int64_t rows = inputs.model.size(0);
  for (size_t i = 0; i < inputs.loss.size(); ++i) {
    const at::Tensor& each = inputs.loss[i];
    const bool may_lack = forward_step_ != nullptr && (!each.defined() || is_for_all_rows(each));
    TORCH_CHECK_VALUE(may_lack || (each.defined() && each.dim() > 0 && each.size(0) == rows),
                      "MegatronEngine: tensor ", i + 1, " of a batch has not the ", rows,
                      " rows of the model's input");
  }
  const int64_t wanted = *plugin_.micro_batch_size * *plugin_.num_micro_batches;
  TORCH_CHECK_VALUE(!is_training || rows == wanted,
                    "MegatronEngine: a step takes num_micro_batches=", *plugin_.num_micro_batches,
                    " times micro_batch_size=", *plugin_.micro_batch_size,
                    " rows, but the batch has ", rows);
  // What is cut in place is not the program's.
  const auto on_device = [this](const at::Tensor& each) {
    if (!each.defined()) return each;
    return each.to(device_, each.scalar_type(), /*non_blocking=*/false, divides_sequences_);
  };
  inputs.model = on_device(inputs.model);
  for (at::Tensor& each : inputs.loss) each = on_device(each);
  if (divides_sequences_) {
    inputs.positions = at::arange(inputs.model.size(1), inputs.model.options().dtype(at::kLong));
  }
  return inputs;
}

TrainBatchOptions MegatronCore::window(const ModelState& model, const MegatronInputs& inputs,
                                       bool is_training) const {
  int64_t parts = std::min(*plugin_.num_micro_batches, inputs.model.size(0));
  // Ranks that divide rows of parameters or experts meet in each pass, so that all make as many.
  const ProcessGroupPtr& shards = model.placements().shards;
  if (!is_training && shards != nullptr) {
    const at::Tensor own = at::full({1}, -parts, at::TensorOptions(device_).dtype(at::kLong));
    parts = -reduce_tensor(shards, own, Reduction::kMax).item<int64_t>();
  }
  return {.micro_batches = static_cast<int>(parts), .positions = inputs.positions};
}

at::Tensor MegatronCore::run_forward_steps(Accelerator& accelerator, const ModelState& state,
                                           const MegatronInputs& inputs, bool is_training,
                                           const MegatronModel& model) const {
  Tensors batch = {inputs.model};
  batch.insert(batch.end(), inputs.loss.begin(), inputs.loss.end());
  // The train step cuts what it needs by itself, so a window's inputs are the numbers of rows.
  const WindowCalls calls = {
      .inputs = at::arange(inputs.model.size(0), at::kLong),
      .label_rows = std::nullopt,
      .forward = [&](const at::Tensor& rows, const at::Tensor& /*positions*/) -> at::Tensor {
        const int64_t first = rows[0].item<int64_t>();
        Tensors part;
        for (const at::Tensor& each : batch) {
          const bool is_whole = !each.defined() || is_for_all_rows(each);
          part.push_back(is_whole ? each : each.narrow(0, first, rows.size(0)));
        }
        return forward_step_(part, model).loss;
      },
      .loss = [](const at::Tensor& output, int64_t /*first*/, int64_t /*count*/) -> TokenLoss {
        return {.sum = output};
      },
      .by_tokens = false};
  const TrainBatchOptions options = window(state, inputs, is_training);
  return is_training ? accelerator.step_.train_batch(state, calls, options)
                     : accelerator.step_.evaluate_batch(state, calls, options);
}

TokenLoss MegatronCore::token_loss(const at::Tensor& output, const Tensors& rows) const {
  const at::Tensor losses = losses_of_tokens(output, rows[0]);
  return {.sum = (losses * rows[1]).sum(), .tokens = rows[1].sum().item().to<int64_t>()};
}

at::Tensor MegatronCore::mean_loss(const at::Tensor& output, const Tensors& rows) const {
  if (plugin_.custom_loss_function)
    return plugin_.custom_loss_function(with_output(rows, output)).loss;
  if (!is_gpt_) return step_->loss(with_output(rows, output)).loss;
  return step_->loss({rows[1], losses_of_tokens(output, rows[0]), output}).loss;
}

void MegatronCore::set_rates() const {
  set_megatron_rates(*optimizer_.optimizer, optimizer_.factors, schedule_, samples_);
}

void MegatronCore::load_state_dict(const Json& state) {
  const auto samples = state.find("samples");
  TORCH_CHECK_VALUE(samples != state.end() && samples->is_number_integer(),
                    "MegatronEngine: the checkpoint has no number of samples");
  samples_ = samples->get<int64_t>();
}

}  // namespace internal
}  // namespace accelerate
