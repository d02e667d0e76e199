/// save_state and load_state: the order of writing and reading, and how the ranks agree on it.
///
/// Threads: the rank's thread.
/// Mirrors: accelerate accelerator.py, save_state and load_state, with checkpointing.py.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "accelerate/checkpoint/folder/checkpoint_parts.h"
#include "accelerate/checkpoint/objects/checkpoint_objects.h"
#include "accelerate/config/kwargs_handlers.h"
#include "accelerate/runtime/runtime.h"
#include "accelerate/state/accelerator_state.h"

namespace accelerate {

class SaveExchange;
class SaveJob;

class StateSaver {
 public:
  /// All outlive it. Ranks that write make project_dir, if there is one, and try to write there.
  /// Local. Errors: c10::ValueError for a configuration that contradicts itself, and for a
  ///         project_dir that cannot be made or written to, with the cause.
  StateSaver(AcceleratorState& state, internal::TrainingState& training,
             GradientState& gradient_state, ProjectConfiguration configuration);
  /// Waits for an asynchronous save, unless an exception is being handled; logs its errors.
  ~StateSaver();

  ProjectConfiguration& configuration() { return configuration_; }
  const ProjectConfiguration& configuration() const { return configuration_; }

  void add(CheckpointedObject object) { custom_objects_.push_back(std::move(object)); }
  HookList<SaveStatePreHook>& save_hooks() { return save_hooks_; }
  HookList<LoadStatePreHook>& load_hooks() { return load_hooks_; }

  /// Collective. Returns the checkpoint's folder.
  std::string save(const std::string& output_dir, const SaveStateOptions& options);
  /// Collective. Returns the checkpoint's folder; nothing if no state was saved yet, which is an
  /// error unless it `may_be_absent`.
  std::optional<std::string> load(const std::string& input_dir, const LoadStateOptions& options,
                                  bool may_be_absent = false);
  /// Returns when no save runs any more: it waits for the shares of all ranks.
  void wait();

  /// Saves parts in a folder of their own, as completely or not at all as a checkpoint. `collect`
  /// gets what is known of this rank's training; if it throws on one rank, all ranks throw.
  /// `caller` is for messages. Collective. Errors: those of save.
  void save_parts(
      const std::string& caller, const std::string& folder,
      const std::function<std::vector<CheckpointPart>(const internal::TrainingParts&)>& collect);
  /// All ranks of the job.
  ProcessGroupPtr group() const;
  /// What is known of this rank's training. Local.
  internal::TrainingParts parts() const;
  /// "~" as a shell reads it, and no slash at the end. Local.
  std::string expanded(const std::string& path) const;

  /// Whether this rank writes the parts that are equal on all ranks.
  bool writes_shared() const;
  /// Runs `write` on those ranks; if it throws on one rank, all ranks throw. Collective.
  void on_writers(const std::function<void()>& write) const;

 private:
  struct Running;

  // Who asked for a save, and where it goes.
  struct Request {
    std::string caller;
    std::string folder;  // has no effect with automatic naming
    bool is_of_training = true;
    std::optional<double> metric = std::nullopt;
  };
  // The agreement of all ranks before a save.
  struct AgreedSave {
    std::string checkpoint;
    std::string id;
  };

  // Ranks of a node are neighbours.
  int first_on_node() const;
  bool names_automatically(const Request& request) const {
    return request.is_of_training && configuration_.automatic_checkpoint_naming;
  }
  std::string checkpoints_folder() const;
  std::string target(const Request& request) const;
  // After a save that was not finished, nodes with disks of their own may hold different
  // checkpoints: restores the newest checkpoint of that folder that exists on all nodes.
  // Collective.
  void align_nodes(const Request& request);
  // Warns before the first save of checkpoints with higher numbers, which an earlier run left.
  void warn_of_later_checkpoints();
  AgreedSave begin(const Request& request);
  std::vector<CheckpointPart> collect(const std::string& checkpoint,
                                      const SaveStateOptions& options);
  std::unique_ptr<SaveJob> make_job(const AgreedSave& begun, const Request& request,
                                    const SaveStateOptions& options,
                                    std::function<void(int64_t)> on_progress);
  void run_behind(const AgreedSave& begun, std::unique_ptr<SaveJob> job, absl::Time start);
  void report(const SaveJob& job, const std::string& checkpoint, absl::Duration took) const;
  // The checkpoints that load() may take, the newest first. None only if they `may_be_absent`.
  std::vector<std::string> candidates(const std::string& input_dir, const LoadStateOptions& options,
                                      bool may_be_absent) const;
  // Makes project_dir and tries to write there, so that a training does not fail at its first save.
  void try_project_dir() const;
  void load_from(const std::string& checkpoint, const LoadStateOptions& options);
  // The number after `loaded` and after all existing checkpoints.
  int64_t next_iteration(int64_t loaded) const;

  AcceleratorState& state_;
  internal::TrainingState& training_;
  GradientState& gradient_state_;
  ProjectConfiguration configuration_;
  std::vector<CheckpointedObject> custom_objects_;
  HookList<SaveStatePreHook> save_hooks_;
  HookList<LoadStatePreHook> load_hooks_;
  SnapshotBuffers snapshot_;
  // The checkpoints that load() skipped.
  std::set<std::string> damaged_;
  // TrainingParts::disks, since the last save began.
  std::vector<int64_t> disks_;
  bool looked_for_later_ = false;
  std::unique_ptr<Running> running_;
  // The exchange of the last asynchronous save, until all ranks are known to have left that save.
  std::shared_ptr<SaveExchange> finished_;
};

}  // namespace accelerate
