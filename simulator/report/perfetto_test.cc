#include "simulator/report/report.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "simulator/testing/report/sample_trace.h"
#include "simulator/trace/recorder.h"

namespace accelerate::simulator {
namespace {

using Json = nlohmann::json;
using ::testing::HasSubstr;

std::string written(const Trace& trace, size_t max_slices = kMaxTraceSlices) {
  const std::string path = ::testing::TempDir() + "/trace.json";
  const absl::Status status = write_perfetto(trace, path, max_slices);
  EXPECT_TRUE(status.ok()) << status;
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

std::vector<Json> events_of(const Trace& trace, const std::string& phases) {
  const Json document = Json::parse(written(trace));
  std::vector<Json> events;
  for (const Json& event : document.at("traceEvents")) {
    if (phases.find(event.at("ph").get<std::string>()) != std::string::npos) {
      events.push_back(event);
    }
  }
  return events;
}

// Two ranks, of which the second comes late to an all-reduce; then a message back.
Trace two_ranks() {
  Trace trace;
  trace.topology = "1x2";
  trace.world_size = 2;
  trace.ranks_per_node = 2;
  trace.names = {"", "aten::mm", "ALLREDUCE", "SEND", "default_pg", "ring"};
  trace.operations = {{.name = 2, .group = 4, .algorithm = 5, .bytes = 64, .ranks = {0, 1}},
                      {.name = 3, .group = 4, .bytes = 8, .ranks = {1, 0}}};
  trace.slices = {
      {.start_ns = 0, .end_ns = 1500, .rank = 0, .name = 1},
      {.start_ns = 1000,
       .end_ns = 4001,
       .rank = 0,
       .stream = 1,
       .name = 2,
       .kind = SliceKind::kCollective,
       .operation = 0},
      {.start_ns = 2000,
       .end_ns = 4001,
       .rank = 1,
       .stream = 1,
       .name = 2,
       .kind = SliceKind::kCollective,
       .operation = 0},
      // The receiver waits from before the sender starts.
      {.start_ns = 5000,
       .end_ns = 9000,
       .rank = 0,
       .stream = 1,
       .name = 3,
       .kind = SliceKind::kMessage,
       .operation = 1},
      {.start_ns = 7000,
       .end_ns = 8000,
       .rank = 1,
       .stream = kHostStream,
       .name = 3,
       .kind = SliceKind::kMessage,
       .operation = 1},
  };
  trace.memory = {{.at_ns = 1234, .rank = 1, .bytes = {1, 2, 3, 4, 5, 6, 7}}};
  return trace;
}

TEST(Perfetto, WritesSlicesInMicrosecondsWithTheirNanoseconds) {
  const std::vector<Json> slices = events_of(two_ranks(), "X");
  ASSERT_EQ(slices.size(), 5u);
  EXPECT_EQ(slices[0].at("name"), "aten::mm");
  EXPECT_EQ(slices[0].at("dur"), 1.5);
  EXPECT_EQ(slices[1].at("ts"), 1.0);
  EXPECT_EQ(slices[1].at("dur"), 3.001);
  EXPECT_EQ(slices[1].at("cat"), "collective");
  EXPECT_EQ(slices[1].at("args").at("bytes"), 64);
  EXPECT_EQ(slices[1].at("args").at("group"), "default_pg");
  EXPECT_EQ(slices[1].at("args").at("algorithm"), "ring");
  EXPECT_EQ(slices[1].at("args").at("ranks"), "0-1");
  EXPECT_NE(slices[1].at("pid"), slices[2].at("pid"));
  EXPECT_EQ(slices[1].at("tid"), slices[2].at("tid"));
}

TEST(Perfetto, LeadsAnArrowThroughTheMembersOfACollective) {
  const std::vector<Json> flows = events_of(two_ranks(), "stf");
  ASSERT_EQ(flows.size(), 4u);
  EXPECT_EQ(flows[0].at("ph"), "s");
  EXPECT_EQ(flows[0].at("pid"), 1);
  EXPECT_EQ(flows[0].at("ts"), 1.0);
  EXPECT_EQ(flows[1].at("ph"), "f");
  EXPECT_EQ(flows[1].at("bp"), "e");
  EXPECT_EQ(flows[1].at("pid"), 2);
  EXPECT_EQ(flows[1].at("ts"), 2.0);
  EXPECT_EQ(flows[0].at("id"), flows[1].at("id"));
}

TEST(Perfetto, LeadsAnArrowFromSenderToReceiverForwardInTime) {
  const std::vector<Json> flows = events_of(two_ranks(), "stf");
  EXPECT_EQ(flows[2].at("ph"), "s");
  EXPECT_EQ(flows[2].at("pid"), 2);
  EXPECT_EQ(flows[2].at("ts"), 7.0);
  EXPECT_EQ(flows[3].at("pid"), 1);
  EXPECT_EQ(flows[3].at("ts"), 7.0);
  EXPECT_NE(flows[2].at("id"), flows[0].at("id"));
}

TEST(Perfetto, LeadsNoArrowThroughAWait) {
  Trace trace = two_ranks();
  trace.operations[0].last_rank = 1;
  trace.operations[0].spread_ns = 1000;
  trace.slices[1].start_ns = 2000;
  trace.slices.insert(trace.slices.begin() + 1, {.start_ns = 1000,
                                                 .end_ns = 2000,
                                                 .rank = 0,
                                                 .stream = 1,
                                                 .kind = SliceKind::kWait,
                                                 .operation = 0});
  const std::vector<Json> flows = events_of(trace, "stf");
  ASSERT_EQ(flows.size(), 4u);
  EXPECT_EQ(flows[0].at("ts"), 2.0);
  EXPECT_EQ(flows[1].at("ts"), 2.0);
  const std::vector<Json> slices = events_of(trace, "X");
  EXPECT_EQ(slices[1].at("cat"), "wait");
  EXPECT_EQ(slices[1].at("args").at("last_rank"), 1);
  EXPECT_EQ(slices[1].at("args").at("spread_ns"), 1000);
}

TEST(Perfetto, CountsMemoryByCategory) {
  const std::vector<Json> counters = events_of(two_ranks(), "C");
  ASSERT_EQ(counters.size(), 1u);
  EXPECT_EQ(counters[0].at("ts"), 1.234);
  EXPECT_EQ(counters[0].at("pid"), 2);
  EXPECT_EQ(counters[0].at("args").at("parameters"), 1);
  EXPECT_EQ(counters[0].at("args").at("temporaries"), 7);
}

TEST(Perfetto, ShowsWhereFaultsStruck) {
  Trace trace = two_ranks();
  trace.names.push_back("rank 1 at step 2: exception(\"no\")");
  trace.strikes = {{.rank = 1, .rule = 6, .at_ns = 2500}};
  const std::vector<Json> strikes = events_of(trace, "i");
  ASSERT_EQ(strikes.size(), 1u);
  EXPECT_EQ(strikes[0].at("name"), trace.names[6]);
  EXPECT_EQ(strikes[0].at("cat"), "fault");
  EXPECT_EQ(strikes[0].at("pid"), 2) << "rank 1";
  EXPECT_EQ(strikes[0].at("ts"), 2.5);
}

TEST(Perfetto, NamesRanksAndStreams) {
  std::map<std::pair<int, int>, std::string> threads;
  std::map<int, std::string> processes;
  for (const Json& event : events_of(two_ranks(), "M")) {
    const int pid = event.at("pid");
    if (event.at("name") == "process_name") processes[pid] = event.at("args").at("name");
    if (event.at("name") == "thread_name") {
      threads[{pid, event.at("tid").get<int>()}] = event.at("args").at("name");
    }
  }
  EXPECT_EQ(processes[2], "rank 1 (node 0)");
  EXPECT_EQ((threads[{1, 2}]), "stream 0");
  EXPECT_EQ((threads[{2, 1}]), "host");
  EXPECT_EQ(threads.size(), 4u);
}

TEST(Perfetto, ShowsTheDevicesOfARankApart) {
  Trace trace = two_ranks();
  trace.devices_per_rank = 2;
  trace.slices.push_back({.start_ns = 100, .end_ns = 300, .rank = 1, .name = 1, .device = 1});
  trace.memory.push_back({.at_ns = 1300, .rank = 1, .device = 1});
  std::set<std::string> threads;
  for (const Json& event : events_of(trace, "M")) {
    if (event.at("name") == "thread_name" && event.at("pid") == 2) {
      threads.insert(event.at("args").at("name"));
    }
  }
  EXPECT_THAT(threads, testing::ElementsAre("host", "sim:2 stream 1", "sim:3 stream 0"));
  std::vector<std::string> counters;
  for (const Json& event : events_of(trace, "C")) counters.push_back(event.at("name"));
  EXPECT_THAT(counters, testing::ElementsAre("memory of sim:2", "memory of sim:3"));
}

TEST(Perfetto, PutsTheDiskBelowTheStreams) {
  Trace trace = two_ranks();
  for (const int32_t stream : {kDiskStream, kDiskWriteStream}) {
    trace.slices.push_back({.start_ns = 100,
                            .end_ns = 900,
                            .rank = 1,
                            .stream = stream,
                            .name = 1,
                            .kind = SliceKind::kDisk});
  }
  std::map<std::string, int> threads;
  for (const Json& event : events_of(trace, "M")) {
    if (event.at("pid") == 2 && event.at("name") == "thread_name") {
      threads[event.at("args").at("name")] = event.at("tid");
    }
  }
  EXPECT_EQ(threads.size(), 4u);
  EXPECT_GT(threads.at("disk, reading"), threads.at("stream 1"));
  EXPECT_GT(threads.at("disk, writing"), threads.at("disk, reading"));
}

// The format's rules for every event; arrows must start once and end once within slices.
TEST(Perfetto, WritesOnlyWellFormedEvents) {
  const Trace trace = make_sample_trace({.ranks = 16, .steps = 2, .layers = 3});
  const Json document = Json::parse(written(trace));
  std::map<std::pair<int, int>, std::vector<std::pair<double, double>>> slices;
  std::map<int, std::string> flows;
  std::set<std::pair<int, int>> named;
  size_t counted = 0;
  for (const Json& event : document.at("traceEvents")) {
    const std::string phase = event.at("ph");
    const int pid = event.at("pid");
    EXPECT_TRUE(pid >= 1 && pid <= 16) << event;
    EXPECT_FALSE(event.at("name").get<std::string>().empty()) << event;
    if (phase == "M") {
      EXPECT_EQ(event.at("args").size(), 1u) << event;
      if (event.at("name") == "thread_name") named.insert({pid, event.at("tid").get<int>()});
      continue;
    }
    EXPECT_GE(event.at("ts").get<double>(), 0) << event;
    if (phase == "C") {
      EXPECT_EQ(event.at("args").size(), kNumMemoryCategories) << event;
      for (const Json& bytes : event.at("args")) EXPECT_GE(bytes.get<int64_t>(), 0) << event;
      ++counted;
      continue;
    }
    const std::pair<int, int> place{pid, event.at("tid").get<int>()};
    EXPECT_TRUE(named.contains(place)) << event;
    const double at = event.at("ts");
    if (phase == "X") {
      EXPECT_GE(event.at("dur").get<double>(), 0) << event;
      slices[place].push_back({at, at + event.at("dur").get<double>()});
      continue;
    }
    ASSERT_THAT(std::string("stf"), HasSubstr(phase)) << event;
    flows[event.at("id").get<int>()] += phase;
    const auto& here = slices[place];
    EXPECT_TRUE(std::any_of(here.begin(), here.end(), [at](const auto& slice) {
      return slice.first <= at && at < slice.second;
    })) << event;
  }
  EXPECT_EQ(counted, trace.memory.size());
  EXPECT_EQ(flows.size(), trace.operations.size());
  for (const auto& [id, phases] : flows) {
    EXPECT_EQ(phases.front(), 's') << id;
    EXPECT_EQ(phases.find_first_not_of('t', 1), phases.size() - 1) << id << ": " << phases;
    EXPECT_EQ(phases.back(), 'f') << id;
  }
}

TEST(Perfetto, ShowsALongRunWithLessDetail) {
  const Trace trace = make_sample_trace({.ranks = 8, .steps = 5});
  ASSERT_GT(trace.slices.size(), 8000u);
  const Json document = Json::parse(written(trace, 3000));
  size_t slices = 0;
  size_t samples = 0;
  size_t counted = 0;
  for (const Json& event : document.at("traceEvents")) {
    if (event.at("ph") == "C") ++samples;
    if (event.at("ph") != "X") continue;
    ++slices;
    const Json args = event.value("args", Json::object());
    counted += args.value("slices", size_t{1});
  }
  EXPECT_LE(slices, 3000u);
  EXPECT_GE(slices, 500u);
  EXPECT_EQ(counted, trace.slices.size());
  EXPECT_EQ(document.at("otherData").at("recorded_slices"), trace.slices.size());
  EXPECT_EQ(document.at("otherData").at("shown_slices"), slices);
  EXPECT_GT(samples, 0u);
  EXPECT_LT(samples, trace.memory.size());
}

TEST(Perfetto, WritesEqualBytesForEqualTraces) {
  const SampleOptions options{.ranks = 4, .steps = 1};
  EXPECT_EQ(written(make_sample_trace(options)), written(make_sample_trace(options)));
}

TEST(Perfetto, SaysWhichFileItCannotWrite) {
  const absl::Status status = write_perfetto(Trace(), "/proc/no such folder/trace.json");
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(status.message(), HasSubstr("/proc/no such folder/trace.json"));
}

}  // namespace
}  // namespace accelerate::simulator
