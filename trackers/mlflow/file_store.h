/// Runs in a folder, as MLflow lays them out: `mlflow ui --backend-store-uri FOLDER` shows them.
///
///   EXPERIMENT/meta.yaml, EXPERIMENT/tags/KEY
///   EXPERIMENT/RUN/meta.yaml
///   EXPERIMENT/RUN/metrics/KEY   a line each: time in ms, value, step
///   EXPERIMENT/RUN/params/KEY, EXPERIMENT/RUN/tags/KEY, EXPERIMENT/RUN/artifacts/...
///
/// What `log_metrics` returned from is in the files, should the process be killed; should the
/// machine die, what came before the end of the run may be lost. Other processes may write other
/// runs of the folder meanwhile, but not the same.
/// Errors:  as MlflowStore's; MlflowAway for a disk that is full or fails. A file with a line that
/// is not
///          whole loses it when the run is resumed.
/// Threads: one at a time.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <string>

#include "accelerate/runtime/file_system.h"
#include "trackers/mlflow/mlflow_store.h"

namespace accelerate::trackers {

class FileStore final : public MlflowStore {
 public:
  /// `folder`: need not exist. Touches nothing yet.
  FileStore(std::string folder, FileSystem& files, uint64_t random_bits);

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
  void put_artifact(const MlflowRun& run, const std::string& path,
                    std::string_view contents) override;
  void end_run(const MlflowRun& run, int64_t end_time) override;

 private:
  // A metric's file: what is behind `size` does not count.
  struct MetricFile {
    std::unique_ptr<WritableFile> file;
    int64_t size = 0;
    std::list<std::string>::iterator age;
  };

  std::string run_folder(const MlflowRun& run) const;
  MetricFile& metric_file(const std::string& path);
  void write(const std::string& path, std::string_view contents);
  void write_experiment(const std::string& id, const std::string& name,
                        const std::string& artifact_location, int64_t now);

  const std::string folder_;
  FileSystem& files_;
  uint64_t random_state_;
  std::map<std::string, MetricFile> metric_files_;  // by path; those that are open
  std::list<std::string> ages_;                     // of these; used last, first
};

}  // namespace accelerate::trackers
