/// The tensors of a saved state that nothing has asked for yet.
///
/// Threads: any.
#pragma once

#include <map>
#include <string>

#include "accelerate/tensors/state_dict.h"

namespace accelerate::internal {

/// The tensors of a state dict that messages call `where`, until they are taken.
/// Errors: c10::ValueError for two of one name.
class UntakenTensors {
 public:
  UntakenTensors(NamedTensors tensors, std::string where);
  /// Undefined where there is none.
  at::Tensor take(const std::string& name);
  /// Errors: c10::ValueError naming a tensor that is left, and what is wrong with it.
  void check_all_taken(const char* what) const;

 private:
  std::string where_;
  std::map<std::string, at::Tensor> tensors_;
};

}  // namespace accelerate::internal
