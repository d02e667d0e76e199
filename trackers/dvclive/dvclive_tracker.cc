#include "trackers/dvclive/dvclive_tracker.h"

#include <cmath>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "accelerate/base/json_text.h"
#include "accelerate/tracking/tracker_queue.h"
#include "trackers/common/append_file.h"
#include "trackers/common/file_options.h"
#include "trackers/common/formats.h"
#include "trackers/common/init_kwargs.h"
#include "trackers/common/secrets.h"

namespace accelerate::trackers {
namespace {

using nlohmann::ordered_json;

constexpr char kName[] = "dvclive";

// The number of different warnings that are given.
constexpr size_t kMaxSaid = 1000;

// The number of metric files that are kept open.
constexpr size_t kMaxOpen = 200;
constexpr absl::Duration kOverflowInterval = absl::Minutes(1);

// The first line of each dvc.yaml and params.yaml that this tracker writes.
constexpr char kMark[] = "# Of the dvclive tracker, which replaces this file.\n";

// Whether a variable is set in DVCLive's sense.
bool is_set(const Environment& environment, const char* variable) {
  const std::string value = environment.get_or(variable, "");
  return value.find_first_of("1yY") != value.npos || value == "true" || value == "True" ||
         value == "TRUE";
}

ordered_json metric_json(const TrackerValue& value) {
  return std::isfinite(value.number().value()) ? json_value(value)
                                               : ordered_json(value_text(value));
}

std::string last_part(const std::string& path) { return path.substr(path.rfind('/') + 1); }

// Whether there is a file that this tracker did not write.
bool is_of_others(FileSystem& files, const std::string& path) {
  const absl::StatusOr<std::string> text = read_file(files, path);
  if (absl::IsNotFound(text.status())) return false;
  throw_if_error(text.status());
  return !text->empty() && !text->starts_with(kMark);
}

// The text of `yaml_text` without the entries that `params` has.
std::string other_entries(std::string_view yaml, const TrackerDict& params) {
  std::vector<std::string> beginnings;
  for (const auto& [name, value] : params) {
    const std::string line = yaml_text({{name, std::nullopt}});
    beginnings.push_back(line.substr(0, line.size() - std::string_view(" null\n").size()));
  }
  std::string others;
  bool keeps = false;
  const std::vector<std::string> lines = absl::StrSplit(std::string(yaml), '\n', absl::SkipEmpty());
  for (const std::string& line : lines) {
    if (!line.starts_with(' ') && !line.starts_with("- ")) {  // an entry's first
      keeps = line != "{}" && !line.starts_with('#');
      for (const std::string& beginning : beginnings) {
        const bool is_it = line.starts_with(beginning);
        keeps &= !is_it || (line.size() > beginning.size() && line[beginning.size()] != ' ');
      }
    }
    if (keeps) absl::StrAppend(&others, line, "\n");
  }
  return others;
}

// The path relative to the folder of `file`, if both are absolute or neither is.
std::string relative(const std::string& path, const std::string& file) {
  const std::filesystem::path from = std::filesystem::path(file).parent_path();
  const std::filesystem::path shorter =
      std::filesystem::path(path).lexically_relative(from.empty() ? "." : from);
  return shorter.empty() ? path : shorter.generic_string();
}

// DVCLive's files, see dvclive_tracker.h.
class LiveFiles final : public Live {
 public:
  explicit LiveFiles(const TrackerSetup& setup) : services_(setup.services) {
    InitKwargs kwargs(kName, setup.init_kwargs);
    folder_ = kwargs.text("dir").value_or("dvclive");
    if (folder_.empty()) kwargs.refuse("dir", "the name of a folder");
    const int rank = services_.rank;
    folder_ = folder_of_rank(folder_, rank);
    resume_ = kwargs.boolean("resume").value_or(is_set(services_.environment, "DVCLIVE_RESUME"));
    dvc_yaml_ = "dvc.yaml";
    const TrackerValue* const dvc_yaml = find(setup.init_kwargs, "dvcyaml");
    const bool none = dvc_yaml != nullptr && dvc_yaml->is_none();
    if (const auto value = kwargs.any("dvcyaml"); value || none) {
      if (none || *value == TrackerValue(false)) {
        dvc_yaml_.clear();
      } else if (*value != TrackerValue(true)) {
        const auto* const text = value->get_if<std::string>();
        if (text == nullptr || last_part(*text) != "dvc.yaml") {
          kwargs.refuse("dvcyaml", "the path of a file named dvc.yaml, True or False");
        }
        dvc_yaml_ = *text;
      }
    }
    if (rank > 0 && !dvc_yaml_.empty()) dvc_yaml_ = path("dvc.yaml");
    for (const char* const name : {"save_dvc_exp", "cache_images", "monitor_system"}) {
      if (kwargs.boolean(name).value_or(false)) no_effect_.emplace_back(name);
    }
    for (const char* const name : {"report", "exp_name", "exp_message"}) {
      if (kwargs.text(name)) no_effect_.emplace_back(name);
    }
    kwargs.finish();
  }

  void open() override {
    if (!no_effect_.empty()) {
      services_.warn(
          absl::StrCat("tracker dvclive: ", absl::StrJoin(no_effect_, ", "),
                       " in init_kwargs has no effect: this tracker writes DVCLive's files and "
                       "does not call DVC; `dvc exp save` keeps them as an experiment"));
    }
    if (resume_) {
      read_earlier();
    } else {
      remove_earlier();
    }
    throw_if_error(make_directories_durably(services_.files, folder_));
  }

  void log_params(const TrackerDict& params) override {
    params_.insert(params_.end(), params.begin(), params.end());
    const std::string file = path("params.yaml");
    if (is_of_others(services_.files, file)) {
      services_.warn(absl::StrCat(
          "tracker dvclive: ", file,
          " was written by another program and is left alone; the configuration is not "
          "kept"));
      return;
    }
    has_params_ = true;
    const std::string earlier = other_entries(earlier_params_, params_);
    const std::string text = params_.empty() && !earlier.empty() ? "" : yaml_text(params_);
    throw_if_error(write_file(services_.files, file, absl::StrCat(kMark, earlier, text)));
  }

  void set_step(int64_t step) override { step_ = step; }
  int64_t step() const override { return step_.value_or(0); }

  void log_metric(const std::string& name, const TrackerValue& value,
                  const TrackerDict& kwargs) override {
    InitKwargs options(kName, kwargs, "log_kwargs");
    const bool timestamp = options.boolean("timestamp").value_or(false);
    const bool plot = options.boolean("plot").value_or(true);
    options.finish();

    const std::string safe = safe_path(name);
    ordered_json* place = &summary_;
    for (const auto part : absl::StrSplit(safe, '/')) {
      if (!place->is_object()) *place = ordered_json::object();
      place = &(*place)[std::string(part)];
    }
    *place = metric_json(value);
    summary_is_new_ = true;
    if (!plot) return;

    Metric& metric = this->metric(name, safe, timestamp);
    std::vector<std::string> row;
    if (metric.timestamp) row.push_back(absl::StrCat(absl::ToUnixMillis(services_.now())));
    row.push_back(absl::StrCat(step()));
    row.push_back(value_text(value));
    metric.file->append(csv_row(row, '\t', "\n"));
  }

  void log_image(const std::string& name, const TrackerImage& image) override {
    const std::string file = path(absl::StrCat("plots/images/", safe_path(name)));
    throw_if_error(write_file(services_.files, file, encode_png(image)));
    has_images_ = true;
  }

  void next_step() override {
    summary_["step"] = step();
    summary_is_new_ = true;
    step_ = step() + 1;
  }

  void flush(bool all) override {
    write_metrics(all);
    write_summary();
    write_dvc_yaml();
  }

  void end() override {
    FirstFailure failure;
    for (const auto& [path, metric] : metrics_) {
      failure.attempt([&] { metric->file->finish(); });
    }
    summary_is_new_ = true;
    write_summary();
    write_dvc_yaml();
    failure.rethrow();
  }

 private:
  struct Metric {
    std::string title;       // of the column
    bool timestamp = false;  // whether there is such a column
    std::unique_ptr<AppendFile> file;
  };

  std::string path(const std::string& name) const { return join_path(folder_, name); }

  void remove_earlier() {
    for (const char* const name : {"plots/metrics", "plots/images", "plots/sklearn", "plots/custom",
                                   "metrics.json", "report.html", "report.md"}) {
      throw_if_error(remove_all(services_.files, path(name)));
    }
    for (const char* const name : {"params.yaml", "dvc.yaml"}) {
      if (is_of_others(services_.files, path(name))) continue;
      throw_if_error(remove_all(services_.files, path(name)));
    }
  }

  void read_earlier() {
    earlier_params_ = read_file(services_.files, path("params.yaml")).value_or("");
    has_params_ = !earlier_params_.empty();
    has_images_ = exists(services_.files, path("plots/images")).value_or(false);
    const absl::StatusOr<std::string> text = read_file(services_.files, path("metrics.json"));
    if (absl::IsNotFound(text.status())) return;
    throw_if_error(text.status());
    ordered_json summary = ordered_json::parse(*text, nullptr, false);
    if (!summary.is_object()) {
      services_.warn(absl::StrCat("tracker dvclive: ", path("metrics.json"),
                                  " is not a JSON object; the run begins with step 0"));
      return;
    }
    const auto step = summary.find("step");
    if (step != summary.end() && step->is_number_integer()) {
      step_ = step->get<int64_t>();
      if (*step_ != 0) ++*step_;
    }
    summary_ = std::move(summary);
  }

  Metric& metric(const std::string& name, const std::string& path, bool timestamp) {
    std::unique_ptr<Metric>& metric = metrics_[path];
    if (metric != nullptr) return *metric;
    metric = std::make_unique<Metric>();
    metric->title = last_part(name);
    metric->timestamp = timestamp;
    std::vector<std::string> header{"step", metric->title};
    if (timestamp) header.insert(header.begin(), "timestamp");
    const std::string file = this->path(absl::StrCat("plots/metrics/", path, ".tsv"));
    metric->file = std::make_unique<AppendFile>(
        services_.files, file,
        AppendFileOptions{.header = csv_row(header, '\t', "\n"),
                          .keep = [&columns = *metric](std::string_view contents) {
                            std::string kept = whole_lines(contents);
                            if (!kept.empty()) columns.timestamp = kept.starts_with("timestamp\t");
                            return kept;
                          }});
    if (resume_) metric->file->open();  // for its columns
    return *metric;
  }

  void write_metrics(bool all) {
    const bool overflow_is_due = all || services_.now() >= next_overflow_;
    if (overflow_is_due) next_overflow_ = services_.now() + kOverflowInterval;
    FirstFailure failure;
    size_t index = 0;
    for (const auto& [path, metric] : metrics_) {
      failure.attempt([&] {
        if (index++ < kMaxOpen) {
          metric->file->flush();
        } else if (overflow_is_due) {
          metric->file->release();
        }
      });
    }
    failure.rethrow();
  }

  void write_summary() {
    if (!summary_is_new_) return;
    throw_if_error(write_file(services_.files, path("metrics.json"),
                              absl::StrCat(json_text(summary_, 4), "\n")));
    summary_is_new_ = false;
  }

  void write_dvc_yaml() {
    if (dvc_yaml_.empty() || !dvc_yaml_is_ours_) return;
    const auto from_here = [&](const char* name) { return relative(path(name), dvc_yaml_); };
    TrackerDict content;
    if (has_params_) content.emplace_back("params", TrackerList{from_here("params.yaml")});
    if (!summary_.empty()) content.emplace_back("metrics", TrackerList{from_here("metrics.json")});
    TrackerList plots;
    if (!metrics_.empty()) {
      plots.emplace_back(TrackerDict{{from_here("plots/metrics"), TrackerDict{{"x", "step"}}}});
    }
    if (has_images_) plots.emplace_back(from_here("plots/images"));
    if (!plots.empty()) content.emplace_back("plots", std::move(plots));
    if (content.empty()) return;
    const std::string text = absl::StrCat(kMark, yaml_text(content));
    if (text == dvc_yaml_text_) return;

    const absl::StatusOr<std::string> earlier = read_file(services_.files, dvc_yaml_);
    if (earlier.ok() && !earlier->empty() && !earlier->starts_with(kMark)) {
      dvc_yaml_is_ours_ = false;
      if (earlier->find(from_here("metrics.json")) != earlier->npos) return;
      services_.warn(absl::StrCat(
          "tracker dvclive: ", dvc_yaml_,
          " was written by another program and is left alone; for DVC to show this run, "
          "add to it:\n",
          yaml_text(content)));
      return;
    }
    throw_if_error(write_file(services_.files, dvc_yaml_, text));
    dvc_yaml_text_ = text;
  }

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

class DvcliveTracker final : public GeneralTracker {
 public:
  DvcliveTracker(const TrackerSetup& setup, std::unique_ptr<Live> live)
      : services_(setup.services), live_(std::move(live)) {}

  void start() override { live_->open(); }
  void store_init_configuration(const TrackerDict& values) override { live_->log_params(values); }
  void log(const TrackerDict& values, const TrackerStep& step) override {
    if (step.step) live_->set_step(*step.step);
    for (const auto& [name, value] : values) {
      if (value.number()) {
        live_->log_metric(name, value, step.kwargs);
      } else {
        warn_of(name, value);
      }
    }
    live_->next_step();
  }

  void log_images(const TrackerImages& images, const TrackerStep& step) override {
    if (step.step) live_->set_step(*step.step);
    for (const auto& [name, several] : images) {
      for (size_t i = 0; i < several.size(); ++i) {
        const std::string folder = several.size() == 1 ? name : absl::StrCat(name, "/", i);
        live_->log_image(absl::StrCat(folder, "/", live_->step(), ".png"), several[i]);
      }
    }
    refuse_log_kwargs(kName, step.kwargs);
  }

  void flush() override { live_->flush(/*all=*/process_is_ending()); }
  void finish() override { live_->end(); }
  void abandon() override { live_->flush(/*all=*/true); }

 private:
  // Warns that the value is dropped, once for each name and type.
  void warn_of(const std::string& name, const TrackerValue& value) {
    const std::string type(type_name(value));
    if (said_.size() >= kMaxSaid || !said_.insert(absl::StrCat(type, " ", name)).second) return;
    services_.warn(absl::StrCat("Accelerator attempted to log a value of \"",
                                shown_value(name, value), "\" of type <class '", type,
                                "'> for key \"", name,
                                "\" as a scalar. This invocation of DVCLive's Live.log_metric() is "
                                "incorrect so we dropped this attribute."));
  }

  const TrackerServices& services_;
  const std::unique_ptr<Live> live_;
  std::set<std::string> said_;
};

const TrackerRegistration kRegistration({.name = kName,
                                         .requires_logging_directory = false,
                                         .tracker = [](const TrackerSetup& setup) {
                                           return make_dvclive_tracker(setup);
                                         }});

}  // namespace

std::unique_ptr<GeneralTracker> make_dvclive_tracker(const TrackerSetup& setup,
                                                     std::unique_ptr<Live> live) {
  if (live == nullptr) live = std::make_unique<LiveFiles>(setup);
  return std::make_unique<DvcliveTracker>(setup, std::move(live));
}

}  // namespace accelerate::trackers
