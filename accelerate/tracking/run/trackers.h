/// The trackers of an Accelerator: selects, makes, calls and ends them.
///
/// Calls do nothing on ranks without the tracker, such as all but the main process.
/// Errors:  c10::ValueError for arguments. Failures of trackers are warnings in the log.
/// Threads: the rank's thread.
/// Mirrors: accelerate accelerator.py, init_trackers, log, get_tracker, end_training.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>

#include "accelerate/runtime/runtime.h"
#include "accelerate/tracking/tracker.h"
#include "accelerate/tracking/value.h"

namespace accelerate {

// ---- Tensors as values and images of trackers. Making one copies the tensor to the CPU, and so
// waits for its computation.

template <>
struct TrackerValueOf<at::Tensor> {
  /// Errors: c10::ValueError for an undefined tensor, and for a sparse or complex one.
  static TrackerValue make(const at::Tensor& tensor);
};

/// The result of `tensor.item()`.
template <>
struct TrackerValueOf<c10::Scalar> {
  static TrackerValue make(const c10::Scalar& scalar);
};

/// The images of a tensor. `dataformats` names its dimensions in order: N (images, optional), C (1
/// to 4 channels, optional; without it, images are grey), H and W. Bytes are kept; floats from 0 to
/// 1 are scaled to 0 to 255. Errors: c10::ValueError naming shape and format.
std::vector<TrackerImage> tracker_images(const at::Tensor& tensor,
                                         std::string_view dataformats = "CHW");

class TrackerQueue;

/// Images by name: tensors with the dimensions of `dataformats`.
using ImageTensors = std::vector<std::pair<std::string, at::Tensor>>;

struct LogImagesOptions {
  std::optional<int64_t> step = std::nullopt;
  /// See tracker_images.
  std::string dataformats = "CHW";
  /// By the tracker's name.
  TrackerDict log_kwargs = {};
};

namespace internal {
struct TrackerMailbox;
}  // namespace internal

/// Calls one tracker. Does nothing on ranks without the tracker, and after the end of the run. The
/// Runtime outlives it.
class TrackerHandle {
 public:
  const std::string& name() const { return name_; }
  /// Whether this rank has the tracker.
  explicit operator bool() const { return queue_ != nullptr; }

  /// The same as the Accelerator's functions, for this tracker alone; `kwargs` are its log_kwargs.
  void store_init_configuration(const TrackerDict& values) const;
  void log(const TrackerDict& values, std::optional<int64_t> step = std::nullopt,
           const TrackerDict& kwargs = {}) const;
  void log_images(const ImageTensors& values, const LogImagesOptions& options = {}) const;
  void log_table(const std::string& table_name, const TrackerTable& table,
                 std::optional<int64_t> step = std::nullopt, const TrackerDict& kwargs = {}) const;
  void log_histograms(const TrackerDict& tensors, std::optional<int64_t> step = std::nullopt,
                      const TrackerDict& kwargs = {}) const;
  /// Returns when the tracker has kept all values so far.
  void flush() const;

  /// The tracker itself, after a flush: use it before the next call of the handle or the
  /// Accelerator. Null if this rank does not have the tracker, or if its class differs.
  template <typename Tracker>
  Tracker* unwrap() const {
    return dynamic_cast<Tracker*>(drained());
  }

 private:
  friend class Trackers;
  TrackerHandle(std::string name, std::shared_ptr<TrackerQueue> queue,
                std::shared_ptr<internal::TrackerMailbox> mailbox, Runtime& runtime);
  void push_images(const std::shared_ptr<const TrackerImages>& images, TrackerStep step) const;
  GeneralTracker* drained() const;

  std::string name_;
  std::shared_ptr<TrackerQueue> queue_;
  std::shared_ptr<internal::TrackerMailbox> mailbox_;
  Runtime* runtime_;
};

class Trackers {
 public:
  /// Errors: c10::ValueError as filter_trackers.
  Trackers(const std::vector<TrackerChoice>& log_with, std::string logging_dir, Runtime& runtime);
  /// Ends the trackers unless end_training did. If an exception leaves the scope, the runs end as
  /// failed ones, within 5 s.
  ~Trackers();
  Trackers(const Trackers&) = delete;
  Trackers& operator=(const Trackers&) = delete;

  /// The names of the selected trackers, whether or not this rank has them.
  std::vector<std::string> names() const;

  /// `init_kwargs`: a dictionary of arguments for each tracker. For all trackers,
  /// `main_process_only` overrides the class's setting; false gives every rank a tracker, with
  /// files below logging_dir/rank_N.
  /// Errors: c10::ValueError for arguments that a tracker refuses, for kwargs of a tracker that is
  ///         not in `log_with`, and on a second call without an `end` in between.
  void init(const std::string& project_name, const TrackerDict& config,
            const TrackerDict& init_kwargs);
  void log(const TrackerDict& values, std::optional<int64_t> step, const TrackerDict& log_kwargs);
  void log_images(const ImageTensors& values, const LogImagesOptions& options);
  void log_table(const std::string& name, const TrackerTable& table, std::optional<int64_t> step,
                 const TrackerDict& log_kwargs);
  void log_histograms(const TrackerDict& tensors, std::optional<int64_t> step,
                      const TrackerDict& log_kwargs);
  /// Does nothing where `log_with` is empty. Errors: c10::ValueError for a tracker that is not in
  /// it otherwise.
  TrackerHandle get(const std::string& name) const;
  /// `failed`: as the destructor where an exception leaves the scope.
  void end(bool failed = false);

 private:
  struct World;  // the trackers' services, which live as long as any tracker

  // Null if this rank does not have the tracker.
  std::unique_ptr<GeneralTracker> make_tracker(const TrackerClass& tracker_class,
                                               const std::string& project_name,
                                               TrackerDict init_kwargs);
  TrackerHandle handle(size_t index) const;
  void for_each(const TrackerDict& log_kwargs,
                const std::function<void(const TrackerHandle&, const TrackerDict&)>& call);
  void check_names(const TrackerDict& kwargs, const char* what) const;
  bool was_asked_for(const std::string& name) const;

  Runtime& runtime_;
  const std::string logging_dir_;
  const int exceptions_;  // uncaught ones at construction
  const std::shared_ptr<internal::TrackerMailbox> mailbox_;
  const std::shared_ptr<const World> world_;
  std::vector<std::string> asked_for_;  // the names in log_with, usable or not
  bool asked_for_all_ = false;
  std::vector<TrackerClass> classes_;
  // After `init` one per class, null where this rank does not have the tracker.
  std::vector<std::shared_ptr<TrackerQueue>> queues_;
  bool begun_ = false;
};

/// Registers a class of trackers on this Runtime, for `log_with`. A class of the same name is
/// replaced with a warning. Local; call it on all ranks, before making the Accelerator.
/// Errors: c10::NotImplementedError naming the members that are missing.
void register_tracker_class(TrackerClass tracker_class, Runtime& runtime = Runtime::current());

/// The names of the trackers that `log_with` = "all" stands for. Local.
std::vector<std::string> get_available_trackers(Runtime& runtime = Runtime::current());

}  // namespace accelerate
