#include "accelerate/comm/copy_tensor.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include "accelerate/comm/objects.h"

namespace accelerate {
namespace {

using Description = std::optional<std::pair<at::ScalarType, std::vector<int64_t>>>;

Description describe(const at::Tensor& tensor) {
  if (!tensor.defined()) return std::nullopt;
  return Description({tensor.scalar_type(), tensor.sizes().vec()});
}

}  // namespace

TensorSource gather_tensor_shape(const ProcessGroupPtr& group, const at::Tensor& tensor) {
  std::optional<TensorSource> source;
  std::string owners;
  int count = 0;
  const std::vector<std::string> by_rank = all_gather_bytes(group, to_bytes(describe(tensor)));
  for (size_t rank = 0; rank < by_rank.size(); ++rank) {
    Description described = from_bytes<Description>(by_rank[rank]);
    if (!described) continue;
    ++count;
    owners += (owners.empty() ? "" : ", ") + std::to_string(rank);
    source = {.rank = static_cast<int>(rank),
              .information = {.shape = std::move(described->second), .dtype = described->first}};
  }
  TORCH_CHECK_VALUE(count == 1,
                    "copy_tensor_to_devices: exactly one rank must have the tensor, but ",
                    owners.empty() ? "none has it" : "these have one: " + owners);
  return *source;
}

at::Tensor copy_tensor_to_devices(const ProcessGroupPtr& group, const at::Tensor& tensor,
                                  c10::Device device) {
  const TensorSource source = gather_tensor_shape(group, tensor);
  const TensorInformation& information = source.information;
  const at::Tensor copy =
      tensor.defined() ? tensor
                       : at::empty(information.shape, at::device(device).dtype(information.dtype));
  broadcast_tensor(group, copy, source.rank);
  return copy;
}

}  // namespace accelerate
