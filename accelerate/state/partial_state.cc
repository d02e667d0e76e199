#include "accelerate/state/partial_state.h"

#include <memory>

#include <c10/util/Exception.h>

#include "absl/strings/str_cat.h"

namespace accelerate {

const char* to_string(DistributedType type) {
  switch (type) {
    case DistributedType::kNo: return "NO";
    case DistributedType::kMultiCpu: return "MULTI_CPU";
  }
  return "";
}

PartialState& PartialState::get(Runtime& runtime, const PartialStateOptions& options) {
  if (PartialState* existing = runtime.find_shared<PartialState>()) {
    existing->check_agrees(options);
    return *existing;
  }
  return runtime.shared<PartialState>(
      [&] { return std::unique_ptr<PartialState>(new PartialState(runtime, options)); });
}

PartialState::PartialState(Runtime& runtime, const PartialStateOptions& options)
    : runtime_(runtime),
      device_(options.cpu ? c10::Device(c10::kCPU) : runtime.device()),
      init_(options.init.value_or(InitProcessGroupKwargs{})) {
  if (topology().world_size == 1) return;
  group_ = runtime.new_group({.name = "world", .timeout = init_.timeout, .backend = init_.backend});
}

void PartialState::check_agrees(const PartialStateOptions& options) const {
  TORCH_CHECK_VALUE(!options.cpu || device_.is_cpu(),
                    "cpu=true, but this Runtime's state was made with the device ", device_,
                    "; make every Accelerator of a rank with the same options");
  TORCH_CHECK_VALUE(!options.init || *options.init == init_, "InitProcessGroupKwargs{backend \"",
                    options.init->backend, "\", timeout ",
                    absl::FormatDuration(options.init->timeout),
                    "} come too late: the process group was made with backend \"", init_.backend,
                    "\" and timeout ", absl::FormatDuration(init_.timeout),
                    "; give them to the first Accelerator");
}

DistributedType PartialState::distributed_type() const {
  return use_distributed() ? DistributedType::kMultiCpu : DistributedType::kNo;
}

void PartialState::wait_for_everyone() const {
  if (group_) group_->barrier()->wait();
}

}  // namespace accelerate
