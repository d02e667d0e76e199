/// A model that is placed by a device map, as far as its type does not matter. See dispatch.h.
///
/// Threads: the rank's thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "absl/container/flat_hash_map.h"
#include "accelerate/base/libtorch_fwd.h"
#include "accelerate/big_model/offload.h"
#include "accelerate/device_map/device_map.h"
#include "accelerate/dispatch/activation_placement.h"
#include "accelerate/dispatch/weight_sources.h"
#include "accelerate/hooks/model_hook.h"
#include "accelerate/modules/values_elsewhere.h"
#include "accelerate/operators/operator_mode.h"
#include "accelerate/parallel/residency/residency.h"
#include "accelerate/runtime/runtime.h"
#include "accelerate/tensors/state_dict.h"

namespace accelerate {

struct DispatchOptions {
  /// Where offloaded modules compute. Absent: the first accelerator of the map; the CPU if it names
  /// none.
  std::optional<c10::Device> main_device = std::nullopt;
  /// Values, by name, of tensors that the map puts on the CPU or the disk; those that are not here,
  /// or are here without memory, are the model's own.
  NamedTensors state_dict = {};
  /// The folder of what the map puts on the disk, as offload.h describes it. Tensors that have
  /// memory are written there, in place of what others have left under their names, with a warning;
  /// models of this rank that have files there keep their values. Those without memory are read.
  std::string offload_dir = {};
  /// In place of the folder's own index: tensors that it has get the files' values, also if they
  /// have memory; but for those in state_dict.
  std::optional<OffloadIndex> offload_index = std::nullopt;
  /// Whether persistent buffers of offloaded modules are offloaded as well; otherwise they are on
  /// the main device. A pass must not write to those that are.
  bool offload_buffers = false;
  /// Entries of maps and dicts among inputs and outputs, by key, that stay where they are.
  std::vector<std::string> skip_keys = {};
  /// Modules of these classes are in memory as a whole while a part of them is used.
  std::vector<std::string> preload_module_classes = {};
  /// Whether a model on a single device is treated as others are, instead of just moved.
  bool force_hooks = false;
  /// Sees the operators of passes, such as one that computes products with quantised weights. May
  /// be null.
  std::shared_ptr<OperatorHandler> operators = nullptr;
};

class DispatchedModel final : public TensorsElsewhere {
 public:
  /// See dispatch_model.
  static std::shared_ptr<DispatchedModel> make(std::shared_ptr<torch::nn::Module> module,
                                               DeviceMap device_map, DispatchOptions options);
  /// A model that computes on its present device, without hooks.
  static std::shared_ptr<DispatchedModel> make_undispatched(
      std::shared_ptr<torch::nn::Module> module);
  /// Offloaded parameters get their host memory back; those on the disk are on the meta device.
  /// Buffers that were on the main device for an offloaded module are where they were before.
  ~DispatchedModel() override;
  DispatchedModel(const DispatchedModel&) = delete;
  DispatchedModel& operator=(const DispatchedModel&) = delete;

  /// While a Pass lives, the model may compute: it surrounds a forward pass.
  class Pass {
   public:
    explicit Pass(DispatchedModel& model);
    ~Pass() noexcept(false);
    Pass(const Pass&) = delete;
    Pass& operator=(const Pass&) = delete;

    /// As Residency::Pass's.
    void expect_no_backward();
    /// What the destructor does otherwise, which may throw.
    void end();

   private:
    DispatchedModel& model_;
    const int exceptions_;
    const std::shared_ptr<internal::ActivationPlacement> placement_;
    std::optional<OperatorModeScope> operators_;
    std::optional<OperatorModeScope> scope_;
    std::unique_ptr<Residency::Pass> pass_;
    bool has_ended_ = false;
  };

  const std::shared_ptr<torch::nn::Module>& module() const { return module_; }
  const DeviceMap& device_map() const { return device_map_; }
  c10::Device main_device() const { return main_device_; }
  const std::vector<std::string>& skip_keys() const { return skip_keys_; }

  /// Where the values of a tensor are that is in memory only while it is used.
  struct Offloaded {
    std::string name;   ///< the first one
    at::Tensor tensor;  ///< the module's
    bool is_buffer = false;
    /// On the CPU: what an optimizer trains. Undefined: the values are in a file.
    at::Tensor home;
    std::shared_ptr<const internal::StoredWeight> stored;
    /// On the CPU, and no other's: a copy.
    at::Tensor values() const;
  };
  /// Null for a tensor that is always in memory, or is not the model's.
  const Offloaded* find_offloaded(const at::Tensor& tensor) const;
  const std::vector<Offloaded>& offloaded() const { return offloaded_; }
  std::optional<ValuesElsewhere> values_elsewhere(const at::Tensor& tensor) const override;

  /// The slot of the hooks around a handle's calls, which users add to.
  const std::shared_ptr<HookSlot>& hooks() const { return hooks_; }
  /// That of the hook around those, which begins and ends passes and sends inputs and outputs.
  HookSlot& pass_hook() { return pass_hook_; }

  /// DispatchOptions::operators.
  const std::shared_ptr<OperatorHandler>& operators() const { return operators_; }
  /// The engine; null if nothing is offloaded.
  const std::shared_ptr<Residency>& residency() const { return residency_; }
  /// How many activations the last pass copied between devices.
  int64_t copies() const { return placement_ != nullptr ? placement_->copies() : 0; }

  /// Resets the gradients of all parameters, those on the CPU included.
  void zero_grad(bool set_to_none);

 private:
  class Builder;
  class PassHook;
  friend class Pass;

  DispatchedModel(std::shared_ptr<torch::nn::Module> module, DeviceMap device_map);
  void begin_pass();
  void release_others();

  const std::shared_ptr<torch::nn::Module> module_;
  const DeviceMap device_map_;
  Runtime* runtime_ = nullptr;
  c10::Device main_device_ = c10::kCPU;
  std::vector<std::string> skip_keys_;
  bool has_hooks_ = false;
  std::shared_ptr<OperatorHandler> operators_;
  const std::shared_ptr<HookSlot> hooks_;
  HookSlot pass_hook_;
  std::shared_ptr<internal::ModelPlaces> places_;
  std::shared_ptr<internal::ActivationPlacement> placement_;  // of the last pass
  std::vector<Offloaded> offloaded_;
  absl::flat_hash_map<const c10::TensorImpl*, size_t> offloaded_by_tensor_;
  absl::flat_hash_map<const void*, size_t> offloaded_by_storage_;
  std::vector<std::pair<at::Tensor, size_t>> managed_;  // the same; they keep the tensors alive
  // Buffers that are on the main device for a module that is offloaded, and go back when the model
  // is an ordinary one again. `tensors`: one under each of the names that has its own.
  struct BorrowedBuffer {
    std::vector<at::Tensor> tensors = {};
    c10::Device home;    // where it was
    c10::Device device;  // where it is used
  };
  std::vector<BorrowedBuffer> borrowed_;
  std::vector<at::Tensor> made_;  // whose values are made of tensors that the map places
  std::unique_ptr<internal::FileReading> reading_;  // null if nothing is read from files
  std::shared_ptr<Residency> residency_;
};

namespace internal {

/// The dispatched models of a Runtime that live, oldest first; null: there are none.
std::vector<std::shared_ptr<DispatchedModel>> dispatched_models(
    const Runtime* runtime = Runtime::find_current());
/// The dispatched model of this module; null: it is none.
std::shared_ptr<DispatchedModel> find_dispatched(const torch::nn::Module& module);
/// Those of this module and of the modules inside of it, in the order of `modules()`.
std::vector<std::shared_ptr<DispatchedModel>> dispatched_within(const torch::nn::Module& module);

}  // namespace internal
}  // namespace accelerate
