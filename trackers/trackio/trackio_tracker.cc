#include "trackers/trackio/trackio_tracker.h"

#include <utility>

namespace accelerate::trackers {
namespace {

const TrackerRegistration kRegistration({.name = "trackio",
                                         .requires_logging_directory = false,
                                         .main_process_only = false,
                                         .tracker = make_tracker<TrackioTracker>,
                                         .unavailable = [](const TrackerServices& services) {
                                           return services.is_real
                                                      ? ""
                                                      : "its database cannot be in a simulation";
                                         }});

}  // namespace

TrackioTracker::TrackioTracker(const TrackerSetup& setup) : TrackioTracker(make_local_run(setup)) {}

TrackioTracker::TrackioTracker(std::unique_ptr<TrackioRun> run) : run_(std::move(run)) {}

void TrackioTracker::start() { run_->start(); }

void TrackioTracker::store_init_configuration(const TrackerDict& values) {
  run_->update_config(values);
}

void TrackioTracker::log(const TrackerDict& values, const TrackerStep& step) {
  run_->log(values, step);
}

void TrackioTracker::log_images(const TrackerImages& images, const TrackerStep& step) {
  run_->log_images(images, step);
}

void TrackioTracker::log_table(const std::string& name, const TrackerTable& table,
                               const TrackerStep& step) {
  run_->log_table(name, table, step);
}

void TrackioTracker::log_histograms(const TrackerDict& tensors, const TrackerStep& step) {
  run_->log_histograms(tensors, step);
}

void TrackioTracker::flush() { run_->flush(); }

void TrackioTracker::finish() { run_->finish(); }

}  // namespace accelerate::trackers
