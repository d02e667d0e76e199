#include "accelerate/optim/state_on_disk.h"

#include <exception>
#include <string>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include <c10/util/Type.h>
#include <torch/optim/optimizer.h>

#include "absl/strings/str_cat.h"
#include "accelerate/comm/agree.h"
#include "accelerate/optim/optimizer_state_dict.h"
#include "accelerate/swap/swapped_tensors.h"

namespace accelerate {
namespace {

// What LibTorch calls it, for errors.
std::string number_of(const torch::optim::Optimizer& optimizer, const at::Tensor& parameter) {
  size_t number = 0;
  for (const torch::optim::OptimizerParamGroup& group : optimizer.param_groups()) {
    for (const at::Tensor& each : group.params()) {
      if (each.is_same(parameter)) return absl::StrCat("parameter ", number);
      ++number;
    }
  }
  return "no parameter of a group";
}

}  // namespace

StateOnDisk::StateOnDisk(torch::optim::Optimizer& optimizer, std::shared_ptr<SwappedTensors> disk,
                         Options options)
    : optimizer_(optimizer), disk_(std::move(disk)), options_(std::move(options)) {
  TORCH_CHECK_VALUE(can_step_in_parts(optimizer) && knows_state_of(optimizer),
                    "the state of an optimizer of type ", c10::demangle(typeid(optimizer).name()),
                    " cannot be on a disk: that works for SGD, Adam, AdamW, Adagrad, RMSprop, Lion "
                    "and Lamb, and not for classes derived from them");
}

std::vector<at::Tensor> StateOnDisk::tensors_of(const at::Tensor& parameter) const {
  SwappedTensors::Part tensors = {parameter};
  visit_state_tensors(optimizer_, parameter, [&](const char* /*field*/, const at::Tensor& tensor) {
    tensors.push_back(tensor);
  });
  return tensors;
}

int64_t StateOnDisk::max_bytes() { return disk_->options().buffer_bytes; }

void StateOnDisk::before(size_t part) { disk_->swap_in(part); }

void StateOnDisk::expect_step() {
  try {
    disk_->expect_round();
  } catch (const std::exception&) {
    // The step asks again, and tells all ranks.
  }
}

int64_t StateOnDisk::bytes_of(const at::Tensor& parameter) {
  // A step makes the state of a parameter without one: as much as Adam's.
  constexpr int64_t kWithState = 3;
  const SwappedTensors::Part tensors = tensors_of(parameter);
  const int64_t bytes = disk_->bytes_of(tensors);
  return tensors.size() > 1 ? bytes : kWithState * bytes;
}

void StateOnDisk::begin(const std::vector<std::vector<at::Tensor>>& parts) {
  parts_ = parts;
  std::vector<SwappedTensors::Part> needed;
  for (const std::vector<at::Tensor>& part : parts_) {
    SwappedTensors::Part& tensors = needed.emplace_back();
    for (const at::Tensor& parameter : part) {
      for (at::Tensor& each : tensors_of(parameter)) tensors.push_back(std::move(each));
    }
  }
  disk_->begin_round(needed);
}

void StateOnDisk::after(size_t part, bool failed) {
  try {
    for (const at::Tensor& parameter : parts_[part]) {
      if (failed) continue;
      store(parameter);
      if (options_.updated) options_.updated(parameter);
    }
  } catch (...) {
    after(part, /*failed=*/true);
    throw;
  }
  try {
    disk_->swap_out(part);
  } catch (const c10::Error&) {
    // What was lost says so when it is used.
    if (!failed) throw;
  }
}

void StateOnDisk::step(int64_t elements) {
  try {
    internal::agree(options_.group, "the step of an optimizer", [&] {
      try {
        step_in_parts(optimizer_, elements, this);
      } catch (const c10::Error& error) {
        TORCH_CHECK(false, error.what_without_backtrace(),
                    ". The step was made for some parameters only: load a checkpoint before "
                    "training goes on");
      }
      return std::string();
    });
  } catch (const c10::Error&) {
    disk_->clear_failures();
    throw;
  }
}

void StateOnDisk::store() {
  for (const torch::optim::OptimizerParamGroup& group : optimizer_.param_groups()) {
    for (const at::Tensor& parameter : group.params()) store(parameter);
  }
}

void StateOnDisk::store(const at::Tensor& parameter) {
  const at::NoGradGuard no_grad;
  visit_state_tensors(optimizer_, parameter, [&](const char* field, const at::Tensor& tensor) {
    if (disk_->has(tensor) || !tensor.is_cpu() || tensor.numel() == 0) return;
    disk_->move_in_place(absl::StrCat(field, " of ", number_of(optimizer_, parameter)), tensor);
  });
}

}  // namespace accelerate
