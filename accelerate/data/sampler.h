/// The order in which an epoch visits a dataset's samples.
///
/// Samplers hold no position: an epoch's order is a function of the epoch's number, so that every
/// rank, and a run that resumes, gets the same one without talking to anybody.
/// Threads: immutable; share them freely.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace accelerate {

class Sampler {
 public:
  virtual ~Sampler() = default;

  /// The epoch's order: int64 indices [size()], contiguous on the CPU.
  virtual at::Tensor indices(int64_t epoch) const = 0;

  /// How many samples an epoch visits.
  virtual int64_t size() const = 0;
};

/// 0, 1, 2, … in every epoch.
class SequentialSampler : public Sampler {
 public:
  explicit SequentialSampler(int64_t size);

  at::Tensor indices(int64_t epoch) const override;
  int64_t size() const override { return size_; }

 private:
  int64_t size_;
};

/// A permutation per epoch: torch::randperm by a CPU generator seeded with `seed + epoch`.
/// Mirrors: accelerate data_loader.py, SeedableRandomSampler.
class RandomSampler : public Sampler {
 public:
  RandomSampler(int64_t size, uint64_t seed);

  at::Tensor indices(int64_t epoch) const override;
  int64_t size() const override { return size_; }

  uint64_t seed() const { return seed_; }

 private:
  int64_t size_;
  uint64_t seed_;
};

/// A seed from LibTorch's default CPU generator, which it advances: one draw of an int64, from 0.
uint64_t draw_seed();

}  // namespace accelerate
