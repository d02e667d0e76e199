#include "accelerate/tracking/tracker.h"

#include "accelerate/tracking/registry.h"

namespace accelerate {

void GeneralTracker::log_images(const TrackerImages& /*images*/, const TrackerStep& /*step*/) {
  throw NotKept("it does not keep images");
}

void GeneralTracker::log_table(const std::string& /*name*/, const TrackerTable& /*table*/,
                               const TrackerStep& /*step*/) {
  throw NotKept("it does not keep tables");
}

void GeneralTracker::log_histograms(const TrackerDict& /*tensors*/, const TrackerStep& /*step*/) {
  throw NotKept("it does not keep histograms");
}

TrackerRegistration::TrackerRegistration(TrackerClass tracker_class) {
  TrackerRegistry::linked().add(std::move(tracker_class));
}

}  // namespace accelerate
