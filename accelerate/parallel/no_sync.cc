#include "accelerate/parallel/no_sync.h"

#include <algorithm>

#include "accelerate/parallel/ddp.h"

namespace accelerate {

NoSyncScope::NoSyncScope(c10::SmallVector<DistributedDataParallel*, 4> models)
    : models_(std::move(models)) {
  // A model that an outer scope silenced stays that scope's to wake.
  auto silent = std::remove_if(models_.begin(), models_.end(),
                               [](auto* model) { return !model->require_sync(); });
  models_.erase(silent, models_.end());
  for (DistributedDataParallel* model : models_) model->set_require_sync(false);
}

NoSyncScope::~NoSyncScope() {
  for (DistributedDataParallel* model : models_) model->set_require_sync(true);
}

}  // namespace accelerate
