/// DVCLive's files, written without DVC.
///
///   dvclive/metrics.json                the latest value of each metric, nested at the slashes of
///                                       names, and `step`
///   dvclive/plots/metrics/a/loss.tsv    all values of a/loss: "step<tab>loss", or
///                                       "timestamp<tab>step<tab>loss" as its first row has it
///   dvclive/plots/images/a/3.png        images
///   dvclive/params.yaml                 the configuration
///   dvc.yaml                            tells DVC of all these
///
/// Where every rank has the tracker, those other than 0 write below dvclive/rank_N, their dvc.yaml
/// too. Metrics that are not finite are "nan", "inf" and "-inf". What an earlier run left in the
/// folder is removed first, but for `resume`: then its metrics go on with the step after its last.
///
/// init_kwargs: `dir` ("dvclive"); `resume` (False; DVCLIVE_RESUME also sets it); `dvcyaml`
///          ("dvc.yaml"; another path to a file of that name, or False or None for no such file).
///          `save_dvc_exp`, `exp_name`, `exp_message`, `cache_images`, `report` and
///          `monitor_system` are DVCLive's too, which need DVC itself: who asks for one is told
///          that it has no effect.
/// Differs: a dvc.yaml or params.yaml that somebody else wrote, as their first line tells, is left
///          alone, and that is said. A `resume` keeps the entries of params.yaml that are not new.
///          metrics.json is written when the tracker flushes, about each second, and at the end.
///          The rows of metrics beyond the first 200 are written once a minute and before the
///          process ends, since more files are not kept open.
/// Fails:   rows that a full disk has no room for wait until it has; metrics.json and the like keep
///          what they had. After kill -9 the files have what was last flushed.
/// Threads: one.
/// Mirrors: dvclive.Live of DVCLive 3.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "trackers/common/append_file.h"
#include "trackers/dvclive/live.h"

namespace accelerate::trackers {

class LiveFiles final : public Live {
 public:
  /// Errors: std::invalid_argument for init_kwargs that Live does not have.
  explicit LiveFiles(const TrackerSetup& setup);
  ~LiveFiles() override;

  void open() override;
  void log_params(const TrackerDict& params) override;
  void set_step(int64_t step) override { step_ = step; }
  int64_t step() const override { return step_.value_or(0); }
  void log_metric(const std::string& name, const TrackerValue& value,
                  const TrackerDict& kwargs) override;
  void log_image(const std::string& name, const TrackerImage& image) override;
  void next_step() override;
  void flush() override;
  void flush_all() override;
  void end() override;

 private:
  struct Metric;

  std::string path(const std::string& name) const { return join_path(folder_, name); }
  void remove_earlier();
  void read_earlier();
  Metric& metric(const std::string& name, const std::string& path, bool timestamp);
  void write_metrics();
  void write_summary();
  void write_dvc_yaml();

  const TrackerServices& services_;
  std::string folder_;
  bool resume_ = false;
  std::string dvc_yaml_;                // path; empty for none
  std::vector<std::string> no_effect_;  // names among the init_kwargs

  std::optional<int64_t> step_;
  nlohmann::ordered_json summary_ = nlohmann::ordered_json::object();
  bool summary_is_new_ = false;
  TrackerDict params_;
  std::string earlier_params_;  // of the run that is resumed, as YAML
  bool has_params_ = false;
  bool has_images_ = false;
  std::map<std::string, std::unique_ptr<Metric>> metrics_;  // by path
  absl::Time next_overflow_ = absl::InfinitePast();
  std::string dvc_yaml_text_;  // as it was last written
  bool dvc_yaml_is_ours_ = true;
};

}  // namespace accelerate::trackers
