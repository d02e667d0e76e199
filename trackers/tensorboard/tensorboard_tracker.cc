#include "trackers/tensorboard/tensorboard_tracker.h"

#include <stdexcept>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "accelerate/base/number_text.h"
#include "accelerate/tracking/tracker_queue.h"
#include "trackers/common/file_options.h"
#include "trackers/common/first_failure.h"
#include "trackers/common/json_value.h"
#include "trackers/common/numbers.h"

namespace accelerate::trackers {
namespace {

const TrackerRegistration kRegistration({.name = "tensorboard",
                                         .requires_logging_directory = true,
                                         .main_process_only = true,
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

TensorBoardTracker::TensorBoardTracker(const TrackerSetup& setup)
    : TensorBoardTracker(setup, make_event_file_writer(setup.services)) {}

TensorBoardTracker::TensorBoardTracker(const TrackerSetup& setup,
                                       std::unique_ptr<SummaryWriter> writer)
    : services_(setup.services),
      log_dir_(setup.project_name.empty()
                   ? setup.logging_dir
                   : join_path(setup.logging_dir, safe_path(setup.project_name))),
      init_kwargs_(setup.init_kwargs),
      writer_(std::move(writer)) {
  summary_writer_options(init_kwargs_);
}

void TensorBoardTracker::start() { writer_->open(log_dir_, init_kwargs_); }

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

void TensorBoardTracker::abandon() { writer_->flush_all(); }

void TensorBoardTracker::finish() { writer_->close(); }

}  // namespace accelerate::trackers
