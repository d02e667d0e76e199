/// The TensorBoard tracker: curves, texts, images, histograms and hyperparameters as event files.
///
///   Accelerator accelerator({.log_with = {"tensorboard"}, .project_dir = "out"});
///   accelerator.init_trackers("mnist", TrackerDict{{"lr", 0.1}});
///   accelerator.log({{"loss", 0.5}, {"accuracy", {{"train", 0.9}, {"test", 0.8}}}}, 10);
///
///   $ tensorboard --logdir out
///
/// Files, below LOGGING_DIR/PROJECT:
///
///   events.out.tfevents.*           what is logged
///   CHART_CURVE/events.out...*      one for each curve of a dictionary's chart, a run of its own
///   TIME/events.out.tfevents.*      the hyperparameters, for the HPARAMS page; TIME is when they
///   TIME/hparams.yml                were stored, in seconds since 1970
///
/// What is kept, by `log`: bools, ints, floats and tensors without dimensions as scalars (float32,
/// also those that are not finite); texts; dictionaries of numbers as charts of several curves.
/// Lists, None and other tensors are left out without a word. An event that was logged without a
/// step has step 0. A nested configuration becomes `optimizer/lr`, a list in it a text. Images are
/// PNG, those of one size in one image, eight in a row; a table is a text in Markdown.
///
/// init_kwargs: purge_step, max_queue, flush_secs, filename_suffix, comment and max_file_bytes, as
/// in SummaryWriterOptions. A run that goes on after a checkpoint of step 500 says
/// `{"purge_step", 501}`, so that TensorBoard forgets what came after it. log_kwargs: walltime (of
/// all); new_style and double_precision (of logs that have scalars only).
///
/// Failures: each call ends with all it was told in the operating system's hands, where the end of
/// the process does not hurt it. A full disk leaves files that can be read up to the last whole
/// event, and are continued when there is room again; event_file.h has the limits. Runs that are
/// there are never written to.
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

  /// For what the tracker does not offer.
  SummaryWriter& writer() { return *writer_; }

 private:
  const TrackerServices& services_;
  const std::string log_dir_;
  const TrackerDict init_kwargs_;
  const std::unique_ptr<SummaryWriter> writer_;
};

}  // namespace accelerate::trackers
