#include "accelerate/state/partial_state.h"

#include <memory>
#include <string>

#include <c10/util/Exception.h>

#include "accelerate/config/fields.h"

namespace accelerate {
namespace {

DistributedType distributed_type_of(const std::string& family, int world_size) {
  if (family == "tpu") return DistributedType::kXla;
  if (world_size == 1) return DistributedType::kNo;
  if (family == "gpu") return DistributedType::kMultiGpu;
  if (family == "npu") return DistributedType::kMultiNpu;
  if (family == "mlu") return DistributedType::kMultiMlu;
  if (family == "sdaa") return DistributedType::kMultiSdaa;
  if (family == "musa") return DistributedType::kMultiMusa;
  if (family == "xpu") return DistributedType::kMultiXpu;
  if (family == "hpu") return DistributedType::kMultiHpu;
  if (family == "neuron") return DistributedType::kMultiNeuron;
  TORCH_CHECK_VALUE(family == "cpu", "no DistributedType for devices of family \"", family, "\"");
  return DistributedType::kMultiCpu;
}

}  // namespace

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
      distributed_type_(distributed_type_of(options.cpu ? "cpu" : runtime.device_family(),
                                            runtime.topology().world_size)),
      init_(options.init.value_or(InitProcessGroupKwargs{})) {
  check_init_method(init_, runtime.environment());
  if (topology().world_size == 1) return;
  group_ = runtime.new_group(
      {.name = "world", .timeout = init_.effective_timeout(), .backend = init_.backend});
}

void PartialState::check_agrees(const PartialStateOptions& options) const {
  TORCH_CHECK_VALUE(!options.cpu || device_.is_cpu(),
                    "cpu=true, but this Runtime's state was made with the device ", device_,
                    "; make every Accelerator of a rank with the same options");
  TORCH_CHECK_VALUE(!options.init || *options.init == init_, "InitProcessGroupKwargs",
                    to_dict(*options.init).dump(),
                    " come too late: the process group was made with ", to_dict(init_).dump(),
                    "; give them to the first Accelerator");
}

void PartialState::wait_for_everyone() const {
  if (group_) group_->barrier()->wait();
}

}  // namespace accelerate
