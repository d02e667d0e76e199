#include "trackers/dvclive/dvclive_tracker.h"

#include <cmath>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "accelerate/tracking/tracker_queue.h"
#include "trackers/testing/png_reader.h"
#include "trackers/testing/tracker_world.h"

namespace accelerate::trackers {
namespace {

using nlohmann::json;
using simulator::Unsynced;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kFolder[] = "/sim/w/dvclive";

TrackerDict here(TrackerDict more = {}) {
  TrackerDict kwargs{{"dir", kFolder}, {"dvcyaml", "/sim/w/dvc.yaml"}};
  kwargs.insert(kwargs.end(), more.begin(), more.end());
  return kwargs;
}

std::string in(const std::string& name) { return join_path(kFolder, name); }

// The last column of a metric's file.
std::vector<std::string> column(TrackerWorld& world, const std::string& name) {
  std::vector<std::string> values;
  std::istringstream text(world.file(in("plots/metrics/" + name + ".tsv")));
  std::string line;
  std::getline(text, line);
  while (std::getline(text, line)) {
    if (!line.empty()) values.push_back(line.substr(line.rfind('\t') + 1));
  }
  return values;
}

TEST(DvcliveTrackerTest, WritesWhatDvcReads) {
  TrackerWorld world;
  const auto tracker = make_dvclive_tracker(world.setup(here()));
  tracker->start();
  tracker->store_init_configuration({{"lr", 0.1}, {"net", {{"sizes", TrackerList{1, 2}}}}});
  tracker->log({{"train/loss", 0.5}, {"acc", 1}, {"best", true}}, world.step(3));
  tracker->log({{"train/loss", 0.25}, {"nan", std::nan("")}}, world.step());
  tracker->log({{"nan", -std::numeric_limits<double>::infinity()}}, world.step(10));
  tracker->flush();
  EXPECT_EQ(world.file(in("plots/metrics/train/loss.tsv")), "step\tloss\n3\t0.5\n4\t0.25\n");
  EXPECT_EQ(world.file(in("plots/metrics/acc.tsv")), "step\tacc\n3\t1\n");
  EXPECT_EQ(world.file(in("plots/metrics/best.tsv")), "step\tbest\n3\tTrue\n");
  EXPECT_EQ(world.file(in("plots/metrics/nan.tsv")), "step\tnan\n4\tnan\n10\t-inf\n");
  EXPECT_EQ(json::parse(world.file(in("metrics.json"))),
            json::parse(R"({"train": {"loss": 0.25}, "acc": 1, "best": true, "nan": "-inf",
                            "step": 10})"));
  EXPECT_EQ(world.file(in("params.yaml")),
            "# Of the dvclive tracker, which replaces this file.\nlr: 0.1\nnet:\n  sizes:\n  - 1\n "
            " - 2\n");
  EXPECT_EQ(world.file("/sim/w/dvc.yaml"),
            "# Of the dvclive tracker, which replaces this file.\n"
            "metrics:\n- dvclive/metrics.json\n"
            "params:\n- dvclive/params.yaml\n"
            "plots:\n- dvclive/plots/metrics:\n    x: step\n");
  tracker->finish();
  EXPECT_THAT(column(world, "train/loss"), ElementsAre("0.5", "0.25"));
  EXPECT_THAT(world.warnings, IsEmpty());
}

TEST(DvcliveTrackerTest, SaysOnceWhatItDrops) {
  TrackerWorld world;
  const auto tracker = make_dvclive_tracker(world.setup(here()));
  tracker->start();
  for (int i = 0; i < 3; ++i) tracker->log({{"text", "1.5"}, {"a", i}}, world.step(i));
  tracker->finish();
  EXPECT_THAT(world.warnings,
              ElementsAre("Accelerator attempted to log a value of \"1.5\" of type <class 'str'> "
                          "for key \"text\" as a scalar. This invocation of DVCLive's "
                          "Live.log_metric() is incorrect so we dropped this attribute."));
  EXPECT_THAT(column(world, "a"), ElementsAre("0", "1", "2"));
}

TEST(DvcliveTrackerTest, SaysNoSecretsAndNotEachValue) {
  TrackerWorld world;
  const auto tracker = make_dvclive_tracker(world.setup(here()));
  tracker->start();
  for (const char* const value : {"hf_abc", "hf_def"}) {
    tracker->log({{"hub_token", value}, {"text", value}}, world.step());
  }
  EXPECT_THAT(world.warnings, ElementsAre(HasSubstr("value of \"***\""), HasSubstr("hf_abc")));
}

TEST(DvcliveTrackerTest, TimestampsAndSummariesOnly) {
  TrackerWorld world;
  const auto tracker = make_dvclive_tracker(world.setup(here()));
  tracker->start();
  tracker->log({{"loss", 1}}, world.step(0, {{"timestamp", true}}));
  tracker->log({{"loss", 2}}, world.step(1));
  tracker->log({{"quiet", 2}}, world.step(2, {{"plot", false}}));
  tracker->finish();
  EXPECT_EQ(world.file(in("plots/metrics/loss.tsv")),
            "timestamp\tstep\tloss\n5000\t0\t1\n5000\t1\t2\n");
  EXPECT_THAT(world.file(in("plots/metrics/quiet.tsv")), HasSubstr("no"));
  EXPECT_EQ(json::parse(world.file(in("metrics.json"))).at("quiet"), 2);
}

TEST(DvcliveTrackerTest, OddNames) {
  TrackerWorld world;
  const auto tracker = make_dvclive_tracker(world.setup(here()));
  tracker->start();
  tracker->log({{"../up", 1}, {"a,\"b\"", 2}, {"\xc3\xa9/two\nlines", 3}, {"a", 4}, {"a/", 5}},
               world.step(0));
  tracker->finish();
  EXPECT_THAT(column(world, "%2E./up"), ElementsAre("1"));
  EXPECT_EQ(world.file(in("plots/metrics/a,\"b\".tsv")), "step\t\"a,\"\"b\"\"\"\n0\t2\n");
  EXPECT_EQ(world.file(in("plots/metrics/\xc3\xa9/two%0Alines.tsv")),
            "step\t\"two\nlines\"\n0\t3\n");
  EXPECT_THAT(column(world, "a"), ElementsAre("4", "5"));
}

TEST(DvcliveTrackerTest, ANameAlsoUsedAsAFolder) {
  TrackerWorld world;
  const auto tracker = make_dvclive_tracker(world.setup(here()));
  tracker->start();
  tracker->log({{"loss", 1}, {"loss/train", 2}}, world.step(0));
  tracker->finish();
  EXPECT_THAT(column(world, "loss"), ElementsAre("1"));
  EXPECT_THAT(column(world, "loss/train"), ElementsAre("2"));
  EXPECT_EQ(json::parse(world.file(in("metrics.json"))).at("loss").at("train"), 2);
}

TEST(DvcliveTrackerTest, ImagesOfSteps) {
  TrackerWorld world;
  const auto tracker = make_dvclive_tracker(world.setup(here()));
  tracker->start();
  const TrackerImage image{.height = 1, .width = 1, .channels = 3, .pixels = {1, 2, 3}};
  tracker->log({{"loss", 1}}, world.step(7));
  tracker->log_images({{"one", {image}}, {"two", {image, image}}}, world.step(7));
  tracker->finish();
  EXPECT_EQ(decode_png(world.file(in("plots/images/one/7.png"))), image);
  EXPECT_EQ(decode_png(world.file(in("plots/images/two/1/7.png"))), image);
  EXPECT_THAT(world.file("/sim/w/dvc.yaml"), HasSubstr("- dvclive/plots/images\n"));
  // A resumed run, which logs none, still has those of before.
  const auto resumed = make_dvclive_tracker(world.setup(here({{"resume", true}})));
  resumed->start();
  resumed->log({{"loss", 1}}, world.step(8));
  resumed->finish();
  EXPECT_THAT(world.file("/sim/w/dvc.yaml"), HasSubstr("- dvclive/plots/images\n"));
}

TEST(DvcliveTrackerTest, ANewRunReplacesTheOldAndAResumedOneGoesOn) {
  TrackerWorld world;
  for (const bool resume : {false, true, false}) {
    const auto tracker = make_dvclive_tracker(world.setup(here({{"resume", resume}})));
    tracker->start();
    tracker->log({{"loss", 1}}, world.step());
    tracker->log({{resume ? "new" : "old", 2}, {"loss", 3}}, world.step());
    tracker->finish();
    if (!resume) {
      EXPECT_EQ(world.file(in("plots/metrics/loss.tsv")), "step\tloss\n0\t1\n1\t3\n");
      EXPECT_EQ(json::parse(world.file(in("metrics.json"))),
                json::parse(R"({"loss": 3, "old": 2, "step": 1})"));
    } else {
      EXPECT_EQ(world.file(in("plots/metrics/loss.tsv")), "step\tloss\n0\t1\n1\t3\n2\t1\n3\t3\n");
      EXPECT_EQ(json::parse(world.file(in("metrics.json"))),
                json::parse(R"({"loss": 3, "old": 2, "new": 2, "step": 3})"));
    }
  }
}

TEST(DvcliveTrackerTest, AResumedFileKeepsItsColumns) {
  TrackerWorld world;
  {
    const auto tracker = make_dvclive_tracker(world.setup(here()));
    tracker->start();
    tracker->log({{"loss", 1}}, world.step(5, {{"timestamp", true}}));
    tracker->finish();
  }
  world.environment.set("DVCLIVE_RESUME", "true");
  const auto tracker = make_dvclive_tracker(world.setup(here()));
  tracker->start();
  tracker->log({{"loss", 2}}, world.step());
  tracker->finish();
  EXPECT_EQ(world.file(in("plots/metrics/loss.tsv")),
            "timestamp\tstep\tloss\n5000\t5\t1\n5000\t6\t2\n");
}

TEST(DvcliveTrackerTest, ABrokenSummaryDoesNotStopAResume) {
  TrackerWorld world;
  ASSERT_TRUE(write_file(world.disk, in("metrics.json"), "{\"step\": 3").ok());
  const auto tracker = make_dvclive_tracker(world.setup(here({{"resume", true}})));
  tracker->start();
  tracker->log({{"loss", 1}}, world.step());
  tracker->finish();
  EXPECT_EQ(world.file(in("plots/metrics/loss.tsv")), "step\tloss\n0\t1\n");
  EXPECT_THAT(world.warnings, ElementsAre(HasSubstr("is not a JSON object")));
}

TEST(DvcliveTrackerTest, LeavesTheDvcYamlOfOthersAlone) {
  TrackerWorld world;
  const std::string theirs = "stages:\n  train:\n    cmd: ./train\n";
  ASSERT_TRUE(write_file(world.disk, "/sim/w/dvc.yaml", theirs).ok());
  const auto tracker = make_dvclive_tracker(world.setup(here()));
  tracker->start();
  tracker->log({{"loss", 1}}, world.step());
  tracker->flush();
  tracker->store_init_configuration({{"lr", 1}});
  tracker->finish();
  EXPECT_EQ(world.file("/sim/w/dvc.yaml"), theirs);
  EXPECT_THAT(world.warnings, ElementsAre(HasSubstr("- dvclive/metrics.json\n")));
}

TEST(DvcliveTrackerTest, InAFolderOfTheUsersTheirFilesStay) {
  TrackerWorld world;
  for (const char* const name : {"dvc.yaml", "params.yaml"}) {
    ASSERT_TRUE(write_file(world.disk, in(name), "of: theirs\n").ok());
  }
  for (const bool resume : {false, true}) {
    const auto tracker = make_dvclive_tracker(
        world.setup({{"dir", kFolder}, {"dvcyaml", in("dvc.yaml")}, {"resume", resume}}));
    tracker->start();
    tracker->store_init_configuration({{"lr", 1}});
    tracker->log({{"loss", 1}}, world.step());
    tracker->finish();
    EXPECT_EQ(world.file(in("dvc.yaml")), "of: theirs\n");
    EXPECT_EQ(world.file(in("params.yaml")), "of: theirs\n");
  }
  EXPECT_THAT(world.warnings, Contains(HasSubstr("the configuration is not kept")));
}

TEST(DvcliveTrackerTest, AResumeKeepsEarlierParams) {
  TrackerWorld world;
  const std::string mark = "# Of the dvclive tracker, which replaces this file.\n";
  const auto run = [&](bool resume, const TrackerDict& params) {
    const auto tracker = make_dvclive_tracker(world.setup(here({{"resume", resume}})));
    tracker->start();
    tracker->store_init_configuration(params);
    tracker->finish();
    return world.file(in("params.yaml"));
  };
  EXPECT_EQ(run(false, {}), mark + "{}\n");
  EXPECT_EQ(run(true, {{"a", 1}, {"ab", TrackerList{1, 2}}, {"net", {{"a", 3}}}}),
            mark + "a: 1\nab:\n- 1\n- 2\nnet:\n  a: 3\n");
  EXPECT_EQ(run(true, {{"a", 2}, {"net", 5}}), mark + "ab:\n- 1\n- 2\na: 2\nnet: 5\n");
  EXPECT_EQ(run(true, {}), mark + "ab:\n- 1\n- 2\na: 2\nnet: 5\n");
  EXPECT_EQ(run(false, {{"b", 1}}), mark + "b: 1\n");
}

TEST(DvcliveTrackerTest, RanksHaveFoldersOfTheirOwn) {
  TrackerWorld world;
  world.services.rank = 2;
  const auto tracker = make_dvclive_tracker(world.setup(here()));
  tracker->start();
  tracker->log({{"loss", 1}}, world.step());
  tracker->finish();
  EXPECT_EQ(world.file(in("rank_2/plots/metrics/loss.tsv")), "step\tloss\n0\t1\n");
  EXPECT_THAT(world.file(in("rank_2/dvc.yaml")), HasSubstr("- metrics.json\n"));
  EXPECT_THAT(world.disk.list("/sim/w").value(), ElementsAre("dvclive"));
}

TEST(DvcliveTrackerTest, NoDvcYamlWhereNoneIsWanted) {
  TrackerWorld world;
  const auto tracker =
      make_dvclive_tracker(world.setup({{"dir", kFolder}, {"dvcyaml", std::nullopt}}));
  tracker->start();
  tracker->log({{"loss", 1}}, world.step());
  tracker->finish();
  EXPECT_THAT(world.disk.list("/sim/w").value(), ElementsAre("dvclive"));
}

TEST(DvcliveTrackerTest, AFullDiskGoesOnWhenThereIsRoom) {
  TrackerWorld world({.capacity = 1500});
  ASSERT_TRUE(write_file(world.disk, "/sim/other", std::string(1000, '-')).ok());
  const auto tracker = make_dvclive_tracker(world.setup(here()));
  tracker->start();
  std::vector<std::string> all;
  for (int i = 0; i < 200; ++i) {
    tracker->log({{"a", i}, {"b", i}}, world.step(i));
    all.push_back(std::to_string(i));
    error_of([&] { tracker->flush(); });
    const std::vector<std::string> read = column(world, "a");
    EXPECT_TRUE(std::equal(read.begin(), read.end(), all.begin()));
    const std::string summary = world.file(in("metrics.json"));
    EXPECT_FALSE(json::parse(summary, nullptr, false).is_discarded()) << summary;
  }
  EXPECT_NE(error_of([&] { tracker->flush(); }), "");
  EXPECT_LT(column(world, "a").size(), all.size());
  ASSERT_TRUE(world.disk.remove("/sim/other").ok());
  EXPECT_NE(error_of([&] { tracker->flush(); }), "");  // still too little for all
  EXPECT_GT(column(world, "a").size(), 50u);
}

TEST(DvcliveTrackerTest, AMachineThatDiedLeavesReadableFiles) {
  for (uint64_t seed = 0; seed < 30; ++seed) {
    TrackerWorld world;
    {
      const auto tracker = make_dvclive_tracker(world.setup(here()));
      tracker->start();
      for (int i = 0; i < 100; ++i) tracker->log({{"a", i}}, world.step(i));
      tracker->flush();
      world.disk.crash(Unsynced::kDrawn, simulator::DeterministicRandom(seed));
    }
    EXPECT_EQ(json::parse(world.file(in("metrics.json"))).at("a"), 99);
    const auto tracker = make_dvclive_tracker(world.setup(here({{"resume", true}})));
    tracker->start();
    tracker->log({{"a", -1}}, world.step());
    tracker->finish();
    EXPECT_EQ(column(world, "a").back(), "-1");
  }
}

TEST(DvcliveTrackerTest, MoreMetricsThanFilesAreKeptOpen) {
  TrackerWorld world;
  const auto tracker = make_dvclive_tracker(world.setup(here()));
  tracker->start();
  for (int step = 0; step < 3; ++step) {
    TrackerDict values;
    for (int i = 0; i < 250; ++i) values.emplace_back("m" + std::to_string(1000 + i), step);
    tracker->log(values, world.step(step));
    tracker->flush();
    world.now += absl::Seconds(40);
  }
  EXPECT_THAT(column(world, "m1000"), ElementsAre("0", "1", "2"));
  EXPECT_THAT(column(world, "m1249"), ElementsAre("0", "1", "2"));
  tracker->log({{"m1249", 3}}, world.step(3));
  tracker->flush();
  EXPECT_EQ(column(world, "m1249").size(), 3u);
  tracker->finish();
  EXPECT_THAT(column(world, "m1249"), ElementsAre("0", "1", "2", "3"));
}

TEST(DvcliveTrackerTest, NothingIsHeldBackWhenThereIsNoLaterFlush) {
  for (const bool by_signal : {true, false}) {
    TrackerWorld world;
    const auto tracker = make_dvclive_tracker(world.setup(here()));
    tracker->start();
    for (int step = 0; step < 2; ++step) {
      TrackerDict values;
      for (int i = 0; i < 250; ++i) values.emplace_back("m" + std::to_string(1000 + i), step);
      tracker->log(values, world.step(step));
      tracker->flush();
    }
    EXPECT_THAT(column(world, "m1249"), ElementsAre("0"));
    if (by_signal) {
      set_process_is_ending(true);
      tracker->flush();
      set_process_is_ending(false);
    } else {
      tracker->abandon();
    }
    EXPECT_THAT(column(world, "m1249"), ElementsAre("0", "1"));
  }
}

TEST(DvcliveTrackerTest, RefusesWhatLiveDoesNotHave) {
  TrackerWorld world;
  EXPECT_THAT(error_of([&] { make_dvclive_tracker(world.setup({{"folder", "x"}})); }),
              HasSubstr("`folder` in its init_kwargs is not known; it knows dir, resume, dvcyaml"));
  EXPECT_THAT(error_of([&] { make_dvclive_tracker(world.setup({{"dvcyaml", "x.yaml"}})); }),
              HasSubstr("a file named dvc.yaml"));
  EXPECT_THAT(error_of([&] { make_dvclive_tracker(world.setup({{"resume", "yes"}})); }),
              HasSubstr("True or False"));
  const auto tracker =
      make_dvclive_tracker(world.setup(here({{"save_dvc_exp", true}, {"report", "md"}})));
  tracker->start();
  EXPECT_THAT(world.warnings, ElementsAre(HasSubstr("save_dvc_exp, report")));
  EXPECT_THAT(error_of([&] { tracker->log({{"a", 1}}, world.step(0, {{"plots", true}})); }),
              HasSubstr("`plots` in its log_kwargs is not known"));
}

}  // namespace
}  // namespace accelerate::trackers
