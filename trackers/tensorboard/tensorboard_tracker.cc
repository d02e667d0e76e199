#include "trackers/tensorboard/tensorboard_tracker.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <stdexcept>
#include <utility>

#include "absl/base/no_destructor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "accelerate/base/number_text.h"
#include "accelerate/tracking/tracker_queue.h"
#include "trackers/common/file_options.h"
#include "trackers/common/formats.h"
#include "trackers/common/init_kwargs.h"
#include "trackers/common/numbers.h"
#include "trackers/tensorboard/event.pb.h"
#include "trackers/tensorboard/event_file.h"

namespace accelerate::trackers {
namespace {

using tensorboard::Event;
using tensorboard::Summary;

constexpr char kTracker[] = "tensorboard";
constexpr int64_t kImagesInRow = 8;

// The number of runs whose files are kept open. Further runs are written at intervals, each time to
// a new file.
constexpr size_t kMaxOpen = 128;
constexpr absl::Duration kOverflowInterval = absl::Minutes(1);

// The names that TensorBoard's HPARAMS plug-in looks for.
constexpr char kHparamsPlugin[] = "hparams";
constexpr char kExperimentTag[] = "_hparams_/experiment";
constexpr char kSessionStartTag[] = "_hparams_/session_start_info";
constexpr char kSessionEndTag[] = "_hparams_/session_end_info";

// The number of a number or of a tensor with one element.
std::optional<double> number_of(const TrackerValue& value) {
  if (const auto* tensor = value.get_if<TensorValue>()) {
    if (tensor->values.size() == 1) return tensor->values[0];
    return std::nullopt;
  }
  return value.number();
}

// An event with that time and step. The caller reads its own kwargs before.
Event new_event(const TrackerStep& when, InitKwargs& kwargs) {
  const std::optional<double> walltime = kwargs.number("walltime");
  kwargs.finish();
  Event event;
  event.set_wall_time(walltime.value_or(unix_seconds(when.time)));
  event.set_step(when.step.value_or(0));
  return event;
}

Event new_event(const TrackerStep& when) {
  InitKwargs kwargs(kTracker, when.kwargs, "log_kwargs");
  return new_event(when, kwargs);
}

Summary::Value& add_value(Event& event, const std::string& tag) {
  Summary::Value& value = *event.mutable_summary()->add_value();
  // A reader refuses the whole file for one text that is not UTF-8.
  value.set_tag(valid_utf8(tag));
  return value;
}

void set_plugin(Summary::Value& value, const std::string& name, const std::string& content = "") {
  auto& plugin = *value.mutable_metadata()->mutable_plugin_data();
  plugin.set_plugin_name(name);
  plugin.set_content(content);
}

void set_image(Summary::Value& value, const TrackerImage& image) {
  Summary::Image& summary = *value.mutable_image();
  summary.set_encoded_image_string(encode_png(image));
  summary.set_height(static_cast<int32_t>(image.height));
  summary.set_width(static_cast<int32_t>(image.width));
  summary.set_colorspace(static_cast<int32_t>(image.channels));
}

bool are_alike(const TrackerImage& a, const TrackerImage& b) {
  return a.height == b.height && a.width == b.width && a.channels == b.channels &&
         a.pixels.size() == b.pixels.size();
}

// Images of one size in rows; the rest of the last row is black.
TrackerImage grid(const std::vector<TrackerImage>& images) {
  const auto count = static_cast<int64_t>(images.size());
  const TrackerImage& first = images[0];
  const int64_t columns = std::min(count, kImagesInRow);
  const int64_t rows = (count + columns - 1) / columns;
  TrackerImage all{
      .height = rows * first.height, .width = columns * first.width, .channels = first.channels};
  const int64_t row_bytes = first.width * first.channels;
  all.pixels.resize(static_cast<size_t>(all.height * columns * row_bytes));
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t y = 0; y < first.height; ++y) {
      const int64_t row = i / columns * first.height + y;
      std::copy_n(images[i].pixels.begin() + y * row_bytes, row_bytes,
                  all.pixels.begin() + (row * columns + i % columns) * row_bytes);
    }
  }
  return all;
}

// The ends of buckets in order: they grow by a tenth from 1e-12 to 1e20, and likewise below zero.
const std::vector<double>& bucket_limits() {
  static const absl::NoDestructor<std::vector<double>> limits([] {
    std::vector<double> upper;
    for (double limit = 1e-12; limit < 1e20; limit *= 1.1) upper.push_back(limit);
    upper.push_back(std::numeric_limits<double>::max());
    std::vector<double> all;
    for (auto limit = upper.rbegin(); limit != upper.rend(); ++limit) all.push_back(-*limit);
    all.push_back(0);
    all.insert(all.end(), upper.begin(), upper.end());
    return all;
  }());
  return *limits;
}

// Skips values that are not finite. Errors: std::invalid_argument if no value is finite.
tensorboard::HistogramProto exponential_histogram(const std::vector<double>& values) {
  const std::vector<double>& limits = bucket_limits();
  std::vector<int64_t> counts(limits.size());  // of values below limits[i]
  tensorboard::HistogramProto histogram;
  int64_t num = 0;
  double sum = 0;
  double sum_squares = 0;
  double min = std::numeric_limits<double>::infinity();
  double max = -min;
  for (const double value : values) {
    if (!std::isfinite(value)) continue;
    const auto bucket = std::upper_bound(limits.begin(), limits.end() - 1, value);
    ++counts[bucket - limits.begin()];
    ++num;
    sum += value;
    sum_squares += value * value;
    min = std::min(min, value);
    max = std::max(max, value);
  }
  if (num == 0) throw std::invalid_argument("a histogram needs a value that is finite");
  histogram.set_min(min);
  histogram.set_max(max);
  histogram.set_num(static_cast<double>(num));
  histogram.set_sum(sum);
  histogram.set_sum_squares(sum_squares);
  // Begins with the empty bucket before the first full one, whose end is where that one begins.
  const auto has_any = [](int64_t count) { return count > 0; };
  const auto first = std::find_if(counts.begin(), counts.end(), has_any) - counts.begin();
  const auto last = counts.rend() - std::find_if(counts.rbegin(), counts.rend(), has_any) - 1;
  for (auto i = std::max<int64_t>(first - 1, 0); i <= last; ++i) {
    histogram.add_bucket_limit(limits[i]);
    histogram.add_bucket(static_cast<double>(counts[i]));
  }
  return histogram;
}

// ---- hyperparameters

using HParams = std::vector<std::pair<std::string, tensorboard::HParamValue>>;

void flatten(const TrackerDict& dict, const std::string& prefix, HParams& out) {
  for (const auto& entry : dict) {
    const auto& [name, value] = entry;
    if (find(dict, name) != &value) continue;  // it comes again
    const std::string path = prefix + name;
    tensorboard::HParamValue hparam;
    if (value.is_none()) continue;
    if (const auto* nested = value.get_if<TrackerDict>()) {
      flatten(*nested, path + "/", out);
      continue;
    }
    if (const auto* truth = value.get_if<bool>()) {
      hparam.set_bool_value(*truth);
    } else if (const auto number = number_of(value); number && std::isfinite(*number)) {
      hparam.set_number_value(*number);
    } else {
      hparam.set_string_value(valid_utf8(value_text(value)));
    }
    out.emplace_back(valid_utf8(path), std::move(hparam));
  }
}

tensorboard::HParamType type_of(const tensorboard::HParamValue& value) {
  switch (value.kind_case()) {
    case tensorboard::HParamValue::kBoolValue: return tensorboard::DATA_TYPE_BOOL;
    case tensorboard::HParamValue::kNumberValue: return tensorboard::DATA_TYPE_FLOAT64;
    default: return tensorboard::DATA_TYPE_STRING;
  }
}

Event session_event(absl::Time now, const char* tag, const tensorboard::HParamsPluginData& data) {
  Event event;
  event.set_wall_time(unix_seconds(now));
  set_plugin(add_value(event, tag), kHparamsPlugin, data.SerializeAsString());
  return event;
}

std::string file_owner(const TrackerServices& services) {
  if (!services.is_real) return absl::StrCat("rank", services.rank, ".", services.rank);
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0 || host[0] == 0) host = {"localhost"};
  return absl::StrCat(host.data(), ".", ::getpid());
}

// The options that the kwargs have. Errors: std::invalid_argument naming the kwarg.
EventFileOptions event_file_options(const TrackerDict& kwargs) {
  constexpr double kYear = 365 * 24 * 3600;
  EventFileOptions options;
  InitKwargs init(kTracker, kwargs);
  init.text("comment");
  options.purge_step = init.integer("purge_step");
  options.max_queue = init.integer("max_queue").value_or(options.max_queue);
  const double flush_secs = init.number("flush_secs").value_or(120);
  options.filename_suffix = init.text("filename_suffix").value_or("");
  options.max_file_bytes = init.integer("max_file_bytes");
  if (options.max_queue < 0) init.refuse("max_queue", "at least 0");
  if (!(flush_secs >= 0 && flush_secs < kYear)) init.refuse("flush_secs", "seconds, 0 or more");
  if (options.filename_suffix.find('/') != std::string::npos) {
    init.refuse("filename_suffix", "the end of a name, without a slash");
  }
  if (options.max_file_bytes && *options.max_file_bytes <= 0) {
    init.refuse("max_file_bytes", "more than 0");
  }
  init.finish();
  options.sync_interval = absl::Seconds(flush_secs);
  return options;
}

// Writes TensorBoard's event files: one run in the folder it is opened for, and runs below it for
// charts of several curves and for hyperparameters. File names hold the host and the process; in a
// simulation, the rank. See event_file.h for how files are written.
// The files of 128 runs are kept open. The events of further runs are written once a minute, by
// `flush_all` and at the end, each time to a new file.
// Mirrors: tensorboard EventFileWriter.
class EventFileWriter final : public SummaryWriter {
 public:
  explicit EventFileWriter(const TrackerServices& services) : services_(services) {}

  void open(const std::string& log_dir, const TrackerDict& kwargs) override {
    log_dir_ = log_dir;
    options_ = event_file_options(kwargs);
    run("").flush();
  }

  void add_scalar(const std::string& tag, const TrackerValue& scalar_value,
                  const TrackerStep& when) override {
    InitKwargs kwargs(kTracker, when.kwargs, "log_kwargs");
    const bool new_style = kwargs.boolean("new_style").value_or(false);
    const bool double_precision = kwargs.boolean("double_precision").value_or(false);
    Event event = new_event(when, kwargs);
    const std::optional<double> number = number_of(scalar_value);
    if (!number) throw std::invalid_argument(absl::StrCat("`", tag, "` is not a number"));
    Summary::Value& value = add_value(event, tag);
    if (!new_style) {
      value.set_simple_value(static_cast<float>(*number));
    } else {
      set_plugin(value, "scalars");
      tensorboard::TensorProto& tensor = *value.mutable_tensor();
      tensor.mutable_tensor_shape();
      tensor.set_dtype(double_precision ? tensorboard::DT_DOUBLE : tensorboard::DT_FLOAT);
      if (double_precision) {
        tensor.add_double_val(*number);
      } else {
        tensor.add_float_val(static_cast<float>(*number));
      }
    }
    add(event, "");
  }

  void add_scalars(const std::string& main_tag, const TrackerDict& tag_scalar_dict,
                   const TrackerStep& when) override {
    std::vector<std::string> refused;
    for (const auto& [tag, scalar] : tag_scalar_dict) {
      if (find(tag_scalar_dict, tag) != &scalar) continue;  // it comes again
      const std::optional<double> number = number_of(scalar);
      if (!number) {
        refused.push_back(tag);
        continue;
      }
      Event event = new_event(when);
      add_value(event, main_tag).set_simple_value(static_cast<float>(*number));
      add(event, absl::StrCat(absl::StrReplaceAll(main_tag, {{"/", "_"}}), "_", tag));
    }
    if (!refused.empty()) {
      throw std::invalid_argument(
          absl::StrCat("`", refused[0], "` of `", main_tag, "` is not a number"));
    }
  }

  void add_text(const std::string& tag, const std::string& text_string,
                const TrackerStep& when) override {
    Event event = new_event(when);
    Summary::Value& value = add_value(event, tag + "/text_summary");
    set_plugin(value, "text");
    tensorboard::TensorProto& tensor = *value.mutable_tensor();
    tensor.set_dtype(tensorboard::DT_STRING);
    tensor.mutable_tensor_shape()->add_dim()->set_size(1);
    tensor.add_string_val(valid_utf8(text_string));
    add(event, "");
  }

  void add_images(const std::string& tag, const std::vector<TrackerImage>& images,
                  const TrackerStep& when) override {
    InitKwargs kwargs(kTracker, when.kwargs, "log_kwargs");
    kwargs.text("dataformats");
    Event event = new_event(when, kwargs);
    if (images.empty()) throw std::invalid_argument(absl::StrCat("`", tag, "` has no images"));
    const bool alike = std::all_of(images.begin(), images.end(), [&](const TrackerImage& image) {
      return are_alike(image, images[0]);
    });
    if (images.size() == 1) {
      set_image(add_value(event, tag), images[0]);
    } else if (alike) {
      encode_png(images[0]);  // throws if the images are invalid
      set_image(add_value(event, tag), grid(images));
    } else {
      for (size_t i = 0; i < images.size(); ++i) {
        set_image(add_value(event, absl::StrCat(tag, "/", i)), images[i]);
      }
    }
    add(event, "");
  }

  void add_histogram(const std::string& tag, const std::vector<double>& values,
                     const TrackerStep& when) override {
    Event event = new_event(when);
    try {
      *add_value(event, tag).mutable_histo() = exponential_histogram(values);
    } catch (const std::invalid_argument& error) {
      throw std::invalid_argument(absl::StrCat("`", tag, "`: ", error.what()));
    }
    add(event, "");
  }

  void add_hparams(const TrackerDict& hparam_dict, const TrackerDict& metric_dict,
                   const std::string& run_name) override {
    const absl::Time now = services_.now();
    HParams hparams;
    flatten(hparam_dict, "", hparams);

    tensorboard::HParamsPluginData experiment;
    tensorboard::HParamsPluginData start;
    experiment.mutable_experiment()->set_time_created_secs(unix_seconds(now));
    start.mutable_session_start_info()->set_start_time_secs(unix_seconds(now));
    for (const auto& [name, value] : hparams) {
      tensorboard::HParamInfo& info = *experiment.mutable_experiment()->add_hparam_infos();
      info.set_name(name);
      info.set_type(type_of(value));
      auto& hparam = *start.mutable_session_start_info()->add_hparams();
      hparam.set_key(name);
      *hparam.mutable_value() = value;
    }
    for (const auto& [name, value] : metric_dict) {
      experiment.mutable_experiment()->add_metric_infos()->mutable_name()->set_tag(
          valid_utf8(name));
    }
    add(session_event(now, kExperimentTag, experiment), run_name);
    add(session_event(now, kSessionStartTag, start), run_name);
    sessions_.push_back(run_name);
    for (const auto& [name, value] : metric_dict) {
      const std::optional<double> number = number_of(value);
      if (!number) throw std::invalid_argument(absl::StrCat("`", name, "` is not a number"));
      Event event = new_event({.time = now});
      add_value(event, name).set_simple_value(static_cast<float>(*number));
      add(event, run_name);
    }
  }

  void flush() override {
    const bool overflow_is_due = services_.now() >= next_overflow_;
    if (overflow_is_due) next_overflow_ = services_.now() + kOverflowInterval;
    for_each_run([&](const Run& run) {
      if (run.stays_open) {
        run.file->flush();
      } else if (overflow_is_due) {
        run.file->release();
      }
    });
  }

  void flush_all() override {
    next_overflow_ = absl::InfinitePast();
    flush();
  }

  void close() override {
    const absl::Time now = services_.now();
    tensorboard::HParamsPluginData end;
    end.mutable_session_end_info()->set_status(tensorboard::STATUS_SUCCESS);
    end.mutable_session_end_info()->set_end_time_secs(unix_seconds(now));
    const std::string event = session_event(now, kSessionEndTag, end).SerializeAsString();
    FirstFailure failure;
    for (const std::string& session : std::exchange(sessions_, {})) {
      failure.attempt([&] { run(session).add(event); });
    }
    for_each_run([](const Run& run) { run.file->close(); });
    failure.rethrow();
  }

 private:
  struct Run {
    std::unique_ptr<EventFile> file;
    bool stays_open = true;
  };

  // The run in the folder `name` below log_dir; "" is the run in log_dir itself.
  EventFile& run(const std::string& name) {
    const std::string folder = name.empty() ? log_dir_ : join_path(log_dir_, safe_path(name));
    const auto known = runs_.find(folder);
    if (known != runs_.end()) return *known->second.file;
    Run& run = runs_[folder];
    run.stays_open = runs_.size() <= kMaxOpen;
    EventFileOptions options = options_;
    options.folder = folder;
    options.owner = file_owner(services_);
    options.now = services_.now;
    options.warn = services_.warn;
    if (!run.stays_open) options.max_queue = 0;
    run.file = std::make_unique<EventFile>(services_.files, std::move(options));
    return *run.file;
  }

  void add(const Event& event, const std::string& run_name) {
    std::string bytes;
    if (!event.SerializeToString(&bytes)) throw std::runtime_error("an event is larger than 2 GiB");
    run(run_name).add(bytes);
  }

  // Calls it for all runs, then throws the first failure.
  void for_each_run(const std::function<void(const Run&)>& call) {
    FirstFailure failure;
    for (const auto& [folder, run] : runs_) failure.attempt([&] { call(run); });
    failure.rethrow();
  }

  const TrackerServices& services_;
  std::string log_dir_;
  EventFileOptions options_;         // of all runs, but for their folders
  std::map<std::string, Run> runs_;  // by folder
  absl::Time next_overflow_ = absl::InfinitePast();
  std::vector<std::string> sessions_;  // runs that have hyperparameters
};

// ---- The tracker.

const TrackerRegistration kRegistration({.name = "tensorboard",
                                         .requires_logging_directory = true,
                                         .tracker = make_tracker<TensorBoardTracker>});

std::string cell(const std::string& text) {
  return absl::StrReplaceAll(text,
                             {{"|", "\\|"}, {"\r\n", "<br>"}, {"\n", "<br>"}, {"\r", "<br>"}});
}

std::string markdown(const TrackerTable& table) {
  if (table.columns.empty()) throw std::invalid_argument("a table needs a column");
  std::string text = "|";
  for (const std::string& column : table.columns) absl::StrAppend(&text, " ", cell(column), " |");
  text += "\n|";
  for (size_t i = 0; i < table.columns.size(); ++i) text += " --- |";
  for (const TrackerList& row : table.rows) {
    text += "\n|";
    for (const TrackerValue& value : row)
      absl::StrAppend(&text, " ", cell(value_text(value)), " |");
  }
  return text + "\n";
}

}  // namespace

TensorBoardTracker::TensorBoardTracker(const TrackerSetup& setup,
                                       std::unique_ptr<SummaryWriter> writer)
    : services_(setup.services),
      log_dir_(setup.project_name.empty()
                   ? setup.logging_dir
                   : join_path(setup.logging_dir, safe_path(setup.project_name))),
      init_kwargs_(setup.init_kwargs),
      writer_(writer != nullptr ? std::move(writer)
                                : std::make_unique<EventFileWriter>(setup.services)) {
  event_file_options(init_kwargs_);
}

void TensorBoardTracker::store_init_configuration(const TrackerDict& values) {
  // The folder must be new, even if another was made in the same microsecond.
  absl::Time now = services_.now();
  std::string run;
  std::string folder;
  do {
    run = float_text(unix_seconds(now));
    folder = join_path(log_dir_, run);
    now += absl::Microseconds(1);
  } while (exists(services_.files, folder).value_or(false));
  FirstFailure failure;
  failure.attempt([&] {
    writer_->add_hparams(values, {}, run);
    writer_->flush();
  });
  failure.attempt([&] {
    throw_if_error(
        write_file(services_.files, join_path(folder, "hparams.yml"), yaml_text(values)));
  });
  failure.rethrow();
}

void TensorBoardTracker::log(const TrackerDict& values, const TrackerStep& step) {
  FirstFailure failure;
  for (const auto& [name, given] : values) {
    if (find(values, name) != &given) continue;  // a later value has the same name
    failure.attempt([&, &name = name, &given = given] {
      const TrackerValue value = listify(given);
      if (value.number()) {
        writer_->add_scalar(name, value, step);
      } else if (const auto* text = value.get_if<std::string>()) {
        writer_->add_text(name, *text, step);
      } else if (const auto* dict = value.get_if<TrackerDict>()) {
        writer_->add_scalars(name, *dict, step);
      }
    });
  }
  writer_->flush();
  failure.rethrow();
}

void TensorBoardTracker::log_images(const TrackerImages& images, const TrackerStep& step) {
  FirstFailure failure;
  for (const auto& [name, several] : images) {
    failure.attempt(
        [&, &name = name, &several = several] { writer_->add_images(name, several, step); });
  }
  failure.rethrow();
}

void TensorBoardTracker::log_table(const std::string& name, const TrackerTable& table,
                                   const TrackerStep& step) {
  writer_->add_text(name, markdown(table), step);
}

void TensorBoardTracker::log_histograms(const TrackerDict& tensors, const TrackerStep& step) {
  FirstFailure failure;
  for (const auto& [name, value] : tensors) {
    failure.attempt([&, &name = name, &value = value] {
      if (const auto* tensor = value.get_if<TensorValue>()) {
        writer_->add_histogram(name, tensor->values, step);
      } else if (value.number()) {
        writer_->add_histogram(name, {*value.number()}, step);
      } else {
        throw std::invalid_argument(absl::StrCat("`", name, "` is not a tensor"));
      }
    });
  }
  failure.rethrow();
}

void TensorBoardTracker::flush() { process_is_ending() ? writer_->flush_all() : writer_->flush(); }

}  // namespace accelerate::trackers
