#include "simulator/device/training_watch.h"

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>

#include "simulator/device/host_memory.h"
#include "simulator/trace/recorder.h"

namespace accelerate::simulator {

void watch_write(SimDevice& device, const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) return;
  const MemoryBlock* block = block_of(tensor.storage().data_ptr());
  if (block != nullptr && block->memory == &device.memory() &&
      block->category == MemoryCategory::kParameters) {
    device.memory().note_update();
  }
}

void watch_training(SimDevice& device, const OpInfo& info, c10::ArrayRef<c10::IValue> arguments) {
  if (c10::GradMode::is_enabled()) {
    if (!device.memory().note_forward()) return;
    // Ranks step together, so one of them records the step.
    if (device.index() == 0 && device.recorder() != nullptr) {
      device.recorder()->step(device.host_ns());
    }
    return;
  }
  if (info.written == 0) return;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (!info.writes(i)) continue;
    const c10::IValue& value = arguments[i];
    if (value.isTensor()) {
      watch_write(device, value.toTensor());
    } else if (value.isTensorList() && !value.toTensorList().empty()) {
      watch_write(device, value.toTensorList().get(0));
    }
  }
}

}  // namespace accelerate::simulator
