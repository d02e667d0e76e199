// Any text is either refused, or says where each element of each tensor is, and can be written
// again.
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/log/absl_check.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "accelerate/files/formats/sharded_metadata.h"

namespace accelerate {
namespace {

// In how many boxes an element is.
int times_covered(const std::vector<TensorShard>& shards, const std::vector<int64_t>& element) {
  int times = 0;
  for (const TensorShard& shard : shards) {
    bool is_inside = true;
    for (size_t dim = 0; dim < element.size(); ++dim) {
      is_inside = is_inside && element[dim] >= shard.box.offsets[dim] &&
                  element[dim] < shard.box.offsets[dim] + shard.box.lengths[dim];
    }
    times += is_inside ? 1 : 0;
  }
  return times;
}

// Checks that each element of a small tensor is covered once; large tensors are skipped.
void check(const ShardedMetadata& metadata, const std::string& name) {
  const ShardedTensor& tensor = metadata.tensors.at(name);
  int64_t count = 1;
  for (const int64_t size : tensor.shape) {
    if (size == 0 || size > 1000 || count > 1000) return;
    count *= size;
  }
  const std::vector<TensorShard> shards = shards_of(metadata, name);
  std::vector<int64_t> element(tensor.shape.size(), 0);
  for (int64_t i = 0; i < count; ++i) {
    int64_t rest = i;
    for (size_t dim = element.size(); dim-- > 0;) {
      element[dim] = rest % tensor.shape[dim];
      rest /= tensor.shape[dim];
    }
    ABSL_CHECK_EQ(times_covered(shards, element), 1);
  }
}

}  // namespace
}  // namespace accelerate

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::StatusOr<accelerate::ShardedMetadata> metadata = accelerate::parse_sharded_metadata(
      absl::string_view(reinterpret_cast<const char*>(data), size));
  if (!metadata.ok()) return 0;
  for (const auto& [name, tensor] : metadata->tensors) accelerate::check(*metadata, name);
  const std::string text = accelerate::sharded_metadata_text(*metadata);
  const absl::StatusOr<accelerate::ShardedMetadata> again =
      accelerate::parse_sharded_metadata(text);
  ABSL_CHECK_OK(again.status());
  ABSL_CHECK_EQ(accelerate::sharded_metadata_text(*again), text);
  return 0;
}
