/// Serves the latest value of each metric to Prometheus.
///
///   accelerator.init_trackers("mnist", config, {{"prometheus", {{"port", 9499}}}});
///
///   $ curl http://127.0.0.1:9499/metrics
///   # HELP accelerate_train_loss train/loss
///   # TYPE accelerate_train_loss gauge
///   accelerate_train_loss{run="mnist",rank="0"} 0.25
///
/// Besides logged values there are accelerate_step, the latest given step;
/// accelerate_last_log_timestamp_seconds; and accelerate_config_info, whose labels are the
/// configuration without secret values (trackers/common/secrets.h). `run` is the project.
/// Numbers, bools and tensors of one element are gauges. The values of dictionaries are gauges, too
/// ("lr/head" is accelerate_lr_head). Other values are left out with one warning for each name.
///
/// init_kwargs: `port` (9499 unless there is a `textfile`; 0: any free port, which the log
///          shows); `address` ("127.0.0.1": only for this machine; "0.0.0.0": for all networks);
///          `textfile`, a path that ends with .prom, which is replaced about each second if values
///          changed, for the textfile collector of node_exporter; `prefix`
///          ("accelerate_").
///          If every rank has the tracker, rank N serves port + N and writes X.rank_N.prom.
/// Fails:   `start` fails if the port is in use, and nothing is served then. The port is closed at
///          the end; the file stays with the last values.
/// Threads: as any tracker's; a thread of its own serves the port.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "accelerate/tracking/tracker.h"

namespace accelerate::trackers {

/// The latest values of metrics in the text format 0.0.4 of Prometheus. Threads: any.
class MetricsText {
 public:
  using Labels = std::vector<std::pair<std::string, std::string>>;

  /// Names begin with `prefix`; all metrics have `labels`.
  MetricsText(std::string prefix, Labels labels);

  /// Takes any name. Characters that Prometheus does not allow become underscores; if two names
  /// become the same, the later one ends with "_2". False if there are too many names already.
  bool set(const std::string& name, double value);

  /// Sets a metric of value 1 with these labels, whose values are cut to 200 bytes.
  void set_info(const std::string& name, const Labels& labels);

  std::string text() const;

 private:
  struct Metric {
    std::string help;
    std::string labels;
    double value = 0;
  };
  Metric* find_or_add(const std::string& name);

  const std::string prefix_;
  const Labels labels_;
  mutable std::mutex mutex_;                    // guards the members below
  std::map<std::string, Metric> metrics_;       // by their names in Prometheus
  std::map<std::string, std::string> name_of_;  // these names, by logged names
};

class MetricsServer;

class PrometheusTracker final : public GeneralTracker {
 public:
  explicit PrometheusTracker(const TrackerSetup& setup);
  ~PrometheusTracker() override;

  void start() override;
  void store_init_configuration(const TrackerDict& values) override;
  void log(const TrackerDict& values, const TrackerStep& step) override;
  void flush() override;
  void finish() override;

  /// 0 if no port is served.
  int port() const;

 private:
  struct Options {
    explicit Options(const TrackerSetup& setup);

    std::optional<int> port;
    std::string address;
    std::string textfile;
    std::string prefix;
  };

  void set(const std::string& name, const TrackerValue& value);
  void leave_out(const std::string& name, const std::string& why);

  const TrackerServices& services_;
  const Options options_;
  MetricsText metrics_;
  bool is_new_ = false;         // whether values changed since the file was written
  std::set<std::string> said_;  // names that were left out
  std::unique_ptr<MetricsServer> server_;
};

}  // namespace accelerate::trackers
