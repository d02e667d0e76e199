#include "accelerate/checkpoint/folder/save_job.h"

#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "accelerate/comm/checkpoint_error.h"
#include "accelerate/comm/rank_endings.h"

namespace accelerate {
namespace {

constexpr int kWritten = 0;
constexpr int kCommitted = 1;

// What the ranks that failed say, a line each; empty if none did.
std::string failures_of(const std::vector<SaveWord>& words) {
  std::string failures;
  for (size_t rank = 0; rank < words.size(); ++rank) {
    if (!words[rank].ok) absl::StrAppend(&failures, "\n  rank ", rank, ": ", words[rank].text);
  }
  return failures;
}

[[noreturn]] void throw_not_saved(const std::string& checkpoint, const std::string& failures,
                                  const char* consequence) {
  throw CheckpointError(
      absl::StrCat("the checkpoint ", checkpoint, " was not saved:", failures, "\n", consequence));
}

// Ends as a word to the other ranks, however it ends.
SaveWord word_of(const std::function<std::string()>& body) {
  internal::RankEnding ending = internal::ending_of(body);
  return {.ok = ending.ending == internal::Ending::kWell, .text = std::move(ending.text)};
}

}  // namespace

SaveJob::SaveJob(FileSystem& files, std::shared_ptr<SaveExchange> exchange, SaveJobOptions options)
    : unsynced_(files),
      files_(files),
      exchange_(std::move(exchange)),
      options_(std::move(options)) {}

bool SaveJob::step() {
  switch (stage_) {
    case Stage::kWrite: {
      exchange_->tell(kWritten, word_of([&] { return write(); }));
      stage_ = Stage::kCommit;
      return false;
    }
    case Stage::kCommit: {
      const std::optional<std::vector<SaveWord>> words = exchange_->hear(kWritten);
      if (!words) return false;
      if (const std::string failures = failures_of(*words); !failures.empty()) {
        if (options_.commits) abandon_checkpoint(files_, options_.checkpoint).IgnoreError();
        throw_not_saved(options_.checkpoint, failures, "What was there before is unchanged.");
      }
      exchange_->tell(kCommitted, word_of([&] { return commit(*words); }));
      stage_ = Stage::kAgree;
      return false;
    }
    case Stage::kAgree: {
      const std::optional<std::vector<SaveWord>> words = exchange_->hear(kCommitted);
      if (!words) return false;
      if (const std::string failures = failures_of(*words); !failures.empty()) {
        throw_not_saved(
            options_.checkpoint, failures,
            "It was written, but may not be complete, or not on every node. What was there before "
            "is unchanged, unless the new one is in its place.");
      }
      clean_up();
      return true;
    }
  }
  return true;
}

std::string SaveJob::write() {
  const std::vector<CheckpointPart> parts = std::exchange(parts_, {});
  const std::shared_ptr<internal::DeferredCopy> snapshot = std::exchange(snapshot_, nullptr);
  if (!failure_.empty()) throw CheckpointError(failure_);
  if (snapshot != nullptr) snapshot->copy();
  // Names, and the manifest which tells whether the data is there, are durable in any case.
  FileSystem& data = options_.durable ? files_ : static_cast<FileSystem&>(unsynced_);
  auto written = write_parts(data, staging_path(options_.checkpoint), parts, options_.on_progress);
  if (absl::IsNotFound(written.status()) && !options_.commits) {
    throw CheckpointError(absl::StrCat(std::string(written.status().message()),
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

std::string SaveJob::commit(const std::vector<SaveWord>& words) {
  if (!options_.commits) return "";
  for (const int rank : options_.ranks) {
    auto files = internal::value_or_throw(parse_manifest_files(words[rank].text));
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
    warning_ =
        absl::StrCat("an old checkpoint could not be removed: ", std::string(status.message()));
  }
}

}  // namespace accelerate
