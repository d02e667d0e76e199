#include "trackers/mlflow/mlflow_store.h"

#include <algorithm>
#include <array>
#include <deque>
#include <set>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "trackers/common/file_options.h"
#include "trackers/common/formats.h"

namespace accelerate::trackers {
namespace {

// Bounded, since a program may log a new name at each step.
constexpr size_t kMaxBadNames = 1000;

int64_t timestamp_of(const TrackerStep& step) {
  int64_t timestamp = absl::ToUnixMillis(step.time);
  for (const auto& [name, value] : step.kwargs) {
    if (name == "timestamp") {
      if (value.is_none()) continue;
      const auto* const given = value.get_if<int64_t>();
      if (given == nullptr) {
        throw std::invalid_argument(
            absl::StrCat("log_kwargs: timestamp must be an int, in ms, not ", value_text(value)));
      }
      timestamp = *given;
    } else if (name != "synchronous") {  // it never is
      throw std::invalid_argument(absl::StrCat("log_kwargs: ", name,
                                               " is unknown to mlflow; known are timestamp and "
                                               "synchronous"));
    }
  }
  return timestamp;
}

class BufferedClient final : public MlflowClient {
  // Calls the store. Errors: MlflowAway if it failed a moment ago.
  template <typename Function>
  auto ask(Function&& function) {
    const absl::Time now = services_.now();
    if (!gate_.is_open(now))
      throw MlflowAway(store_->place() + " could not be reached a moment ago");
    store_->set_call_limit(std::clamp(end_ - now, std::min(absl::Seconds(1), options_.call_limit),
                                      options_.call_limit));
    try {
      if constexpr (std::is_void_v<decltype(function())>) {
        function();
        gate_.succeeded();
      } else {
        auto result = function();
        gate_.succeeded();
        return result;
      }
    } catch (const MlflowAway& error) {
      gate_.failed(services_.now(), error.retry_after);
      throw;
    }
  }

 public:
  BufferedClient(std::unique_ptr<MlflowStore> store, const TrackerServices& services,
                 uint64_t random_bits, BufferedClientOptions options)
      : services_(services),
        store_(std::move(store)),
        options_(std::move(options)),
        gate_(random_bits, options_.retry) {}

  std::vector<std::string> search_experiments(const std::string& name) override {
    return ask([&] { return store_->find_experiments(name); });
  }

  std::string create_experiment(const MlflowCreateExperiment& experiment) override {
    return ask([&] {
      return store_->create_experiment(experiment.name, experiment.artifact_location,
                                       checked_tags(experiment.tags.value_or(TrackerDict())),
                                       absl::ToUnixMillis(services_.now()));
    });
  }

  void start_run(const MlflowStartRun& run) override {
    TrackerDict wanted = run.tags.value_or(TrackerDict());
    if (run.description) wanted.emplace_back("mlflow.note.content", *run.description);
    std::vector<MlflowText> tags = checked_tags(wanted);
    const auto dropped = static_cast<int64_t>(wanted.size() - tags.size());
    if (run.run_id) {
      run_ = ask([&] { return store_->resume_run(*run.run_id); });
      lost_others_ += dropped;
      if (!tags.empty()) add({.kind = Item::kTags, .texts = std::move(tags)});
      return;
    }
    const std::string user =
        services_.environment.get_or("USER", services_.environment.get_or("LOGNAME", "unknown"));
    tags.insert(tags.begin(), {{"mlflow.source.type", "LOCAL"}, {"mlflow.user", user}});
    run_ = ask([&] {
      return store_->create_run({.experiment_id = run.experiment_id,
                                 .name = run.run_name.value_or(""),
                                 .tags = std::move(tags),
                                 .start_time = absl::ToUnixMillis(services_.now())});
    });
    lost_others_ += dropped;
    if (!run_->unset_tags.empty()) {
      add({.kind = Item::kTags, .texts = std::exchange(run_->unset_tags, {})});
    }
  }

  void log_metrics(const TrackerDict& metrics, const TrackerStep& step) override {
    const int64_t timestamp = timestamp_of(step);
    for (const auto& [name, value] : metrics) {
      if (!is_good_name(name, "metric")) {
        ++lost_metrics_;
      } else if (metrics_.size() - sent_metrics_ < options_.max_metrics) {
        metrics_.push_back({.key = name,
                            .value = value.number().value(),
                            .timestamp = timestamp,
                            .step = step.step.value_or(0)});
      } else {
        ++lost_metrics_;
        if (std::exchange(said_full_, true)) continue;
        services_.warn(absl::StrCat("mlflow: ", options_.max_metrics, " metrics wait for ",
                                    store_->place(), "; more of them are dropped"));
      }
    }
  }

  void log_params(const TrackerDict& params) override {
    add_texts(Item::kParams, params.size(), checked(params, "param"));
  }

  void set_tags(const TrackerDict& tags) override {
    add_texts(Item::kTags, tags.size(), checked_tags(tags));
  }

  void log_image(const TrackerImage& image, const std::string& artifact_file) override {
    add_artifact(Item::kContents, artifact_file, encode_png(image));
  }

  void log_text(const std::string& text, const std::string& artifact_file) override {
    add_artifact(Item::kContents, artifact_file, text);
  }

  void log_artifact(const std::string& local_path, const std::string& artifact_path) override {
    const std::string name = local_path.substr(local_path.rfind('/') + 1);
    const std::string path = artifact_path.empty() ? name : absl::StrCat(artifact_path, "/", name);
    add_artifact(Item::kLocalFile, path, local_path);
  }

  void flush(bool all) override {
    flushes_all_ = all;
    if (!run_) return;
    std::optional<std::string> refused;
    const auto send = [&](void (BufferedClient::*part)()) {
      try {
        (this->*part)();
      } catch (const MlflowAway&) {
        throw;
      } catch (const std::exception& error) {
        if (!refused) refused = error.what();
      }
    };
    const absl::Time end =
        end_ == absl::InfiniteFuture() ? services_.now() + options_.flush_limit : end_;
    while (sent_metrics_ < metrics_.size() || !items_.empty()) {
      if (services_.now() >= end) break;
      const auto before = waiting();
      send(items_.empty() ? &BufferedClient::send_metrics : &BufferedClient::send_item);
      if (waiting() == before) break;  // the next flush tries again
    }
    send(&BufferedClient::flush_store);
    if (refused) throw std::runtime_error(*refused);
  }

  void end_run(const TrackerStep& when) override {
    if (!run_) return;
    ask([&] { store_->end_run(*run_, absl::ToUnixMillis(when.time)); });
  }

  bool is_ready() override { return gate_.is_open(services_.now()); }

  bool wait_until_ready(absl::Time end) override {
    if (end_ == absl::InfiniteFuture()) gate_.hurry();
    end_ = end;
    const absl::Time now = services_.now();
    if (now >= end || gate_.next() >= end) return false;
    if (gate_.next() <= now) return true;
    if (options_.wait) {
      options_.wait(gate_.next() - now);
    } else if (services_.is_real) {
      absl::SleepFor(gate_.next() - now);
    } else {
      return false;  // time stands still
    }
    return true;
  }

  std::string losses() override {
    const int64_t metrics =
        lost_metrics_ + static_cast<int64_t>(metrics_.size() - sent_metrics_ + store_->held());
    const int64_t others = lost_others_ + static_cast<int64_t>(items_.size());
    if (metrics == 0 && others == 0) return {};
    return absl::StrCat(metrics, " metrics and ", others, " params, tags or artifacts are lost");
  }

 private:
  // Entries that wait to be sent.
  struct Item {
    enum Kind { kParams, kTags, kContents, kLocalFile } kind;
    std::vector<MlflowText> texts = {};  // the params or tags
    std::string path = {};               // of the artifact
    std::string bytes = {};              // the artifact's contents, or the local file's path

    size_t size() const {
      size_t size = path.size() + bytes.size();
      for (const auto& [name, value] : texts) size += name.size() + value.size();
      return size;
    }
  };

  void add(Item item) {
    const size_t bytes = item.size();
    if (!items_.empty() && item_bytes_ + bytes > options_.max_bytes) {
      ++lost_others_;
      throw std::runtime_error(absl::StrCat("params, tags or artifacts are dropped: ", item_bytes_,
                                            " bytes of them wait for ", store_->place()));
    }
    item_bytes_ += bytes;
    items_.push_back(std::move(item));
  }

  void add_artifact(Item::Kind kind, const std::string& path, std::string bytes) {
    if (const std::string error = mlflow_path_error(path); !error.empty()) {
      throw std::invalid_argument(absl::StrCat("artifact \"", path, "\" is dropped: ", error));
    }
    add({.kind = kind, .path = path, .bytes = std::move(bytes)});
  }

  // The number of metrics, of other items, and their bytes.
  std::array<size_t, 3> waiting() const {
    return {metrics_.size() - sent_metrics_, items_.size(), item_bytes_};
  }

  // Each sends some of the oldest waiting entries.
  void send_item() {
    Item& item = items_.front();
    const size_t bytes = item.size();
    bool done = true;
    const auto remove = [&] {
      item_bytes_ -= done ? bytes : bytes - item.size();
      if (done) items_.pop_front();
    };
    try {
      switch (item.kind) {
        case Item::kParams: send_texts(item.texts, &MlflowStore::log_params); break;
        case Item::kTags: send_texts(item.texts, &MlflowStore::set_tags); break;
        case Item::kContents:
          ask([&] { store_->put_artifact(*run_, item.path, item.bytes); });
          break;
        case Item::kLocalFile: {
          const auto opened = value_or_throw(services_.files.open(item.bytes));
          const auto map = value_or_throw(opened->map());
          const std::string_view contents(reinterpret_cast<const char*>(map->data()), map->size());
          ask([&] { store_->put_artifact(*run_, item.path, contents); });
        }
      }
    } catch (const MlflowAway&) {
      done = false;
      remove();
      throw;
    } catch (const std::exception&) {
      // Texts behind the refused ones are still to be sent.
      const bool is_file = !item.path.empty();
      if (is_file) ++lost_others_;
      done = is_file || item.size() == 0;
      remove();
      throw;
    }
    remove();
  }

  void send_metrics() {
    const auto waiting = absl::MakeConstSpan(metrics_).subspan(sent_metrics_);
    const auto forget = [&](size_t count) {
      sent_metrics_ += count;
      // The memory is freed from time to time, so that each metric moves about once.
      if (sent_metrics_ * 2 < metrics_.size()) return;
      metrics_.erase(metrics_.begin(), metrics_.begin() + static_cast<int64_t>(sent_metrics_));
      sent_metrics_ = 0;
    };
    try {
      forget(ask([&] { return store_->log_metrics(*run_, waiting); }));
    } catch (const MlflowRefused& error) {
      lost_metrics_ += static_cast<int64_t>(error.count);
      forget(error.count);
      throw;
    }
  }

  void flush_store() {
    if (store_->held() == 0) return;
    try {
      ask([&] { store_->flush(*run_, flushes_all_ || end_ != absl::InfiniteFuture()); });
    } catch (const MlflowRefused& error) {
      lost_metrics_ += static_cast<int64_t>(error.count);
      throw;
    }
  }

  void send_texts(std::vector<MlflowText>& texts,
                  size_t (MlflowStore::*send)(const MlflowRun&, absl::Span<const MlflowText>)) {
    while (!texts.empty()) {
      size_t count = 0;
      std::optional<std::string> refused;
      try {
        count = ask([&] { return (*store_.*send)(*run_, texts); });
      } catch (const MlflowRefused& error) {
        count = error.count;
        lost_others_ += static_cast<int64_t>(count);
        refused = error.what();
      }
      texts.erase(texts.begin(), texts.begin() + static_cast<int64_t>(count));
      if (refused) throw std::runtime_error(*refused);
    }
  }

  // The entries with valid names.
  std::vector<MlflowText> checked(const TrackerDict& dict, const std::string& what) {
    std::vector<MlflowText> texts;
    for (const auto& [name, value] : dict) {
      if (is_good_name(name, what)) texts.emplace_back(name, value_text(value));
    }
    return texts;
  }

  std::vector<MlflowText> checked_tags(const TrackerDict& tags) {
    std::vector<MlflowText> texts = checked(tags, "tag");
    for (auto& [name, value] : texts) {
      const size_t length = utf8_length(value);
      if (length <= kMlflowMaxTag) continue;
      value = utf8_start(value, kMlflowMaxTag);
      if (bad_names_.size() >= kMaxBadNames || !bad_names_.insert(name).second) continue;
      services_.warn(absl::StrCat("mlflow: tag \"", name, "\" has ", length,
                                  " characters and is cut: MLflow allows ", kMlflowMaxTag));
    }
    return texts;
  }

  void add_texts(Item::Kind kind, size_t wanted, std::vector<MlflowText> texts) {
    lost_others_ += static_cast<int64_t>(wanted - texts.size());
    add({.kind = kind, .texts = std::move(texts)});
  }

  // Whether the name is valid; warns once for each name that is not.
  bool is_good_name(const std::string& name, const std::string& what) {
    const std::string error = mlflow_name_error(name);
    if (error.empty()) return true;
    if (bad_names_.size() < kMaxBadNames && bad_names_.insert(name).second) {
      services_.warn(absl::StrCat("mlflow: ", what, " \"", name, "\" is dropped: ", error));
    }
    return false;
  }

  const TrackerServices& services_;
  const std::unique_ptr<MlflowStore> store_;
  const BufferedClientOptions options_;
  RetryGate gate_;
  std::optional<MlflowRun> run_;
  std::deque<Item> items_;
  size_t item_bytes_ = 0;
  // The first sent_metrics_ of them were sent.
  std::vector<MlflowMetric> metrics_;
  size_t sent_metrics_ = 0;
  int64_t lost_metrics_ = 0;
  int64_t lost_others_ = 0;
  bool said_full_ = false;
  bool flushes_all_ = false;
  std::set<std::string> bad_names_;
  absl::Time end_ = absl::InfiniteFuture();
};

}  // namespace

std::unique_ptr<MlflowClient> make_buffered_client(std::unique_ptr<MlflowStore> store,
                                                   const TrackerServices& services,
                                                   uint64_t random_bits,
                                                   BufferedClientOptions options) {
  return std::make_unique<BufferedClient>(std::move(store), services, random_bits,
                                          std::move(options));
}

}  // namespace accelerate::trackers
