/// The tensors among the arguments of a forward pass, or in what it returns, as hooks see them.
///
/// The arguments of a C++ forward have types, so a hook sees them as a tree of tensors (see
/// tensors/tree.h): it may look at each tensor and replace it, and send all of them to a device.
/// Other values pass unchanged. Tensors that a hook replaces are those that forward gets, not the
/// caller's: an argument that the caller keeps is copied, which for a tensor copies the handle
/// alone. An argument that forward takes by non-const reference is the caller's own, and hooks
/// change it.
/// Threads: that of the forward pass.
#pragma once

#include <concepts>
#include <cstddef>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "absl/functional/function_ref.h"
#include "accelerate/tensors/tree.h"
#include "accelerate/tensors/tree_operations.h"

namespace accelerate {

class ForwardValues {
 public:
  /// Calls fn for each tensor, in the order of the arguments; assigning to it replaces it.
  virtual void for_each_tensor(absl::FunctionRef<void(at::Tensor&)> fn) = 0;
  /// As accelerate::send_to_device of each argument. Map entries under one of `skip_keys` stay.
  virtual void send_to_device(c10::Device device, const SendToDeviceOptions& options = {}) = 0;

  /// That of the first tensor; absent without tensors.
  std::optional<c10::Device> find_device() {
    std::optional<c10::Device> device;
    for_each_tensor([&device](const at::Tensor& tensor) {
      if (!device && tensor.defined()) device = tensor.device();
    });
    return device;
  }

 protected:
  ~ForwardValues() = default;
};

namespace internal {

// Tuples of references are left alone: what they refer to is not theirs.
template <typename T>
constexpr bool kHasForwardTensors = (kMayHoldTensors<T> && !kHoldsReferences<T>) || HasOwnTo<T>;

// Parts: values with or without tensors, by reference.
template <typename... Parts>
class ForwardValuesOf final : public ForwardValues {
 public:
  explicit ForwardValuesOf(Parts&... parts) : parts_(parts...) {}

  void for_each_tensor(absl::FunctionRef<void(at::Tensor&)> fn) override {
    for_each_part([&fn](auto& part) { visit_leaves(part, fn); });
  }
  void send_to_device(c10::Device device, const SendToDeviceOptions& options) override {
    for_each_part([&](auto& part) { send_in_place(part, device, options); });
  }

 private:
  template <typename Fn>
  void for_each_part(const Fn& fn) {
    std::apply(
        [&fn](auto&... part) {
          const auto visit = [&fn]<typename Part>(Part& part) {
            if constexpr (!std::is_const_v<Part> && kHasForwardTensors<Part>) fn(part);
          };
          (visit(part), ...);
        },
        parts_);
  }

  std::tuple<Parts&...> parts_;
};

// One argument of a forward pass: the caller's own, or a copy that hooks may change. `kInPlace`:
// the caller's is changed.
template <typename Input, bool kInPlace>
class ForwardInput {
 public:
  explicit ForwardInput(Input&& input) : own_(make(input)) {}

  // The reference that is given to hooks; const for the caller's own object.
  auto& value() {
    if constexpr (kIsCallers) {
      return std::as_const(own_);
    } else {
      return own_;
    }
  }
  // The same kind of reference as the caller's.
  Input&& pass() { return static_cast<Input&&>(own_); }

 private:
  using Given = std::remove_reference_t<Input>;
  using Value = std::remove_cv_t<Given>;
  // An rvalue is not needed by the caller any more.
  static constexpr bool kIsKept = std::is_lvalue_reference_v<Input> && !kInPlace;
  static constexpr bool kIsCopied =
      kIsKept && kHasForwardTensors<Value> && std::copy_constructible<Value>;
  static constexpr bool kIsCallers = kIsKept && !kIsCopied;
  using Own = std::conditional_t<kIsCopied, Value, Given&>;

  static Own make(Given& input) { return input; }

  Own own_;
};

// Whether forward needs its argument number I not to be const.
template <size_t I, typename Forward, typename... Inputs>
constexpr bool takes_in_place() {
  using Input = std::tuple_element_t<I, std::tuple<Inputs&&...>>;
  if constexpr (!std::is_lvalue_reference_v<Input> ||
                std::is_const_v<std::remove_reference_t<Input>>) {
    return false;
  } else {
    return []<size_t... J>(std::index_sequence<J...> /*all*/) {
      return !std::is_invocable_v<
          Forward&, std::conditional_t<I == J, const std::remove_reference_t<Input>&, Inputs&&>...>;
    }(std::index_sequence_for<Inputs...>());
  }
}

}  // namespace internal
}  // namespace accelerate
