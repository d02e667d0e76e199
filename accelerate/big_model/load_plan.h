/// What loading a checkpoint will do: where each tensor of the files goes, before one is read.
///
/// Errors:  as load_checkpoint_in_model's, before it reads.
/// Threads: the rank's thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <c10/util/accumulate.h>

#include "accelerate/big_model/load_checkpoint_options.h"
#include "accelerate/big_model/offload.h"
#include "accelerate/modules/module_state_dict.h"

namespace accelerate::internal {

/// A tensor in a checkpoint's files.
struct StoredTensor {
  std::string name = {};
  std::vector<int64_t> sizes = {};
  at::ScalarType dtype = at::kFloat;
  /// The number of its file.
  size_t file = 0;
  /// What keeps it from being loaded, such as its dtype; empty for others.
  std::string unreadable = {};
  /// False for what has a name all the same, which no index lists.
  bool is_tensor = true;

  int64_t bytes() const {
    return c10::multiply_integers(sizes) * static_cast<int64_t>(c10::elementSize(dtype));
  }
};

/// Values of which a model keeps something else, such as those of a quantised weight.
class Conversion {
 public:
  /// `slots`: what is kept, on these devices; absent: on the disk.
  Conversion(std::span<const ModuleSlot> slots, std::vector<std::optional<c10::Device>> devices);

  at::IntArrayRef sizes() const { return parameter_.sizes(); }
  bool writes_files() const {
    return std::ranges::any_of(devices_, [](const auto& device) { return !device; });
  }
  /// Makes what is kept of the values; what goes to the disk is written.
  void convert(const at::Tensor& values, OffloadWriter& writer);
  /// The model gets it.
  void install() const;

 private:
  const at::Tensor parameter_;
  std::vector<ModuleSlot> slots_;
  const std::vector<std::optional<c10::Device>> devices_;
  std::vector<at::Tensor> kept_;  // of slots_
};

/// Where a stored tensor goes.
struct Destination {
  enum class Kind : char {
    kNowhere = '-',
    kHost = 'h',
    kAccelerator = 'a',
    kDisk = 'd',
    kLater = 'l',  ///< what has no memory waits for it
  };
  Kind kind = Kind::kNowhere;
  /// The dtype of the loaded values, in memory and in offloaded files.
  at::ScalarType dtype = at::kFloat;
  /// What it is read into, on the host or an accelerator, unless its dtype changes.
  at::Tensor memory = {};
  /// Tensors of the module, which are one, that have memory of another dtype: they get new memory
  /// with the values. Empty for others.
  std::vector<at::Tensor> changing = {};
  /// Tensors of the module, which are one, that wait for their values.
  std::vector<at::Tensor> waiting = {};
  /// On the disk: the module's name of it.
  std::string name = {};
  /// On the host, and then this makes something else of it. Null for others.
  std::shared_ptr<Conversion> conversion = nullptr;

  /// `memory`, or new memory for what is changing or converted. Errors: c10::OutOfMemoryError.
  at::Tensor memory_to_fill() const;
  /// It has the values now.
  void filled(const at::Tensor& memory, OffloadWriter& writer) const;
  /// Whether ranks can hand it over in `memory`.
  bool has_memory() const { return changing.empty() && conversion == nullptr; }
  /// Whether a conversion writes files.
  bool writes_files() const { return conversion != nullptr && conversion->writes_files(); }
};

struct LoadPlan {
  /// One for each stored tensor.
  std::vector<Destination> destinations;
  /// The module's tensors and the memory that they get at the end.
  std::vector<std::pair<at::Tensor, at::Tensor>> installs;
  /// Parameters whose values are made of what gets memory.
  std::vector<at::Tensor> made_parameters;
  IncompatibleKeys keys;
};

/// Compares the stored tensors with the model and the map, and asks for all memory on devices. The
/// model is unchanged. Local.
LoadPlan plan_load(torch::nn::Module& model, const std::vector<StoredTensor>& stored,
                   const LoadCheckpointInModelOptions& options);

/// LibTorch's device of a placement; absent for the disk. Local.
/// Errors: c10::ValueError if there is no such device.
std::optional<c10::Device> device_of(const DevicePlacement& placement);

}  // namespace accelerate::internal
