#include "accelerate/data/sampler.h"

#include <algorithm>
#include <cmath>
#include <mutex>
#include <numeric>
#include <utility>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/multinomial.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randperm.h>
#include <c10/util/Exception.h>
#include <nlohmann/json.hpp>

#include "absl/log/absl_check.h"
#include "accelerate/base/json_text.h"
#include "accelerate/comm/random.h"

namespace accelerate {
namespace {

using nlohmann::json;

constexpr char kSeed[] = "seed";
constexpr char kGenerator[] = "generator";
constexpr char kNext[] = "next";
constexpr char kEpoch[] = "epoch";

at::Generator or_default(const at::Generator& generator) {
  return generator.defined() ? generator : at::detail::getDefaultCPUGenerator();
}

// Runs `load` on a state. Errors: c10::ValueError for values of wrong types.
template <typename Load>
void load_checked(const json& state, Load load) {
  try {
    load();
  } catch (const json::exception& error) {
    TORCH_CHECK_VALUE(false, "a sampler's state is damaged: ", error.what());
  }
}

// The CPU generator's state under `key`, if there is one.
std::optional<at::Tensor> state_from(const json& state, const char* key) {
  if (!state.contains(key)) return std::nullopt;
  at::Tensor bytes = bytes_from_text(state.at(key).get<std::string>());
  check_generator_state(at::detail::createCPUGenerator(), bytes);
  return bytes;
}

}  // namespace

namespace internal {

at::Generator DrawingSampler::begin_drawing(bool by_seed) {
  if (std::exchange(resume_, false)) {
    if (seed_) return at::detail::createCPUGenerator(*seed_);
    at::Generator generator = generator_.defined() ? generator_ : at::detail::createCPUGenerator();
    set_generator_state(generator, state_);
    return generator;
  }
  DrawingSampler::end_pass();
  if (!generator_.defined() && by_seed) {
    seed_ = draw_seed();
    return at::detail::createCPUGenerator(*seed_);
  }
  at::Generator generator = or_default(generator_);
  state_ = generator_state(generator);
  return generator;
}

void DrawingSampler::end_pass() {
  seed_.reset();
  state_.reset();
  resume_ = false;
}

json DrawingSampler::state_dict() const {
  json state = json::object();
  if (seed_) state[kSeed] = *seed_;
  if (state_.defined()) state[kGenerator] = bytes_to_text(state_);
  // Between passes a generator of one's own is what the next one follows from.
  if (state.empty() && generator_.defined()) {
    state[kNext] = bytes_to_text(generator_state(generator_));
  }
  return state;
}

void DrawingSampler::load_state_dict(const json& state) {
  load_checked(state, [&] {
    std::optional<uint64_t> seed;
    if (state.contains(kSeed)) seed = state.at(kSeed).get<uint64_t>();
    std::optional<at::Tensor> of_pass = state_from(state, kGenerator);
    std::optional<at::Tensor> of_next = state_from(state, kNext);
    DrawingSampler::end_pass();
    if (of_next && generator_.defined()) {
      set_generator_state(generator_, *of_next);
    } else if (of_next) {
      of_pass = of_next;
    }
    seed_ = seed;
    if (of_pass) state_ = *of_pass;
    resume_ = seed_.has_value() || state_.defined();
  });
}

}  // namespace internal

IndexOrder IndexOrder::range(int64_t size) {
  ABSL_CHECK_GE(size, 0);
  IndexOrder order;
  order.size_ = size;
  return order;
}

IndexOrder::IndexOrder(at::Tensor indices) : indices_(std::move(indices)) {
  TORCH_CHECK_VALUE(indices_.defined() && indices_.dim() == 1 &&
                        indices_.scalar_type() == at::kLong && indices_.device().is_cpu() &&
                        indices_.is_contiguous(),
                    "a sampler's indices must be a contiguous int64 vector on the CPU, got ",
                    indices_.toString(), indices_.defined() ? indices_.sizes() : c10::IntArrayRef(),
                    indices_.defined() ? " on " + indices_.device().str() : "");
  size_ = indices_.numel();
}

void IndexOrder::copy(int64_t begin, int64_t count, int64_t* out) const {
  ABSL_CHECK_GE(begin, 0);
  ABSL_CHECK_LE(begin + count, size_);
  if (indices_.defined()) {
    std::copy_n(indices_.const_data_ptr<int64_t>() + begin, count, out);
  } else {
    std::iota(out, out + count, begin);
  }
}

at::Tensor IndexOrder::tensor() const {
  return indices_.defined() ? indices_ : at::arange(size_, at::kLong);
}

IndexBatches::IndexBatches(IndexOrder order, const Layout& layout, std::vector<int64_t> last)
    : order_(std::move(order)), layout_(layout), last_(std::move(last)) {}

IndexBatches::IndexBatches(IndexOrder order, std::vector<Span> spans)
    : order_(std::move(order)), spans_(std::move(spans)) {
  for (const Span& span : spans_) {
    TORCH_CHECK_VALUE(
        span.begin >= 0 && span.length >= 0 && span.begin + span.length <= order_.size(),
        "a batch of ", span.length, " samples at position ", span.begin, " is outside an order of ",
        order_.size());
  }
}

IndexBatches IndexBatches::from_lists(const std::vector<std::vector<int64_t>>& lists) {
  std::vector<Span> spans;
  int64_t samples = 0;
  for (const auto& list : lists) {
    spans.push_back({.begin = samples, .length = static_cast<int64_t>(list.size())});
    samples += spans.back().length;
  }
  at::Tensor indices = at::empty({samples}, at::kLong);
  int64_t* out = indices.mutable_data_ptr<int64_t>();
  for (const auto& list : lists) out = std::copy(list.begin(), list.end(), out);
  return IndexBatches(IndexOrder(std::move(indices)), std::move(spans));
}

int64_t IndexBatches::length(int64_t i) const {
  ABSL_CHECK_GE(i, 0);
  ABSL_CHECK_LT(i, size());
  if (i == regular_count()) return static_cast<int64_t>(last_.size());
  return is_regular() ? layout_.length : spans_[static_cast<size_t>(i)].length;
}

void IndexBatches::copy(int64_t i, int64_t* out) const {
  const int64_t count = length(i);
  if (i == regular_count()) {
    std::copy(last_.begin(), last_.end(), out);
  } else if (is_regular()) {
    order_.copy(layout_.first + i * layout_.stride, count, out);
  } else {
    order_.copy(spans_[static_cast<size_t>(i)].begin, count, out);
  }
}

at::Tensor IndexBatches::operator[](int64_t i) const {
  at::Tensor indices = at::empty({length(i)}, at::kLong);
  copy(i, indices.mutable_data_ptr<int64_t>());
  return indices;
}

json PassSource::state_dict() const { return json::object(); }

void PassSource::load_state_dict(const json& state) {}

at::Tensor Sampler::indices() {
  at::Tensor indices = begin_pass().tensor();
  end_pass();
  return indices;
}

SequentialSampler::SequentialSampler(int64_t size) : size_(size) {
  TORCH_CHECK_VALUE(size >= 0, "a sampler's size must not be negative, got ", size);
}

RandomSampler::RandomSampler(int64_t dataset_size, RandomSamplerOptions options)
    : DrawingSampler(std::move(options.generator)),
      dataset_size_(dataset_size),
      num_samples_(options.num_samples.value_or(dataset_size)),
      replacement_(options.replacement) {
  TORCH_CHECK_VALUE(dataset_size_ > 0, "nothing to shuffle: the dataset is empty");
  TORCH_CHECK_VALUE(num_samples_ > 0, "num_samples must be positive, got ", num_samples_);
}

IndexOrder RandomSampler::draw(at::Generator generator) const {
  if (replacement_) {
    return IndexOrder(at::randint(dataset_size_, {num_samples_}, generator, at::kLong));
  }
  at::Tensor first = at::randperm(dataset_size_, generator, at::kLong);
  if (num_samples_ == dataset_size_) return IndexOrder(std::move(first));
  std::vector<at::Tensor> permutations{std::move(first)};
  for (int64_t more = num_samples_ - dataset_size_; more > 0; more -= dataset_size_) {
    permutations.push_back(at::randperm(dataset_size_, generator, at::kLong));
  }
  return IndexOrder(at::cat(permutations).narrow(0, 0, num_samples_).contiguous());
}

void RandomSampler::draw_rest(at::Generator generator) const {
  // PyTorch's sampler finds its end by drawing one permutation more, of which it takes nothing.
  if (!replacement_ && num_samples_ % dataset_size_ == 0) at::randperm(dataset_size_, generator);
}

IndexOrder RandomSampler::begin_pass() { return draw(begin_drawing(/*by_seed=*/true)); }

void RandomSampler::end_pass() {
  if (generator_.defined()) draw_rest(generator_);
  DrawingSampler::end_pass();
}

SeedableRandomSampler::SeedableRandomSampler(int64_t dataset_size,
                                             SeedableRandomSamplerOptions options)
    : RandomSampler(dataset_size, {.replacement = options.replacement,
                                   .num_samples = options.num_samples,
                                   .generator = std::move(options.generator)}),
      initial_seed_(
          options.data_seed.value_or(at::detail::getDefaultCPUGenerator().current_seed())),
      shares_generator_(generator_.defined()) {
  if (!generator_.defined()) generator_ = at::detail::createCPUGenerator();
}

IndexOrder SeedableRandomSampler::begin_pass() {
  generator_.set_current_seed(initial_seed_ + static_cast<uint64_t>(epoch_));
  return draw(generator_);
}

void SeedableRandomSampler::end_pass() {
  // Its own generator is reseeded before it can be observed.
  if (shares_generator_) draw_rest(generator_);
  ++epoch_;
}

json SeedableRandomSampler::state_dict() const {
  return {{kEpoch, epoch_}, {kSeed, initial_seed_}};
}

void SeedableRandomSampler::load_state_dict(const json& state) {
  TORCH_CHECK_VALUE(state.contains(kEpoch) && state.contains(kSeed),
                    "SeedableRandomSampler: the state has no epoch or no seed: ",
                    internal::exact_json_text(state));
  load_checked(state, [&] {
    const auto epoch = state.at(kEpoch).get<int64_t>();
    initial_seed_ = state.at(kSeed).get<uint64_t>();
    epoch_ = epoch;
  });
}

WeightedRandomSampler::WeightedRandomSampler(at::Tensor weights, int64_t num_samples,
                                             WeightedRandomSamplerOptions options)
    : DrawingSampler(std::move(options.generator)),
      weights_(std::move(weights)),
      num_samples_(num_samples),
      replacement_(options.replacement) {
  TORCH_CHECK_VALUE(weights_.defined() && weights_.dim() == 1 && weights_.numel() > 0,
                    "WeightedRandomSampler: the weights must be a vector that is not empty");
  TORCH_CHECK_VALUE(num_samples_ > 0, "num_samples must be positive, got ", num_samples_);
  weights_ = weights_.to(at::device(at::kCPU).dtype(at::kDouble)).contiguous();
  const double* values = weights_.const_data_ptr<double>();
  double sum = 0, most = 0;
  int64_t candidates = 0;
  for (int64_t i = 0; i < weights_.numel(); ++i) {
    TORCH_CHECK_VALUE(values[i] >= 0 && std::isfinite(values[i]), "WeightedRandomSampler: weight ",
                      i, " is ", values[i]);
    sum += values[i];
    most = std::max(most, values[i]);
    if (values[i] > 0) ++candidates;
  }
  TORCH_CHECK_VALUE(candidates > 0, "WeightedRandomSampler: all weights are zero");
  // at::multinomial would draw samples whose weight is zero.
  TORCH_CHECK_VALUE(replacement_ || num_samples_ <= candidates,
                    "WeightedRandomSampler: without replacement there are ", candidates,
                    " samples, those with a weight above zero, not ", num_samples_);
  // It adds up the weights. None of them is more than 1 then.
  if (!std::isfinite(sum)) weights_ = weights_.div(most);
}

IndexOrder WeightedRandomSampler::begin_pass() {
  at::Generator generator = begin_drawing(/*by_seed=*/false);
  return IndexOrder(at::multinomial(weights_, num_samples_, replacement_, generator));
}

SubsetRandomSampler::SubsetRandomSampler(const at::Tensor& indices, at::Generator generator)
    : DrawingSampler(std::move(generator)),
      indices_(indices.to(at::device(at::kCPU).dtype(at::kLong)).contiguous()) {
  TORCH_CHECK_VALUE(indices_.dim() == 1, "SubsetRandomSampler: the indices must be a vector, got ",
                    indices_.sizes());
}

IndexOrder SubsetRandomSampler::begin_pass() {
  at::Generator generator = begin_drawing(/*by_seed=*/false);
  return IndexOrder(indices_.index_select(0, at::randperm(size(), generator, at::kLong)));
}

uint64_t draw_seed(at::Generator generator) {
  at::Generator source = or_default(generator);
  std::lock_guard<std::mutex> lock(source.mutex());
  // The same number as random_() makes of these bits, so that a seed drawn elsewhere can be
  // reproduced here.
  constexpr uint64_t kMask = static_cast<uint64_t>(INT64_MAX);
  return at::check_generator<at::CPUGeneratorImpl>(source)->random64() & kMask;
}

FixedSizeBatchSampler::FixedSizeBatchSampler(std::shared_ptr<Sampler> sampler, int64_t batch_size,
                                             bool drop_last)
    : sampler_(std::move(sampler)), batch_size_(batch_size), drop_last_(drop_last) {
  TORCH_CHECK_VALUE(sampler_ != nullptr, "the batch sampler has no sampler");
  TORCH_CHECK_VALUE(batch_size_ > 0, "batch_size must be positive, got ", batch_size_);
}

int64_t FixedSizeBatchSampler::size() const {
  const int64_t samples = sampler_->size();
  const bool short_batch = !drop_last_ && samples % batch_size_ != 0;
  return samples / batch_size_ + (short_batch ? 1 : 0);
}

IndexBatches FixedSizeBatchSampler::begin_pass() {
  IndexOrder order = sampler_->begin_pass();
  const int64_t full = order.size() / batch_size_;
  std::vector<int64_t> last(static_cast<size_t>(drop_last_ ? 0 : order.size() % batch_size_));
  order.copy(full * batch_size_, static_cast<int64_t>(last.size()), last.data());
  return IndexBatches(std::move(order),
                      {.first = 0, .stride = batch_size_, .length = batch_size_, .count = full},
                      std::move(last));
}

json FixedSizeBatchSampler::state_dict() const { return sampler_->state_dict(); }

void FixedSizeBatchSampler::load_state_dict(const json& state) { sampler_->load_state_dict(state); }

ListBatchSampler::ListBatchSampler(const std::vector<std::vector<int64_t>>& batches,
                                   ListBatchSamplerOptions options)
    : batches_(IndexBatches::from_lists(batches)), options_(options) {
  TORCH_CHECK_VALUE(options_.batch_size.value_or(1) > 0, "batch_size must be positive, got ",
                    *options_.batch_size);
}

}  // namespace accelerate
