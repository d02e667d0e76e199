/// A table of operator calls that a device has to compute as the CPU does, bit for bit.
///
/// A case makes its inputs on the CPU, from a seed of its own, moves them to the device it is given
/// and returns everything that may differ: results, tensors changed in place, and gradients. Its
/// tensors are all on that device; numbers that the host reads come back as tensors (`number`).
///
/// Threads: the table is constant once made; a case runs on any thread.
#pragma once

#include <functional>
#include <initializer_list>
#include <ostream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

namespace accelerate::device_test {

using at::Tensor;
using Tensors = std::vector<at::Tensor>;
using Dims = std::vector<int64_t>;

/// Where a case's inputs come from: the same values on every device.
class Inputs {
 public:
  explicit Inputs(c10::Device device);

  c10::Device device() const { return device_; }
  at::TensorOptions options(at::ScalarType dtype = at::kFloat) const {
    return at::TensorOptions().dtype(dtype).device(device_);
  }

  /// Normally distributed; complex and low precision types too.
  Tensor randn(at::IntArrayRef size, at::ScalarType dtype = at::kFloat);
  /// Uniform in [low, high).
  Tensor uniform(at::IntArrayRef size, double low, double high, at::ScalarType dtype = at::kFloat);
  /// In [low, high).
  Tensor integers(at::IntArrayRef size, int64_t low, int64_t high,
                  at::ScalarType dtype = at::kLong);
  Tensor booleans(at::IntArrayRef size);
  Tensor values(std::initializer_list<double> values, at::ScalarType dtype = at::kFloat);
  Tensor indices(std::initializer_list<int64_t> values);
  /// A number that the host read from the device, to be compared.
  Tensor number(double value);

  /// A generator of the device's own kind.
  at::Generator generator(uint64_t seed) const;

 private:
  const c10::Device device_;
  at::Generator cpu_generator_;
};

inline Tensors as_list(Tensor tensor) { return {std::move(tensor)}; }
inline Tensors as_list(Tensors tensors) { return tensors; }
template <typename... T>
Tensors as_list(std::tuple<T...> tensors) {
  return std::apply([](auto... tensor) { return Tensors{std::move(tensor)...}; },
                    std::move(tensors));
}
void append(Tensors& list, Tensors more);

/// The results of `function` for `inputs`, then the gradients of a weighted sum of them. Inputs
/// that are not floating-point numbers get none; a gradient that does not exist is an undefined
/// tensor.
Tensors with_gradients(Inputs& in, Tensors inputs,
                       const std::function<Tensors(const Tensors&)>& function);

struct OpCase {
  std::string name;  ///< letters, digits and underscores
  std::function<Tensors(Inputs&)> run;

  friend std::ostream& operator<<(std::ostream& out, const OpCase& op_case) {
    return out << op_case.name;
  }
};

class OpCases {
 public:
  /// `function`: from Inputs to a tensor, a list or a tuple of them.
  template <typename Function>
  void add(std::string name, Function function) {
    cases_.push_back({std::move(name), [function](Inputs& in) { return as_list(function(in)); }});
  }
  /// `function`: from normally distributed tensors of these sizes to a tensor, a list or a tuple;
  /// its gradients are results as well.
  template <typename Function>
  void differentiable(std::string name, std::vector<std::vector<int64_t>> sizes, Function function,
                      at::ScalarType dtype = at::kFloat) {
    cases_.push_back({std::move(name), [sizes, function, dtype](Inputs& in) {
                        Tensors inputs;
                        for (const auto& size : sizes) inputs.push_back(in.randn(size, dtype));
                        return with_gradients(in, std::move(inputs), [&](const Tensors& x) {
                          return as_list(function(x));
                        });
                      }});
  }
  const std::vector<OpCase>& list() const { return cases_; }

 private:
  std::vector<OpCase> cases_;
};

// One file each.
void add_pointwise_cases(OpCases& cases);
void add_reduction_cases(OpCases& cases);
void add_linalg_cases(OpCases& cases);
void add_complex_cases(OpCases& cases);
void add_layer_cases(OpCases& cases);
void add_loss_cases(OpCases& cases);
void add_sequence_cases(OpCases& cases);
void add_indexing_cases(OpCases& cases);
void add_shape_cases(OpCases& cases);
void add_factory_cases(OpCases& cases);
void add_update_cases(OpCases& cases);
void add_sparse_cases(OpCases& cases);
void add_autograd_cases(OpCases& cases);
void add_rare_cases(OpCases& cases);

/// All of them; made at the first call.
const std::vector<OpCase>& all_op_cases();

}  // namespace accelerate::device_test
