/// A model's modules and tensors without the model: names, classes, dtypes, sizes and ties.
///
/// What is planned from sizes alone, such as a device map, is planned on it: the library makes it
/// from a module, the launcher from files that describe one.
///
/// Units:   bytes and elements, as doubles: dtypes of less than a byte make fractions, and no sum
///          overflows. They are exact up to 2^50 bytes.
/// Threads: values; constant functions may run at the same time.
/// Mirrors: what accelerate utils/modeling.py asks of a torch.nn.Module.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace accelerate {

/// Bytes of an element of the dtype with this name: "float32", "torch.bfloat16", "bool" (a bit),
/// "int4", "fp8". Errors: InvalidArgument for names that no dtype has.
absl::StatusOr<double> dtype_bytes(absl::string_view dtype);

/// Whether tensors of the dtype stay in it where a model is loaded in another: those of integers
/// and truth values.
bool is_kept_dtype(absl::string_view dtype);

class ModuleTree {
 public:
  /// The number of a module, in the order in which they were added; the root is 0.
  using Module = int32_t;
  /// The number of a tensor, likewise.
  using Tensor = int32_t;

  struct TensorInfo {
    std::string name;
    /// As LibTorch calls it, without "torch.".
    std::string dtype = "float32";
    double elements = 0;
    bool is_buffer = false;
    /// Whether a state dict has it; parameters always are in it.
    bool is_persistent = true;
    /// Set by `add_tensor` and `tie`.
    Module module = 0;
    /// Tied tensors share an identity: the number of the first of them.
    Tensor identity = 0;
  };

  struct ModuleInfo {
    std::string name;
    std::string class_name;
    Module parent = -1;
    std::vector<Tensor> parameters;
    std::vector<Tensor> buffers;
    std::vector<Module> children;
  };

  /// A tree of a root alone.
  explicit ModuleTree(std::string root_class = "Module");

  /// Adds behind the parent's other children. Names of modules and tensors have no dot in them and
  /// are distinct within a module; this is not checked.
  Module add_module(Module parent, std::string name, std::string class_name);
  /// Adds behind the module's other parameters or buffers. The dtype must be one of dtype_bytes.
  Tensor add_tensor(Module module, TensorInfo tensor);
  /// Says that `later` is the same tensor as `earlier`, whose elements and dtype it takes.
  void tie(Tensor earlier, Tensor later);

  std::span<const ModuleInfo> modules() const { return modules_; }
  std::span<const TensorInfo> tensors() const { return tensors_; }
  const ModuleInfo& module(Module module) const { return modules_[static_cast<size_t>(module)]; }
  const TensorInfo& tensor(Tensor tensor) const { return tensors_[static_cast<size_t>(tensor)]; }

  /// The dotted path from the root, which has the path "".
  std::string module_path(Module module) const;
  std::string tensor_path(Tensor tensor) const;

  /// Modules as a walk comes by them, each before those below it.
  std::vector<Module> modules_in_order() const;
  /// All parameters, in the order of `modules_in_order`, then all buffers, likewise.
  std::vector<Tensor> tensors_in_order() const;

  /// -1 if there is none.
  Module find_module(absl::string_view path) const;
  Tensor find_tensor(absl::string_view path) const;

  /// Groups of two parameters or more that are one tensor, in order of each one's first parameter;
  /// names sorted within a group.
  /// Mirrors: find_tied_parameters.
  std::vector<std::vector<std::string>> tied_parameters() const;

 private:
  std::vector<ModuleInfo> modules_;
  std::vector<TensorInfo> tensors_;
};

}  // namespace accelerate
