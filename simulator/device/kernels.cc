#include <cstring>
#include <optional>
#include <string>

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/SmallVector.h>

#include "simulator/device/attention.h"
#include "simulator/device/generator.h"
#include "simulator/device/host_call.h"
#include "simulator/device/install.h"
#include "simulator/device/op_watch.h"
#include "simulator/device/shapes.h"
#include "simulator/device/sim_device.h"
#include "simulator/device/value_faults.h"

namespace accelerate::simulator {
namespace {

SimDevice& allocating_device(c10::Device device) {
  return own_device(device.has_index() ? device.index() : current_device(), "allocates on");
}

void argument_to_host(HostCall& call, c10::IValue& value, size_t index, bool written,
                      StandIn stand_in) {
  if (value.isTensor() || value.isTensorList()) {
    map_tensors(value,
                [&](at::Tensor tensor) { return call.to_host(std::move(tensor), index, written); });
  } else if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> tensors;
    for (const std::optional<at::Tensor> tensor : value.toOptionalTensorList()) {
      tensors.push_back(tensor ? std::optional(call.to_host(*tensor, index, written)) : tensor);
    }
    value = std::move(tensors);
  } else if (value.isDevice()) {
    const c10::Device device = value.toDevice();
    if (!device.is_privateuseone()) return;
    if (call.device() == nullptr) {
      call.set_device(&allocating_device(device));
    }
    value = c10::Device(stand_in == StandIn::kMeta ? c10::kMeta : c10::kCPU);
  } else if (value.isGenerator()) {
    // Meta kernels draw nothing.
    value = stand_in == StandIn::kMeta ? c10::IValue()
                                       : c10::IValue(host_generator(value.toGenerator()));
  }
}

// An operator computes if it has the values that it reads and the bytes that it writes.
StandIn stand_in_for(const OpInfo& info, c10::ArrayRef<c10::IValue> arguments) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    const bool reads = info.reads(i);
    const auto is_missing = [reads](const at::Tensor& tensor) {
      return reads ? !has_values(tensor) : is_hollow(tensor);
    };
    if (any_tensor(arguments[i], is_missing)) return StandIn::kMeta;
  }
  return StandIn::kHost;
}

// In place of an operator that gives values to the host, if the values were not computed. A tensor
// equals itself whatever its values are.
void tell_unknown(const OpInfo& info, SimDevice& device, torch::jit::Stack& stack) {
  if (info.name == "aten::equal") {
    const at::Tensor& other = stack.back().toTensor();
    const at::Tensor& self = stack[stack.size() - 2].toTensor();
    if (self.is_alias_of(other) && self.storage_offset() == other.storage_offset() &&
        self.sizes() == other.sizes() && self.strides() == other.strides()) {
      torch::jit::drop(stack, 2);
      torch::jit::push(stack, true);
      return;
    }
  }
  TORCH_CHECK_NOT_IMPLEMENTED(
      info.name == "aten::_local_scalar_dense", info.name, " on rank ", current_rank(), " in step ",
      device.memory().step(), " compares or inspects values on ", device.name(),
      " that were not computed, because this run computes shapes only (numerics = shapes)");
  const double value = device.unknown_value(info.name);
  const c10::ScalarType dtype = torch::jit::pop(stack).toTensor().scalar_type();
  torch::jit::push(stack, unknown_scalar(dtype, value));
}

// Runs LibTorch's Meta kernel.
void tell_shapes(const c10::OperatorHandle& op, const OpInfo& info, torch::jit::Stack* stack) {
  try {
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta), stack);
  } catch (const c10::NotImplementedError& error) {
    if (op.hasKernelForDispatchKey(c10::DispatchKey::Meta)) throw;
    // LibTorch's first sentence names the operator, which may be part of this one.
    const std::string cause = error.what_without_backtrace();
    TORCH_CHECK_NOT_IMPLEMENTED(false, "numerics = shapes has no shape rule for ", info.overload,
                                ": ", cause.substr(0, cause.find(". ")));
  }
}

// ---- Operators that the device implements itself.

constexpr c10::DispatchKeySet kDeviceKeys(c10::DispatchKey::PrivateUse1);

// The device of an allocation.
c10::Device device_for(std::optional<c10::Device> device) {
  return torch_device(allocating_device(device.value_or(c10::kPrivateUse1)).index());
}

// A program may not use the values of fresh memory, but a simulation needs the same ones in every
// run. As floating-point numbers they are NaN.
at::Tensor with_no_values(at::Tensor tensor) {
  const c10::Storage& storage = tensor.storage();
  if (storage.nbytes() != 0 && !is_hollow(tensor)) {
    std::memset(storage.mutable_data(), 0xFF, storage.nbytes());
  }
  return tensor;
}

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout> layout, std::optional<at::Device> device,
                 std::optional<bool> pin_memory, std::optional<at::MemoryFormat> format) {
  TORCH_CHECK(!pin_memory.value_or(false), "Only dense CPU tensors can be pinned");
  const c10::DeviceGuard current(device_for(device));
  return with_no_values(at::detail::empty_generic(size, &device_allocator(), kDeviceKeys,
                                                  c10::dtype_or_default(dtype), format));
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                         std::optional<at::Device> device, std::optional<bool> pin_memory) {
  const c10::DeviceGuard current(device_for(device));
  return with_no_values(at::detail::empty_strided_generic(
      size, stride, &device_allocator(), kDeviceKeys, c10::dtype_or_default(dtype)));
}

SimDevice* sim_device_of(const at::Tensor& tensor) {
  return tensor.is_privateuseone() ? &SimDevice::of(tensor.device().index()) : nullptr;
}

at::Tensor& copy(at::Tensor& self, const at::Tensor& source, bool non_blocking) {
  SimDevice* const target = sim_device_of(self);
  SimDevice* const origin = sim_device_of(source);
  SimDevice& device = *(target != nullptr ? target : origin);
  static const OpInfo kCopyInfo{.name = "aten::copy_", .argument_names = {"self", "src"}};
  if (target != nullptr) {
    watch_training(kCopyInfo, {});
    if (!c10::GradMode::is_enabled()) watch_write(self);
  }
  {
    const KernelScope kernel(target, "aten::copy_");
    c10::impl::ExcludeDispatchKeyGuard below(kAboveKernels);
    const bool known = has_values(source);
    const StandIn stand_in = known && !is_hollow(self) ? StandIn::kHost : StandIn::kMeta;
    HostCall to(kCopyInfo, stand_in);
    HostCall from(kCopyInfo, stand_in);
    at::Tensor host = to.to_host(self, 0, /*written=*/true);
    host.copy_(from.to_host(source, 1, /*written=*/false));
    if (target == nullptr) {
      if (!known) {
        self.fill_(unknown_scalar(self.scalar_type(), device.unknown_value("copy to host")));
      }
    } else if (self.is_sparse()) {
      to.update_arguments();
    } else if (device.computes_shapes()) {
      mark_written(self, known);
    }
  }
  const auto bytes = static_cast<double>(self.nbytes());
  if (target == origin) {
    TensorTraffic traffic;
    traffic.add(self, /*written=*/true);
    traffic.add(source, /*written=*/false);
    const KernelWork work = {.bytes = traffic.bytes, .written_bytes = traffic.written_bytes};
    if (!device.fuses_kernels() || !self.has_storage() || !source.has_storage()) {
      device.launch("aten::copy_", work);
      return self;
    }
    const auto use = [](const at::Tensor& tensor, bool written) {
      return TensorUse{tensor.storage().unsafeGetStorageImpl(), memory_bytes(tensor), written,
                       written};
    };
    device.launch_fused("aten::copy_", Fusion::kElementwise, {use(source, false), use(self, true)},
                        work, {});
    return self;
  }
  if (target != nullptr && origin != nullptr) {
    origin->transfer_to(*target, bytes);
    return self;
  }
  // The host stages copies from pageable memory, and needs the result of copies to the host.
  const at::Tensor& host_side = target == nullptr ? self : source;
  const bool pinned = host_side.has_storage() && is_pinned(host_side.storage().data());
  device.transfer(/*to_host=*/target == nullptr, bytes, pinned);
  if (!(non_blocking && pinned)) {
    device.host_waits(device.stream_ns(device.current_stream()),
                      target == nullptr ? "copy to host" : "copy to device");
  }
  if (target == nullptr) watch_training(kCopyInfo, {});
  return self;
}

// LibTorch's own views, which need no kernel on any device. It is the rank's host that spends the
// time, whoever's the tensor is.
template <auto native>
struct View;
template <typename... Arguments, at::Tensor (*native)(Arguments...)>
struct View<native> {
  static at::Tensor of(Arguments... arguments) {
    if (!own_devices().empty()) own_devices()[0]->pass_view();
    return native(arguments...);
  }
};

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& target, bool non_blocking) {
  at::Tensor result = target;
  copy(result, self, non_blocking);
  return result;
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& target) {
  target.resize_(self.sizes());
  return copy_from(self, target, /*non_blocking=*/false);
}

at::Tensor& set_storage_part(at::Tensor& self, at::Storage source, int64_t offset,
                             at::IntArrayRef size, at::IntArrayRef stride) {
  c10::TensorImpl* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(source));
  if (stride.size() == size.size() && stride.data() != nullptr) {
    impl->set_sizes_and_strides(size, stride, offset);
  } else {
    impl->set_sizes_contiguous(size);
    impl->set_storage_offset(offset);
  }
  return self;
}

at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& source) {
  return set_storage_part(self, source.storage(), source.storage_offset(), source.sizes(),
                          source.strides());
}

at::Tensor& set_storage(at::Tensor& self, at::Storage source) {
  const auto numel = static_cast<int64_t>(source.nbytes() / self.itemsize());
  return set_storage_part(self, std::move(source), 0, {numel}, {});
}

at::Tensor& set_empty(at::Tensor& self) {
  return set_storage(self, c10::Storage(c10::Storage::use_byte_size_t(), 0, &device_allocator(),
                                        /*resizable=*/true));
}

// Without a model of the driver a block is reused only after all tensors that use it are gone, so
// that streams need not be recorded.
void record_stream(at::Tensor& self, at::Stream stream) {
  MemoryBlock* block = charged_block_of(self);
  if (block == nullptr) return;
  // A stream object may be from an earlier run.
  const int streams = block->memory->device()->num_streams();
  const bool is_known = stream.id() < streams;
  block->memory->record_stream(block, is_known ? static_cast<int>(stream.id()) : 0);
}

// ---- All other operators.

// Where LibTorch has attention for a GPU that stands for the CPU's: its name; and what it does.
const char* as_on_gpu(const SimDevice& device, c10::ArrayRef<c10::IValue> arguments,
                      KernelWork& work) {
  const size_t query = work.backward ? 1 : 0;
  const size_t dropout = work.backward ? 6 : 3;
  // The backward pass has an undefined mask for none.
  std::optional<at::Tensor> mask;
  if (work.masked) mask = arguments[dropout + 2].toTensor();
  const AttentionBackend backend =
      attention_backend(device, {.query = arguments[query].toTensor(),
                                 .key = arguments[query + 1].toTensor(),
                                 .value = arguments[query + 2].toTensor(),
                                 .attn_mask = std::move(mask),
                                 .dropout = arguments[dropout].toDouble(),
                                 .is_causal = work.causal,
                                 .enable_gqa = true});
  if (backend == AttentionBackend::kMath) return nullptr;
  work.efficient = backend == AttentionBackend::kMemoryEfficient;
  return attention_name(backend, work.backward);
}

OperatorCall call_of(SimDevice& device, const KernelWork& work,
                     c10::ArrayRef<c10::IValue> arguments) {
  const bool is_in_node = device.memory().in_backward();
  OperatorCall host = {
      .records = c10::GradMode::is_enabled() && !is_in_node,
      .is_in_node = is_in_node,
      .is_product = work.kind == KernelWork::Kind::kProduct && !work.is_convolution,
      .kernels = work.launches};
  for (const c10::IValue& value : arguments) {
    if (value.isTensorList()) host.tensors += static_cast<int64_t>(value.toListRef().size());
  }
  return host;
}

// Runs the kernel for `stand_in` on the arguments on the stack, leaves the device's results there,
// and charges the device.
void run_with(StandIn stand_in, const c10::OperatorHandle& op, const OpInfo& info,
              c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const auto arguments = stack->end() - info.num_arguments;
  const c10::ArrayRef<c10::IValue> argument_list = torch::jit::last(stack, info.num_arguments);
  HostCall call(info, stand_in);
  KernelWork work = info.work != nullptr ? info.work(argument_list) : KernelWork();
  if (info.touched != nullptr) call.touch(info.touched(argument_list));
  for (size_t i = 0; i < info.num_arguments; ++i) {
    argument_to_host(call, arguments[static_cast<ptrdiff_t>(i)], i, info.writes(i), stand_in);
  }
  if (call.device() == nullptr) call.set_device(&SimDevice::of(current_device()));
  call.check_devices();
  SimDevice& device = *call.device();
  const char* name = info.name.c_str();
  if (work.kind == KernelWork::Kind::kAttention && device.gpu_capability() > 0) {
    if (const char* known = as_on_gpu(device, argument_list, work)) name = known;
  }
  OperatorCall host;
  Overhead overhead;
  if (device.is_measured()) {
    if (info.takes_lists) {
      work.kind = KernelWork::Kind::kList;
      work.launches = list_launches(info, argument_list);
    }
    if (info.overhead != nullptr) overhead = info.overhead(argument_list);
    host = call_of(device, work, argument_list);
  }
  {
    const KernelScope kernel(&device, name);
    c10::impl::ExcludeDispatchKeyGuard below(kAboveKernels);
    if (stand_in == StandIn::kHost) {
      if (info.generator_argument >= 0) {
        c10::IValue& generator = arguments[info.generator_argument];
        if (generator.isNone()) generator = host_generator(default_generator(device));
      }
      std::optional<BorrowedGenerator> generator;
      if (info.draws_by_default) generator.emplace(device);
      op.redispatchBoxed(c10::DispatchKeySet(keys.has(c10::DispatchKey::SparsePrivateUse1)
                                                 ? c10::DispatchKey::SparseCPU
                                                 : c10::DispatchKey::CPU),
                         stack);
    } else if (info.tells_values) {
      tell_unknown(info, device, *stack);
    } else {
      tell_shapes(op, info, stack);
    }
    if (info.written != 0) call.update_arguments();
    const auto results = stack->end() - info.num_returns;
    for (size_t i = 0; i < info.num_returns; ++i) {
      map_tensors(results[static_cast<ptrdiff_t>(i)],
                  [&call](const at::Tensor& tensor) { return call.to_device(tensor); });
    }
  }
  if (info.runs_kernel) {
    call.traffic().apply_to(work);
    work.bytes += overhead.read_bytes + overhead.written_bytes;
    work.written_bytes += overhead.written_bytes;
    if (overhead.scratch_bytes > 0) {
      device.use_scratch(static_cast<size_t>(overhead.scratch_bytes), name);
    }
    if (device.fuses_kernels()) {
      device.launch_fused(name, info.fusion, call.uses(), work, host);
    } else {
      device.launch(name, work, host);
    }
  } else {
    device.pass_view();
  }
  if (info.synchronizes) device.host_waits(device.stream_ns(device.current_stream()), name);
  if (info.tells_values) watch_training(info, {});
}

// Runs the kernel on values, or finds out what shapes its results have.
void run_on_values_or_shapes(const c10::OperatorHandle& op, const OpInfo& info,
                             c10::DispatchKeySet keys, torch::jit::Stack* stack,
                             bool computes_shapes) {
  const c10::ArrayRef<c10::IValue> argument_list = torch::jit::last(stack, info.num_arguments);
  if (!computes_shapes) return run_with(StandIn::kHost, op, info, keys, stack);
  if (stand_in_for(info, argument_list) == StandIn::kMeta) {
    return run_with(StandIn::kMeta, op, info, keys, stack);
  }
  // Small arguments may have large results, which only the kernel tells.
  const c10::SmallVector<c10::IValue, 16> kept(argument_list.begin(), argument_list.end());
  const size_t below = stack->size() - kept.size();
  try {
    run_with(StandIn::kHost, op, info, keys, stack);
  } catch (const KernelTooLarge&) {
    stack->resize(below);
    stack->insert(stack->end(), kept.begin(), kept.end());
    run_with(StandIn::kMeta, op, info, keys, stack);
  }
}

}  // namespace

void run_on_host(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                 torch::jit::Stack* stack) {
  const OpInfo& info = op_info(op);
  const c10::ArrayRef<c10::IValue> arguments = torch::jit::last(stack, info.num_arguments);
  if (!info.tells_values) watch_training(info, arguments);
  TORCH_CHECK_NOT_IMPLEMENTED(info.has_cpu_kernel, "device sim does not support ", info.overload,
                              ": LibTorch has no CPU kernel for it, and simulated devices run "
                              "CPU kernels");
  SimDevice& device = SimDevice::of(current_device());
  // A rank's program is what its own thread runs.
  std::optional<OperatorFaults> faults;
  if (device.faults() != nullptr && current_rank() == device.rank()) {
    faults.emplace(*device.faults(), device, info.name.c_str(), arguments);
  }
  run_on_values_or_shapes(op, info, keys, stack, device.computes_shapes());
  if (faults) faults->strike_results(torch::jit::last(stack, info.num_returns));
}

void register_basic_ops(torch::Library& library) {
  library.impl("empty.memory_format", TORCH_FN(empty));
  library.impl("empty_strided", TORCH_FN(empty_strided));
  library.impl("copy_", TORCH_FN(copy));
  library.impl("_copy_from", TORCH_FN(copy_from));
  library.impl("_copy_from_and_resize", TORCH_FN(copy_from_and_resize));
  library.impl("set_.source_Tensor", TORCH_FN(set_tensor));
  library.impl("set_.source_Storage_storage_offset", TORCH_FN(set_storage_part));
  library.impl("set_.source_Storage", TORCH_FN(set_storage));
  library.impl("set_", TORCH_FN(set_empty));
  library.impl("record_stream", TORCH_FN(record_stream));
  library.impl("view", TORCH_FN(View<at::native::view>::of));
  library.impl("as_strided", TORCH_FN(View<at::native::as_strided_tensorimpl>::of));
  library.impl("_reshape_alias", TORCH_FN(View<at::native::_reshape_alias>::of));
  library.impl("unfold", TORCH_FN(View<at::native::unfold>::of));
}

}  // namespace accelerate::simulator
