/// The facade of the library: prepare the objects of a training loop, and write the loop once.
///
///   Accelerator accelerator({.gradient_accumulation_steps = 2});
///   auto [model, optimizer, loader] = accelerator.prepare(net, sgd, data);
///   for (auto& [images, labels] : loader) {
///     auto scope = accelerator.accumulate(model);
///     torch::Tensor loss = torch::nll_loss(model(images), labels);
///     accelerator.backward(loss);
///     optimizer.step();
///     optimizer.zero_grad();
///   }
///
/// The class checks arguments and delegates: step/training_step.h has the training step and what
/// becomes of prepared objects. Each method says whether it is collective (all ranks
/// call it, in the same order) or local.
/// Errors: c10::ValueError for bad arguments and environment variables. A collective that a rank
///         does not join fails with c10::DistBackendError (real backends: with their own error).
/// Threads: the rank's thread.
/// Mirrors: accelerate accelerator.py, Accelerator.
#pragma once

#include <concepts>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "absl/time/time.h"
#include "accelerate/accelerator_options.h"
#include "accelerate/base/access.h"
#include "accelerate/checkpoint/folder/save_load.h"
#include "accelerate/checkpoint/objects/checkpoint_objects.h"
#include "accelerate/checkpoint/objects/placed_part.h"
#include "accelerate/comm/operations.h"
#include "accelerate/comm/random.h"
#include "accelerate/config/kwargs_handlers.h"
#include "accelerate/config/parallelism_config.h"
#include "accelerate/data/data_loader.h"
#include "accelerate/dispatch/offloaded_state.h"
#include "accelerate/forward/prepared_model.h"
#include "accelerate/mesh/device_mesh.h"
#include "accelerate/optim/accelerated_optimizer.h"
#include "accelerate/optim/accelerated_scheduler.h"
#include "accelerate/parallel/sequence/context_scope.h"
#include "accelerate/parallel/sequence/sequence_order.h"
#include "accelerate/precision/autocast.h"
#include "accelerate/precision/grad_scaler.h"
#include "accelerate/preparable.h"
#include "accelerate/profiling/profiler.h"
#include "accelerate/runtime/runtime.h"
#include "accelerate/script/script_module.h"
#include "accelerate/state/accelerator_state.h"
#include "accelerate/state/gradient_state.h"
#include "accelerate/state/memory.h"
#include "accelerate/step/deepspeed_engine.h"
#include "accelerate/step/memory_report.h"
#include "accelerate/step/metrics.h"
#include "accelerate/step/train_batch.h"
#include "accelerate/step/training_step.h"
#include "accelerate/tensors/state_dict.h"
#include "accelerate/tracking/run/trackers.h"

namespace accelerate {

class StateSaver;

namespace internal {

class MegatronCore;
struct SaverAccess;
struct TrainingState;

}  // namespace internal

class Accelerator : public ProcessControl<Accelerator> {
 public:
  /// Collective for the first Accelerator on a Runtime; local afterwards: they share their state.
  /// Errors: c10::ValueError for options that contradict the first one's, or each other.
  explicit Accelerator(AcceleratorOptions options = {}, Runtime& runtime = Runtime::current());
  ~Accelerator();
  Accelerator(const Accelerator&) = delete;
  Accelerator& operator=(const Accelerator&) = delete;

  // ---- This rank's place in the job. Local.

  Runtime& runtime() const { return state_.runtime(); }
  const AcceleratorState& state() const { return state_; }
  const GradientState& gradient_state() const { return gradient_state_; }
  GradientState& gradient_state() { return gradient_state_; }
  c10::Device device() const { return state_.device(); }
  DistributedType distributed_type() const { return state_.distributed_type(); }
  int num_processes() const { return state_.num_processes(); }
  int process_index() const { return state_.process_index(); }
  int local_process_index() const { return state_.local_process_index(); }
  bool is_main_process() const { return state_.is_main_process(); }
  bool is_local_main_process() const { return state_.is_local_main_process(); }
  bool is_last_process() const { return state_.is_last_process(); }
  /// Whether this rank saves models: the first one of its node does, and all do where a
  /// parallelism_config arranges them, since each may have a part.
  bool should_save_model() const { return parallelism_config() || is_local_main_process(); }
  bool use_distributed() const { return state_.use_distributed(); }
  /// Whether there are several ranks, on accelerators other than TPUs.
  bool multi_device() const { return state_.partial_state().multi_device(); }
  PrecisionType mixed_precision() const { return state_.mixed_precision(); }
  /// How fp8 is computed; `no` in other precisions.
  FP8BackendType fp8_backend() const;

  // ---- Its place in the mesh of a parallelism_config. Local.
  // Errors: of the ranks, c10::ValueError without a configuration.

  /// As given to the first Accelerator, with what the environment and the job filled in; absent
  /// without one.
  const std::optional<ParallelismConfig>& parallelism_config() const {
    return state_.parallelism_config();
  }
  /// See AcceleratorState::device_mesh.
  const DeviceMesh* torch_device_mesh() const { return state_.device_mesh(); }
  /// This rank's number along an axis; 0 where the axis is off.
  int tensor_parallel_rank() const { return mesh_rank("Tensor parallelism", MeshAxis::kTp); }
  int pipeline_parallel_rank() const { return mesh_rank("Pipeline parallelism", MeshAxis::kPp); }
  int context_parallel_rank() const { return mesh_rank("Context parallelism", MeshAxis::kCp); }
  int data_parallel_rank() const { return mesh_rank("Data parallelism", MeshAxis::kDpReplicate); }
  int data_parallel_shard_rank() const {
    return mesh_rank("Shard-based data parallelism", MeshAxis::kDpShard);
  }
  /// The engine that steps in backward passes; null without a deepspeed_plugin.
  DeepSpeedEngineWrapper* deepspeed_engine_wrapped() {
    return state_.deepspeed_plugin() != nullptr ? &deepspeed_engine_ : nullptr;
  }
  /// See AcceleratorState.
  FullyShardedDataParallelPlugin* fsdp_plugin() const { return state_.fsdp_plugin(); }
  DeepSpeedPlugin* deepspeed_plugin() const { return state_.deepspeed_plugin(); }
  MegatronLMPlugin* megatron_lm_plugin() const { return state_.megatron_lm_plugin(); }
  bool is_fsdp2() const { return state_.is_fsdp2(); }
  /// Whether FSDP 2 shards models, with which the other axes can be combined.
  bool is_composable_parallelism_enabled() const { return is_fsdp2(); }

  // ---- Its settings. Local.

  bool device_placement() const { return options_.device_placement; }
  bool split_batches() const { return options_.dataloader_config.split_batches; }
  std::optional<bool> dispatch_batches() const {
    return options_.dataloader_config.dispatch_batches;
  }
  bool even_batches() const { return options_.dataloader_config.even_batches; }
  /// For the loaders that are prepared from now on.
  void set_even_batches(bool even_batches) {
    options_.dataloader_config.even_batches = even_batches;
  }
  bool use_seedable_sampler() const { return options_.dataloader_config.use_seedable_sampler; }
  bool non_blocking() const { return options_.dataloader_config.non_blocking; }
  bool use_stateful_dataloader() const {
    return options_.dataloader_config.use_stateful_dataloader;
  }

  // ---- Preparing.

  /// Returns the objects ready for this job, in the order given: models (shared_ptr, a TORCH_MODULE
  /// holder, or a torch::jit::Module, which becomes a ScriptModule), optimizers (by reference,
  /// which must outlive the result; by shared_ptr; or moved in), DataLoaders and LRSchedulers (by
  /// reference). Objects of other types and prepared ones are returned unchanged. One object is
  /// returned by itself, several as a tuple. With a deepspeed_plugin a DummyOptim becomes the
  /// optimizer of the plugin's configuration, and a DummyScheduler its schedule. With a
  /// megatron_lm_plugin only prepare_megatron_lm prepares models; see its header.
  /// Schedulers are prepared after all other objects. Collective.
  template <typename... Objects>
    requires(!std::same_as<std::remove_cvref_t<Objects>, PrepareOptions> && ...)
  decltype(auto) prepare(Objects&&... objects) {
    return prepare_all(placements({}, sizeof...(Objects)), preparable<Objects>(objects)...);
  }
  /// Errors: c10::ValueError unless `options.device_placement` has an entry for each object.
  template <typename... Objects>
  decltype(auto) prepare(const PrepareOptions& options, Objects&&... objects) {
    return prepare_all(placements(options, sizeof...(Objects)), preparable<Objects>(objects)...);
  }

  /// One model. Collective. The same module gives the same prepared model.
  template <internal::IsModel Model>
  auto prepare_model(const Model& model, const PrepareModelOptions& options = {}) {
    using Module = internal::ModuleOf<Model>;
    auto module = Module::pointer(model);
    return PreparedModel<typename Module::Type>(module, prepare_module(module, options));
  }
  PreparedModel<ScriptModule> prepare_model(const torch::jit::Module& model,
                                            const PrepareModelOptions& options = {}) {
    return prepare_model(script_module(model), options);
  }

  /// With `device_placement` (absent: the Accelerator's own setting) the optimizer's state moves to
  /// the device. Local.
  AcceleratedOptimizer prepare_optimizer(std::shared_ptr<torch::optim::Optimizer> optimizer,
                                         std::optional<bool> device_placement = std::nullopt);

  /// Local. `scheduler` must outlive the result.
  AcceleratedScheduler prepare_scheduler(torch::optim::LRScheduler& scheduler);

  /// This rank's share of the loader, according to the DataLoaderConfiguration; a prepared loader
  /// is returned unchanged. `slice_fn_for_dispatch` replaces the slicing by rows of dispatched
  /// batches. Collective. Errors: as DataLoader::shard.
  template <typename Dataset, typename Collate>
  DataLoader<Dataset, Collate> prepare_data_loader(
      const DataLoader<Dataset, Collate>& loader,
      std::optional<bool> device_placement = std::nullopt,
      SliceFunction<typename DataLoader<Dataset, Collate>::Batch> slice_fn_for_dispatch = {}) {
    if (loader.is_prepared()) return loader;
    auto prepared =
        loader.shard(shard_options(device_placement.value_or(options_.device_placement)),
                     std::move(slice_fn_for_dispatch));
    register_loader(internal::Access::to(prepared));
    return prepared;
  }

  /// The loader as prepare gives it where ranks along sp divide sequences: they work through the
  /// batches of all of them together, and each gets its part of the sequences (see
  /// accelerate/data/sequence_parts.h). A prepared loader is cut already, and returned unchanged;
  /// so is one of a job without sp. The model is not read. Collective. Errors: as
  /// DataLoader::shard.
  /// Mirrors: accelerate accelerator.py, Accelerator.deepspeed_ulysses_dl_adapter.
  /// Differs: prepare_data_loader cuts as well, because whole sequences are of no use to a model.
  template <typename Dataset, typename Collate, typename Module>
  DataLoader<Dataset, Collate> deepspeed_ulysses_dl_adapter(
      const DataLoader<Dataset, Collate>& dl, const PreparedModel<Module>& /*model*/) {
    const bool has_sp = parallelism_config() && parallelism_config()->sp_enabled();
    return has_sp ? prepare_data_loader(dl) : dl;
  }

  /// The loader without this rank's first `num_batches`, for the rest of an interrupted epoch.
  /// See DataLoader::skip_first. Local.
  template <typename Dataset, typename Collate>
  DataLoader<Dataset, Collate> skip_first_batches(const DataLoader<Dataset, Collate>& loader,
                                                  int64_t num_batches = 0) const {
    return loader.skip_first(num_batches);
  }

  /// Whether the model, or a module in it, was dispatched by a map with several entries. Local.
  static bool verify_device_map(const torch::nn::Module& model) {
    return accelerate::verify_device_map(model);
  }

  /// The user's own module; see extract_model_from_parallel. Local.
  template <typename Module>
  std::shared_ptr<Module> unwrap_model(const PreparedModel<Module>& model) const {
    return model.module();
  }

  // ---- Stepping.

  /// Begins a micro-step of these models (all prepared ones, if none is named). Decides whether it
  /// is the one in `gradient_accumulation_steps` that synchronises gradients and steps optimizers;
  /// the last batch of a loader always is. Otherwise the models synchronise nothing while the
  /// result lives. Local.
  template <typename... Modules>
  [[nodiscard]] NoSyncScope accumulate(const PreparedModel<Modules>&... models) {
    return step_.accumulate({internal::Access::to(models).get()...});
  }

  /// While the result lives, backward passes of these models (all, if none is named) accumulate
  /// gradients on this rank only. Local.
  template <typename... Modules>
  [[nodiscard]] NoSyncScope no_sync(const PreparedModel<Modules>&... models) {
    return step_.no_sync({internal::Access::to(models).get()...});
  }

  /// While the result lives, ranks may run different numbers of steps of these models (all, if none
  /// is named). A rank whose loop ended waits at the scope's end and shadows the other ranks'
  /// collectives. When all have ended, the ranks that stopped early take over models, buffers,
  /// prepared schedulers and optimizers from one that did not. Gradients are divided by the number
  /// of all ranks, also of those that ended.
  /// This holds where even_batches is off. An even_batches in `options` is set, until the scope
  /// ends, on every prepared loader of map-style data that is not dispatched. Without replicated
  /// models the scope does nothing else; on TPUs it does nothing, with a warning. The Accelerator
  /// must outlive it. Collective, as is the scope's end.
  /// Errors: c10::ValueError for a mesh with ranks that train the same data.
  /// Mirrors: accelerate accelerator.py, Accelerator.join_uneven_inputs.
  template <typename... Modules>
  [[nodiscard]] UnevenInputsScope join_uneven_inputs(const JoinOptions& options,
                                                     const PreparedModel<Modules>&... models) {
    return step_.join_uneven_inputs(options, even_batches(),
                                    {internal::Access::to(models).get()...});
  }
  template <typename... Modules>
  [[nodiscard]] UnevenInputsScope join_uneven_inputs(const PreparedModel<Modules>&... models) {
    return join_uneven_inputs(JoinOptions(), models...);
  }

  /// Whether this micro-step synchronises gradients and steps optimizers. accumulate() decides it;
  /// loops without accumulate() may set it. Local.
  bool sync_gradients() const { return gradient_state_.sync_gradients(); }
  void set_sync_gradients(bool sync) { gradient_state_.set_sync_gradients(sync); }
  /// The setter counts from the next accumulate() on. Errors: c10::ValueError for less than 1.
  int64_t gradient_accumulation_steps() const { return gradient_state_.num_steps(); }
  void set_gradient_accumulation_steps(int64_t steps) { gradient_state_.set_num_steps(steps); }
  /// Micro-steps since the last one that synchronised at a loader's end.
  int64_t step() const { return gradient_state_.step(); }

  /// loss.backward(), the loss divided by the accumulation steps and, in fp16, scaled. Collective
  /// on a step that synchronises.
  void backward(const at::Tensor& loss, const BackwardOptions& options = {});

  /// loss.backward() for the prepared optimizer that steps during the backward pass (LOMO,
  /// AdaLOMO). backward() calls it for such an optimizer. Without `learning_rate` the parameter
  /// groups' own apply. The loss is not divided by the accumulation steps. Collective in every
  /// micro-step. Errors: c10::ValueError if there is no such optimizer, or more than one.
  void lomo_backward(const at::Tensor& loss, std::optional<double> learning_rate = std::nullopt) {
    step_.lomo_backward(loss, learning_rate);
  }
  bool has_lomo_optimizer() const { return step_.has_lomo_optimizer(); }

  /// backward() for a loss that is a sum over tokens (or other items): when the window ends,
  /// gradients are those of the mean over all its tokens, however they were distributed over
  /// micro-steps and ranks. `n_tokens` is this rank's number in this micro-step. On a step that
  /// synchronises it returns the window's number over all ranks, a 0-dim int64 tensor on the
  /// device; otherwise an undefined tensor. A window without tokens has gradients of zero.
  /// Collective on a step that synchronises, and over ranks along cp and sp in every step.
  /// Errors: c10::ValueError for a negative number, for backward() in the same window, for a second
  ///         call in the step that ends a window of several, and inside join_uneven_inputs.
  at::Tensor backward_tokens(const at::Tensor& loss_sum, int64_t n_tokens,
                             const BackwardOptions& options = {});

  /// The mean loss over the tokens of whole sequences, of which ranks along cp or sp have parts:
  /// the sum of loss x n_tokens over these ranks, divided by the sum of n_tokens. `loss`: the mean
  /// over this rank's valid tokens, 0-dim; `n_tokens`: their number, a 0-dim integer tensor, as of
  /// `(shift_labels != -100).sum()`. A rank without valid tokens contributes nothing, whatever its
  /// loss is; without any in all ranks the mean is 0. All ranks get it, and backward() of it gives
  /// the gradients of whole sequences, averaged over batches as always; backward_tokens() weights
  /// batches by tokens as well, and takes each rank's sum and number as they are. Without cp and sp
  /// it is the loss. Collective over the ranks along cp or sp, and so is its backward pass.
  at::Tensor mean_over_sequences(const at::Tensor& loss, const at::Tensor& n_tokens) const;

  /// Forward and backward passes of one batch in `options.micro_batches` parts, in the order of a
  /// pipeline's schedule, as one micro-step: gradients are synchronised in the last part, if this
  /// micro-step does so. Where ranks along pp have stages of the model, this is how it is trained;
  /// with one rank along pp the same program gives the same.
  ///
  ///   auto loss = accelerator.train_batch(
  ///       model, std::pair(images, labels),
  ///       [](const at::Tensor& output, const at::Tensor& labels) {
  ///         return torch::nll_loss(output, labels);
  ///       },
  ///       {.micro_batches = 8});
  ///   optimizer.step();
  ///
  /// `batch` is a pair, or another tree of two members: a tensor [rows, ...] that the model's
  /// forward takes, and labels, a tree of tensors with as many rows. All ranks of a pipeline get
  /// the same batch, as prepared loaders give it. `loss_fn(output, labels)` gives, for some rows,
  ///   - a tensor, their mean: the batch's loss is the mean over its rows, and divided by the
  ///     accumulation steps as in backward();
  ///   - or a TokenLoss, a sum over tokens: gradients are those of the mean over all tokens of the
  ///     window and of all ranks, as in backward_tokens().
  /// It is called on the ranks with the last stage alone. Returns the loss, a 0-dim tensor without
  /// a gradient on the device of every rank: the mean over this share's rows, or over all ranks'
  /// tokens of this batch. Collective over the ranks along pp; on a micro-step that synchronises
  /// over all ranks, and with a TokenLoss in any case.
  /// Errors: c10::ValueError, on all ranks of a pipeline, for more micro-batches than rows, numbers
  ///         of micro-batches that the schedule does not have (with the nearest ones), a schedule
  ///         for other stages than the model's, and batches that are not the same.
  template <typename Module, typename Batch, typename LossFn>
  at::Tensor train_batch(const PreparedModel<Module>& model, const Batch& batch, LossFn loss_fn,
                         const TrainBatchOptions& options = {}) {
    return step_.train_batch(*internal::Access::to(model),
                             internal::window_calls(model, batch, std::move(loss_fn)),
                             planned(options));
  }

  /// The loss of a batch as train_batch returns it, from forward passes alone: nothing is kept for
  /// backward passes, and the accumulation window is as it was. Whether layers as dropout are in
  /// evaluation is the module's, as `model->eval()` says. Shapes of batches may differ from those
  /// of the training. Collective over the ranks along pp, and with a TokenLoss over all ranks.
  /// Errors: those of train_batch.
  template <typename Module, typename Batch, typename LossFn>
  at::Tensor evaluate_batch(const PreparedModel<Module>& model, const Batch& batch, LossFn loss_fn,
                            const TrainBatchOptions& options = {}) {
    return step_.evaluate_batch(*internal::Access::to(model),
                                internal::window_calls(model, batch, std::move(loss_fn)),
                                planned(options));
  }

  /// Lets the model's next backward pass synchronise although its forward pass ran inside no_sync,
  /// for loops that learn only afterwards that this micro-step was the last. Local.
  template <typename Module>
  void trigger_sync_in_backward(const PreparedModel<Module>& model) const {
    internal::Access::to(model)->trigger_sync_in_backward();
  }

  /// Scales gradients so that their joint p-norm is at most `max_norm`. Returns the norm before, a
  /// 0-dim tensor on the device. In fp16 gradients are unscaled first. While gradients accumulate
  /// it does nothing and returns 0. Local, because replicas have equal gradients; collective with
  /// sharded models, in fp16 and on TPUs. A norm that is not finite makes gradients NaN or zero, or
  /// is an error with `error_if_nonfinite`.
  at::Tensor clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm,
                             double norm_type = 2.0, bool error_if_nonfinite = false) {
    return step_.clip_grad_norm_(parameters, max_norm, norm_type, error_if_nonfinite);
  }
  template <typename Module>
  at::Tensor clip_grad_norm_(const PreparedModel<Module>& model, double max_norm,
                             double norm_type = 2.0, bool error_if_nonfinite = false) {
    return clip_grad_norm_(model->parameters(), max_norm, norm_type, error_if_nonfinite);
  }

  /// Limits each gradient to [-clip_value, clip_value]. Otherwise as clip_grad_norm_.
  void clip_grad_value_(const std::vector<at::Tensor>& parameters, double clip_value) {
    step_.clip_grad_value_(parameters, clip_value);
  }
  template <typename Module>
  void clip_grad_value_(const PreparedModel<Module>& model, double clip_value) {
    clip_grad_value_(model->parameters(), clip_value);
  }

  // ---- Sequences that no device holds.

  /// While the result lives, the ranks along cp have some tokens of each sequence: the buffers are
  /// cut in place along their dims of tokens, and attention in passes of prepared models reaches
  /// the tokens of all ranks. Forward and backward passes belong into one scope. At its end the
  /// buffers are whole again, but for the `no_restore_buffers`; a backward pass that fails because
  /// of this says so. Without ranks along cp it does
  /// nothing, and says so once. Local; the passes are collective. See context_scope.h, and there
  /// positions(), which a model must be given.
  /// The order of tokens is for attention that is causal; another gives the same results.
  /// Errors: those of ContextParallelScope.
  /// Mirrors: accelerate accelerator.py, Accelerator.maybe_context_parallel.
  [[nodiscard]] ContextParallelScope maybe_context_parallel(
      const std::vector<at::Tensor>& buffers = {}, const std::vector<int64_t>& buffer_seq_dims = {},
      const std::vector<at::Tensor>& no_restore_buffers = {},
      SequenceOrder order = SequenceOrder::kBalanced) const;

  // ---- Precision.

  /// While the result lives, operators compute in the job's precision, for a loss or a model that
  /// is not prepared; prepared models need no such scope. Without a handler, the AutocastKwargs
  /// among the kwargs_handlers apply. Local.
  [[nodiscard]] AutocastScope autocast(
      const std::optional<AutocastKwargs>& autocast_handler = std::nullopt) const {
    return AutocastScope(autocast_settings(mixed_precision(), device().type(),
                                           autocast_handler.value_or(handlers_.autocast)));
  }

  /// The scaler of losses; null except in fp16 and with MS-AMP. Prepared optimizers step with it.
  /// It is updated once per iteration: when all of them have stepped, or else before the next
  /// backward pass.
  GradScaler* scaler() const { return step_.scaler(); }

  /// Divides the gradients of one prepared optimizer, or of all, by the scale, so that code can
  /// look at them. Works on a step that synchronises, and once per step; without a scaler it does
  /// nothing. Collective.
  void unscale_gradients() { step_.unscale_gradients(); }
  void unscale_gradients(const AcceleratedOptimizer& optimizer) {
    step_.unscale_gradients(optimizer);
  }

  /// Whether a prepared optimizer skipped its last step; see GradScaler. Equal on all ranks. Local.
  bool optimizer_step_was_skipped() const { return step_.optimizer_step_was_skipped(); }

  // ---- Communication with the other ranks. Collective.

  /// All ranks' tensors, concatenated along dim 0, on every rank, for each tensor in the tree.
  template <typename Tree>
  Tree gather(Tree tree) const {
    return accelerate::gather(state_.group(), std::move(tree));
  }

  /// As gather, without padded rows: every sample of the loader being iterated comes exactly once,
  /// in the order of the ranks. Ranks of a mesh that train the same batches count as one. Outside
  /// of loops all rows are real.
  /// Shapes: per-sample values, tensors [batch, ...] and lists (a std::vector of numbers, strings
  /// or other portable values) with an entry per sample, anywhere in the tree; the tensors of a
  /// c10::IValue. Ranks may differ in rows. In a round in which some ranks have no batch
  /// (even_batches off), the others gather among themselves. With `use_gather_object` the value
  /// itself is a list with an entry per sample, of any type.
  /// Differs: a value per batch, such as a mean loss, cannot be told from one per sample; repeat it
  /// for each row, or weight it yourself.
  template <typename Tree>
  Tree gather_for_metrics(Tree tree, bool use_gather_object = false) const {
    const BatchRound* round = gradient_state_.round();
    return accelerate::gather_for_metrics(step_.metrics_group(round), round ? *round : BatchRound(),
                                          std::move(tree), use_gather_object);
  }

  /// The parts of sequences that ranks along sp have, put together along `dim`, in the order of the
  /// sequences, for metrics of whole sequences: gather_for_metrics() of the result has all samples,
  /// and of a part this rank's part of them. Ranks along cp have parts inside of
  /// maybe_context_parallel; outside of it, and without sp, it is the tensor. Gradients are summed.
  /// Shapes: in [batch, part, ...]; out [batch, ranks * part, ...]. Collective over those ranks.
  at::Tensor gather_sequences(const at::Tensor& part, int64_t dim = 1) const;

  /// The sum, mean or maximum over ranks, on every rank; `scale` multiplies it on TPUs only. Unlike
  /// this method, the function of this name takes the mean by default, as in HF Accelerate.
  template <typename Tree>
  Tree reduce(Tree tree, Reduction reduction = Reduction::kSum, double scale = 1.0) const {
    return accelerate::reduce(state_.group(), std::move(tree), reduction, scale);
  }

  /// The tensors with one dim padded to the largest size that it has on any rank.
  template <typename Tree>
  Tree pad_across_processes(Tree tree, const PadAcrossProcessesOptions& options = {}) const {
    return accelerate::pad_across_processes(state_.group(), std::move(tree), options);
  }

  /// Makes the next check_trigger() true on all ranks. Local.
  void set_trigger() { trigger_ = true; }

  /// Whether any rank has called set_trigger() since the last check; resets it. Collective.
  bool check_trigger();

  /// When this rank will be ended from outside, if it was told: in a simulation by the fault
  /// `terminate`; real ranks get a signal instead. Other ranks are not told: see set_trigger().
  /// Local.
  std::optional<absl::Time> termination() const { return runtime().termination(); }

  // ---- Process control: see ProcessControl in accelerate/state/partial_state.h.

  // ---- Saving and loading. Collective, unless it says otherwise; accelerate/docs/checkpoints.md
  //      has more.

  /// Saves all prepared objects, the state of training, random states and registered objects. No
  /// matter what crashes or when, the last complete checkpoint loads. `output_dir` has no effect
  /// with automatic naming. Returns the checkpoint's folder.
  /// Errors: CheckpointError, on all ranks, naming those that could not write, and why; earlier
  ///         checkpoints are unchanged. c10::ValueError for a folder that is missing, taken, not a
  ///         folder, or not the same on all ranks.
  std::string save_state(const std::string& output_dir = {}, const SaveStateOptions& options = {});

  /// Restores everything as it was saved; a loader continues with the sample after the last one if
  /// DataLoaderConfiguration::use_stateful_dataloader is set, and is left as it is otherwise.
  /// Without `input_dir`: the latest complete checkpoint, or, if it is damaged, the one before;
  /// with LoadStateOptions::best those with a metric, the best first. A checkpoint that is skipped
  /// is named in a warning. The number of ranks may differ from the one that saved. Returns the
  /// checkpoint's folder.
  /// Errors: CheckpointError, on all ranks, naming the file and tensor that are missing or damaged;
  ///         c10::ValueError for a checkpoint of other objects. Objects loaded by then keep the
  ///         loaded state.
  std::string load_state(const std::string& input_dir = {}, const LoadStateOptions& options = {});

  /// As load_state, for the start of a program that may be run again: if no state was saved yet it
  /// does nothing and returns nothing, else the checkpoint's folder.
  /// Errors: as load_state; CheckpointError as well if there are checkpoints and none is complete.
  std::optional<std::string> load_latest_state(const std::string& input_dir = {},
                                               const LoadStateOptions& options = {});

  /// Returns when all asynchronous saves have ended. Errors: those of save_state.
  void wait_for_save();

  /// Registers the user's own objects, which must outlive the Accelerator: they are saved and
  /// loaded with the state, rank 0's for all ranks. Local.
  template <Checkpointable... Objects>
  void register_for_checkpointing(Objects&... objects) {
    (register_object(internal::checkpointed(objects)), ...);
  }
  /// Local. See SaveStatePreHook and LoadStatePreHook.
  HookList<SaveStatePreHook>::Handle register_save_state_pre_hook(SaveStatePreHook hook);
  HookList<LoadStatePreHook>::Handle register_load_state_pre_hook(LoadStatePreHook hook);

  /// The model's tensors under PyTorch's names, not copied. A sharded model's are gathered one by
  /// one onto the host of rank 0, the others get none, unless the fsdp_plugin's state_dict_type is
  /// FULL_STATE_DICT and its state_dict_config says otherwise; in a full_parameters scope
  /// (accelerate/parallel/sharded/sharded.h) they are what the scope has.
  /// `unwrap` has no effect: no name begins with the `module.` of a wrapper. Collective for sharded
  /// models.
  template <typename Module>
  NamedTensors get_state_dict(const PreparedModel<Module>& model, bool unwrap = true) const {
    return model_state_dict(*internal::Access::to(model));
  }

  /// Where a tensor belongs that is this rank's part of a prepared model's parameter, as the
  /// weights of a SaveStatePreHook are; absent for other tensors. Local.
  std::optional<PlacedPart> shard_place(const at::Tensor& tensor) const;

  /// Writes only the model's weights, in files of their own if they are large, for other programs;
  /// see accelerate/checkpoint/folder/save_load.h. A sharded model's weights are gathered and
  /// written one tensor at a time. Errors: as there, on all ranks.
  template <typename Module>
  void save_model(const PreparedModel<Module>& model, const std::string& save_directory,
                  const SaveModelOptions& options = {}) const {
    save_weights(*internal::Access::to(model), save_directory, options);
  }

  /// Writes tensors and values to one file, on rank 0 (or the first rank of each node); see
  /// accelerate/checkpoint/folder/save_load.h. Errors: as there, on all ranks.
  void save(const StateDict& object, const std::string& file, bool safe_serialization = true) const;
  void save(const NamedTensors& object, const std::string& file,
            bool safe_serialization = true) const;
  void save(const c10::IValue& object, const std::string& file,
            bool safe_serialization = true) const;

  /// As given to the constructor, with the current `iteration`. Local.
  const ProjectConfiguration& project_configuration() const;
  const std::optional<std::string>& project_dir() const {
    return project_configuration().project_dir;
  }
  const std::optional<std::string>& logging_dir() const {
    return project_configuration().logging_dir;
  }
  /// The number of the next automatically named checkpoint; equal on all ranks. Local.
  int64_t save_iteration() const { return project_configuration().iteration; }
  void set_save_iteration(int64_t iteration);

  // ---- Trackers. Local. Most trackers run on the main process; elsewhere these calls do nothing.
  // Values are copied and recorded behind the training loop. A tensor is copied to the CPU on every
  // rank that makes a value of it, which waits for the computation of the tensor.

  /// Starts the trackers of log_with. `config`: the hyperparameters, which may nest; `init_kwargs`:
  /// arguments of single trackers, by the tracker's name. Errors: c10::ValueError for values that a
  /// tracker refuses; a service that cannot be reached is a warning.
  void init_trackers(const std::string& project_name, const TrackerDict& config = {},
                     const TrackerDict& init_kwargs = {}) {
    trackers_.init(project_name, config, init_kwargs);
  }
  /// Records values in all trackers. `log_kwargs`: arguments of single trackers, by the tracker's
  /// name. Before init_trackers and after end_training it only warns, once.
  void log(const TrackerDict& values, std::optional<int64_t> step = std::nullopt,
           const TrackerDict& log_kwargs = {}) {
    trackers_.log(values, step, log_kwargs);
  }
  void log_images(const ImageTensors& values, const LogImagesOptions& options = {}) {
    trackers_.log_images(values, options);
  }
  void log_table(const std::string& name, const TrackerTable& table,
                 std::optional<int64_t> step = std::nullopt, const TrackerDict& log_kwargs = {}) {
    trackers_.log_table(name, table, step, log_kwargs);
  }
  void log_histograms(const TrackerDict& tensors, std::optional<int64_t> step = std::nullopt,
                      const TrackerDict& log_kwargs = {}) {
    trackers_.log_histograms(tensors, step, log_kwargs);
  }
  /// Errors: c10::ValueError for a tracker that is not in log_with.
  TrackerHandle get_tracker(const std::string& name) const { return trackers_.get(name); }
  /// Ends all trackers. Waits until they have recorded everything: for a minute, and then for the
  /// calls in progress, 15 s each. The destructor does the same if this was not called; while an
  /// exception unwinds the stack it waits for 5 s and ends the runs as failed.
  void end_training() { trackers_.end(); }

  // ---- Profiling.

  /// Records the costs of this rank's operators until the result is destroyed; see Profiler.
  /// Collective at its end if there is an output_trace_dir. Without a handler, the ProfileKwargs
  /// among the kwargs_handlers apply.
  [[nodiscard]] Profiler profile() const { return profile(handlers_.profile); }
  [[nodiscard]] Profiler profile(const ProfileKwargs& profile_handler) const;

  // ---- Ending.

  /// Forgets all prepared objects, empties the given handles, counts micro-steps from zero again
  /// and returns the device's unused memory. Returns which of the objects still live because other
  /// code holds them. Local. Errors: c10::ValueError inside join_uneven_inputs.
  template <Releasable... Objects>
  MemoryReport free_memory(Objects&... objects) {
    const auto survivors = release_prepared();
    const RuntimeScope scope(runtime());
    release_memory(objects...);
    return survivors(runtime());
  }
  /// Another name of free_memory, as in HF Accelerate.
  template <Releasable... Objects>
  MemoryReport clear(Objects&... objects) {
    return free_memory(objects...);
  }

 private:
  friend class ProcessControl<Accelerator>;
  friend struct internal::Access;
  friend struct internal::SaverAccess;
  friend class internal::MegatronCore;  // divides models as the plug-in says
  internal::TrainingStep& internals() { return step_; }
  const PartialState& partial_state() const { return state_.partial_state(); }

  // A scheduler that the first pass has seen and the second pass prepares.
  struct PendingScheduler {
    torch::optim::LRScheduler* scheduler;
  };
  struct PendingDummyScheduler {
    const DummyScheduler* scheduler;
  };

  int mesh_rank(const char* parallelism, MeshAxis axis) const;
  // With the PipelinePlan's number of micro-batches where there is none.
  TrainBatchOptions planned(TrainBatchOptions options) const {
    if (!options.micro_batches) options.micro_batches = handlers_.pipeline.micro_batches;
    return options;
  }
  // The one that was prepared for this module, or a new one.
  std::shared_ptr<ScriptModule> script_module(const torch::jit::Module& script) const;
  // The object as prepare has it, but for a torch::jit::Module.
  template <typename Object>
  decltype(auto) preparable(std::remove_reference_t<Object>& object) const {
    if constexpr (internal::IsScript<Object>) {
      return script_module(object);
    } else {
      return static_cast<Object&&>(object);
    }
  }
  // Before anything of one call is prepared. Errors: those of TrainingStep's configure_zero and
  // check_before_sharding.
  void begin_prepare(const internal::PreparedTogether& together);
  SchedulerPolicy scheduler_policy() const;
  // A model that is prepared by itself: checks it, and calls add_model.
  std::shared_ptr<ModelState> prepare_module(const std::shared_ptr<torch::nn::Module>& module,
                                             const PrepareModelOptions& options);
  // Objects that begin_prepare or their own call has checked.
  std::shared_ptr<ModelState> add_model(const std::shared_ptr<torch::nn::Module>& module,
                                        const PrepareModelOptions& options);
  AcceleratedOptimizer add_optimizer(std::shared_ptr<torch::optim::Optimizer> optimizer,
                                     bool device_placement);
  std::vector<bool> placements(const PrepareOptions& options, size_t objects) const;
  ShardOptions shard_options(bool device_placement) const;
  // The ranks along sp; null for one.
  ProcessGroupPtr sp_group() const;
  // For the error of a backward pass that is being handled.
  void explain_failed_backward(const at::Tensor& loss) const;
  // The length of all sequences; 0: any.
  int64_t sequence_length() const;
  void register_object(CheckpointedObject object);
  NamedTensors model_state_dict(const ModelState& model) const;
  // What weights are saved in; absent: what they have.
  static std::optional<at::ScalarType> exported_dtype(const ModelState& model);
  std::vector<StreamedTensor> streamed(const ModelState& model, const NamedTensors& own) const;
  void save_weights(const ModelState& model, const std::string& directory,
                    const SaveModelOptions& options) const;
  void register_loader(const std::shared_ptr<internal::LoaderCore>& loader);
  std::function<MemoryReport(const Runtime&)> release_prepared();

  template <typename... Objects>
  decltype(auto) prepare_all(const std::vector<bool>& placement, Objects&&... objects);
  template <typename Object>
  decltype(auto) first_pass(Object&& object, bool device_placement);
  template <typename Object>
  decltype(auto) second_pass(Object&& object);

  AcceleratorOptions options_;
  KwargsHandlers handlers_;
  AcceleratorState& state_;
  GradientState& gradient_state_;
  internal::TrainingState& training_;
  internal::TrainingStep step_;
  DeepSpeedEngineWrapper deepspeed_engine_{step_};
  bool trigger_ = false;
  const torch::nn::Module* engine_model_ = nullptr;  // of a MegatronEngine
  const std::unique_ptr<StateSaver> saver_;
  Trackers trackers_;
};

/// HF Accelerate's arguments. None changes the result: preparing a model wraps and compiles nothing
/// of the module itself, so there is one form of it to give back. Its own call computes in its
/// parameters' precision, that of the PreparedModel in the job's.
struct ExtractModelOptions {
  bool keep_fp32_wrapper = true;
  bool keep_torch_compile = true;
  bool recursive = false;
};

/// The user's own module, prepared or not. Local.
/// Mirrors: accelerate utils/other.py, extract_model_from_parallel.
template <typename Module>
std::shared_ptr<Module> extract_model_from_parallel(const PreparedModel<Module>& model,
                                                    const ExtractModelOptions& /*options*/ = {}) {
  return model.module();
}
template <internal::IsModel Model>
auto extract_model_from_parallel(const Model& model, const ExtractModelOptions& /*options*/ = {}) {
  return internal::ModuleOf<std::remove_cvref_t<Model>>::pointer(model);
}

template <typename... Objects>
decltype(auto) Accelerator::prepare_all(const std::vector<bool>& placement, Objects&&... objects) {
  internal::PreparedTogether together;
  (internal::list<Objects>(objects, together), ...);
  begin_prepare(together);
  // Initialiser lists are evaluated from left to right, so all ranks prepare in the same order.
  auto first = [&]<size_t... I>(std::index_sequence<I...>) {
    return std::tuple<decltype(first_pass(std::forward<Objects>(objects), true))...>{
        first_pass(std::forward<Objects>(objects), placement[I])...};
  }(std::index_sequence_for<Objects...>());
  auto finish = [&](auto&&... object) {
    return std::tuple<decltype(second_pass(std::forward<decltype(object)>(object)))...>{
        second_pass(std::forward<decltype(object)>(object))...};
  };
  auto prepared = std::apply(finish, std::move(first));
  if constexpr (sizeof...(Objects) == 1) {
    // References stay references; other results are moved out.
    return static_cast<std::tuple_element_t<0, decltype(prepared)>>(
        std::get<0>(std::move(prepared)));
  } else {
    return prepared;
  }
}

template <typename Object>
decltype(auto) Accelerator::first_pass(Object&& object, bool device_placement) {
  using T = std::remove_cvref_t<Object>;
  if constexpr (internal::IsModel<Object>) {
    const auto module = internal::ModuleOf<T>::pointer(object);
    return PreparedModel<typename internal::ModuleOf<T>::Type>(
        module, add_model(module, {.device_placement = device_placement}));
  } else if constexpr (internal::IsLoader<Object>) {
    return prepare_data_loader(object, device_placement);
  } else if constexpr (internal::IsOptimizerPointer<Object>) {
    return add_optimizer(object, device_placement);
  } else if constexpr (internal::IsOptimizer<Object>) {
    if constexpr (std::is_lvalue_reference_v<Object>) {
      // The pointer does not own the user's variable.
      return add_optimizer(
          std::shared_ptr<torch::optim::Optimizer>(std::shared_ptr<void>(), &object),
          device_placement);
    } else {
      return add_optimizer(std::make_shared<T>(std::move(object)), device_placement);
    }
  } else if constexpr (internal::IsScheduler<Object>) {
    return PendingScheduler{&object};
  } else if constexpr (std::is_same_v<T, DummyOptim>) {
    return step_.add_optimizer(object);
  } else if constexpr (std::is_same_v<T, DummyScheduler>) {
    return PendingDummyScheduler{&object};
  } else {
    static_assert(!internal::IsTorchPlateau<Object>,
                  "prepare takes accelerate::optim::ReduceLROnPlateau instead of LibTorch's, which "
                  "has no state");
    static_assert(!internal::IsMistaken<Object>,
                  "prepare takes a model as shared_ptr or TORCH_MODULE holder, an optimizer by "
                  "reference, shared_ptr or move, and a scheduler by reference");
    static_assert(
        !internal::IsTorchLoader<T>,
        "prepare takes accelerate::DataLoader, which reads torch::data's datasets as well");
    return internal::unchanged<Object>(object);
  }
}

template <typename Object>
decltype(auto) Accelerator::second_pass(Object&& object) {
  if constexpr (std::is_same_v<std::remove_cvref_t<Object>, PendingScheduler>) {
    return prepare_scheduler(*object.scheduler);
  } else if constexpr (std::is_same_v<std::remove_cvref_t<Object>, PendingDummyScheduler>) {
    return step_.add_scheduler(*object.scheduler, scheduler_policy());
  } else {
    return internal::unchanged<Object>(object);
  }
}

}  // namespace accelerate
