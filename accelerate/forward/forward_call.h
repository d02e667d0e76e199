/// One call of a module's forward: its inputs and its output as trees of tensors, whatever their
/// types.
///
/// Who surrounds a forward pass (a technique, a hook, a checkpoint) is written once for all modules
/// and sees a ForwardCall. ForwardCallOf makes one of a function and its arguments, which stay on
/// the caller's stack with their types: without a look at tensors a call costs a virtual function
/// and no memory.
///
///     ForwardCallOf<Forward, Inputs...> call(forward, std::forward<Inputs>(inputs)...);
///     surround(call);             // looks at call.inputs(), runs it, looks at call.outputs()
///     return call.take_output();
///
/// What it guarantees:
///   - forward gets each argument as the same kind of reference as the caller gave it: an lvalue,
///     const or not, or an rvalue, which may be a type that is moved only. An argument of which no
///     tensor was replaced is the caller's own object.
///   - Tensors among the inputs may be replaced, by others of any shape. Where the caller keeps the
///     argument, forward gets a copy of the argument with them, which for a tensor copies the
///     handle alone. An rvalue is changed itself. So is an lvalue that forward takes by non-const
///     reference, because the caller wants what forward does to it; whether forward does so is
///     asked by std::is_invocable, so a generic lambda needs a return type that says what it takes.
///   - Tensors in a const or kept argument that cannot be copied, in tuples of references, and in
///     types that are not trees, are not seen and pass unchanged.
///   - run() with a dtype passes copies of all arguments that hold tensors, whose floating-point
///     tensors have that dtype. The inputs keep theirs.
///   - run() may be called again, with the tensors that the inputs have then. What forward took out
///     of an rvalue, and what it changed of an argument, is not put back.
///   - The output is a value, also where forward returns a reference; void has no tensors.
///   - An exception of forward leaves run() and leaves the output of an earlier run in place.
/// Threads: one thread; calls do not share anything, so they may nest.
#pragma once

#include <concepts>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

#include "absl/functional/function_ref.h"
#include "accelerate/forward/forward_values.h"
#include "accelerate/tensors/tree.h"
#include "accelerate/tensors/tree_operations.h"

namespace accelerate {

/// What a call returned, without its tensors.
struct KeptOutput {
  virtual ~KeptOutput() = default;
};

class ForwardCall {
 public:
  virtual ForwardValues& inputs() = 0;
  /// Without tensors until the call has run.
  virtual ForwardValues& outputs() = 0;
  /// The output's form, for later calls of the same function; null where it cannot be copied.
  virtual std::shared_ptr<const KeptOutput> keep_output() const = 0;
  /// Gives the call such an output in the place of a run: outputs() has as many tensors as it had,
  /// to be set. Errors: c10::Error for an output of another type.
  virtual void set_kept_output(const KeptOutput& kept) = 0;
  /// Runs forward. `input_dtype`: the dtype of the floating-point tensors that forward gets;
  /// absent: as the inputs have them.
  virtual void run(const std::optional<at::ScalarType>& input_dtype) = 0;

 protected:
  ~ForwardCall() = default;
};

namespace internal {

// Tuples of references are left alone: what they refer to is not theirs.
template <typename T>
constexpr bool kHasForwardTensors = (kMayHoldTensors<T> && !kHoldsReferences<T>) || HasOwnTo<T>;

// A module's forward as a function.
template <typename Module>
struct ModuleForward {
  Module& module;

  template <typename... Inputs>
  auto operator()(Inputs&&... inputs) const
      -> decltype(module.forward(std::forward<Inputs>(inputs)...)) {
    return module.forward(std::forward<Inputs>(inputs)...);
  }
};

// An argument for one run: the one that it is given or a copy with tensors of another dtype.
template <typename Input>
class CastInput {
 public:
  CastInput(std::remove_reference_t<Input>& input, const std::optional<at::ScalarType>& dtype)
      : input_(input) {
    if constexpr (kIsCopied) {
      if (!dtype) return;
      copy_.emplace(tree_map(
          Value(input), [&dtype](const at::Tensor& each) { return with_dtype(each, *dtype); }));
    }
  }

  // The same kind of reference as the caller's.
  Input&& get() {
    if constexpr (kIsCopied) {
      if (copy_) return static_cast<Input&&>(*copy_);
    }
    return static_cast<Input&&>(input_);
  }

 private:
  using Value = std::remove_cvref_t<Input>;
  static constexpr bool kIsCopied =
      kMayHoldTensors<Value> && !kHoldsReferences<Value> && std::copy_constructible<Value>;

  std::remove_reference_t<Input>& input_;
  std::optional<std::conditional_t<kIsCopied, Value, char>> copy_;
};

// One argument: the caller's own, or, once a tensor of an argument that the caller keeps is
// replaced, a copy. `kInPlace`: the caller's is changed.
template <typename Input, bool kInPlace>
class ForwardArgument {
 public:
  explicit ForwardArgument(Input&& given) : given_(given) {}

  void for_each_tensor(absl::FunctionRef<void(at::Tensor&)> fn) {
    if constexpr (kIsSeen) visit_leaves(to_change(), fn);
  }
  void for_each_tensor(absl::FunctionRef<void(const at::Tensor&)> fn) const {
    if constexpr (kIsSeen) visit_leaves(std::as_const(current()), fn);
  }
  void append_key(ValuesKey& key) const {
    if constexpr (kHasForwardTensors<Value> && !kIsSeen) {
      key.is_known = false;
    } else {
      append_value_key<Value>(current(), key);
    }
  }
  void send_to_device(c10::Device device, const SendToDeviceOptions& options) {
    if constexpr (kIsSeen) send_in_place(to_change(), device, options);
  }

  CastInput<Input> for_run(const std::optional<at::ScalarType>& dtype) {
    return CastInput<Input>(current(), dtype);
  }

 private:
  using Given = std::remove_reference_t<Input>;
  using Value = std::remove_cv_t<Given>;
  // An rvalue is not needed by the caller any more.
  static constexpr bool kIsKept =
      (std::is_lvalue_reference_v<Input> && !kInPlace) || std::is_const_v<Given>;
  static constexpr bool kIsCopied =
      kIsKept && kHasForwardTensors<Value> && std::copy_constructible<Value>;
  static constexpr bool kIsSeen = kHasForwardTensors<Value> && (!kIsKept || kIsCopied);

  Given& current() const {
    if constexpr (kIsCopied) {
      if (copy_) return *copy_;
    }
    return given_;
  }
  Value& to_change() {
    if constexpr (kIsCopied) {
      if (!copy_) copy_.emplace(given_);
      return *copy_;
    } else {
      return given_;
    }
  }

  Given& given_;
  // Not the caller's, so that it may change where the argument itself may not.
  mutable std::optional<std::conditional_t<kIsCopied, Value, char>> copy_;
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

template <typename... Arguments>
class ForwardArguments final : public ForwardValues {
 public:
  template <typename... Inputs>
  explicit ForwardArguments(Inputs&&... inputs)
      : arguments_(Arguments(std::forward<Inputs>(inputs))...) {}
  ForwardArguments(const ForwardArguments&) = delete;
  ForwardArguments& operator=(const ForwardArguments&) = delete;

  void for_each_tensor(absl::FunctionRef<void(at::Tensor&)> fn) override {
    apply([fn](auto&... argument) { (argument.for_each_tensor(fn), ...); });
  }
  void for_each_tensor(absl::FunctionRef<void(const at::Tensor&)> fn) const override {
    std::apply([fn](const auto&... argument) { (argument.for_each_tensor(fn), ...); }, arguments_);
  }
  void append_key(ValuesKey& key) const override {
    std::apply([&key](const auto&... argument) { (argument.append_key(key), ...); }, arguments_);
  }
  void send_to_device(c10::Device device, const SendToDeviceOptions& options) override {
    apply([&](auto&... argument) { (argument.send_to_device(device, options), ...); });
  }

  // fn(argument...)
  template <typename Fn>
  decltype(auto) apply(const Fn& fn) {
    return std::apply(fn, arguments_);
  }

 private:
  std::tuple<Arguments...> arguments_;
};

// The types of arguments by their positions.
template <typename Forward, typename Positions, typename... Inputs>
struct ForwardArgumentsFor;
template <typename Forward, size_t... I, typename... Inputs>
struct ForwardArgumentsFor<Forward, std::index_sequence<I...>, Inputs...> {
  using Type =
      ForwardArguments<ForwardArgument<Inputs, takes_in_place<I, Forward, Inputs...>()>...>;
};

}  // namespace internal

/// What a call returns; nothing before it has run.
template <typename Output>
class ForwardOutput final : public ForwardValues {
 public:
  ForwardOutput() = default;
  explicit ForwardOutput(Output value) : value_(std::in_place, std::move(value)) {}

  void set(Output value) { value_.emplace(std::move(value)); }
  const std::optional<Output>& value() const { return value_; }
  /// Errors: c10::Error for a call that did not run.
  Output take() {
    TORCH_CHECK(value_.has_value(),
                "a forward call has no output, because what surrounds the module did not run it");
    return *std::move(value_);
  }

  void for_each_tensor(absl::FunctionRef<void(at::Tensor&)> fn) override {
    if constexpr (internal::kHasForwardTensors<Output>) {
      if (value_) internal::visit_leaves(*value_, fn);
    }
  }
  void for_each_tensor(absl::FunctionRef<void(const at::Tensor&)> fn) const override {
    if constexpr (internal::kHasForwardTensors<Output>) {
      if (value_) internal::visit_leaves(*value_, fn);
    }
  }
  void append_key(ValuesKey& key) const override {
    if (value_) internal::append_value_key(*value_, key);
  }
  void send_to_device(c10::Device device, const SendToDeviceOptions& options) override {
    if constexpr (internal::kHasForwardTensors<Output>) {
      if (value_) internal::send_in_place(*value_, device, options);
    }
  }

 private:
  std::optional<Output> value_;
};
template <>
class ForwardOutput<void> final : public ForwardValues {
 public:
  void take() {}
  void for_each_tensor(absl::FunctionRef<void(at::Tensor&)> /*fn*/) override {}
  void for_each_tensor(absl::FunctionRef<void(const at::Tensor&)> /*fn*/) const override {}
  void append_key(ValuesKey& key) const override { key.is_known = false; }
  void send_to_device(c10::Device /*device*/, const SendToDeviceOptions& /*options*/) override {}
};

namespace internal {

// The same for all calls with such an output, whatever references their arguments are.
template <typename Output>
struct KeptOutputOf final : KeptOutput {
  ForwardOutput<Output> output;
};

}  // namespace internal

/// forward(inputs...) as a ForwardCall. Inputs are as a forwarding reference deduces them: an
/// lvalue's is a reference. The function and the arguments outlive the call.
template <typename Forward, typename... Inputs>
class ForwardCallOf final : public ForwardCall {
 public:
  using Output = std::decay_t<std::invoke_result_t<Forward&, Inputs&&...>>;

  explicit ForwardCallOf(Forward& forward, Inputs&&... inputs)
      : forward_(forward), inputs_(std::forward<Inputs>(inputs)...) {}
  ForwardCallOf(const ForwardCallOf&) = delete;
  ForwardCallOf& operator=(const ForwardCallOf&) = delete;

  ForwardValues& inputs() override { return inputs_; }
  ForwardValues& outputs() override { return output_; }
  std::shared_ptr<const KeptOutput> keep_output() const override {
    if constexpr (kIsKept) {
      if (!output_.value()) return nullptr;
      auto kept = std::make_shared<internal::KeptOutputOf<Output>>();
      kept->output.set(*output_.value());
      internal::forget_tensors(kept->output);
      return kept;
    } else {
      return nullptr;
    }
  }
  void set_kept_output(const KeptOutput& kept) override {
    if constexpr (kIsKept) {
      const auto* own = dynamic_cast<const internal::KeptOutputOf<Output>*>(&kept);
      TORCH_CHECK(own != nullptr, "a forward call was given an output of another type");
      output_.set(*own->output.value());
    } else {
      TORCH_CHECK(false, "a forward call has an output that cannot be copied");
    }
  }
  void run(const std::optional<at::ScalarType>& input_dtype) override {
    inputs_.apply([&](auto&... argument) {
      if constexpr (std::is_void_v<Output>) {
        std::invoke(forward_, argument.for_run(input_dtype).get()...);
      } else {
        output_.set(std::invoke(forward_, argument.for_run(input_dtype).get()...));
      }
    });
  }
  /// Once, after the last use of outputs(). Errors: c10::Error for a call that did not run.
  Output take_output() { return output_.take(); }

 private:
  static constexpr bool kIsKept = internal::kMayHoldTensors<Output> &&
                                  !internal::kHoldsReferences<Output> &&
                                  std::copy_constructible<Output>;

  Forward& forward_;
  typename internal::ForwardArgumentsFor<Forward, std::index_sequence_for<Inputs...>,
                                         Inputs...>::Type inputs_;
  ForwardOutput<Output> output_;
};

/// fn(call), where the call gets the inputs as rvalues, which it may change. Returns a value.
template <typename Forward, typename... Inputs, typename Fn>
auto with_forward_call(Forward& forward, std::tuple<Inputs...>& inputs, Fn&& fn) {
  return std::apply(
      [&](Inputs&... each) {
        ForwardCallOf<Forward, Inputs...> call(forward, std::move(each)...);
        return fn(call);
      },
      inputs);
}

}  // namespace accelerate
