/// How a bucket of gradients is reduced over the ranks.
///
/// Threads: the thread of the backward pass; a bucket is completed on the thread that completes its
///          operation.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/ScalarType.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/comm.hpp>

#include "accelerate/config/kwargs_handlers.h"
#include "accelerate/precision/fp8_gradients.h"
#include "accelerate/state/logger.h"
#include "accelerate/tensors/state_dict.h"

namespace accelerate {

struct ZeroConfig;

class CommunicationHook {
 public:
  using Group = c10::intrusive_ptr<c10d::ProcessGroup>;
  using Future = c10::intrusive_ptr<c10::ivalue::Future>;

  virtual ~CommunicationHook() = default;

  /// Starts to compute the mean over ranks in the bucket's buffer. The future's value is that
  /// buffer, or the error. Collective: ranks reduce buckets in the same order.
  virtual Future reduce(const Group& group, c10d::GradBucket& bucket) = 0;

  /// What reduce divides the bucket by before anything is sent; 1 unless overridden. Local.
  virtual double divisor(const Group& /*group*/) const { return 1; }
  /// As reduce, of a bucket that is divided by that already: a hook that casts buckets to a smaller
  /// dtype divides first, because quotients may be in its range where gradients are not.
  virtual Future reduce_divided(const Group& group, c10d::GradBucket& bucket) {
    return reduce(group, bucket);
  }

  /// This rank's memory from step to step; empty unless overridden. Local.
  virtual StateDict state_dict() const { return {}; }
  /// Errors: c10::ValueError for the state of another kind of hook; nothing has changed then.
  virtual void load_state_dict(const StateDict& state);
};

/// Divides, and sums over the ranks. With `before` it divides by this much first and by the rest
/// afterwards; 0: by the number of ranks first.
class MeanHook final : public CommunicationHook {
 public:
  explicit MeanHook(double before = 0) : before_(before) {}

  Future reduce(const Group& group, c10d::GradBucket& bucket) override;
  double divisor(const Group& group) const override;
  Future reduce_divided(const Group& group, c10d::GradBucket& bucket) override;

 private:
  const double before_;
};

/// Passes the bucket in `dtype` to `inner`, and casts the result back. The real and imaginary parts
/// of complex gradients are cast one by one. In fp16, what is sent becomes infinite beyond 65,504.
/// Source: the fp16 and bf16 hooks and wrappers of torch.distributed.algorithms.ddp_comm_hooks.
/// Differs: gradients of which `inner` takes the mean are divided before they are cast to a smaller
///          dtype; there afterwards, so that means are infinite that fp16 has.
class CastHook final : public CommunicationHook {
 public:
  CastHook(c10::ScalarType dtype, std::unique_ptr<CommunicationHook> inner)
      : dtype_(dtype), inner_(std::move(inner)) {}

  Future reduce(const Group& group, c10d::GradBucket& bucket) override;
  double divisor(const Group& group) const override { return inner_->divisor(group); }
  Future reduce_divided(const Group& group, c10d::GradBucket& bucket) override {
    return reduce_cast(&CommunicationHook::reduce_divided, group, bucket);
  }
  StateDict state_dict() const override { return inner_->state_dict(); }
  void load_state_dict(const StateDict& state) override { inner_->load_state_dict(state); }

 private:
  using Reduce = Future (CommunicationHook::*)(const Group& group, c10d::GradBucket& bucket);
  Future reduce_cast(Reduce reduce, const Group& group, c10d::GradBucket& bucket);

  const c10::ScalarType dtype_;
  const std::unique_ptr<CommunicationHook> inner_;
};

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

  at::Tensor add_error(Memory& memory, const at::Tensor& buffer) const;
  Parts split_bucket(const c10d::GradBucket& bucket, const at::Tensor& source) const;
  void start_power_iteration(Memory& memory, std::vector<Batch>& batches, const at::Tensor& q);
  void compress(const Group& group, c10d::GradBucket& bucket, const at::Tensor& buffer);
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

/// Rounds the gradients of `weights` in each bucket (MS-AMP's level O1; see
/// precision/fp8_gradients.h), and passes the bucket to `inner`. Waits for one small all-reduce per
/// bucket.
class Fp8GradientHook final : public CommunicationHook {
 public:
  Fp8GradientHook(std::vector<at::Tensor> weights, std::unique_ptr<CommunicationHook> inner)
      : rounding_(std::move(weights)), inner_(std::move(inner)) {}

  Future reduce(const Group& group, c10d::GradBucket& bucket) override {
    // The gradients are views of the bucket's buffer.
    rounding_.round(bucket.getParameters(), bucket.getGradients(), group.get());
    return inner_->reduce(group, bucket);
  }

 private:
  const Fp8GradientRounding rounding_;
  const std::unique_ptr<CommunicationHook> inner_;
};

/// The hook for these options: comm_hook inside comm_wrapper; null for neither. A wrapper alone
/// wraps a plain all-reduce. Local. Errors: c10::ValueError naming options that contradict each
/// other.
std::unique_ptr<CommunicationHook> make_communication_hook(
    const DistributedDataParallelKwargs& options);

/// How gradients of whole parameters, as in stage 0 of ZeRO, are reduced: by `hook`, which is the
/// program's, as the configuration asks for it. Null where both ask for nothing. Errors:
/// c10::ValueError for a hook of the program's with a gradient_predivide_factor.
std::unique_ptr<CommunicationHook> zero_communication_hook(const ZeroConfig& config,
                                                           std::unique_ptr<CommunicationHook> hook);

}  // namespace accelerate
