#include "trackers/wandb/wandb_tracker.h"

#include <utility>

namespace accelerate::trackers {
namespace {

const TrackerRegistration kRegistration({.name = "wandb",
                                         .requires_logging_directory = false,
                                         .main_process_only = false,
                                         .tracker = make_tracker<WandbTracker>});

}  // namespace

WandbTracker::WandbTracker(const TrackerSetup& setup) : WandbTracker(make_offline_run(setup)) {}

WandbTracker::WandbTracker(std::unique_ptr<Run> run) : run_(std::move(run)) {}

void WandbTracker::start() { run_->start(); }

void WandbTracker::store_init_configuration(const TrackerDict& values) {
  run_->update_config(values);
}

void WandbTracker::log(const TrackerDict& values, const TrackerStep& step) {
  run_->log(values, step);
}

void WandbTracker::log_images(const TrackerImages& images, const TrackerStep& step) {
  for (const auto& [name, of_name] : images) run_->log_images(name, of_name, step);
}

void WandbTracker::log_table(const std::string& name, const TrackerTable& table,
                             const TrackerStep& step) {
  run_->log_table(name, table, step);
}

void WandbTracker::log_histograms(const TrackerDict& tensors, const TrackerStep& step) {
  run_->log_histograms(tensors, step);
}

void WandbTracker::flush() { run_->flush(); }

void WandbTracker::finish() { run_->finish(); }

}  // namespace accelerate::trackers
