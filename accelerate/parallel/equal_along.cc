#include "accelerate/parallel/equal_along.h"

#include <algorithm>
#include <cstdint>

#include <ATen/core/Formatting.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/Exception.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "accelerate/base/checksum.h"
#include "accelerate/base/enum_text.h"
#include "accelerate/comm/operations.h"
#include "accelerate/tensors/tensor_memory.h"

namespace accelerate {
namespace {

absl::string_view bytes_of(const at::Tensor& host) {
  return {static_cast<const char*>(host.const_data_ptr()), host.nbytes()};
}

int64_t checksum_of(const at::Tensor& tensor) {
  return internal::crc32c(bytes_of(internal::without_flags(tensor.detach().cpu()).contiguous()));
}

// Throws for what the first rank of the group and another one have. Bytes tell, as in checksums:
// NaN is equal to itself then, and zeros of different signs are not.
[[noreturn]] void refuse(const RanksAlong& along, const std::string& what, const std::string& name,
                         const at::Tensor& tensor, int64_t other) {
  const at::Tensor own = internal::without_flags(tensor.detach()).reshape({1, -1});
  const at::Tensor values = gather_tensor(along.group, own).cpu().contiguous();
  const at::Tensor one = values[0], another = values[other];
  const absl::string_view bytes = bytes_of(one);
  const auto byte = std::ranges::mismatch(bytes, bytes_of(another)).in1 - bytes.begin();
  const int64_t element = byte / static_cast<int64_t>(values.itemsize());
  TORCH_CHECK(false, "the ", what, " of \"", name, "\" differ along ", to_string(along.axis),
              ", along which they are equal by its placement: rank ", along.ranks[0], " and rank ",
              along.ranks[static_cast<size_t>(other)], ", first in element ", element, ": ",
              one[element].item(), " and ", another[element].item());
}

}  // namespace

void check_equal_along(const RanksAlong& along, const std::string& what,
                       const std::vector<std::pair<std::string, at::Tensor>>& tensors,
                       Runtime& runtime, bool gathers) {
  if (tensors.empty()) return;
  const at::NoGradGuard no_grad;
  const std::string name = absl::StrCat("the ", what, " along ", to_string(along.axis),
                                        " of ranks ", absl::StrJoin(along.ranks, ","));
  const bool compared = runtime.check_replicas(name, along.group, /*without=*/{}, tensors);
  if (gathers && !compared) compare_by_gathering(along, what, tensors);
}

void check_equal_gradients(const EqualAlong& equal, Runtime& runtime, bool gathers) {
  NamedTensors gradients;
  for (const auto& [name, trained] : equal.trained) {
    if (!trained.requires_grad()) continue;
    const at::Tensor& gradient = trained.grad();
    // A rank without a gradient must not have another number of tensors than the others.
    gradients.emplace_back(name, gradient.defined() ? gradient : at::zeros_like(trained.detach()));
  }
  check_equal_along(equal.along, "gradients", gradients, runtime, gathers);
}

void compare_by_gathering(const RanksAlong& along, const std::string& what,
                          const std::vector<std::pair<std::string, at::Tensor>>& tensors) {
  if (tensors.empty()) return;
  const at::NoGradGuard no_grad;
  std::vector<int64_t> own;
  for (const auto& [name, tensor] : tensors) own.push_back(checksum_of(tensor));
  const at::Tensor all =
      gather_tensor(along.group, at::tensor(own).to(tensors[0].second.device())).cpu();
  const auto count = static_cast<int64_t>(tensors.size());
  const at::Tensor table = all.reshape({-1, count});
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t rank = 1; rank < table.size(0); ++rank) {
      if (table[rank][i].item<int64_t>() == table[0][i].item<int64_t>()) continue;
      const auto& [name, tensor] = tensors[static_cast<size_t>(i)];
      refuse(along, what, name, tensor, rank);
    }
  }
}

}  // namespace accelerate
