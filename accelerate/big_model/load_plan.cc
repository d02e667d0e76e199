#include "accelerate/big_model/load_plan.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>

#include <ATen/ops/empty_strided.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "accelerate/big_model/module_slots.h"
#include "accelerate/big_model/module_tensors.h"
#include "accelerate/big_model/offload.h"
#include "accelerate/runtime/runtime.h"
#include "accelerate/state/logger.h"
#include "accelerate/state/partial_state.h"
#include "accelerate/tensors/tensor_memory.h"

namespace accelerate::internal {
namespace {

constexpr char kLoggerName[] = "accelerate.big_model";

bool is_int8_statistics(const std::string& name) {
  return name == "SCB" || absl::EndsWith(name, ".SCB");
}

// As the tensor lies.
at::Tensor new_memory(const at::Tensor& tensor, at::ScalarType dtype, c10::Device device) {
  const at::TensorOptions options = at::TensorOptions(dtype).device(device);
  return tensor.is_contiguous() ? fresh_tensor(tensor.sizes(), options)
                                : at::empty_strided(tensor.sizes(), tensor.strides(), options);
}

class Planner {
 public:
  Planner(torch::nn::Module& model, const LoadCheckpointInModelOptions& options)
      : model_(model),
        options_(options),
        slots_(module_slots(model)),
        no_state_(get_non_persistent_buffers(model, /*recurse=*/true, /*fqns=*/true)) {}

  LoadPlan plan(const std::vector<StoredTensor>& stored) {
    if (options_.device_map) check_map();
    LoadPlan plan;
    const std::vector<std::optional<size_t>> positions = match(stored, plan.keys);
    place();
    choose_dtypes(stored, positions);
    allocate();
    for (const auto& [slot, memory] : memory_) {
      if (!slots_[slot].tensor.is_same(memory))
        plan.installs.emplace_back(slots_[slot].tensor, memory);
    }
    plan.destinations.resize(stored.size());
    for (size_t i = 0; i < stored.size(); ++i) {
      if (positions[i]) plan.destinations[i] = destination_of(*positions[i]);
    }
    return plan;
  }

 private:
  // What holds for all names of a tied tensor.
  struct Target {
    // Absent for the disk.
    std::optional<c10::Device> device;
    at::ScalarType dtype = at::kFloat;
    bool is_loaded = false;
  };

  void check_map() {
    const DeviceMap& map = *options_.device_map;
    for (const DevicePlacement& placement : map.placements()) {
      devices_.emplace(placement, device_of(placement));
      TORCH_CHECK_VALUE(!placement.is_disk() || !options_.offload_folder.empty(),
                        "the device map puts modules on the disk: an offload_folder is needed");
    }
    std::vector<std::string> uncovered;
    for (const ModuleSlot& slot : slots_) {
      if (map.find(slot.name) == nullptr && !no_state_.contains(slot.name)) {
        uncovered.push_back(slot.name);
      }
    }
    TORCH_CHECK_VALUE(uncovered.empty(), "the device map has no device for ",
                      absl::StrJoin(uncovered, ", "));
  }

  std::vector<std::optional<size_t>> match(const std::vector<StoredTensor>& stored,
                                           IncompatibleKeys& keys) const {
    const bool has_map = options_.device_map.has_value();
    StateDictMatch match(model_, {.needs_memory = !has_map && !options_.lazy,
                                  .wanted = [&](const std::string& name) {
                                    return !no_state_.contains(name) &&
                                           (!options_.name_filter || options_.name_filter(name));
                                  }});
    std::set<std::string> names;
    for (const ModuleSlot& slot : slots_) names.insert(slot.name);
    std::vector<std::optional<size_t>> positions;
    for (const StoredTensor& tensor : stored) {
      const bool is_skipped =
          has_map && is_int8_statistics(tensor.name) && !names.contains(tensor.name);
      positions.push_back(is_skipped ? std::nullopt
                                     : match.find_position(tensor.name, tensor.sizes));
    }
    keys = match.finish(options_.strict);
    return positions;
  }

  // The device of each tied group; a group is known by its first slot.
  void place() {
    NamedTensors tensors;
    for (const ModuleSlot& slot : slots_) tensors.emplace_back(slot.name, slot.tensor);
    firsts_ = first_identical_views(tensors);
    targets_.resize(slots_.size());
    std::vector<std::string> torn;
    for (size_t i = 0; i < slots_.size(); ++i) {
      Target& target = targets_[firsts_[i]];
      const std::optional<c10::Device> device = device_of_slot(slots_[i]);
      if (firsts_[i] == i) {
        target = {.device = device, .dtype = slots_[i].tensor.scalar_type()};
      } else if (target.device != device) {
        torn.push_back(absl::StrCat(slots_[firsts_[i]].name, " and ", slots_[i].name));
        if (!target.device) target.device = device;
      }
    }
    if (!torn.empty()) {
      warn_of_load(
          absl::StrCat("tied tensors are on different devices in the device map, and are put on ",
                       "one of them: ", absl::StrJoin(torn, ", ")));
    }
  }

  std::optional<c10::Device> device_of_slot(const ModuleSlot& slot) const {
    if (!options_.device_map) return slot.tensor.device();
    const DevicePlacement* const placement = options_.device_map->find(slot.name);
    // A buffer without state.
    if (placement == nullptr) return slot.tensor.device();
    const std::optional<c10::Device> device = devices_.at(*placement);
    if (device || !slot.is_buffer || options_.offload_buffers) return device;
    return slot.tensor.is_meta() ? c10::Device(c10::kCPU) : slot.tensor.device();
  }

  void choose_dtypes(const std::vector<StoredTensor>& stored,
                     const std::vector<std::optional<size_t>>& positions) {
    for (size_t i = 0; i < stored.size(); ++i) {
      if (!positions[i]) continue;
      const size_t slot = *positions[i];
      Target& target = targets_[firsts_[slot]];
      target.is_loaded = true;
      if (!target.device) target.dtype = stored[i].dtype;
      if (options_.dtype && c10::isFloatingType(slots_[slot].tensor.scalar_type())) {
        target.dtype = new_dtype(slots_[slot].name);
      }
    }
  }

  at::ScalarType new_dtype(const std::string& name) const {
    if (*options_.dtype == at::kHalf) {
      for (const std::string& kept : options_.keep_in_fp32_modules) {
        if (name == kept || absl::StrContains(name, absl::StrCat(kept, "."))) return at::kFloat;
      }
    }
    return *options_.dtype;
  }

  // All of it before the first byte is read, so that a device without room is known at once.
  void allocate() {
    std::vector<at::Tensor> of_group(slots_.size());
    for (size_t i = 0; i < slots_.size(); ++i) {
      const Target& target = targets_[firsts_[i]];
      if (!target.is_loaded) continue;
      const at::Tensor& tensor = slots_[i].tensor;
      if (options_.lazy && tensor.is_meta()) {
        waiting_[firsts_[i]].push_back(tensor);
        continue;
      }
      const c10::Device device = target.device.value_or(c10::Device(c10::kMeta));
      at::Tensor& memory = of_group[firsts_[i]];
      if (device == tensor.device()) {
        memory_.emplace(i, tensor);
        if (target.dtype == tensor.scalar_type()) continue;
        if (!tensor.is_meta()) {
          changing_[firsts_[i]].push_back(tensor);
          continue;
        }
      }
      if (!memory.defined()) memory = new_memory(tensor, target.dtype, device);
      memory_.insert_or_assign(i, memory);
    }
  }

  Destination destination_of(size_t slot) const {
    const Target& target = targets_[firsts_[slot]];
    if (!target.device) {
      // Also says if the dtype cannot be in a file.
      offload_dtype(target.dtype, slots_[slot].name);
      const auto file = offload_file_name(slots_[slot].name);
      TORCH_CHECK_VALUE(file.ok(), std::string(file.status().message()));
      return {.kind = Destination::Kind::kDisk, .dtype = target.dtype, .name = slots_[slot].name};
    }
    if (const auto waiting = waiting_.find(firsts_[slot]); waiting != waiting_.end()) {
      return {.kind = Destination::Kind::kLater, .dtype = target.dtype, .waiting = waiting->second};
    }
    if (target.device->is_meta()) return {};
    Destination destination = {.kind = target.device->is_cpu() ? Destination::Kind::kHost
                                                               : Destination::Kind::kAccelerator,
                               .dtype = target.dtype};
    if (const auto changing = changing_.find(firsts_[slot]); changing != changing_.end()) {
      destination.changing = changing->second;
    } else {
      destination.memory = memory_.at(slot);
    }
    return destination;
  }

  torch::nn::Module& model_;
  const LoadCheckpointInModelOptions& options_;
  const std::vector<ModuleSlot> slots_;
  const std::set<std::string> no_state_;  // names of non-persistent buffers
  std::map<DevicePlacement, std::optional<c10::Device>> devices_;
  std::vector<size_t> firsts_;
  std::vector<Target> targets_;                         // of the first slots
  std::map<size_t, at::Tensor> memory_;                 // by slot
  std::map<size_t, std::vector<at::Tensor>> changing_;  // by the first slot
  std::map<size_t, std::vector<at::Tensor>> waiting_;   // likewise
};

}  // namespace

at::Tensor Destination::memory_to_fill() const {
  return changing.empty() ? memory : new_memory(changing[0], dtype, changing[0].device());
}

void Destination::filled(const at::Tensor& memory) const {
  for (const at::Tensor& tensor : changing) rebind(tensor, memory);
}

LoadPlan plan_load(torch::nn::Module& model, const std::vector<StoredTensor>& stored,
                   const LoadCheckpointInModelOptions& options) {
  return Planner(model, options).plan(stored);
}

std::optional<c10::Device> device_of(const DevicePlacement& placement) {
  if (placement.is_disk()) return std::nullopt;
  if (placement.is_cpu()) return c10::Device(c10::kCPU);
  std::optional<c10::Device> device;
  if (placement.is_accelerator()) {
    const Runtime* const runtime = Runtime::find_current();
    TORCH_CHECK_VALUE(runtime != nullptr && !runtime->device().is_cpu(),
                      "the device map names accelerator ", placement.index(),
                      ", and this rank computes on the CPU");
    TORCH_CHECK_VALUE(placement.index() <= std::numeric_limits<c10::DeviceIndex>::max(),
                      "the device map names accelerator ", placement.index(),
                      ", and LibTorch counts to ",
                      static_cast<int>(std::numeric_limits<c10::DeviceIndex>::max()));
    device.emplace(runtime->device().type(), static_cast<c10::DeviceIndex>(placement.index()));
  } else {
    try {
      device.emplace(placement.text());
    } catch (const c10::Error&) {
      TORCH_CHECK_VALUE(false, "the device map names \"", placement.text(),
                        "\", which is not a device");
    }
  }
  if (device->is_meta() || device->is_cpu()) return device;
  const int count = c10::impl::hasDeviceGuardImpl(device->type())
                        ? c10::impl::VirtualGuardImpl(device->type()).deviceCount()
                        : 0;
  TORCH_CHECK_VALUE(
      std::max<int>(device->index(), 0) < count, "the device map names ", *device, ", and there ",
      count == 1 ? "is one device" : absl::StrCat("are ", count, " devices"), " of this kind");
  return device;
}

void warn_of_load(const std::string& text) {
  const Runtime* runtime = Runtime::find_current();
  // Without a PartialState it is unknown which rank logs.
  if (runtime == nullptr || PartialState::find(*runtime) == nullptr) return;
  get_logger(kLoggerName).warning(text);
}

}  // namespace accelerate::internal
