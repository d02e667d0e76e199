#include "accelerate/step/training_step.h"

#include <c10/util/Exception.h>

#include "accelerate/parallel/ddp.h"
#include "accelerate/state/gradient_state.h"
#include "accelerate/state/partial_state.h"
#include "accelerate/step/training_state.h"

namespace accelerate {
namespace {

using internal::LoaderCore;

void override_even_batches(const std::vector<std::weak_ptr<LoaderCore>>& prepared,
                           bool even_batches,
                           std::vector<std::pair<std::shared_ptr<LoaderCore>, bool>>& changed) {
  bool some_keep_theirs = false;
  internal::for_each_alive(prepared, [&](const auto& loader) {
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

UnevenInputsScope::Restorer::~Restorer() {
  for (auto& [loader, even_batches] : loaders) loader->set_even_batches(even_batches);
  if (joining != nullptr) joining->set_joining(false);
  if (scaler != nullptr) scaler->scaler().set_group(std::move(scaling_group));
}

UnevenInputsScope internal::TrainingStep::join_uneven_inputs(const JoinOptions& options,
                                                             bool even_batches, Models models) {
  UnevenInputsScope::Restorer restorer;
  const bool is_xla = state_.distributed_type() == DistributedType::kXla;
  if (is_xla && state_.use_distributed()) {
    TORCH_WARN("join_uneven_inputs has no effect on TPUs, whose optimizers step together");
  }
  if (!state_.use_distributed() || is_xla) {
    return UnevenInputsScope(std::move(restorer), JoinScope({}, false));
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
      restorer.scaler = training_.scaler;
      restorer.scaling_group = scaler->group();
      scaler->set_group(nullptr);
    }
  }
  std::vector<DistributedDataParallel*> replicas;
  std::vector<const ModelState*> replicated;
  for (const ModelState* model : named_or_all(models)) {
    auto* replica = model->find_stage<DistributedDataParallel>();
    if (replica == nullptr) continue;
    replicas.push_back(replica);
    replicated.push_back(model);
  }
  JoinScope join(std::move(replicas), uneven,
                 [this, replicated](int source) { adopt_training_state(source, replicated); });
  return UnevenInputsScope(std::move(restorer), std::move(join));
}

}  // namespace accelerate
