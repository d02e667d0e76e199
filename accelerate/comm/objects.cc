#include "accelerate/comm/objects.h"

#include <algorithm>

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <c10/util/Exception.h>

namespace accelerate {
namespace {

at::Tensor as_tensor(const std::string& bytes, int64_t size) {
  at::Tensor tensor = at::empty({size}, at::kByte);
  std::copy(bytes.begin(), bytes.end(), static_cast<char*>(tensor.mutable_data_ptr()));
  return tensor;
}

std::string as_string(const at::Tensor& tensor, int64_t begin, int64_t size) {
  return std::string(static_cast<const char*>(tensor.const_data_ptr()) + begin,
                     static_cast<size_t>(size));
}

void check_size(int64_t size) {
  TORCH_CHECK_VALUE(size <= kMaxObjectBytes, "an object of ", size,
                    " bytes is too large to travel; the limit is ", kMaxObjectBytes,
                    ". Send tensors as tensors");
}

}  // namespace

std::vector<std::string> all_gather_bytes(const ProcessGroupPtr& group, const std::string& bytes) {
  if (!group) return {bytes};
  // Ranks agree on the sizes before anybody complains, so that all do.
  const at::Tensor sizes =
      gather_tensor(group, at::full({1}, static_cast<int64_t>(bytes.size()), at::kLong));
  const int64_t* counts = sizes.const_data_ptr<int64_t>();
  const int64_t most = *std::max_element(counts, counts + sizes.numel());
  check_size(most);
  if (most == 0) return std::vector<std::string>(static_cast<size_t>(sizes.numel()));
  const at::Tensor all = gather_tensor(group, as_tensor(bytes, most));
  std::vector<std::string> by_rank;
  for (int64_t rank = 0; rank < sizes.numel(); ++rank) {
    by_rank.push_back(as_string(all, rank * most, counts[rank]));
  }
  return by_rank;
}

std::string broadcast_bytes(const ProcessGroupPtr& group, std::string bytes, int source) {
  if (!group) return bytes;
  c10d::BroadcastOptions options;
  options.rootRank = source;
  std::vector<at::Tensor> size{at::full({1}, static_cast<int64_t>(bytes.size()), at::kLong)};
  group->broadcast(size, options)->wait();
  const int64_t count = size[0].item<int64_t>();
  check_size(count);
  if (count == 0) return {};
  bytes.resize(static_cast<size_t>(count));
  std::vector<at::Tensor> content{as_tensor(bytes, count)};
  group->broadcast(content, options)->wait();
  return as_string(content[0], 0, count);
}

}  // namespace accelerate
