/// Streams of numbers, which the golden cases read.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/randperm.h>

namespace accelerate::golden {

/// 0, 1, ..., n - 1, as a stream that does not tell its length.
class UnsizedRange {
 public:
  explicit UnsizedRange(int64_t n) : n_(n) {}

  std::optional<int64_t> next() { return next_ < n_ ? std::optional(next_++) : std::nullopt; }
  void reset() { next_ = 0; }

 protected:
  int64_t n_;

 private:
  int64_t next_ = 0;
};

class Range : public UnsizedRange {
 public:
  using UnsizedRange::UnsizedRange;
  int64_t size() const { return n_; }
};

/// 0 to n - 1 in an order drawn at the begin of each pass from its own generator.
class UnsizedShuffledRange {
 public:
  explicit UnsizedShuffledRange(int64_t n)
      : n_(n), generator_(at::detail::createCPUGenerator(/*seed_val=*/0)) {}

  at::Generator& generator() { return generator_; }
  void reset() {
    order_ = at::randperm(n_, generator_, at::kLong);
    next_ = 0;
  }
  std::optional<int64_t> next() {
    if (next_ == n_) return std::nullopt;
    return order_.const_data_ptr<int64_t>()[next_++];
  }

 protected:
  int64_t n_;

 private:
  at::Generator generator_;
  at::Tensor order_;
  int64_t next_ = 0;
};

class ShuffledRange : public UnsizedShuffledRange {
 public:
  using UnsizedShuffledRange::UnsizedShuffledRange;
  int64_t size() const { return n_; }
};

}  // namespace accelerate::golden
