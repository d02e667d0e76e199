#include "accelerate/big_model/load_plan.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "accelerate/big_model/offloaded_file.h"
#include "accelerate/comm/checkpoint_error.h"
#include "accelerate/files/formats/offload_index.h"
#include "accelerate/modules/module_state_dict.h"
#include "accelerate/modules/module_tensors.h"
#include "accelerate/modules/value_at_use.h"
#include "accelerate/runtime/runtime.h"
#include "accelerate/state/logger.h"
#include "accelerate/tensors/tensor_memory.h"

namespace accelerate::internal {
namespace {

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
    const std::vector<std::optional<StateDictMatch::Match>> matches = match(stored, plan.keys);
    place();
    choose_dtypes(stored, matches);
    allocate();
    for (const auto& [slot, memory] : memory_) {
      if (!slots_[slot].tensor.is_same(memory))
        plan.installs.emplace_back(slots_[slot].tensor, memory);
      if (slots_[slot].made_parameter.defined()) {
        plan.made_parameters.push_back(slots_[slot].made_parameter);
      }
    }
    plan.destinations.resize(stored.size());
    for (size_t i = 0; i < stored.size(); ++i) {
      if (!matches[i]) continue;
      const size_t slot = matches[i]->position;
      if (matches[i]->is_converted) {
        plan.destinations[i] = conversion_of(slot, stored[i]);
        continue;
      }
      if (targets_[firsts_[slot]].source != i) continue;
      plan.destinations[i] = destination_of(slot);
      at::Tensor& memory = plan.destinations[i].memory;
      if (matches[i]->is_packed && memory.defined()) {
        memory = memory.flatten().view(stored[i].dtype).view(stored[i].sizes);
      }
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
    // A text whose length changes has these.
    std::optional<std::vector<int64_t>> sizes = {};
    // Whether one of its names is to stay in float.
    bool stays_float = false;
    // The stored tensor that it gets.
    std::optional<size_t> source = {};
    // New memory for tensors of the module, those that get memory of another dtype, and those that
    // wait for their values.
    at::Tensor memory = {};
    std::vector<at::Tensor> changing = {}, waiting = {};
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
      if (map.find(slot.placed_name()) == nullptr && !no_state_.contains(slot.name)) {
        uncovered.push_back(slot.name);
      }
    }
    TORCH_CHECK_VALUE(uncovered.empty(), "the device map has no device for ",
                      absl::StrJoin(uncovered, ", "));
  }

  std::vector<std::optional<StateDictMatch::Match>> match(const std::vector<StoredTensor>& stored,
                                                          IncompatibleKeys& keys) const {
    const bool has_map = options_.device_map.has_value();
    StateDictMatch match(model_, slots_,
                         {.needs_memory = false, .wanted = [&](const std::string& name) {
                            return !no_state_.contains(name) &&
                                   (!options_.name_filter || options_.name_filter(name));
                          }});
    std::set<std::string> names;
    for (const ModuleSlot& slot : slots_) names.insert(slot.name);
    std::vector<std::optional<StateDictMatch::Match>> matches;
    for (const StoredTensor& tensor : stored) {
      if (!tensor.unreadable.empty()) {
        match.add_unreadable(tensor.name, tensor.unreadable);
        matches.emplace_back();
        continue;
      }
      const bool is_skipped =
          has_map && is_int8_statistics(tensor.name) && !names.contains(tensor.name);
      matches.push_back(is_skipped ? std::nullopt
                                   : match.find(tensor.name, tensor.sizes, tensor.dtype));
      TORCH_CHECK_VALUE(!options_.lazy || !matches.back() || !matches.back()->is_converted,
                        "load_checkpoint_in_model: weights that are quantised are not lazy (\"",
                        tensor.name, "\")");
    }
    keys = match.finish(options_.strict);
    check_codes(stored, matches);
    return matches;
  }

  // Codes of a weight in 8 bits are not its values.
  void check_codes(const std::vector<StoredTensor>& stored,
                   const std::vector<std::optional<StateDictMatch::Match>>& matches) const {
    std::set<std::string> quantized;
    for (const StoredTensor& tensor : stored) {
      if (!is_int8_statistics(tensor.name)) continue;
      quantized.insert(absl::StrCat(tensor.name.substr(0, tensor.name.size() - 3), "weight"));
    }
    for (size_t i = 0; i < stored.size(); ++i) {
      if (!matches[i] || stored[i].dtype != at::kChar || !quantized.contains(stored[i].name)) {
        continue;
      }
      if (c10::isFloatingType(slots_[matches[i]->position].tensor.scalar_type())) {
        throw CheckpointError(absl::StrCat(
            "\"", stored[i].name, "\" is quantised there, and not in the model: load it with ",
            "load_and_quantize_model, in 8 bits, where the layer is not skipped"));
      }
    }
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
      const bool stays_float = is_kept_in_float(slots_[i].name);
      if (firsts_[i] == i) {
        target = {
            .device = device, .dtype = slots_[i].tensor.scalar_type(), .stays_float = stays_float};
        continue;
      }
      target.stays_float |= stays_float;
      if (target.device != device) {
        torn.push_back(absl::StrCat(slots_[firsts_[i]].name, " and ", slots_[i].name));
        if (!target.device) target.device = device;
      }
    }
    if (!torn.empty()) {
      log_in_job(
          "accelerate.big_model", LogLevel::kWarning,
          absl::StrCat("tied tensors are on different devices in the device map, and are put on ",
                       "one of them: ", absl::StrJoin(torn, ", ")));
    }
  }

  std::optional<c10::Device> device_of_slot(const ModuleSlot& slot) const {
    if (!options_.device_map) {
      const bool needs_memory = slot.tensor.is_meta() && !options_.lazy;
      return needs_memory ? c10::Device(c10::kCPU) : slot.tensor.device();
    }
    const DevicePlacement* const placement = options_.device_map->find(slot.placed_name());
    // A buffer without state.
    if (placement == nullptr) return slot.tensor.device();
    const std::optional<c10::Device> device = devices_.at(*placement);
    if (device || !slot.is_buffer || options_.offload_buffers) return device;
    return slot.tensor.is_meta() ? c10::Device(c10::kCPU) : slot.tensor.device();
  }

  void choose_dtypes(const std::vector<StoredTensor>& stored,
                     const std::vector<std::optional<StateDictMatch::Match>>& matches) {
    for (size_t i = 0; i < stored.size(); ++i) {
      if (!matches[i] || matches[i]->is_converted) continue;
      const size_t slot = matches[i]->position;
      Target& target = targets_[firsts_[slot]];
      target.is_loaded = true;
      // The first of several names of a tensor counts.
      if (target.source && stored[*target.source].name < stored[i].name) continue;
      target.source = i;
      if (at::IntArrayRef(stored[i].sizes) != slots_[slot].tensor.sizes() &&
          !matches[i]->is_packed) {
        target.sizes = stored[i].sizes;
      }
      if (!target.device) target.dtype = stored[i].dtype;
      // What is kept of a parameter has its own dtype.
      if (options_.dtype && !slots_[slot].made_parameter.defined() &&
          c10::isFloatingType(slots_[slot].tensor.scalar_type())) {
        target.dtype = target.stays_float ? at::kFloat : *options_.dtype;
      }
    }
  }

  bool is_kept_in_float(const std::string& name) const {
    return options_.dtype == at::kHalf &&
           std::ranges::any_of(options_.keep_in_fp32_modules, [&](const std::string& kept) {
             return name == kept || absl::StrContains(name, absl::StrCat(kept, "."));
           });
  }

  // All of it before the first byte is read, so that a device without room is known at once.
  void allocate() {
    for (size_t i = 0; i < slots_.size(); ++i) {
      Target& target = targets_[firsts_[i]];
      if (!target.is_loaded) continue;
      const at::Tensor& tensor = slots_[i].tensor;
      if (options_.lazy && tensor.is_meta()) {
        target.waiting.push_back(tensor);
        continue;
      }
      const c10::Device device = target.device.value_or(c10::Device(c10::kMeta));
      at::Tensor& memory = target.memory;
      if (target.sizes) {
        if (!memory.defined())
          memory = fresh_tensor(*target.sizes, tensor.options().device(device));
        memory_.insert_or_assign(i, memory);
        continue;
      }
      if (device == tensor.device()) {
        memory_.emplace(i, tensor);
        if (target.dtype == tensor.scalar_type()) continue;
        if (!tensor.is_meta()) {
          target.changing.push_back(tensor);
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
    if (!target.waiting.empty()) {
      return {.kind = Destination::Kind::kLater, .dtype = target.dtype, .waiting = target.waiting};
    }
    if (target.device->is_meta()) return {};
    return {.kind = target.device->is_cpu() ? Destination::Kind::kHost
                                            : Destination::Kind::kAccelerator,
            .dtype = target.dtype,
            .memory = target.changing.empty() ? memory_.at(slot) : at::Tensor(),
            .changing = target.changing};
  }

  // Read into host memory, and converted there.
  Destination conversion_of(size_t first, const StoredTensor& stored) const {
    std::vector<std::optional<c10::Device>> devices;
    size_t end = first;
    for (; end < slots_.size() && slots_[end].made_name == slots_[first].made_name; ++end) {
      std::optional<c10::Device> device = device_of_slot(slots_[end]);
      // A slot without a device in the map and without memory gets CPU memory.
      if (device && device->is_meta()) device = c10::kCPU;
      devices.push_back(device);
    }
    return {.kind = Destination::Kind::kHost,
            .dtype = !options_.dtype                        ? stored.dtype
                     : is_kept_in_float(slots_[first].name) ? at::kFloat
                                                            : *options_.dtype,
            .conversion = std::make_shared<Conversion>(
                std::span(slots_).subspan(first, end - first), std::move(devices))};
  }

  torch::nn::Module& model_;
  const LoadCheckpointInModelOptions& options_;
  const std::vector<ModuleSlot> slots_;
  const std::set<std::string> no_state_;  // names of non-persistent buffers
  std::map<DevicePlacement, std::optional<c10::Device>> devices_;
  std::vector<size_t> firsts_;
  std::vector<Target> targets_;          // of the first slots
  std::map<size_t, at::Tensor> memory_;  // by slot
};

}  // namespace

Conversion::Conversion(std::span<const ModuleSlot> slots,
                       std::vector<std::optional<c10::Device>> devices)
    : parameter_(slots.front().made_parameter),
      slots_(slots.begin(), slots.end()),
      devices_(std::move(devices)) {
  for (size_t i = 0; i < slots_.size(); ++i) {
    if (!devices_[i]) {
      // Also says if the name cannot be a file's.
      const auto file = offload_file_name(slots_[i].name);
      TORCH_CHECK_VALUE(file.ok(), std::string(file.status().message()));
    }
  }
}

void Conversion::convert(const at::Tensor& values, OffloadWriter& writer) {
  try {
    kept_ = find_maker(parameter_)->encode(values);
  } catch (const c10::ValueError& error) {
    TORCH_CHECK_VALUE(false, "cannot keep the checkpoint's values of \"", slots_.front().name,
                      "\": ", error.what_without_backtrace());
  }
  for (size_t i = 0; i < kept_.size(); ++i) {
    at::Tensor& each = kept_[i];
    if (devices_[i]) {
      each = each.to(*devices_[i]);
      continue;
    }
    check_ok(writer.write_tensor(slots_[i].name, each));
    each = at::empty(each.sizes(), each.options().device(at::kMeta));
  }
}

void Conversion::install() const {
  for (size_t i = 0; i < kept_.size(); ++i) rebind(slots_[i].tensor, kept_[i]);
  update_device_from_kept(parameter_);
}

at::Tensor Destination::memory_to_fill() const {
  if (conversion != nullptr) return fresh_tensor(conversion->sizes(), at::TensorOptions(dtype));
  return changing.empty() ? memory : new_memory(changing[0], dtype, changing[0].device());
}

void Destination::filled(const at::Tensor& memory, OffloadWriter& writer) const {
  for (const at::Tensor& tensor : changing) rebind(tensor, memory);
  if (conversion != nullptr) conversion->convert(memory, writer);
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

}  // namespace accelerate::internal
