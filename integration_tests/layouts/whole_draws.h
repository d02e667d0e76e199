/// A handler of tests, with which dropout gives the same values in every layout: for a part of a
/// tensor it takes the part of what one rank would draw for the whole tensor.
///
/// Threads: as OperatorMode.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include <ATen/core/Tensor.h>

#include "accelerate/operators/operator_mode.h"

namespace accelerate {

/// Draws from the common stream (operators/random_streams.h), which advances as on one rank. To be
/// used in a scope around forward passes; at::dropout alone, of contiguous tensors.
class WholeDraws final : public OperatorHandler {
 public:
  /// Which of how many equal parts along a dimension.
  struct Part {
    int64_t dim = 0;
    int64_t index = 0;
    int64_t count = 1;
  };
  /// Nothing for a tensor that all ranks have.
  using PartOf = std::function<std::optional<Part>(const at::Tensor&)>;

  explicit WholeDraws(PartOf part_of);

  void call(const OperatorCall& call) override;

 private:
  const PartOf part_of_;
};

}  // namespace accelerate
