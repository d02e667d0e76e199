#include "integration_tests/golden/rules.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "integration_tests/golden/compare.h"
#include "integration_tests/golden/errors.h"
#include "integration_tests/golden/fields.h"
#include "integration_tests/golden/prepared_dataloader_model.h"

namespace accelerate::golden {
namespace {

using nlohmann::json;

// In our words.
constexpr char kOverrideWarning[] =
    "UserWarning: join_uneven_inputs: even_batches can only be set for map-style data that is not "
    "dispatched; other prepared loaders keep theirs";

// Visits the ranks whose loader could be prepared.
void for_each_rank(json& out, const std::function<void(json& rank, int64_t index)>& visit) {
  json& ranks = out.at("ranks");
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (!is_error(ranks[i])) visit(ranks[i], static_cast<int64_t>(i));
  }
}

void for_each_pass_of_ranks(const Setting& setting, json& out,
                            const std::function<void(const Pass&, json& rank)>& visit) {
  for_each_rank(out, [&](json& rank, int64_t /*index*/) {
    for_each_pass(setting, rank, [&](const Pass& pass) { visit(pass, rank); });
  });
}

void set_if_known(json& number, int64_t value) {
  if (number.is_number()) number = value;
}

void leave_loop(json& state) {
  state["end"] = false;
  state["rem"] = -1;
  state["in_dataloader"] = false;
}

void trim(json& list, int64_t length) {
  if (!list.is_array() || static_cast<int64_t>(list.size()) <= length) return;
  list.erase(list.begin() + length, list.end());
}

// ---- Sizes

bool splits_indivisibly(const json& in) {
  const Setting setting = Setting::of(in);
  return setting.split && setting.batch_size % setting.ranks != 0;
}

void refuse(const json& /*in*/, json& out) {
  for_each_rank(out, [](json& rank, int64_t /*index*/) {
    rank = our_error({"ValueError"}, {"is not divisible by the number of data shares"});
  });
}

bool shares_a_stream(const json& in) {
  const Setting setting = Setting::of(in);
  return !setting.map && !setting.dispatches;
}

void count_shared_stream(const json& in, json& out) {
  const Setting setting = Setting::of(in);
  for_each_rank(out, [&](json& rank, int64_t /*index*/) {
    set_if_known(rank["len"], setting.rounds());
    set_if_known(rank["total_batch_size"], setting.round());
    set_if_known(rank["total_dataset_length"], setting.n);
  });
  if (setting.drop_last) return;
  for_each_pass_of_ranks(setting, out, [&](const Pass& pass, json& /*rank*/) {
    json* records = records_of(pass.entry);
    if (records == nullptr) return;
    for (json& record : *records) {
      const bool last = record.at("end") == true;
      if (setting.sized || last) record["rem"] = setting.rest();
      if (last && setting.rest() > 0) trim(record["g"], setting.rest());
    }
  });
}

bool splits_unevenly(const json& in) {
  const Setting setting = Setting::of(in);
  return setting.map && setting.shards() && setting.split && !setting.even;
}

void count_uneven_split(const json& in, json& out) {
  const Setting setting = Setting::of(in);
  for_each_rank(out, [&](json& rank, int64_t index) {
    rank["len"] = share_records(setting, setting.order(0), index, /*even=*/false).size();
  });
}

bool dispatches(const json& in) { return Setting::of(in).dispatches; }

void know_total_batch_size(const json& in, json& out) {
  const Setting setting = Setting::of(in);
  for_each_rank(out,
                [&](json& rank, int64_t /*index*/) { rank["total_batch_size"] = setting.round(); });
}

// ---- Order

// Puts what stood at a position of one order to what stands there in another.
void reorder(const std::vector<int64_t>& from, const std::vector<int64_t>& to, json& records) {
  std::map<int64_t, int64_t> same_place;
  for (size_t i = 0; i < from.size(); ++i) same_place[from[i]] = to[i];
  for (json& record : records) {
    for (const char* key : {"b", "g"}) {
      if (!record[key].is_array()) continue;
      for (json& index : record[key]) {
        auto found = same_place.find(index.get<int64_t>());
        if (found != same_place.end()) index = found->second;
      }
    }
  }
}

bool ranks_shuffle_apart(const json& in) {
  const Setting setting = Setting::of(in);
  return setting.map && setting.shards() && setting.shuffle && setting.seedable &&
         setting.device_specific && !setting.data_seed;
}

void follow_rank_0(const json& in, json& out) {
  const Setting setting = Setting::of(in);
  // By step and batch: what all ranks have.
  std::map<std::pair<size_t, size_t>, json> gathered;
  for_each_rank(out, [&](json& rank, int64_t index) {
    for_each_pass(setting, rank, [&](const Pass& pass) {
      json* records = records_of(pass.entry);
      if (records == nullptr) return;
      reorder(setting.order(pass.peer_epoch, index), setting.order(pass.peer_epoch), *records);
      for (size_t i = 0; i < records->size(); ++i) {
        json& all = gathered[{pass.index, i}];
        for (const json& sample : (*records)[i]["b"]) all.push_back(sample);
      }
    });
  });
  for_each_pass_of_ranks(setting, out, [&](const Pass& pass, json& /*rank*/) {
    json* records = records_of(pass.entry);
    if (records == nullptr) return;
    for (size_t i = 0; i < records->size(); ++i) {
      json& list = (*records)[i]["g"];
      if (!list.is_array()) continue;
      json all = gathered[{pass.index, i}];
      trim(all, static_cast<int64_t>(list.size()));
      list = std::move(all);
    }
  });
}

// ---- Skipping

bool skips(const json& in) { return Setting::of(in).has_step("skip"); }

bool skips_dispatched(const json& in) {
  const Setting setting = Setting::of(in);
  return setting.dispatches && setting.has_step("skip");
}

void skip_rounds(const json& in, json& out) {
  const Setting setting = Setting::of(in);
  if (!setting.order_is_known()) return;
  for_each_rank(out, [&](json& rank, int64_t index) {
    for_each_pass(setting, rank, [&](const Pass& pass) {
      if (pass.step.at(0) != "skip") return;
      const int64_t count = to_int(pass.step.at(1), "skip");
      json& entry = pass.entry;
      const bool failed = is_error(entry);
      // Without anything to skip it is an ordinary pass, which may fail.
      if (failed && count == 0) return;
      // HF Accelerate fails if its one underlying loader has nothing left.
      if (failed) entry = {{"len", 0}, {"total_batch_size", 0}};
      // A stream is skipped by rounds in HF Accelerate, too.
      if (!failed && !setting.map) return;
      entry["batches"] = dispatch_records(setting, setting.order(pass.peer_epoch), index, count);
    });
    leave_loop(rank["final"]);
  });
}

void count_like_the_original(const json& in, json& out) {
  const Setting setting = Setting::of(in);
  for_each_pass_of_ranks(setting, out, [&](const Pass& pass, json& rank) {
    if (pass.step.at(0) != "skip" || is_error(pass.entry)) return;
    json& entry = pass.entry;
    entry["total_batch_size"] = rank["total_batch_size"];
    entry["len"] = rank["len"];
    if (rank["len"].is_number()) {
      entry["len"] =
          std::max<int64_t>(rank["len"].get<int64_t>() - to_int(pass.step.at(1), "skip"), 0);
    }
    json* records = records_of(entry);
    if (records == nullptr || setting.dispatches) return;
    if (setting.drop_last) {
      // As in a pass of all batches.
      for (json& record : *records) record["rem"] = -1;
    }
    if (!setting.map || setting.drop_last) return;
    for (json& record : *records) {
      record["rem"] = setting.rest();
      if (record["end"] == true && setting.rest() > 0) trim(record["g"], setting.rest());
    }
  });
}

void complete_the_epoch(const json& in, json& out) {
  const Setting setting = Setting::of(in);
  const bool reorders = setting.map && setting.shuffle && setting.seedable;
  for_each_rank(out, [&](json& rank, int64_t /*index*/) {
    rank["final"]["iteration"] = for_each_pass(setting, rank, [&](const Pass& pass) {
      json* records = records_of(pass.entry);
      if (!reorders || records == nullptr || pass.peer_epoch == pass.epoch) return;
      reorder(setting.order(pass.peer_epoch), setting.order(pass.epoch), *records);
    });
  });
}

// ---- Leaving early, and nothing to hand out

bool breaks(const json& in) { return Setting::of(in).has_step("break"); }

void leave_with_the_loop(const json& in, json& out) {
  const Setting setting = Setting::of(in);
  for_each_pass_of_ranks(setting, out, [](const Pass& pass, json& rank) {
    if (pass.step.at(0) == "break" && !is_error(pass.entry)) leave_loop(pass.entry["after"]);
    leave_loop(rank["final"]);
  });
}

bool dispatches_nothing(const json& in) {
  const Setting setting = Setting::of(in);
  return setting.dispatches && setting.rounds() == 0;
}

void leave_after_error(const json& /*in*/, json& out) {
  for_each_rank(out, [](json& rank, int64_t /*index*/) { leave_loop(rank["final"]); });
}

bool dispatches_too_little(const json& in) {
  const Setting setting = Setting::of(in);
  return setting.dispatches && !setting.drop_last && setting.n > 0 && 2 * setting.n < setting.ranks;
}

void fill_all_ranks(const json& in, json& out) {
  const Setting setting = Setting::of(in);
  json& ranks = out.at("ranks");
  for_each_rank(out, [&](json& rank, int64_t index) {
    for_each_pass(setting, rank, [&](const Pass& pass) {
      json* records = records_of(pass.entry);
      if (records == nullptr || index < setting.n) return;
      // Rank n has what rank 0 has, and so on.
      json& source = ranks[static_cast<size_t>(index % setting.n)]["log"][pass.index];
      const json* whole = records_of(source);
      if (whole == nullptr) return;
      for (size_t i = 0; i < records->size(); ++i) (*records)[i]["b"] = whole->at(i).at("b");
    });
  });
}

// ---- Joining

bool joins_shares(const json& in) {
  const Setting setting = Setting::of(in);
  return setting.map && setting.shards() && !setting.forced && setting.has_step("join");
}

bool joins_others(const json& in) {
  const Setting setting = Setting::of(in);
  return setting.ranks > 1 && !(setting.map && setting.shards()) && setting.has_step("join");
}

bool joins_unsharded(const json& in) {
  const Setting setting = Setting::of(in);
  return (setting.ranks == 1 || !(setting.map && setting.shards())) && setting.has_step("join");
}

// Rewrites a joined pass of all ranks, as if each read its share of `order`.
void join_shares(const Setting& setting, const std::vector<int64_t>& order, bool even, json& ranks,
                 size_t index) {
  std::vector<Batches> batches(ranks.size());
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    json& entry = ranks[rank]["log"][index];
    if (is_error(entry))
      entry = {{"warnings", json::array()}, {"even_batches_after", setting.even}};
    entry["batches"] = share_records(setting, order, static_cast<int64_t>(rank), even);
    for (const json& record : entry["batches"]) {
      batches[rank].push_back(record["b"].get<std::vector<int64_t>>());
    }
  }
  const std::vector<json> gradients = joined_gradients(batches);
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    ranks[rank]["log"][index]["grad"] = gradients[rank];
  }
}

bool effective_even(const Setting& setting, const json& step) {
  return step.at(1).is_null() ? setting.even : step.at(1).get<bool>();
}

void join_on_cpus(const json& in, json& out) {
  const Setting setting = Setting::of(in);
  if (!setting.order_is_known()) return;
  json& ranks = out.at("ranks");
  for_each_rank(out, [&](json& rank, int64_t index) {
    rank["final"]["iteration"] = for_each_pass(setting, rank, [&](const Pass& pass) {
      if (pass.step.at(0) != "join") return;
      if (index == 0) {
        join_shares(setting, setting.order(pass.epoch), effective_even(setting, pass.step), ranks,
                    pass.index);
      }
      pass.entry["warnings"] = json::array();
    });
  });
}

void join_what_is_even(const json& in, json& out) {
  const Setting setting = Setting::of(in);
  json& ranks = out.at("ranks");
  for_each_rank(out, [&](json& rank, int64_t /*index*/) {
    rank["final"]["iteration"] = for_each_pass(setting, rank, [&](const Pass& pass) {
      if (pass.step.at(0) != "join") return;
      // HF Accelerate fails where a stream that is not dispatched has no even_batches to override.
      if (is_error(pass.entry) && setting.dispatches) return;
      if (is_error(pass.entry)) {
        join_shares(setting, setting.order(pass.epoch), /*even=*/true, ranks, pass.index);
      }
      pass.entry["warnings"] = json::array();
      if (!pass.step.at(1).is_null()) pass.entry["warnings"].push_back(kOverrideWarning);
    });
  });
}

void answer_even_batches(const json& in, json& out) {
  const Setting setting = Setting::of(in);
  for_each_pass_of_ranks(setting, out, [&](const Pass& pass, json& /*rank*/) {
    if (pass.step.at(0) != "join" || is_error(pass.entry)) return;
    pass.entry["even_batches_after"] = setting.even;
    if (setting.ranks == 1) pass.entry["warnings"] = json::array();
  });
}

// ---- Ranks that get nothing

bool may_leave_ranks_empty(const json& in) {
  const Setting setting = Setting::of(in);
  return setting.map && setting.shards() && (!setting.even || setting.has_step("join"));
}

void count_every_pass(const json& in, json& out) {
  const Setting setting = Setting::of(in);
  for_each_rank(out, [&](json& rank, int64_t /*index*/) {
    rank["final"]["iteration"] = for_each_pass(setting, rank, [](const Pass& /*pass*/) {});
  });
}

constexpr char kFamily[] = "prepared_dataloader";

}  // namespace

std::vector<Decision> prepared_dataloader_rules() {
  return {
      {kFamily, "splits that do not divide",
       "HF Accelerate lets batch size 1 be split over several ranks, which then get nothing; that "
       "is an error, as with every batch size that the ranks do not divide",
       &splits_indivisibly, &refuse},
      {kFamily, "one order for all ranks",
       "with device-specific seeds HF Accelerate's seedable samplers shuffle differently on each "
       "rank, so samples come twice or never; all ranks follow rank 0's seed",
       &ranks_shuffle_apart, &follow_rank_0},
      {kFamily, "sizes of a shared stream",
       "HF Accelerate takes a rank's share of a stream for the whole, so lengths are too small and "
       "metrics count filling; sizes and remainder are those of the stream",
       &shares_a_stream, &count_shared_stream},
      {kFamily, "length of an uneven split",
       "HF Accelerate reports wrong lengths when it splits batches unevenly; `size()` is the "
       "number of batches really given",
       &splits_unevenly, &count_uneven_split},
      {kFamily, "total batch size of a dispatcher",
       "HF Accelerate's dispatched loaders have no total_batch_size; ours know it like all others",
       &dispatches, &know_total_batch_size},
      {kFamily, "skipping dispatched rounds",
       "of a dispatched map-style dataset HF Accelerate skips that many of rank 0's batches, and "
       "fails if none is left; here they are always those of each rank, and nothing may be left",
       &skips_dispatched, &skip_rounds},
      {kFamily, "counts of a skipped pass",
       "HF Accelerate's loader without its first batches forgets total batch size and remainder, "
       "so metrics count filling, and its length is wrong or an error; ours keeps them",
       &skips, &count_like_the_original},
      {kFamily, "a skipped pass completes the epoch",
       "HF Accelerate repeats an epoch after the rest of it was read; the rest completes the "
       "epoch, so the next pass has the next order",
       &skips, &complete_the_epoch},
      {kFamily, "leaving a loop early",
       "HF Accelerate's loader stays registered as active after a break; it leaves with its "
       "iterator",
       &breaks, &leave_with_the_loop},
      {kFamily, "joining on CPUs",
       "HF Accelerate ignores join_uneven_inputs on CPUs, with a warning; it works on every device",
       &joins_shares, &join_on_cpus},
      {kFamily, "joining what is always even",
       "HF Accelerate warns that joining is unsupported on CPUs, and fails on a shared stream "
       "whose even_batches is overridden; loaders that are always even are left as they are, with "
       "a warning if even_batches was to be overridden",
       &joins_others, &join_what_is_even},
      {kFamily, "even_batches of every loader",
       "HF Accelerate's loaders have no even_batches where nothing is sharded, and it warns of "
       "joining in one process; ours answer what was configured, and one process has nothing to "
       "join",
       &joins_unsharded, &answer_even_batches},
      {kFamily, "epochs of ranks without a batch",
       "in HF Accelerate a rank whose share of an uneven pass is empty stays in its epoch, and "
       "later shuffles otherwise than the others; here it counts the pass as they do",
       &may_leave_ranks_empty, &count_every_pass},
      {kFamily, "active after a dispatcher's error",
       "a dispatcher without a batch fails in both; in HF Accelerate its loader stays active "
       "afterwards",
       &dispatches_nothing, &leave_after_error},
      {kFamily, "too few samples to dispatch",
       "where a dispatcher has less than half a sample per rank, HF Accelerate gives the last "
       "ranks empty batches; ours are padded round and round",
       &dispatches_too_little, &fill_all_ranks},
  };
}

}  // namespace accelerate::golden
