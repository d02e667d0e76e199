/// An MlflowClient that holds back what is logged and hands it on in batches.
///
/// What waits is bounded: when there is no more room, what comes is dropped and counted. While the
/// store is away everything waits, and it is asked again when a RetryGate opens. What it refuses is
/// counted and not tried again.
/// Errors:  as MlflowClient's. `flush` first hands on what it can, then throws the first refusal.
/// Threads: one at a time.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "absl/time/time.h"
#include "accelerate/tracking/tracker.h"
#include "trackers/common/retry_gate.h"
#include "trackers/mlflow/mlflow_client.h"
#include "trackers/mlflow/mlflow_store.h"

namespace accelerate::trackers {

struct BufferedClientOptions {
  /// Metrics that wait, at most.
  size_t max_metrics = 500000;
  /// Bytes of params, tags, images and texts that wait, at most. Files wait where they are.
  size_t max_bytes = size_t{64} << 20;
  /// For one call of the store.
  absl::Duration call_limit = absl::Seconds(10);
  /// For one flush; the rest waits for the next.
  absl::Duration flush_limit = absl::Seconds(5);
  RetryGateOptions retry = {};
  /// Waits that long, at the end of training only. Empty: blocks the thread.
  std::function<void(absl::Duration)> wait = nullptr;
};

class BufferedClient final : public MlflowClient {
 public:
  BufferedClient(std::unique_ptr<MlflowStore> store, const TrackerServices& services,
                 uint64_t random_bits, BufferedClientOptions options = {});

  std::vector<std::string> search_experiments(const std::string& name) override;
  std::string create_experiment(const MlflowCreateExperiment& experiment) override;
  void start_run(const MlflowStartRun& run) override;
  void log_metrics(const TrackerDict& metrics, const TrackerStep& step) override;
  void log_params(const TrackerDict& params) override;
  void set_tags(const TrackerDict& tags) override;
  void log_image(const TrackerImage& image, const std::string& artifact_file) override;
  void log_text(const std::string& text, const std::string& artifact_file) override;
  void log_artifact(const std::string& local_path, const std::string& artifact_path) override;
  void flush() override;
  void flush_all() override;
  void end_run(const TrackerStep& when) override;
  bool is_ready() override;
  bool wait_until_ready(absl::Time end) override;
  std::string losses() override;

 private:
  struct Params {
    std::vector<MlflowText> texts;
  };
  struct Tags {
    std::vector<MlflowText> texts;
  };
  struct Contents {
    std::string path;
    std::string bytes;
  };
  struct LocalFile {
    std::string path;
    std::string local_path;
  };
  using Item = std::variant<Params, Tags, Contents, LocalFile>;

  // Asks the store, if it may be asked now.
  template <typename Function>
  auto ask(Function&& function);
  void add(Item item);
  void add_contents(std::string bytes, const std::string& path);
  // Metrics, other items, and bytes of these.
  std::array<size_t, 3> waiting() const {
    return {metrics_.size() - sent_metrics_, items_.size(), item_bytes_};
  }
  // Each hands on some of what waits first.
  void send_item();
  void send_metrics();
  void flush_store();
  void send_texts(std::vector<MlflowText>& texts,
                  size_t (MlflowStore::*send)(const MlflowRun&, absl::Span<const MlflowText>));
  // Those whose names are good.
  std::vector<MlflowText> checked(const TrackerDict& dict, const std::string& what);
  std::vector<MlflowText> checked_tags(const TrackerDict& tags);
  template <typename Item>
  void add_texts(size_t wanted, std::vector<MlflowText> texts);
  // Whether it may be sent; else says so, once for each name.
  bool is_good_name(const std::string& name, const std::string& what);

  const TrackerServices& services_;
  const std::unique_ptr<MlflowStore> store_;
  const BufferedClientOptions options_;
  RetryGate gate_;
  std::optional<MlflowRun> run_;
  std::deque<Item> items_;
  size_t item_bytes_ = 0;
  // Those before sent_metrics_ were handed on.
  std::vector<MlflowMetric> metrics_;
  size_t sent_metrics_ = 0;
  int64_t lost_metrics_ = 0;
  int64_t lost_others_ = 0;
  bool said_full_ = false;
  bool flushes_all_ = false;
  std::set<std::string> bad_names_;
  absl::Time end_ = absl::InfiniteFuture();
};

}  // namespace accelerate::trackers
