#include "integration_tests/golden/trackers.h"

#include <string>
#include <utility>
#include <vector>

#include "integration_tests/golden/tracking_replay.h"
#include "trackers/wandb/wandb_tracker.h"

namespace accelerate::golden {
namespace {

using nlohmann::json;

class Recorder final : public trackers::WandbTracker {
 public:
  explicit Recorder(TrackingReplay& replay) : replay_(replay) {}

  void start() override {
    const TrackerSetup setup = replay_.setup();
    json kwargs = tracking_answer(setup.init_kwargs);
    kwargs["project"] = setup.project_name;
    replay_.call("wandb.init", json::array(), std::move(kwargs));
  }

  void store_init_configuration(const TrackerDict& values) override {
    replay_.call("wandb.config.update", json::array({tracking_answer(values)}),
                 {{"allow_val_change", true}});
  }

  void log(const TrackerDict& values, const TrackerStep& step) override {
    log_values(tracking_answer(values), step);
  }

  void log_images_of(const std::string& name, const std::vector<TrackerImage>& images,
                     const TrackerStep& step) override {
    json objects = json::array();
    for (const TrackerImage& image : images) {
      replay_.call("wandb.Image",
                   json::array({json{{"ndarray", {image.height, image.width, image.channels}},
                                     {"dtype", "uint8"}}}));
      objects.push_back({{"object", "wandb.Image()"}});
    }
    log_values({{name, std::move(objects)}}, step);
  }

  void log_table(const std::string& name, const TrackerTable& table,
                 const TrackerStep& step) override {
    TrackerList rows(table.rows.begin(), table.rows.end());
    replay_.call("wandb.Table", json::array(),
                 {{"columns", table.columns},
                  {"data", tracking_answer(TrackerValue(rows))},
                  {"dataframe", nullptr}});
    log_values({{name, {{"object", "wandb.Table()"}}}}, step);
  }

  void log_histograms(const TrackerDict& /*tensors*/, const TrackerStep& /*step*/) override {}

  void finish() override { replay_.call("wandb.init().finish"); }

 private:
  void log_values(json values, const TrackerStep& step) {
    json kwargs = tracking_answer(step.kwargs);
    kwargs["step"] = step.step ? json(*step.step) : json();
    replay_.call("wandb.init().log", json::array({std::move(values)}), std::move(kwargs));
  }

  TrackingReplay& replay_;
};

}  // namespace

json replay_wandb(const json& in) {
  TrackingReplay replay(in);
  Recorder tracker(replay);
  return replay.answer(tracker, "wandb");
}

}  // namespace accelerate::golden
