// How a stream is shared out over ranks.
#include <optional>
#include <utility>

#include "accelerate/data/iterable_dataset_shard.h"
#include "integration_tests/golden/answers.h"
#include "integration_tests/golden/family.h"
#include "integration_tests/golden/fields.h"
#include "integration_tests/golden/streams.h"

namespace accelerate::golden {
namespace {

using nlohmann::json;

template <typename Stream>
json one_pass(IterableDatasetShard<Stream>& shard) {
  json items = json::array();
  shard.reset();
  while (auto item = shard.next()) items.push_back(*item);
  return items;
}

template <typename Stream>
json all_passes(const json& in, IterableDatasetShard<Stream>& shard) {
  if (!in.contains("epochs")) return one_pass(shard);
  if (!in["epochs"].is_array()) throw CaseError("epochs: expected a list");
  json passes = json::array();
  for (const json& epoch : in["epochs"]) {
    if (!epoch.is_null()) shard.set_epoch(to_int(epoch, "epochs"));
    passes.push_back(part([&] { return one_pass(shard); }));
  }
  return passes;
}

template <typename Stream>
json run_on(const json& in) {
  const int world_size = ranks_field(in, "num_processes");
  json shards = json::array();
  for (int rank = 0; rank < world_size; ++rank) {
    IterableDatasetShard<Stream> shard(Stream(count_field(in, "n")),
                                       {.batch_size = int_field(in, "batch_size"),
                                        .drop_last = bool_field(in, "drop_last"),
                                        .rank = rank,
                                        .world_size = world_size,
                                        .split_batches = bool_field(in, "split_batches")});
    shards.push_back(part([&]() -> json {
      json items = all_passes(in, shard);
      const std::optional<int64_t> size = shard.size();
      return {{"items", std::move(items)}, {"len", size ? json(*size) : json()}};
    }));
  }
  return {{"shards", std::move(shards)}};
}

json run_case(const json& in) {
  expect_fields(in, {"dataset", "n", "batch_size", "drop_last", "num_processes", "split_batches",
                     "sized", "epochs"});
  const std::string dataset = string_field(in, "dataset");
  const bool sized = bool_field(in, "sized");
  if (dataset == "range") return sized ? run_on<Range>(in) : run_on<UnsizedRange>(in);
  if (dataset == "shuffled") {
    return sized ? run_on<ShuffledRange>(in) : run_on<UnsizedShuffledRange>(in);
  }
  throw CaseError("unknown dataset \"" + dataset + "\"");
}

const FamilyRegistration kRegistration("iterable_dataset_shard", &run_case);

}  // namespace
}  // namespace accelerate::golden
