#include "trackers/dvclive/dvclive_tracker.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "accelerate/tracking/tracker_queue.h"
#include "trackers/common/init_kwargs.h"
#include "trackers/common/secrets.h"

namespace accelerate::trackers {
namespace {

constexpr char kName[] = "dvclive";

// The number of different warnings that are given.
constexpr size_t kMaxSaid = 1000;

const TrackerRegistration kRegistration({.name = kName,
                                         .requires_logging_directory = false,
                                         .main_process_only = true,
                                         .tracker = make_tracker<DvcliveTracker>});

}  // namespace

DvcliveTracker::DvcliveTracker(const TrackerSetup& setup)
    : DvcliveTracker(setup, make_live_files(setup)) {}

DvcliveTracker::DvcliveTracker(const TrackerSetup& setup, std::unique_ptr<Live> live)
    : services_(setup.services), live_(std::move(live)) {}

void DvcliveTracker::start() { live_->open(); }

void DvcliveTracker::store_init_configuration(const TrackerDict& values) {
  live_->log_params(values);
}

void DvcliveTracker::log(const TrackerDict& values, const TrackerStep& step) {
  if (step.step) live_->set_step(*step.step);
  for (const auto& [name, value] : values) {
    if (value.number()) {
      live_->log_metric(name, value, step.kwargs);
    } else {
      warn_of(name, value);
    }
  }
  live_->next_step();
}

void DvcliveTracker::log_images(const TrackerImages& images, const TrackerStep& step) {
  if (step.step) live_->set_step(*step.step);
  for (const auto& [name, several] : images) {
    for (size_t i = 0; i < several.size(); ++i) {
      const std::string folder = several.size() == 1 ? name : absl::StrCat(name, "/", i);
      live_->log_image(absl::StrCat(folder, "/", live_->step(), ".png"), several[i]);
    }
  }
  refuse_log_kwargs(kName, step.kwargs);
}

void DvcliveTracker::flush() { process_is_ending() ? live_->flush_all() : live_->flush(); }

void DvcliveTracker::abandon() { live_->flush_all(); }

void DvcliveTracker::finish() { live_->end(); }

void DvcliveTracker::warn_of(const std::string& name, const TrackerValue& value) {
  const std::string type(type_name(value));
  if (said_.size() >= kMaxSaid || !said_.insert(absl::StrCat(type, " ", name)).second) return;
  services_.warn(absl::StrCat("Accelerator attempted to log a value of \"",
                              shown_value(name, value), "\" of type <class '", type,
                              "'> for key \"", name,
                              "\" as a scalar. This invocation of DVCLive's Live.log_metric() is "
                              "incorrect so we dropped this attribute."));
}

}  // namespace accelerate::trackers
