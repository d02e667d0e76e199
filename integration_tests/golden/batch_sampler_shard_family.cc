// How a batch sampler is shared out over ranks.
#include <memory>
#include <vector>

#include "accelerate/data/batch_sampler_shard.h"
#include "accelerate/data/sampler.h"
#include "integration_tests/golden/answers.h"
#include "integration_tests/golden/family.h"
#include "integration_tests/golden/fields.h"

namespace accelerate::golden {
namespace {

using nlohmann::json;

std::shared_ptr<BatchSampler> make_batch_sampler(const json& in) {
  const std::string kind = string_field(in, "sampler");
  if (kind == "batch") {
    return std::make_shared<FixedSizeBatchSampler>(
        std::make_shared<SequentialSampler>(count_field(in, "n")), int_field(in, "batch_size"),
        bool_field(in, "drop_last"));
  }
  if (kind != "custom") throw CaseError("unknown sampler \"" + kind + "\"");
  const json& lists = field(in, "batches");
  if (!lists.is_array()) throw CaseError("batches: expected a list of lists");
  std::vector<std::vector<int64_t>> batches;
  for (const json& list : lists) batches.push_back(ints_field({{"batches", list}}, "batches"));
  return std::make_shared<ListBatchSampler>(
      batches, ListBatchSamplerOptions{.batch_size = optional_int_field(in, "batch_size"),
                                       .drop_last = bool_field(in, "drop_last")});
}

json shard_answer(BatchSamplerShard& shard) {
  const IndexBatches pass = shard.begin_pass();
  json batches = json::array();
  for (int64_t i = 0; i < pass.size(); ++i) batches.push_back(to_list(pass[i]));
  shard.end_pass();
  return {{"batches", std::move(batches)}, {"len", part([&] { return shard.size(); })}};
}

json run_case(const json& in) {
  expect_fields(in, {"sampler", "n", "batches", "batch_size", "drop_last", "num_processes",
                     "split_batches", "even_batches"});
  const std::shared_ptr<BatchSampler> sampler = make_batch_sampler(in);
  const int world_size = ranks_field(in, "num_processes");
  json shards = json::array();
  for (int rank = 0; rank < world_size; ++rank) {
    BatchSamplerShard shard(sampler, {.rank = rank,
                                      .world_size = world_size,
                                      .split_batches = bool_field(in, "split_batches"),
                                      .even_batches = bool_field(in, "even_batches")});
    shards.push_back(part([&] { return shard_answer(shard); }));
  }
  return {{"shards", std::move(shards)}, {"total_length", sampler->size()}};
}

const FamilyRegistration kRegistration("batch_sampler_shard", &run_case);

}  // namespace
}  // namespace accelerate::golden
