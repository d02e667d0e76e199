#include "trackers/wandb/wandb_tracker.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <stdexcept>
#include <string_view>
#include <utility>
#include <variant>

#include <nlohmann/json.hpp>

#include "absl/cleanup/cleanup.h"
#include "absl/functional/overload.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "accelerate/base/checksum.h"
#include "accelerate/base/json_text.h"
#include "accelerate/base/number_text.h"
#include "accelerate/tracking/value.h"
#include "trackers/common/file_options.h"
#include "trackers/common/formats.h"
#include "trackers/common/init_kwargs.h"
#include "trackers/common/numbers.h"
#include "trackers/wandb/record_log.h"
#include "trackers/wandb/wandb.pb.h"

namespace accelerate::trackers {
namespace {

constexpr char kProducer[] = "accelerate";
constexpr size_t kMaxImages = 108;
constexpr size_t kMaxRows = 10000;
constexpr int kHistogramBins = 64;
constexpr size_t kHashLength = 20;  // of the names of media

// ---- Values.

// How numbers that are not finite are written.
enum class NotANumber {
  /// NaN, Infinity and -Infinity, as Python writes them and W&B's readers accept them.
  kLiteral,
  kNull,
};

constexpr size_t kMaxListed = 32;  // elements of a tensor
constexpr int kTensorBins = 32;

std::string number_text(double number, NotANumber not_a_number) {
  if (std::isfinite(number)) return json_text(number);
  if (not_a_number == NotANumber::kNull) return "null";
  if (std::isnan(number)) return "NaN";
  return number > 0 ? "Infinity" : "-Infinity";
}

// A histogram of the finite values, in W&B's form.
TrackerDict to_histogram(const std::vector<double>& values, int bins) {
  const Histogram histogram = make_histogram(values, bins);
  return {{"_type", "histogram"},
          {"values", TrackerList(histogram.counts.begin(), histogram.counts.end())},
          {"bins", TrackerList(histogram.edges.begin(), histogram.edges.end())}};
}

TrackerValue plain(const TensorValue& tensor) {
  if (tensor.values.size() > kMaxListed) return to_histogram(tensor.values, kTensorBins);
  if (tensor.values.size() != 1) return listify(TrackerValue(tensor));
  return listify(TrackerValue(TensorValue{.dtype = tensor.dtype, .values = tensor.values}));
}

// As Python's `json.dumps` spaces it, which `wandb` uses; nlohmann::json writes neither these
// spaces nor NaN.
std::string to_json(const TrackerValue& value, NotANumber not_a_number = NotANumber::kLiteral) {
  return std::visit(
      absl::Overload{
          [](std::monostate) { return std::string("null"); },
          [](bool truth) { return std::string(truth ? "true" : "false"); },
          [](int64_t number) { return absl::StrCat(number); },
          [&](double number) { return number_text(number, not_a_number); },
          [](const std::string& text) { return json_text(text); },
          [&](const TensorValue& tensor) { return to_json(plain(tensor), not_a_number); },
          [&](const TrackerList& list) {
            const auto add = [&](std::string* out, const TrackerValue& entry) {
              *out += to_json(entry, not_a_number);
            };
            return absl::StrCat("[", absl::StrJoin(list, ", ", add), "]");
          },
          [&](const TrackerDict& dict) {
            std::string object = "{";
            for (const auto& [name, entry] : dict) {
              if (find(dict, name) != &entry) continue;  // there is a later one
              absl::StrAppend(&object, object.size() > 1 ? ", " : "", json_text(name), ": ",
                              to_json(entry, not_a_number));
            }
            return object + "}";
          },
      },
      value.variant());
}

// Values in W&B's form: JSON at paths of names. Dictionaries are paths: {"lr": {"head": 0.1}} is
// 0.1 at "lr", "head". Tensors of one element are numbers, of up to 32 lists, and larger ones
// histograms. Mirrors: wandb util.py, json_friendly and maybe_compress_history.
class Leaves {
 public:
  using Path = std::vector<std::string>;

  // Sets the entries of a dictionary one by one; an empty dictionary sets nothing. A value
  // replaces all values at, below or above its path.
  void set(const Path& path, const TrackerValue& value) {
    if (const auto* tensor = value.get_if<TensorValue>()) return set(path, plain(*tensor));
    const auto* const dict = value.get_if<TrackerDict>();
    if (dict == nullptr) return set_leaf(path, to_json(value));
    for (const auto& [name, entry] : *dict) {
      Path below = path;
      below.push_back(name);
      set(below, entry);
    }
  }

  void set(std::string_view name, const TrackerValue& value) {
    set(Path{std::string(name)}, value);
  }

  void set_all(const Leaves& others) {
    for (const auto& [path, json] : others.json_) set_leaf(path, json);
  }

  bool empty() const { return json_.empty(); }
  void clear() { json_.clear(); }
  const std::map<Path, std::string>& by_path() const { return json_; }

 private:
  void set_leaf(const Path& path, std::string json) {
    for (size_t size = 1; size < path.size(); ++size) {
      json_.erase(Path(path.begin(), path.begin() + static_cast<int64_t>(size)));
    }
    auto below = json_.lower_bound(path);
    while (below != json_.end() && below->first.size() >= path.size() &&
           std::equal(path.begin(), path.end(), below->first.begin())) {
      below = json_.erase(below);
    }
    json_[path] = std::move(json);
  }

  std::map<Path, std::string> json_;
};

// Writes an object of all paths from `next` on that share its first `depth` names.
void add_object(const std::map<Leaves::Path, std::string>& leaves, size_t depth,
                std::map<Leaves::Path, std::string>::const_iterator& next, std::string& out) {
  const Leaves::Path& first = next->first;
  const auto is_inside = [&](const Leaves::Path& path) {
    return path.size() > depth &&
           std::equal(path.begin(), path.begin() + static_cast<int64_t>(depth), first.begin());
  };
  const char* separator = "{";
  while (next != leaves.end() && is_inside(next->first)) {
    absl::StrAppend(&out, separator, json_text(next->first[depth]), ": ");
    if (next->first.size() == depth + 1) {
      out += next->second;
      ++next;
    } else {
      add_object(leaves, depth + 1, next, out);
    }
    separator = ", ";
  }
  out += "}";
}

// All values as one JSON object.
std::string to_json(const Leaves& leaves) {
  if (leaves.empty()) return "{}";
  std::string out;
  auto next = leaves.by_path().begin();
  add_object(leaves.by_path(), 0, next, out);
  return out;
}

// ---- Settings.

// The names and the folder of a run, from init_kwargs and WANDB_* variables; a kwarg takes
// precedence over its variable. The API key is never read: only `wandb sync` needs it.
// Mirrors: wandb.init and sdk/wandb_settings.py, Settings.
struct RunSettings {
  // The project name of `init_trackers`, else WANDB_PROJECT, else "uncategorized".
  std::string project;
  std::string entity;         // `entity`, WANDB_ENTITY; empty: that of the user who uploads the run
  std::string name;           // `name`, WANDB_NAME; empty: the server chooses a name
  std::string id;             // `id`, WANDB_RUN_ID, or eight letters and digits
  bool id_was_given = false;  // so that other ranks may have the same one
  std::string group;          // `group`, WANDB_RUN_GROUP
  std::string job_type;       // `job_type`, WANDB_JOB_TYPE
  std::vector<std::string> tags;  // `tags`, or WANDB_TAGS separated by commas
  std::string notes;              // `notes`, WANDB_NOTES
  // The parent of the folder `wandb`: `dir`, WANDB_DIR, in a simulation the logging_dir, else ".".
  std::string dir;
  TrackerDict config;
  bool disabled = false;  // nothing is kept: `mode` or WANDB_MODE "disabled", WANDB_DISABLED
  std::vector<std::string> remarks;  // warnings about settings without effect
};

constexpr size_t kIdLength = 8;

std::string random_id(uint64_t bits) {
  static constexpr std::string_view kLetters = "0123456789abcdefghijklmnopqrstuvwxyz";
  std::string id;
  for (size_t i = 0; i < kIdLength; ++i) {
    id.push_back(kLetters[bits % kLetters.size()]);
    bits /= kLetters.size();
  }
  return id;
}

void read_mode(const Environment& environment, InitKwargs& kwargs, RunSettings& settings) {
  const auto given = kwargs.text("mode");
  if (given && *given != "online" && *given != "offline" && *given != "dryrun" &&
      *given != "disabled") {
    kwargs.refuse("mode", "\"online\", \"offline\", \"dryrun\" or \"disabled\"");
  }
  const std::string mode = given ? *given : environment.get_or("WANDB_MODE", "");
  settings.disabled =
      mode == "disabled" ||
      (!given && parse_bool(environment.get_or("WANDB_DISABLED", "")).value_or(false));
  if (mode == "online") {
    settings.remarks.push_back(
        "wandb: runs are not sent while they train, so mode \"online\" is as \"offline\".");
  }
}

RunSettings read_run_settings(const TrackerSetup& setup) {
  const Environment& environment = setup.services.environment;
  InitKwargs kwargs("wandb", setup.init_kwargs);
  const auto text = [&](std::string_view name, std::string_view variable) {
    return kwargs.text(name).value_or(environment.get_or(variable, ""));
  };
  RunSettings settings;
  settings.project = setup.project_name.empty()
                         ? environment.get_or("WANDB_PROJECT", "uncategorized")
                         : setup.project_name;
  settings.entity = text("entity", "WANDB_ENTITY");
  settings.name = text("name", "WANDB_NAME");
  settings.id = text("id", "WANDB_RUN_ID");
  settings.id_was_given = !settings.id.empty();
  if (!settings.id_was_given) settings.id = random_id(setup.random_bits);
  if (absl::StrContains(settings.id, '/'))
    kwargs.refuse("id", "without slashes, as it names files");
  settings.group = text("group", "WANDB_RUN_GROUP");
  settings.job_type = text("job_type", "WANDB_JOB_TYPE");
  if (auto tags = kwargs.texts("tags")) {
    settings.tags = *std::move(tags);
  } else {
    settings.tags =
        absl::StrSplit(environment.get_or("WANDB_TAGS", ""), ',', absl::SkipWhitespace());
    for (std::string& tag : settings.tags) absl::StripAsciiWhitespace(&tag);
  }
  settings.notes = text("notes", "WANDB_NOTES");
  settings.dir = text("dir", "WANDB_DIR");
  if (settings.dir.empty() && !setup.services.is_real) settings.dir = setup.logging_dir;
  if (settings.dir.empty()) settings.dir = ".";
  settings.config = kwargs.dict("config").value_or(TrackerDict());
  read_mode(environment, kwargs, settings);
  if (const auto resume = kwargs.any("resume"); resume && *resume != TrackerValue("never")) {
    settings.remarks.push_back(
        "wandb: `resume` means nothing before the upload; runs of one id are one after "
        "`wandb sync --append`.");
  }
  for (const char* name : {"reinit", "save_code", "settings"}) {
    if (kwargs.any(name)) {
      settings.remarks.push_back(absl::StrCat("wandb: `", name, "` is not used."));
    }
  }
  kwargs.finish();
  return settings;
}

// ---- The run.

void put(TrackerDict& dict, const std::string& name, const TrackerValue& value) {
  const auto known = std::ranges::find(dict, name, &TrackerDict::value_type::first);
  if (known == dict.end()) {
    dict.emplace_back(name, value);
  } else {
    known->second = value;
  }
}

void set_timestamp(absl::Time time, wandb::Timestamp& out) {
  out.set_seconds(absl::ToUnixSeconds(time));
  out.set_nanos(static_cast<int32_t>(
      absl::ToInt64Nanoseconds(time - absl::FromUnixSeconds(absl::ToUnixSeconds(time)))));
}

void add_items(const Leaves& leaves, google::protobuf::RepeatedPtrField<wandb::Item>& items) {
  for (const auto& [path, json] : leaves.by_path()) {
    wandb::Item& item = *items.Add();
    for (const std::string& name : path) item.add_nested_key(name);
    item.set_value_json(json);
  }
}

// A file name without the characters that `wandb sync` reads as a pattern.
std::string media_name(const std::string& name) {
  std::string safe = safe_path(name);
  for (char& c : safe) {
    if (absl::StrContains("*?[]{}\\:\"<>|%", c)) c = '_';
  }
  return safe;
}

bool commit_of(const TrackerStep& step) {
  // A given step stays open until the next one.
  bool commit = !step.step.has_value();
  for (const auto& [name, value] : step.kwargs) {
    if (name != "commit") {
      throw std::invalid_argument(
          absl::StrCat("wandb: log has no argument ", name, ", but commit"));
    }
    if (value.is_none()) continue;
    const auto* const given = value.get_if<bool>();
    if (given == nullptr) {
      throw std::invalid_argument("wandb: log's commit must be True or False");
    }
    commit = *given;
  }
  return commit;
}

class OfflineRun final : public WandbTracker {
 public:
  explicit OfflineRun(const TrackerSetup& setup)
      : settings_(read_run_settings(setup)), start_time_(setup.time), services_(setup.services) {
    for (const auto& [name, value] : settings_.config) put(config_, name, value);
  }

  void start() override {
    if (settings_.disabled) return;
    for (const std::string& remark : settings_.remarks) services_.warn(remark);
    begin();
  }

  void store_init_configuration(const TrackerDict& values) override {
    for (const auto& [name, value] : values) put(config_, name, value);
    const bool begun = log_.has_value();
    if (is_kept() && begun) write_config(values);
  }

  void log(const TrackerDict& values, const TrackerStep& step) override {
    if (is_kept() && open_step(step)) add_to_step(values, step);
  }

  // At most 108 images at a time, as W&B.
  void log_images_of(const std::string& name, const std::vector<TrackerImage>& images,
                     const TrackerStep& step) override {
    if (!is_kept() || !open_step(step)) return;
    if (images.empty()) return add_to_step({{name, TrackerList()}}, step);
    if (images.size() > kMaxImages) {
      services_.warn(absl::StrCat("wandb: only ", kMaxImages, " of the ", images.size(),
                                  " images of ", name, " are kept."));
    }
    const size_t count = std::min(images.size(), kMaxImages);
    TrackerList paths;
    for (size_t i = 0; i < count; ++i) {
      paths.emplace_back(write_media("images", name, ".png", encode_png(images[i])).path);
    }
    add_to_step({{name,
                  {{"_type", "images/separated"},
                   {"width", images[0].width},
                   {"height", images[0].height},
                   {"format", "png"},
                   {"count", static_cast<int64_t>(count)},
                   {"filenames", paths}}}},
                step);
  }

  // At most 10000 rows, as W&B.
  void log_table(const std::string& name, const TrackerTable& table,
                 const TrackerStep& step) override {
    if (!is_kept() || !open_step(step)) return;
    const size_t count = std::min(table.rows.size(), kMaxRows);
    if (count < table.rows.size()) {
      services_.warn(absl::StrCat("wandb: only ", kMaxRows, " of the ", table.rows.size(),
                                  " rows of ", name, " are kept."));
    }
    TrackerList columns(table.columns.begin(), table.columns.end());
    TrackerList rows(table.rows.begin(), table.rows.begin() + static_cast<int64_t>(count));
    const std::string contents =
        to_json(TrackerDict{{"columns", columns}, {"data", rows}}, NotANumber::kNull);
    const MediaFile file = write_media("table", name, ".table.json", contents);
    add_to_step({{name,
                  {{"_type", "table-file"},
                   {"sha256", file.sha256},
                   {"size", contents.size()},
                   {"path", file.path},
                   {"ncols", table.columns.size()},
                   {"nrows", count},
                   {"log_mode", "IMMUTABLE"}}}},
                step);
  }

  void log_histograms(const TrackerDict& tensors, const TrackerStep& step) override {
    TrackerDict histograms;
    for (const auto& [name, value] : tensors) {
      const auto* const tensor = value.get_if<TensorValue>();
      if (tensor == nullptr) {
        throw std::invalid_argument(
            absl::StrCat("wandb: ", name, " is not a tensor, so it has no histogram"));
      }
      histograms.emplace_back(name, to_histogram(tensor->values, kHistogramBins));
    }
    log(histograms, step);
  }

  void flush() override {
    if (!is_kept()) return;
    log_->flush();  // makes room for more
    if (open_changed_) changed_.set_all(open_leaves());
    write_summary();
    write_open_step();
    log_->flush();
  }

  void finish() override {
    if (!is_kept()) return;
    finished_ = true;
    FirstFailure ignored;                     // the last flush counts
    ignored.attempt([&] { log_->flush(); });  // makes room for more
    FirstFailure failure;
    failure.attempt([&] { close_step(step_ + 1); });
    const double runtime = seconds_since_start(services_.now());
    changed_.set(Leaves::Path{"_wandb", "runtime"}, static_cast<int64_t>(runtime));
    failure.attempt([&] { write_summary(); });
    failure.attempt([&] { write_end(static_cast<int32_t>(runtime)); });
    failure.attempt([&] { log_->close(); });
    log_.reset();
    failure.attempt([&] {
      throw_if_error(write_file(services_.files, join_path(folder_, "files/wandb-summary.json"),
                                to_json(summary_) + "\n"));
    });
    failure.rethrow();
  }

 private:
  struct MediaFile {
    std::string path;  // in `files`
    std::string sha256;
  };

  // False if the run is disabled or finished. Begins the log if that failed before.
  bool is_kept() {
    if (settings_.disabled || finished_) return false;
    if (!log_) begin();
    return true;
  }

  void begin() {
    if (folder_.empty()) folder_ = new_folder();
    for (const char* const part : {"files", "logs"}) {
      throw_if_error(services_.files.make_directories(join_path(folder_, part)));
    }
    const std::string path = join_path(folder_, absl::StrCat("run-", settings_.id, ".wandb"));
    log_.emplace(value_or_throw(services_.files.create(path)), path);
    services_.info(absl::StrCat("wandb: the run is kept in ", folder_, "; `wandb sync ", folder_,
                                "` uploads it."));

    wandb::Record header;
    header.mutable_header()->mutable_version_info()->set_producer(kProducer);
    append(std::move(header));
    wandb::Record record;
    wandb::RunRecord& run = *record.mutable_run();
    run.set_run_id(settings_.id);
    run.set_entity(settings_.entity);
    run.set_project(settings_.project);
    run.set_run_group(settings_.group);
    run.set_job_type(settings_.job_type);
    run.set_display_name(settings_.name);
    run.set_notes(settings_.notes);
    for (const std::string& tag : settings_.tags) run.add_tags(tag);
    set_timestamp(start_time_, *run.mutable_start_time());
    append(std::move(record));
    write_config(config_);

    const nlohmann::json metadata = {
        {"startedAt", absl::FormatTime("%Y-%m-%dT%H:%M:%E6SZ", start_time_, absl::UTCTimeZone())},
        {"rank", services_.rank},
        {"worldSize", services_.world_size}};
    throw_if_error(write_file(services_.files, join_path(folder_, "files/wandb-metadata.json"),
                              json_text(metadata, 2) + "\n"));
    announce("wandb-metadata.json", wandb::FilesItem::WANDB);
  }

  std::string new_folder() {
    const std::string stem = join_path(
        join_path(settings_.dir, "wandb"),
        absl::StrCat(
            "offline-run-", absl::FormatTime("%Y%m%d_%H%M%S", start_time_, absl::UTCTimeZone()),
            "-", settings_.id,
            settings_.id_was_given && services_.rank > 0 ? absl::StrCat("-rank", services_.rank)
                                                         : ""));
    std::string folder = stem;
    for (int i = 2; value_or_throw(exists(services_.files, folder)); ++i) {
      folder = absl::StrCat(stem, "-", i);
    }
    throw_if_error(services_.files.make_directories(folder));
    return folder;
  }

  void append(wandb::Record record) {
    if (open_is_last_) {
      // The open step's record moves behind this one.
      replace_last(std::move(record));
      open_changed_ = true;
      return;
    }
    record.set_num(records_ + 1);
    log_->append(record.SerializeAsString());
    ++records_;
  }

  void replace_last(wandb::Record record) {
    record.set_num(records_);
    std::string bytes = record.SerializeAsString();
    if (bytes.size() < log_->last_size()) {
      record.set_uuid(std::string(log_->last_size() - bytes.size(), ' '));
      bytes = record.SerializeAsString();
    }
    log_->replace_last(bytes);
    open_is_last_ = false;
  }

  Leaves open_leaves() const {
    Leaves leaves = open_;
    leaves.set("_step", step_);
    leaves.set("_runtime", seconds_since_start(open_time_));
    leaves.set("_timestamp", unix_seconds(open_time_));
    return leaves;
  }

  void write_config(const TrackerDict& values) {
    if (values.empty()) return;
    wandb::Record record;
    for (const auto& [name, value] : values) {
      wandb::Item& item = *record.mutable_config()->add_update();
      item.set_key(name);
      item.set_value_json(to_json(value));
    }
    append(std::move(record));
    // JSON is valid YAML.
    std::string yaml = "wandb_version: 1\n\n";
    for (const auto& [name, value] : config_) {
      absl::StrAppend(&yaml, to_json(TrackerValue(name)),
                      ":\n  value: ", to_json(value, NotANumber::kNull), "\n");
    }
    throw_if_error(write_file(services_.files, join_path(folder_, "files/config.yaml"), yaml));
  }

  void write_open_step() {
    if (!open_changed_) return;
    wandb::Record record;
    add_items(open_leaves(), *record.mutable_history()->mutable_item());
    record.mutable_history()->mutable_step()->set_num(step_);
    if (open_is_last_) {
      replace_last(std::move(record));
    } else {
      append(std::move(record));
    }
    open_is_last_ = true;
    open_changed_ = false;
  }

  void write_summary() {
    if (changed_.empty()) return;
    wandb::Record record;
    add_items(changed_, *record.mutable_summary()->mutable_update());
    summary_.set_all(changed_);
    changed_.clear();
    append(std::move(record));
  }

  void write_end(int32_t runtime) {
    wandb::Record exit;
    exit.mutable_exit()->set_runtime(runtime);
    append(std::move(exit));
    wandb::Record last;
    last.mutable_final();
    append(std::move(last));
    wandb::Record footer;
    footer.mutable_footer();
    append(std::move(footer));
  }

  void close_step(int64_t next) {
    if (open_changed_) changed_.set_all(open_leaves());
    // A step that cannot be written is dropped, so that later steps can be.
    const absl::Cleanup close = [&] {
      open_is_last_ = false;
      open_changed_ = false;
      open_.clear();
      step_ = next;
    };
    write_open_step();
  }

  // Makes `step` the open step. False if it is smaller than the open one.
  bool open_step(const TrackerStep& step) {
    commit_of(step);
    if (!step.step) return true;
    if (*step.step < step_) {
      if (!std::exchange(said_dropped_, true)) {
        services_.warn(absl::StrCat("wandb: the values of step ", *step.step,
                                    " are dropped, as the run is at step ", step_,
                                    " already; further late values are dropped, too."));
      }
      return false;
    }
    if (*step.step > step_) close_step(*step.step);
    return true;
  }

  void add_to_step(const TrackerDict& values, const TrackerStep& step) {
    for (const auto& [name, value] : values) open_.set(name, value);
    open_time_ = step.time;
    open_changed_ = !open_.empty();
    if (commit_of(step)) close_step(step_ + 1);
  }

  MediaFile write_media(const std::string& kind, const std::string& name,
                        const std::string& extension, const std::string& contents) {
    MediaFile file{.sha256 = sha256(contents)};
    file.path = absl::StrCat("media/", kind, "/", media_name(name), "_", step_, "_",
                             file.sha256.substr(0, kHashLength), extension);
    throw_if_error(
        write_file(services_.files, join_path(join_path(folder_, "files"), file.path), contents));
    announce(file.path, wandb::FilesItem::MEDIA);
    return file;
  }

  void announce(const std::string& path, wandb::FilesItem::FileType type) {
    wandb::Record record;
    wandb::FilesItem& file = *record.mutable_files()->add_files();
    file.set_path(path);
    file.set_policy(wandb::FilesItem::NOW);
    file.set_type(type);
    append(std::move(record));
  }

  double seconds_since_start(absl::Time time) const {
    return absl::ToDoubleSeconds(time - start_time_);
  }

  const RunSettings settings_;
  const absl::Time start_time_;
  const TrackerServices& services_;

  std::string folder_;
  std::optional<RecordLog> log_;
  int64_t records_ = 0;
  TrackerDict config_;
  Leaves summary_;
  Leaves changed_;  // of the summary, since it was last written

  int64_t step_ = 0;  // the open one
  Leaves open_;
  absl::Time open_time_;
  bool open_changed_ = false;  // since it was written
  bool open_is_last_ = false;  // its record is the log's last, and can be replaced
  bool said_dropped_ = false;
  bool finished_ = false;
};

const TrackerRegistration kRegistration({.name = "wandb",
                                         .requires_logging_directory = false,
                                         .main_process_only = false,
                                         .tracker = make_tracker<OfflineRun>});

}  // namespace
}  // namespace accelerate::trackers
