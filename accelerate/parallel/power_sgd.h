/// PowerSGD: ranks reduce two thin factors of each matrix of gradients, found by one step of power
/// iteration.
///
///   M (n x m) on each rank;  P = mean of M Q, made orthonormal;  Q = mean of M^T P;  M ~ P Q^T
///
/// The error of a rank's factors is added to its next gradients (error feedback), and the next step
/// starts from Q (warm start). Vectors, and matrices that would not shrink enough, are reduced
/// uncompressed. All ranks get the same bits. Infinite gradients stay infinite or become NaN, and
/// are not fed back.
///
/// Source: Vogels, Karimireddy, Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression for
///         Distributed Optimization", NeurIPS 2019, algorithms 1 and 2.
/// Memory: with error feedback the size of the gradients; the factors.
/// Errors: as the group's own, from reduce, which returns when the bucket is reduced: the factors
///         of one bucket depend on each other, and ranks must agree on the order of operations.
/// Threads: the thread of the backward pass.
/// Mirrors: torch.distributed.algorithms.ddp_comm_hooks, powerSGD_hook and batched_powerSGD_hook.
/// Differs: the error of the rank's own factors is fed back, as in the paper; PyTorch keeps the
///          difference to the mean, which has the same sum over ranks but grows.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include "accelerate/config/kwargs_handlers.h"
#include "accelerate/parallel/communication_hook.h"
#include "accelerate/state/logger.h"

namespace accelerate {

class PowerSgdHook final : public CommunicationHook {
 public:
  /// The matrices that are factorised.
  enum class Matrices {
    kParameters,  ///< a matrix per parameter of two or more dims, [first dim, rest]
    kBucket,      ///< the whole bucket as one square, padded with zeros
  };

  /// Errors: c10::ValueError naming an option that is out of range or contradicts another.
  PowerSgdHook(const PowerSgdOptions& options, Matrices matrices);

  Future reduce(const Group& group, c10d::GradBucket& bucket) override;

  /// The number of passes, the generator, and the memory of each bucket, not copied: "error.0",
  /// "q.0", ... It fits as long as the buckets hold the same parameters.
  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;

 private:
  // Matrices of one shape that are multiplied together.
  struct Batch {
    std::vector<at::Tensor> members;  // each [n, m]
    int64_t rank = 0;
    at::Tensor p, q;  // [members, n, rank] and [members, m, rank]: views of flat buffers

    at::Tensor stacked() const;  // [members, n, m]; a view where there is one member
  };
  // The memory of a bucket from step to step.
  struct Memory {
    at::Tensor error;  // flat; undefined without error feedback
    at::Tensor q;      // flat; undefined before the first step and without warm start
  };
  // A bucket split into matrices and the rest, as views of `source`.
  struct Parts {
    std::vector<Batch> batches;
    std::vector<at::Tensor> rest;
  };

  at::Tensor take_in(Memory& memory, const at::Tensor& buffer) const;
  Parts take_apart(const c10d::GradBucket& bucket, const at::Tensor& source) const;
  void begin_with(Memory& memory, std::vector<Batch>& batches, const at::Tensor& q);
  void compress(const Group& group, c10d::GradBucket& bucket, const at::Tensor& buffer);
  bool shrinks(const at::Tensor& matrix) const;
  void count(const c10d::GradBucket& bucket, int64_t before, int64_t after);

  const PowerSgdOptions options_;
  const Matrices matrices_;
  const Logger logger_;
  MeanHook plain_;
  at::Generator generator_;
  std::map<size_t, Memory> memories_;  // by bucket
  int64_t iteration_ = 0;
  // Elements since the last report.
  int64_t before_ = 0;
  int64_t after_ = 0;
};

namespace internal {

// Makes the columns of each matrix orthonormal. Shapes: [batch, n, r], r <= n. With epsilon > 0 by
// Gram-Schmidt, column norms increased by it; with 0 by a QR decomposition.
void orthogonalize(const at::Tensor& matrices, double epsilon);

}  // namespace internal
}  // namespace accelerate
