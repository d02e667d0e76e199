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
    begins_step |= device->memory().on_forward();
    in_backward |= device->memory().in_backward();
  }
  if (in_backward) return;  // what is computed again
  if (!begins_step) return begin_phase(StepPhase::kForward);
  for (SimDevice* device : own_devices()) device->record_work();
  if (Recorder* recorder = step_recorder()) return recorder->step(devices_end_ns());
  const SimDevice& first = *own_devices()[0];
  if (first.recorder() != nullptr) first.recorder()->end_step_of(first.rank());
}

void on_update(DeviceMemory& memory) {
  memory.on_update();
  if (memory.updates() > memory.step()) begin_phase(StepPhase::kUpdate);
}

// What an update makes for a parameter stands at the parameter's place in another list.
void name_lists(c10::ArrayRef<c10::IValue> arguments) {
  for (const c10::IValue& from : arguments) {
    if (!from.isTensorList()) continue;
    const auto named = from.toListRef();
    const MemoryBlock* first = named.empty() ? nullptr : charged_block_of(named[0].toTensor());
    // Parameters and gradients have names.
    if (first == nullptr || first->module == 0) continue;
    for (const c10::IValue& to : arguments) {
      if (!to.isTensorList() || &to == &from) continue;
      const auto others = to.toListRef();
      MemoryBlock* last = others.empty() ? nullptr : charged_block_of(others.back().toTensor());
      if (others.size() != named.size() || last == nullptr || last->module != 0) continue;
      for (size_t i = 0; i < others.size(); ++i) {
        const MemoryBlock* like = charged_block_of(named[i].toTensor());
        MemoryBlock* block = charged_block_of(others[i].toTensor());
        if (like == nullptr || block == nullptr || block->module != 0 ||
            block->category == MemoryCategory::kBuckets) {
          continue;
        }
        block->memory->name_like(block, *like);
      }
    }
    return;
  }
}

}  // namespace

void watch_write(const at::Tensor& tensor) {
  const MemoryBlock* block = charged_block_of(tensor);
  if (block != nullptr && block->category == MemoryCategory::kParameters &&
      block->memory->device()->rank() == current_rank()) {
    on_update(*block->memory);
  }
}

void watch_host_update() {
  for (SimDevice* device : own_devices()) on_update(device->memory());
}

void watch_backward(bool begins) {
  begin_phase(begins ? StepPhase::kBackward : StepPhase::kUpdate);
}

void watch_training(const OpInfo& info, c10::ArrayRef<c10::IValue> arguments) {
  if (c10::GradMode::is_enabled()) return watch_forward();
  if (info.written == 0) return;
  if (info.takes_lists) name_lists(arguments);
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
