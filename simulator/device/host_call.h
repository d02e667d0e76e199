/// A device's tensors as CPU tensors, for one kernel.
///
/// Device memory lies in host memory, so a CPU kernel can run on it: each argument is wrapped as a
/// CPU tensor over the same bytes, the kernel runs, and the tensors that it returned or changed are
/// wrapped as the device's again. Nothing is copied.
///
/// Tensors without values (see shapes.h) have no bytes to compute with. For them the arguments are
/// wrapped as Meta tensors, LibTorch's Meta kernel tells the results' shapes, and the results get
/// memory of the device without values. Everything else is the same.
///
/// Threads: one call, one thread.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Storage.h>
#include <c10/util/SmallVector.h>

#include "absl/container/flat_hash_map.h"
#include "simulator/device/op_info.h"
#include "simulator/device/sim_device.h"

namespace accelerate::simulator {

/// What stands in for the device's tensors while a kernel runs: the *host tensors* below.
enum class StandIn : uint8_t {
  kHost,  ///< CPU tensors over the same bytes
  kMeta,  ///< tensors of LibTorch's device "meta", which have no bytes; also for CPU tensors
};

class HostCall {
 public:
  /// `info` outlives this; error messages name the operator.
  explicit HostCall(const OpInfo& info, StandIn stand_in = StandIn::kHost)
      : info_(info), stand_in_(stand_in) {}
  ~HostCall();
  HostCall(const HostCall&) = delete;
  HostCall& operator=(const HostCall&) = delete;

  /// The host tensor for an argument; a CPU tensor is its own, except under kMeta.
  /// `written`: whether the kernel changes it.
  /// Errors: those of device_of; LibTorch's own c10::Error for tensors of two devices; c10::Error
  ///         for memory that a collective has in flight, and for a tensor whose storage has no
  ///         memory, which names it as the storage does (custom_data_ptr_error_msg_).
  at::Tensor to_host(at::Tensor tensor, size_t argument, bool written);

  /// Before the arguments: of a dense first one, only so many elements pass.
  void touch(double elements) { touched_ = elements; }

  /// After the kernel: gives arguments the storages and shapes that their host tensors have now,
  /// counts what was written to them, and notes whether they have values.
  void update_arguments();

  /// The device's tensor for a result.
  at::Tensor to_device(const at::Tensor& tensor);

  /// After all arguments: checks that the device's tensors were not mixed with CPU tensors that
  /// have dimensions. Errors: LibTorch's own c10::Error.
  void check_devices() const;

  /// The device that the tensors seen so far are on, or null.
  SimDevice* device() const { return device_; }
  void set_device(SimDevice* device) { device_ = device; }
  /// The arguments as the operator reads and writes them, and the results; a tensor that is there
  /// several times is read once.
  const TensorTraffic& traffic() const { return traffic_; }
  /// The same by storages, where the device fuses kernels.
  const std::vector<TensorUse>& uses() const { return uses_; }

 private:
  struct StoragePair {
    c10::StorageImpl* device;
    c10::intrusive_ptr<c10::StorageImpl> host;
    void* data;  // before the kernel
    size_t bytes;
  };
  struct TensorPair {
    at::Tensor device;
    at::Tensor host;
    bool written = false;
    std::optional<double> touched;  // the elements that pass, if not all
    bool fresh = false;             // what it held is not read
  };

  static const void* on_device(const StoragePair& pair) { return pair.device; }
  static const void* on_host(const StoragePair& pair) { return pair.host.get(); }
  static const void* on_device(const TensorPair& pair) { return pair.device.unsafeGetTensorImpl(); }
  static const void* on_host(const TensorPair& pair) { return pair.host.unsafeGetTensorImpl(); }

  // Finds the pair of an object. Nearly all calls have few, but optimizers pass whole models.
  template <typename Pair, const void* (*kObject)(const Pair&)>
  class Index {
   public:
    /// Null if there is none. The same pairs each time, or more.
    Pair* find(c10::SmallVectorImpl<Pair>& pairs, const void* object) {
      if (pairs.size() <= kFew) {
        for (Pair& pair : pairs) {
          if (kObject(pair) == object) return &pair;
        }
        return nullptr;
      }
      for (; seen_ < pairs.size(); ++seen_) positions_.try_emplace(kObject(pairs[seen_]), seen_);
      const auto found = positions_.find(object);
      return found == positions_.end() ? nullptr : &pairs[found->second];
    }

   private:
    static constexpr size_t kFew = 16;
    size_t seen_ = 0;
    absl::flat_hash_map<const void*, size_t> positions_;  // empty if there are few
  };

  // One pass over a tensor, to read or to write it; `own` is the device's. `fresh`: see TensorUse.
  void count(const at::Tensor& tensor, const at::Tensor& own, const std::optional<double>& touched,
             bool written, bool fresh);
  at::Tensor sparse_to_host(const at::Tensor& tensor, size_t argument, bool written);
  at::Tensor sparse_to_device(const at::Tensor& tensor);
  void update_sparse(const TensorPair& pair);
  // The device's tensor over the memory of a dense CPU tensor.
  at::Tensor wrapped(const at::Tensor& tensor);
  void check(const at::Tensor& tensor, size_t argument);
  void check_present(const at::Tensor& tensor) const;
  void check_in_flight(const at::Tensor& tensor, bool written) const;

  const OpInfo& info_;
  const StandIn stand_in_;
  SimDevice* device_ = nullptr;
  c10::SmallVector<StoragePair, 8> storages_;
  c10::SmallVector<TensorPair, 8> tensors_;
  Index<StoragePair, &HostCall::on_device> device_storages_;
  Index<StoragePair, &HostCall::on_host> host_storages_;
  Index<TensorPair, &HostCall::on_device> device_tensors_;
  Index<TensorPair, &HostCall::on_host> host_tensors_;
  at::Tensor host_tensor_;  // the first CPU tensor that has dimensions
  size_t host_argument_ = 0;
  at::Tensor found_inf_;  // keeps its value without values: see OpInfo
  std::optional<double> touched_;
  TensorTraffic traffic_;
  std::vector<TensorUse> uses_;
};

/// Replaces the tensors in an argument or a result by map(tensor), also those in a list. `map` gets
/// a tensor of its own.
template <typename Map>
void map_tensors(c10::IValue& value, Map&& map) {
  if (value.isTensor()) {
    value = map(std::move(value).toTensor());
  } else if (value.isTensorList()) {
    std::vector<at::Tensor> tensors = value.toTensorVector();
    for (at::Tensor& tensor : tensors) tensor = map(std::move(tensor));
    value = c10::List<at::Tensor>(std::move(tensors));
  }
}

/// Whether `found(tensor)` for a tensor of an argument or a result, also of one in a list.
template <typename Found>
bool any_tensor(const c10::IValue& value, Found&& found) {
  if (value.isTensor()) return found(value.toTensor());
  if (!value.isTensorList() && !value.isOptionalTensorList()) return false;
  for (const c10::IValue& element : value.toListRef()) {
    if (element.isTensor() && found(element.toTensor())) return true;
  }
  return false;
}

/// The device that a tensor of a simulated device is on. `user` is the operation that uses the
/// tensor, for the message.
/// Errors: c10::Error that names both ranks if the tensor's memory is another rank's. The device's
///         index does not tell: each node has its own sim:0.
SimDevice& device_of(const at::Tensor& tensor, const char* user);

/// A CPU tensor over the memory of a device's tensor, which it keeps alive. Costs no virtual time.
at::Tensor host_alias(const at::Tensor& tensor);

/// Copies the indices and values of a CPU tensor into a sparse tensor of `device`, which may be
/// another rank's.
void assign_sparse(const at::Tensor& tensor, const at::Tensor& host, SimDevice& device);

/// A Meta tensor with the shape, type and storage size of another.
at::Tensor meta_alias(const at::Tensor& tensor);

/// A tensor of `device` with the shape, type and storage size of a Meta tensor, and no values.
at::Tensor without_values(const at::Tensor& tensor, SimDevice& device);

/// A tensor of `device` that takes over the memory of a CPU tensor without other owners. The memory
/// must come from the simulator's allocators.
at::Tensor wrap_on_device(const at::Tensor& tensor, SimDevice& device);

}  // namespace accelerate::simulator
