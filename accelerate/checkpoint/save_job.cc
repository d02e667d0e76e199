#include "accelerate/checkpoint/save_job.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "accelerate/checkpoint/checkpoint_error.h"

namespace accelerate {
namespace {

constexpr int kWritten = 0;
constexpr int kCommitted = 1;

// Throws if a rank failed.
void check_all(const std::vector<SaveWord>& words, const std::string& checkpoint) {
  std::string failures;
  for (size_t rank = 0; rank < words.size(); ++rank) {
    if (!words[rank].ok) absl::StrAppend(&failures, "\n  rank ", rank, ": ", words[rank].text);
  }
  if (failures.empty()) return;
  throw CheckpointError(absl::StrCat("the checkpoint ", checkpoint, " was not saved:", failures,
                                     "\nWhat was there before is unchanged."));
}

}  // namespace

SaveJob::SaveJob(FileSystem& files, std::shared_ptr<SaveExchange> exchange, SaveJobOptions options)
    : unsynced_(files),
      files_(options.durable ? files : unsynced_),
      exchange_(std::move(exchange)),
      options_(std::move(options)) {}

bool SaveJob::step() {
  switch (stage_) {
    case Stage::kWrite: {
      write();
      stage_ = Stage::kCommit;
      return false;
    }
    case Stage::kCommit: {
      const std::optional<std::vector<SaveWord>> words = exchange_->hear(kWritten);
      if (!words) return false;
      commit(*words);
      stage_ = Stage::kAgree;
      return false;
    }
    case Stage::kAgree: {
      const std::optional<std::vector<SaveWord>> words = exchange_->hear(kCommitted);
      if (!words) return false;
      check_all(*words, options_.checkpoint);
      clean_up();
      return true;
    }
  }
  return true;
}

void SaveJob::write() {
  std::map<std::string, ManifestFile> written;
  if (failure_.empty()) {
    auto result =
        write_parts(files_, staging_path(options_.checkpoint), parts_, options_.on_progress);
    if (result.ok()) written = *std::move(result);
    if (!result.ok()) failure_ = std::string(result.status().message());
  }
  // Aliases of live tensors, or snapshots of them, are not needed any more.
  parts_.clear();
  for (const auto& [name, file] : written) bytes_ += file.size;
  const bool ok = failure_.empty();
  exchange_->tell(kWritten, {.ok = ok, .text = ok ? manifest_files_text(written) : failure_});
}

void SaveJob::commit(const std::vector<SaveWord>& words) {
  try {
    check_all(words, options_.checkpoint);
  } catch (const CheckpointError&) {
    if (options_.commits) abandon_checkpoint(files_, options_.checkpoint).IgnoreError();
    throw;
  }
  absl::Status status;
  if (options_.commits) {
    for (const int rank : options_.ranks) {
      auto files = parse_manifest_files(words[rank].text);
      status.Update(files.status());
      if (files.ok()) options_.manifest.files.merge(*files);
    }
    if (status.ok()) status = publish_checkpoint(files_, options_.checkpoint, options_.manifest);
  }
  exchange_->tell(kCommitted, {.ok = status.ok(), .text = std::string(status.message())});
}

void SaveJob::clean_up() {
  if (!options_.commits) return;
  absl::Status status = tidy_checkpoint(files_, options_.checkpoint);
  if (options_.total_limit) {
    status.Update(rotate_checkpoints(files_, parent_path(options_.checkpoint),
                                     *options_.total_limit, options_.checkpoint));
  }
  if (!status.ok()) {
    warning_ =
        absl::StrCat("an old checkpoint could not be removed: ", std::string(status.message()));
  }
}

}  // namespace accelerate
