#include "accelerate/dispatch/activation_placement.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>

#include "absl/container/flat_hash_set.h"
#include "accelerate/operators/call_arguments.h"

namespace accelerate::internal {
namespace {

const void* storage_of(const at::Tensor& tensor) {
  return tensor.has_storage()
             ? tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl()
             : nullptr;
}

// A number that LibTorch's operators take beside tensors of any device.
bool is_host_number(const at::Tensor& tensor) { return tensor.dim() == 0 && tensor.is_cpu(); }

// Operators whose tensors may be on several devices, or whose second tensor only says what the
// result is like.
bool leaves_devices(const c10::OperatorHandle& op) {
  static const auto* const names = new absl::flat_hash_set<std::string>{
      "aten::copy_",      "aten::copy",       "aten::_copy_from",   "aten::_foreach_copy_",
      "aten::to",         "aten::type_as",    "aten::expand_as",    "aten::view_as",
      "aten::reshape_as", "aten::resize_as_", "aten::is_same_size", "aten::_has_same_storage_numel",
      "aten::set_",       "aten::set_data",   "aten::result_type"};
  return names->contains(op.schema().name());
}

// Operators that use an input several times, and are composed of others. Gradients of one copy for
// all of them would add up before those of what else uses the input.
bool is_composed(const c10::OperatorHandle& op) {
  static const auto* const names = new absl::flat_hash_set<std::string>{"aten::rms_norm"};
  return names->contains(op.schema().name());
}

// Arguments that are on the CPU by the operator's definition.
bool is_of_host(const std::string& argument) {
  return argument == "lengths" || argument == "batch_sizes" ||
         argument == "tensor_indices_or_sections";
}

// The device of running statistics, which a norm writes to although its schema does not say so.
std::optional<c10::Device> running_statistics(const OperatorCall& call) {
  const c10::FunctionSchema& schema = call.op().schema();
  const std::optional<int> position = schema.argumentIndexWithName("running_mean");
  if (!position) return std::nullopt;
  const c10::IValue& mean = torch::jit::peek(call.stack(), *position, schema.arguments().size());
  if (!mean.isTensor() || !mean.toTensor().defined()) return std::nullopt;
  return mean.toTensor().device();
}

bool writes_to(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

}  // namespace

void ModelPlaces::add(const at::Tensor& tensor, std::vector<c10::Device> others) {
  places_.push_back({.tensor = tensor, .others = std::move(others)});
}

void ModelPlaces::refresh() {
  if (by_storage_.empty() || std::ranges::any_of(places_, [](const Place& place) {
        return storage_of(place.tensor) != place.storage;
      })) {
    by_storage_.clear();
    for (Place& place : places_) {
      place.storage = storage_of(place.tensor);
      by_storage_.insert_or_assign(place.storage, &place);
    }
  }
  // After a pass with gradients an optimizer may have changed parameters, and LibTorch's SGD, which
  // steps on `data()`, leaves no trace of it.
  const bool changes = std::exchange(may_change_, at::GradMode::is_enabled());
  if (!changes) return;
  const absl::MutexLock lock(&mutex_);
  for (Place& place : places_) {
    if (place.tensor.requires_grad()) place.kept.clear();
  }
}

ModelPlaces::Place* ModelPlaces::find(const at::Tensor& tensor) const {
  const auto found = by_storage_.find(storage_of(tensor));
  return found == by_storage_.end() ? nullptr : found->second;
}

at::Tensor ModelPlaces::kept_copy(const at::Tensor& tensor, Place& place, c10::Device device) {
  // A copy stays only where LibTorch counts the changes of the tensor.
  if (tensor.is_inference() || !tensor.is_non_overlapping_and_dense()) return {};
  const absl::MutexLock lock(&mutex_);
  std::vector<KeptCopy>& copies = place.kept;
  const auto same_device = [&](const KeptCopy& each) { return each.device == device; };
  auto kept = std::ranges::find_if(copies, same_device);
  const int64_t version = tensor._version();
  if (kept != copies.end() && kept->version == version && kept->storage == storage_of(tensor) &&
      kept->values.sizes() == tensor.sizes() && kept->values.strides() == tensor.strides()) {
    return kept->values;
  }
  if (kept != copies.end()) copies.erase(kept);
  copies.push_back({device, version, storage_of(tensor), tensor.detach().to(device)});
  return copies.back().values;
}

// What an operator's arguments say.
struct ActivationPlacement::Scan {
  std::optional<c10::Device> first, accelerator, of_model, written;
  bool differs = false;      // tensors are on several devices
  bool has_current = false;  // a tensor is on the current device
  bool model_has_current = false;
  bool has_copies = false;  // a parameter has a copy on the current device
};

ActivationPlacement::ActivationPlacement(std::shared_ptr<ModelPlaces> places,
                                         c10::Device main_device)
    : OperatorHandler(OperatorOrder::kLinearProducts),
      places_(std::move(places)),
      current_(main_device) {
  for (const auto& each : current_operator_handlers()) {
    const auto* const outer = dynamic_cast<const ActivationPlacement*>(each.get());
    if (outer != nullptr && outer->places_ != places_) outer_.push_back(outer->places_);
  }
}

bool ActivationPlacement::is_of_outer(const OperatorCall& call) const {
  if (outer_.empty()) return false;
  bool is_one = false;
  for_each_tensor(arguments_of(call), [&](const at::Tensor& tensor) {
    for (const auto& places : outer_) is_one |= places->find(tensor) != nullptr;
  });
  return is_one;
}

void ActivationPlacement::call(const OperatorCall& call) {
  const c10::FunctionSchema& schema = call.op().schema();
  const auto& arguments = schema.arguments();
  const size_t count = arguments.size();
  Scan scan;
  const c10::Device current = current_;
  for (size_t i = 0; i < count; ++i) {
    for_each_tensor(torch::jit::peek(call.stack(), i, count), [&](const at::Tensor& tensor) {
      if (is_host_number(tensor)) return;
      const c10::Device device = tensor.device();
      if (!scan.first) {
        scan.first = device;
      } else if (device != *scan.first) {
        scan.differs = true;
      }
      if (!device.is_cpu() && !scan.accelerator) scan.accelerator = device;
      scan.has_current |= device == current;
      if (!scan.written && writes_to(arguments[i])) scan.written = device;
      if (const ModelPlaces::Place* place = places_->find(tensor)) {
        if (!scan.of_model) scan.of_model = device;
        scan.model_has_current |= device == current;
        scan.has_copies |= device != current && place->has_copy_on(current);
      }
    });
  }
  if (scan.has_copies || (scan.differs && !leaves_devices(call.op()))) {
    const bool is_left = (at::GradMode::is_enabled() && is_composed(call.op())) ||
                         (!scan.of_model && is_of_outer(call));
    if (!is_left) place(call, scan);
  } else if (scan.of_model && *scan.of_model != current && !scan.differs) {
    // What only makes a view does not compute.
    const c10::AliasInfo* alias = arguments[0].alias_info();
    if (alias == nullptr || alias->isWrite()) current_ = *scan.of_model;
  }
  call.proceed();
}

void ActivationPlacement::place(const OperatorCall& call, const Scan& scan) {
  const auto& arguments = call.op().schema().arguments();
  const size_t count = arguments.size();
  const c10::Device current = current_;
  c10::Device target = scan.accelerator.value_or(*scan.first);
  if (scan.written) {
    target = *scan.written;
  } else if (const auto statistics = running_statistics(call)) {
    target = *statistics;
  } else if (scan.has_copies || scan.model_has_current) {
    target = current;
  } else if (scan.of_model) {
    target = *scan.of_model;
  } else if (scan.has_current) {
    target = current;
  }
  for (size_t i = 0; i < count; ++i) {
    if (writes_to(arguments[i]) || is_of_host(arguments[i].name())) continue;
    c10::IValue& value = torch::jit::peek(call.stack(), i, count);
    std::vector<std::pair<int, at::Tensor>> moves;
    for_each_tensor(value, [&](const at::Tensor& tensor, int place) {
      if (!is_host_number(tensor) && tensor.device() != target) moves.emplace_back(place, tensor);
    });
    if (moves.empty()) continue;
    for (auto& [place, tensor] : moves) tensor = moved(tensor, target);
    put_tensors(value, moves);
  }
  if (scan.of_model) current_ = target;
}

at::Tensor ActivationPlacement::tied_copy(const at::Tensor& tensor, ModelPlaces::Place& place,
                                          c10::Device device) {
  if (!place.has_copy_on(device)) return {};
  if (at::GradMode::is_enabled() && tensor.requires_grad()) return {};
  return places_->kept_copy(tensor, place, device);
}

at::Tensor ActivationPlacement::moved(const at::Tensor& tensor, c10::Device device) {
  // No handler moves the operands of the copies below.
  const OperatorModeScope no_handlers{OperatorHandlers()};
  ModelPlaces::Place* const place = places_->find(tensor);
  if (place != nullptr) {
    if (at::Tensor copy = tied_copy(tensor, *place, device); copy.defined()) return copy;
  }
  const bool has_gradient = at::GradMode::is_enabled() && tensor.requires_grad();
  // Gradients of several copies add up in the order of the operators that use them, as they do
  // without a cut; those of one copy would not. A parameter's copy goes at once.
  const bool is_kept = !has_gradient && !tensor.is_inference() && place == nullptr;
  if (is_kept) {
    const absl::MutexLock lock(&mutex_);
    for (const Copy& each : copies_) {
      if (each.of._unsafe_get_target() == tensor.unsafeGetTensorImpl() &&
          each.version == tensor._version() && each.values.device() == device) {
        return each.values;
      }
    }
  }
  at::Tensor copy = tensor.to(device);
  const absl::MutexLock lock(&mutex_);
  ++num_copies_;
  if (is_kept && !is_over_) {
    std::erase_if(copies_, [&](const Copy& each) {
      return each.of.expired() || each.values.device() != device ||
             each.of._unsafe_get_target() == tensor.unsafeGetTensorImpl();
    });
    copies_.push_back({WeakTensor(tensor.getIntrusivePtr()), tensor._version(), copy});
  }
  return copy;
}

void ActivationPlacement::end() {
  std::vector<Copy> copies;
  const absl::MutexLock lock(&mutex_);
  is_over_ = true;
  copies.swap(copies_);
}

}  // namespace accelerate::internal
