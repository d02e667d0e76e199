/// A Trackio run in Trackio's local files, as Trackio itself keeps them:
///
///   DIR/PROJECT.db                           metrics and configurations, of all runs of a project
///   DIR/media/PROJECT/RUN/STEP/HASH.png      images
///
/// DIR is TRACKIO_DIR, else HF_HOME/trackio, else XDG_CACHE_HOME/huggingface/trackio, else
/// ~/.cache/huggingface/trackio. What is logged is held back until `flush`, which is one
/// transaction; what it could not write the next one writes, up to 64 MiB of it. Several processes
/// may write into one project at once.
/// A tensor of up to 32 elements is a list, a larger one a histogram.
/// Differs: the configuration is there from the start, and again whenever it changes; that of a run
///          that is resumed is added to. The machine's own metrics are not logged.
/// Errors:  std::runtime_error naming the file; see sqlite_database.h.
/// Threads: one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "accelerate/tracking/tracker.h"
#include "trackers/trackio/sqlite_database.h"
#include "trackers/trackio/trackio_run.h"

namespace accelerate::trackers {

class LocalRun final : public TrackioRun {
 public:
  /// Knows the kwargs `name`, `group`, `config` and `resume` ("never", "allow" or "must"), and
  /// those of `trackio.init` that mean nothing here, which it remarks on. Errors:
  /// std::invalid_argument for kwargs, see init_kwargs.h, and for names of projects that Trackio
  /// keeps for itself.
  explicit LocalRun(const TrackerSetup& setup);

  void start() override;
  void update_config(const TrackerDict& values) override;
  void log(const TrackerDict& values, const TrackerStep& step) override;
  void log_images(const TrackerImages& images, const TrackerStep& step) override;
  void log_table(const std::string& name, const TrackerTable& table,
                 const TrackerStep& step) override;
  void log_histograms(const TrackerDict& tensors, const TrackerStep& step) override;
  void flush() override;
  void finish() override;

 private:
  enum class Resume { kNever, kAllow, kMust };

  struct Row {
    std::string time;
    std::optional<int64_t> step;  // absent until the run is known
    std::string metrics;          // JSON
  };

  void read_kwargs(const TrackerSetup& setup);
  // Makes the database and the run, if that is still to be done.
  void open();
  void find_run();
  void take_up(const std::string& run_id);
  std::string new_name();
  void settle(Row& row);
  // Writes what waits, and commits.
  void write(SqliteTransaction& transaction);
  void add(const nlohmann::ordered_json& metrics, const TrackerStep& step);

  const TrackerServices& services_;
  const std::string project_;  // as files are named
  const std::string start_time_;
  std::string fresh_id_;
  std::string folder_;
  std::string given_name_;
  Resume resume_ = Resume::kNever;
  std::vector<std::string> remarks_;
  nlohmann::ordered_json config_ = nlohmann::ordered_json::object();

  std::optional<SqliteDatabase> database_;
  std::string name_;
  std::string run_id_;
  int64_t next_step_ = 0;
  std::vector<Row> rows_;  // not written yet
  size_t bytes_ = 0;       // of those
  uint64_t logged_ = 0;    // rows ever written
  bool config_changed_ = true;
  bool said_reserved_ = false;
  bool finished_ = false;
};

}  // namespace accelerate::trackers
