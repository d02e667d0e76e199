/// What reading files of torch.save works with: the tensors and other values that have a name in
/// such a file, and where the bytes of its tensors come from.
///
/// Threads: values.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <c10/core/Storage.h>

#include "absl/status/statusor.h"
#include "accelerate/tensors/state_dict.h"

namespace accelerate {

struct TorchStateDict {
  /// In the order of the file.
  NamedTensors tensors;
  struct Other {
    std::string name;
    /// What it is, and if it cannot be read, why.
    std::string why;
    /// Whether it is a tensor that cannot be read.
    bool is_tensor = false;
  };
  std::vector<Other> others;
};

namespace internal {

/// The bytes that tensors refer to by a key; asked once for each key.
using StorageOf = std::function<absl::StatusOr<c10::Storage>(const std::string& key)>;

}  // namespace internal
}  // namespace accelerate
