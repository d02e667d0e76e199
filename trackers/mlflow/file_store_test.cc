#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "simulator/disk/sim_disk.h"
#include "trackers/mlflow/mlflow_tracker.h"
#include "trackers/testing/tracker_world.h"

namespace accelerate::trackers {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::Pair;
using testing::SizeIs;

// Reads the layout that MLflow's documentation describes, and shares nothing with what writes it.
struct ReadMetric {
  long long timestamp = 0;
  double value = 0;
  long long step = 0;
};
struct ReadRun {
  std::map<std::string, std::string> meta;
  std::map<std::string, std::string> params;
  std::map<std::string, std::string> tags;
  std::map<std::string, std::vector<ReadMetric>> metrics;
};

class Reader {
 public:
  explicit Reader(FileSystem& files, std::string root = "/sim/logs/mlruns")
      : files_(files), root_(std::move(root)) {}

  std::vector<std::string> experiments() { return files_.list(root_).value(); }

  std::map<std::string, std::string> meta(const std::string& folder) {
    std::map<std::string, std::string> fields;
    std::istringstream lines(read_file(files_, root_ + "/" + folder + "/meta.yaml").value());
    for (std::string line; std::getline(lines, line);) {
      const size_t colon = line.find(": ");
      std::string value = colon == line.npos ? "?" : line.substr(colon + 2);
      if (value.size() > 1 && (value[0] == '\'' || value[0] == '"')) {
        value = value.substr(1, value.size() - 2);
      }
      fields[line.substr(0, colon)] = value;
    }
    return fields;
  }

  ReadRun run(const std::string& folder) {
    ReadRun run{.meta = meta(folder), .params = texts(folder + "/params")};
    run.tags = texts(folder + "/tags");
    for (const auto& [key, text] : texts(folder + "/metrics")) {
      std::istringstream lines(text);
      for (std::string line; std::getline(lines, line);) {
        ReadMetric metric;
        char value[64] = {};
        int length = 0;
        const int fields = std::sscanf(line.c_str(), "%lld %63s %lld%n", &metric.timestamp, value,
                                       &metric.step, &length);
        EXPECT_EQ(fields, 3) << line;
        EXPECT_EQ(static_cast<size_t>(length), line.size()) << line;
        metric.value = std::strtod(value, nullptr);
        run.metrics[key].push_back(metric);
      }
      EXPECT_TRUE(text.empty() || text.back() == '\n');
    }
    return run;
  }

  // The folders of all runs of an experiment.
  std::vector<std::string> runs(const std::string& experiment) {
    std::vector<std::string> result;
    const std::vector<std::string> names = files_.list(root_ + "/" + experiment).value();
    for (const std::string& name : names) {
      if (name != "meta.yaml" && name != "tags") result.push_back(experiment + "/" + name);
    }
    return result;
  }

 private:
  std::map<std::string, std::string> texts(const std::string& folder,
                                           const std::string& name = "") {
    std::map<std::string, std::string> result;
    const std::vector<std::string> names = files_.list(root_ + "/" + folder).value();
    for (const std::string& entry : names) {
      const std::string path = folder + "/" + entry;
      if (files_.info(root_ + "/" + path)->is_directory) {
        result.merge(texts(path, name + entry + "/"));
      } else {
        result[name + entry] = read_file(files_, root_ + "/" + path).value();
      }
    }
    return result;
  }

  FileSystem& files_;
  const std::string root_;
};

class MlflowFileStoreTest : public testing::Test {
 protected:
  explicit MlflowFileStoreTest(simulator::SimDiskOptions options = {}) : disk_(std::move(options)) {
    for (const char* name : {"TRACKING_URI", "EXPERIMENT_NAME", "RUN_ID", "TAGS", "NESTED_RUN"}) {
      world_.environment.unset(absl::StrCat("MLFLOW_", name));
    }
    world_.environment.set("USER", "me");
    world_.services.is_real = false;
  }
  std::unique_ptr<MlflowTracker> started(TrackerDict init_kwargs = {}) {
    auto tracker = std::make_unique<MlflowTracker>(world_.setup(std::move(init_kwargs)));
    tracker->start();
    return tracker;
  }
  // The only experiment but the default one.
  std::string experiment() {
    for (const std::string& name : Reader(disk_).experiments()) {
      if (name != "0") return name;
    }
    return "";
  }
  std::string only_run() {
    const std::vector<std::string> runs = Reader(disk_).runs(experiment());
    EXPECT_THAT(runs, SizeIs(1));
    return runs.at(0);
  }

  simulator::SimDisk disk_;
  TrackerWorld world_{disk_, "digits", absl::FromUnixSeconds(1000)};
};

TEST_F(MlflowFileStoreTest, WritesTheLayoutThatMlflowReads) {
  const auto tracker = started(
      {{"run_name", "it's \"first\""}, {"tags", {{"team", "a"}}}, {"description", "says\nmuch"}});
  tracker->store_init_configuration({{"lr", 0.1}, {"nested", {{"a", 1}}}, {"empty", ""}});
  tracker->log({{"loss", 0.5}, {"count", 4}, {"train/acc", 1e-5}}, world_.step(1));
  world_.now += absl::Seconds(1);
  tracker->log({{"loss", std::nan("")}, {"ok", true}, {"big", HUGE_VAL}}, world_.step(2));
  tracker->log_figure({.height = 1, .width = 1, .channels = 1, .pixels = {0}}, "figures/f.png");
  world_.now += absl::Seconds(1);
  tracker->finish();
  EXPECT_THAT(world_.warnings, IsEmpty());

  Reader reader(disk_);
  auto default_experiment = reader.meta("0");
  EXPECT_EQ(default_experiment["name"], "Default");
  auto meta = reader.meta(experiment());
  EXPECT_EQ(meta["name"], "digits");
  EXPECT_EQ(meta["experiment_id"], experiment());
  EXPECT_EQ(meta["lifecycle_stage"], "active");
  EXPECT_EQ(meta["artifact_location"], "file:///sim/logs/mlruns/" + experiment());
  EXPECT_EQ(meta["creation_time"], "1000000");

  const std::string folder = only_run();
  ReadRun run = reader.run(folder);
  const std::string id = folder.substr(folder.find('/') + 1);
  EXPECT_THAT(id, SizeIs(32));
  EXPECT_EQ(run.meta["run_id"], id);
  EXPECT_EQ(run.meta["run_uuid"], id);
  EXPECT_EQ(run.meta["run_name"], "it's \"first\"");
  EXPECT_EQ(run.meta["experiment_id"], experiment());
  EXPECT_EQ(run.meta["artifact_uri"], "file:///sim/logs/mlruns/" + folder + "/artifacts");
  EXPECT_EQ(run.meta["status"], "3");
  EXPECT_EQ(run.meta["start_time"], "1000000");
  EXPECT_EQ(run.meta["end_time"], "1002000");
  EXPECT_EQ(run.meta["lifecycle_stage"], "active");
  EXPECT_EQ(run.meta["source_type"], "4");
  EXPECT_EQ(run.meta["user_id"], "me");
  EXPECT_THAT(run.params,
              ElementsAre(Pair("empty", ""), Pair("lr", "0.1"), Pair("nested", "{'a': 1}")));
  EXPECT_EQ(run.tags["team"], "a");
  EXPECT_EQ(run.tags["mlflow.runName"], "it's \"first\"");
  EXPECT_EQ(run.tags["mlflow.note.content"], "says\nmuch");
  EXPECT_EQ(run.tags["mlflow.user"], "me");
  ASSERT_THAT(run.metrics["loss"], SizeIs(2));
  EXPECT_EQ(run.metrics["loss"][0].timestamp, 1000000);
  EXPECT_EQ(run.metrics["loss"][0].value, 0.5);
  EXPECT_EQ(run.metrics["loss"][0].step, 1);
  EXPECT_EQ(run.metrics["loss"][1].timestamp, 1001000);
  EXPECT_TRUE(std::isnan(run.metrics["loss"][1].value));
  EXPECT_EQ(run.metrics["ok"].at(0).value, 1);
  EXPECT_EQ(run.metrics["big"].at(0).value, HUGE_VAL);
  EXPECT_EQ(run.metrics["count"].at(0).value, 4);
  EXPECT_EQ(run.metrics["train/acc"].at(0).value, 1e-5);
  EXPECT_EQ(disk_.list("/sim/logs/mlruns/" + folder + "/artifacts/figures").value(),
            std::vector<std::string>{"f.png"});
}

TEST_F(MlflowFileStoreTest, ArtifactsMayBeInAnotherFolder) {
  const auto tracker = started({{"logging_dir", "file:///sim/my%20artifacts"}});
  tracker->log_table("t", {.columns = {"a"}, .rows = {{1}}}, {});
  tracker->finish();
  const std::vector<std::string> runs = disk_.list("/sim/my artifacts").value();
  ASSERT_THAT(runs, SizeIs(1));
  EXPECT_TRUE(
      exists(disk_, "/sim/my artifacts/" + runs[0] + "/artifacts/tables/t_step_0.json").value());
}

TEST_F(MlflowFileStoreTest, WhatWasFlushedIsThereIfNothingFollows) {
  const auto tracker = started();
  tracker->log({{"loss", 1}}, world_.step(1));
  tracker->flush();
  tracker->log({{"loss", 2}}, world_.step(2));
  // Killed here.
  ReadRun run = Reader(disk_).run(only_run());
  EXPECT_THAT(run.metrics["loss"], SizeIs(1));
  EXPECT_EQ(run.meta["status"], "1");
  EXPECT_EQ(run.meta["end_time"], "null");
}

TEST_F(MlflowFileStoreTest, GoesOnWithARun) {
  const auto first = started();
  first->store_init_configuration({{"lr", 0.1}});
  first->log({{"loss", 1}}, world_.step(1));
  first->finish();
  const std::string folder = only_run();
  // As a process that was killed in the middle of a line leaves it.
  const std::string path = "/sim/logs/mlruns/" + folder + "/metrics/loss";
  ASSERT_TRUE(write_file(disk_, path, read_file(disk_, path).value() + "1000000 0.").ok());

  const auto second = started({{"run_id", folder.substr(folder.find('/') + 1)}});
  EXPECT_EQ(Reader(disk_).meta(folder)["status"], "1");
  EXPECT_EQ(Reader(disk_).meta(folder)["end_time"], "null");
  second->store_init_configuration({{"lr", 0.1}, {"epochs", 3}});
  second->log({{"loss", 2}, {"new", 3}}, world_.step(2));
  second->finish();
  ReadRun run = Reader(disk_).run(only_run());
  ASSERT_THAT(run.metrics["loss"], SizeIs(2));
  EXPECT_EQ(run.metrics["loss"][1].step, 2);
  EXPECT_THAT(run.metrics["new"], SizeIs(1));
  EXPECT_EQ(run.params["epochs"], "3");
  EXPECT_EQ(run.meta["status"], "3");
  EXPECT_THAT(world_.warnings, IsEmpty());

  world_.environment.set("MLFLOW_RUN_ID", "missing");
  MlflowTracker third(world_.setup());
  EXPECT_THROW(third.start(), std::runtime_error);
  world_.environment.set("MLFLOW_RUN_ID", "../0");
  MlflowTracker fourth(world_.setup());
  EXPECT_THROW(fourth.start(), std::runtime_error);
}

TEST_F(MlflowFileStoreTest, AParamThatChangesIsRefusedAndTheRestIsKept) {
  const auto tracker = started();
  tracker->store_init_configuration({{"lr", 0.1}});
  tracker->store_init_configuration({{"lr", 0.2}, {"epochs", 3}});
  tracker->log({{"loss", 1}}, world_.step(1));
  EXPECT_THROW(tracker->flush(), std::runtime_error);
  ReadRun run = Reader(disk_).run(only_run());
  EXPECT_THAT(run.params, ElementsAre(Pair("epochs", "3"), Pair("lr", "0.1")));
  EXPECT_THAT(run.metrics, SizeIs(1));
  tracker->finish();
  EXPECT_THAT(world_.warnings, ElementsAre(HasSubstr("0 metrics and 1 params")));
}

TEST_F(MlflowFileStoreTest, TwoRunsOfAnExperimentDoNotMeet) {
  auto setup = world_.setup();
  MlflowTracker one(setup);
  one.start();
  setup.random_bits = 18;
  MlflowTracker other(setup);
  other.start();
  EXPECT_THAT(Reader(disk_).runs(experiment()), SizeIs(2));
  EXPECT_THAT(Reader(disk_).experiments(), SizeIs(2));
}

TEST_F(MlflowFileStoreTest, FindsExperimentsThatOthersMade) {
  ASSERT_TRUE(write_file(disk_, "/sim/logs/mlruns/41/meta.yaml",
                         "name: digits\nlifecycle_stage: deleted\nexperiment_id: '41'\n")
                  .ok());
  ASSERT_TRUE(write_file(disk_, "/sim/logs/mlruns/42/meta.yaml",
                         "artifact_location: /sim/elsewhere\nname: 'digits'\n"
                         "lifecycle_stage: active\n")
                  .ok());
  ASSERT_TRUE(write_file(disk_, "/sim/logs/mlruns/43/meta.yaml", "[broken: {").ok());
  ASSERT_TRUE(write_file(disk_, "/sim/logs/mlruns/44/meta.yaml", "").ok());
  const auto tracker = started();
  const std::vector<std::string> runs = Reader(disk_).runs("42");
  ASSERT_THAT(runs, SizeIs(1));
  tracker->log_table("t", {.columns = {"a"}, .rows = {{1}}}, {});
  tracker->finish();
  EXPECT_TRUE(
      exists(disk_, "/sim/elsewhere/" + runs[0].substr(3) + "/artifacts/tables/t_step_0.json")
          .value());
}

TEST_F(MlflowFileStoreTest, NamesCannotLeaveTheFolder) {
  const auto tracker = started();
  tracker->log({{"../../x", 1}, {"ok", 1}}, world_.step(1));
  EXPECT_THROW(tracker->log_figure({.height = 1, .width = 1, .channels = 1, .pixels = {0}}, "../f"),
               std::invalid_argument);
  tracker->store_init_configuration({{"/etc/x", 1}, {"fine", 2}});
  tracker->finish();
  ReadRun run = Reader(disk_).run(only_run());
  EXPECT_THAT(run.metrics, SizeIs(1));
  EXPECT_THAT(run.params, ElementsAre(Pair("fine", "2")));
  EXPECT_THAT(world_.warnings.back(), HasSubstr("1 metrics and 1 params"));
}

TEST_F(MlflowFileStoreTest, TagsOfArgumentsCannotLeaveTheFolderEither) {
  const std::string umlaut = "ä";  // a character in 2 bytes
  std::string text;
  for (int i = 0; i < 6000; ++i) text += umlaut;
  const TrackerDict tags = {{"../../../x", "v"}, {"ok", "v"}, {"long", text}};
  const auto first = started({{"tags", tags}});
  first->finish();
  EXPECT_FALSE(exists(disk_, "/sim/logs/x").value());
  EXPECT_FALSE(exists(disk_, "/sim/logs/mlruns/x").value());
  const std::string folder = only_run();
  ReadRun run = Reader(disk_).run(folder);
  EXPECT_EQ(run.tags["ok"], "v");
  EXPECT_EQ(run.tags["long"].size(), 5000 * umlaut.size());
  EXPECT_THAT(world_.warnings,
              ElementsAre(HasSubstr("tag \"../../../x\" is dropped"), HasSubstr("is cut"),
                          HasSubstr("0 metrics and 1 params")));

  const auto second =
      started({{"run_id", folder.substr(folder.find('/') + 1)}, {"tags", {{"../../y", "v"}}}});
  second->finish();
  EXPECT_FALSE(exists(disk_, "/sim/logs/mlruns/" + experiment() + "/y").value());
  EXPECT_THAT(world_.warnings.back(), HasSubstr("0 metrics and 1 params"));
}

TEST_F(MlflowFileStoreTest, ANameThatIsAnothersFolderIsRefusedAlone) {
  const auto tracker = started({{"tags", {{"team", "a"}, {"team/lead", "b"}, {"site", "c"}}}});
  tracker->store_init_configuration({{"model", 1}, {"model/depth", 2}, {"lr", 3}});
  for (int step = 0; step < 3; ++step) {
    tracker->log({{"loss", 1}, {"loss/val", 2}, {"ok", 3}}, world_.step(step));
  }
  EXPECT_THROW(tracker->flush(), std::runtime_error);
  tracker->log({{"ok", 3}}, world_.step(3));
  tracker->finish();
  ReadRun run = Reader(disk_).run(only_run());
  EXPECT_THAT(run.metrics, SizeIs(2));
  EXPECT_THAT(run.metrics["loss"], SizeIs(3));
  EXPECT_THAT(run.metrics["ok"], SizeIs(4));
  EXPECT_THAT(run.params, ElementsAre(Pair("lr", "3"), Pair("model", "1")));
  EXPECT_EQ(run.tags["team"], "a");
  EXPECT_EQ(run.tags["site"], "c");
  EXPECT_FALSE(run.tags.contains("team/lead"));
  EXPECT_EQ(run.meta["status"], "3");
  EXPECT_THAT(world_.warnings, ElementsAre(HasSubstr("3 metrics and 2 params")));
}

TEST_F(MlflowFileStoreTest, NamesMayHaveLettersOfOtherScripts) {
  const auto tracker = started();
  for (const char* const name : {"Verlust/größe", "потеря", "損失", "손실", "ロス", "λ 1"}) {
    tracker->log({{name, 1}}, world_.step(1));
  }
  for (const char* const name : {"💥", "a\xff", "a\xc3", "\xe0\x83\xa9", "a×b", "a–b"}) {
    tracker->log({{name, 1}}, world_.step(1));
  }
  tracker->finish();
  EXPECT_THAT(Reader(disk_).run(only_run()).metrics, SizeIs(6));
  EXPECT_THAT(world_.warnings.back(), HasSubstr("6 metrics and 0 params"));
}

TEST_F(MlflowFileStoreTest, MoreMetricsThanFilesThatMayBeOpen) {
  const auto tracker = started();
  for (int step = 0; step < 3; ++step) {
    TrackerDict values;
    for (int i = 0; i < 450; ++i) values.emplace_back(absl::StrCat("m", i), i);
    tracker->log(values, world_.step(step));
    tracker->flush();
  }
  tracker->finish();
  ReadRun run = Reader(disk_).run(only_run());
  EXPECT_THAT(run.metrics, SizeIs(450));
  for (const auto& [name, values] : run.metrics) {
    ASSERT_THAT(values, SizeIs(3)) << name;
    EXPECT_EQ(values[2].step, 2);
  }
  EXPECT_THAT(world_.warnings, IsEmpty());
}

TEST_F(MlflowFileStoreTest, MetricsWithoutAnOpenFileAreWrittenOnceAMinute) {
  const auto tracker = started();
  const auto log = [&](int step) {
    TrackerDict values;
    for (int i = 0; i < 250; ++i) values.emplace_back(absl::StrCat("m", 1000 + i), step);
    tracker->log(values, world_.step(step));
  };
  const auto count = [&](const char* name) {
    return Reader(disk_).run(only_run()).metrics[name].size();
  };
  for (int step = 0; step < 4; ++step) {
    log(step);
    tracker->flush();
    world_.now += absl::Seconds(25);
  }
  EXPECT_EQ(count("m1000"), 4u);
  EXPECT_EQ(count("m1249"), 4u) << "in steps 0 and 3";
  log(4);
  tracker->flush();
  EXPECT_EQ(count("m1249"), 4u);
  tracker->abandon();
  EXPECT_EQ(count("m1249"), 5u);
  EXPECT_THAT(world_.warnings, IsEmpty());
}

TEST_F(MlflowFileStoreTest, AFinishedRunOutlivesTheMachine) {
  const auto tracker = started();
  tracker->log({{"loss", 1}, {"a/b", 2}}, world_.step(1));
  tracker->finish();
  disk_.crash(simulator::Unsynced::kLost);
  ReadRun run = Reader(disk_).run(only_run());
  EXPECT_THAT(run.metrics["loss"], SizeIs(1));
  EXPECT_THAT(run.metrics["a/b"], SizeIs(1));
  EXPECT_EQ(run.meta["status"], "3");
}

class LargeDiskTest : public MlflowFileStoreTest {
 protected:
  static constexpr int kCapacity = 200000;
  LargeDiskTest() : MlflowFileStoreTest({.capacity = kCapacity}) {}
};

TEST_F(LargeDiskTest, MetricsWithoutAnOpenFileWaitForRoomToo) {
  const auto tracker = started();
  TrackerDict values;
  for (int i = 0; i < 250; ++i) values.emplace_back(absl::StrCat("m", 1000 + i), i);
  tracker->log(values, world_.step(0));
  tracker->flush();
  const std::string filler(kCapacity - static_cast<size_t>(disk_.used()) - 40, 'x');
  ASSERT_TRUE(write_file(disk_, "/sim/filler", filler).ok());
  world_.now += absl::Minutes(2);
  for (int step = 1; step < 4; ++step) {
    tracker->log({{"m1249", step}}, world_.step(step));
    error_of([&] { tracker->flush(); });
    world_.now += absl::Minutes(2);
  }
  ASSERT_TRUE(disk_.remove("/sim/filler").ok());
  tracker->flush();
  const ReadRun run = Reader(disk_).run(only_run());
  EXPECT_THAT(run.metrics.at("m1249"), SizeIs(4));
  tracker->finish();
  EXPECT_THAT(world_.warnings, IsEmpty());
  EXPECT_EQ(Reader(disk_).meta(only_run())["status"], "3");
}

class FullDiskTest : public MlflowFileStoreTest {
 protected:
  FullDiskTest() : MlflowFileStoreTest({.capacity = 4000}) {}
};

TEST_F(FullDiskTest, MetricsWaitForRoomAndComeOnce) {
  const auto tracker = started();
  const std::string filler(4000 - static_cast<size_t>(disk_.used()) - 40, 'x');
  ASSERT_TRUE(write_file(disk_, "/sim/filler", filler).ok());
  for (int step = 0; step < 20; ++step)
    tracker->log({{"loss", step}, {"acc", 1}}, world_.step(step));
  EXPECT_THROW(tracker->flush(), std::runtime_error);
  tracker->flush();  // not yet tried again, and said once
  world_.now += absl::Seconds(10);
  tracker->flush();
  EXPECT_THAT(world_.infos, IsEmpty());

  ASSERT_TRUE(disk_.remove("/sim/filler").ok());
  world_.now += absl::Minutes(1);
  tracker->log({{"loss", 20}}, world_.step(20));
  tracker->flush();
  EXPECT_THAT(world_.infos, SizeIs(1));
  tracker->finish();
  EXPECT_THAT(world_.warnings, IsEmpty());
  ReadRun run = Reader(disk_).run(only_run());
  EXPECT_THAT(run.metrics["acc"], SizeIs(20));
  ASSERT_THAT(run.metrics["loss"], SizeIs(21));
  for (int step = 0; step < 21; ++step) EXPECT_EQ(run.metrics["loss"][step].step, step);
}

TEST_F(FullDiskTest, ADiskThatStaysFullEndsWithACount) {
  const auto tracker = started();
  const std::string filler(4000 - static_cast<size_t>(disk_.used()) - 10, 'x');
  ASSERT_TRUE(write_file(disk_, "/sim/filler", filler).ok());
  for (int step = 0; step < 20; ++step) tracker->log({{"loss", step}}, world_.step(step));
  tracker->finish();
  ASSERT_THAT(world_.warnings, SizeIs(1));
  EXPECT_THAT(world_.warnings[0], HasSubstr("20 metrics and 0 params"));
  EXPECT_THAT(world_.warnings[0], HasSubstr("/sim/logs/mlruns"));
}

}  // namespace
}  // namespace accelerate::trackers
