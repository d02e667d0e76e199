#include "integration_tests/golden/decisions.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/randperm.h>

#include "integration_tests/golden/compare.h"
#include "integration_tests/golden/errors.h"
#include "integration_tests/golden/family.h"
#include "integration_tests/golden/fields.h"
#include "integration_tests/golden/rules.h"

namespace accelerate::golden {
namespace {

using nlohmann::json;

// Floor or ceiling.
int64_t blocks_of(int64_t samples, int64_t block, bool drop_last) {
  return drop_last ? samples / block : (samples + block - 1) / block;
}

// ---- batch_sampler_shard

bool splits_unevenly(const json& in) {
  return bool_field(in, "split_batches") && !bool_field(in, "even_batches");
}

void count_batches(const json& /*in*/, json& out) {
  if (out.contains("error")) return;
  for (json& shard : out.at("shards")) {
    if (!shard.contains("error")) shard["len"] = shard.at("batches").size();
  }
}

// A batch before the last that is not batch_size long, or a last one that is longer.
bool breaks_its_batch_size(const json& in) {
  if (string_field(in, "sampler") != "custom" || bool_field(in, "split_batches")) return false;
  const auto batch_size = optional_int_field(in, "batch_size");
  if (!batch_size) return false;
  const json& batches = in.at("batches");
  for (size_t i = 0; i < batches.size(); ++i) {
    const auto length = static_cast<int64_t>(batches[i].size());
    if (length > *batch_size || (length < *batch_size && i + 1 < batches.size())) return true;
  }
  return false;
}

void give_whole_batches(const json& in, json& out) {
  if (out.contains("error")) return;
  const json& batches = in.at("batches");
  const size_t ranks = out.at("shards").size();
  const size_t whole = batches.size() / ranks * ranks;
  size_t given = bool_field(in, "drop_last") ? whole : batches.size();
  if (bool_field(in, "even_batches") && given > whole) given = whole + ranks;
  json shards = json::array();
  for (size_t rank = 0; rank < ranks; ++rank) {
    json own = json::array();
    for (size_t i = rank; i < given; i += ranks) {
      // Beyond the last batch those of the first round come again.
      const size_t first_round = std::min(ranks, batches.size());
      own.push_back(batches[i < batches.size() ? i : (i - batches.size()) % first_round]);
    }
    const size_t length = own.size();
    shards.push_back({{"batches", std::move(own)}, {"len", length}});
  }
  out["shards"] = std::move(shards);
}

// ---- iterable_dataset_shard

bool splits(const json& in) { return bool_field(in, "split_batches"); }

bool splits_indivisibly(const json& in) {
  return splits(in) && count_field(in, "num_processes") > 0 &&
         int_field(in, "batch_size") % int_field(in, "num_processes") != 0;
}

void refuse(const json& /*in*/, json& out) {
  expect_our_error(out, {"ValueError"}, {"is not divisible by the number of data shares"});
}

void count_split_samples(const json& in, json& out) {
  if (out.contains("error")) return;
  const int64_t batch_size = int_field(in, "batch_size");
  const int64_t length = blocks_of(int_field(in, "n"), batch_size, bool_field(in, "drop_last")) *
                         (batch_size / int_field(in, "num_processes"));
  for (json& shard : out.at("shards")) {
    if (shard.contains("len") && shard["len"].is_number()) shard["len"] = length;
  }
}

bool does_not_know_its_size(const json& in) { return !bool_field(in, "sized"); }

void say_nothing_of_the_length(const json& /*in*/, json& out) {
  if (out.contains("error")) return;
  for (json& shard : out.at("shards")) {
    if (shard.contains("len") && is_error(shard["len"])) shard["len"] = nullptr;
  }
}

bool starts_without_epoch(const json& in) {
  return string_field(in, "dataset") == "shuffled" && !in.at("epochs").empty() &&
         in.at("epochs").front().is_null();
}

// The rank's samples of a stream, padded with the first block.
json share_of(const json& in, const std::vector<int64_t>& stream, int64_t rank) {
  const int64_t ranks = int_field(in, "num_processes");
  const int64_t block = int_field(in, "batch_size") * (splits(in) ? 1 : ranks);
  const auto size = static_cast<int64_t>(stream.size());
  json items = json::array();
  for (int64_t i = 0; i < blocks_of(size, block, bool_field(in, "drop_last")); ++i) {
    for (int64_t row = rank * block / ranks; row < (rank + 1) * block / ranks; ++row) {
      const int64_t place = i * block + row;
      const int64_t filling = (place - size) % std::min(size, block);
      items.push_back(stream[static_cast<size_t>(place < size ? place : filling)]);
    }
  }
  return items;
}

void begin_with_epoch_0(const json& in, json& out) {
  if (out.contains("error")) return;
  const at::Tensor permutation =
      at::randperm(count_field(in, "n"), at::detail::createCPUGenerator(/*seed_val=*/0), at::kLong);
  const auto* data = permutation.const_data_ptr<int64_t>();
  const std::vector<int64_t> stream(data, data + permutation.numel());
  json& shards = out.at("shards");
  for (size_t rank = 0; rank < shards.size(); ++rank) {
    json& passes = shards[rank].at("items");
    for (size_t i = 0; i < passes.size() && in["epochs"].at(i).is_null(); ++i) {
      if (is_error(passes[i])) passes[i] = share_of(in, stream, static_cast<int64_t>(rank));
    }
  }
}

std::vector<Decision> make_decisions() {
  std::vector<Decision> decisions = {
      {"batch_sampler_shard", "length of an uneven split",
       "HF Accelerate reports wrong lengths when it splits batches unevenly; `size()` is the "
       "number of batches really given",
       &splits_unevenly, &count_batches},
      {"batch_sampler_shard", "batches of other sizes than promised",
       "HF Accelerate loses batches that do not have the batch size their sampler promises; ranks "
       "take whole batches in turn, as if none were promised",
       &breaks_its_batch_size, &give_whole_batches},
      {"iterable_dataset_shard", "splits that do not divide",
       "HF Accelerate lets batch size 1 be split over several ranks, which then get nothing; that "
       "is an error, as with every batch size that the ranks do not divide",
       &splits_indivisibly, &refuse},
      {"iterable_dataset_shard", "length of a split",
       "HF Accelerate's length of a split stream is wrong; `size()` is the number of samples "
       "really given",
       &splits, &count_split_samples},
      {"iterable_dataset_shard", "length of a stream without one",
       "HF Accelerate's share of a stream that does not know its length raises an error where it "
       "is asked for its own; `size()` is nothing",
       &does_not_know_its_size, &say_nothing_of_the_length},
      {"iterable_dataset_shard", "passes before set_epoch",
       "HF Accelerate's share of a stream with a generator fails until it is told an epoch; ours "
       "begins with epoch 0",
       &starts_without_epoch, &begin_with_epoch_0},
  };
  for (const auto& rules :
       {prepared_dataloader_rules(), operations_rules(), env_parsing_rules(), fsdp_plugin_rules(),
        grad_sync_rules(), checkpoint_sharding_rules(), save_state_layout_rules(),
        launch_env_rules(), parallelism_rules(), tracking_rules(), big_modeling_dispatch_rules(),
        big_modeling_hook_rules(), big_modeling_module_rules(), big_modeling_offload_rules(),
        deepspeed_plugin_rules(), device_map_rules(), dynamo_plugin_rules(),
        quantization_config_rules(), megatron_plugin_rules()}) {
    decisions.insert(decisions.end(), rules.begin(), rules.end());
  }
  return decisions;
}

}  // namespace

const std::vector<Decision>& all_decisions() {
  static const auto* const decisions = new std::vector<Decision>(make_decisions());
  return *decisions;
}

Expectation expect(const std::string& family, const json& in, const json& recorded,
                   const std::vector<Decision>& decisions) {
  Expectation expectation{.out = recorded};
  const Family* const known = find_family(family);
  if (known != nullptr && known->take_facts != nullptr) known->take_facts(in, expectation.out);
  const json facts = expectation.out;
  for (const Decision& decision : decisions) {
    if (family != decision.family || !decision.applies(in)) continue;
    json before = expectation.out;
    decision.rewrite(in, expectation.out);
    if (expectation.out != before) expectation.decisions.push_back(decision.name);
  }
  // They may have undone each other.
  if (expectation.out == facts) expectation.decisions.clear();
  return expectation;
}

}  // namespace accelerate::golden
