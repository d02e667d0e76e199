/// What the device needs to know of an operator, read once from its schema.
///
/// Threads: any.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>

#include "simulator/device/op_cost.h"

namespace accelerate::simulator {

struct OpInfo {
  std::string name;      ///< "aten::add"
  std::string overload;  ///< "aten::add.Tensor"
  std::vector<std::string> argument_names;
  uint32_t num_arguments = 0;
  uint32_t num_returns = 0;
  uint64_t written = 0;            ///< a bit per argument that the operator writes to
  bool runs_kernel = true;         ///< false: views, sizes and storages only
  bool synchronizes = false;       ///< the host needs the result: its value or its size
  bool has_cpu_kernel = true;      ///< of its own or composed of others
  bool has_own_cpu_kernel = true;  ///< registered for the CPU itself
  /// Takes tensors of several devices, as on real devices: indices and lengths on the CPU.
  bool mixes_devices = false;
  bool indexes = false;  ///< its first argument by the others
  int generator_argument = -1;
  /// Draws from the default generator without taking a generator.
  bool draws_by_default = false;
  FlopFormula flops = nullptr;

  bool writes(size_t argument) const { return argument < 64 && (written >> argument & 1) != 0; }
};

/// The description of `op`. It lives for ever.
const OpInfo& op_info(const c10::OperatorHandle& op);

}  // namespace accelerate::simulator
