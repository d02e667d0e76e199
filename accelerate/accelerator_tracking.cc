// The part of the Accelerator that tells trackers.
#include "accelerate/accelerator.h"

namespace accelerate {

void Accelerator::init_trackers(const std::string& project_name, const TrackerDict& config,
                                const TrackerDict& init_kwargs) {
  trackers_.init(project_name, config, init_kwargs);
}

void Accelerator::log(const TrackerDict& values, std::optional<int64_t> step,
                      const TrackerDict& log_kwargs) {
  trackers_.log(values, step, log_kwargs);
}

void Accelerator::log_images(const ImageTensors& values, const LogImagesOptions& options) {
  trackers_.log_images(values, options);
}

void Accelerator::log_table(const std::string& name, const TrackerTable& table,
                            std::optional<int64_t> step, const TrackerDict& log_kwargs) {
  trackers_.log_table(name, table, step, log_kwargs);
}

void Accelerator::log_histograms(const TrackerDict& tensors, std::optional<int64_t> step,
                                 const TrackerDict& log_kwargs) {
  trackers_.log_histograms(tensors, step, log_kwargs);
}

TrackerHandle Accelerator::get_tracker(const std::string& name) const {
  return trackers_.get(name);
}

void Accelerator::end_training() { trackers_.end(); }

}  // namespace accelerate
