#include "accelerate/checkpoint/folder/save_job.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "accelerate/base/json_text.h"
#include "accelerate/comm/checkpoint_error.h"

namespace accelerate {
namespace {

using internal::RankOutcome;
using internal::RankStatus;
using Json = nlohmann::json;

constexpr int kWritten = 0;
constexpr int kCommitted = 1;

// The ranks' texts in the store.
class StoredTexts {
 public:
  StoredTexts(c10::intrusive_ptr<c10d::Store> store, std::string id)
      : store_(std::move(store)), id_(std::move(id)) {}

  static constexpr int kAll = -1;

  c10d::Store& store() const { return *store_; }
  // "accelerate/save/7f3a/NAME".
  std::string key(absl::string_view name) const {
    return absl::StrCat("accelerate/save/", id_, "/", name);
  }
  std::string key(int round, int rank) const {
    return key(absl::StrCat(round, "/", rank == kAll ? "all" : absl::StrCat("rank", rank)));
  }
  void set(const std::string& key, const std::string& text) const {
    store_->set(key, std::vector<uint8_t>(text.begin(), text.end()));
  }
  std::string get(const std::string& key) const {
    const std::vector<uint8_t> text = store_->get(key);
    return std::string(text.begin(), text.end());
  }

 private:
  const c10::intrusive_ptr<c10d::Store> store_;
  const std::string id_;
};

// Rank 0 waits for all outcomes and then publishes the failures under one key, which the other
// ranks poll: the number of requests per rank does not grow with the number of ranks.
class StoreExchange final : public SaveExchange {
 public:
  StoreExchange(c10::intrusive_ptr<c10d::Store> store, SaveExchangeOptions options)
      : texts_(std::move(store), options.id), options_(std::move(options)) {}

  void publish(int round, const RankOutcome& own) override {
    texts_.set(texts_.key(round, options_.rank), to_text(own));
  }

  std::optional<std::vector<RankOutcome>> collect(int round) override {
    const std::string all = texts_.key(round, StoredTexts::kAll);
    if (options_.rank == 0) {
      std::vector<std::string> keys;
      for (int rank = 0; rank < options_.world_size; ++rank) {
        keys.push_back(texts_.key(round, rank));
      }
      if (!texts_.store().check(keys)) return std::nullopt;
      std::vector<RankOutcome> outcomes;
      Json failed = Json::object();
      for (int rank = 0; rank < options_.world_size; ++rank) {
        outcomes.push_back(internal::outcome_from(texts_.get(keys[rank])));
        if (!outcomes.back().ok()) failed[std::to_string(rank)] = outcomes.back().text;
      }
      texts_.set(all, json_text(failed));
      return outcomes;
    }
    if (!texts_.store().check({all})) return std::nullopt;
    std::vector<RankOutcome> outcomes(options_.world_size);
    for (const int rank : options_.reads) {
      outcomes[rank] = internal::outcome_from(texts_.get(texts_.key(round, rank)));
    }
    const Json failed = Json::parse(texts_.get(all));
    for (const auto& [rank, text] : failed.items()) {
      outcomes[std::stoi(rank)] = {.status = RankStatus::kFailed, .text = text.get<std::string>()};
    }
    return outcomes;
  }

  void beat() override { texts_.store().add(texts_.key(kBeats), 1); }
  int64_t beats() override { return texts_.store().add(texts_.key(kBeats), 0); }

  void remove_entries() override {
    texts_.store().deleteKey(texts_.key(kBeats));
    for (int round = 0; round < kRounds; ++round) {
      for (int rank = StoredTexts::kAll; rank < options_.world_size; ++rank) {
        texts_.store().deleteKey(texts_.key(round, rank));
      }
    }
  }

 private:
  static constexpr int kRounds = 2;
  static constexpr absl::string_view kBeats = "beats";

  const StoredTexts texts_;
  const SaveExchangeOptions options_;
};

// The collective has failures and whether there is a text, which is the same on ranks that do the
// same; a list of files names its rank, and is of no use to ranks that do not commit.
class GroupExchange final : public SaveExchange {
 public:
  GroupExchange(ProcessGroupPtr group, c10::intrusive_ptr<c10d::Store> store,
                SaveExchangeOptions options)
      : group_(std::move(group)),
        texts_(std::move(store), options.id),
        options_(std::move(options)) {}

  void publish(int round, const RankOutcome& own) override {
    own_ = own;
    if (own_.ok() && !own_.text.empty() && !reads(options_.rank)) {
      texts_.set(texts_.key(round, options_.rank), own_.text);
    }
  }

  std::optional<std::vector<RankOutcome>> collect(int round) override {
    RankOutcome told = own_;
    if (told.ok() && !told.text.empty()) told.text = kInStore;
    std::vector<RankOutcome> outcomes = exchange_outcomes(group_, "save_state", told);
    outcomes[options_.rank].text = own_.text;
    std::vector<std::string> read;
    for (int rank = 0; rank < static_cast<int>(outcomes.size()); ++rank) {
      RankOutcome& outcome = outcomes[rank];
      if (rank == options_.rank || !outcome.ok() || outcome.text.empty()) continue;
      outcome.text.clear();
      if (!reads(rank)) continue;
      read.push_back(texts_.key(round, rank));
      outcome.text = texts_.get(read.back());
    }
    // Not before all are read: in a simulation one rank's key may stand for those of others.
    for (const std::string& key : read) texts_.store().deleteKey(key);
    return outcomes;
  }

 private:
  static constexpr char kInStore[] = "in the store";

  bool reads(int rank) const { return std::ranges::binary_search(options_.reads, rank); }

  const ProcessGroupPtr group_;
  const StoredTexts texts_;
  const SaveExchangeOptions options_;
  RankOutcome own_;
};

}  // namespace

std::unique_ptr<SaveExchange> make_store_exchange(c10::intrusive_ptr<c10d::Store> store,
                                                  SaveExchangeOptions options) {
  return std::make_unique<StoreExchange>(std::move(store), std::move(options));
}

std::unique_ptr<SaveExchange> make_group_exchange(ProcessGroupPtr group,
                                                  c10::intrusive_ptr<c10d::Store> store,
                                                  SaveExchangeOptions options) {
  return std::make_unique<GroupExchange>(std::move(group), std::move(store), std::move(options));
}

SaveJob::SaveJob(FileSystem& files, std::shared_ptr<SaveExchange> exchange, SaveJobOptions options)
    : unsynced_(files),
      files_(files),
      exchange_(std::move(exchange)),
      options_(std::move(options)) {}

bool SaveJob::step() {
  if (phase_ == Phase::kWrite) {
    own_ = internal::outcome_of([&] { return write(); });
    phase_ = Phase::kCommit;
    return false;
  }
  const bool has_committed = phase_ == Phase::kAgree;
  const int round = has_committed ? kCommitted : kWritten;
  // A step after the one with the files: a simulated disk takes its time between the two.
  if (own_) exchange_->publish(round, *std::exchange(own_, std::nullopt));
  const auto outcomes = exchange_->collect(round);
  if (!outcomes) return false;
  if (const std::string failed = internal::failures(*outcomes, "\n  "); !failed.empty()) {
    const char* consequence =
        "It was written, but may not be complete, or not on every node. What was there before "
        "is unchanged, unless the new one is in its place.";
    if (!has_committed) {
      if (options_.commits) abandon_checkpoint(files_, options_.checkpoint).IgnoreError();
      consequence = "What was there before is unchanged.";
    }
    throw CheckpointError(absl::StrCat("the checkpoint ", options_.checkpoint,
                                       " was not saved:\n  ", failed, "\n", consequence));
  }
  if (has_committed) {
    clean_up();
    return true;
  }
  own_ = internal::outcome_of([&] { return commit(*outcomes); });
  phase_ = Phase::kAgree;
  return false;
}

std::string SaveJob::write() {
  const std::vector<CheckpointPart> parts = std::exchange(parts_, {});
  const std::shared_ptr<internal::DeferredCopy> snapshot = std::exchange(snapshot_, nullptr);
  if (!failure_.empty()) throw CheckpointError(failure_);
  if (snapshot != nullptr) snapshot->copy();
  // Names are durable in any case, and so is the manifest, which tells whether the data is there.
  FileSystem& data = options_.durable ? files_ : static_cast<FileSystem&>(unsynced_);
  auto written = write_parts(data, staging_path(options_.checkpoint), parts, options_.on_progress);
  if (absl::IsNotFound(written.status()) && !options_.commits) {
    throw CheckpointError(absl::StrCat(written.status().message(),
                                       " (if this node does not share the disk of rank 0, set "
                                       "ProjectConfiguration::save_on_each_node)"));
  }
  const auto files = internal::value_or_throw(std::move(written));
  if (snapshot != nullptr) {
    snapshot->finish();
    internal::check_ok(snapshot->status());
  }
  for (const auto& [name, file] : files) bytes_ += file.size;
  return manifest_files_text(files);
}

std::string SaveJob::commit(const std::vector<RankOutcome>& outcomes) {
  if (!options_.commits) return "";
  for (const int rank : options_.ranks) {
    auto files = internal::value_or_throw(parse_manifest_files(outcomes[rank].text));
    options_.manifest.files.merge(files);
  }
  internal::check_ok(publish_checkpoint(files_, options_.checkpoint, options_.manifest));
  return "";
}

void SaveJob::clean_up() {
  if (!options_.commits) return;
  absl::Status status = tidy_checkpoint(files_, options_.checkpoint);
  if (options_.total_limit) {
    status.Update(rotate_checkpoints(files_, parent_path(options_.checkpoint),
                                     *options_.total_limit, options_.checkpoint, options_.damaged));
  }
  if (!status.ok()) {
    warning_ = absl::StrCat("an old checkpoint could not be removed: ", status.message());
  }
}

}  // namespace accelerate
