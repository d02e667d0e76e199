#include "trackers/wandb/wandb_tracker.h"

#include <cmath>
#include <csignal>
#include <cstdlib>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "accelerate/base/checksum.h"
#include "accelerate/platform/host_files.h"
#include "accelerate/tracking/tracker.h"
#include "simulator/disk/sim_disk.h"
#include "trackers/testing/png_reader.h"
#include "trackers/testing/wandb_log_reader.h"

namespace accelerate::trackers {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

constexpr char kFolder[] = "/sim/wandb/offline-run-20260102_030405-abcd1234";

class WandbTrackerTest : public ::testing::Test {
 protected:
  WandbTrackerTest() {
    for (const char* name :
         {"WANDB_MODE", "WANDB_DISABLED", "WANDB_PROJECT", "WANDB_ENTITY", "WANDB_NAME",
          "WANDB_RUN_ID", "WANDB_RUN_GROUP", "WANDB_JOB_TYPE", "WANDB_TAGS", "WANDB_NOTES"}) {
      environment_.unset(name);
    }
    environment_.set("WANDB_DIR", "/sim");
  }

  std::unique_ptr<GeneralTracker> make(TrackerDict init_kwargs = {{"id", "abcd1234"}}) {
    return TrackerRegistry::linked().find("wandb")->tracker({.project_name = "project",
                                                             .init_kwargs = std::move(init_kwargs),
                                                             .random_bits = 12345,
                                                             .time = time_,
                                                             .services = services_});
  }
  std::unique_ptr<GeneralTracker> started(TrackerDict init_kwargs = {{"id", "abcd1234"}}) {
    auto tracker = make(std::move(init_kwargs));
    tracker->start();
    return tracker;
  }

  TrackerStep at(std::optional<int64_t> step, TrackerDict kwargs = {}) {
    time_ += absl::Seconds(1);
    return {.step = step, .time = time_, .kwargs = std::move(kwargs)};
  }

  std::string file(const std::string& name) {
    return read_file(disk_, absl::StrCat(kFolder, "/", name)).value();
  }
  WireRun run() { return read_run(file("run-abcd1234.wandb")); }

  // The values of one step, without the stamps that every step has.
  static WireItems values(const WireHistory& history) {
    WireItems items = history.items;
    for (const char* stamp : {"_step", "_runtime", "_timestamp"}) {
      EXPECT_EQ(items.erase(stamp), 1u) << stamp;
    }
    return items;
  }

  simulator::SimDisk disk_;
  Environment environment_;
  std::vector<std::string> warnings_;
  std::vector<std::string> infos_;
  absl::Time time_ = absl::FromCivil(absl::CivilSecond(2026, 1, 2, 3, 4, 5), absl::UTCTimeZone());
  TrackerServices services_{.files = disk_,
                            .environment = environment_,
                            .now = [this] { return time_; },
                            .warn = [this](std::string_view text) { warnings_.emplace_back(text); },
                            .info = [this](std::string_view text) { infos_.emplace_back(text); }};
};

TEST_F(WandbTrackerTest, WritesAWholeRun) {
  auto tracker = started({{"id", "abcd1234"},
                          {"entity", "team"},
                          {"name", "first"},
                          {"group", "g"},
                          {"job_type", "train"},
                          {"tags", TrackerList{"a", "b"}},
                          {"notes", "n"},
                          {"config", {{"seed", 1}}}});
  tracker->store_init_configuration({{"lr", 0.1}, {"model", {{"layers", 2}, {"name", "x\"y"}}}});
  tracker->log({{"loss", 0.5}, {"eval", {{"acc", 1}, {"f1", {{"micro", 0.25}}}}}}, at(0));
  tracker->log({{"loss", 0.25}}, at(1));
  tracker->finish();

  const WireRun written = run();
  EXPECT_EQ(only(written.run, 1).bytes, "abcd1234");
  EXPECT_EQ(only(written.run, 2).bytes, "team");
  EXPECT_EQ(only(written.run, 3).bytes, "project");
  EXPECT_EQ(only(written.run, 6).bytes, "g");
  EXPECT_EQ(only(written.run, 7).bytes, "train");
  EXPECT_EQ(only(written.run, 8).bytes, "first");
  EXPECT_EQ(only(written.run, 9).bytes, "n");
  EXPECT_EQ(written.run.count(10), 2u);
  EXPECT_EQ(only(parse_message(only(written.run, 17).bytes), 1).number, 1767323045u);
  EXPECT_THAT(written.config,
              UnorderedElementsAre(Pair("seed", "1"), Pair("lr", "0.1"),
                                   Pair("model", "{\"layers\": 2, \"name\": \"x\\\"y\"}")));
  ASSERT_EQ(written.history.size(), 2u);
  EXPECT_EQ(written.history[0].step, 0);
  EXPECT_THAT(values(written.history[0]),
              UnorderedElementsAre(Pair("loss", "0.5"), Pair("eval.acc", "1"),
                                   Pair("eval.f1.micro", "0.25")));
  EXPECT_EQ(written.history[1].step, 1);
  EXPECT_EQ(written.history[1].items.at("_step"), "1");
  EXPECT_EQ(written.history[1].items.at("_runtime"), "2.0");
  EXPECT_EQ(written.history[1].items.at("_timestamp"), "1767323047.0");
  EXPECT_EQ(written.summary.at("loss"), "0.25");
  EXPECT_EQ(written.summary.at("eval.acc"), "1");
  EXPECT_EQ(written.summary.at("_step"), "1");
  // Header, run, ... and the exit, the end, the footer.
  EXPECT_EQ(written.kinds.front(), 21);
  EXPECT_EQ(written.kinds[1], 17);
  EXPECT_THAT(std::vector<int>(written.kinds.end() - 3, written.kinds.end()),
              ElementsAre(18, 20, 22));

  EXPECT_EQ(file("files/config.yaml"),
            "wandb_version: 1\n\n\"seed\":\n  value: 1\n\"lr\":\n  value: 0.1\n\"model\":\n"
            "  value: {\"layers\": 2, \"name\": \"x\\\"y\"}\n");
  const auto summary = nlohmann::json::parse(file("files/wandb-summary.json"));
  EXPECT_EQ(summary.at("eval"), nlohmann::json::parse(R"({"acc": 1, "f1": {"micro": 0.25}})"));
  EXPECT_EQ(summary.at("_wandb").at("runtime"), 2);
  EXPECT_EQ(nlohmann::json::parse(file("files/wandb-metadata.json")).at("startedAt"),
            "2026-01-02T03:04:05.000000Z");
  EXPECT_THAT(infos_, ElementsAre(HasSubstr(kFolder)));
  EXPECT_THAT(warnings_, IsEmpty());
}

TEST_F(WandbTrackerTest, WritesEveryKindOfValue) {
  auto tracker = started();
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  tracker->log(
      {{"none", std::nullopt},
       {"bool", true},
       {"text", "a\n\xff"},
       {"list", TrackerList{1, "b", TrackerDict{{"c", 0.5}}}},
       {"empty", TrackerDict()},
       {"nan", std::nan("")},
       {"inf", TrackerList{kInfinity, -kInfinity}},
       {"scalar", TensorValue{.dtype = "int64", .values = {3}}},
       {"one", TensorValue{.sizes = {1, 1}, .dtype = "float32", .values = {0.5}}},
       {"nothing", TensorValue{.sizes = {0}, .dtype = "float32"}},
       {"flags", TensorValue{.sizes = {2}, .dtype = "bool", .values = {1, 0}}},
       {"matrix", TensorValue{.sizes = {2, 2}, .dtype = "float32", .values = {1, 2, 3, 4.5}}}},
      at(std::nullopt));
  tracker->finish();
  ASSERT_EQ(run().history.size(), 1u);
  EXPECT_THAT(values(run().history[0]),
              UnorderedElementsAre(
                  Pair("none", "null"), Pair("bool", "true"), Pair("text", "\"a\\n\xef\xbf\xbd\""),
                  Pair("list", "[1, \"b\", {\"c\": 0.5}]"), Pair("nan", "NaN"),
                  Pair("inf", "[Infinity, -Infinity]"), Pair("scalar", "3"), Pair("one", "0.5"),
                  Pair("nothing", "[]"), Pair("flags", "[true, false]"),
                  Pair("matrix", "[[1.0, 2.0], [3.0, 4.5]]")));
}

TEST_F(WandbTrackerTest, KeepsLargeTensorsAsHistograms) {
  auto tracker = started();
  TensorValue tensor{.sizes = {64}, .dtype = "float32"};
  for (int i = 0; i < 64; ++i) tensor.values.push_back(i);
  tracker->log({{"weights", tensor}}, at(0));
  tracker->log_histograms({{"grads", tensor}}, at(0));
  tensor.values.assign(64, std::nan(""));
  tracker->log_histograms({{"nans", tensor}}, at(0));
  EXPECT_THROW(tracker->log_histograms({{"loss", 0.5}}, at(0)), std::invalid_argument);
  tracker->finish();
  const WireItems items = values(run().history.at(0));
  EXPECT_EQ(items.at("weights._type"), "\"histogram\"");
  const auto counts = nlohmann::json::parse(items.at("weights.values"));
  EXPECT_EQ(counts, std::vector<int>(32, 2));
  const auto edges = nlohmann::json::parse(items.at("weights.bins"));
  ASSERT_EQ(edges.size(), 33u);
  EXPECT_EQ(edges[0], 0.0);
  EXPECT_EQ(edges[32], 63.0);
  EXPECT_EQ(nlohmann::json::parse(items.at("grads.values")), std::vector<int>(64, 1));
  EXPECT_EQ(items.at("nans.values"), "[]");
}

TEST_F(WandbTrackerTest, GathersWhatOneStepLogs) {
  auto tracker = started();
  tracker->log({{"a", 1}}, at(std::nullopt));  // 0
  tracker->log({{"a", 2}}, at(std::nullopt));  // 1
  tracker->log({{"a", 3}, {"b", {{"c", 1}}}}, at(7));
  tracker->log({{"b", {{"d", 2}}}}, at(7));
  tracker->log({{"a", 4}}, at(std::nullopt));  // ends 7
  tracker->log({{"a", 5}}, at(6));             // too late
  tracker->log({{"a", 5}}, at(7));             // too late too, and nothing said
  tracker->log({{"a", 6}}, at(8, {{"commit", true}}));
  tracker->log({{"a", 7}}, at(std::nullopt, {{"commit", false}}));  // 9
  tracker->log({{"b", 8}}, at(9));
  EXPECT_THROW(tracker->log({{"a", 9}}, at(10, {{"comit", true}})), std::invalid_argument);
  tracker->finish();
  std::vector<std::pair<int64_t, WireItems>> steps;
  for (const WireHistory& history : run().history)
    steps.emplace_back(history.step, values(history));
  EXPECT_THAT(
      steps,
      ElementsAre(Pair(0, UnorderedElementsAre(Pair("a", "1"))),
                  Pair(1, UnorderedElementsAre(Pair("a", "2"))),
                  Pair(7, UnorderedElementsAre(Pair("a", "4"), Pair("b.c", "1"), Pair("b.d", "2"))),
                  Pair(8, UnorderedElementsAre(Pair("a", "6"))),
                  Pair(9, UnorderedElementsAre(Pair("a", "7"), Pair("b", "8")))));
  // The dictionary that "b" was is gone from the summary as well.
  EXPECT_EQ(nlohmann::json::parse(file("files/wandb-summary.json")).at("b"), 8);
  EXPECT_THAT(warnings_, ElementsAre(HasSubstr("step 6")));
}

// A process that dies after any flush leaves all that was logged before it, each step once.
TEST_F(WandbTrackerTest, LeavesWhatWasFlushed) {
  auto tracker = started();
  const auto flushed = [&] {
    tracker->flush();
    std::vector<std::pair<int64_t, WireItems>> steps;
    for (const WireHistory& history : run().history) {
      steps.emplace_back(history.step, values(history));
    }
    return steps;
  };
  EXPECT_THAT(flushed(), IsEmpty());
  tracker->log({{"a", "a long text that is gone later"}}, at(3));
  EXPECT_THAT(flushed(),
              ElementsAre(Pair(3, ElementsAre(Pair("a", "\"a long text that is gone later\"")))));
  tracker->log({{"a", 1}}, at(3));
  EXPECT_THAT(flushed(), ElementsAre(Pair(3, ElementsAre(Pair("a", "1")))));
  tracker->store_init_configuration({{"late", 1}});
  tracker->log({{"b", 2}}, at(3));
  tracker->log_images({{"i", {{.height = 1, .width = 1, .channels = 1, .pixels = {9}}}}}, at(3));
  EXPECT_THAT(
      flushed(),
      ElementsAre(Pair(3, IsSupersetOf({Pair("a", "1"), Pair("b", "2"), Pair("i.count", "1")}))));
  const size_t size = file("run-abcd1234.wandb").size();
  tracker->flush();
  EXPECT_EQ(file("run-abcd1234.wandb").size(), size) << "there was nothing new";
  tracker->log({{"a", 2}}, at(4));
  EXPECT_THAT(flushed(), ElementsAre(Pair(3, ::testing::_), Pair(4, ElementsAre(Pair("a", "2")))));
  EXPECT_EQ(run().summary.at("a"), "2");
  EXPECT_EQ(run().config.at("late"), "1");
  EXPECT_FALSE(run().has_exit);
  tracker->finish();
  EXPECT_TRUE(run().has_exit);
  EXPECT_EQ(run().history.size(), 2u);
}

TEST_F(WandbTrackerTest, KeepsImagesAndTables) {
  auto tracker = started();
  const TrackerImage image{.height = 1, .width = 2, .channels = 3, .pixels = {1, 2, 3, 4, 5, 6}};
  tracker->log_images({{"val/x y?", {image, image}}, {"none", {}}, {"../up", {image}}}, at(4));
  tracker->log_table("t", {.columns = {"n", "v"}, .rows = {{"a", 1}, {"b", std::nan("")}}}, at(4));
  const TrackerImage broken{.height = 2, .width = 2, .channels = 3, .pixels = {1}};
  EXPECT_THROW(tracker->log_images({{"bad", {broken}}}, at(4)), std::invalid_argument);
  tracker->finish();
  const WireItems items = values(run().history.at(0));
  EXPECT_EQ(items.at("val/x y?._type"), "\"images/separated\"");
  EXPECT_EQ(items.at("val/x y?.width"), "2");
  EXPECT_EQ(items.at("val/x y?.height"), "1");
  EXPECT_EQ(items.at("val/x y?.count"), "2");
  EXPECT_EQ(items.at("val/x y?.format"), "\"png\"");
  EXPECT_EQ(items.at("none"), "[]");
  EXPECT_FALSE(items.contains("bad._type"));
  const auto names = nlohmann::json::parse(items.at("val/x y?.filenames"));
  ASSERT_EQ(names.size(), 2u);
  EXPECT_TRUE(names[0].get<std::string>().starts_with("media/images/val/x y__4_"));
  EXPECT_EQ(decode_png(file(absl::StrCat("files/", names[0].get<std::string>()))), image);
  const auto up = nlohmann::json::parse(items.at("../up.filenames"));
  EXPECT_TRUE(up[0].get<std::string>().starts_with("media/images/_2E./up_4_"));

  const auto path = nlohmann::json::parse(items.at("t.path")).get<std::string>();
  EXPECT_TRUE(path.starts_with("media/table/t_4_") && path.ends_with(".table.json")) << path;
  const std::string table = file(absl::StrCat("files/", path));
  EXPECT_EQ(nlohmann::json::parse(table),
            nlohmann::json::parse(R"({"columns": ["n", "v"], "data": [["a", 1], ["b", null]]})"));
  EXPECT_EQ(items.at("t.sha256"), absl::StrCat("\"", sha256(table), "\""));
  EXPECT_EQ(items.at("t.size"), absl::StrCat(table.size()));
  EXPECT_EQ(items.at("t.nrows"), "2");
  EXPECT_THAT(run().files, IsSupersetOf({path, names[0].get<std::string>()}));
}

TEST_F(WandbTrackerTest, CutsWhatIsTooMuch) {
  auto tracker = started();
  const TrackerImage image{.height = 1, .width = 1, .channels = 1, .pixels = {1}};
  tracker->log_images({{"many", std::vector<TrackerImage>(109, image)}}, at(0));
  tracker->log_table("t", {.columns = {"n"}, .rows = std::vector<TrackerList>(10001, {1})}, at(0));
  tracker->finish();
  EXPECT_EQ(values(run().history.at(0)).at("many.count"), "108");
  EXPECT_EQ(values(run().history.at(0)).at("t.nrows"), "10000");
  EXPECT_THAT(warnings_, ElementsAre(HasSubstr("108"), HasSubstr("10000")));
}

TEST_F(WandbTrackerTest, ReadsTheEnvironment) {
  environment_.set("WANDB_ENTITY", "e");
  environment_.set("WANDB_NAME", "hidden by the kwarg");
  environment_.set("WANDB_RUN_ID", "abcd1234");
  environment_.set("WANDB_RUN_GROUP", "g");
  environment_.set("WANDB_TAGS", "x, y,");
  environment_.set("WANDB_NOTES", "n");
  environment_.set("WANDB_API_KEY", "a secret of forty letters");
  auto tracker = started({{"name", "given"}});
  tracker->finish();
  const WireRun written = run();
  EXPECT_EQ(only(written.run, 2).bytes, "e");
  EXPECT_EQ(only(written.run, 8).bytes, "given");
  EXPECT_EQ(only(written.run, 6).bytes, "g");
  EXPECT_EQ(written.run.count(10), 2u);
  EXPECT_EQ(only(written.run, 9).bytes, "n");
  EXPECT_THAT(file("run-abcd1234.wandb"), ::testing::Not(HasSubstr("a secret")));
}

TEST_F(WandbTrackerTest, KeepsNothingWhenDisabled) {
  for (const bool by_kwarg : {true, false}) {
    if (!by_kwarg) environment_.set("WANDB_MODE", "disabled");
    auto tracker = started(by_kwarg ? TrackerDict{{"mode", "disabled"}} : TrackerDict());
    tracker->store_init_configuration({{"a", 1}});
    tracker->log({{"a", 1}}, at(0));
    tracker->log_images({{"i", {{}}}}, at(0));
    tracker->flush();
    tracker->finish();
  }
  EXPECT_THAT(disk_.list("/sim").value(), IsEmpty());
}

TEST_F(WandbTrackerTest, SaysWhatItDoesNotDo) {
  auto tracker =
      started({{"mode", "online"}, {"resume", "allow"}, {"settings", TrackerDict{{"x", 1}}}});
  EXPECT_THAT(warnings_,
              ElementsAre(HasSubstr("online"), HasSubstr("resume"), HasSubstr("settings")));
}

TEST_F(WandbTrackerTest, RefusesWhatItDoesNotKnow) {
  for (const TrackerDict& kwargs :
       {TrackerDict{{"nme", "x"}}, TrackerDict{{"mode", "ofline"}}, TrackerDict{{"id", "a/b"}},
        TrackerDict{{"tags", 1}}, TrackerDict{{"config", "x"}}, TrackerDict{{"project", "x"}}}) {
    EXPECT_THROW(make(kwargs), std::invalid_argument) << value_text(kwargs);
  }
}

TEST_F(WandbTrackerTest, TakesTheLastOfNamesThatComeTwice) {
  auto tracker = started();
  tracker->store_init_configuration({{"a", 1}, {"a", {{"b", 1}, {"b", 2}}}});
  tracker->log({{"x", 1}, {"x", 2}, {"list", TrackerList{TrackerDict{{"y", 1}, {"y", 2}}}}}, at(0));
  tracker->finish();
  tracker->finish();
  EXPECT_EQ(run().config.at("a"), "{\"b\": 2}");
  EXPECT_EQ(run().history.at(0).items.at("x"), "2");
  EXPECT_EQ(run().history.at(0).items.at("list"), "[{\"y\": 2}]");
}

// A full disk loses nothing that fits when there is room again.
TEST_F(WandbTrackerTest, GoesOnWhenTheDiskHasRoomAgain) {
  simulator::SimDisk disk({.capacity = 8000});
  TrackerServices services{.files = disk,
                           .environment = environment_,
                           .now = services_.now,
                           .warn = services_.warn,
                           .info = services_.info};
  const auto tracker = TrackerRegistry::linked().find("wandb")->tracker(
      {.init_kwargs = {{"id", "abcd1234"}}, .time = time_, .services = services});
  tracker->start();
  tracker->flush();
  ASSERT_TRUE(write_file(disk, "/sim/other", std::string(8000 - disk.used(), 'o')).ok());
  for (int i = 0; i < 3; ++i) {
    tracker->log({{"i", i}}, at(i));
    EXPECT_THROW(tracker->flush(), std::runtime_error);
  }
  ASSERT_TRUE(disk.remove("/sim/other").ok());
  tracker->finish();
  const std::string path = absl::StrCat(kFolder, "/run-abcd1234.wandb");
  const WireRun written = read_run(read_file(disk, path).value());
  ASSERT_EQ(written.history.size(), 3u);
  EXPECT_EQ(written.history[2].items.at("i"), "2");
  EXPECT_EQ(only(written.run, 3).bytes, "uncategorized");
  EXPECT_TRUE(written.has_exit);
}

// So much waits then that more of it is lost; the rest must not be lost as well.
TEST_F(WandbTrackerTest, GoesOnAfterADiskThatWasFullForLong) {
  constexpr int kCapacity = 80 << 20;
  simulator::SimDisk disk({.capacity = kCapacity});
  TrackerServices services{.files = disk,
                           .environment = environment_,
                           .now = services_.now,
                           .warn = services_.warn,
                           .info = services_.info};
  const auto tracker = TrackerRegistry::linked().find("wandb")->tracker(
      {.init_kwargs = {{"id", "abcd1234"}}, .time = time_, .services = services});
  tracker->start();
  tracker->flush();
  const auto room = static_cast<size_t>(kCapacity - disk.used());
  ASSERT_TRUE(write_file(disk, "/sim/other", std::string(room, 'o')).ok());
  int64_t step = 0;
  int refused = 0;
  for (; refused < 3; ++step) {
    try {
      tracker->log({{"text", std::string(4 << 20, 't')}}, at(step));
    } catch (const std::runtime_error&) {
      ++refused;
    }
    EXPECT_THROW(tracker->flush(), std::runtime_error);
  }
  ASSERT_TRUE(disk.remove("/sim/other").ok());
  tracker->flush();
  tracker->log({{"a", 1}}, at(step));
  tracker->finish();
  const std::string path = absl::StrCat(kFolder, "/run-abcd1234.wandb");
  const WireRun written = read_run(read_file(disk, path).value());
  EXPECT_GE(written.history.size(), 10u);
  EXPECT_EQ(written.history.back().step, step);
  EXPECT_TRUE(written.has_exit);
}

TEST_F(WandbTrackerTest, ARecordThatIsTooLargeIsLostAlone) {
  auto tracker = started();
  tracker->log({{"huge", std::string(65 << 20, 'h')}}, at(0));
  EXPECT_THROW(tracker->log({{"a", 1}}, at(1)), std::runtime_error);
  tracker->log({{"a", 2}}, at(2));
  tracker->log({{"a", 3}}, at(3));
  EXPECT_THROW(tracker->finish(), std::runtime_error);  // the summary has it, too
  ASSERT_EQ(run().history.size(), 2u);
  EXPECT_EQ(run().history[1].items.at("a"), "3");
  EXPECT_TRUE(run().has_exit);
}

TEST_F(WandbTrackerTest, AKilledProcessLeavesWhatItFlushed) {
  const TemporaryFolder temporary;
  const std::string& folder = temporary.path();
  const pid_t child = fork();
  if (child == 0) {
    HostFiles files;
    environment_.set("WANDB_DIR", folder);
    TrackerServices services{.files = files,
                             .environment = environment_,
                             .now = services_.now,
                             .warn = services_.warn,
                             .info = services_.info};
    const auto tracker = TrackerRegistry::linked().find("wandb")->tracker(
        {.init_kwargs = {{"id", "abcd1234"}}, .time = time_, .services = services});
    tracker->start();
    for (int i = 0; i < 1000; ++i) {
      tracker->log({{"i", i}, {"text", std::string(100, 't')}}, at(i));
      if (i % 10 == 0) tracker->flush();
    }
    raise(SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status));
  HostFiles files;
  const std::string run_folder = folder + (kFolder + std::string_view("/sim").size());
  const WireRun written = read_run(read_file(files, run_folder + "/run-abcd1234.wandb").value());
  ASSERT_EQ(written.history.size(), 991u);
  EXPECT_EQ(written.history.back().items.at("i"), "990");
  EXPECT_EQ(written.summary.at("i"), "990");
  EXPECT_TRUE(remove_all(files, folder).ok());
}

TEST_F(WandbTrackerTest, IsInTheLoggingDirOfASimulation) {
  environment_.unset("WANDB_DIR");
  services_.is_real = false;
  const auto tracker = TrackerRegistry::linked().find("wandb")->tracker(
      {.project_name = "p", .logging_dir = "/sim/logs", .time = time_, .services = services_});
  tracker->start();
  tracker->finish();
  EXPECT_EQ(disk_.list("/sim/logs").value(), std::vector<std::string>{"wandb"});
}

// Ranks, or programs, that have the same id and start in the same second.
TEST_F(WandbTrackerTest, NeverWritesIntoAnotherRunsFolder) {
  auto first = started();
  auto second = started();
  services_.rank = 3;
  auto third = started();
  for (auto* tracker : {&first, &second, &third}) (*tracker)->finish();
  EXPECT_EQ(disk_.list("/sim/wandb").value(),
            (std::vector<std::string>{"offline-run-20260102_030405-abcd1234",
                                      "offline-run-20260102_030405-abcd1234-2",
                                      "offline-run-20260102_030405-abcd1234-rank3"}));
}

TEST_F(WandbTrackerTest, NamesAFolderThatCannotBe) {
  ASSERT_TRUE(write_file(disk_, "/sim/wandb", "a file").ok());
  auto tracker = make();
  try {
    tracker->start();
    FAIL();
  } catch (const std::runtime_error& error) {
    EXPECT_THAT(error.what(), HasSubstr("/sim/wandb"));
  }
  EXPECT_THROW(tracker->log({{"a", 1}}, at(0)), std::runtime_error);
  EXPECT_THROW(tracker->flush(), std::runtime_error);
  EXPECT_THROW(tracker->finish(), std::runtime_error);
}

TEST_F(WandbTrackerTest, BeginsLaterWhereItCannotAtOnce) {
  ASSERT_TRUE(write_file(disk_, "/sim/wandb", "a file").ok());
  auto tracker = make({{"id", "abcd1234"}, {"config", {{"seed", 1}}}});
  EXPECT_THROW(tracker->start(), std::runtime_error);
  EXPECT_THROW(tracker->store_init_configuration({{"lr", 0.1}}), std::runtime_error);
  EXPECT_THROW(tracker->log({{"a", 1}}, at(0)), std::runtime_error);
  ASSERT_TRUE(disk_.remove("/sim/wandb").ok());
  tracker->log({{"a", 2}}, at(1));
  tracker->finish();
  EXPECT_THAT(run().config, UnorderedElementsAre(Pair("seed", "1"), Pair("lr", "0.1")));
  ASSERT_EQ(run().history.size(), 1u);
  EXPECT_EQ(run().history[0].step, 1);
  EXPECT_THAT(infos_, ElementsAre(HasSubstr(kFolder)));
  EXPECT_EQ(disk_.list("/sim/wandb").value().size(), 1u);
}

}  // namespace
}  // namespace accelerate::trackers
