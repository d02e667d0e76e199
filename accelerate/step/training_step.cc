#include "accelerate/step/training_step.h"

#include <algorithm>

#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include "accelerate/data/loader_core.h"
#include "accelerate/forward/model_state.h"
#include "accelerate/mesh/mesh.h"
#include "accelerate/optim/accelerated_optimizer.h"
#include "accelerate/optim/clip_grad.h"
#include "accelerate/parallel/layout/model_layout.h"
#include "accelerate/state/accelerator_state.h"
#include "accelerate/state/gradient_state.h"
#include "accelerate/step/lomo_engine.h"
#include "accelerate/step/step_engine.h"
#include "accelerate/step/trained_parameters.h"
#include "accelerate/step/training_state.h"

namespace accelerate {

UnevenInputsScope::Restorer::~Restorer() {
  for (auto& [loader, even_batches] : loaders) loader->set_even_batches(even_batches);
  if (joining != nullptr) joining->set_joining(false);
  if (scaler != nullptr) scaler->scaler().set_group(std::move(scaling_group));
}

namespace internal {
namespace {

void override_even_batches(const std::vector<std::weak_ptr<LoaderCore>>& prepared,
                           bool even_batches,
                           std::vector<std::pair<std::shared_ptr<LoaderCore>, bool>>& changed) {
  bool some_keep_theirs = false;
  for_each_alive(prepared, [&](const auto& loader) {
    if (!loader->can_set_even_batches()) {
      some_keep_theirs = true;
      return;
    }
    changed.emplace_back(loader, loader->even_batches());
    loader->set_even_batches(even_batches);
  });
  if (some_keep_theirs) {
    TORCH_WARN(
        "join_uneven_inputs: even_batches can only be set for map-style data that is not "
        "dispatched; other prepared loaders keep theirs");
  }
}

}  // namespace

LomoEngine* TrainingStep::lomo() const { return find_engine<LomoEngine>(training_.engine.get()); }

std::vector<const ModelState*> TrainingStep::named_or_all(Models models) const {
  std::vector<const ModelState*> all = models;
  if (all.empty()) {
    for (const auto& model : training_.models) all.push_back(model.get());
  }
  return all;
}

NoSyncScope TrainingStep::accumulate(Models models) {
  gradients_.begin_micro_step();
  auto& named = gradients_.window().models;
  named.clear();
  for (const ModelState* model : models) named.push_back(model->module().get());
  if (gradients_.sync_gradients() || gradients_.sync_each_batch()) return NoSyncScope();
  return no_sync(models);
}

NoSyncScope TrainingStep::no_sync(Models models) const {
  NoSyncScope::Counts counts;
  for (const ModelState* model : models) model->add_no_sync_counts(counts);
  if (models.size() == 0) {
    for (const auto& model : training_.models) model->add_no_sync_counts(counts);
  }
  return NoSyncScope(std::move(counts));
}

UnevenInputsScope TrainingStep::join_uneven_inputs(const JoinOptions& options, bool even_batches,
                                                   Models models) {
  check_each_rank_has_a_share("join_uneven_inputs");
  UnevenInputsScope::Restorer restorer;
  const bool is_xla = state_.distributed_type() == DistributedType::kXla;
  if (is_xla && state_.use_distributed()) {
    TORCH_WARN("join_uneven_inputs has no effect on TPUs, whose optimizers step together");
  }
  if (!state_.use_distributed() || is_xla) {
    return UnevenInputsScope(std::move(restorer), JoinScope({}, false));
  }
  for (const ModelState* model : named_or_all(models)) {
    if (!model->is_divided()) continue;
    const ModelPlacements& placements = model->placements();
    for (const TensorPlacement& each : placements.layout->placements()) {
      const AxisSet axes = placements.layout->mesh().several(each.cut_axes());
      TORCH_CHECK_VALUE(axes.empty(), "join_uneven_inputs: what ranks train of parameter \"",
                        each.name, "\" is divided along ", axes.to_string(), ", and rank ",
                        placements.rank,
                        " has a part of it; such ranks need each other in every pass, so all of "
                        "them need batches");
    }
  }
  if (options.even_batches) {
    override_even_batches(training_.loaders, *options.even_batches, restorer.loaders);
  }
  const bool uneven = !options.even_batches.value_or(even_batches);
  if (uneven) {
    gradients_.set_joining(true);
    restorer.joining = &gradients_;
    // Ranks that have ended do not step; the others have equal gradients.
    if (GradScaler* scaler = this->scaler()) {
      restorer.scaler = training_.precision.scaler();
      restorer.scaling_group = scaler->group();
      scaler->set_group(nullptr);
    }
  }
  std::vector<Joinable*> techniques;
  std::vector<const ModelState*> joined;
  for (const ModelState* model : named_or_all(models)) {
    const size_t before = techniques.size();
    model->add_joinables(techniques);
    if (techniques.size() > before) joined.push_back(model);
  }
  JoinScope join(std::move(techniques), uneven,
                 [this, joined](int source) { broadcast_training_state(source, joined); });
  return UnevenInputsScope(std::move(restorer), std::move(join));
}

void TrainingStep::unscale_gradients() {
  if (training_.precision.scaler() && gradients_.sync_gradients()) engine().finalise_gradients();
}

void TrainingStep::unscale_gradients(const AcceleratedOptimizer& optimizer) {
  if (!training_.precision.scaler() || !gradients_.sync_gradients()) return;
  TORCH_CHECK_VALUE(optimizer, "unscale_gradients: the prepared optimizer was freed");
  internal::Access::to(optimizer)->average_and_unscale_gradients(gradients_);
}

at::Tensor TrainingStep::clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm,
                                         double norm_type, bool error_if_nonfinite) {
  if (!gradients_.sync_gradients()) return at::zeros({}, at::TensorOptions(state_.device()));
  const ClipGradNormOptions options{.norm_type = norm_type,
                                    .error_if_nonfinite = error_if_nonfinite};
  return engine().clip_grad_norm(parameters, max_norm, options);
}

void TrainingStep::clip_grad_value_(const std::vector<at::Tensor>& parameters, double clip_value) {
  if (gradients_.sync_gradients()) engine().clip_grad_value(parameters, clip_value);
}

bool TrainingStep::optimizer_step_was_skipped() const {
  bool skipped = false;
  for_each_alive(training_.optimizers,
                 [&](const auto& optimizer) { skipped = skipped || optimizer->step_was_skipped; });
  return skipped;
}

GradScaler* TrainingStep::scaler() const {
  return training_.precision.scaler() ? &training_.precision.scaler()->scaler() : nullptr;
}

ProcessGroupPtr TrainingStep::metrics_group(const BatchRound* round) const {
  const DataShare share = state_.roles().loader;
  if (round == nullptr || round->shares == 0 || round->shares == share.count) return share.group;
  // The other ranks have left the loop, so only the group's members take part in making it.
  ProcessGroupPtr& group = training_.first_shares[round->shares];
  if (!group && round->shares > 1) {
    const DeviceMesh* device_mesh = state_.device_mesh();
    const Mesh mesh =
        device_mesh != nullptr ? device_mesh->mesh() : Mesh(MeshSizes{.dp_replicate = share.count});
    GroupOptions options = state_.partial_state().group_options();
    options.ranks = mesh.group(state_.process_index(), MeshAxis::kDp);
    options.ranks.resize(static_cast<size_t>(round->shares));
    group = state_.runtime().new_group(options);
  }
  return group;
}

void TrainingStep::broadcast_training_state(int source,
                                            const std::vector<const ModelState*>& models) {
  const ProcessGroupPtr group = training_group();
  if (GradScaler* scaler = this->scaler()) {
    const ProcessGroupPtr stepping = scaler->group();
    scaler->set_group(group);
    scaler->broadcast_state(source);
    scaler->set_group(stepping);
  }
  // Schedulers come first: the optimizers' states overwrite the learning rates that they compute.
  for_each_alive(training_.schedulers,
                 [&](const auto& scheduler) { scheduler->synchronise(group, source); });
  for_each_alive(training_.optimizers, [&](const auto& prepared) {
    if (std::none_of(models.begin(), models.end(), [&](const ModelState* model) {
          return trains(*prepared->optimizer, *model);
        })) {
      return;
    }
    if (prepared->moments) prepared->moments->unpack();
    broadcast_optimizer_state(group, *prepared->optimizer, source, state_.device());
    if (prepared->moments) prepared->moments->pack();
  });
}

}  // namespace internal
}  // namespace accelerate
