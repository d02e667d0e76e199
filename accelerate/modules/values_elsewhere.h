/// Where the values are of tensors that are in memory only while operators use them, where no ranks
/// divide them: on the host, or in files.
///
/// A model that keeps tensors so announces itself here, and whatever saves, loads or counts the
/// tensors of models asks.
///
/// Local. Threads: the rank's thread.
/// Mirrors: nothing.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include <ATen/core/Tensor.h>

#include "accelerate/runtime/runtime.h"

namespace accelerate {

struct ValuesElsewhere {
  /// A tensor on the CPU that has them; who writes to it changes them. Undefined: they are in a
  /// file, and stay as they are.
  at::Tensor home = {};
  /// Those of a file, on the CPU, in the tensor's dtype: not to be written to, since they may be
  /// the mapped file. Null where there is a home. Errors: CheckpointError naming the file.
  std::function<at::Tensor()> read = nullptr;
};

/// A model's tensors.
class TensorsElsewhere {
 public:
  virtual ~TensorsElsewhere() = default;
  /// Absent for a tensor that is always in memory, or is not the model's. Views count as the tensor
  /// whose memory they share.
  virtual std::optional<ValuesElsewhere> values_elsewhere(const at::Tensor& tensor) const = 0;
};

/// The rank's code finds the tensors from now on, as long as they live.
void announce_tensors_elsewhere(Runtime& runtime, std::weak_ptr<const TensorsElsewhere> tensors);

/// As the member function, for all models of the rank.
std::optional<ValuesElsewhere> find_values_elsewhere(const at::Tensor& tensor);

}  // namespace accelerate
