/// The promises of a prepared data loader, worked out by hand from the few numbers of a case: the
/// independent side of the decisions about it.
///
/// A pass falls into rounds of T samples (batch_size when splitting, else batch_size times ranks),
/// of which every rank gets T / ranks; only the last round may be short.
/// A record is what a golden case notes per batch: {b, end, rem, g}.
/// Threads: pure functions.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace accelerate::golden {

/// The `in` of a case of prepared_dataloader.
struct Setting {
  int64_t ranks = 1;
  bool map = true;
  bool sized = true;
  int64_t n = 0;
  int64_t batch_size = 1;
  bool shuffle = false;
  bool drop_last = false;
  bool split = false;
  bool even = true;
  bool dispatches = false;
  bool seedable = false;
  bool device_specific = false;
  bool forced = false;
  bool gather = true;
  int64_t seed = 0;
  std::optional<int64_t> data_seed;
  nlohmann::json script;

  /// Errors: CaseError for a field that is missing or wrong.
  static Setting of(const nlohmann::json& in);

  bool has_step(const std::string& verb) const;
  /// Whether each rank reads its own share.
  bool shards() const { return ranks > 1 && !dispatches; }
  int64_t round() const { return split ? batch_size : batch_size * ranks; }
  int64_t rounds() const;
  /// Real samples in a last round that is short; 0 if it is not.
  int64_t rest() const { return n % round(); }

  /// Whether order() tells what a pass visits.
  bool order_is_known() const { return !shuffle || seedable; }
  /// The order of pass `epoch`; `offset` is added to the seed.
  std::vector<int64_t> order(int64_t epoch, int64_t offset = 0) const;
};

using Batches = std::vector<std::vector<int64_t>>;

/// The records of `rank` when each rank reads its share of `order`.
nlohmann::json share_records(const Setting& setting, const std::vector<int64_t>& order,
                             int64_t rank, bool even);

/// The records of `rank` when rank 0 hands out `order`, without the first `skip` rounds.
nlohmann::json dispatch_records(const Setting& setting, const std::vector<int64_t>& order,
                                int64_t rank, int64_t skip);

/// Each rank's gradients of weight and bias of w * x + b after a pass over its batches: the loss is
/// a batch's mean, gradients accumulate, and each step averages them over all ranks, of which those
/// that have no batch any more count as zero.
std::vector<nlohmann::json> joined_gradients(const std::vector<Batches>& batches_of_ranks);

/// The records in a log entry; null if it has none.
nlohmann::json* records_of(nlohmann::json& entry);

/// One pass over the loader in a rank's log, and the number it has in HF Accelerate and here.
struct Pass {
  const nlohmann::json& step;
  nlohmann::json& entry;
  size_t index = 0;
  int64_t peer_epoch = 0;
  int64_t epoch = 0;
};

/// Visits a rank's passes in order; returns our loader's epoch at the end.
int64_t for_each_pass(const Setting& setting, nlohmann::json& rank,
                      const std::function<void(const Pass&)>& visit);

}  // namespace accelerate::golden
