#include "integration_tests/golden/trackers.h"

#include <string>
#include <utility>

#include "integration_tests/golden/fields.h"
#include "integration_tests/golden/tracking_replay.h"

namespace accelerate::golden {
namespace {

using nlohmann::json;

class Recorder final : public GeneralTracker {
 public:
  explicit Recorder(TrackingReplay& replay) : replay_(replay) {}

  void start() override {
    const TrackerSetup setup = replay_.setup();
    json kwargs = tracking_answer(setup.init_kwargs);
    kwargs["project"] = setup.project_name;
    replay_.call("trackio.init", json::array(), std::move(kwargs));
  }

  void store_init_configuration(const TrackerDict& values) override {
    replay_.call("trackio.config.update", json::array({tracking_answer(values)}),
                 {{"allow_val_change", true}});
  }

  void log(const TrackerDict& values, const TrackerStep& step) override {
    json kwargs = tracking_answer(step.kwargs);
    kwargs["step"] = step.step ? json(*step.step) : json();
    replay_.call("trackio.init().log", json::array({tracking_answer(values)}), std::move(kwargs));
  }

  // HF Accelerate has none of these.
  void log_images(const TrackerImages& /*images*/, const TrackerStep& /*step*/) override {
    throw CaseError("images are not replayed");
  }
  void log_table(const std::string& /*name*/, const TrackerTable& /*table*/,
                 const TrackerStep& /*step*/) override {
    throw CaseError("tables are not replayed");
  }
  void log_histograms(const TrackerDict& /*tensors*/, const TrackerStep& /*step*/) override {
    throw CaseError("histograms are not replayed");
  }

  void finish() override { replay_.call("trackio.init().finish"); }

 private:
  TrackingReplay& replay_;
};

}  // namespace

json replay_trackio(const json& in) {
  TrackingReplay replay(in);
  Recorder tracker(replay);
  return replay.answer(tracker, "trackio");
}

}  // namespace accelerate::golden
