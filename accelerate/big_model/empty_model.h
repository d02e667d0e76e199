/// Models that are built without memory, and get their values later: from a checkpoint, or those
/// that their constructor would have given them.
///
///     const auto model = [&] {
///       const EmptyInit empty = init_empty_weights();
///       return Llama(config);             // 7 billion parameters, no memory
///     }();
///     materialize(*model, {.filter = [](const std::string& name) { return is_mine(name); }});
///
/// A constructor in C++ makes tensors before it registers them, so the scope acts on the operators
/// that make and fill tensors, and sorts them at its end: parameters stay on the device; buffers,
/// and all other tensors that require no gradient, move back to where they would be without the
/// scope, with their values, unless include_buffers. A parameter that requires no gradient counts
/// as a buffer. See operators/construction_record.h for what is recorded, random numbers and
/// limits.
///
/// Local. Threads: a scope acts on the thread that made it.
/// Mirrors: accelerate big_modeling.py, init_empty_weights and init_on_device.
/// Differs: values can be made later (materialize). Buffers that are computed from others are right
///          also with include_buffers. Tensors that are made elsewhere and then registered stay
///          there; PyTorch's hook would move them.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include <c10/core/Device.h>

#include "accelerate/base/libtorch_fwd.h"
#include "accelerate/operators/construction_record.h"

namespace accelerate {

/// New tensors are on a device while it lives. Scopes nest; the innermost one decides.
class [[nodiscard]] EmptyInit {
 public:
  EmptyInit(c10::Device device, bool include_buffers);
  /// Gives buffers their place. Does nothing while an exception passes.
  /// Errors: those of the operators that make their values; buffers are on the device then.
  ~EmptyInit() noexcept(false);
  EmptyInit(const EmptyInit&) = delete;
  EmptyInit& operator=(const EmptyInit&) = delete;

 private:
  ConstructionScope scope_;
  const bool include_buffers_;
  const int exceptions_;
};

/// A scope in which models have no memory. `include_buffers`: whether buffers have none either; by
/// default what ACCELERATE_INIT_INCLUDE_BUFFERS says, else false.
/// Errors: of the constructor, c10::NotImplementedError naming an operator that needs values.
EmptyInit init_empty_weights(std::optional<bool> include_buffers = {});

/// A scope in which parameters are on `device`, and buffers where they were, unless
/// `include_buffers`. Inside init_empty_weights, init_on_device(cpu) surrounds a module whose
/// constructor needs values.
EmptyInit init_on_device(c10::Device device, std::optional<bool> include_buffers = {});

struct MaterializeOptions {
  /// Which parameters and buffers get their values, by name; absent: all. A tied tensor gets them
  /// if one of its names is chosen.
  std::function<bool(const std::string& name)> filter;
  /// Where; absent: where an ordinary construction would have put them.
  std::optional<c10::Device> device;
};

/// Gives tensors of an empty model the values of an ordinary construction, bit by bit. Tensors that
/// have memory stay as they are. When none is left without values, the random generators are as
/// after that construction, unless they were used in between.
/// Errors: c10::ValueError naming chosen tensors of which no construction is known; the errors of
///         the operators. The module is unchanged then.
void materialize(torch::nn::Module& module, const MaterializeOptions& options = {});

}  // namespace accelerate
