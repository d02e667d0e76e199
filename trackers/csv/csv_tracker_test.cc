#include "trackers/csv/csv_tracker.h"

#include <cmath>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trackers/testing/tracker_world.h"

namespace accelerate::trackers {
namespace {

using simulator::Unsynced;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kFile[] = "/sim/logs/run/metrics.csv";

using Table = std::vector<std::vector<std::string>>;

// By a reader of its own, character by character; empty lines are left out.
Table parse(const std::string& text) {
  Table rows;
  std::vector<std::string> row(1);
  bool quoted = false;
  bool any = false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (quoted) {
      if (text[i] != '"') {
        row.back() += text[i];
      } else if (i + 1 < text.size() && text[i + 1] == '"') {
        row.back() += text[i++];
      } else {
        quoted = false;
      }
    } else if (text[i] == '"') {
      quoted = any = true;
    } else if (text[i] == ',') {
      row.emplace_back();
      any = true;
    } else if (text[i] == '\n') {
      if (any) rows.push_back(row);
      row.assign(1, "");
      any = false;
    } else if (text[i] != '\r') {
      row.back() += text[i];
      any = true;
    }
  }
  EXPECT_FALSE(any) << "the last row has no end";
  for (const auto& each : rows) EXPECT_EQ(each.size(), rows[0].size()) << text;
  return rows;
}

std::vector<std::string> column(TrackerWorld& world, const std::string& name) {
  const Table rows = parse(world.file(kFile));
  std::vector<std::string> values;
  for (size_t i = 0; i < rows.at(0).size(); ++i) {
    if (rows[0][i] != name) continue;
    for (size_t row = 1; row < rows.size(); ++row) values.push_back(rows[row][i]);
  }
  return values;
}

TEST(CsvTrackerTest, WritesARowForEachCall) {
  TrackerWorld world;
  const auto tracker = make_csv_tracker(world.setup({{"name", "a"}}));
  tracker->start();
  tracker->log({{"loss", 0.5}, {"lr", {{"head", 1e-5}}}}, world.step(3));
  tracker->log({{"loss", std::nan("")}, {"ok", true}, {"none", std::nullopt}}, world.step());
  tracker->flush();
  EXPECT_EQ(world.file(kFile),
            "run,step,time,loss,lr/head,ok,none\r\n"
            "a,3,5.0,0.5,1e-05,,\r\n"
            "a,,5.0,nan,,True,\r\n");
  tracker->log({{"step", 9},
                {"t", TensorValue{.sizes = {1}, .dtype = "int64", .values = {4}}},
                {"list", TrackerList{1, "x"}},
                {"loss", 1}},
               world.step(4));
  tracker->finish();
  EXPECT_EQ(world.file(kFile),
            "run,step,time,loss,lr/head,ok,none,_step,t,list\r\n"
            "a,3,5.0,0.5,1e-05,,,,,\r\n"
            "a,,5.0,nan,,True,,,,\r\n"
            "a,4,5.0,1,,,,9,4,\"[1,\"\"x\"\"]\"\r\n");
}

TEST(CsvTrackerTest, NamesOfItsOwnColumnsAreKeptApart) {
  TrackerWorld world;
  const auto tracker = make_csv_tracker(world.setup({{"name", "a"}}));
  tracker->start();
  tracker->log({{"run", 1}, {"step", 2}, {"time", 3}, {"now", {{"run", 4}}}}, world.step(5));
  tracker->finish();
  EXPECT_EQ(world.file(kFile), "run,step,time,_run,_step,_time,now/run\r\na,5,5.0,1,2,3,4\r\n");
}

TEST(CsvTrackerTest, OddNamesAndTexts) {
  TrackerWorld world;
  const auto tracker = make_csv_tracker(world.setup());
  tracker->start();
  const std::vector<std::string> odd{"a,b", "say \"x\"", "two\r\nlines", "\xc3\xa9/\xe2\x82\xac",
                                     ""};
  for (const std::string& name : odd) tracker->log({{name, name + "!"}}, world.step(1));
  tracker->flush();
  tracker->log({{"more", 1}}, world.step(2));
  tracker->finish();
  for (size_t i = 0; i < odd.size(); ++i)
    EXPECT_EQ(parse(world.file(kFile)).at(i + 1).at(i + 3), odd[i] + "!");
  EXPECT_EQ(parse(world.file(kFile)).at(0).at(5), "two\r\nlines");
}

TEST(CsvTrackerTest, ConfigurationAndTables) {
  TrackerWorld world;
  const auto tracker = make_csv_tracker(world.setup({{"name", "a"}}));
  tracker->start();
  tracker->store_init_configuration(
      {{"lr", 0.1}, {"net", {{"act", "a,b"}, {"sizes", TrackerList{1, 2}}}}});
  EXPECT_EQ(world.file("/sim/logs/run/config.csv"),
            "name,value\r\nlr,0.1\r\nnet/act,\"a,b\"\r\nnet/sizes,\"[1,2]\"\r\n");
  tracker->log_table("val/best", {.columns = {"x", "y"}, .rows = {{1, "a"}, {std::nullopt, 2.5}}},
                     world.step(7));
  EXPECT_EQ(world.file("/sim/logs/run/tables/a/val/best/7-0.csv"), "x,y\r\n1,a\r\n,2.5\r\n");
  EXPECT_NE(error_of([&] { tracker->log_images({}, world.step()); }), "");
  tracker->finish();
}

TEST(CsvTrackerTest, ALaterRunGoesOn) {
  TrackerWorld world;
  for (const std::string run : {"first", "second"}) {
    const auto tracker = make_csv_tracker(world.setup({{"name", run}}));
    tracker->start();
    tracker->log({{"loss", 1}, {run, 2}}, world.step(0));
    tracker->finish();
    // As kill -9 may leave it.
    if (run == "first") {
      ASSERT_TRUE(write_file(world.disk, kFile, world.file(kFile) + "x,\"y\r\n").ok());
    }
  }
  EXPECT_EQ(world.file(kFile),
            "run,step,time,loss,first,second\r\nfirst,0,5.0,1,2,\r\nsecond,0,5.0,1,,2\r\n");
}

TEST(CsvTrackerTest, AForeignFileIsNotTouched) {
  TrackerWorld world;
  ASSERT_TRUE(write_file(world.disk, kFile, "x,y\n1,2\n").ok());
  const auto tracker = make_csv_tracker(world.setup());
  EXPECT_THAT(error_of([&] { tracker->start(); }), HasSubstr("has other columns"));
  EXPECT_NE(error_of([&] { tracker->log({{"loss", 1}}, world.step(0)); }), "");
  EXPECT_NE(error_of([&] { tracker->finish(); }), "");
  EXPECT_EQ(world.file(kFile), "x,y\n1,2\n");
}

TEST(CsvTrackerTest, AnEarlierFileMayHaveLinesThatEndWithLf) {
  TrackerWorld world;
  ASSERT_TRUE(write_file(world.disk, kFile, "run,step,time,loss\nold,1,5.0,0.125\n").ok());
  const auto tracker = make_csv_tracker(world.setup({{"name", "new"}}));
  tracker->start();
  tracker->log({{"acc", 1}}, world.step(2));
  tracker->finish();
  EXPECT_EQ(world.file(kFile), "run,step,time,loss,acc\r\nold,1,5.0,0.125,\r\nnew,2,5.0,,1\r\n");
}

TEST(CsvTrackerTest, AFileWithBrokenRowsIsNotTouched) {
  const std::string header = "run,step,time,loss\r\n";
  for (const std::string rows : {
           "a,1,5.0,\"0.5\r\na,2,5.0,0.5\r\na,3,5.0,0.5\r\n",      // never closed
           "a,1,5.0,\"0.5\r\na,2,5.0,\"x\"\r\na,3,5.0,\"y\"\r\n",  // closed by another's
           "a,1,5.0,0\"5\r\na,2,5.0,0\"5\r\n",
           "a,1,5.0\r\n",
       }) {
    TrackerWorld world;
    ASSERT_TRUE(write_file(world.disk, kFile, header + rows).ok());
    const auto tracker = make_csv_tracker(world.setup());
    EXPECT_THAT(error_of([&] { tracker->start(); }), HasSubstr("quotes that are not in pairs"))
        << rows;
    EXPECT_NE(error_of([&] { tracker->finish(); }), "");
    EXPECT_EQ(world.file(kFile), header + rows);
  }
}

TEST(CsvTrackerTest, AFullDiskLosesNothingThatIsWrittenLater) {
  TrackerWorld world({.capacity = 3000});
  ASSERT_TRUE(write_file(world.disk, "/sim/other", std::string(2500, '-')).ok());
  const auto tracker = make_csv_tracker(world.setup());
  tracker->start();
  std::vector<std::string> all;
  for (int i = 0; i < 40; ++i) {
    tracker->log({{"loss", i}, {i < 15 ? "early" : "late", 1}}, world.step(i));
    all.push_back(std::to_string(i));
    if (i % 2 == 0) error_of([&] { tracker->flush(); });
    const auto read = column(world, "loss");  // all rows are whole
    EXPECT_TRUE(std::equal(read.begin(), read.end(), all.begin()));
  }
  EXPECT_NE(error_of([&] { tracker->flush(); }), "");
  EXPECT_LT(column(world, "loss").size(), all.size());
  ASSERT_TRUE(world.disk.remove("/sim/other").ok());
  tracker->finish();
  EXPECT_EQ(column(world, "loss"), all);
  EXPECT_EQ(column(world, "late").back(), "1");
}

TEST(CsvTrackerTest, ALongFullDiskIsFollowedByEachRowOnce) {
  constexpr int kCapacity = 10 << 20;
  for (const bool begun : {true, false}) {  // whether the file was there before
    TrackerWorld world({.capacity = kCapacity});
    const auto tracker = make_csv_tracker(world.setup());
    tracker->start();
    if (begun) tracker->flush();
    const auto room = static_cast<size_t>(kCapacity - world.disk.used());
    ASSERT_TRUE(write_file(world.disk, "/sim/other", std::string(room, '-')).ok());
    std::vector<std::string> all;
    for (int i = 0; i < 25; ++i) {
      error_of([&] {
        tracker->log({{"loss", i}, {"text", std::string(300 << 10, 't')}}, world.step(i));
      });
      all.push_back(std::to_string(i));
      EXPECT_NE(error_of([&] { tracker->flush(); }), "");
    }
    ASSERT_TRUE(world.disk.remove("/sim/other").ok());
    tracker->flush();
    EXPECT_EQ(column(world, "loss"), all);
    tracker->finish();
  }
}

TEST(CsvTrackerTest, ADiskThatStaysFullIsSaidToLoseRows) {
  TrackerWorld world({.capacity = 100});
  const auto tracker = make_csv_tracker(world.setup({{"name", "a"}}));
  tracker->start();
  for (int i = 0; i < 20; ++i) tracker->log({{"loss", i}}, world.step(i));
  EXPECT_THAT(error_of([&] { tracker->finish(); }), HasSubstr("are lost"));
  EXPECT_GT(column(world, "loss").size(), 1u);
}

TEST(CsvTrackerTest, ADiskThatIsFullFromTheBeginningIsSaidToLoseRows) {
  TrackerWorld world({.capacity = 10});
  const auto tracker = make_csv_tracker(world.setup());
  tracker->start();
  for (int i = 0; i < 20; ++i) tracker->log({{"loss", i}}, world.step(i));
  EXPECT_THAT(error_of([&] { tracker->finish(); }), HasSubstr("20 rows are lost"));
}

TEST(CsvTrackerTest, AMachineThatDiedLeavesWhatALaterRunReads) {
  for (uint64_t seed = 0; seed < 30; ++seed) {
    TrackerWorld world;
    for (const int run : {0, 1}) {
      const auto tracker = make_csv_tracker(world.setup());
      tracker->start();
      for (int i = 0; i < 300; ++i)
        tracker->log({{"loss", i}, {run ? "b" : "a", 1}}, world.step(i));
      run == 0 ? tracker->finish() : tracker->flush();
    }
    world.disk.crash(Unsynced::kDrawn, simulator::DeterministicRandom(seed));
    const auto tracker = make_csv_tracker(world.setup());
    tracker->start();
    tracker->log({{"loss", -1}}, world.step(0));
    tracker->finish();
    const auto read = column(world, "loss");
    EXPECT_GE(read.size(), 301u);
    EXPECT_EQ(read.back(), "-1");
  }
}

TEST(CsvTrackerTest, ColumnsAreBounded) {
  TrackerWorld world;
  const auto tracker = make_csv_tracker(world.setup());
  tracker->start();
  for (int i = 0; i < 2100; ++i) tracker->log({{"m" + std::to_string(i), i}}, world.step(i));
  tracker->finish();
  EXPECT_EQ(parse(world.file(kFile)).at(0).size(), 2000u);
  EXPECT_THAT(world.warnings, ElementsAre(HasSubstr("`m1997` and other new names are left out")));
}

TEST(CsvTrackerTest, RefusesWhatItDoesNotKnow) {
  TrackerWorld world;
  EXPECT_THAT(error_of([&] { make_csv_tracker(world.setup({{"folder", "x"}})); }),
              HasSubstr("`folder` in its init_kwargs is not known; it knows dir, name"));
  EXPECT_THAT(world.warnings, IsEmpty());
}

TEST(CsvTrackerTest, RanksHaveFoldersOfTheirOwn) {
  TrackerWorld world;
  world.services.rank = 3;
  const auto tracker = make_csv_tracker(world.setup({{"dir", "/sim/x"}}));
  tracker->start();
  tracker->log({{"loss", 1}}, world.step());
  tracker->finish();
  EXPECT_NE(world.file("/sim/x/rank_3/metrics.csv").find("loss"), std::string::npos);
}

}  // namespace
}  // namespace accelerate::trackers
