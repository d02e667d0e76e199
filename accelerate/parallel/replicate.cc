#include "accelerate/parallel/replicate.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include <c10/util/Exception.h>
#include <torch/nn/module.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "accelerate/comm/objects.h"
#include "accelerate/modules/value_at_use.h"
#include "accelerate/runtime/runtime.h"

namespace accelerate {
namespace {

constexpr char kNothing[] = "nothing";

std::string description(const char* kind, const std::string& name, const at::Tensor& tensor) {
  std::string text = c10::str(kind, " \"", name, "\": ", tensor.scalar_type(), " ", tensor.sizes());
  if (tensor.layout() == at::kStrided && !tensor.is_contiguous()) {
    text += c10::str(", strides ", tensor.strides());
  }
  return text;
}

std::vector<std::string> descriptions(const torch::nn::Module& module) {
  std::vector<std::string> all;
  for (const auto& item : module.named_parameters()) {
    const char* kind = item.value().requires_grad() ? "parameter" : "frozen parameter";
    all.push_back(description(kind, item.key(), item.value()));
    if (find_maker(item.value()) == nullptr) continue;
    for (const KeptTensor& each : kept_tensors("weight", item.value())) {
      all.back() += c10::str(", kept as ", each.tensor.scalar_type(), " ", each.tensor.sizes());
    }
  }
  for (const auto& item : module.named_buffers()) {
    all.push_back(description("buffer", item.key(), item.value()));
  }
  return all;
}

// The index of the first difference from rank 0, or kSame, and what this rank has there.
using Deviation = std::pair<int64_t, std::string>;
constexpr int64_t kSame = -1;

Deviation deviation(const std::vector<std::string>& mine, const std::vector<std::string>& first) {
  const auto [a, b] = std::mismatch(mine.begin(), mine.end(), first.begin(), first.end());
  if (a == mine.end() && b == first.end()) return {kSame, ""};
  return {a - mine.begin(), a == mine.end() ? kNothing : *a};
}

}  // namespace

void check_same_model(const ProcessGroupPtr& group, const torch::nn::Module& module) {
  const std::vector<std::string> mine = descriptions(module);
  std::vector<std::string> first = mine;
  broadcast_object_list(group, first);
  const std::vector<Deviation> all = gather_object(group, std::vector{deviation(mine, first)});

  int64_t where = kSame;
  for (const auto& [index, text] : all) {
    if (index != kSame && (where == kSame || index < where)) where = index;
  }
  if (where == kSame) return;
  // The group's ranks have other numbers in the job.
  const Runtime* runtime = Runtime::find_current();
  const int own = runtime != nullptr ? runtime->topology().rank : group->getRank();
  const std::vector<int> ranks = gather_object(group, std::vector{own});
  std::string others;
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i].first != where) continue;
    others += c10::str(others.empty() ? "" : "; ", all[i].second, " on rank ", ranks[i]);
  }
  const bool none = where == static_cast<int64_t>(first.size());
  TORCH_CHECK_VALUE(false, "ranks have different models. The first difference is ",
                    none ? kNothing : first[where], " on rank ", ranks[0], ", but ", others,
                    " in group \"", group->getGroupName(), "\"");
}

void replicate(const ProcessGroupPtr& group, const torch::nn::Module& module) {
  check_same_model(group, module);
  std::vector<at::Tensor> state = kept_parameters(module);
  for (const at::Tensor& buffer : module.buffers()) state.push_back(buffer);
  broadcast_tensors(group, state, 0);
}

}  // namespace accelerate
