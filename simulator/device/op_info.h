/// A description of an operator, read once from its schema and the operator registry: how much
/// arithmetic it does, and how a simulated device runs it.
///
/// Threads: any.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>

#include "simulator/device/kernel_chain.h"
#include "simulator/hardware/cluster_spec.h"
#include "simulator/hardware/kernel_time.h"

namespace accelerate::simulator {

/// The arithmetic of one call, from its arguments' shapes: its kind, its FLOP, and of a matrix
/// product or of attention the extents. A fused multiply-add counts as two FLOP, and complex
/// arithmetic as four times real arithmetic.
using WorkFormula = KernelWork (*)(c10::ArrayRef<c10::IValue> arguments);

/// What a recurrent layer or cell computes with.
struct RecurrentSizes {
  double rows = 0;     ///< of the input: [T, B, I], [B, T, I] or packed [rows, I]
  double weights = 0;  ///< elements of all weight matrices
  double gates = 0;    ///< rows of all weights for the input: elements of all gates for one row
};
RecurrentSizes recurrent_sizes(c10::ArrayRef<c10::IValue> arguments);

/// The peak rate at which the device computes in this dtype.
MathType math_type(c10::ScalarType dtype);

/// The number of elements of its first argument that one call reads or writes, from its arguments.
using ElementCount = double (*)(c10::ArrayRef<c10::IValue> arguments);

/// What the kernels that LibTorch has for GPUs do beyond what an operator needs.
struct Overhead {
  double read_bytes = 0;
  double written_bytes = 0;
  double scratch_bytes = 0;  ///< memory while they run
};
using OverheadFormula = Overhead (*)(c10::ArrayRef<c10::IValue> arguments);

/// The bytes of memory that a tensor's elements lie in. An expanded tensor has more elements than
/// memory, and LibTorch's constant zeros have none.
double memory_bytes(const at::Tensor& tensor);

/// The bytes that the gradients of fused attention take while they are computed, for these queries:
/// their gradient in fp32, and a number for each query and head.
double attention_backward_scratch(const at::Tensor& query);

/// The memory that an operator reads and writes, as far as its time depends on it. What it reads
/// and writes passes twice.
struct TensorTraffic {
  double bytes = 0;
  double written_bytes = 0;  ///< part of `bytes`
  /// A floating-point type if any tensor has one: it determines how fast the device computes.
  c10::ScalarType dtype = c10::ScalarType::Undefined;

  void add(const at::Tensor& tensor, bool written) {
    if (tensor.defined()) add(memory_bytes(tensor), tensor.scalar_type(), written);
  }
  void add(double passed, c10::ScalarType type, bool written) {
    bytes += passed;
    if (written) written_bytes += passed;
    if (!c10::isFloatingType(dtype)) dtype = type;
  }
  /// Adds the traffic, and the rate of its dtype, to what a kernel does.
  void apply_to(KernelWork& work) const {
    work.bytes = bytes;
    work.written_bytes = written_bytes;
    work.type = math_type(dtype);
  }
};

struct OpInfo {
  std::string name;      ///< "aten::add"
  std::string overload;  ///< "aten::add.Tensor"
  std::vector<std::string> argument_names;
  uint32_t num_arguments = 0;
  uint32_t num_returns = 0;
  uint64_t written = 0;  ///< a bit per argument that the operator writes to
  /// A bit per argument whose values the operator reads: `self` of add_, not that of fill_, never
  /// `out`, and not an argument that is there for its shape.
  uint64_t read = ~uint64_t{0};
  bool runs_kernel = true;     ///< false: views, sizes and storages only
  bool synchronizes = false;   ///< the host needs the result: its value or its size
  bool tells_values = false;   ///< the result is made of its arguments' values, for the host
  bool has_cpu_kernel = true;  ///< registered for the CPU, or composed of other operators
  /// Accepts indices and lengths on the CPU, as it does on real devices.
  bool mixes_devices = false;
  bool indexes = false;  ///< the later arguments index the first
  int generator_argument = -1;
  /// Becomes 1 if gradients are not finite; gradients without values count as finite.
  int found_inf_argument = -1;
  /// Draws from the default generator without taking a generator.
  bool draws_by_default = false;
  WorkFormula work = nullptr;
  /// What passes of a dense first argument, if that is not all of it: the rows that index_select
  /// picks, the elements that scatter_ places.
  ElementCount touched = nullptr;
  /// Where the device's kernels are not perfect (efficiency = measured); may be null.
  OverheadFormula overhead = nullptr;
  bool takes_lists = false;  ///< one operation on all tensors of lists
  Fusion fusion = Fusion::kNone;

  bool reads(size_t argument) const { return has(read, argument); }
  bool writes(size_t argument) const { return has(written, argument); }

 private:
  static bool has(uint64_t bits, size_t index) { return index < 64 && (bits >> index & 1) != 0; }
};

/// The kernels that LibTorch launches on a GPU for an operator that takes lists.
int64_t list_launches(const OpInfo& info, c10::ArrayRef<c10::IValue> arguments);

/// The description of `op`. It is never destroyed.
const OpInfo& op_info(const c10::OperatorHandle& op);

/// Whether LibTorch has a kernel for the operator that is made of other operators.
bool is_composed(const c10::OperatorHandle& op);

/// How the device runs an operator, once it is installed (install_sim_device).
enum class OpSupport {
  kCpuKernel,    ///< LibTorch's CPU kernel on the device's memory
  kDevice,       ///< a kernel of the device
  kComposed,     ///< LibTorch composes it of other operators
  kUnsupported,  ///< none of these: the operator throws
};

OpSupport op_support(const c10::OperatorHandle& op);

/// One line for each operator of ATen, sorted: its name with overload, a blank, and "cpu kernel",
/// "device", "composed" or "unsupported".
std::vector<std::string> list_op_support();

}  // namespace accelerate::simulator
