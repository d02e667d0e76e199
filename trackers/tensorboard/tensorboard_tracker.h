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
/// init_kwargs: `purge_step` (earlier runs' events of this step and later ones in the folder are
///          hidden: a run that continues from a checkpoint of step 500 sets 501); `max_queue` (10:
///          the number of events that wait before they are written without a flush; 0: any
///          number); `flush_secs` (120: how often flushed events are synced to the disk, for a loss
///          of power); `filename_suffix` (the end of each file's name); `max_file_bytes` (a new
///          file begins before a file would exceed this size); `comment` (has no effect: in
///          PyTorch it is part of a default folder's name).
/// log_kwargs: walltime; new_style and double_precision (only for logs of scalars).
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
#include <vector>

#include "accelerate/tracking/tracker.h"

namespace accelerate::trackers {

/// The interface of PyTorch's SummaryWriter, as far as the TensorBoard tracker needs it.
///
/// `when` has the step of an event (0 if none), its time and the function's kwargs. The kwarg
/// `walltime` (seconds since 1970) overrides the time.
/// Errors:  std::invalid_argument for unknown kwargs and for values that cannot be kept;
///          std::runtime_error naming a file that cannot be written: the event is kept, and the
///          next call tries again.
/// Threads: one.
/// Mirrors: torch.utils.tensorboard.SummaryWriter.
class SummaryWriter {
 public:
  virtual ~SummaryWriter() = default;

  /// The first call, made once even if it fails. `kwargs`: the init_kwargs.
  virtual void open(const std::string& log_dir, const TrackerDict& kwargs) = 0;

  /// A bool, an int or a float. Kwargs: `new_style`, `double_precision`.
  virtual void add_scalar(const std::string& tag, const TrackerValue& scalar_value,
                          const TrackerStep& when) = 0;
  /// Writes each scalar to a run of its own, so that they share a chart.
  virtual void add_scalars(const std::string& main_tag, const TrackerDict& tag_scalar_dict,
                           const TrackerStep& when) = 0;
  /// Markdown.
  virtual void add_text(const std::string& tag, const std::string& text_string,
                        const TrackerStep& when) = 0;
  /// Images of one size are shown as one, eight in a row. Kwargs: `dataformats`, which
  /// has no effect on images.
  virtual void add_images(const std::string& tag, const std::vector<TrackerImage>& images,
                          const TrackerStep& when) = 0;
  /// The distribution of the finite values.
  virtual void add_histogram(const std::string& tag, const std::vector<double>& values,
                             const TrackerStep& when) = 0;
  /// Adds a session with that name. Entries of dictionaries become `a/b`, lists and tensors become
  /// texts, None is left out.
  virtual void add_hparams(const TrackerDict& hparam_dict, const TrackerDict& metric_dict,
                           const std::string& run_name) = 0;
  virtual void flush() = 0;
  /// The same for all buffered events: there may be no other call.
  virtual void flush_all() { flush(); }
  /// The last call, made once.
  virtual void close() = 0;
};

class TensorBoardTracker final : public GeneralTracker {
 public:
  /// `writer`: null for event files.
  explicit TensorBoardTracker(const TrackerSetup& setup,
                              std::unique_ptr<SummaryWriter> writer = nullptr);

  void start() override { writer_->open(log_dir_, init_kwargs_); }
  void store_init_configuration(const TrackerDict& values) override;
  void log(const TrackerDict& values, const TrackerStep& step) override;
  void log_images(const TrackerImages& images, const TrackerStep& step) override;
  void log_table(const std::string& name, const TrackerTable& table,
                 const TrackerStep& step) override;
  void log_histograms(const TrackerDict& tensors, const TrackerStep& step) override;
  void flush() override;
  void finish() override { writer_->close(); }
  void abandon() override { writer_->flush_all(); }

  /// For functions that the tracker does not offer.
  SummaryWriter& writer() { return *writer_; }

 private:
  const TrackerServices& services_;
  const std::string log_dir_;
  const TrackerDict init_kwargs_;
  const std::unique_ptr<SummaryWriter> writer_;
};

}  // namespace accelerate::trackers
