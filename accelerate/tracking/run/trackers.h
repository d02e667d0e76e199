/// The trackers of an Accelerator: who is asked for, made, told and ended.
///
/// A rank that has no tracker of a name, because the main process alone has it, does nothing.
/// Errors:  c10::ValueError for arguments; whatever happens to a tracker afterwards is a warning.
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

#include "accelerate/runtime/runtime.h"
#include "accelerate/tracking/registry.h"
#include "accelerate/tracking/run/tensor_value.h"
#include "accelerate/tracking/tracker.h"
#include "accelerate/tracking/value.h"

namespace accelerate {

class TrackerQueue;

/// Images by name: tensors of the layout that `dataformats` says.
using ImageTensors = std::vector<std::pair<std::string, at::Tensor>>;

struct LogImagesOptions {
  std::optional<int64_t> step = std::nullopt;
  /// See tracker_images.
  std::string dataformats = "CHW";
  /// By tracker.
  TrackerDict log_kwargs = {};
};

namespace internal {
struct TrackerMailbox;
}  // namespace internal

/// One tracker, for calls of its own. Does nothing where this rank has none, and after the end of
/// the run. The Runtime outlives it.
class TrackerHandle {
 public:
  const std::string& name() const { return name_; }
  /// Whether this rank has it.
  explicit operator bool() const { return queue_ != nullptr; }

  /// Like the Accelerator's, for this tracker alone; kwargs are its own.
  void store_init_configuration(const TrackerDict& values) const;
  void log(const TrackerDict& values, std::optional<int64_t> step = std::nullopt,
           const TrackerDict& kwargs = {}) const;
  void log_images(const ImageTensors& values, const LogImagesOptions& options = {}) const;
  void log_table(const std::string& table_name, const TrackerTable& table,
                 std::optional<int64_t> step = std::nullopt, const TrackerDict& kwargs = {}) const;
  void log_histograms(const TrackerDict& tensors, std::optional<int64_t> step = std::nullopt,
                      const TrackerDict& kwargs = {}) const;
  /// Returns when it has kept all that it was told.
  void flush() const;

  /// The tracker itself, which has kept all that it was told: use it before the next call of the
  /// handle or the Accelerator. Null where this rank has none, or one of another class.
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
  /// Ends them, if end_training did not; while an exception leaves the scope as runs that failed,
  /// and for 5 s at most.
  ~Trackers();
  Trackers(const Trackers&) = delete;
  Trackers& operator=(const Trackers&) = delete;

  /// The names of those that were asked for, whether this rank has them or not.
  std::vector<std::string> names() const;

  /// `init_kwargs`: by tracker, what it takes; and for each `main_process_only`, in place of its
  /// class's: false gives every rank one, with files below logging_dir/rank_N.
  /// Errors: c10::ValueError for arguments that a tracker refuses, for kwargs of one that was not
  ///         asked for, and on a second call without an `end` in between.
  void init(const std::string& project_name, const TrackerDict& config,
            const TrackerDict& init_kwargs);
  void log(const TrackerDict& values, std::optional<int64_t> step, const TrackerDict& log_kwargs);
  void log_images(const ImageTensors& values, const LogImagesOptions& options);
  void log_table(const std::string& name, const TrackerTable& table, std::optional<int64_t> step,
                 const TrackerDict& log_kwargs);
  void log_histograms(const TrackerDict& tensors, std::optional<int64_t> step,
                      const TrackerDict& log_kwargs);
  /// Errors: c10::ValueError for one that was not asked for.
  TrackerHandle get(const std::string& name) const;
  void end();

 private:
  struct World;   // what trackers use, as long as any of them lives
  struct Member;  // one of classes_, as this rank has it

  // Null where this rank has none.
  std::unique_ptr<GeneralTracker> make_tracker(const TrackerClass& tracker_class,
                                               const std::string& project_name,
                                               TrackerDict init_kwargs);
  TrackerHandle handle(size_t index) const;
  void for_each(const TrackerDict& log_kwargs,
                const std::function<void(const TrackerHandle&, const TrackerDict&)>& call);
  void check_names(const TrackerDict& kwargs, const char* what) const;
  bool was_asked_for(const std::string& name) const;
  void end(bool failed);

  Runtime& runtime_;
  const std::string logging_dir_;
  const int exceptions_;  // that were on their way when this was made
  const std::shared_ptr<internal::TrackerMailbox> mailbox_;
  const std::shared_ptr<const World> world_;
  std::vector<std::string> asked_for_;  // by name; what cannot be used is in no other list
  bool asked_for_all_ = false;
  std::vector<TrackerClass> classes_;
  std::vector<Member> members_;  // one per class after `init`
  bool begun_ = false;
};

/// Makes a class of trackers known on this Runtime, for `log_with`; one of that name is replaced,
/// with a warning. Local; call it on all ranks, before the Accelerator.
/// Errors: c10::NotImplementedError naming the members that are missing.
void register_tracker_class(TrackerClass tracker_class, Runtime& runtime = Runtime::current());

/// The names of those that `log_with` = "all" stands for. Local.
std::vector<std::string> get_available_trackers(Runtime& runtime = Runtime::current());

}  // namespace accelerate
