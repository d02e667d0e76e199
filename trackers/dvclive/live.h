/// What the DVCLive tracker asks of DVCLive, in the words of its Python package.
/// Errors:  std::runtime_error naming the file.
/// Threads: one.
/// Mirrors: dvclive.Live.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "accelerate/tracking/tracker.h"

namespace accelerate::trackers {

class Live {
 public:
  virtual ~Live() = default;

  /// Begins. Once, before all else; the peer's constructor.
  virtual void open() = 0;
  virtual void log_params(const TrackerDict& params) = 0;
  virtual void set_step(int64_t step) = 0;
  virtual int64_t step() const = 0;
  /// `value`: a bool, an int or a float. `kwargs`: `timestamp`, `plot`.
  virtual void log_metric(const std::string& name, const TrackerValue& value,
                          const TrackerDict& kwargs) = 0;
  /// `name`: of a file, with its suffix.
  virtual void log_image(const std::string& name, const TrackerImage& image) = 0;
  virtual void next_step() = 0;
  /// Brings the files up to date.
  virtual void flush() = 0;
  /// The same, with all that is held back: there may be no other call.
  virtual void flush_all() { flush(); }
  virtual void end() = 0;
};

/// DVCLive's files, see dvclive_tracker.h. Errors: std::invalid_argument for init_kwargs that Live
/// does not have.
std::unique_ptr<Live> make_live_files(const TrackerSetup& setup);

}  // namespace accelerate::trackers
