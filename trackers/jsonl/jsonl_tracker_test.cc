#include "trackers/jsonl/jsonl_tracker.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "accelerate/platform/host_files.h"
#include "trackers/testing/png_reader.h"
#include "trackers/testing/tracker_world.h"

namespace accelerate::trackers {
namespace {

using nlohmann::ordered_json;
using simulator::Unsynced;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kLines[] = "/sim/logs/run/metrics.jsonl";

// The lines without the filler, each read by itself.
std::vector<ordered_json> lines(TrackerWorld& world, const std::string& path = kLines) {
  std::vector<ordered_json> result;
  std::istringstream text(world.file(path));
  for (std::string line; std::getline(text, line);) {
    if (line.empty()) continue;
    ordered_json object = ordered_json::parse(line);
    if (!object.empty()) result.push_back(object);
  }
  return result;
}

std::vector<double> values(TrackerWorld& world, const std::string& name) {
  std::vector<double> result;
  for (const ordered_json& line : lines(world)) {
    if (line.contains(name)) result.push_back(line.at(name).get<double>());
  }
  return result;
}

TEST(JsonlTrackerTest, WritesALineForEachCall) {
  TrackerWorld world;
  const auto tracker = make_jsonl_tracker(world.setup());
  tracker->start();
  tracker->log({{"loss", 0.5}, {"name", "a \"b\"\n,c"}, {"t/x", true}, {"none", std::nullopt}},
               world.step(3));
  world.now += absl::Milliseconds(250);
  tracker->log({{"lr", {{"head", 0.1}}}, {"nan", std::nan("")}, {"_step", 9}}, world.step());
  tracker->finish();
  EXPECT_EQ(world.file(kLines),
            R"({"_run":"19700101-000005-abcd","_step":3,"_timestamp":5.0,"loss":0.5,)"
            R"("name":"a \"b\"\n,c","t/x":true,"none":null})"
            "\n"
            R"({"_run":"19700101-000005-abcd","_step":null,"_timestamp":5.25,)"
            R"("lr":{"head":0.1},"nan":"NaN","__step":9})"
            "\n");
}

TEST(JsonlTrackerTest, IsReadableAfterEachFlush) {
  TrackerWorld world;
  const auto tracker = make_jsonl_tracker(world.setup());
  tracker->start();
  EXPECT_THAT(lines(world), IsEmpty());
  tracker->log({{"loss", 1}}, world.step(0));
  tracker->flush();
  EXPECT_THAT(values(world, "loss"), ElementsAre(1));
}

TEST(JsonlTrackerTest, ConfigurationIsNested) {
  TrackerWorld world;
  const auto tracker = make_jsonl_tracker(world.setup());
  tracker->start();
  tracker->store_init_configuration(
      {{"lr", 0.1}, {"net", {{"sizes", TrackerList{1, 2}}, {"act", "relu"}}}});
  EXPECT_EQ(ordered_json::parse(world.file("/sim/logs/run/config.json")),
            ordered_json::parse(R"({"lr": 0.1, "net": {"sizes": [1, 2], "act": "relu"}})"));
}

TEST(JsonlTrackerTest, ImagesAreFiles) {
  TrackerWorld world;
  const auto tracker = make_jsonl_tracker(world.setup({{"name", "first"}}));
  tracker->start();
  const TrackerImage red{.height = 1, .width = 2, .channels = 3, .pixels = {255, 0, 0, 1, 2, 3}};
  const TrackerImage grey{.height = 2, .width = 1, .channels = 1, .pixels = {7, 8}};
  tracker->log_images({{"in/../put", {red, grey}}, {"out", {grey}}}, world.step(4));
  tracker->log_images({{"out", {red}}}, world.step());
  tracker->finish();
  const auto read = lines(world);
  ASSERT_EQ(read.size(), 2u);
  EXPECT_EQ(read[0].at("_step"), 4);
  EXPECT_EQ(
      read[0].at("in/../put"),
      ordered_json(
          {{"_type", "images"},
           {"paths", {"media/first/in/%2E./put/4-0.png", "media/first/in/%2E./put/4-1.png"}}}));
  const auto image = [&](const ordered_json& line, const std::string& name, size_t index) {
    const std::string path = line.at(name).at("paths").at(index);
    return decode_png(world.file("/sim/logs/run/" + path));
  };
  EXPECT_EQ(image(read[0], "in/../put", 0), red);
  EXPECT_EQ(image(read[0], "in/../put", 1), grey);
  EXPECT_EQ(image(read[0], "out", 0), grey);
  EXPECT_EQ(image(read[1], "out", 0), red);
}

TEST(JsonlTrackerTest, TablesAndHistograms) {
  TrackerWorld world;
  const auto tracker = make_jsonl_tracker(world.setup());
  tracker->start();
  tracker->log_table("predictions", {.columns = {"text", "score"}, .rows = {{"a", 0.5}, {"b", 1}}},
                     world.step(1));
  tracker->log_histograms(
      {{"grad", TensorValue{.sizes = {3}, .dtype = "float32", .values = {0, 64, std::nan("")}}}},
      world.step(2));
  EXPECT_THAT(error_of([&] { tracker->log_histograms({{"x", "y"}}, world.step(2)); }),
              HasSubstr("`x` is not a tensor"));
  EXPECT_THAT(error_of([&] { tracker->log_histograms({{"token", "y"}}, world.step(2)); }),
              HasSubstr("`token` is not a tensor but ***"));
  tracker->finish();
  const auto read = lines(world);
  ASSERT_EQ(read.size(), 2u);
  EXPECT_EQ(read[0].at("predictions").at("columns"), ordered_json({"text", "score"}));
  EXPECT_EQ(read[0].at("predictions").at("rows").dump(), R"([["a",0.5],["b",1]])");
  const ordered_json& histogram = read[1].at("grad");
  EXPECT_EQ(histogram.at("edges").size(), 65u);
  EXPECT_EQ(histogram.at("counts").front(), 1);
  EXPECT_EQ(histogram.at("counts").back(), 1);
  EXPECT_EQ(histogram.at("nan"), 1);
}

TEST(JsonlTrackerTest, NamesOfItsOwnFieldsAreKeptApartInEveryCall) {
  const TensorValue tensor{.sizes = {2}, .dtype = "float32", .values = {0, 1}};
  const TrackerImage image{.height = 1, .width = 1, .channels = 1, .pixels = {7}};
  for (const char* name : {"_run", "_step", "_timestamp"}) {
    TrackerWorld world;
    const auto tracker = make_jsonl_tracker(world.setup({{"name", "a"}}));
    tracker->start();
    tracker->log({{name, 9}}, world.step(3));
    tracker->log_images({{name, {image}}}, world.step(3));
    tracker->log_table(name, {.columns = {"c"}, .rows = {{1}}}, world.step(3));
    tracker->log_histograms({{name, tensor}}, world.step(3));
    tracker->finish();
    const auto read = lines(world);
    ASSERT_EQ(read.size(), 4u);
    for (const ordered_json& line : read) {
      EXPECT_EQ(line.at("_run"), "a") << name;
      EXPECT_EQ(line.at("_step"), 3) << name;
      EXPECT_TRUE(line.at("_timestamp").is_number()) << name;
      EXPECT_TRUE(line.contains(std::string("_") + name)) << name;
    }
  }
}

TEST(JsonlTrackerTest, ALaterRunGoesOnAfterTheLastWholeLine) {
  TrackerWorld world;
  {
    const auto tracker = make_jsonl_tracker(world.setup());
    tracker->start();
    tracker->log({{"loss", 1}}, world.step(0));
    tracker->finish();
  }
  // As kill -9 may leave it.
  ASSERT_TRUE(write_file(world.disk, kLines, world.file(kLines) + "{\"_run\":\"x\",\"los").ok());
  world.now += absl::Hours(1);
  const auto tracker = make_jsonl_tracker(world.setup());
  tracker->start();
  tracker->log({{"loss", 2}}, world.step(0));
  tracker->finish();
  const auto read = lines(world);
  EXPECT_THAT(values(world, "loss"), ElementsAre(1, 2));
  EXPECT_NE(read.at(0).at("_run"), read.at(1).at("_run"));
}

TEST(JsonlTrackerTest, AFullDiskLosesNothingThatIsWrittenLater) {
  TrackerWorld world({.capacity = 2000});
  ASSERT_TRUE(write_file(world.disk, "/sim/other", std::string(1500, '-')).ok());
  const auto tracker = make_jsonl_tracker(world.setup());
  tracker->start();
  std::vector<double> all;
  for (int i = 0; i < 20; ++i) {
    tracker->log({{"loss", i}}, world.step(i));
    all.push_back(i);
    if (i % 3 == 0) error_of([&] { tracker->flush(); });
    const std::vector<double> read = values(world, "loss");  // all lines are whole
    EXPECT_TRUE(std::equal(read.begin(), read.end(), all.begin()));
  }
  EXPECT_LT(values(world, "loss").size(), 20u);
  EXPECT_GT(values(world, "loss").size(), 3u);
  EXPECT_THAT(error_of([&] { tracker->flush(); }), HasSubstr(kLines));
  ASSERT_TRUE(world.disk.remove("/sim/other").ok());
  tracker->finish();
  EXPECT_EQ(values(world, "loss"), all);
}

TEST(JsonlTrackerTest, ADiskThatStaysFullIsSaidToLoseLines) {
  TrackerWorld world({.capacity = 200});
  const auto tracker = make_jsonl_tracker(world.setup());
  tracker->start();
  for (int i = 0; i < 10; ++i) tracker->log({{"loss", i}}, world.step(i));
  EXPECT_THAT(error_of([&] { tracker->finish(); }), HasSubstr("8 records are lost"));
  EXPECT_THAT(values(world, "loss"), ElementsAre(0, 1));
}

TEST(JsonlTrackerTest, AMachineThatDiedLeavesWhatALaterRunReads) {
  for (uint64_t seed = 0; seed < 30; ++seed) {
    TrackerWorld world;
    {
      const auto tracker = make_jsonl_tracker(world.setup());
      tracker->start();
      tracker->log({{"loss", 0}}, world.step(0));
      tracker->finish();
    }
    {
      const auto tracker = make_jsonl_tracker(world.setup());
      tracker->start();
      for (int i = 0; i < 300; ++i) tracker->log({{"loss", i}}, world.step(i));
      tracker->flush();
      world.disk.crash(Unsynced::kDrawn, simulator::DeterministicRandom(seed));
    }
    const auto tracker = make_jsonl_tracker(world.setup());
    tracker->start();
    tracker->log({{"loss", -1}}, world.step(0));
    tracker->finish();
    const std::vector<double> read = values(world, "loss");
    EXPECT_EQ(read.front(), 0);
    EXPECT_EQ(read.back(), -1);
  }
}

TEST(JsonlTrackerTest, AKilledProcessLeavesWhatWasFlushed) {
  TrackerWorld world;
  HostFiles files;
  const TrackerServices services{.files = files, .environment = world.environment};
  const TemporaryFolder temporary;
  const std::string folder = temporary.path();
  const pid_t child = ::fork();
  if (child == 0) {
    const auto tracker = make_jsonl_tracker(
        {.project_name = "run", .logging_dir = folder, .time = world.now, .services = services});
    tracker->start();
    for (int i = 0; i < 1000; ++i) tracker->log({{"loss", i}}, world.step(i));
    tracker->flush();
    tracker->log({{"loss", -1}}, world.step());
    ::raise(SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  std::istringstream text(read_file(files, folder + "/run/metrics.jsonl").value());
  int count = 0;
  for (std::string line; std::getline(text, line); ++count) {
    EXPECT_EQ(ordered_json::parse(line).at("loss"), count);
  }
  EXPECT_EQ(count, 1000);
}

TEST(JsonlTrackerTest, WritesWhereItIsTold) {
  TrackerWorld world;
  const auto tracker = make_jsonl_tracker(world.setup({{"dir", "/sim/here"}, {"name", "a"}}));
  tracker->start();
  tracker->log({{"x", 1}}, world.step());
  tracker->finish();
  EXPECT_EQ(lines(world, "/sim/here/metrics.jsonl").at(0).at("_run"), "a");
}

TEST(JsonlTrackerTest, RefusesWhatItDoesNotKnow) {
  TrackerWorld world;
  EXPECT_THAT(error_of([&] { make_jsonl_tracker(world.setup({{"directory", "x"}})); }),
              HasSubstr("`directory` in its init_kwargs is not known; it knows dir, name"));
  EXPECT_THAT(error_of([&] { make_jsonl_tracker(world.setup({{"dir", 3}})); }),
              HasSubstr("must be a text, not 3 of type int"));
  const auto tracker = make_jsonl_tracker(world.setup());
  tracker->start();
  EXPECT_THAT(error_of([&] { tracker->log({{"x", 1}}, world.step(1, {{"commit", true}})); }),
              HasSubstr("`commit`"));
  tracker->finish();
  EXPECT_THAT(values(world, "x"), ElementsAre(1));
}

TEST(JsonlTrackerTest, ProjectsOfOddNamesStayInTheLoggingFolder) {
  TrackerWorld world;
  TrackerSetup setup = world.setup();
  setup.project_name = "../a/b";
  const auto tracker = make_jsonl_tracker(setup);
  tracker->start();
  tracker->log({{"x", 1}}, world.step());
  tracker->finish();
  EXPECT_EQ(lines(world, "/sim/logs/%2E./a/b/metrics.jsonl").size(), 1u);
}

TEST(JsonlTrackerTest, RanksHaveFoldersOfTheirOwn) {
  TrackerWorld world;
  world.services.rank = 3;
  const auto tracker = make_jsonl_tracker(world.setup({{"dir", "/sim/x"}}));
  tracker->start();
  tracker->log({{"loss", 1}}, world.step());
  tracker->finish();
  EXPECT_NE(world.file("/sim/x/rank_3/metrics.jsonl").find("loss"), std::string::npos);
}

}  // namespace
}  // namespace accelerate::trackers
