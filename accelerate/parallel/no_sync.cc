#include "accelerate/parallel/no_sync.h"

#include "accelerate/parallel/ddp.h"

namespace accelerate {

NoSyncScope::NoSyncScope(const c10::SmallVector<DistributedDataParallel*, 4>& models) {
  for (DistributedDataParallel* model : models) {
    model->silence();
    silences_.push_back(model->silences());
  }
}

NoSyncScope::~NoSyncScope() {
  for (const std::shared_ptr<int>& silences : silences_) --*silences;
}

}  // namespace accelerate
