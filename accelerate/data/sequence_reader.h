/// Reads the batches of ranks that divide sequences: in each round every rank reads a batch of its
/// own, and then all get their parts of the first rank's, of the second rank's, and so on.
///
/// Where ranks have different numbers of batches, because even_batches is off, those that have none
/// left go on to get their parts of the others'.
/// Collective over the ranks: the first batch of each round. A rank that cannot read its batch ends
/// the pass of all.
/// Threads: the rank's thread.
/// Mirrors: deepspeed runtime/sequence_parallel/ulysses_sp.py, UlyssesSPDataLoaderAdapter.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "accelerate/comm/objects.h"
#include "accelerate/comm/process_group.h"
#include "accelerate/data/batch_rows.h"
#include "accelerate/data/dataset_error.h"
#include "accelerate/data/loader_core.h"
#include "accelerate/data/sequence_parts.h"
#include "accelerate/state/gradient_state.h"

namespace accelerate::internal {

/// What becomes of a round when the batch of one member of each group is used alone: the shares of
/// the data are then the groups. `round`: that of the member. `member`: its number in its group of
/// `group` ranks. `shares`: those of all ranks. `rows`: of the member's batch, with padding.
inline BatchRound round_of_member(const BatchRound& round, int member, int group, int shares,
                                  int64_t rows) {
  BatchRound own = round;
  if (round.real_rows != BatchRound::kAll && !round.ragged) {
    own.real_rows = 0;
    for (int share = member; share < shares; share += group) {
      own.real_rows += std::clamp<int64_t>(round.real_rows - share * rows, 0, rows);
    }
  }
  // Those that have a batch are the first ones.
  if (round.shares > 0) own.shares = std::max(0, (round.shares - member + group - 1) / group);
  return own;
}

template <typename Batch>
class SequenceReader final : public BatchReader<Batch> {
 public:
  /// `own` reads this rank's batches.
  SequenceReader(std::unique_ptr<BatchReader<Batch>> own, const LoaderCore& core,
                 const PassStart& start)
      : own_(std::move(own)),
        group_(core.shard_options()->sequence_group),
        num_shares_(core.num_shares()),
        part_{.index = rank_of(group_),
              .count = size_of(group_),
              .length = core.shard_options()->sequence_length,
              .rank = core.rank()},
        skip_(start.skip_in_round),
        before_{.taken = start.taken + start.skip * core.units_per_round(),
                .dataset_state = start.dataset_state} {}

  bool next(ReadBatch<Batch>& out) override {
    while (waiting_.empty()) {
      if (ended_) return false;
      read_round();
      for (; skip_ > 0 && !waiting_.empty(); --skip_) waiting_.pop_front();
      skip_ = 0;
    }
    out = std::move(waiting_.front());
    waiting_.pop_front();
    return true;
  }

  std::optional<Batch> first_rows(int64_t count) override { return own_->first_rows(count); }
  int64_t taken() const override { return own_->taken(); }

 private:
  // What a rank tells the others of its batch: an error; own rows, real rows, whether it is ragged,
  // how many shares there are, whether it is the last of the round's, and of the rank's batches.
  using Facts = std::tuple<std::string, int64_t, int64_t, bool, int, bool, bool>;
  using Message = std::tuple<Facts, std::optional<Batch>>;

  void read_round() {
    ReadBatch<Batch> own;
    std::exception_ptr error;
    Message message;
    auto& [facts, batch] = message;
    try {
      if (!own_ended_) own_ended_ = !own_->next(own);
      if (own.batch) batch = std::move(own.batch);
    } catch (const std::exception& thrown) {
      error = std::current_exception();
      std::get<0>(facts) = thrown.what();
    }
    const BatchRound& round = own.round;
    if (error == nullptr) {
      facts = Facts(std::string(), round.own_rows, round.real_rows, round.ragged, round.shares,
                    round.last, own.position.last || own_ended_);
    }
    std::vector<Message> all = gather_object(group_, std::vector<Message>{std::move(message)});
    if (error != nullptr) std::rethrow_exception(error);
    take(std::move(all), own.position);
  }

  void take(std::vector<Message> all, const BatchPosition& own_position) {
    int last_member = -1;
    bool ends = true;
    for (int member = 0; member < static_cast<int>(all.size()); ++member) {
      const auto& [facts, batch] = all[static_cast<size_t>(member)];
      if (const std::string& error = std::get<0>(facts); !error.empty()) {
        ended_ = true;
        throw DatasetError("a rank with which rank " + std::to_string(part_.rank) +
                           " divides sequences could not read its batch: " + error);
      }
      if (batch) last_member = member;
      ends = ends && std::get<6>(facts);
    }
    ended_ = last_member < 0 || ends;
    for (int member = 0; member <= last_member; ++member) {
      auto& [facts, batch] = all[static_cast<size_t>(member)];
      if (!batch) continue;
      const BatchRound round{.own_rows = std::get<1>(facts),
                             .real_rows = std::get<2>(facts),
                             .ragged = std::get<3>(facts),
                             .shares = std::get<4>(facts),
                             .last = std::get<5>(facts) && member == last_member};
      const bool is_last = member == last_member;
      ReadBatch<Batch> read;
      read.round =
          round_of_member(round, member, part_.count, num_shares_, batch_rows(*batch).value_or(0));
      read.position = before_;
      read.position.in_round = member + 1;
      if (is_last) {
        // A rank without a batch has no position; it goes on behind the round all the same.
        if (own_position.taken > before_.taken) read.position = own_position;
        read.position.in_round = 0;
        read.position.last = ends;
      }
      read.batch.emplace(part_of_sequences(*std::move(batch), part_));
      waiting_.push_back(std::move(read));
    }
    if (!waiting_.empty()) before_ = waiting_.back().position;
    before_.last = false;
  }

  const std::unique_ptr<BatchReader<Batch>> own_;
  const ProcessGroupPtr group_;
  const int num_shares_;
  const SequencePart part_;
  int64_t skip_;
  BatchPosition before_;  // behind the rounds that were read
  bool own_ended_ = false;
  bool ended_ = false;
  std::deque<ReadBatch<Batch>> waiting_;
};

}  // namespace accelerate::internal
