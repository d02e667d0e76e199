/// Writes curves, texts, images, histograms and hyperparameters to TensorBoard's event files.
///
///   Accelerator accelerator({.log_with = {"tensorboard"}, .project_dir = "out"});
///   accelerator.init_trackers("mnist", TrackerDict{{"lr", 0.1}});
///   accelerator.log({{"loss", 0.5}, {"accuracy", {{"train", 0.9}, {"test", 0.8}}}}, 10);
///
///   $ tensorboard --logdir out
///
/// Files, below LOGGING_DIR/PROJECT:
///
///   events.out.tfevents.*           logged values
///   CHART_CURVE/events.out...*      each curve of a dictionary's chart, as a run of its own
///   TIME/events.out.tfevents.*      the hyperparameters, for the HPARAMS page; TIME is when they
///   TIME/hparams.yml                were stored, in seconds since 1970
///
/// `log` keeps bools, ints, floats and tensors without dimensions as scalars (float32, also if they
/// are not finite), texts, and dictionaries of numbers as charts of several curves. Lists, None and
/// other tensors are left out without a warning. Events without a step have step 0. Nested
/// configurations become `optimizer/lr`; lists in them become texts. Images are PNG; images of one
/// size become one image, eight in a row. Tables are texts in Markdown.
///
/// init_kwargs: purge_step, max_queue, flush_secs, filename_suffix, comment and max_file_bytes, as
/// in SummaryWriterOptions. A run that continues from a checkpoint of step 500 sets
/// `{"purge_step", 501}`, so that TensorBoard hides later events. log_kwargs: walltime;
/// new_style and double_precision (only for logs of scalars).
///
/// Failures: when a call returns, its values have been written and survive the end of the process.
/// On a full disk, files can be read up to the last whole event, and are continued when there is
/// room; event_file.h has the limits. Files of earlier runs are never changed.
/// Errors:  std::invalid_argument for init_kwargs that it does not know.
/// Threads: see GeneralTracker.
/// Mirrors: accelerate tracking.py, TensorBoardTracker.
#pragma once

#include <memory>
#include <string>

#include "accelerate/tracking/tracker.h"
#include "trackers/tensorboard/summary_writer.h"

namespace accelerate::trackers {

class TensorBoardTracker final : public GeneralTracker {
 public:
  explicit TensorBoardTracker(const TrackerSetup& setup);
  TensorBoardTracker(const TrackerSetup& setup, std::unique_ptr<SummaryWriter> writer);

  void start() override;
  void store_init_configuration(const TrackerDict& values) override;
  void log(const TrackerDict& values, const TrackerStep& step) override;
  void log_images(const TrackerImages& images, const TrackerStep& step) override;
  void log_table(const std::string& name, const TrackerTable& table,
                 const TrackerStep& step) override;
  void log_histograms(const TrackerDict& tensors, const TrackerStep& step) override;
  void flush() override;
  void finish() override;
  void abandon() override;

  /// For functions that the tracker does not offer.
  SummaryWriter& writer() { return *writer_; }

 private:
  const TrackerServices& services_;
  const std::string log_dir_;
  const TrackerDict init_kwargs_;
  const std::unique_ptr<SummaryWriter> writer_;
};

}  // namespace accelerate::trackers
