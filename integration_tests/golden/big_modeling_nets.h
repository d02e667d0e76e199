/// The models of big_modeling cases that are called: trees whose modules compute what the family's
/// description says of their classes. Every module runs hooks, and a Linear is LibTorch's.
///
/// Errors:  CaseError for what is not a model.
/// Threads: the rank's thread.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <nlohmann/json.hpp>

#include "accelerate/hooks/hooked.h"

namespace accelerate::golden {

/// Told of each module whose own tensors are about to be used by its own call.
using NetObserver = std::function<void(const torch::nn::Module& module)>;

/// A module of any class but Linear.
class NetModule : public torch::nn::Module {
 public:
  NetModule(const nlohmann::json& tree, const NetObserver& observer);

  at::Tensor forward(const at::Tensor& x);

 private:
  at::Tensor own(const char* name) const;

  const std::string class_;
  const NetObserver& observer_;
  std::vector<std::function<at::Tensor(const at::Tensor&)>> children_;
};

class Net {
 public:
  /// The model of a case, with its ties; `is_filled`: with the values of the family's description.
  /// Needs a Runtime, for buffers that are not persistent.
  explicit Net(const nlohmann::json& in, bool is_filled = true);
  Net(const Net&) = delete;
  Net& operator=(const Net&) = delete;

  const std::shared_ptr<Hooked<NetModule>>& module() const { return module_; }
  /// The module with that path. Errors: CaseError.
  torch::nn::Module& at(const std::string& path) const;
  std::string path_of(const torch::nn::Module& module) const;

  /// Who is told from now on.
  void observe(NetObserver observer) { observer_ = std::move(observer); }

 private:
  NetObserver observer_;
  std::shared_ptr<Hooked<NetModule>> module_;
};

/// The input of a case's model: two rows, as wide as the first layer takes.
at::Tensor net_input(const nlohmann::json& in);

/// What the model of a case computes from it where nothing is placed, with the values of the case's
/// files if it has some.
nlohmann::json plain_output(const nlohmann::json& in);
/// Its parameters by name, as there.
nlohmann::json plain_tensors(const nlohmann::json& in);

}  // namespace accelerate::golden
