#include "trackers/jsonl/jsonl_tracker.h"

#include <cstdint>
#include <stdexcept>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trackers/common/file_options.h"
#include "trackers/common/histogram.h"
#include "trackers/common/init_kwargs.h"
#include "trackers/common/json_value.h"
#include "trackers/common/numbers.h"
#include "trackers/common/png.h"
#include "trackers/common/secrets.h"

namespace accelerate::trackers {
namespace {

using nlohmann::ordered_json;

constexpr char kName[] = "jsonl";

const TrackerRegistration kRegistration({.name = kName,
                                         .requires_logging_directory = true,
                                         .main_process_only = true,
                                         .tracker = make_tracker<JsonlTracker>});

// A line without values, or empty ones where there is no room for its braces.
std::string filler(size_t size) {
  if (size < 3) return std::string(size, '\n');
  return absl::StrCat("{}", std::string(size - 3, ' '), "\n");
}

std::string field(const std::string& name) {
  const bool taken = name == "_run" || name == "_step" || name == "_timestamp";
  return taken ? absl::StrCat("_", name) : name;
}

}  // namespace

JsonlTracker::JsonlTracker(const TrackerSetup& setup)
    : JsonlTracker(setup, file_options(kName, setup)) {}

JsonlTracker::JsonlTracker(const TrackerSetup& setup, FileOptions options)
    : files_(setup.services.files),
      folder_(std::move(options.folder)),
      run_(std::move(options.run)),
      lines_(files_, join_path(folder_, "metrics.jsonl"), {.filler = filler}) {}

void JsonlTracker::start() { lines_.open(); }

void JsonlTracker::store_init_configuration(const TrackerDict& values) {
  const std::string text = json_text(json_value(values), 2);
  throw_if_error(write_file(files_, join_path(folder_, "config.json"), absl::StrCat(text, "\n")));
}

void JsonlTracker::log(const TrackerDict& values, const TrackerStep& step) {
  ordered_json object = line(step);
  for (const auto& [name, value] : values) object[field(name)] = json_value(value);
  write(object);
  refuse_log_kwargs(kName, step.kwargs);
}

void JsonlTracker::log_images(const TrackerImages& images, const TrackerStep& step) {
  ordered_json object = line(step);
  const std::string when = step.step ? absl::StrCat(*step.step, "-") : "";
  for (const auto& [name, several] : images) {
    ordered_json paths = ordered_json::array();
    for (const TrackerImage& image : several) {
      const std::string path = absl::StrCat("media/", safe_path(run_), "/", safe_path(name), "/",
                                            when, images_++, ".png");
      throw_if_error(write_file(files_, join_path(folder_, path), encode_png(image)));
      paths.push_back(path);
    }
    object[field(name)] = {{"_type", "images"}, {"paths", paths}};
  }
  write(object);
  refuse_log_kwargs(kName, step.kwargs);
}

void JsonlTracker::log_table(const std::string& name, const TrackerTable& table,
                             const TrackerStep& step) {
  ordered_json rows = ordered_json::array();
  for (const TrackerList& row : table.rows) rows.push_back(json_value(row));
  ordered_json object = line(step);
  object[field(name)] = {{"_type", "table"}, {"columns", table.columns}, {"rows", rows}};
  write(object);
  refuse_log_kwargs(kName, step.kwargs);
}

void JsonlTracker::log_histograms(const TrackerDict& tensors, const TrackerStep& step) {
  ordered_json object = line(step);
  for (const auto& [name, value] : tensors) {
    const auto* const tensor = value.get_if<TensorValue>();
    if (tensor == nullptr) {
      throw std::invalid_argument(absl::StrCat("tracker jsonl: log_histograms: `", name,
                                               "` is no tensor but ", shown_value(name, value)));
    }
    const Histogram histogram = make_histogram(tensor->values);
    ordered_json edges = ordered_json::array();
    for (const double edge : histogram.edges) edges.push_back(json_number(edge));
    object[field(name)] = {{"_type", "histogram"},
                           {"edges", edges},
                           {"counts", histogram.counts},
                           {"nan", histogram.nan},
                           {"infinite", histogram.infinite}};
  }
  write(object);
  refuse_log_kwargs(kName, step.kwargs);
}

void JsonlTracker::flush() { lines_.flush(); }

void JsonlTracker::finish() { lines_.finish(); }

ordered_json JsonlTracker::line(const TrackerStep& step) const {
  ordered_json object;
  object["_run"] = run_;
  object["_step"] = step.step ? ordered_json(*step.step) : ordered_json();
  object["_timestamp"] = unix_seconds(step.time);
  return object;
}

void JsonlTracker::write(const ordered_json& line) {
  lines_.append(absl::StrCat(json_text(line), "\n"));
}

}  // namespace accelerate::trackers
