#include "trackers/jsonl/jsonl_tracker.h"

#include <cstdint>
#include <stdexcept>
#include <string>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "accelerate/base/json_text.h"
#include "trackers/common/append_file.h"
#include "trackers/common/file_options.h"
#include "trackers/common/formats.h"
#include "trackers/common/init_kwargs.h"
#include "trackers/common/numbers.h"
#include "trackers/common/secrets.h"

namespace accelerate::trackers {
namespace {

using nlohmann::ordered_json;

constexpr char kName[] = "jsonl";

// A line without values, or empty lines if its braces do not fit.
std::string filler(size_t size) {
  if (size < 3) return std::string(size, '\n');
  return absl::StrCat("{}", std::string(size - 3, ' '), "\n");
}

std::string field(const std::string& name) {
  const bool taken = name == "_run" || name == "_step" || name == "_timestamp";
  return taken ? absl::StrCat("_", name) : name;
}

class JsonlTracker final : public GeneralTracker {
 public:
  explicit JsonlTracker(const TrackerSetup& setup)
      : files_(setup.services.files),
        out_(file_options(kName, setup)),
        lines_(files_, join_path(out_.folder, "metrics.jsonl"), {.filler = filler}) {}

  void start() override { lines_.open(); }
  void store_init_configuration(const TrackerDict& values) override {
    const std::string text = json_text(json_value(values), 2);
    throw_if_error(
        write_file(files_, join_path(out_.folder, "config.json"), absl::StrCat(text, "\n")));
  }

  void log(const TrackerDict& values, const TrackerStep& step) override {
    ordered_json object = line(step);
    for (const auto& [name, value] : values) object[field(name)] = json_value(value);
    write(object, step);
  }

  void log_images(const TrackerImages& images, const TrackerStep& step) override {
    ordered_json object = line(step);
    const std::string when = step.step ? absl::StrCat(*step.step, "-") : "";
    for (const auto& [name, several] : images) {
      ordered_json paths = ordered_json::array();
      for (const TrackerImage& image : several) {
        const std::string path = absl::StrCat("media/", safe_path(out_.run), "/", safe_path(name),
                                              "/", when, images_++, ".png");
        throw_if_error(write_file(files_, join_path(out_.folder, path), encode_png(image)));
        paths.push_back(path);
      }
      object[field(name)] = {{"_type", "images"}, {"paths", paths}};
    }
    write(object, step);
  }

  void log_table(const std::string& name, const TrackerTable& table,
                 const TrackerStep& step) override {
    ordered_json rows = ordered_json::array();
    for (const TrackerList& row : table.rows) rows.push_back(json_value(row));
    ordered_json object = line(step);
    object[field(name)] = {{"_type", "table"}, {"columns", table.columns}, {"rows", rows}};
    write(object, step);
  }

  void log_histograms(const TrackerDict& tensors, const TrackerStep& step) override {
    ordered_json object = line(step);
    for (const auto& [name, value] : tensors) {
      const auto* const tensor = value.get_if<TensorValue>();
      if (tensor == nullptr) {
        throw std::invalid_argument(absl::StrCat("tracker jsonl: log_histograms: `", name,
                                                 "` is not a tensor but ",
                                                 shown_value(name, value)));
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
    write(object, step);
  }

  void flush() override { lines_.flush(); }
  void finish() override { lines_.finish(); }

 private:
  nlohmann::ordered_json line(const TrackerStep& step) const {
    ordered_json object;
    object["_run"] = out_.run;
    object["_step"] = step.step ? ordered_json(*step.step) : ordered_json();
    object["_timestamp"] = unix_seconds(step.time);
    return object;
  }

  void write(const nlohmann::ordered_json& line, const TrackerStep& step) {
    lines_.append(absl::StrCat(json_text(line), "\n"));
    refuse_log_kwargs(kName, step.kwargs);
  }

  FileSystem& files_;
  const FileOptions out_;
  int64_t images_ = 0;  // the number of images so far
  AppendFile lines_;
};

const TrackerRegistration kRegistration({.name = kName,
                                         .requires_logging_directory = true,
                                         .tracker = make_jsonl_tracker});

}  // namespace

std::unique_ptr<GeneralTracker> make_jsonl_tracker(const TrackerSetup& setup) {
  return std::make_unique<JsonlTracker>(setup);
}

}  // namespace accelerate::trackers
