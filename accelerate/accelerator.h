/// The face of the library: prepare what a training loop uses, and write the loop once.
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
/// It checks arguments and delegates; each part is documented where it lives. Every method says
/// whether it is collective (all ranks call it, in the same order) or local.
/// Errors: c10::ValueError for bad arguments and environment variables. A collective that a rank
///         does not join fails with c10::DistBackendError (real backends: with their own error).
/// Threads: the rank's thread.
/// Mirrors: accelerate accelerator.py, Accelerator.
#pragma once

#include <concepts>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include "accelerate/accelerator_options.h"
#include "accelerate/checkpoint/folder/checkpoint_options.h"
#include "accelerate/checkpoint/folder/save_model.h"
#include "accelerate/checkpoint/objects/checkpoint_objects.h"
#include "accelerate/comm/operations.h"
#include "accelerate/comm/random.h"
#include "accelerate/config/kwargs_handlers.h"
#include "accelerate/data/data_loader.h"
#include "accelerate/optim/accelerated_optimizer.h"
#include "accelerate/optim/accelerated_scheduler.h"
#include "accelerate/parallel/join.h"
#include "accelerate/parallel/no_sync.h"
#include "accelerate/parallel/prepared_model.h"
#include "accelerate/precision/autocast.h"
#include "accelerate/precision/grad_scaler.h"
#include "accelerate/preparable.h"
#include "accelerate/profiling/profiler.h"
#include "accelerate/runtime/runtime.h"
#include "accelerate/state/accelerator_state.h"
#include "accelerate/state/gradient_state.h"
#include "accelerate/state/memory.h"
#include "accelerate/state/partial_state.h"
#include "accelerate/step/memory_report.h"
#include "accelerate/step/metrics.h"
#include "accelerate/step/training_state.h"
#include "accelerate/tensors/state_dict.h"
#include "accelerate/tracking/run/trackers.h"

namespace accelerate {

namespace optim {
class FusedBackwardOptimizer;
}  // namespace optim

class StateSaver;

/// While it lives, ranks may have different numbers of batches. See join_uneven_inputs.
class UnevenInputsScope {
 public:
  UnevenInputsScope(UnevenInputsScope&&) = default;
  /// The rank waits for those that still train. Throws what following them throws.
  ~UnevenInputsScope() noexcept(false) = default;

 private:
  friend class Accelerator;
  // Undoes what the scope changed.
  class Restorer {
   public:
    Restorer() = default;
    Restorer(Restorer&& other) noexcept
        : loaders(std::move(other.loaders)),
          training(std::exchange(other.training, nullptr)),
          scaling_group(std::move(other.scaling_group)) {}
    ~Restorer();
    // Their even_batches.
    std::vector<std::pair<std::shared_ptr<internal::LoaderCore>, bool>> loaders;
    // Not null if ranks join.
    internal::TrainingState* training = nullptr;
    // Of the scaler, outside.
    ProcessGroupPtr scaling_group;
  };
  UnevenInputsScope(Restorer restorer, JoinScope join)
      : restorer_(std::move(restorer)), join_(std::move(join)) {}

  Restorer restorer_;
  JoinScope join_;  // ends before the loaders are restored
};

class Accelerator {
 public:
  /// Collective for the first Accelerator on a Runtime; local afterwards: they share their state.
  /// Errors: c10::ValueError for options that contradict the first one's, or each other.
  explicit Accelerator(AcceleratorOptions options = {}, Runtime& runtime = Runtime::current());
  ~Accelerator();
  Accelerator(const Accelerator&) = delete;
  Accelerator& operator=(const Accelerator&) = delete;

  // ---- Where this rank is. Local.

  Runtime& runtime() const { return state_.runtime(); }
  const AcceleratorState& state() const { return state_; }
  const GradientState& gradient_state() const { return gradient_state_; }
  c10::Device device() const { return state_.device(); }
  DistributedType distributed_type() const { return state_.distributed_type(); }
  int num_processes() const { return state_.num_processes(); }
  int process_index() const { return state_.process_index(); }
  int local_process_index() const { return state_.local_process_index(); }
  bool is_main_process() const { return state_.is_main_process(); }
  bool is_local_main_process() const { return state_.is_local_main_process(); }
  bool is_last_process() const { return state_.is_last_process(); }
  bool use_distributed() const { return state_.use_distributed(); }
  /// Whether several ranks compute on accelerators of one kind, other than TPUs.
  bool multi_device() const;
  PrecisionType mixed_precision() const { return state_.mixed_precision(); }
  /// Which way of computing in fp8 was chosen; `no` in other precisions.
  FP8BackendType fp8_backend() const {
    return training_.fp8 ? training_.fp8->backend() : FP8BackendType::kNo;
  }

  // ---- How it was set up. Local.

  bool device_placement() const { return options_.device_placement; }
  bool split_batches() const { return options_.dataloader_config.split_batches; }
  std::optional<bool> dispatch_batches() const {
    return options_.dataloader_config.dispatch_batches;
  }
  bool even_batches() const { return options_.dataloader_config.even_batches; }
  /// Of the loaders prepared from now on.
  void set_even_batches(bool even_batches) {
    options_.dataloader_config.even_batches = even_batches;
  }
  bool use_seedable_sampler() const { return options_.dataloader_config.use_seedable_sampler; }
  bool non_blocking() const { return options_.dataloader_config.non_blocking; }
  bool use_stateful_dataloader() const {
    return options_.dataloader_config.use_stateful_dataloader;
  }

  // ---- Preparing.

  /// Models (shared_ptr or a TORCH_MODULE holder), optimizers (by reference, which must outlive the
  /// result; by shared_ptr; or moved in), DataLoaders and LRSchedulers (by reference) come back
  /// ready for this job, in the order given; anything else comes back untouched, and so does what
  /// is prepared already. One object comes back by itself, several as a tuple.
  /// Two passes: schedulers are prepared after everything else. Collective.
  template <typename... Objects>
    requires(!std::same_as<std::remove_cvref_t<Objects>, PrepareOptions> && ...)
  decltype(auto) prepare(Objects&&... objects) {
    return prepare_all(placements({}, sizeof...(Objects)), std::forward<Objects>(objects)...);
  }
  /// Errors: c10::ValueError unless `options.device_placement` has an entry for each object.
  template <typename... Objects>
  decltype(auto) prepare(const PrepareOptions& options, Objects&&... objects) {
    return prepare_all(placements(options, sizeof...(Objects)), std::forward<Objects>(objects)...);
  }

  /// One model. Collective. The same module gives the same prepared model.
  template <internal::IsModel Model>
  auto prepare_model(const Model& model, const PrepareModelOptions& options = {}) {
    using Module = internal::ModuleOf<Model>;
    auto module = Module::pointer(model);
    return PreparedModel<typename Module::Type>(module, prepare_module(module, options));
  }

  /// Local.
  AcceleratedOptimizer prepare_optimizer(std::shared_ptr<torch::optim::Optimizer> optimizer);

  /// Local. `scheduler` must outlive the result.
  AcceleratedScheduler prepare_scheduler(torch::optim::LRScheduler& scheduler);

  /// This rank's share of the loader, as the DataLoaderConfiguration says; one that is prepared
  /// already comes back. `slice_fn_for_dispatch` replaces the slicing by rows of dispatched
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
    remember_loader(prepared.shared_core());
    return prepared;
  }

  /// The loader without the first `num_batches` of this rank, for the rest of an interrupted epoch.
  /// See DataLoader::skip_first. Local.
  template <typename Dataset, typename Collate>
  DataLoader<Dataset, Collate> skip_first_batches(const DataLoader<Dataset, Collate>& loader,
                                                  int64_t num_batches = 0) const {
    return loader.skip_first(num_batches);
  }

  /// The user's own module again. Local.
  template <typename Module>
  std::shared_ptr<Module> unwrap_model(const PreparedModel<Module>& model) const {
    return model.module();
  }

  // ---- Stepping.

  /// One micro-step: decides whether this is the one in `gradient_accumulation_steps` that
  /// synchronises and steps (the last batch of a loader always is), and keeps the models from
  /// synchronising otherwise. Without models: all that were prepared. Local.
  template <typename... Modules>
  [[nodiscard]] NoSyncScope accumulate(const PreparedModel<Modules>&... models) {
    advance_accumulation({models.state().get()...});
    if (gradient_state_.sync_gradients() || gradient_state_.sync_each_batch()) {
      return NoSyncScope({});
    }
    return no_sync(models...);
  }

  /// While the result lives, backward passes of these models (all, if none is named) only
  /// accumulate on this rank. Local.
  template <typename... Modules>
  [[nodiscard]] NoSyncScope no_sync(const PreparedModel<Modules>&... models) {
    return NoSyncScope(replicated(models...));
  }

  /// While the result lives, ranks may run different numbers of steps of these models (all, if none
  /// is named). A rank whose loop ended waits at the scope's end and answers the others'
  /// collectives; when all have ended, models, buffers and prepared schedulers and optimizers of
  /// those that stopped early are brought up to date. Gradients are divided by the number of all
  /// ranks, also of those that ended. It does so where the effective even_batches is off; where
  /// `options` say so it is set on every prepared loader of map-style data that is not dispatched,
  /// until the scope ends. Without replicated models it does nothing else, and on TPUs nothing,
  /// with a warning. The Accelerator must outlive the scope. Collective, as is the scope's end.
  /// Mirrors: accelerate accelerator.py, Accelerator.join_uneven_inputs.
  template <typename... Modules>
  [[nodiscard]] UnevenInputsScope join_uneven_inputs(const JoinOptions& options,
                                                     const PreparedModel<Modules>&... models) {
    return join(options, replicated(models...));
  }
  template <typename... Modules>
  [[nodiscard]] UnevenInputsScope join_uneven_inputs(const PreparedModel<Modules>&... models) {
    return join_uneven_inputs(JoinOptions(), models...);
  }

  /// Whether this micro-step synchronises gradients and steps optimizers. accumulate() decides it;
  /// whoever runs without may. Local.
  bool sync_gradients() const { return gradient_state_.sync_gradients(); }
  void set_sync_gradients(bool sync) { gradient_state_.set_sync_gradients(sync); }
  /// The setter counts from the next accumulate() on. Errors: c10::ValueError for less than 1.
  int64_t gradient_accumulation_steps() const { return gradient_state_.num_steps(); }
  void set_gradient_accumulation_steps(int64_t steps) { gradient_state_.set_num_steps(steps); }
  /// Micro-steps since the last one that synchronised at a loader's end.
  int64_t step() const { return training_.step; }

  /// loss.backward(), the loss divided by the accumulation steps and, in fp16, scaled. Collective
  /// on a step that synchronises.
  void backward(const at::Tensor& loss, const BackwardOptions& options = {});

  /// loss.backward() for a prepared optimizer that steps meanwhile (LOMO, AdaLOMO), which
  /// backward() does by itself. Absent: the learning rates of its parameter groups. The loss is not
  /// divided here. Collective in every micro-step.
  /// Errors: c10::ValueError if there is no such optimizer, or more than one.
  void lomo_backward(const at::Tensor& loss, std::optional<double> learning_rate = std::nullopt);
  bool has_lomo_optimizer() const {
    return training_.steps_in_backward && !lomo_optimizers().empty();
  }

  /// For a loss that is a sum over tokens (or whatever is counted): in the end gradients are those
  /// of the mean over all tokens of the window, whatever its micro-steps and ranks each had.
  /// `n_tokens` is this rank's number in this micro-step. Returns the window's number on all ranks,
  /// a 0-dim int64 tensor on the device, on a step that synchronises; otherwise an undefined one.
  /// A window without tokens leaves gradients of zero. Collective on a step that synchronises.
  /// Errors: c10::ValueError for a negative number, for backward() in the same window, for a second
  ///         call in the step that ends a window of several, and inside join_uneven_inputs.
  at::Tensor backward_tokens(const at::Tensor& loss_sum, int64_t n_tokens,
                             const BackwardOptions& options = {});

  /// The next backward pass of this model synchronises after all, though its forward pass ran
  /// inside no_sync: for loops that know only then that it was the last. Local.
  template <typename Module>
  void trigger_sync_in_backward(const PreparedModel<Module>& model) const {
    if (DistributedDataParallel* ddp = model.state()->ddp()) ddp->trigger_sync_in_backward();
  }

  /// Scales gradients so that their joint p-norm is at most `max_norm`; returns the norm before, a
  /// 0-dim tensor on the device. In fp16 they are unscaled first. Does nothing and returns 0 while
  /// gradients accumulate. Local: replicas have equal gradients; collective in fp16 and on TPUs.
  /// A norm that is infinite or not a number makes gradients so too, unless it is to be an error.
  at::Tensor clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm,
                             double norm_type = 2.0, bool error_if_nonfinite = false);
  template <typename Module>
  at::Tensor clip_grad_norm_(const PreparedModel<Module>& model, double max_norm,
                             double norm_type = 2.0, bool error_if_nonfinite = false) {
    return clip_grad_norm_(model->parameters(), max_norm, norm_type, error_if_nonfinite);
  }

  /// Limits each gradient to [-clip_value, clip_value]. As clip_grad_norm_ otherwise.
  void clip_grad_value_(const std::vector<at::Tensor>& parameters, double clip_value);
  template <typename Module>
  void clip_grad_value_(const PreparedModel<Module>& model, double clip_value) {
    clip_grad_value_(model->parameters(), clip_value);
  }

  // ---- Precision.

  /// While the result lives, operators compute in the job's precision, as prepared models do by
  /// themselves: for a loss, or a model that is not prepared. Absent: the AutocastKwargs among the
  /// kwargs_handlers. Local.
  [[nodiscard]] AutocastScope autocast(
      const std::optional<AutocastKwargs>& autocast_handler = std::nullopt) const {
    return AutocastScope(autocast_settings(mixed_precision(), device().type(),
                                           autocast_handler.value_or(handlers_.autocast)));
  }

  /// In fp16; otherwise null. Prepared optimizers step by it, and it is updated once per iteration:
  /// when all of them have stepped, or else before the next backward pass.
  GradScaler* scaler() const { return training_.scaler ? &training_.scaler->scaler() : nullptr; }

  /// Divides the gradients of one prepared optimizer, or of all, by the scale, so that they can be
  /// looked at; only on a step that synchronises, and once before it. Without a scaler nothing
  /// happens. Collective.
  void unscale_gradients();
  void unscale_gradients(const AcceleratedOptimizer& optimizer);

  /// Whether a prepared optimizer left out its last step; see GradScaler. The same on all ranks.
  /// Local.
  bool optimizer_step_was_skipped() const;

  // ---- Talking to the other ranks. Collective.

  /// All ranks' tensors along dim 0, on every rank, for each tensor in the tree.
  template <typename Tree>
  Tree gather(Tree tree) const {
    return accelerate::gather(state_.group(), std::move(tree));
  }

  /// As gather, without the rows that only fill up the ranks' batches: every sample of the loader
  /// being iterated comes exactly once, in the order of the ranks.
  /// Shapes: per-sample values, tensors [batch, ...] and lists (a std::vector of numbers, strings
  /// or other portable values) with an entry per sample, anywhere in the tree; of a c10::IValue its
  /// tensors. Ranks may differ in rows. In a round in which some ranks have no batch (even_batches
  /// off), those that do gather among themselves. Outside of loops it is gather. Differs: a value
  /// that is one per batch, such as a mean loss, cannot be told from one per sample; give the
  /// batch's rows a value each, or weigh it by hand. With `use_gather_object` the value itself is a
  /// list with an entry per sample, whatever is in it.
  template <typename Tree>
  Tree gather_for_metrics(Tree tree, bool use_gather_object = false) const {
    const BatchRound* round = gradient_state_.round();
    return accelerate::gather_for_metrics(metrics_group(round), round ? *round : BatchRound(),
                                          std::move(tree), use_gather_object);
  }

  /// The sum, mean or maximum over ranks, on every rank; `scale` multiplies it on TPUs only. The
  /// function of this name, unlike this method, takes the mean by default, as in the peer.
  template <typename Tree>
  Tree reduce(Tree tree, Reduction reduction = Reduction::kSum, double scale = 1.0) const {
    return accelerate::reduce(state_.group(), std::move(tree), reduction, scale);
  }

  /// The tensors with one dim filled up to the largest size that it has on a rank.
  template <typename Tree>
  Tree pad_across_processes(Tree tree, const PadAcrossProcessesOptions& options = {}) const {
    return accelerate::pad_across_processes(state_.group(), std::move(tree), options);
  }

  /// Tells all ranks something at their next check_trigger(). Local.
  void set_trigger() { trigger_ = true; }

  /// Whether any rank has called set_trigger() since the last check; resets it on all. Collective.
  bool check_trigger();

  // ---- Process control: see PartialState.

  /// Returns when all ranks have called it. Collective.
  void wait_for_everyone() const { state_.wait_for_everyone(); }

  /// A scope that rank 0, or each node's first rank, goes through before the others enter it; or
  /// `body` run in one. Collective at both ends.
  [[nodiscard]] OrderedScope main_process_first() const { return state_.main_process_first(); }
  [[nodiscard]] OrderedScope local_main_process_first() const {
    return state_.local_main_process_first();
  }
  template <typename Body>
  auto main_process_first(Body&& body) const {
    return state_.partial_state().main_process_first(std::forward<Body>(body));
  }
  template <typename Body>
  auto local_main_process_first(Body&& body) const {
    return state_.partial_state().local_main_process_first(std::forward<Body>(body));
  }

  /// The function for one rank (of all, or of each node); on the others it does nothing. Local.
  template <typename Function>
  auto on_main_process(Function function) const {
    return state_.partial_state().on_main_process(std::move(function));
  }
  template <typename Function>
  auto on_local_main_process(Function function) const {
    return state_.partial_state().on_local_main_process(std::move(function));
  }
  template <typename Function>
  auto on_last_process(Function function) const {
    return state_.partial_state().on_last_process(std::move(function));
  }
  template <typename Function>
  auto on_process(Function function, int process_index) const {
    return state_.partial_state().on_process(std::move(function), process_index);
  }
  template <typename Function>
  auto on_local_process(Function function, int local_process_index) const {
    return state_.partial_state().on_local_process(std::move(function), local_process_index);
  }

  /// This rank's contiguous share of what all ranks have: see split.h. Local.
  template <typename Inputs>
  auto split_between_processes(Inputs inputs, bool apply_padding = false) const {
    return state_.split_between_processes(std::move(inputs), apply_padding);
  }

  /// Writes the arguments and a newline, once per node. Local.
  template <typename... Values>
  void print(const Values&... values) const {
    state_.print(values...);
  }

  // ---- Saving and loading. Collective, unless it says otherwise; accelerate/docs/checkpoints.md
  //      has more.

  /// Saves all that was prepared, where its training stands, random states and what was registered,
  /// so that whatever dies, and whenever, the last complete checkpoint loads. `output_dir` has no
  /// effect with automatic naming. Returns the checkpoint's folder.
  /// Errors: CheckpointError, on all ranks, naming those that could not write, and why; what was
  ///         there before is unchanged. c10::ValueError for a folder that is none, missing, taken,
  ///         or not the same on all ranks.
  std::string save_state(const std::string& output_dir = {}, const SaveStateOptions& options = {});

  /// Brings everything to where it stood when it was saved; a loader goes on with the sample after
  /// the last one. Without `input_dir`: the latest complete checkpoint, or, if it is damaged, the
  /// one before. Ranks may be more or fewer than those that saved. Returns the checkpoint's folder.
  /// Errors: CheckpointError, on all ranks, naming the file and tensor that are missing or damaged;
  ///         c10::ValueError for a checkpoint of other objects. What was loaded by then stays.
  std::string load_state(const std::string& input_dir = {}, const LoadStateOptions& options = {});

  /// Returns when no asynchronous save runs any more. Errors: those of save_state.
  void wait_for_save();

  /// Objects of the user's own that are saved and loaded with the state, rank 0's for all ranks.
  /// They outlive the Accelerator. Local.
  template <Checkpointable... Objects>
  void register_for_checkpointing(Objects&... objects) {
    (remember_object(internal::checkpointed(objects)), ...);
  }
  /// Local. See SaveStatePreHook and LoadStatePreHook.
  HookList<SaveStatePreHook>::Handle register_save_state_pre_hook(SaveStatePreHook hook);
  HookList<LoadStatePreHook>::Handle register_load_state_pre_hook(LoadStatePreHook hook);

  /// The model's tensors under PyTorch's names, not copied. Local: replicas are equal. `unwrap` has
  /// no effect: no name begins with a wrapper's `module.`.
  template <typename Module>
  NamedTensors get_state_dict(const PreparedModel<Module>& model, bool unwrap = true) const {
    return model_state_dict(*model.state());
  }

  /// Writes the model's weights alone, in shards if they are large, for others to read; see
  /// accelerate/checkpoint/folder/save_model.h. Errors: as there, on all ranks.
  template <typename Module>
  void save_model(const PreparedModel<Module>& model, const std::string& save_directory,
                  const SaveModelOptions& options = {}) const {
    save_weights(get_state_dict(model), save_directory, options);
  }

  /// Writes tensors and values to one file, on rank 0 (or the first rank of each node); see
  /// accelerate/checkpoint/folder/save_load.h. Errors: as there, on all ranks.
  void save(const StateDict& object, const std::string& file, bool safe_serialization = true) const;
  void save(const NamedTensors& object, const std::string& file,
            bool safe_serialization = true) const;
  void save(const c10::IValue& object, const std::string& file,
            bool safe_serialization = true) const;

  /// As asked for, with `iteration` as it is now. Local.
  const ProjectConfiguration& project_configuration() const;
  const std::optional<std::string>& project_dir() const {
    return project_configuration().project_dir;
  }
  const std::optional<std::string>& logging_dir() const {
    return project_configuration().logging_dir;
  }
  /// The number of the next automatically named checkpoint. All ranks set the same. Local.
  int64_t save_iteration() const { return project_configuration().iteration; }
  void set_save_iteration(int64_t iteration);

  // ---- Telling trackers. Local; on ranks that have no tracker, as those besides the main process
  // for most, nothing happens. What is told is copied, and kept behind the training loop. A tensor
  // is copied to the CPU on every rank that makes a value of it, which waits for what computes it.

  /// Starts the trackers of log_with. `config`: the hyperparameters, which may nest; `init_kwargs`:
  /// by tracker, arguments of its own. Errors: c10::ValueError for what a tracker refuses; a
  /// service that is away is a warning.
  void init_trackers(const std::string& project_name, const TrackerDict& config = {},
                     const TrackerDict& init_kwargs = {});
  /// Tells all trackers. `log_kwargs`: by tracker, arguments of its own. Before init_trackers and
  /// after end_training it only warns, once.
  void log(const TrackerDict& values, std::optional<int64_t> step = std::nullopt,
           const TrackerDict& log_kwargs = {});
  void log_images(const ImageTensors& values, const LogImagesOptions& options = {});
  void log_table(const std::string& name, const TrackerTable& table,
                 std::optional<int64_t> step = std::nullopt, const TrackerDict& log_kwargs = {});
  void log_histograms(const TrackerDict& tensors, std::optional<int64_t> step = std::nullopt,
                      const TrackerDict& log_kwargs = {});
  /// Errors: c10::ValueError for a tracker that log_with does not have.
  TrackerHandle get_tracker(const std::string& name) const;
  /// Ends all trackers, which waits until they have kept everything; for a minute, and then for the
  /// calls that are being made, 15 s each. The destructor does the same for those who forget; while
  /// an exception leaves its scope for 5 s, and as runs that failed.
  void end_training();

  // ---- Looking at it.

  /// Records what this rank's operators cost until the result ends; see Profiler. Collective at its
  /// end if there is an output_trace_dir. Absent: the ProfileKwargs among the kwargs_handlers.
  [[nodiscard]] Profiler profile(std::optional<ProfileKwargs> profile_handler = std::nullopt) const;

  // ---- For the library.

  /// After ranks trained this model by themselves: the optimizers that train it, the schedulers and
  /// the scaler take rank `source`'s state. Collective.
  void adopt_training_state(const ModelState& model, int source);

  // ---- Ending.

  /// Forgets everything that was prepared, empties the given handles, begins counting steps anew
  /// and gives the device's unused memory back. Returns what of it still lives, because somebody
  /// else holds it. Local. Errors: c10::ValueError
  /// inside join_uneven_inputs.
  template <Releasable... Objects>
  MemoryReport free_memory(Objects&... objects) {
    internal::MemoryWitness witness(training_);
    forget_prepared();
    const RuntimeScope scope(runtime());
    release_memory(objects...);
    return witness.survivors(runtime());
  }
  /// The same under the peer's other name.
  template <Releasable... Objects>
  MemoryReport clear(Objects&... objects) {
    return free_memory(objects...);
  }

 private:
  // A scheduler seen in the first pass, prepared in the second.
  struct PendingScheduler {
    torch::optim::LRScheduler* scheduler;
  };

  std::shared_ptr<ModelState> prepare_module(const std::shared_ptr<torch::nn::Module>& module,
                                             const PrepareModelOptions& options);
  std::vector<bool> placements(const PrepareOptions& options, size_t objects) const;
  ShardOptions shard_options(bool device_placement) const;
  void remember_object(CheckpointedObject object);
  NamedTensors model_state_dict(const ModelState& model) const;
  void save_weights(const NamedTensors& weights, const std::string& directory,
                    const SaveModelOptions& options) const;
  UnevenInputsScope join(const JoinOptions& options,
                         const c10::SmallVector<DistributedDataParallel*, 4>& models);
  // Brings optimizers of these models, schedulers and the scaler to where rank `source`'s are.
  void catch_up(int source, const c10::SmallVector<DistributedDataParallel*, 4>& models);
  void override_even_batches(bool even_batches, UnevenInputsScope::Restorer& restorer);
  // The ranks that have a batch in this round.
  ProcessGroupPtr metrics_group(const BatchRound* round) const;
  void remember_loader(const std::shared_ptr<internal::LoaderCore>& loader);
  // The replicated ones among these models, or among all that were prepared.
  using ReplicatedModels = c10::SmallVector<DistributedDataParallel*, 4>;
  ReplicatedModels all_replicated() const;
  template <typename... Modules>
  ReplicatedModels replicated(const PreparedModel<Modules>&... models) const {
    if constexpr (sizeof...(models) == 0) {
      return all_replicated();
    } else {
      ReplicatedModels found;
      for (DistributedDataParallel* ddp : {models.state()->ddp()...}) {
        if (ddp != nullptr) found.push_back(ddp);
      }
      return found;
    }
  }
  // Makes ranks train it together.
  void spread(ModelState& model);
  std::vector<optim::FusedBackwardOptimizer*> lomo_optimizers() const;
  // Gradients that an optimizer reduces by itself, as it gets them, are not the Reducer's.
  void leave_gradients_to_lomo();
  void advance_accumulation(std::initializer_list<const ModelState*> models);
  // Scales the loss, nothing else.
  void run_backward(const at::Tensor& loss, const BackwardOptions& options);
  // Makes those of all prepared optimizers what their step will see.
  void settle_gradients();
  // What the window's models and the prepared optimizers' parameters have so far.
  void multiply_gradients(const at::Tensor& factor);
  void forget_prepared();

  template <typename... Objects>
  decltype(auto) prepare_all(const std::vector<bool>& placement, Objects&&... objects);
  template <typename Object>
  decltype(auto) first_pass(Object&& object, bool device_placement);
  template <typename Object>
  decltype(auto) second_pass(Object&& object);

  AcceleratorOptions options_;
  const KwargsHandlers handlers_;
  AcceleratorState& state_;
  GradientState& gradient_state_;
  internal::TrainingState& training_;
  bool trigger_ = false;
  const std::unique_ptr<StateSaver> saver_;
  Trackers trackers_;
};

/// The user's own module, prepared or not. Local.
/// Mirrors: accelerate utils/other.py, extract_model_from_parallel.
template <typename Module>
std::shared_ptr<Module> extract_model_from_parallel(const PreparedModel<Module>& model) {
  return model.module();
}
template <internal::IsModel Model>
auto extract_model_from_parallel(const Model& model) {
  return internal::ModuleOf<std::remove_cvref_t<Model>>::pointer(model);
}

template <typename... Objects>
decltype(auto) Accelerator::prepare_all(const std::vector<bool>& placement, Objects&&... objects) {
  // Braces evaluate from left to right, so every rank prepares in the order of the arguments.
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
    // A reference stays one; anything else is moved out.
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
    return prepare_model(object, {.device_placement = device_placement});
  } else if constexpr (internal::IsLoader<Object>) {
    return prepare_data_loader(object, device_placement);
  } else if constexpr (internal::IsOptimizerPointer<Object>) {
    return prepare_optimizer(object);
  } else if constexpr (internal::IsOptimizer<Object>) {
    if constexpr (std::is_lvalue_reference_v<Object>) {
      // Not owned: the user's variable stays the user's.
      return prepare_optimizer(
          std::shared_ptr<torch::optim::Optimizer>(std::shared_ptr<void>(), &object));
    } else {
      return prepare_optimizer(std::make_shared<T>(std::move(object)));
    }
  } else if constexpr (internal::IsScheduler<Object>) {
    return PendingScheduler{&object};
  } else {
    static_assert(!internal::IsMistaken<Object>,
                  "prepare takes a model as shared_ptr or TORCH_MODULE holder, an optimizer by "
                  "reference, shared_ptr or move, and a scheduler by reference");
    static_assert(
        !internal::IsTorchLoader<T>,
        "prepare takes accelerate::DataLoader, which reads torch::data's datasets as well");
    if constexpr (std::is_lvalue_reference_v<Object>) {
      return static_cast<Object>(object);
    } else {
      return T(std::move(object));
    }
  }
}

template <typename Object>
decltype(auto) Accelerator::second_pass(Object&& object) {
  using T = std::remove_cvref_t<Object>;
  if constexpr (std::is_same_v<T, PendingScheduler>) {
    return prepare_scheduler(*object.scheduler);
  } else if constexpr (std::is_lvalue_reference_v<Object>) {
    return static_cast<Object>(object);
  } else {
    return T(std::move(object));
  }
}

}  // namespace accelerate
