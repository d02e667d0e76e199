/// The latest values of metrics in the text format 0.0.4 of Prometheus.
///
///   # HELP accelerate_train_loss train/loss
///   # TYPE accelerate_train_loss gauge
///   accelerate_train_loss{run="mnist",rank="0"} 0.25
///
/// Threads: any.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace accelerate::trackers {

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

}  // namespace accelerate::trackers
