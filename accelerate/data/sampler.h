/// Samplers, which determine the order in which a pass visits a dataset's samples, and batch
/// samplers, which cut a pass into batches.
///
/// A pass begins with begin_pass(), which gives its whole order, and is completed by end_pass(),
/// which a loader calls when it hands out the last batch; a pass that is left early is not ended.
/// Random numbers are drawn as PyTorch's samplers draw them: the same seed gives the same order.
/// A sampler's state is JSON (numbers and strings only). state_dict() describes the pass that was
/// begun and not ended, or else the next one; a sampler that loads it begins that very pass again.
/// Generators: an undefined at::Generator stands for LibTorch's default CPU generator.
/// Threads: one; a loader's workers never touch its sampler.
/// Mirrors: torch.utils.data.sampler; accelerate data_loader.py, SeedableRandomSampler.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <nlohmann/json_fwd.hpp>

namespace accelerate {

/// The order in which one pass visits a dataset's samples: position -> index. The order 0, 1, 2, …
/// takes no memory, so that passing over a huge dataset, or entering it in its middle, costs
/// nothing. Immutable; threads may share it.
class IndexOrder {
 public:
  /// Visits nothing.
  IndexOrder() = default;

  /// 0, 1, …, size - 1. \pre size >= 0.
  static IndexOrder range(int64_t size);

  /// These indices. Errors: c10::ValueError unless it is a contiguous int64 vector on the CPU.
  explicit IndexOrder(at::Tensor indices);

  /// How many samples are visited.
  int64_t size() const { return size_; }

  /// Writes the indices at positions [begin, begin + count) to `out`. \pre They exist.
  void copy(int64_t begin, int64_t count, int64_t* out) const;

  /// int64 [size()] on the CPU.
  at::Tensor tensor() const;

 private:
  int64_t size_ = 0;
  at::Tensor indices_;  // undefined: a range
};

/// The batches of one pass, as lists of sample indices that can be asked for in any order.
///
/// Equally long batches at equal distances in an order are a few numbers, however many there are;
/// batches of a user's own making are spans of it. A last batch that differs is kept apart.
/// Immutable; threads may share them.
class IndexBatches {
 public:
  /// Where the regular batches lie in the order. Units: samples, `count` excepted.
  struct Layout {
    int64_t first = 0;   ///< Where batch 0 begins.
    int64_t stride = 0;  ///< From one batch's begin to the next's.
    int64_t length = 0;  ///< Samples of a batch.
    int64_t count = 0;   ///< How many batches.
  };

  /// Where one batch lies in the order.
  struct Span {
    int64_t begin = 0;
    int64_t length = 0;
  };

  /// No batches.
  IndexBatches() = default;

  /// The regular batches and, unless it is empty, `last` after them.
  IndexBatches(IndexOrder order, const Layout& layout, std::vector<int64_t> last = {});

  /// Batches of any lengths. Errors: c10::ValueError for a span outside the order.
  IndexBatches(IndexOrder order, std::vector<Span> spans);

  /// Exactly these batches.
  static IndexBatches from_lists(const std::vector<std::vector<int64_t>>& lists);

  int64_t size() const { return regular_count() + (last_.empty() ? 0 : 1); }

  /// Whether it was made of a layout.
  bool is_regular() const { return spans_.empty(); }
  const IndexOrder& order() const { return order_; }
  const std::vector<Span>& spans() const { return spans_; }

  /// How many samples batch i has. \pre 0 <= i < size().
  int64_t length(int64_t i) const;

  /// Writes the indices of batch i, length(i) of them. \pre as length.
  void copy(int64_t i, int64_t* out) const;

  /// Batch i in memory of its own: int64 [length(i)] on the CPU. \pre as length.
  at::Tensor operator[](int64_t i) const;

 private:
  int64_t regular_count() const {
    return is_regular() ? layout_.count : static_cast<int64_t>(spans_.size());
  }

  IndexOrder order_;
  Layout layout_;
  std::vector<Span> spans_;
  std::vector<int64_t> last_;
};

/// What samplers and batch samplers have in common: the course of their passes.
class PassSource {
 public:
  virtual ~PassSource() = default;

  /// Completes the pass begun last.
  virtual void end_pass() {}

  /// The number of the next pass, for samplers whose order follows from it.
  virtual void set_epoch(int64_t epoch) {}

  /// The generator it draws from, to be synchronised over ranks, or replaced where it is undefined;
  /// null where the order needs no synchronisation.
  virtual at::Generator* generator() { return nullptr; }

  /// A JSON object. Errors of loading: c10::ValueError, and the sampler is as it was.
  virtual nlohmann::json state_dict() const;
  virtual void load_state_dict(const nlohmann::json& state);
  /// The pass that was loaded is not to be begun again.
  virtual void discard_loaded_pass() {}
};

class Sampler : public PassSource {
 public:
  /// How many samples a pass visits.
  virtual int64_t size() const = 0;

  /// Begins a pass. May draw random numbers.
  virtual IndexOrder begin_pass() = 0;

  /// One whole pass: its indices, int64 [size()].
  at::Tensor indices();
};

namespace internal {

// A sampler that draws random numbers: where those of a pass come from, and how to have them again.
class DrawingSampler : public Sampler {
 public:
  void end_pass() override;
  at::Generator* generator() override { return &generator_; }
  nlohmann::json state_dict() const override;
  void load_state_dict(const nlohmann::json& state) override;
  void discard_loaded_pass() override { DrawingSampler::end_pass(); }

 protected:
  explicit DrawingSampler(at::Generator generator) : generator_(std::move(generator)) {}

  // The generator that the pass draws from: the given one, or, where there is none and `by_seed`, a
  // new one by a seed that is drawn from the default generator. A pass that is resumed starts where
  // it started before, and leaves the default generator, which is everybody's, alone.
  at::Generator begin_drawing(bool by_seed);

  at::Generator generator_;

 private:
  // They belong to the pass that is open or, if `resume_`, to the next one.
  std::optional<uint64_t> seed_;
  at::Tensor state_;
  bool resume_ = false;
};

}  // namespace internal

/// 0, 1, 2, … in every pass.
class SequentialSampler : public Sampler {
 public:
  /// Errors: c10::ValueError for a negative size.
  explicit SequentialSampler(int64_t size);

  int64_t size() const override { return size_; }
  IndexOrder begin_pass() override { return IndexOrder::range(size_); }

 private:
  int64_t size_;
};

struct RandomSamplerOptions {
  /// Draw each sample from all, instead of permuting them.
  bool replacement = false;
  /// How many samples a pass visits; absent: all once. More than there are: permutation after
  /// permutation.
  std::optional<int64_t> num_samples = std::nullopt;
  /// Undefined: each pass draws a seed from the default generator.
  at::Generator generator = {};
};

/// A new permutation of the samples in every pass.
class RandomSampler : public internal::DrawingSampler {
 public:
  /// Errors: c10::ValueError unless there are samples to visit.
  explicit RandomSampler(int64_t dataset_size, RandomSamplerOptions options = {});

  int64_t size() const override { return num_samples_; }
  IndexOrder begin_pass() override;
  void end_pass() override;

  bool replacement() const { return replacement_; }
  int64_t dataset_size() const { return dataset_size_; }

 protected:
  // The order that `generator` gives.
  IndexOrder draw(at::Generator generator) const;
  // Draws the numbers that a complete pass draws beyond its order.
  void draw_rest(at::Generator generator) const;

 private:
  int64_t dataset_size_;
  int64_t num_samples_;
  bool replacement_;
};

struct SeedableRandomSamplerOptions {
  bool replacement = false;
  std::optional<int64_t> num_samples = std::nullopt;
  /// Reseeded at every pass; undefined: one of its own.
  at::Generator generator = {};
  /// The seed of pass 0. Absent: the seed that the default generator has now.
  std::optional<uint64_t> data_seed = std::nullopt;
};

/// A permutation that follows from the pass's number alone: its generator is seeded with
/// initial_seed + epoch. A complete pass advances the epoch.
class SeedableRandomSampler : public RandomSampler {
 public:
  explicit SeedableRandomSampler(int64_t dataset_size, SeedableRandomSamplerOptions options = {});

  IndexOrder begin_pass() override;
  void end_pass() override;
  void set_epoch(int64_t epoch) override { epoch_ = epoch; }
  at::Generator* generator() override { return nullptr; }
  nlohmann::json state_dict() const override;
  void load_state_dict(const nlohmann::json& state) override;

  int64_t epoch() const { return epoch_; }
  uint64_t initial_seed() const { return initial_seed_; }

 private:
  uint64_t initial_seed_;
  bool shares_generator_;
  int64_t epoch_ = 0;
};

struct WeightedRandomSamplerOptions {
  bool replacement = true;
  at::Generator generator = {};
};

/// Draws samples with given probabilities (torch::multinomial).
class WeightedRandomSampler : public internal::DrawingSampler {
 public:
  /// `weights`: a vector, finite, not negative, not all zero; need not sum to 1.
  /// Errors: c10::ValueError otherwise, and without replacement for more samples than there are
  ///         weights above zero.
  WeightedRandomSampler(at::Tensor weights, int64_t num_samples,
                        WeightedRandomSamplerOptions options = {});

  int64_t size() const override { return num_samples_; }
  IndexOrder begin_pass() override;

 private:
  at::Tensor weights_;
  int64_t num_samples_;
  bool replacement_;
};

/// A permutation of the given indices in every pass.
class SubsetRandomSampler : public internal::DrawingSampler {
 public:
  /// `indices`: an integer vector.
  explicit SubsetRandomSampler(const at::Tensor& indices, at::Generator generator = {});

  int64_t size() const override { return indices_.numel(); }
  IndexOrder begin_pass() override;

 private:
  at::Tensor indices_;
};

/// A seed as PyTorch draws one: an int64 from 0. It advances the generator, by default LibTorch's
/// default CPU generator.
uint64_t draw_seed(at::Generator generator = {});

/// Cuts a pass into batches of sample indices. A user's batch sampler derives from this class and
/// returns the batches of a pass, of any lengths, from begin_pass: IndexBatches::from_lists.
/// Mirrors: torch.utils.data.BatchSampler.
class BatchSampler : public PassSource {
 public:
  /// The length of all batches but the last; absent: they differ.
  virtual std::optional<int64_t> batch_size() const = 0;
  /// Whether a last batch that is short is left out.
  virtual bool drop_last() const = 0;
  /// How many batches a pass has.
  virtual int64_t size() const = 0;
  /// How many samples it has, where that is known before it begins.
  virtual std::optional<int64_t> num_samples() const { return std::nullopt; }

  /// As with Sampler.
  virtual IndexBatches begin_pass() = 0;
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
  void discard_loaded_pass() override { sampler_->discard_loaded_pass(); }

 private:
  std::shared_ptr<Sampler> sampler_;
  int64_t batch_size_;
  bool drop_last_;
};

struct ListBatchSamplerOptions {
  /// Promises that all batches but the last are this long.
  std::optional<int64_t> batch_size = std::nullopt;
  /// Forbids padding a rank's last batches when they are shared out.
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

}  // namespace accelerate
