/// One description of a collective or point-to-point operation as one rank issued it.
///
/// The simulator's mismatch detector, debug mode on real backends and the log of the last
/// operations use it to compare ranks' calls and to report what a rank waits for. Making one
/// allocates nothing for the usual few tensors of few dims.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "accelerate/base/fields.h"

namespace accelerate {

struct CollectiveFingerprint {
  CollectiveFingerprint() = default;
  explicit CollectiveFingerprint(c10d::OpType op) : op(op) {}

  c10d::OpType op = c10d::OpType::UNKNOWN;
  c10d::ReduceOp::RedOpType reduce_op = c10d::ReduceOp::UNUSED;
  int root = -1;                   ///< rank within the group; -1: the operation has none
  int peer = -1;                   ///< of a point-to-point operation; -1: none, or any
  int tag = -1;                    ///< of a point-to-point operation
  bool shapes_may_differ = false;  ///< ranks need not agree on them, as in an all-to-all
  uint64_t sequence = 0;           ///< count of the group's collectives, from 0

  /// Adds a tensor's dtype and shape. A sparse tensor is described by its dense shape; an
  /// undefined one, which every backend refuses, is left out.
  void add(const at::Tensor& tensor);

  /// The first difference between two ranks' calls that should be the same collective, as in
  /// "shape [4] against [5]"; nullopt if there is none.
  std::optional<std::string> difference(const CollectiveFingerprint& other) const;

  /// Equal if there is no difference; ranks exchange it instead of the whole.
  uint64_t hash() const;

  /// As in "all_reduce #3 (sum, Float[4])".
  std::string to_string() const;

  c10::SmallVector<at::ScalarType, 4> dtypes;
  c10::SmallVector<int64_t, 4> dims;    ///< number of dims, per tensor
  c10::SmallVector<int64_t, 12> sizes;  ///< all shapes, one after the other
};
ACCELERATE_FIELDS(CollectiveFingerprint, op, reduce_op, root, peer, tag, shapes_may_differ,
                  sequence, dtypes, dims, sizes)

/// "all_reduce", "broadcast", ...
const char* op_name(c10d::OpType op);
/// "sum", "avg", ...
const char* reduce_op_name(c10d::ReduceOp::RedOpType op);

}  // namespace accelerate
