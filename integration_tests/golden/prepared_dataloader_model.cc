#include "integration_tests/golden/prepared_dataloader_model.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/randperm.h>

#include "integration_tests/golden/fields.h"

namespace accelerate::golden {
namespace {

using nlohmann::json;

// Row `row` of the round that begins at `begin` and has `real` rows: what is missing is padded
// with the pass's first samples, round and round.
int64_t filled(const std::vector<int64_t>& order, int64_t begin, int64_t real, int64_t cycle,
               int64_t row) {
  const int64_t position = row < real ? begin + row : (row - real) % cycle;
  return order[static_cast<size_t>(position)];
}

json real_rows(const std::vector<int64_t>& order, int64_t begin, int64_t real) {
  return std::vector<int64_t>(order.begin() + begin, order.begin() + begin + real);
}

void mark_last(json& records) {
  if (!records.empty()) records.back()["end"] = true;
}

}  // namespace

Setting Setting::of(const json& in) {
  const json& config = field(in, "config");
  const std::string dataset = string_field(in, "dataset");
  Setting setting{.ranks = ranks_field(in, "num_processes"),
                  .map = dataset == "map",
                  .sized = dataset != "iterable_unsized",
                  .n = count_field(in, "n"),
                  .batch_size = count_field(in, "batch_size"),
                  .shuffle = bool_field(in, "shuffle"),
                  .drop_last = bool_field(in, "drop_last"),
                  .split = bool_field(config, "split_batches"),
                  .even = bool_field(config, "even_batches"),
                  .seedable = bool_field(config, "use_seedable_sampler"),
                  .device_specific = bool_field(in, "device_specific"),
                  .forced = bool_field(in, "force_multi_device"),
                  .gather = bool_field(in, "gather"),
                  .seed = int_field(in, "seed"),
                  .data_seed = optional_int_field(config, "data_seed"),
                  .script = field(in, "script")};
  if (setting.batch_size == 0) throw CaseError("batch_size: 0");
  setting.dispatches = optional_bool_field(config, "dispatch_batches").value_or(!setting.map);
  return setting;
}

bool Setting::has_step(const std::string& verb) const {
  return std::any_of(script.begin(), script.end(),
                     [&](const json& step) { return step.at(0) == verb; });
}

int64_t Setting::rounds() const { return drop_last ? n / round() : (n + round() - 1) / round(); }

std::vector<int64_t> Setting::order(int64_t epoch, int64_t offset) const {
  std::vector<int64_t> order(static_cast<size_t>(n));
  if (!shuffle) {
    std::iota(order.begin(), order.end(), 0);
    return order;
  }
  const auto first = static_cast<uint64_t>(data_seed.value_or(seed));
  const at::Generator generator =
      at::detail::createCPUGenerator(first + static_cast<uint64_t>(epoch + offset));
  const at::Tensor permutation = at::randperm(n, generator, at::kLong);
  std::copy_n(permutation.const_data_ptr<int64_t>(), n, order.begin());
  return order;
}

json share_records(const Setting& setting, const std::vector<int64_t>& order, int64_t rank,
                   bool even) {
  const int64_t slice = setting.round() / setting.ranks;
  json records = json::array();
  for (int64_t i = 0; i < setting.rounds(); ++i) {
    const int64_t begin = i * setting.round();
    const int64_t real = std::min(setting.round(), setting.n - begin);
    const int64_t end_row = even ? (rank + 1) * slice : std::min((rank + 1) * slice, real);
    json rows = json::array();
    for (int64_t row = rank * slice; row < end_row; ++row) {
      rows.push_back(filled(order, begin, real, std::min(setting.n, setting.round()), row));
    }
    if (rows.empty()) continue;
    json gathered = setting.gather ? real_rows(order, begin, real) : json();
    const bool unknown = setting.drop_last || (!setting.sized && i + 1 < setting.rounds());
    records.push_back({{"b", std::move(rows)},
                       {"end", false},
                       {"rem", unknown ? -1 : setting.rest()},
                       {"g", std::move(gathered)}});
  }
  mark_last(records);
  return records;
}

json dispatch_records(const Setting& setting, const std::vector<int64_t>& order, int64_t rank,
                      int64_t skip) {
  json records = json::array();
  for (int64_t i = skip; i < setting.rounds(); ++i) {
    const int64_t begin = i * setting.round();
    const int64_t real = std::min(setting.round(), setting.n - begin);
    const int64_t share = (real + setting.ranks - 1) / setting.ranks;
    json rows = json::array();
    for (int64_t row = rank * share; row < (rank + 1) * share; ++row) {
      rows.push_back(filled(order, begin, real, std::min(setting.n, setting.ranks), row));
    }
    json gathered = setting.gather ? real_rows(order, begin, real) : json();
    records.push_back({{"b", std::move(rows)},
                       {"end", false},
                       {"rem", i + 1 == setting.rounds() ? real : -1},
                       {"g", std::move(gathered)}});
  }
  mark_last(records);
  return records;
}

std::vector<json> joined_gradients(const std::vector<Batches>& batches_of_ranks) {
  // In float, as it is computed.
  struct Gradients {
    float weight = 0;
    float bias = 0;
  };
  const size_t ranks = batches_of_ranks.size();
  std::vector<Gradients> gradients(ranks);
  size_t steps = 0;
  for (const Batches& batches : batches_of_ranks) steps = std::max(steps, batches.size());
  for (size_t step = 0; step < steps; ++step) {
    Gradients sum;
    for (size_t rank = 0; rank < ranks; ++rank) {
      if (step >= batches_of_ranks[rank].size()) continue;
      const std::vector<int64_t>& batch = batches_of_ranks[rank][step];
      const float total = std::accumulate(batch.begin(), batch.end(), 0.0F);
      sum.weight += gradients[rank].weight + total / static_cast<float>(batch.size());
      sum.bias += gradients[rank].bias + 1;
    }
    for (size_t rank = 0; rank < ranks; ++rank) {
      if (step >= batches_of_ranks[rank].size()) continue;
      gradients[rank] = {sum.weight / static_cast<float>(ranks),
                         sum.bias / static_cast<float>(ranks)};
    }
  }
  std::vector<json> lists;
  for (size_t rank = 0; rank < ranks; ++rank) {
    const bool stepped = !batches_of_ranks[rank].empty();
    lists.push_back(stepped ? json{{gradients[rank].weight}, {gradients[rank].bias}}
                            : json{nullptr, nullptr});
  }
  return lists;
}

json* records_of(json& entry) {
  if (entry.is_array()) return &entry;
  if (!entry.is_object()) return nullptr;
  auto found = entry.find("batches");
  return found != entry.end() && found->is_array() ? &*found : nullptr;
}

int64_t for_each_pass(const Setting& setting, json& rank,
                      const std::function<void(const Pass&)>& visit) {
  int64_t peer_epoch = 0;
  int64_t epoch = 0;
  json& log = rank.at("log");
  for (size_t i = 0; i < log.size(); ++i) {
    const json& step = setting.script.at(i);
    const auto verb = step.at(0).get<std::string>();
    if (verb == "set_epoch") {
      peer_epoch = epoch = to_int(step.at(1), verb);
      continue;
    }
    visit({step, log[i], i, peer_epoch, epoch});
    const json* records = records_of(log[i]);
    if (records == nullptr) continue;
    const auto given = static_cast<int64_t>(records->size());
    // Ranks that have no batch themselves count passes in which others do, so that they agree.
    const bool has_batches = given > 0 || (setting.map && setting.shards() && setting.rounds() > 0);
    if (verb == "skip") {
      // It completes the epoch that it is the rest of, also if nothing is left.
      if (has_batches || to_int(step.at(1), verb) > 0) ++epoch;
      continue;
    }
    if (verb == "break" && given > 0 && to_int(step.at(1), verb) == given) continue;
    if (given > 0) ++peer_epoch;
    if (has_batches) ++epoch;
  }
  return epoch;
}

}  // namespace accelerate::golden
