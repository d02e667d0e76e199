#include "accelerate/state/partial_state.h"

#include <memory>
#include <string>

#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include "accelerate/platform/env.h"
#include "accelerate/runtime/device_choice.h"
#include "accelerate/runtime/env_parsing.h"
#include "accelerate/values/fields.h"

namespace accelerate {
namespace {

constexpr char kForkLaunched[] = "FORK_LAUNCHED";

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
  auto& state = runtime.shared<PartialState>(
      [&] { return std::unique_ptr<PartialState>(new PartialState(runtime)); });
  if (state.record_) {
    state.check_agrees(options);
  } else {
    state.record_ = make_record(runtime, options);
  }
  state.record_->fork_launched = parse_flag_from_env(kForkLaunched, false, runtime.environment());
  return state;
}

PartialState* PartialState::find(const Runtime& runtime) {
  auto* state = runtime.find_shared<PartialState>();
  return state != nullptr && state->initialized() ? state : nullptr;
}

void PartialState::reset(Runtime& runtime) {
  if (auto* state = runtime.find_shared<PartialState>()) state->record_.reset();
}

PartialState::Record PartialState::make_record(Runtime& runtime,
                                               const PartialStateOptions& options) {
  const int world_size = runtime.topology().world_size;
  if (options.init) check_init_method(*options.init, runtime.environment());
  Record record{.device = options.cpu ? c10::Device(c10::kCPU) : runtime.device(),
                .distributed_type =
                    distributed_type_of(options.cpu ? "cpu" : runtime.device_family(), world_size),
                .init = options.init.value_or(InitProcessGroupKwargs{}),
                .debug = parse_flag_from_env(env::kDebugMode, false, runtime.environment())};
  if (world_size == 1) return record;
  std::string backend = record.init.backend;
  // A real Runtime's own choice goes by its device, which is not used here.
  if (backend.empty() && options.cpu && runtime.owns_process()) backend = default_backend("cpu");
  record.group = runtime.new_group(
      {.name = "world", .timeout = record.init.effective_timeout(), .backend = std::move(backend)});
  record.backend = record.group->getDefaultBackend()->getBackendName();
  return record;
}

void PartialState::check_agrees(const PartialStateOptions& options) const {
  TORCH_CHECK_VALUE(!options.cpu || device().is_cpu(),
                    "cpu=true, but this Runtime's state was made with the device ", device(),
                    "; make every Accelerator of a rank with the same options");
  const InitProcessGroupKwargs& init = record().init;
  TORCH_CHECK_VALUE(!options.init || *options.init == init, "InitProcessGroupKwargs",
                    to_dict(*options.init).dump(),
                    " come too late: the process group was made with ", to_dict(init).dump(),
                    "; give them to the first Accelerator");
}

void PartialState::set_device() const {
  const c10::Device own = device();
  if (!own.is_cpu()) c10::impl::VirtualGuardImpl(own.type()).setDevice(own);
}

void PartialState::destroy_process_group(ProcessGroupPtr group) {
  if (!record_) return;
  Record& record = *record_;
  if (group && group != record.group) return;  // The caller's reference is the last of ours.
  if (!group && record.fork_launched) return;
  record.group_destroyed = record.group_destroyed || use_distributed();
  record.group.reset();
}

void PartialState::wait_for_everyone() const {
  if (group()) group()->barrier()->wait();
}

}  // namespace accelerate
