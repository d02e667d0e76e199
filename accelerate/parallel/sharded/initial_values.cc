#include "accelerate/parallel/sharded/initial_values.h"

#include <algorithm>
#include <string>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include "absl/strings/str_cat.h"
#include "accelerate/base/checksum.h"
#include "accelerate/comm/agree.h"
#include "accelerate/config/fsdp_plugin.h"
#include "accelerate/operators/construction_record.h"
#include "accelerate/operators/deferred_values.h"
#include "accelerate/tensors/tensor_memory.h"

namespace accelerate {
namespace {

bool values_come_from_rank_0(const FullyShardedDataParallelPlugin* plugin,
                             const ProcessGroupPtr& all) {
  return plugin != nullptr && all != nullptr && all->getRank() != 0 &&
         (plugin->cpu_ram_efficient_loading.value_or(false) ||
          plugin->sync_module_states.value_or(false));
}

// A module's own parameters and buffers.
std::vector<at::Tensor> own_tensors(const torch::nn::Module& module) {
  std::vector<at::Tensor> tensors = module.parameters(/*recurse=*/false);
  for (const at::Tensor& buffer : module.buffers(/*recurse=*/false)) tensors.push_back(buffer);
  return tensors;
}

}  // namespace

InitialValues::InitialValues(std::shared_ptr<torch::nn::Module> module,
                             const FullyShardedDataParallelPlugin* plugin,
                             const ProcessGroupPtr& all, c10::Device device)
    : module_(std::move(module)),
      init_(plugin != nullptr ? plugin->param_init_fn : nullptr),
      all_(all),
      from_rank_0_(values_come_from_rank_0(plugin, all)),
      device_(device) {
  for (const auto& part : module_->modules()) {
    for (const at::Tensor& tensor : own_tensors(*part)) {
      // A tied tensor belongs to the first module that has it.
      if (tensor.defined()) owners_.try_emplace(tensor.unsafeGetTensorImpl(), part.get());
    }
  }
}

bool InitialValues::can_be_made(const at::Tensor& tensor) const {
  return !tensor.is_meta() || from_rank_0_ || init_ != nullptr || is_recorded(tensor);
}

// What this rank's tensors wait for: where that is, and in a line of its own what ranks compare.
// Nothing if none waits.
std::string InitialValues::deferred_text() const {
  size_t count = 0;
  std::string place, names;
  const auto add = [&](const auto& named) {
    for (const auto& item : named) {
      const DeferredValues* const values = deferred_values(item.value());
      if (values == nullptr) continue;
      if (count++ == 0) place = values->place();
      absl::StrAppend(&names, item.key(), " ", item.value().scalar_type(), " ",
                      values->description(), "\n");
    }
  };
  add(module_->named_parameters());
  add(module_->named_buffers());
  if (count == 0) return "";
  return absl::StrCat(count, " tensors of ", place, "\n", sha256(names));
}

void InitialValues::check() {
  const std::vector<internal::RankOutcome> ranks = internal::agree(all_, "prepare", [&]() {
    const auto check_all = [&](const auto& named, const char* kind) {
      for (const auto& item : named) {
        TORCH_CHECK_VALUE(
            !item.value().defined() || can_be_made(item.value()), kind, " \"", item.key(),
            "\" has no values to be divided among ranks: it is on \"meta\" and was not made in "
            "init_empty_weights; load a checkpoint into it, make it there, or give a "
            "param_init_fn");
      }
    };
    check_all(module_->named_parameters(), "parameter");
    check_all(module_->named_buffers(), "buffer");
    return deferred_text();
  });
  // Where it is may differ, as on disks of their own.
  const auto what = [&](size_t rank) {
    const std::string& text = ranks[rank].text;
    return text.substr(std::min(text.find('\n'), text.size()));
  };
  bool is_on_all = true;
  for (size_t rank = 1; rank < ranks.size(); ++rank) {
    if (what(rank) == what(0)) continue;
    is_on_all = false;
    const auto text_of = [&](size_t each) {
      const std::string& text = ranks[each].text;
      return absl::StrCat("rank ", each, " waits for ",
                          text.empty() ? "none" : text.substr(0, text.find('\n')));
    };
    TORCH_CHECK_VALUE(ranks[rank].text.empty(),
                      "prepare: ranks wait for different values of the "
                      "model: ",
                      text_of(0), ", and ", text_of(rank),
                      "; load the same checkpoint with `lazy` on all ranks, or on rank 0 alone");
  }
  if (ranks.front().text.empty()) return;
  deferred_ = is_on_all ? DeferredReads::kOwnRows : DeferredReads::kFromRank0;
}

void InitialValues::materialise(const std::vector<at::Tensor>& tensors) {
  const at::NoGradGuard no_grad;
  const auto give_memory = [&](const at::Tensor& tensor) {
    internal::rebind(tensor, at::empty(tensor.sizes(), tensor.options().device(device_)));
  };
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.is_meta()) continue;
    const bool is_sent = deferred_ == DeferredReads::kFromRank0 && all_->getRank() != 0 &&
                         deferred_values(tensor) != nullptr;
    if (from_rank_0_ || is_sent) {
      give_memory(tensor);
    } else if (!is_recorded(tensor)) {
      torch::nn::Module& owner = *owners_.at(tensor.unsafeGetTensorImpl());
      if (!initialised_.insert(&owner).second) continue;
      for (const at::Tensor& own : own_tensors(owner)) {
        if (own.is_meta() && !is_recorded(own)) give_memory(own);
      }
      init_(owner);
    }
  }
}

void InitialValues::materialise_buffers() {
  std::vector<at::Tensor> buffers = module_->buffers();
  std::erase_if(buffers,
                [](const at::Tensor& buffer) { return !buffer.defined() || !buffer.is_meta(); });
  materialise(buffers);
  std::erase_if(buffers, [](const at::Tensor& buffer) { return !buffer.is_meta(); });
  const auto make = [&]() -> std::string {
    if (!buffers.empty()) replay_construction(buffers, device_);
    return "";
  };
  if (deferred_ == DeferredReads::kNone) {
    make();
  } else {
    internal::agree(all_, "prepare", make);
  }
}

}  // namespace accelerate
