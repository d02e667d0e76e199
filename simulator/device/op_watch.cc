#include "simulator/device/op_watch.h"

#include <algorithm>

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>

#include "simulator/device/sim_device.h"
#include "simulator/trace/recorder.h"

namespace accelerate::simulator {
namespace {

void watch_forward() {
  bool begins_step = false;
  for (SimDevice* device : own_devices()) begins_step |= device->memory().note_forward();
  if (!begins_step) return;
  // Ranks step together, so one of them records the step.
  const SimDevice& first = *own_devices()[0];
  if (first.rank() != 0 || first.recorder() == nullptr) return;
  // The host may be ahead of its devices; the step ends with their work.
  int64_t end_ns = first.host_ns();
  for (const SimDevice* device : own_devices()) end_ns = std::max(end_ns, device->busy_until_ns());
  first.recorder()->step(end_ns);
}

}  // namespace

void watch_write(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) return;
  const MemoryBlock* block = block_of(tensor.storage().data_ptr());
  if (block != nullptr && block->memory != nullptr &&
      block->category == MemoryCategory::kParameters &&
      block->memory->device()->rank() == current_rank()) {
    block->memory->note_update();
  }
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
