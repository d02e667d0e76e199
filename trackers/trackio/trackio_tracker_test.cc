#include "trackers/trackio/trackio_tracker.h"

#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sqlite3.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "accelerate/platform/host_files.h"
#include "accelerate/tracking/tracker.h"
#include "simulator/disk/sim_disk.h"
#include "trackers/testing/png_reader.h"

namespace accelerate::trackers {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Raw SQL, as another program would ask.
std::vector<std::vector<std::string>> ask(const std::string& path, const std::string& sql) {
  sqlite3* database = nullptr;
  EXPECT_EQ(sqlite3_open_v2(path.c_str(), &database, SQLITE_OPEN_READWRITE, nullptr), SQLITE_OK);
  sqlite3_busy_timeout(database, 60'000);
  std::vector<std::vector<std::string>> rows;
  const auto add = [](void* out, int count, char** values, char**) {
    auto& row = static_cast<std::vector<std::vector<std::string>>*>(out)->emplace_back();
    for (int i = 0; i < count; ++i) row.emplace_back(values[i] == nullptr ? "NULL" : values[i]);
    return 0;
  };
  char* error = nullptr;
  EXPECT_EQ(sqlite3_exec(database, sql.c_str(), add, &rows, &error), SQLITE_OK)
      << (error == nullptr ? "" : error);
  sqlite3_free(error);
  sqlite3_close(database);
  return rows;
}

class TrackioTrackerTest : public ::testing::Test {
 protected:
  TrackioTrackerTest() {
    environment_.set("TRACKIO_DIR", folder_ + "/made");
    environment_.unset("TRACKIO_SPACE_ID");
    environment_.unset("TRACKIO_SERVER_URL");
  }
  ~TrackioTrackerTest() override {
    std::filesystem::permissions(folder_, std::filesystem::perms::owner_all);
  }

  std::unique_ptr<GeneralTracker> make(TrackerDict init_kwargs = {}, uint64_t random_bits = 1) {
    return TrackerRegistry::linked().find("trackio")->tracker(
        {.project_name = "my project",
         .init_kwargs = std::move(init_kwargs),
         .random_bits = random_bits,
         .time = time_,
         .services = services_});
  }
  std::unique_ptr<GeneralTracker> started(TrackerDict init_kwargs = {}, uint64_t random_bits = 1) {
    auto tracker = make(std::move(init_kwargs), random_bits);
    tracker->start();
    return tracker;
  }
  TrackerStep at(std::optional<int64_t> step, TrackerDict kwargs = {}) {
    time_ += absl::Seconds(1);
    return {.step = step, .time = time_, .kwargs = std::move(kwargs)};
  }
  std::string path() const { return folder_ + "/made/myproject.db"; }
  static std::string start_error(GeneralTracker& tracker) {
    try {
      tracker.start();
    } catch (const std::runtime_error& error) {
      return error.what();
    }
    return "";
  }

  const TemporaryFolder temporary_;
  const std::string folder_ = temporary_.path();
  HostFiles files_;
  Environment environment_;
  std::vector<std::string> warnings_;
  absl::Time time_ = absl::FromCivil(absl::CivilSecond(2026, 1, 2, 3, 4, 5), absl::UTCTimeZone());
  TrackerServices services_{.files = files_,
                            .environment = environment_,
                            .now = [this] { return time_; },
                            .warn = [this](std::string_view text) { warnings_.emplace_back(text); },
                            .info = [](std::string_view) {}};
};

TEST_F(TrackioTrackerTest, WritesAWholeRun) {
  auto tracker = started({{"name", "first"}, {"group", "g"}, {"config", {{"seed", 1}}}});
  tracker->store_init_configuration({{"model", {{"layers", 2}}}});
  tracker->log({{"loss", 0.5}, {"eval", {{"acc", 1}}}, {"nan", std::nan("")}}, at(3));
  tracker->log({{"text", "x"}, {"none", std::nullopt}, {"list", TrackerList{1, true}}},
               at(std::nullopt));
  tracker->finish();
  EXPECT_THAT(
      ask(path(), "SELECT timestamp, run_name, step, metrics, space_id FROM metrics ORDER BY id"),
      ElementsAre(ElementsAre("2026-01-02T03:04:06.000000+00:00", "first", "3",
                              R"({"loss":0.5,"eval":{"acc":1},"nan":"NaN"})", "NULL"),
                  ElementsAre("2026-01-02T03:04:07.000000+00:00", "first", "4",
                              R"({"text":"x","none":null,"list":[1,true]})", "NULL")));
  const auto configs = ask(path(),
                           "SELECT c.config, m.run_id = c.run_id, length(c.run_id), "
                           "COUNT(DISTINCT m.log_id) FROM configs c, metrics m");
  ASSERT_THAT(configs, SizeIs(1));
  EXPECT_EQ(nlohmann::json::parse(configs[0][0]), nlohmann::json::parse(R"(
      {"seed": 1, "model": {"layers": 2}, "_Username": null, "_Group": "g",
       "_Created": "2026-01-02T03:04:05.000000+00:00"})"));
  EXPECT_THAT(configs[0], ElementsAre(::testing::_, "1", "32", "2"));
  EXPECT_EQ(ask(path(), "PRAGMA journal_mode")[0][0], "wal");
  EXPECT_THAT(warnings_, IsEmpty());
}

TEST_F(TrackioTrackerTest, WritesTensorsImagesAndTables) {
  auto tracker = started({{"name", "r"}});
  TensorValue large{.sizes = {64}, .dtype = "float32"};
  for (int i = 0; i < 64; ++i) large.values.push_back(i);
  tracker->log({{"scalar", TensorValue{.dtype = "float32", .values = {2.5}}},
                {"pair", TensorValue{.sizes = {2}, .dtype = "int64", .values = {1, 2}}},
                {"large", large}},
               at(0));
  tracker->log_histograms({{"h", large}}, at(0));
  EXPECT_THROW(tracker->log_histograms({{"h", 1}}, at(0)), std::invalid_argument);
  const TrackerImage image{.height = 1, .width = 2, .channels = 1, .pixels = {1, 2}};
  tracker->log_images({{"one", {image}}, {"two", {image, image}}, {"none", {}}}, at(7));
  tracker->log_table("t", {.columns = {"n", "v"}, .rows = {{"a", 1}, {"b", std::nan("")}}}, at(7));
  tracker->finish();
  const auto rows = ask(path(), "SELECT metrics FROM metrics ORDER BY id");
  ASSERT_THAT(rows, SizeIs(4));
  const auto values = nlohmann::json::parse(rows[0][0]);
  EXPECT_EQ(values.at("scalar"), 2.5);
  EXPECT_EQ(values.at("pair"), (std::vector<int>{1, 2}));
  EXPECT_EQ(values.at("large").at("_type"), "trackio.histogram");
  EXPECT_EQ(values.at("large"), nlohmann::json::parse(rows[1][0]).at("h"));
  EXPECT_EQ(values.at("large").at("values").size() + 1, values.at("large").at("bins").size());
  const auto images = nlohmann::json::parse(rows[2][0]);
  ASSERT_EQ(images.size(), 3u);
  EXPECT_TRUE(images.contains("two/1"));
  const std::string file = images.at("one").at("file_path");
  EXPECT_TRUE(file.starts_with("myproject/r/7/")) << file;
  EXPECT_EQ(images.at("one").at("_type"), "trackio.image");
  EXPECT_EQ(decode_png(read_file(files_, folder_ + "/made/media/" + file).value()), image);
  EXPECT_EQ(nlohmann::json::parse(rows[3][0]), nlohmann::json::parse(R"(
      {"t": {"_type": "trackio.table", "_value": [{"n": "a", "v": 1}, {"n": "b", "v": "NaN"}]}})"));
}

TEST_F(TrackioTrackerTest, RenamesWhatTrackioKeepsForItself) {
  auto tracker = started();
  tracker->log({{"step", 1}, {"__x", 2}, {"ok", 3}}, at(0));
  tracker->log({{"time", 1}}, at(1));
  EXPECT_THROW(tracker->log({{"a", 1}}, at(2, {{"commit", true}})), std::invalid_argument);
  tracker->finish();
  EXPECT_THAT(
      ask(path(), "SELECT metrics FROM metrics"),
      ElementsAre(ElementsAre(R"({"__step":1,"____x":2,"ok":3})"), ElementsAre(R"({"__time":1})")));
  EXPECT_THAT(warnings_, ElementsAre(HasSubstr("step")));
}

TEST_F(TrackioTrackerTest, ResumesByName) {
  auto first = started({{"name", "r"}, {"config", {{"old", 1}, {"lr", 0.1}}}}, 1);
  first->log({{"a", 1}}, at(5));
  first->finish();
  auto second = started({{"name", "r"}, {"resume", "must"}, {"config", {{"lr", 0.2}}}}, 2);
  second->log({{"a", 2}}, at(std::nullopt));
  second->finish();
  auto third = started({{"name", "r"}}, 3);  // another of that name
  third->log({{"a", 3}}, at(std::nullopt));
  third->finish();
  auto fourth = started({{"name", "new"}, {"resume", "allow"}}, 4);
  fourth->finish();
  EXPECT_THAT(ask(path(), "SELECT step, metrics FROM metrics ORDER BY id"),
              ElementsAre(ElementsAre("5", R"({"a":1})"), ElementsAre("6", R"({"a":2})"),
                          ElementsAre("0", R"({"a":3})")));
  EXPECT_EQ(ask(path(), "SELECT COUNT(DISTINCT run_id) FROM configs")[0][0], "3");
  const auto config =
      nlohmann::json::parse(ask(path(),
                                "SELECT config FROM configs WHERE run_id = "
                                "(SELECT run_id FROM metrics WHERE step = 6)")[0][0]);
  EXPECT_EQ(config.at("old"), 1);
  EXPECT_EQ(config.at("lr"), 0.2);
  auto missing = make({{"name", "nobody"}, {"resume", "must"}});
  EXPECT_THAT(start_error(*missing), AllOf(HasSubstr("nobody"), HasSubstr(path())));
}

TEST_F(TrackioTrackerTest, GivesRunsNamesOfTheirOwn) {
  std::vector<std::unique_ptr<GeneralTracker>> trackers;
  for (uint64_t i = 0; i < 50; ++i) trackers.push_back(started({}, i));
  for (auto& tracker : trackers) tracker->finish();
  EXPECT_EQ(ask(path(), "SELECT COUNT(DISTINCT run_name) FROM configs")[0][0], "50");
}

TEST_F(TrackioTrackerTest, RefusesWhatItDoesNotKnow) {
  for (const TrackerDict& kwargs :
       {TrackerDict{{"nme", "x"}}, TrackerDict{{"resume", "maybe"}},
        TrackerDict{{"resume", "must"}}, TrackerDict{{"config", {{"_x", 1}}}},
        TrackerDict{{"name", 1}}}) {
    EXPECT_THROW(make(kwargs), std::invalid_argument) << value_text(kwargs);
  }
  auto tracker = started({{"space_id", "me/space"}, {"auto_log_gpu", true}});
  EXPECT_THAT(warnings_, ElementsAre(HasSubstr("space_id"), HasSubstr("auto_log_gpu")));
}

TEST_F(TrackioTrackerTest, IsNotInASimulation) {
  const TrackerClass& trackio = *TrackerRegistry::linked().find("trackio");
  EXPECT_EQ(trackio.unavailable(services_), "");
  simulator::SimDisk disk;
  TrackerServices simulated{.files = disk,
                            .environment = environment_,
                            .is_real = false,
                            .warn = services_.warn,
                            .info = services_.info};
  EXPECT_NE(trackio.unavailable(simulated), "");
  auto tracker = trackio.tracker({.project_name = "p", .time = time_, .services = simulated});
  EXPECT_THAT(start_error(*tracker), HasSubstr("simulation"));
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/made"));
}

TEST_F(TrackioTrackerTest, NamesWhatIsWrongWithTheFile) {
  std::filesystem::create_directories(folder_ + "/made");
  std::ofstream(path()) << "this is not a database, and long enough to be told from an empty one";
  auto tracker = make();
  EXPECT_THAT(start_error(*tracker), AllOf(HasSubstr(path()), HasSubstr("26")));
}

TEST_F(TrackioTrackerTest, NamesAFolderThatCannotBe) {
  std::ofstream(folder_ + "/made") << "a file";
  auto tracker = make();
  EXPECT_THAT(start_error(*tracker), HasSubstr(folder_ + "/made"));
  // Rows that are logged meanwhile are kept, and written when the folder can be made.
  tracker->log({{"a", 1}}, at(std::nullopt));
  EXPECT_THROW(tracker->flush(), std::runtime_error);
  std::filesystem::remove(folder_ + "/made");
  tracker->log({{"a", 2}}, at(std::nullopt));
  tracker->finish();
  EXPECT_THAT(ask(path(), "SELECT step, metrics FROM metrics ORDER BY id"),
              ElementsAre(ElementsAre("0", R"({"a":1})"), ElementsAre("1", R"({"a":2})")));
}

TEST_F(TrackioTrackerTest, SaysWhenADatabaseIsOfAnOlderTrackio) {
  std::filesystem::create_directories(folder_ + "/made");
  std::ofstream(path()).close();
  ask(path(),
      "CREATE TABLE metrics (id INTEGER PRIMARY KEY, timestamp TEXT, run_name TEXT, "
      "step INTEGER, metrics TEXT)");
  auto tracker = make();
  EXPECT_THAT(start_error(*tracker), HasSubstr("older"));
  EXPECT_THAT(ask(path(), "SELECT name FROM sqlite_master WHERE name = 'configs'"), IsEmpty())
      << "it is left as it was";
}

// Others that hold the database are waited for, and nothing is lost if that takes too long.
TEST_F(TrackioTrackerTest, WritesLaterWhatAnotherWriterKeptOut) {
  auto tracker = started({{"name", "r"}});
  tracker->flush();
  sqlite3* other = nullptr;
  ASSERT_EQ(sqlite3_open(path().c_str(), &other), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(other, "BEGIN IMMEDIATE", nullptr, nullptr, nullptr), SQLITE_OK);
  tracker->log({{"a", 1}}, at(0));
  EXPECT_THROW(tracker->flush(), std::runtime_error);
  ASSERT_EQ(sqlite3_exec(other, "COMMIT", nullptr, nullptr, nullptr), SQLITE_OK);
  sqlite3_close(other);
  tracker->log({{"a", 2}}, at(1));
  tracker->finish();
  EXPECT_THAT(ask(path(), "SELECT metrics FROM metrics ORDER BY id"),
              ElementsAre(ElementsAre(R"({"a":1})"), ElementsAre(R"({"a":2})")));
}

// Files may not grow any more, as on a full disk.
TEST_F(TrackioTrackerTest, WritesLaterWhatFoundNoRoom) {
  auto tracker = started({{"name", "r"}});
  tracker->log({{"i", 0}}, at(0));
  tracker->flush();
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit full{.rlim_cur = 100'000, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &full), 0);
  tracker->log({{"i", 1}, {"text", std::string(200'000, 't')}}, at(1));
  try {
    tracker->flush();
    ADD_FAILURE() << "there was room";
  } catch (const std::runtime_error& error) {
    EXPECT_THAT(error.what(), HasSubstr(path()));
  }
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_THAT(ask(path(), "SELECT step FROM metrics"), ElementsAre(ElementsAre("0")));
  tracker->finish();
  tracker->finish();
  EXPECT_THAT(ask(path(), "SELECT step FROM metrics ORDER BY id"),
              ElementsAre(ElementsAre("0"), ElementsAre("1")));
}

TEST_F(TrackioTrackerTest, TwoProcessesWriteAtOnce) {
  constexpr int kProcesses = 2;
  constexpr int kFlushes = 100;
  std::vector<pid_t> children;
  for (int process = 0; process < kProcesses; ++process) {
    const pid_t child = fork();
    if (child == 0) {
      try {
        auto tracker = started({{"name", absl::StrCat("run", process)}}, process);
        for (int i = 0; i < kFlushes; ++i) {
          tracker->log({{"i", i}}, at(std::nullopt));
          tracker->flush();
        }
        tracker->finish();
        _exit(0);
      } catch (const std::exception& error) {
        (void)!write(STDERR_FILENO, error.what(), std::string(error.what()).size());
        _exit(1);
      }
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  EXPECT_THAT(ask(path(),
                  "SELECT run_name, COUNT(*), MAX(step) FROM metrics GROUP BY run_name "
                  "ORDER BY run_name"),
              ElementsAre(ElementsAre("run0", "100", "99"), ElementsAre("run1", "100", "99")));
}

TEST_F(TrackioTrackerTest, AKilledProcessLeavesWhatItFlushed) {
  int told[2];
  ASSERT_EQ(pipe(told), 0);
  const pid_t child = fork();
  if (child == 0) {
    auto tracker = started({{"name", "r"}});
    for (int i = 0; i < 10; ++i) {
      tracker->log({{"i", i}}, at(i));
      tracker->flush();
    }
    tracker->log({{"i", 10}}, at(10));
    (void)!write(told[1], "!", 1);
    pause();
    _exit(0);
  }
  char byte = 0;
  ASSERT_EQ(read(told[0], &byte, 1), 1);
  ASSERT_EQ(kill(child, SIGKILL), 0);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  close(told[0]);
  close(told[1]);
  EXPECT_EQ(ask(path(), "PRAGMA integrity_check")[0][0], "ok");
  EXPECT_THAT(ask(path(), "SELECT COUNT(*), MAX(step) FROM metrics"),
              ElementsAre(ElementsAre("10", "9")));
  EXPECT_THAT(ask(path(), "SELECT run_name FROM configs"), ElementsAre(ElementsAre("r")));
}

TEST_F(TrackioTrackerTest, KeepsTheNamesOfTrackiosOwnFilesFree) {
  for (const char* name : {"registry-x", "model_artifacts", "a_configs"}) {
    EXPECT_THROW(TrackerRegistry::linked().find("trackio")->tracker(
                     {.project_name = name, .time = time_, .services = services_}),
                 std::invalid_argument)
        << name;
  }
  auto tracker = TrackerRegistry::linked().find("trackio")->tracker(
      {.project_name = "../..", .time = time_, .services = services_});
  tracker->start();
  tracker->finish();
  EXPECT_TRUE(std::filesystem::exists(folder_ + "/made/default.db"));
}

}  // namespace
}  // namespace accelerate::trackers
