#include "accelerate/parallel/residency/shard_disks.h"

#include <optional>
#include <utility>

#include <c10/util/Exception.h>

#include "accelerate/comm/agree.h"
#include "accelerate/runtime/runtime.h"

namespace accelerate::internal {

ShardDisks::ShardDisks(const ShardingOptions& options, ProcessGroupPtr everyone)
    : everyone_(std::move(everyone)) {
  agree(everyone_, "offload to a disk", [&] {
    const auto open = [](const std::optional<SwapOptions>& where) {
      return where ? std::make_shared<SwappedTensors>(Runtime::current(), *where) : nullptr;
    };
    shards_ = open(options.shards_on_disk);
    rows_ = open(options.rows_on_disk);
    return std::string();
  });
}

at::Tensor ShardDisks::moved(SwappedTensors& disk, const std::string& name,
                             const at::Tensor& values) {
  if (failure_ != nullptr) return values;
  try {
    return disk.move(name, values);
  } catch (const c10::Error&) {
    record_failure(std::current_exception());
  }
  return values;
}

void ShardDisks::record_failure(std::exception_ptr failure) {
  if (failure_ == nullptr) failure_ = std::move(failure);
}

void ShardDisks::check() {
  try {
    agree(everyone_, "offload of parameters to a disk", [this] {
      if (const auto first = std::exchange(failure_, nullptr)) std::rethrow_exception(first);
      return std::string();
    });
  } catch (const c10::Error&) {
    ++generation_;
    for (const auto& disk : {shards_, rows_}) {
      if (disk != nullptr) disk->clear_failures();
    }
    throw;
  }
}

}  // namespace accelerate::internal
