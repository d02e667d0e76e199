/// Batch samplers cut a pass into batches of sample indices.
///
/// A batch sampler of one's own derives from BatchSampler and says in begin_pass which batches the
/// pass has, of whatever lengths: IndexBatches::from_lists.
/// Threads: one, as samplers.
/// Mirrors: torch.utils.data.BatchSampler
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Generator.h>
#include <nlohmann/json_fwd.hpp>

#include "accelerate/data/index_batches.h"
#include "accelerate/data/sampler.h"

namespace accelerate {

class BatchSampler {
 public:
  virtual ~BatchSampler() = default;

  /// How long all batches but the last are; absent: they differ.
  virtual std::optional<int64_t> batch_size() const = 0;
  /// Whether a last batch that is short is left out.
  virtual bool drop_last() const = 0;
  /// How many batches a pass has.
  virtual int64_t size() const = 0;
  /// How many samples it has, where that is known before it begins.
  virtual std::optional<int64_t> num_samples() const { return std::nullopt; }

  /// As with Sampler.
  virtual IndexBatches begin_pass() = 0;
  virtual void end_pass() {}
  virtual void set_epoch(int64_t epoch) {}
  virtual at::Generator* generator() { return nullptr; }
  virtual nlohmann::json state_dict() const;
  virtual void load_state_dict(const nlohmann::json& state);
  virtual void forget_pass() {}
};

/// Batches of `batch_size` samples in a sampler's order.
class FixedSizeBatchSampler : public BatchSampler {
 public:
  /// Errors: c10::ValueError unless there is a sampler and batch_size is positive.
  FixedSizeBatchSampler(std::shared_ptr<Sampler> sampler, int64_t batch_size,
                        bool drop_last = false);

  const std::shared_ptr<Sampler>& sampler() const { return sampler_; }

  std::optional<int64_t> batch_size() const override { return batch_size_; }
  bool drop_last() const override { return drop_last_; }
  int64_t size() const override;
  std::optional<int64_t> num_samples() const override { return sampler_->size(); }
  IndexBatches begin_pass() override;
  void end_pass() override { sampler_->end_pass(); }
  void set_epoch(int64_t epoch) override { sampler_->set_epoch(epoch); }
  at::Generator* generator() override { return sampler_->generator(); }
  nlohmann::json state_dict() const override;
  void load_state_dict(const nlohmann::json& state) override;
  void forget_pass() override { sampler_->forget_pass(); }

 private:
  std::shared_ptr<Sampler> sampler_;
  int64_t batch_size_;
  bool drop_last_;
};

struct ListBatchSamplerOptions {
  /// Promises that all batches but the last are this long.
  std::optional<int64_t> batch_size = std::nullopt;
  /// Forbids that a rank's last batches are filled up when they are shared out.
  bool drop_last = false;
};

/// The same given batches in every pass.
class ListBatchSampler : public BatchSampler {
 public:
  explicit ListBatchSampler(const std::vector<std::vector<int64_t>>& batches,
                            ListBatchSamplerOptions options = {});

  std::optional<int64_t> batch_size() const override { return options_.batch_size; }
  bool drop_last() const override { return options_.drop_last; }
  int64_t size() const override { return batches_.size(); }
  std::optional<int64_t> num_samples() const override { return batches_.order().size(); }
  IndexBatches begin_pass() override { return batches_; }

 private:
  IndexBatches batches_;
  ListBatchSamplerOptions options_;
};

namespace internal {

// The batches of `batch_size` in `order` from position `begin` on.
IndexBatches cut_into_batches(IndexOrder order, int64_t begin, int64_t batch_size, bool drop_last);

}  // namespace internal
}  // namespace accelerate
