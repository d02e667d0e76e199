/// The names and the folder of a W&B run, from init_kwargs and WANDB_* variables.
///
/// A kwarg takes precedence over its variable. The API key is never read: only `wandb sync` needs
/// it.
/// Errors:  std::invalid_argument for kwargs; see init_kwargs.h.
/// Threads: one.
/// Mirrors: wandb.init and sdk/wandb_settings.py, Settings.
#pragma once

#include <string>
#include <vector>

#include "accelerate/tracking/tracker.h"

namespace accelerate::trackers {

struct RunSettings {
  /// The project name of `init_trackers`, else WANDB_PROJECT, else "uncategorized".
  std::string project;
  /// `entity`, WANDB_ENTITY. Empty: the entity of the user who uploads the run.
  std::string entity;
  /// `name`, WANDB_NAME. Empty: the server chooses a name.
  std::string name;
  /// `id`, WANDB_RUN_ID, or eight letters and digits.
  std::string id;
  /// Whether the id was given, so that other ranks may have the same one.
  bool id_was_given = false;
  /// `group`, WANDB_RUN_GROUP.
  std::string group;
  /// `job_type`, WANDB_JOB_TYPE.
  std::string job_type;
  /// `tags`, or WANDB_TAGS separated by commas.
  std::vector<std::string> tags;
  /// `notes`, WANDB_NOTES.
  std::string notes;
  /// The parent of the folder `wandb`: `dir`, WANDB_DIR, in a simulation the logging_dir, else ".".
  std::string dir;
  TrackerDict config;
  /// Whether nothing is kept: `mode` or WANDB_MODE "disabled", WANDB_DISABLED.
  bool disabled = false;
  /// Warnings about settings without effect.
  std::vector<std::string> remarks;
};

/// Knows `entity`, `name`, `id`, `group`, `job_type`, `tags`, `notes`, `dir`, `config`, `mode`
/// ("online", "offline", "dryrun", "disabled"). `resume`, `reinit`, `save_code` and `settings`
/// have no effect; `remarks` says so.
RunSettings read_run_settings(const TrackerSetup& setup);

}  // namespace accelerate::trackers
