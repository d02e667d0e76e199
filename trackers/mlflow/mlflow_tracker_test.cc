#include "trackers/mlflow/mlflow_tracker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "simulator/disk/sim_disk.h"
#include "trackers/testing/tracker_world.h"

namespace accelerate::trackers {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;

// Keeps what the tracker asks for.
struct Asked {
  std::vector<std::string> existing;  // experiments
  std::vector<std::string> names;
  std::vector<MlflowCreateExperiment> created;
  std::vector<MlflowStartRun> started;
  std::vector<TrackerDict> metrics;
  std::vector<TrackerDict> params;
  std::vector<std::string> images;
  std::vector<std::pair<std::string, std::string>> texts;
  std::vector<std::pair<std::string, std::string>> artifacts;
  int ended = 0;
  // The answers of the store.
  bool ready = true;
  std::string losses;
};

class FakeClient final : public MlflowClient {
 public:
  explicit FakeClient(Asked& asked) : asked_(asked) {}
  std::vector<std::string> search_experiments(const std::string& name) override {
    asked_.names.push_back(name);
    return asked_.existing;
  }
  std::string create_experiment(const MlflowCreateExperiment& experiment) override {
    asked_.created.push_back(experiment);
    return "new";
  }
  void start_run(const MlflowStartRun& run) override { asked_.started.push_back(run); }
  void log_metrics(const TrackerDict& metrics, const TrackerStep& /*step*/) override {
    asked_.metrics.push_back(metrics);
  }
  void log_params(const TrackerDict& params) override { asked_.params.push_back(params); }
  void set_tags(const TrackerDict& /*tags*/) override {}
  void log_image(const TrackerImage& /*image*/, const std::string& artifact_file) override {
    asked_.images.push_back(artifact_file);
  }
  void log_text(const std::string& text, const std::string& artifact_file) override {
    asked_.texts.emplace_back(artifact_file, text);
  }
  void log_artifact(const std::string& local_path, const std::string& artifact_path) override {
    asked_.artifacts.emplace_back(local_path, artifact_path);
  }
  void end_run(const TrackerStep& /*when*/) override { ++asked_.ended; }
  bool wait_until_ready(absl::Time /*end*/) override { return asked_.ready; }
  std::string losses() override { return asked_.losses; }

 private:
  Asked& asked_;
};

class MlflowTrackerTest : public testing::Test {
 protected:
  MlflowTrackerTest() {
    for (const char* name : {"TRACKING_URI", "EXPERIMENT_NAME", "RUN_ID", "TAGS", "NESTED_RUN"}) {
      world_.environment.unset(absl::StrCat("MLFLOW_", name));
    }
  }
  MlflowTracker make(TrackerDict init_kwargs = {}) {
    return MlflowTracker(world_.setup(std::move(init_kwargs)),
                         std::make_unique<FakeClient>(asked_));
  }
  std::string refusal(TrackerDict init_kwargs) {
    try {
      make(std::move(init_kwargs));
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "";
  }

  simulator::SimDisk disk_;
  TrackerWorld world_{disk_, "digits", absl::FromUnixSeconds(1000)};
  Asked asked_;
};

TEST_F(MlflowTrackerTest, CreatesAnExperimentOnlyWhereThereIsNone) {
  MlflowTracker fresh = make({{"logging_dir", "s3://there"}, {"tags", {{"team", "a"}}}});
  fresh.start();
  EXPECT_THAT(asked_.names, ElementsAre("digits"));
  ASSERT_THAT(asked_.created, SizeIs(1));
  EXPECT_EQ(asked_.created[0].name, "digits");
  EXPECT_EQ(asked_.created[0].artifact_location, "s3://there");
  EXPECT_EQ(asked_.started.at(0).experiment_id, "new");

  asked_.existing = {"7", "8"};
  MlflowTracker known = make();
  known.start();
  EXPECT_THAT(asked_.created, SizeIs(1));
  EXPECT_EQ(asked_.started.at(1).experiment_id, "7");
  EXPECT_THAT(world_.warnings, ElementsAre(HasSubstr("Multiple experiments")));
}

TEST_F(MlflowTrackerTest, HandsItsArgumentsToTheRun) {
  MlflowTracker tracker = make({{"run_id", "r"},
                                {"run_name", "n"},
                                {"tags", R"({"a": "b", "c": 1})"},
                                {"nested_run", true},
                                {"description", "d"}});
  tracker.start();
  const MlflowStartRun& run = asked_.started.at(0);
  EXPECT_EQ(run.run_id, "r");
  EXPECT_EQ(run.run_name, "n");
  EXPECT_EQ(run.tags, (TrackerDict{{"a", "b"}, {"c", 1}}));
  EXPECT_TRUE(run.nested);
  EXPECT_EQ(run.description, "d");
}

TEST_F(MlflowTrackerTest, TheEnvironmentGoesBeforeArguments) {
  world_.environment.set("MLFLOW_EXPERIMENT_NAME", "other");
  world_.environment.set("MLFLOW_RUN_ID", "e");
  world_.environment.set("MLFLOW_TAGS", R"({"from": "environment"})");
  world_.environment.set("MLFLOW_NESTED_RUN", "False");
  MlflowTracker tracker = make({{"run_id", "r"}, {"tags", {{"a", "b"}}}, {"nested_run", true}});
  tracker.start();
  EXPECT_THAT(asked_.names, ElementsAre("other"));
  const MlflowStartRun& run = asked_.started.at(0);
  EXPECT_EQ(run.run_id, "e");
  EXPECT_EQ(run.tags, (TrackerDict{{"from", "environment"}}));
  EXPECT_FALSE(run.nested);
}

TEST_F(MlflowTrackerTest, RefusesArgumentsThatItDoesNotKnow) {
  EXPECT_THAT(refusal({{"run_nmae", "x"}}), HasSubstr("run_nmae"));
  EXPECT_THAT(refusal({{"run_id", 7}}), HasSubstr("run_id"));
  EXPECT_THAT(refusal({{"tags", "no json"}}), HasSubstr("tags"));
  EXPECT_THAT(refusal({{"tags", "[1]"}}), HasSubstr("tags"));
  EXPECT_THAT(refusal({{"nested_run", 3}}), HasSubstr("nested_run"));
  EXPECT_THAT(refusal({{"nested_run", "maybe"}}),
              HasSubstr("nested_run=\"maybe\" is neither true nor false"));
  world_.environment.set("MLFLOW_NESTED_RUN", "perhaps");
  EXPECT_THAT(refusal({}), HasSubstr("MLFLOW_NESTED_RUN=\"perhaps\" is neither true nor false"));
}

TEST_F(MlflowTrackerTest, ReadsTruthAsTextsAsWell) {
  make({{"nested_run", "Yes"}}).start();
  make({{"nested_run", "0"}}).start();
  world_.environment.set("MLFLOW_NESTED_RUN", "on");
  make({{"nested_run", "0"}}).start();
  ASSERT_THAT(asked_.started, SizeIs(3));
  EXPECT_TRUE(asked_.started[0].nested);
  EXPECT_FALSE(asked_.started[1].nested);
  EXPECT_TRUE(asked_.started[2].nested);
}

TEST_F(MlflowTrackerTest, RefusesTrackingAddressesThatItCannotServe) {
  for (const char* uri : {"postgres://me:secret@host/db", "databricks", "file://host/x"}) {
    try {
      MlflowTracker tracker(world_.setup({{"tracking_uri", uri}}));
      ADD_FAILURE() << uri;
    } catch (const std::invalid_argument& error) {
      EXPECT_THAT(error.what(), testing::Not(HasSubstr("secret")));
    }
  }
  world_.services.is_real = false;
  EXPECT_THROW(MlflowTracker(world_.setup({{"tracking_uri", "http://host"}})),
               std::invalid_argument);
  MlflowTracker folder(world_.setup({{"tracking_uri", "/sim/runs"}}));
}

TEST_F(MlflowTrackerTest, KeepsNumbersAndBoolsAsMetricsAndWarnsOfOthersOnce) {
  MlflowTracker tracker = make();
  tracker.start();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const TrackerDict values = {{"int", 3},
                              {"float", 0.5},
                              {"bool", true},
                              {"nan", nan},
                              {"none", std::nullopt},
                              {"text", "x"},
                              {"list", TrackerList{1}},
                              {"dict", {{"a", 1}}},
                              {"tensor", TensorValue{.dtype = "float32", .values = {1}}}};
  tracker.log(values, world_.step(1));
  tracker.log(values, world_.step(2));
  ASSERT_THAT(asked_.metrics, SizeIs(2));
  ASSERT_THAT(asked_.metrics[0], SizeIs(4));
  EXPECT_EQ(asked_.metrics[0][0], (std::pair<std::string, TrackerValue>("int", 3)));
  EXPECT_EQ(asked_.metrics[0][1].second, TrackerValue(0.5));
  EXPECT_EQ(asked_.metrics[0][2].second, TrackerValue(true));
  EXPECT_TRUE(std::isnan(asked_.metrics[0][3].second.number().value()));
  const auto warning = [](const char* value, const char* type, const char* key) {
    return absl::StrCat("MLflowTracker is attempting to log a value of \"", value,
                        "\" of type <class '", type, "'> for key \"", key,
                        "\" as a metric. MLflow's log_metric() only accepts float and int types so "
                        "we dropped this attribute.");
  };
  EXPECT_THAT(world_.warnings,
              ElementsAre(warning("None", "NoneType", "none"), warning("x", "str", "text"),
                          warning("[1]", "list", "list"), warning("{'a': 1}", "dict", "dict"),
                          warning("1.0", "torch.Tensor", "tensor")));
}

TEST_F(MlflowTrackerTest, WarningsHaveAnEnd) {
  MlflowTracker tracker = make();
  for (int i = 0; i < 3000; ++i) tracker.log({{"text", absl::StrCat(i)}}, world_.step(i));
  EXPECT_THAT(world_.warnings, SizeIs(1));
  for (int i = 0; i < 3000; ++i) tracker.log({{absl::StrCat("text", i), "x"}}, world_.step(i));
  EXPECT_THAT(world_.warnings, SizeIs(1000));
}

TEST_F(MlflowTrackerTest, WarningsHoldNoSecrets) {
  MlflowTracker tracker = make();
  tracker.store_init_configuration({{"api_key", std::string(501, 'k')}});
  tracker.log({{"hub_token", "hf_abc"}, {"url", "http://me:pw@host"}}, world_.step(1));
  EXPECT_THAT(world_.warnings,
              ElementsAre(HasSubstr("value of \"***\" for key \"api_key\""),
                          HasSubstr("value of \"***\" of type"), HasSubstr("http://***@host")));
  EXPECT_THAT(refusal({{"tags", "{\"token\": \"hf_abc\""}}), Not(HasSubstr("hf_abc")));
}

TEST_F(MlflowTrackerTest, SaysWhyARunIsNotEnded) {
  MlflowTracker tracker = make();
  tracker.start();
  asked_.ready = false;
  asked_.losses = "3 metrics are lost";
  tracker.finish();
  EXPECT_EQ(asked_.ended, 0);
  EXPECT_THAT(world_.warnings,
              ElementsAre("mlflow: 3 metrics are lost: the server or the disk cannot be reached"));
}

TEST_F(MlflowTrackerTest, ARunThatFailedSaysWhatIsLost) {
  MlflowTracker tracker = make();
  tracker.start();
  tracker.abandon();
  EXPECT_THAT(world_.warnings, IsEmpty());
  asked_.losses = "3 metrics are lost";
  tracker.abandon();
  EXPECT_EQ(asked_.ended, 0);
  EXPECT_THAT(world_.warnings, ElementsAre(HasSubstr("3 metrics are lost")));
}

TEST_F(MlflowTrackerTest, LogsParamsAHundredAtATimeAndDropsLongOnes) {
  MlflowTracker tracker = make();
  tracker.start();
  TrackerDict values = {{"long", std::string(501, 'x')}, {"nested", {{"a", TrackerList{1, "b"}}}}};
  std::string umlauts;
  for (int i = 0; i < 500; ++i) umlauts += "ä";  // 500 characters in 1000 bytes
  values.emplace_back("umlauts", umlauts);
  for (int i = 0; i < 248; ++i) values.emplace_back(absl::StrCat("p", i), i);
  tracker.store_init_configuration(values);
  ASSERT_THAT(asked_.params, SizeIs(3));
  EXPECT_THAT(asked_.params[0], SizeIs(100));
  EXPECT_THAT(asked_.params[1], SizeIs(100));
  EXPECT_THAT(asked_.params[2], SizeIs(50));
  EXPECT_EQ(asked_.params[0][0].first, "nested");
  EXPECT_EQ(asked_.params[0][1].first, "umlauts");
  EXPECT_THAT(world_.warnings, ElementsAre(HasSubstr("for key \"long\" as a parameter")));

  tracker.store_init_configuration({});
  EXPECT_THAT(asked_.params, SizeIs(3));
}

TEST_F(MlflowTrackerTest, NamesImagesAndTablesAfterTheirStep) {
  MlflowTracker tracker = make();
  tracker.start();
  const TrackerImage image = {.height = 1, .width = 1, .channels = 1, .pixels = {0}};
  tracker.log_images({{"a b", {image, image}}}, world_.step(3));
  tracker.log_table("t", {.columns = {"x", "y"}, .rows = {{1, "z"}, {std::nullopt, 0.5}}}, {});
  EXPECT_THAT(asked_.images, ElementsAre("images/a b_step_3_0.png", "images/a b_step_3_1.png"));
  EXPECT_THAT(asked_.texts,
              ElementsAre(std::pair("tables/t_step_0.json",
                                    R"({"columns":["x","y"],"data":[[1,"z"],[null,0.5]]})")));
}

TEST_F(MlflowTrackerTest, LogsFoldersOfArtifacts) {
  ASSERT_TRUE(write_file(disk_, "/sim/out/a.txt", "a").ok());
  ASSERT_TRUE(write_file(disk_, "/sim/out/sub/b.txt", "b").ok());
  MlflowTracker tracker = make();
  tracker.log_artifacts("/sim/out", "files");
  tracker.log_artifacts("/sim/out");
  EXPECT_THAT(asked_.artifacts,
              ElementsAre(std::pair("/sim/out/a.txt", "files"),
                          std::pair("/sim/out/sub/b.txt", "files/sub"),
                          std::pair("/sim/out/a.txt", ""), std::pair("/sim/out/sub/b.txt", "sub")));
  EXPECT_THROW(tracker.log_artifacts("/sim/none"), std::runtime_error);
}

TEST_F(MlflowTrackerTest, EndsTheRunOnce) {
  MlflowTracker tracker = make();
  tracker.start();
  tracker.finish();
  EXPECT_EQ(asked_.ended, 1);
  EXPECT_THAT(world_.warnings, IsEmpty());
}

}  // namespace
}  // namespace accelerate::trackers
