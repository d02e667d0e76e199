/// Writes TensorBoard's event files: one run in the folder it is opened for, and further ones below
/// it for charts of several curves and for hyperparameters.
///
/// Files are made as TensorBoard names them, of this machine and process; in a simulation, where
/// there are neither, of the rank. See event_file.h for how they are written.
/// The files of 128 runs are kept open. What further ones have is written once a minute, by
/// `flush_all` and at the end, each time to a new file.
/// Errors:  std::invalid_argument for arguments and kwargs that are not known or do not fit;
///          std::runtime_error naming the file, which is tried again, see event_file.h.
/// Threads: one.
/// Mirrors: torch.utils.tensorboard.SummaryWriter; tensorboard EventFileWriter.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "trackers/tensorboard/event_file.h"
#include "trackers/tensorboard/summary_writer.h"

namespace accelerate::trackers {

namespace tensorboard {
class Event;
}

class EventFileWriter final : public SummaryWriter {
 public:
  /// `services` outlive this.
  explicit EventFileWriter(const TrackerServices& services);

  void open(const std::string& log_dir, const TrackerDict& kwargs) override;
  void add_scalar(const std::string& tag, const TrackerValue& scalar_value,
                  const TrackerStep& when) override;
  void add_scalars(const std::string& main_tag, const TrackerDict& tag_scalar_dict,
                   const TrackerStep& when) override;
  void add_text(const std::string& tag, const std::string& text_string,
                const TrackerStep& when) override;
  void add_images(const std::string& tag, const std::vector<TrackerImage>& images,
                  const TrackerStep& when) override;
  void add_histogram(const std::string& tag, const std::vector<double>& values,
                     const TrackerStep& when) override;
  void add_hparams(const TrackerDict& hparam_dict, const TrackerDict& metric_dict,
                   const std::string& run_name) override;
  void flush() override;
  void flush_all() override;
  void close() override;

 private:
  struct Run {
    std::unique_ptr<EventFile> file;
    bool stays_open = true;
  };

  // The run in a folder below log_dir, "" for that itself.
  EventFile& run(const std::string& name);
  void add(const tensorboard::Event& event, const std::string& run_name);
  // Does it for all runs, then throws what the first of them threw.
  void for_each_run(const std::function<void(const Run&)>& call);

  const TrackerServices& services_;
  std::string log_dir_;
  SummaryWriterOptions options_;
  std::map<std::string, Run> runs_;  // by folder
  absl::Time next_overflow_ = absl::InfinitePast();
  std::vector<std::string> sessions_;  // runs that have hyperparameters
};

}  // namespace accelerate::trackers
