/// What a W&B run is called and where it is kept: of `init_trackers` and WANDB_* variables.
///
/// A kwarg counts before its variable. The API key is needed by `wandb sync` alone, and never read
/// here.
/// Errors:  std::invalid_argument for kwargs; see init_kwargs.h.
/// Threads: one.
/// Mirrors: wandb.init and sdk/wandb_settings.py, Settings.
#pragma once

#include <string>
#include <vector>

#include "accelerate/tracking/tracker.h"

namespace accelerate::trackers {

struct RunSettings {
  /// `init_trackers`' project name, else WANDB_PROJECT, else "uncategorized".
  std::string project;
  /// Empty for that of whoever uploads the run: `entity`, WANDB_ENTITY.
  std::string entity;
  /// Empty for one that the server finds: `name`, WANDB_NAME.
  std::string name;
  /// `id`, WANDB_RUN_ID, or eight letters and digits.
  std::string id;
  /// Whether it was given, so that other ranks may have the same.
  bool id_was_given = false;
  /// `group`, WANDB_RUN_GROUP.
  std::string group;
  /// `job_type`, WANDB_JOB_TYPE.
  std::string job_type;
  /// `tags`, WANDB_TAGS with commas between.
  std::vector<std::string> tags;
  /// `notes`, WANDB_NOTES.
  std::string notes;
  /// Where the folder `wandb` is made: `dir`, WANDB_DIR, in a simulation the logging_dir, else ".".
  std::string dir;
  TrackerDict config;
  /// Whether nothing is kept: `mode` or WANDB_MODE "disabled", WANDB_DISABLED.
  bool disabled = false;
  /// What is to be said of settings that mean nothing here.
  std::vector<std::string> remarks;
};

/// Knows `entity`, `name`, `id`, `group`, `job_type`, `tags`, `notes`, `dir`, `config`, `mode`
/// ("online", "offline", "dryrun", "disabled"), and `resume`, `reinit`, `save_code`, `settings`,
/// which it remarks on.
RunSettings read_run_settings(const TrackerSetup& setup);

}  // namespace accelerate::trackers
