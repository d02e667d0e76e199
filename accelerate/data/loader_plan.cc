#include "accelerate/data/loader_plan.h"

#include <utility>

#include <c10/util/Exception.h>

#include "accelerate/state/gradient_state.h"

namespace accelerate::internal {
namespace {

DataLoaderOptions with_seed(DataLoaderOptions options) {
  if (!options.shuffle) {
    options.seed.reset();
  } else if (!options.seed) {
    options.seed = draw_seed();
  }
  return options;
}

std::shared_ptr<const Sampler> make_sampler(int64_t size, const DataLoaderOptions& options) {
  if (options.seed) return std::make_shared<RandomSampler>(size, *options.seed);
  return std::make_shared<SequentialSampler>(size);
}

}  // namespace

LoaderPlan::LoaderPlan(int64_t dataset_size, const DataLoaderOptions& options)
    : options_(with_seed(options)),
      batch_sampler_(make_sampler(dataset_size, options_), options_.batch_size,
                     options_.drop_last) {}

LoaderPlan LoaderPlan::shard(const ShardOptions& options) const {
  TORCH_CHECK(!shard_options_, "DataLoader::shard: the loader is the share of rank ",
              shard_options_->rank, " of ", shard_options_->world_size, " already");
  DataLoaderOptions loader_options = options_;
  if (options.seed) loader_options.seed = options.seed;
  LoaderPlan plan(dataset_size(), loader_options);
  plan.shard_options_ = options;
  BatchSamplerShard shard(plan.batch_sampler_, {.rank = options.rank,
                                                .world_size = options.world_size,
                                                .split_batches = options.split_batches,
                                                .even_batches = options.even_batches});
  // A rank alone reads what there is; the shard would fill up its last batch.
  if (options.world_size > 1) plan.shard_ = std::move(shard);
  return plan;
}

int64_t LoaderPlan::size() const { return shard_ ? shard_->size() : batch_sampler_.size(); }

int64_t LoaderPlan::total_batch_size() const {
  return shard_ ? shard_->total_batch_size() : options_.batch_size;
}

int64_t LoaderPlan::remainder() const {
  if (options_.drop_last) return GradientState::kUnknownRemainder;
  return dataset_size() % total_batch_size();
}

IndexBatches LoaderPlan::batches(int64_t epoch) const {
  return shard_ ? shard_->batches(epoch) : batch_sampler_.batches(epoch);
}

}  // namespace accelerate::internal
