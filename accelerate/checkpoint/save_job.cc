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

SaveJob::SaveJob(FileSystem& files, std::shared_ptr<SaveExchange> exchange, SaveJobOptions options,
                 std::vector<CheckpointPart> parts)
    : files_(files),
      exchange_(std::move(exchange)),
      options_(std::move(options)),
      parts_(std::move(parts)) {}

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
      rotate();
      return true;
    }
  }
  return true;
}

void SaveJob::write() {
  auto written = write_parts(files_, staging_path(options_.checkpoint), parts_,
                             options_.on_progress);
  // Snapshots of tensors are not needed any more.
  parts_.clear();
  if (!written.ok()) {
    exchange_->tell(kWritten, {.ok = false, .text = std::string(written.status().message())});
    return;
  }
  for (const auto& [name, file] : *written) bytes_ += file.size;
  exchange_->tell(kWritten, {.ok = true, .text = manifest_files_text(*written)});
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
    if (!status.ok()) abandon_checkpoint(files_, options_.checkpoint).IgnoreError();
  }
  exchange_->tell(kCommitted, {.ok = status.ok(), .text = std::string(status.message())});
}

void SaveJob::rotate() {
  if (!options_.commits || !options_.total_limit) return;
  const absl::Status status = rotate_checkpoints(files_, parent_path(options_.checkpoint),
                                                 *options_.total_limit, options_.checkpoint);
  if (!status.ok()) {
    warning_ = absl::StrCat("old checkpoints could not be removed: ",
                            std::string(status.message()));
  }
}

}  // namespace accelerate
