#include "simulator/device/op_watch.h"

#include <algorithm>

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>

#include "simulator/device/sim_device.h"
#include "simulator/trace/recorder.h"

namespace accelerate::simulator {
namespace {

// The recorder of the first rank, which tells the steps of all: ranks step together. Null on other
// threads.
Recorder* step_recorder() {
  const auto devices = own_devices();
  return devices.empty() || devices[0]->rank() != 0 ? nullptr : devices[0]->recorder();
}

// The host may be ahead of its devices; a step, and each part of it, ends with their work.
int64_t devices_end_ns() {
  int64_t end_ns = own_devices()[0]->host_ns();
  for (const SimDevice* device : own_devices()) end_ns = std::max(end_ns, device->busy_until_ns());
  return end_ns;
}

void begin_phase(StepPhase phase) {
  Recorder* recorder = step_recorder();
  if (recorder == nullptr || recorder->current_phase() == phase) return;
  recorder->phase(phase, devices_end_ns());
}

void watch_forward() {
  bool begins_step = false;
  bool in_backward = false;
  for (SimDevice* device : own_devices()) {
    begins_step |= device->memory().note_forward();
    in_backward |= device->memory().in_backward();
  }
  if (in_backward) return;  // what is computed again
  if (!begins_step) return begin_phase(StepPhase::kForward);
  if (Recorder* recorder = step_recorder()) return recorder->step(devices_end_ns());
  const SimDevice& first = *own_devices()[0];
  if (first.recorder() != nullptr) first.recorder()->end_step_of(first.rank());
}

}  // namespace

void watch_write(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) return;
  const MemoryBlock* block = block_of(tensor.storage().data_ptr());
  if (block != nullptr && block->memory != nullptr &&
      block->category == MemoryCategory::kParameters &&
      block->memory->device()->rank() == current_rank()) {
    block->memory->note_update();
    if (block->memory->updates() > block->memory->step()) begin_phase(StepPhase::kUpdate);
  }
}

void watch_backward(bool begins) {
  begin_phase(begins ? StepPhase::kBackward : StepPhase::kUpdate);
}

void watch_training(const OpInfo& info, c10::ArrayRef<c10::IValue> arguments) {
  if (c10::GradMode::is_enabled()) return watch_forward();
  if (info.written == 0) return;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (!info.writes(i)) continue;
    const c10::IValue& value = arguments[i];
    if (value.isTensor()) {
      watch_write(value.toTensor());
    } else if (value.isTensorList() && !value.toTensorList().empty()) {
      watch_write(value.toTensorList().get(0));
    }
  }
}

}  // namespace accelerate::simulator
