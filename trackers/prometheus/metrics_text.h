/// The latest values of metrics, as the text format 0.0.4 of Prometheus has them.
///
///   # HELP accelerate_train_loss train/loss
///   # TYPE accelerate_train_loss gauge
///   accelerate_train_loss{run="mnist",rank="0"} 0.25
///
/// Threads: any.
#pragma once

#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace accelerate::trackers {

class MetricsText {
 public:
  using Labels = std::vector<std::pair<std::string, std::string>>;

  /// Names begin with `prefix`; all metrics have `labels`.
  MetricsText(std::string prefix, Labels labels);

  /// Of any name. Characters that Prometheus does not take are underscores; where two names become
  /// one, the later has "_2" behind it. False where there are too many names to take another.
  bool set(const std::string& name, double value);

  /// A metric of value 1 whose labels say something. Values are cut to 200 bytes.
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
  mutable std::mutex mutex_;                    // of all below
  std::map<std::string, Metric> metrics_;       // by the name that Prometheus sees
  std::map<std::string, std::string> name_of_;  // that, by the name that was logged
};

}  // namespace accelerate::trackers
