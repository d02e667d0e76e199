/// The latest value of each metric, where Prometheus scrapes it.
///
///   accelerator.init_trackers("mnist", config, {{"prometheus", {{"port", 9499}}}});
///
///   $ curl http://127.0.0.1:9499/metrics
///   # HELP accelerate_train_loss train/loss
///   # TYPE accelerate_train_loss gauge
///   accelerate_train_loss{run="mnist",rank="0"} 0.25
///
/// Besides what is logged there are accelerate_step, the latest step that was given;
/// accelerate_last_log_timestamp_seconds; and accelerate_config_info, whose labels are the
/// configuration, but for names of secrets (trackers/common/secrets.h). `run` is the project.
/// Of what is logged, numbers, bools and tensors of one element are gauges, and dictionaries are
/// gone through ("lr/head" is accelerate_lr_head); other values are left out, which is said once
/// for each name.
///
/// init_kwargs: `port` (9499 unless there is a `textfile`; 0: one that is free, which is said in
///          the log); `address` ("127.0.0.1": only this machine sees it; "0.0.0.0": all that reach
///          it do); `textfile`, a path that ends with .prom, which is replaced about each second
///          where something changed, for the textfile collector of node_exporter; `prefix`
///          ("accelerate_").
///          Where every rank has the tracker, rank N serves port + N and writes X.rank_N.prom.
/// Fails:   a port that is in use is an error of the start, and nothing is served then. The
///          port is closed at the end; the file stays with the last values.
/// Threads: as any tracker's; the port is served by a thread of its own, see
///          trackers/prometheus/metrics_server.h.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>

#include "accelerate/tracking/tracker.h"
#include "trackers/prometheus/metrics_server.h"
#include "trackers/prometheus/metrics_text.h"

namespace accelerate::trackers {

class PrometheusTracker final : public GeneralTracker {
 public:
  explicit PrometheusTracker(const TrackerSetup& setup);

  void start() override;
  void store_init_configuration(const TrackerDict& values) override;
  void log(const TrackerDict& values, const TrackerStep& step) override;
  void flush() override;
  void finish() override;

  /// 0 where none is served.
  int port() const { return server_ ? server_->port() : 0; }

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
  bool is_new_ = false;         // something since the file was written
  std::set<std::string> said_;  // names that were left out
  std::unique_ptr<MetricsServer> server_;
};

}  // namespace accelerate::trackers
