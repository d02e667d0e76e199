/// What the TensorBoard tracker asks for, in the words of PyTorch's SummaryWriter; who implements
/// it writes the event files.
///
/// `when` has the step of an event (0 where there is none), its time unless the kwarg `walltime`
/// (seconds since 1970) says otherwise, and further kwargs of the function.
/// Errors:  std::invalid_argument for kwargs that a function does not know and values that it
/// cannot
///          keep; std::runtime_error naming the file where something could not be written: nothing
///          is lost by it, and the next call tries again.
/// Threads: one.
/// Mirrors: torch.utils.tensorboard.SummaryWriter.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "accelerate/tracking/tracker.h"
#include "accelerate/tracking/value.h"

namespace accelerate::trackers {

struct SummaryWriterOptions {
  /// Kept for those who pass it: it is part of the name of a folder that nobody named.
  std::string comment = "";
  /// Events of this step and later ones that earlier runs left in the folder are hidden.
  std::optional<int64_t> purge_step = std::nullopt;
  /// Events that wait before they are written without a flush; 0: any number.
  int64_t max_queue = 10;
  /// How often what was flushed is made safe from a loss of power, too.
  absl::Duration flush_secs = absl::Seconds(120);
  /// Ends the name of each file.
  std::string filename_suffix = "";
  /// A file that would grow beyond this is followed by the next one.
  std::optional<int64_t> max_file_bytes = std::nullopt;
};

/// Errors: std::invalid_argument naming the kwarg.
SummaryWriterOptions summary_writer_options(const TrackerDict& kwargs);

class SummaryWriter {
 public:
  virtual ~SummaryWriter() = default;

  /// First, once, also where it fails. `kwargs`: of summary_writer_options.
  virtual void open(const std::string& log_dir, const TrackerDict& kwargs) = 0;

  /// A bool, an int or a float. Kwargs: `new_style`, `double_precision`.
  virtual void add_scalar(const std::string& tag, const TrackerValue& scalar_value,
                          const TrackerStep& when) = 0;
  /// Each in a run of its own, so that they share a chart.
  virtual void add_scalars(const std::string& main_tag, const TrackerDict& tag_scalar_dict,
                           const TrackerStep& when) = 0;
  /// Markdown.
  virtual void add_text(const std::string& tag, const std::string& text_string,
                        const TrackerStep& when) = 0;
  /// Images of one size are shown as one, eight in a row. Kwargs: `dataformats`, which says how
  /// tensors were laid out and means nothing any more.
  virtual void add_images(const std::string& tag, const std::vector<TrackerImage>& images,
                          const TrackerStep& when) = 0;
  /// How the values are distributed; those that are not finite are left out.
  virtual void add_histogram(const std::string& tag, const std::vector<double>& values,
                             const TrackerStep& when) = 0;
  /// As a session of that name. Dictionaries become `a/b`, lists and tensors texts, None nothing.
  virtual void add_hparams(const TrackerDict& hparam_dict, const TrackerDict& metric_dict,
                           const std::string& run_name) = 0;
  virtual void flush() = 0;
  /// The same, of all that is held back: there may be no other call.
  virtual void flush_all() { flush(); }
  /// Last, once.
  virtual void close() = 0;
};

/// Writes TensorBoard's event files: one run in the folder it is opened for, and runs below it for
/// charts of several curves and for hyperparameters. File names hold the host and the process; in a
/// simulation, the rank. See event_file.h for how files are written.
/// The files of 128 runs are kept open. The events of further runs are written once a minute, by
/// `flush_all` and at the end, each time to a new file.
/// `services` outlive the writer. Mirrors: tensorboard EventFileWriter.
std::unique_ptr<SummaryWriter> make_event_file_writer(const TrackerServices& services);

}  // namespace accelerate::trackers
