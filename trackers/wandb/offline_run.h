/// A W&B run as the files of an offline run, which `wandb sync` uploads.
///
///   DIR/wandb/offline-run-20260102_030405-abcd1234/
///     run-abcd1234.wandb          everything, as records; see record_log.h and wandb.proto
///     files/config.yaml           the configuration
///     files/wandb-summary.json    the last value of each name, when the run has finished
///     files/wandb-metadata.json   what W&B asks to know of the machine
///     files/media/images/NAME_STEP_HASH.png, files/media/table/NAME_STEP_HASH.table.json
///
/// What one step logs is one record. Without a step, values belong to the step that is open, and
/// end it; one that is smaller than the open step is dropped, with a warning. `flush` writes the
/// open step as well, and what it gets later takes the place of what was written.
/// Errors:  std::runtime_error naming the file. Records that could not be written are written by
///          the next flush; see record_log.h. A run that could not begin is begun by the next call;
///          what the ones before it logged is lost, but for the configuration.
/// Threads: one.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/time/time.h"
#include "accelerate/tracking/tracker.h"
#include "trackers/wandb/leaves.h"
#include "trackers/wandb/record_log.h"
#include "trackers/wandb/run.h"
#include "trackers/wandb/run_settings.h"
#include "trackers/wandb/wandb.pb.h"

namespace accelerate::trackers {

class OfflineRun final : public Run {
 public:
  /// `time`: when the run starts; folders are named in UTC.
  OfflineRun(RunSettings settings, absl::Time time, const TrackerServices& services);

  void start() override;
  void update_config(const TrackerDict& values) override;
  void log(const TrackerDict& values, const TrackerStep& step) override;
  /// At most 108 images at a time, as W&B.
  void log_images(const std::string& name, const std::vector<TrackerImage>& images,
                  const TrackerStep& step) override;
  /// At most 10000 rows, as W&B.
  void log_table(const std::string& name, const TrackerTable& table,
                 const TrackerStep& step) override;
  void log_histograms(const TrackerDict& tensors, const TrackerStep& step) override;
  void flush() override;
  void finish() override;

  /// Empty before `start`, and where nothing is kept.
  const std::string& folder() const { return folder_; }

 private:
  struct MediaFile {
    std::string path;  // in `files`
    std::string sha256;
  };

  // Whether anything is; begins the log where that did not succeed before.
  bool is_kept();
  void begin();
  std::string new_folder();
  void append(wandb::Record record);
  void replace_last(wandb::Record record);
  Leaves open_leaves() const;
  void write_config(const TrackerDict& values);
  void write_open_step();
  void write_summary();
  void write_end(int32_t runtime);
  void close_step(int64_t next);
  // Makes the step the open one. False if it has passed.
  bool open_step(const TrackerStep& step);
  void add_to_step(const TrackerDict& values, const TrackerStep& step);
  MediaFile write_media(const std::string& kind, const std::string& name,
                        const std::string& extension, const std::string& contents);
  void announce(const std::string& path, wandb::FilesItem::FileType type);
  double seconds_since_start(absl::Time time) const;

  const RunSettings settings_;
  const absl::Time start_time_;
  const TrackerServices& services_;

  std::string folder_;
  std::optional<RecordLog> log_;
  int64_t records_ = 0;
  TrackerDict config_;
  Leaves summary_;
  Leaves changed_;  // of the summary, since it was last written

  int64_t step_ = 0;  // the open one
  Leaves open_;
  absl::Time open_time_;
  bool open_changed_ = false;  // since it was written
  bool open_is_last_ = false;  // in the log, where more of it may take its place
  bool said_dropped_ = false;
  bool finished_ = false;
};

}  // namespace accelerate::trackers
