#include "accelerate/data/loader_core.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <nlohmann/json.hpp>

#include "accelerate/base/json_text.h"
#include "accelerate/comm/operations.h"
#include "accelerate/runtime/runtime.h"
#include "accelerate/runtime/shared_objects.h"

namespace accelerate::internal {
namespace {

using nlohmann::json;

// Version 1 counted ranks where this one counts shares of the data.
constexpr int kStateVersion = 2;

int64_t rounds_of(int64_t samples, int64_t round, bool drop_last) {
  return samples / round + (!drop_last && samples % round != 0 ? 1 : 0);
}

// A plain RandomSampler, which one that can be seeded may replace.
const RandomSampler* plain_random(const Sampler* sampler) {
  if (dynamic_cast<const SeedableRandomSampler*>(sampler) != nullptr) return nullptr;
  return dynamic_cast<const RandomSampler*>(sampler);
}

// Rank 0's rounds: what all shares together take at once, the last one padded so that they are
// equal.
ShardedPass begin_rounds(BatchSampler& sampler, int64_t taken, int64_t batches_per_round,
                         int64_t shares) {
  ShardedPass pass = begin_unshared_pass(sampler, taken);
  if (!pass.ragged) {
    const int64_t round = pass.units_per_round * batches_per_round;
    const int64_t full = (pass.units - taken) / round;
    const int64_t rest = sampler.drop_last() ? 0 : (pass.units - taken) % round;
    const IndexOrder order = pass.batches.order();
    std::vector<int64_t> last(static_cast<size_t>(rest));
    if (rest > 0) order.copy(taken + full * round, rest, last.data());
    for (int64_t i = 0; static_cast<int64_t>(last.size()) % shares != 0; ++i) {
      order.copy(i % order.size(), 1, &last.emplace_back());
    }
    pass.batches = IndexBatches(
        order, {.first = taken, .stride = round, .length = round, .count = full}, std::move(last));
    pass.units_per_round = round;
    pass.rounds = full + (rest > 0 ? 1 : 0);
    pass.real_rows_in_last_round = rest > 0 ? rest : round;
    return pass;
  }
  if (batches_per_round == 1) return pass;
  std::vector<IndexBatches::Span> rounds;
  const std::vector<IndexBatches::Span>& spans = pass.batches.spans();
  for (size_t i = 0; i < spans.size(); ++i) {
    const bool first = static_cast<int64_t>(i) % batches_per_round == 0;
    if (first && sampler.drop_last() && i + static_cast<size_t>(batches_per_round) > spans.size()) {
      break;
    }
    if (first) {
      rounds.push_back(spans[i]);
    } else {
      rounds.back().length += spans[i].length;
    }
  }
  pass.rounds = static_cast<int64_t>(rounds.size());
  pass.real_rows_in_last_round = rounds.empty() ? 0 : rounds.back().length;
  pass.units_per_round = batches_per_round;
  pass.batches = IndexBatches(pass.batches.order(), std::move(rounds));
  return pass;
}

}  // namespace

LoaderCore::LoaderCore(const DatasetFacts& facts, DataLoaderOptions options)
    : facts_(facts), options_(std::move(options)) {
  TORCH_CHECK_VALUE(options_.batch_size > 0, "DataLoader: batch_size must be positive, got ",
                    options_.batch_size);
  TORCH_CHECK_VALUE(options_.num_workers >= 0, "DataLoader: num_workers must not be negative, got ",
                    options_.num_workers);
  TORCH_CHECK_VALUE(options_.prefetch_factor > 0,
                    "DataLoader: prefetch_factor must be positive, got ", options_.prefetch_factor);
  TORCH_CHECK_VALUE(options_.timeout >= absl::ZeroDuration(),
                    "DataLoader: timeout must not be negative, got ",
                    absl::FormatDuration(options_.timeout));
  if (facts_.is_stream) {
    TORCH_CHECK_VALUE(!options_.shuffle && !options_.sampler && !options_.batch_sampler,
                      "DataLoader: a stream gives its samples in its own order; shuffle, sampler "
                      "and batch_sampler are for map-style datasets");
    return;
  }
  make_sampler();
}

void LoaderCore::make_sampler() {
  TORCH_CHECK_VALUE(facts_.size.has_value(), "DataLoader: the dataset does not know its size");
  if (options_.batch_sampler) {
    TORCH_CHECK_VALUE(
        !options_.sampler && !options_.shuffle && !options_.drop_last && options_.batch_size == 1,
        "DataLoader: batch_sampler decides about the batches alone; do not give "
        "batch_size, shuffle, sampler or drop_last with it");
    batch_sampler_ = options_.batch_sampler;
    return;
  }
  TORCH_CHECK_VALUE(!options_.sampler || !options_.shuffle,
                    "DataLoader: a sampler decides about the order; do not shuffle as well");
  std::shared_ptr<Sampler> sampler = options_.sampler;
  if (!sampler && options_.shuffle) {
    sampler = std::make_shared<RandomSampler>(
        *facts_.size, RandomSamplerOptions{.generator = options_.generator});
  } else if (!sampler) {
    sampler = std::make_shared<SequentialSampler>(*facts_.size);
  }
  batch_sampler_ = std::make_shared<FixedSizeBatchSampler>(std::move(sampler), options_.batch_size,
                                                           options_.drop_last);
}

std::shared_ptr<LoaderCore> LoaderCore::shard(const ShardOptions& options) const {
  TORCH_CHECK(!shard_, "DataLoader::shard: the loader is share ", share(), " of ", num_shares(),
              " already");
  auto core = std::make_shared<LoaderCore>(facts_, options_);
  core->epoch_ = epoch_;
  core->set_share(options);
  if (resume_) core->load_state_dict(state_dict());
  return core;
}

std::shared_ptr<LoaderCore> LoaderCore::with_batch_size(int64_t batch_size) const {
  TORCH_CHECK(!shard_, "DataLoader::with_batch_size: the loader is share ", share(), " of ",
              num_shares(), " already");
  TORCH_CHECK_VALUE(!options_.batch_sampler,
                    "DataLoader::with_batch_size: a batch_sampler decides about the batches alone; "
                    "give the loader a batch_size instead");
  DataLoaderOptions options = options_;
  options.batch_size = batch_size;
  auto core = std::make_shared<LoaderCore>(facts_, std::move(options));
  core->epoch_ = epoch_;
  if (resume_) core->load_state_dict(state_dict());
  return core;
}

void LoaderCore::set_share(const ShardOptions& options) {
  const int num_shares = options.num_shares;
  TORCH_CHECK_VALUE(options.share >= 0 && options.share < num_shares, "share ", options.share,
                    " of the data does not exist: there are ", num_shares, " shares");
  TORCH_CHECK_VALUE(!options.group || options.group->getSize() % num_shares == 0,
                    options.group->getSize(), " ranks cannot have ", num_shares,
                    " shares of the data, with as many ranks for each");
  const bool dispatch =
      options.dispatch_batches.value_or(options.device_placement && facts_.is_stream);
  TORCH_CHECK_VALUE(!dispatch || options.device_placement,
                    "dispatch_batches needs the batches to be placed on the device: rank 0's "
                    "batches are handed out between devices");
  const int together = size_of(options.sequence_group);
  TORCH_CHECK_VALUE(
      num_shares % together == 0 && options.share % together == rank_of(options.sequence_group),
      "share ", options.share, " of ", num_shares, " is not that of rank ",
      rank_of(options.sequence_group), " of ", together,
      " ranks with neighbouring shares, which divide sequences");
  TORCH_CHECK_VALUE(!dispatch || num_shares == 1 || options.group,
                    "dispatch_batches needs the ranks' process group");
  const std::optional<int64_t> batch_size =
      batch_sampler_ ? batch_sampler_->batch_size() : options_.batch_size;
  TORCH_CHECK_VALUE(
      !options.split_batches || num_shares == 1 || (batch_size && *batch_size % num_shares == 0),
      "split_batches: the batch size ",
      batch_size ? std::to_string(*batch_size) : "that is not the same everywhere",
      " is not divisible by the number of data shares, ", num_shares);
  if (!options_.pin_memory && options.non_blocking && !options.device.is_cpu() &&
      options.device_placement) {
    TORCH_WARN_ONCE(
        "non_blocking copies only overlap with the host's work if the loader has "
        "pin_memory");
  }
  shard_ = options;
  if (options.device_prefetch > 0 && options.device_placement && options_.num_workers == 0) {
    options_.num_workers = 1;
  }
  if (dispatch) {
    mode_ = LoaderMode::kDispatch;
  } else if (num_shares > 1) {
    const bool by_itself = facts_.num_shards >= num_shares && !options.split_batches;
    mode_ = by_itself ? LoaderMode::kSelfShard : LoaderMode::kShard;
  }
  if (facts_.is_stream) return;
  share_shuffling();
  share_batches();
}

void LoaderCore::share_batches() {
  if (mode_ != LoaderMode::kShard) return;
  sampler_shard_ = std::make_shared<BatchSamplerShard>(
      batch_sampler_, BatchShardOptions{.rank = shard_->share,
                                        .world_size = shard_->num_shares,
                                        .split_batches = shard_->split_batches,
                                        .even_batches = shard_->even_batches});
}

void LoaderCore::share_shuffling() {
  auto* fixed = dynamic_cast<FixedSizeBatchSampler*>(batch_sampler_.get());
  const RandomSampler* random = fixed ? plain_random(fixed->sampler().get()) : nullptr;
  if (shard_->use_seedable_sampler && random != nullptr) {
    at::Generator* slot = fixed->sampler()->generator();
    const uint64_t own = at::detail::getDefaultCPUGenerator().current_seed();
    // Ranks that were seeded differently must still walk one order.
    const uint64_t seed = draws_alike()
                              ? broadcast_integer(shard_->group, shard_->data_seed.value_or(own))
                              : shard_->data_seed.value_or(own);
    auto seedable = std::make_shared<SeedableRandomSampler>(
        random->dataset_size(), SeedableRandomSamplerOptions{.replacement = random->replacement(),
                                                             .num_samples = random->size(),
                                                             .generator = *slot,
                                                             .data_seed = seed});
    batch_sampler_ = std::make_shared<FixedSizeBatchSampler>(
        std::move(seedable), *fixed->batch_size(), fixed->drop_last());
  } else if (at::Generator* slot = batch_sampler_->generator();
             slot != nullptr && !slot->defined() && draws_alike()) {
    // Whatever rng_types say: ranks that shuffle differently would give samples twice, and ranks of
    // one share different ones.
    *slot = at::detail::createCPUGenerator(broadcast_integer(shard_->group, draw_seed()));
  }
}

bool LoaderCore::draws_alike() const {
  return mode_ == LoaderMode::kShard || (mode_ != LoaderMode::kDispatch && shares_are_replicated());
}

int64_t LoaderCore::batches_per_round() const { return splits() ? 1 : num_shares(); }

int64_t LoaderCore::round() const {
  if (facts_.is_stream) return options_.batch_size * batches_per_round();
  return batch_sampler_->batch_size().value_or(0) * batches_per_round();
}

bool LoaderCore::drop_last() const {
  return batch_sampler_ ? batch_sampler_->drop_last() : options_.drop_last;
}

int64_t LoaderCore::size(int64_t skip) const {
  int64_t batches = 0;
  if (sampler_shard_) {
    batches = sampler_shard_->size();
  } else if (mode_ == LoaderMode::kWhole && batch_sampler_) {
    batches = batch_sampler_->size();
  } else if (auto* list = dynamic_cast<ListBatchSampler*>(batch_sampler_.get())) {
    batches = begin_rounds(*list, 0, batches_per_round(), 1).rounds;
  } else if (batch_sampler_ && (round() == 0 || !batch_sampler_->num_samples())) {
    batches = rounds_of(batch_sampler_->size(), batches_per_round(), drop_last());
  } else {
    const std::optional<int64_t> samples =
        batch_sampler_ ? batch_sampler_->num_samples() : facts_.size;
    TORCH_CHECK_VALUE(samples && mode_ != LoaderMode::kSelfShard,
                      "the number of batches is unknown: the stream does not know its size");
    batches = rounds_of(*samples, round(), drop_last());
  }
  return std::max<int64_t>(batches * ranks_per_sequence() - skip, 0);
}

int64_t LoaderCore::total_batch_size() const {
  TORCH_CHECK_VALUE(round() > 0, "the total batch size is unknown: batches differ in length");
  return round() / ranks_per_sequence();
}

int64_t LoaderCore::total_dataset_length() const {
  TORCH_CHECK_VALUE(facts_.size, "the length is unknown: the stream does not know its size");
  return *facts_.size;
}

std::shared_ptr<Sampler> LoaderCore::sampler() const {
  const auto* fixed = dynamic_cast<const FixedSizeBatchSampler*>(batch_sampler_.get());
  return fixed != nullptr ? fixed->sampler() : nullptr;
}

void LoaderCore::set_sampler(std::shared_ptr<Sampler> sampler) {
  TORCH_CHECK_VALUE(this->sampler() != nullptr,
                    "set_sampler is for map-style data in batches of a fixed size");
  batch_sampler_ = std::make_shared<FixedSizeBatchSampler>(
      std::move(sampler), *batch_sampler_->batch_size(), drop_last());
  resume_ = false;
  share_batches();
}

bool LoaderCore::can_set_even_batches() const { return sampler_shard_ != nullptr; }

void LoaderCore::set_even_batches(bool even_batches) {
  TORCH_CHECK(can_set_even_batches(), "even_batches is for map-style data that is not dispatched");
  shard_->even_batches = even_batches;
  sampler_shard_->set_even_batches(even_batches);
}

void LoaderCore::set_epoch(int64_t epoch) {
  // A position is one of the epoch it was loaded with.
  if (epoch != epoch_ && std::exchange(resume_, false)) {
    progress_ = {};
    if (batch_sampler_) batch_sampler_->discard_loaded_pass();
  }
  epoch_ = epoch;
}

at::Generator LoaderCore::shared_generator() const {
  if (!batch_sampler_) return facts_.generator;
  at::Generator* slot = batch_sampler_->generator();
  return slot != nullptr ? *slot : at::Generator();
}

void LoaderCore::synchronize_generators() {
  if (!draws_alike()) return;
  const at::Generator generator = shared_generator();
  for (RNGType type : shard_->rng_types) {
    if (type == RNGType::kGenerator && !generator.defined()) continue;
    synchronize_rng_state(shard_->group, type, generator);
  }
}

void LoaderCore::end_unfinished_pass() {
  const bool was_left = progress_.begun && !progress_.last && progress_.batches > 0;
  if (!was_left || !batch_sampler_ || mode_ == LoaderMode::kDispatch) return;
  const int64_t rest = batch_sampler_->num_samples().value_or(0) - progress_.taken;
  if (0 < rest && rest < round()) batch_sampler_->end_pass();
}

PassStart LoaderCore::begin_pass(int64_t skip) {
  TORCH_CHECK_VALUE(!resume_ || skip == 0 || progress_.batches == 0, "skip_first_batches(", skip,
                    "): the position that this loader was given is behind batch ",
                    progress_.batches, " of epoch ", epoch_,
                    ", and it goes on there by itself. Leave the skip out, or set "
                    "use_stateful_dataloader = false, with which load_state restores no position");
  end_unfinished_pass();
  synchronize_generators();
  if (batch_sampler_) batch_sampler_->set_epoch(epoch_);
  PassStart start;
  start.skip = skip / ranks_per_sequence();
  start.skip_in_round = skip % ranks_per_sequence();
  if (std::exchange(resume_, false)) {
    start.base_seed = progress_.base_seed;
    start.taken = progress_.taken;
    if (skip == 0) start.skip_in_round = progress_.in_round;
    start.dataset_state = progress_.dataset_state;
    progress_.begun = true;
    return start;
  }
  // Each pass of PyTorch's loaders draws one, so later random numbers are the same as there.
  const bool dispatches = mode_ == LoaderMode::kDispatch;
  start.base_seed = draw_seed(dispatches ? at::Generator() : options_.generator);
  // Ranks of one share augment alike, however they were seeded.
  if (!dispatches && shares_are_replicated())
    start.base_seed = broadcast_integer(group(), start.base_seed);
  progress_ = {};
  progress_.begun = true;
  progress_.base_seed = start.base_seed;
  return start;
}

ShardedPass LoaderCore::begin_map_pass(const PassStart& start) {
  ShardedPass pass =
      mode_ == LoaderMode::kDispatch
          ? begin_rounds(*batch_sampler_, start.taken, batches_per_round(), num_shares())
      : sampler_shard_ ? sampler_shard_->begin_pass_after(start.taken)
                       : begin_unshared_pass(*batch_sampler_, start.taken);
  progress_.has_batches = pass.rounds > 0;
  return pass;
}

std::string LoaderCore::describe_pass() const {
  json description = {{"base_seed", progress_.base_seed}};
  if (batch_sampler_) description["sampler"] = batch_sampler_->state_dict();
  return exact_json_text(description);
}

void LoaderCore::load_pass(const std::string& description) {
  const json pass = parse_json(description);
  progress_.base_seed = pass.at("base_seed").get<uint64_t>();
  if (!batch_sampler_) return;
  batch_sampler_->load_state_dict(pass.at("sampler"));
  batch_sampler_->begin_pass();
}

int64_t LoaderCore::remainder(const PassStart& start) const {
  const std::optional<int64_t> samples =
      batch_sampler_ ? batch_sampler_->num_samples() : facts_.size;
  const bool unknown = mode_ == LoaderMode::kDispatch || mode_ == LoaderMode::kSelfShard ||
                       drop_last() || !samples || round() == 0 || ranks_per_sequence() > 1;
  return unknown ? GradientState::kUnknownRemainder : (*samples - start.taken) % round();
}

bool LoaderCore::may_give_batch() {
  Runtime* const runtime = Runtime::find_current();
  return runtime == nullptr || runtime->record_batch();
}

void LoaderCore::count_batch(const BatchPosition& position) {
  ++progress_.batches;
  static_cast<BatchPosition&>(progress_) = position;
  Runtime* const runtime = Runtime::find_current();
  if (shard_ && runtime != nullptr && c10::GradMode::is_enabled()) {
    runtime->shared<TrainingSamples>([] { return new TrainingSamples(); }).count +=
        round() / ranks_per_sequence();
  }
  if (position.last && batch_sampler_) batch_sampler_->end_pass();
}

void LoaderCore::finish_pass(bool had_batches) {
  if (!progress_.last && batch_sampler_) batch_sampler_->end_pass();
  if (had_batches) ++epoch_;
  progress_ = {};
}

std::string LoaderCore::units() const {
  return batch_sampler_ && round() == 0 ? "batches" : "samples";
}

std::string LoaderCore::order_kind() const {
  if (!batch_sampler_) return mode_ == LoaderMode::kSelfShard ? "a shard's own" : "a stream's";
  const std::shared_ptr<Sampler> order = sampler();
  if (!order) return "a batch sampler's";
  if (dynamic_cast<SeedableRandomSampler*>(order.get()) != nullptr) return "seeded";
  if (dynamic_cast<RandomSampler*>(order.get()) != nullptr) return "random";
  if (dynamic_cast<WeightedRandomSampler*>(order.get()) != nullptr) return "weighted";
  if (dynamic_cast<SubsetRandomSampler*>(order.get()) != nullptr) return "a random subset";
  if (dynamic_cast<SequentialSampler*>(order.get()) != nullptr) return "sequential";
  return "a sampler's";
}

json LoaderCore::state_dict() const {
  // Between load_state_dict and the pass that it is for, the position is the one loaded.
  const bool in_pass = (progress_.begun && !progress_.last) || resume_;
  json state = {{"version", kStateVersion},
                {"epoch", epoch_ + (progress_.last ? 1 : 0)},
                {"taken", in_pass ? progress_.taken : 0},
                {"units", units()},
                {"batches", in_pass ? progress_.batches : 0},
                {"num_shares", num_shares()},
                {"order", order_kind()},
                {"finished", progress_.last}};
  if (facts_.size) state["dataset_size"] = *facts_.size;
  if (batch_sampler_) state["sampler"] = batch_sampler_->state_dict();
  if (mode_ == LoaderMode::kSelfShard) state["share"] = share();
  if (!in_pass) return state;
  state["base_seed"] = progress_.base_seed;
  if (progress_.in_round > 0) state["in_round"] = progress_.in_round;
  if (progress_.dataset_state) state["dataset"] = *progress_.dataset_state;
  return state;
}

void LoaderCore::load_state_dict(const json& state) {
  TORCH_CHECK_VALUE(state.is_object(), "DataLoader: this is not the state of a DataLoader");
  try {
    const int version = state.at("version").get<int>();
    TORCH_CHECK_VALUE(version == kStateVersion, "DataLoader: the state is of version ", version,
                      version < kStateVersion ? ", of an older release" : "",
                      ", and this software reads version ", kStateVersion);
    TORCH_CHECK_VALUE(state.at("units").get<std::string>() == units(),
                      "DataLoader: the state counts ", exact_json_text(state.at("units")),
                      ", this loader counts ", units());
    if (facts_.size && state.contains("dataset_size")) {
      TORCH_CHECK_VALUE(state.at("dataset_size").get<int64_t>() == *facts_.size,
                        "DataLoader: the state is of a dataset of ",
                        exact_json_text(state.at("dataset_size")), " samples, this one has ",
                        *facts_.size);
    }
    TORCH_CHECK_VALUE(state.at("order").get<std::string>() == order_kind(),
                      "DataLoader: the state is of a loader whose order is ",
                      state.at("order").get<std::string>(), ", here it is ", order_kind());
    const bool in_pass = state.contains("base_seed");
    const auto shares = state.at("num_shares").get<int>();
    TORCH_CHECK_VALUE(mode_ != LoaderMode::kSelfShard || !in_pass || shares == num_shares(),
                      "DataLoader: the position in a stream that shards itself is of ", shares,
                      " data shares, here are ", num_shares());
    const bool other_shard =
        mode_ == LoaderMode::kSelfShard && in_pass && state.value("share", -1) != share();
    TORCH_CHECK_VALUE(!other_shard,
                      "DataLoader: each share of a stream that shards itself has a position of its "
                      "own; rank ",
                      rank(), " has share ", share(), ", the state is of share ",
                      state.value("share", -1));
    const auto epoch = state.at("epoch").get<int64_t>();
    Progress progress;
    if (in_pass) {
      progress.base_seed = state.at("base_seed").get<uint64_t>();
      progress.taken = state.at("taken").get<int64_t>();
      progress.batches = state.at("batches").get<int64_t>();
      progress.in_round = state.value("in_round", int64_t{0});
      TORCH_CHECK_VALUE(progress.taken >= 0 && progress.in_round >= 0,
                        "DataLoader: the state's position is negative");
      TORCH_CHECK_VALUE(progress.in_round == 0 ||
                            (shares == num_shares() && progress.in_round < ranks_per_sequence()),
                        "DataLoader: the state is behind batch ", progress.in_round,
                        " of a round of ", shares,
                        " data shares whose ranks work through their batches together, here are ",
                        num_shares(), "; save between rounds, or go on with as many");
    }
    if (in_pass && state.contains("dataset")) {
      progress.dataset_state = std::make_shared<const json>(state.at("dataset"));
    }
    if (batch_sampler_ && state.contains("sampler")) {
      batch_sampler_->load_state_dict(state.at("sampler"));
    }
    epoch_ = epoch;
    progress_ = std::move(progress);
    resume_ = in_pass;
  } catch (const json::exception& error) {
    TORCH_CHECK_VALUE(false, "DataLoader: the state is damaged: ", error.what());
  }
}

at::Tensor pinned(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_cpu() || !at::getAccelerator(false)) return tensor;
  return tensor.pin_memory();
}

std::shared_ptr<const json> share_state(json state) {
  return std::make_shared<const json>(std::move(state));
}

}  // namespace accelerate::internal
