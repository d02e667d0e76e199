/// A recorded region: the operators of a part of a model, forward and backward, as a text of our
/// own and in a form that runs.
///
/// The text is JSON, one object a line:
///
///     {"region":1,"inputs":[{"dtype":6,"sizes":[2,3],"strides":[3,1],...}, ...]}
///     {"op":"aten::mm","args":[{"t":0},{"t":3}],"out":[4]}        one for each operator
///     {"outputs":[4],"differentiable":[true],"tensors":5}
///     {"gradients_of":[5],"strides":[[3,1]]}                      only with a backward half
///     {"op":...}
///     {"gradients":[{"input":0,"t":8}, ...],"tensors":9}
///
/// Tensors are numbers: those of the inputs first, then results in their order. An operator that
/// changes a tensor in place gives back the same number. Arguments are as the operator's schema has
/// them; {"number":2.0,"dtype":6} stands for a number that LibTorch made a tensor of, {"f":"inf"}
/// for a number that JSON lacks. The text is all that a region is: equal texts are equal regions.
///
/// Errors:  c10::Error for a text that is none, or names an operator that LibTorch does not have.
/// Threads: a program is constant, so any may run it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>

namespace accelerate {

/// An argument of an operator.
struct RegionArgument {
  enum class Kind { kConstant, kTensor, kList };
  Kind kind = Kind::kConstant;
  c10::IValue constant = {};
  int tensor = -1;
  /// A list in which tensors are, and the type of its elements.
  std::vector<RegionArgument> list = {};
  c10::TypePtr element_type = nullptr;
};

/// A call of an operator.
struct RegionStep {
  c10::OperatorHandle op;
  std::vector<RegionArgument> arguments = {};
  /// By result, the tensors in it; -1: none is kept.
  std::vector<std::vector<int>> results = {};
  /// The tensors that nothing needs afterwards.
  std::vector<int> last_uses = {};
};

/// Where a gradient goes: to the edge of an input.
struct RegionGradient {
  int input = -1;
  int tensor = -1;  ///< -1: there is none
};

struct RegionProgram {
  std::string text;
  /// That of the forward half alone.
  std::string forward_text;
  int num_tensors = 0;
  int num_inputs = 0;
  /// That of the inputs; the CPU where all are there.
  c10::Device device = c10::kCPU;

  std::vector<RegionStep> forward;
  std::vector<int> outputs;  ///< -1: undefined
  std::vector<bool> differentiable;

  bool has_backward = false;
  /// The gradients of the differentiable outputs, in their order: their numbers and strides.
  std::vector<int> gradients_of;
  std::vector<std::vector<int64_t>> gradient_strides;
  std::vector<RegionStep> backward;
  std::vector<RegionGradient> gradients;
  /// What the backward half needs of the forward half.
  std::vector<int> saved;
};

/// The program of a text.
std::shared_ptr<const RegionProgram> parse_region(const std::string& text);

/// What the forward half gives.
struct RegionResult {
  std::vector<at::Tensor> outputs;
  std::vector<at::Tensor> saved;
};

/// A region in a form that runs, on any thread. Tensors have the dtypes, devices, sizes and strides
/// of the recording, which the caller has checked.
class RegionCode {
 public:
  virtual ~RegionCode() = default;
  /// As run_forward.
  virtual RegionResult forward(const std::vector<at::Tensor>& inputs) const = 0;
  /// As run_backward.
  virtual std::vector<at::Tensor> backward(const std::vector<at::Tensor>& saved,
                                           const std::vector<at::Tensor>& grads) const = 0;
};

/// Runs the forward half, operator by operator. Nothing is recorded by autograd.
RegionResult run_forward(const RegionProgram& program, const std::vector<at::Tensor>& inputs);

/// Runs the backward half: the gradients, in the order of `program.gradients`. `grads` are those of
/// the differentiable outputs.
std::vector<at::Tensor> run_backward(const RegionProgram& program,
                                     const std::vector<at::Tensor>& saved,
                                     const std::vector<at::Tensor>& grads);

}  // namespace accelerate
