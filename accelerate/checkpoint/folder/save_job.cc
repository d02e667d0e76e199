#include "accelerate/checkpoint/folder/save_job.h"

#include <utility>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "accelerate/base/json_text.h"
#include "accelerate/comm/checkpoint_error.h"

namespace accelerate {
namespace {

using internal::RankOutcome;
using internal::RankStatus;
using Json = nlohmann::json;

constexpr int kWritten = 0;
constexpr int kCommitted = 1;

class GroupExchange final : public SaveExchange {
 public:
  explicit GroupExchange(ProcessGroupPtr group) : group_(std::move(group)) {}

  void publish(int, const RankOutcome& own) override { own_ = own; }
  std::optional<std::vector<RankOutcome>> collect(int) override {
    return exchange_outcomes(group_, "save_state", own_);
  }

 private:
  const ProcessGroupPtr group_;
  RankOutcome own_;
};

// Rank 0 waits for all outcomes and then publishes the failures under one key, which the other
// ranks poll: the number of requests per rank does not grow with the number of ranks.
class StoreExchange final : public SaveExchange {
 public:
  StoreExchange(c10::intrusive_ptr<c10d::Store> store, StoreExchangeOptions options)
      : store_(std::move(store)), options_(std::move(options)) {}

  void publish(int round, const RankOutcome& own) override {
    set(key(round, options_.rank), to_text(own));
  }

  std::optional<std::vector<RankOutcome>> collect(int round) override {
    const std::string all = key(round, kAll);
    if (options_.rank == 0) {
      std::vector<std::string> keys;
      for (int rank = 0; rank < options_.world_size; ++rank) {
        keys.push_back(key(round, rank));
      }
      if (!store_->check(keys)) return std::nullopt;
      std::vector<RankOutcome> outcomes;
      Json failed = Json::object();
      for (int rank = 0; rank < options_.world_size; ++rank) {
        outcomes.push_back(internal::outcome_from(get(keys[rank])));
        if (!outcomes.back().ok()) failed[std::to_string(rank)] = outcomes.back().text;
      }
      set(all, json_text(failed));
      return outcomes;
    }
    if (!store_->check({all})) return std::nullopt;
    std::vector<RankOutcome> outcomes(options_.world_size);
    for (const int rank : options_.reads) {
      outcomes[rank] = internal::outcome_from(get(key(round, rank)));
    }
    const Json failed = Json::parse(get(all));
    for (const auto& [rank, text] : failed.items()) {
      outcomes[std::stoi(rank)] = {.status = RankStatus::kFailed, .text = text.get<std::string>()};
    }
    return outcomes;
  }

  void beat() override { store_->add(beats_key(), 1); }
  int64_t beats() override { return store_->add(beats_key(), 0); }

  void forget() override {
    store_->deleteKey(beats_key());
    for (int round = 0; round < kRounds; ++round) {
      for (int rank = kAll; rank < options_.world_size; ++rank) store_->deleteKey(key(round, rank));
    }
  }

 private:
  static constexpr int kAll = -1;
  static constexpr int kRounds = 2;

  std::string key(int round, int rank) const {
    return absl::StrCat("accelerate/save/", options_.id, "/", round, "/",
                        rank == kAll ? "all" : absl::StrCat("rank", rank));
  }

  std::string beats_key() const { return absl::StrCat("accelerate/save/", options_.id, "/beats"); }

  void set(const std::string& key, const std::string& text) {
    store_->set(key, std::vector<uint8_t>(text.begin(), text.end()));
  }
  std::string get(const std::string& key) {
    const std::vector<uint8_t> text = store_->get(key);
    return std::string(text.begin(), text.end());
  }

  const c10::intrusive_ptr<c10d::Store> store_;
  const StoreExchangeOptions options_;
};

}  // namespace

std::unique_ptr<SaveExchange> make_group_exchange(ProcessGroupPtr group) {
  return std::make_unique<GroupExchange>(std::move(group));
}

std::unique_ptr<SaveExchange> make_store_exchange(c10::intrusive_ptr<c10d::Store> store,
                                                  StoreExchangeOptions options) {
  return std::make_unique<StoreExchange>(std::move(store), std::move(options));
}

SaveJob::SaveJob(FileSystem& files, std::shared_ptr<SaveExchange> exchange, SaveJobOptions options)
    : unsynced_(files),
      files_(files),
      exchange_(std::move(exchange)),
      options_(std::move(options)) {}

bool SaveJob::step() {
  if (stage_ == Stage::kWrite) {
    own_ = internal::outcome_of([&] { return write(); });
    stage_ = Stage::kCommit;
    return false;
  }
  const bool has_committed = stage_ == Stage::kAgree;
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
  stage_ = Stage::kAgree;
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
