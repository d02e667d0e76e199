#include "simulator/device/install.h"

#include <cstring>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/DispatchStub.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/_fused_sdp_choice_native.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Storage.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include "absl/strings/match.h"
#include "simulator/device/compiled_regions.h"
#include "simulator/device/generator.h"
#include "simulator/device/op_info.h"
#include "simulator/device/sim_device.h"
#include "simulator/shape_rules/shape_rules.h"

// Attention picks its algorithm as on a CPU.
namespace at::native {
namespace {

int64_t sim_sdp_choice(const Tensor& query, const Tensor& key, const Tensor& value,
                       const std::optional<Tensor>& mask, double dropout, bool causal,
                       std::optional<double> scale, bool grouped_query) {
  return _fused_sdp_choice_cpp(query, key, value, mask, dropout, causal, scale, grouped_query);
}

}  // namespace
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &sim_sdp_choice)
}  // namespace at::native

namespace accelerate::simulator {
namespace {

int device_or_current(c10::DeviceIndex index) { return index < 0 ? current_device() : index; }

SimDevice& used_device(c10::DeviceIndex index) {
  return own_device(device_or_current(index), "uses");
}

c10::Stream torch_stream(const SimDevice& device, int stream) {
  return c10::Stream(c10::Stream::UNSAFE, torch_device(device.index()), stream);
}

// An event is the time at which the work before it ends.
int64_t& time_of(void* event) { return *static_cast<int64_t*>(event); }

// The current device, streams and events. A device's streams belong to its rank.
class DeviceGuardImpl final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return c10::kPrivateUse1; }

  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device previous = getDevice();
    set_current_device(device.index());
    return previous;
  }
  c10::Device getDevice() const override { return torch_device(current_device()); }
  void setDevice(c10::Device device) const override { set_current_device(device.index()); }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    set_current_device(device.index());
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return static_cast<c10::DeviceIndex>(num_node_devices());
  }

  c10::Stream getStream(c10::Device device) const noexcept override {
    const SimDevice& of = SimDevice::of(device_or_current(device.index()));
    return torch_stream(of, of.current_stream());
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return torch_stream(SimDevice::of(device_or_current(device.index())), 0);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool high_priority) const override {
    return getNewStream(device, 0);
  }
  c10::Stream getNewStream(c10::Device device, int priority) const override {
    SimDevice& of = used_device(device.index());
    return torch_stream(of, of.new_stream());
  }
  c10::Stream exchangeStream(c10::Stream stream) const noexcept override {
    SimDevice& device = SimDevice::of(stream.device_index());
    const c10::Stream previous = torch_stream(device, device.current_stream());
    device.set_current_stream(checked_stream(device, stream));
    return previous;
  }
  bool queryStream(const c10::Stream& stream) const override {
    const SimDevice& device = used_device(stream.device_index());
    return device.stream_ns(checked_stream(device, stream)) <= device.host_ns();
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    SimDevice& device = used_device(stream.device_index());
    device.host_waits(device.stream_ns(checked_stream(device, stream)), "synchronize stream");
  }
  void synchronizeDevice(c10::DeviceIndex index) const override {
    used_device(index).synchronize("synchronize device");
  }

  void record(void** event, const c10::Stream& stream, c10::DeviceIndex,
              c10::EventFlag) const override {
    if (*event == nullptr) *event = new int64_t(0);
    const SimDevice& device = used_device(stream.device_index());
    // A stream without work ends now.
    time_of(*event) = std::max(device.stream_ns(checked_stream(device, stream)), device.host_ns());
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event == nullptr) return;
    SimDevice& device = used_device(stream.device_index());
    device.stream_waits(checked_stream(device, stream), time_of(event));
  }
  bool queryEvent(void* event) const override {
    return event == nullptr || time_of(event) <= used_device(-1).host_ns();
  }
  void synchronizeEvent(void* event) const override {
    if (event == nullptr) return;
    used_device(-1).host_waits(time_of(event), "synchronize event");
  }
  double elapsedTime(void* from, void* to, c10::DeviceIndex) const override {
    TORCH_CHECK(from != nullptr && to != nullptr,
                "Both events must be recorded before elapsed time is measured");
    return static_cast<double>(time_of(to) - time_of(from)) / 1e6;
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
    delete static_cast<int64_t*>(event);
  }

 private:
  // A stream object may be from an earlier run.
  static int checked_stream(const SimDevice& device, const c10::Stream& stream) {
    return stream.id() < device.num_streams() ? static_cast<int>(stream.id()) : 0;
  }
};

class Hooks final : public at::PrivateUse1HooksInterface {
 public:
  // LibTorch looks at the streams of the devices that have one.
  bool hasPrimaryContext(c10::DeviceIndex index) const override { return owns_device(index); }
  c10::DeviceIndex deviceCount() const override {
    return static_cast<c10::DeviceIndex>(num_node_devices());
  }
  void setCurrentDevice(c10::DeviceIndex index) const override { set_current_device(index); }
  c10::DeviceIndex getCurrentDevice() const override {
    return static_cast<c10::DeviceIndex>(current_device());
  }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    const c10::DeviceIndex previous = getCurrentDevice();
    set_current_device(index);
    return previous;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override {
    return index < 0 ? getCurrentDevice() : exchangeDevice(index);
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override {
    const int device = device_or_current(index);
    if (owns_device(device) || device >= num_node_devices()) {
      return default_generator(SimDevice::of(device));
    }
    // A process has generators of its own for the devices of others, and draws nothing from them.
    // Newer releases' torch::manual_seed() seeds those of all devices.
    static thread_local at::Generator of_other;
    of_other = new_generator(device);
    return of_other;
  }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override {
    return new_generator(device_or_current(index));
  }
  at::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator(); }
  bool isPinnedPtr(const void* data) const override { return is_pinned(data); }
  at::Device getDeviceFromPtr(void*) const override { return torch_device(current_device()); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    const c10::DeviceGuard guard(storage.device());
    c10::DataPtr data = device_allocator().allocate(bytes);
    const size_t kept = std::min(bytes, storage.nbytes());
    MemoryBlock* const from = block_of(storage.data_ptr());
    if (MemoryBlock* to = block_of(data); to != nullptr && from != nullptr) {
      const Contents least = std::max(to->contents, from->contents);
      if (least != Contents::kHollow) {
        std::memcpy(data.get(), storage.data(), kept);
        to->contents = least;
      } else if (to->contents != Contents::kHollow) {
        to->contents = Contents::kUnknown;
      }
    }
    storage.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(data));
    storage.unsafeGetStorageImpl()->set_nbytes(bytes);
  }
};

// The check with which Module::to gives a parameter another storage.
bool has_compatible_type(const at::Tensor& self, const at::Tensor& from) { return true; }

torch::CppFunction on_host() { return torch::CppFunction::makeFromBoxedFunction<&run_on_host>(); }

// c10d has no kernel for devices' sparse tensors, which the simulator's backend accepts.
void reduce_as_dense(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), stack);
}

// Registrations last as long as their Library, which is never destroyed here.
torch::Library& library(const char* name_space, c10::DispatchKey key) {
  return *new torch::Library(torch::Library::IMPL, name_space, key, __FILE__, __LINE__);
}

// Without this, an operator with a CPU kernel and a composite one would use the latter, which does
// not always give the same bits.
void prefer_cpu_kernels(torch::Library& aten, c10::DispatchKey device_key,
                        c10::DispatchKey cpu_key) {
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    if (!absl::StartsWith(name.name, "aten::")) continue;
    auto op = dispatcher.findOp(name);
    if (!op || !op->hasSchema() || !op->hasKernelForDispatchKey(cpu_key) ||
        op->hasKernelForDispatchKey(device_key)) {
      continue;
    }
    if (is_composed(*op)) aten.impl(c10::toString(name).c_str(), on_host());
  }
}

// A list of tensors takes one kernel, as on a GPU; the CPU takes one for each tensor. But copies of
// lists may come from the host.
void take_lists_at_once(torch::Library& aten) {
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (absl::StartsWith(name.name, "aten::_foreach_") &&
        !absl::StartsWith(name.name, "aten::_foreach_copy")) {
      aten.impl(c10::toString(name).c_str(), on_host());
    }
  }
}

void register_kernels() {
  using c10::DispatchKey;
  library("_", DispatchKey::PrivateUse1).fallback(on_host());
  library("_", DispatchKey::SparsePrivateUse1).fallback(on_host());
  library("_", DispatchKey::AutogradPrivateUse1).fallback(torch::CppFunction::makeFallthrough());
  library("_", DispatchKey::AutocastPrivateUse1).fallback(torch::CppFunction::makeFallthrough());

  torch::Library& aten = library("aten", DispatchKey::PrivateUse1);
  register_basic_ops(aten);
  register_composite_ops(aten);
  // The CPU's kernel chooses the algorithm itself; for other devices LibTorch looks one up.
  aten.impl("convolution", on_host());
  aten.impl("convolution_backward", on_host());
  // Composite operators with one part that LibTorch looks up by device type.
  for (const char* name : {"kaiser_window", "kaiser_window.periodic", "kaiser_window.beta"}) {
    aten.impl(name, on_host());
  }
  take_lists_at_once(aten);
  prefer_cpu_kernels(aten, DispatchKey::PrivateUse1, DispatchKey::CPU);
  prefer_cpu_kernels(library("aten", DispatchKey::SparsePrivateUse1),
                     DispatchKey::SparsePrivateUse1, DispatchKey::SparseCPU);

  library("c10d", DispatchKey::SparsePrivateUse1)
      .impl("allreduce_", torch::CppFunction::makeFromBoxedFunction<&reduce_as_dense>());

  torch::Library& autograd = library("aten", DispatchKey::AutogradPrivateUse1);
  register_composite_ops(autograd);
  register_dropout(aten, autograd);
  for (torch::Library* each : {&aten, &autograd}) {
    each->impl("_has_compatible_shallow_copy_type", TORCH_FN(has_compatible_type));
  }
  cast_like_cpu(false);
}

}  // namespace

void install_sim_device() {
  static const bool installed = [] {
    install_engine();
    c10::register_privateuse1_backend("sim");
    install_host_allocator();
    c10::SetAllocator(c10::kPrivateUse1, &device_allocator());
    c10::impl::device_guard_impl_registry[static_cast<size_t>(c10::kPrivateUse1)].store(
        new DeviceGuardImpl());
    at::RegisterPrivateUse1HooksInterface(new Hooks());
    register_kernels();
    install_shape_rules();
    register_compiled_regions();
    return true;
  }();
  static_cast<void>(installed);
}

}  // namespace accelerate::simulator
