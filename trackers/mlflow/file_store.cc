#include "trackers/mlflow/mlflow_store.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>

#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "accelerate/base/document.h"
#include "accelerate/base/json_text.h"
#include "accelerate/base/number_text.h"
#include "accelerate/base/status.h"
#include "accelerate/platform/file_system.h"
#include "trackers/common/file_options.h"
#include "trackers/common/formats.h"
#include "trackers/common/http_client.h"
#include "trackers/common/numbers.h"

namespace accelerate::trackers {
namespace {

// A process may open about a thousand files.
constexpr size_t kMaxOpenFiles = 200;
// The limits of metrics without an open file.
constexpr absl::Duration kHeldInterval = absl::Minutes(1);
constexpr size_t kMaxHeld = size_t{16} << 20;  // bytes, about
// MLflow's numbers of states and source types.
constexpr int kRunning = 1;
constexpr int kFinished = 3;
constexpr int kLocalSource = 4;
constexpr char kMeta[] = "meta.yaml";

void check(const absl::Status& status) {
  if (absl::IsResourceExhausted(status) || absl::IsDataLoss(status)) {
    throw_if_error<MlflowAway>(status);
  }
  throw_if_error(status);
}

template <typename Value>
Value check(absl::StatusOr<Value> value) {
  check(value.status());
  return *std::move(value);
}

// A document as MLflow writes it. Every value stays on one line, since `with_line` replaces lines.
std::string meta_text(const nlohmann::ordered_json& meta) {
  return accelerate::yaml_text(meta, {.width = std::string::npos, .unicode = true});
}

std::string file_uri(const std::string& path) {
  return absl::StrCat("file://", url_escape_path(path));
}

// A file's entries as texts; none if the file is not valid YAML.
nlohmann::ordered_json read_yaml(FileSystem& files, const std::string& path) {
  const std::string text = check(read_file(files, path));
  try {
    return Document::yaml(text, {.last_key_counts = true, .words_are_texts = true}).value();
  } catch (const DocumentError&) {
    return nullptr;
  }
}

std::string text_at(const nlohmann::ordered_json& entries, const char* name) {
  if (!entries.is_object() || !entries.contains(name)) return "";
  const nlohmann::ordered_json& value = entries.at(name);
  return value.is_string() ? value.get<std::string>() : "";
}

// Replaces the value of the line that begins with the name, or appends such a line.
std::string with_line(const std::string& yaml, const std::string& name, const std::string& value) {
  std::string result;
  bool replaced = false;
  for (size_t begin = 0; begin < yaml.size();) {
    const size_t end = std::min(yaml.find('\n', begin), yaml.size());
    const std::string line = yaml.substr(begin, end - begin);
    begin = end + 1;
    const bool is_it = absl::StartsWith(line, name + ":");
    absl::StrAppend(&result, is_it ? absl::StrCat(name, ": ", value) : line, "\n");
    replaced |= is_it;
  }
  if (!replaced) absl::StrAppend(&result, name, ": ", value, "\n");
  return result;
}

size_t line_count(const std::string& text) {
  return static_cast<size_t>(std::count(text.begin(), text.end(), '\n'));
}

// The files of a folder:
//   EXPERIMENT/meta.yaml, EXPERIMENT/tags/KEY
//   EXPERIMENT/RUN/meta.yaml
//   EXPERIMENT/RUN/metrics/KEY   a line each: time in ms, value, step
//   EXPERIMENT/RUN/params/KEY, EXPERIMENT/RUN/tags/KEY, EXPERIMENT/RUN/artifacts/...
// A run that is resumed loses lines of metrics that are not whole.
class FileStore final : public MlflowStore {
 public:
  FileStore(std::string folder, const TrackerServices& services, uint64_t random_bits)
      : folder_(std::move(folder)),
        services_(services),
        files_(services.files),
        random_state_(random_bits) {}

  std::string place() const override { return folder_; }

  std::vector<std::string> find_experiments(const std::string& name) override {
    std::vector<std::string> ids;
    if (!check(exists(files_, folder_))) return ids;
    for (const std::string& entry : check(files_.list(folder_))) {
      const std::string meta = join_path(join_path(folder_, entry), kMeta);
      const auto info = files_.info(meta);
      if (!info.ok() || info->is_directory) continue;
      const nlohmann::ordered_json yaml = read_yaml(files_, meta);
      const std::string stage = text_at(yaml, "lifecycle_stage");
      if (text_at(yaml, "name") == name && stage != "deleted") ids.push_back(entry);
    }
    return ids;
  }

  std::string create_experiment(const std::string& name,
                                const std::optional<std::string>& artifact_location,
                                const std::vector<MlflowText>& tags, int64_t now) override {
    const auto location = [&](const std::string& id) { return file_uri(join_path(folder_, id)); };
    if (name != "Default" && !check(exists(files_, folder_))) {
      write_experiment("0", "Default", location("0"), now);
    }
    const std::string id =
        name == "Default"
            ? "0"
            : absl::StrCat(100000000000000000 + next_random(random_state_) % 900000000000000000);
    for (const auto& [key, value] : tags) {
      try {
        or_refuse([&] { write(join_path(join_path(join_path(folder_, id), "tags"), key), value); });
      } catch (const MlflowRefused&) {
        continue;  // the run has the same tags, and its failure is reported
      }
    }
    write_experiment(id, name, artifact_location.value_or(location(id)), now);
    return id;
  }

  MlflowRun create_run(const MlflowNewRun& run) override {
    const std::string experiment = join_path(folder_, run.experiment_id);
    const nlohmann::ordered_json meta = read_yaml(files_, join_path(experiment, kMeta));
    MlflowRun result{.experiment_id = run.experiment_id,
                     .run_id = next_hex(random_state_) + next_hex(random_state_)};
    std::string location = text_at(meta, "artifact_location");
    if (location.empty()) location = file_uri(experiment);
    result.artifact_uri = absl::StrCat(location, "/", result.run_id, "/artifacts");
    const std::string name = run.name.empty() ? "run-" + result.run_id.substr(0, 8) : run.name;

    std::vector<MlflowText> tags = run.tags;
    tags.emplace_back("mlflow.runName", name);
    std::string user;
    for (const auto& [key, value] : tags) {
      if (key == "mlflow.user") user = value;
    }
    const std::string folder = run_folder(result);
    for (const char* part : {"artifacts", "metrics", "params", "tags"}) {
      check(make_directories_durably(files_, join_path(folder, part)));
    }
    for (const MlflowText& tag : tags) {
      try {
        set_tags(result, {&tag, 1});
      } catch (const MlflowRefused&) {
        result.unset_tags.push_back(tag);
      }
    }
    // Written last, since a run exists only with this file.
    write(join_path(folder, kMeta), meta_text({{"artifact_uri", valid_utf8(result.artifact_uri)},
                                               {"end_time", nullptr},
                                               {"entry_point_name", ""},
                                               {"experiment_id", run.experiment_id},
                                               {"lifecycle_stage", "active"},
                                               {"run_id", result.run_id},
                                               {"run_name", valid_utf8(name)},
                                               {"run_uuid", result.run_id},
                                               {"source_name", ""},
                                               {"source_type", kLocalSource},
                                               {"source_version", ""},
                                               {"start_time", run.start_time},
                                               {"status", kRunning},
                                               {"tags", nlohmann::ordered_json::array()},
                                               {"user_id", valid_utf8(user)}}));
    return result;
  }

  MlflowRun resume_run(const std::string& run_id) override {
    if (const std::string error = mlflow_path_error(run_id);
        !error.empty() || absl::StrContains(run_id, '/')) {
      throw std::runtime_error(absl::StrCat("run_id \"", run_id, "\" is not a valid run id"));
    }
    const bool there = check(exists(files_, folder_));
    for (const std::string& entry :
         there ? check(files_.list(folder_)) : std::vector<std::string>()) {
      MlflowRun run{.experiment_id = entry, .run_id = run_id};
      const std::string meta = join_path(run_folder(run), kMeta);
      if (!files_.info(meta).ok()) continue;
      const nlohmann::ordered_json yaml = read_yaml(files_, meta);
      if (text_at(yaml, "lifecycle_stage") == "deleted") {
        throw std::runtime_error(absl::StrCat("run ", run_id, " in ", folder_, " is deleted"));
      }
      run.artifact_uri = text_at(yaml, "artifact_uri");
      const std::string contents = check(read_file(files_, meta));
      write(meta,
            with_line(with_line(contents, "status", absl::StrCat(kRunning)), "end_time", "null"));
      return run;
    }
    throw std::runtime_error(absl::StrCat("there is no run ", run_id, " in ", folder_));
  }

  size_t log_metrics(const MlflowRun& run, absl::Span<const MlflowMetric> metrics) override {
    if (held_bytes_ > kMaxHeld) write_held();
    // Stops at the first metric that cannot have a file.
    std::map<std::string, std::string> lines;
    std::map<std::string, std::string> held;
    size_t count = 0;
    for (const MlflowMetric& metric : metrics) {
      const std::string path = join_path(join_path(run_folder(run), "metrics"), metric.key);
      bool is_open = true;
      try {
        or_refuse([&] { is_open = metric_file(path) != nullptr; });
      } catch (const MlflowRefused&) {
        if (count == 0) throw;
        break;
      }
      absl::StrAppend(&(is_open ? lines : held)[path], metric.timestamp, " ",
                      float_text(metric.value), " ", metric.step, "\n");
      ++count;
    }
    // All or nothing: the sizes grow only after everything is written, and a retry overwrites.
    for (const auto& [path, text] : lines) {
      MetricFile& target = metric_files_.at(path);
      const absl::Status status = target.file->write_at(target.size, as_bytes(text));
      if (!status.ok()) throw MlflowAway(std::string(status.message()));
    }
    for (const auto& [path, text] : lines) {
      metric_files_.at(path).size += static_cast<int64_t>(text.size());
    }
    for (const auto& [path, text] : held) {
      held_[path] += text;
      held_bytes_ += text.size();
    }
    return count;
  }

  size_t log_params(const MlflowRun& run, absl::Span<const MlflowText> params) override {
    const auto& [key, value] = params.front();
    const std::string path = join_path(join_path(run_folder(run), "params"), key);
    or_refuse([&] {
      if (!check(exists(files_, path))) return write(path, value);
      if (check(read_file(files_, path)) == value) return;
      throw std::runtime_error(absl::StrCat("param ", key, " of run ", run.run_id,
                                            " has another value already, and keeps it"));
    });
    return 1;
  }

  size_t set_tags(const MlflowRun& run, absl::Span<const MlflowText> tags) override {
    const auto& [key, value] = tags.front();
    or_refuse([&] { write(join_path(join_path(run_folder(run), "tags"), key), value); });
    return 1;
  }

  void flush(const MlflowRun& /*run*/, bool all) override {
    const absl::Time now = services_.now();
    if (all || now >= next_held_) {
      write_held();
      next_held_ = now + kHeldInterval;
    }
    if (lost_ > 0) throw MlflowRefused(why_lost_, std::exchange(lost_, 0));
  }

  size_t held() const override {
    size_t lines = lost_;
    for (const auto& [path, text] : held_) lines += line_count(text);
    return lines;
  }

  void put_artifact(const MlflowRun& run, const std::string& path,
                    std::string_view contents) override {
    std::string folder = run.artifact_uri;
    if (absl::StartsWith(folder, file_uri(folder_) + "/")) {
      folder = join_path(run_folder(run), "artifacts");
    } else if (absl::StartsWith(folder, "file:")) {
      folder = path_of_file_uri(folder);
    } else if (!absl::StartsWith(folder, "/")) {
      throw std::runtime_error(
          absl::StrCat("artifact ", path, " cannot be kept at ", folder, ", only in a folder"));
    }
    write(join_path(folder, path), contents);
  }

  void end_run(const MlflowRun& run, int64_t end_time) override {
    std::set<std::string> folders;
    for (auto& [path, target] : metric_files_) {
      check(target.file->sync());
      folders.insert(parent_path(path));
    }
    for (const std::string& folder : folders) check(files_.sync_directory(folder));
    metric_files_.clear();
    const std::string meta = join_path(run_folder(run), kMeta);
    const std::string contents = check(read_file(files_, meta));
    write(meta, with_line(with_line(contents, "status", absl::StrCat(kFinished)), "end_time",
                          absl::StrCat(end_time)));
  }

 private:
  // A metric's file. Bytes behind `size` are overwritten.
  struct MetricFile {
    std::unique_ptr<WritableFile> file;
    int64_t size = 0;
  };

  std::string run_folder(const MlflowRun& run) const {
    return join_path(join_path(folder_, run.experiment_id), run.run_id);
  }

  // The metric's file if it is open or can be kept open, else null.
  MetricFile* metric_file(const std::string& path) {
    const auto found = metric_files_.find(path);
    if (found != metric_files_.end()) return &found->second;
    if (metric_files_.size() >= kMaxOpenFiles) return nullptr;
    return &metric_files_.emplace(path, open_metric_file(path)).first->second;
  }

  MetricFile open_metric_file(const std::string& path) {
    // FileSystem cannot append, so the lines move to a new file that takes the name.
    MetricFile opened;
    std::string lines;
    if (check(exists(files_, path))) {
      lines = check(read_file(files_, path));
      lines.resize(lines.rfind('\n') + 1);
    } else {
      check(make_directories_durably(files_, parent_path(path)));
    }
    const std::string fresh = lines.empty() ? path : files_.temporary_name(path);
    opened.file = check(files_.create(fresh));
    if (!lines.empty()) {
      absl::Status status = opened.file->write_at(0, as_bytes(lines));
      if (status.ok()) status = files_.rename(fresh, path);
      if (!status.ok()) {
        opened.file.reset();
        files_.remove(fresh).IgnoreError();
        check(status);
      }
    }
    opened.size = static_cast<int64_t>(lines.size());
    return opened;
  }

  void write_held() {
    while (!held_.empty()) {
      const auto& [path, text] = *held_.begin();
      try {
        or_refuse([&] {
          const MetricFile target = open_metric_file(path);
          check(target.file->write_at(target.size, as_bytes(text)));
          check(target.file->sync());
          check(target.file->close());
        });
      } catch (const MlflowRefused& error) {
        lost_ += line_count(text);
        why_lost_ = error.what();
      }
      held_bytes_ -= text.size();
      held_.erase(held_.begin());
    }
  }

  void write(const std::string& path, std::string_view contents) {
    check(write_file(files_, path, contents));
  }

  void write_experiment(const std::string& id, const std::string& name,
                        const std::string& artifact_location, int64_t now) {
    write(join_path(join_path(folder_, id), kMeta),
          meta_text({{"artifact_location", valid_utf8(artifact_location)},
                     {"creation_time", now},
                     {"experiment_id", id},
                     {"last_update_time", now},
                     {"lifecycle_stage", "active"},
                     {"name", valid_utf8(name)}}));
  }

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

}  // namespace

std::unique_ptr<MlflowStore> make_file_store(std::string folder, const TrackerServices& services,
                                             uint64_t random_bits) {
  return std::make_unique<FileStore>(std::move(folder), services, random_bits);
}

}  // namespace accelerate::trackers
