/// Runs in a folder, as MLflow lays them out: `mlflow ui --backend-store-uri FOLDER` shows them.
///
///   EXPERIMENT/meta.yaml, EXPERIMENT/tags/KEY
///   EXPERIMENT/RUN/meta.yaml
///   EXPERIMENT/RUN/metrics/KEY   a line each: time in ms, value, step
///   EXPERIMENT/RUN/params/KEY, EXPERIMENT/RUN/tags/KEY, EXPERIMENT/RUN/artifacts/...
///
/// What `log_metrics` returned from is in the files, should the process be killed, but for metrics
/// beyond the first 200: more files are not kept open, so these are written once a minute, to
/// copies. Should the machine die, what came before the end of the run may be lost. Other processes
/// may write other runs of the folder meanwhile, but not the same. Errors:  as MlflowStore's;
/// MlflowAway for a disk that is full or fails. A file with a line that is not
///          whole loses it when the run is resumed.
/// Threads: one at a time.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "accelerate/platform/file_system.h"
#include "trackers/mlflow/mlflow_store.h"

namespace accelerate::trackers {

class FileStore final : public MlflowStore {
 public:
  /// `folder`: need not exist. Touches nothing yet. The services outlive it.
  FileStore(std::string folder, const TrackerServices& services, uint64_t random_bits);

  std::string place() const override { return folder_; }
  std::vector<std::string> find_experiments(const std::string& name) override;
  std::string create_experiment(const std::string& name,
                                const std::optional<std::string>& artifact_location,
                                const std::vector<MlflowText>& tags, int64_t now) override;
  MlflowRun create_run(const MlflowNewRun& run) override;
  MlflowRun resume_run(const std::string& run_id) override;
  size_t log_metrics(const MlflowRun& run, absl::Span<const MlflowMetric> metrics) override;
  size_t log_params(const MlflowRun& run, absl::Span<const MlflowText> params) override;
  size_t set_tags(const MlflowRun& run, absl::Span<const MlflowText> tags) override;
  void flush(const MlflowRun& run, bool all) override;
  size_t held() const override;
  void put_artifact(const MlflowRun& run, const std::string& path,
                    std::string_view contents) override;
  void end_run(const MlflowRun& run, int64_t end_time) override;

 private:
  // A metric's file: what is behind `size` does not count.
  struct MetricFile {
    std::unique_ptr<WritableFile> file;
    int64_t size = 0;
  };

  std::string run_folder(const MlflowRun& run) const;
  // It, where it is open or may stay so; else null.
  MetricFile* metric_file(const std::string& path);
  MetricFile open_metric_file(const std::string& path);
  void write_held();
  void write(const std::string& path, std::string_view contents);
  void write_experiment(const std::string& id, const std::string& name,
                        const std::string& artifact_location, int64_t now);

  const std::string folder_;
  const TrackerServices& services_;
  FileSystem& files_;
  uint64_t random_state_;
  std::map<std::string, MetricFile> metric_files_;  // by path; those that are open
  std::map<std::string, std::string> held_;         // by path, lines of others
  size_t held_bytes_ = 0;
  absl::Time next_held_ = absl::InfinitePast();  // when they are due
  size_t lost_ = 0;                              // of them, until `flush` says so
  std::string why_lost_;
};

}  // namespace accelerate::trackers
