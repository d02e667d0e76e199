#include "accelerate/profiling/chrome_trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace accelerate {
namespace {

using nlohmann::json;
using Kind = ProfileEvent::Kind;

const Topology kRankOne = {.rank = 1, .world_size = 4};
constexpr int64_t kDayNs = int64_t{24} * 3600 * 1'000'000'000;

const json& named(const json& trace, const std::string& name) {
  for (const json& event : trace["traceEvents"]) {
    if (event["name"] == name) return event;
  }
  throw std::out_of_range(name);
}

TEST(ChromeTrace, TellsOfEachKind) {
  const std::string text = chrome_trace({{.name = "aten::mm",
                                          .thread = 1,
                                          .start_ns = 3 * kDayNs + 1'002,
                                          .end_ns = 3 * kDayNs + 3'005,
                                          .id = 1,
                                          .sequence_nr = 7,
                                          .shapes = {{2, 3}, {}},
                                          .types = {"float", "Scalar"},
                                          .flops = 12,
                                          .module = "fc1",
                                          .stack = {"train()", "main"}},
                                         {.name = "[memory]",
                                          .kind = Kind::kMemory,
                                          .thread = 1,
                                          .start_ns = 3 * kDayNs + 2'000,
                                          .parent = 0,
                                          .bytes = 64},
                                         {.name = "MmBackward0",
                                          .kind = Kind::kBackward,
                                          .thread = 1,
                                          .start_ns = 3 * kDayNs + 4'000,
                                          .end_ns = 3 * kDayNs + 5'000,
                                          .id = 3,
                                          .sequence_nr = 7},
                                         {.name = "Step \"one\"\n",
                                          .kind = Kind::kAnnotation,
                                          .thread = 1,
                                          .start_ns = 3 * kDayNs + 5'000,
                                          .end_ns = 3 * kDayNs + 6'000,
                                          .id = 4},
                                         {.name = "gemm",
                                          .kind = Kind::kDevice,
                                          .device_type = c10::kCUDA,
                                          .thread = 2,
                                          .start_ns = 3 * kDayNs + 9'000,
                                          .end_ns = 3 * kDayNs + 10'000,
                                          .parent = 0,
                                          .id = 5}},
                                        kRankOne);
  const json trace = json::parse(text);
  EXPECT_EQ(trace["baseTimeNanoseconds"], 3 * kDayNs);
  EXPECT_EQ(trace["distributedInfo"], json({{"rank", 1}, {"world_size", 4}}));
  EXPECT_EQ(named(trace, "process_name")["args"]["name"], "rank 1 of 4");
  const json& mm = named(trace, "aten::mm");
  EXPECT_EQ(mm["ph"], "X");
  EXPECT_EQ(mm["cat"], "cpu_op");
  EXPECT_EQ(mm["pid"], 1);
  EXPECT_EQ(mm["ts"], 1.002);
  EXPECT_EQ(mm["dur"], 2.003);
  EXPECT_EQ(mm["args"], json::parse(R"({"External id": 1, "Sequence number": 7,
      "Input Dims": [[2, 3], []], "Input type": ["float", "Scalar"], "flops": 12,
      "Module Hierarchy": "fc1", "Call stack": "train();main"})"));
  EXPECT_EQ(named(trace, "[memory]")["args"]["Bytes"], 64);
  EXPECT_EQ(named(trace, "Step \"one\"\n")["cat"], "user_annotation");
  const json& gemm = named(trace, "gemm");
  EXPECT_EQ(gemm["cat"], "kernel");
  EXPECT_EQ(gemm["args"]["External id"], 1);
  EXPECT_NE(gemm["tid"], mm["tid"]);
  EXPECT_EQ(named(trace, "fwdbwd")["ph"], "s");
}

TEST(ChromeTrace, MayBeOfNothing) {
  EXPECT_EQ(json::parse(chrome_trace({}, kRankOne))["traceEvents"].size(), 1);
}

TEST(KinetoTrace, GetsTheRankAndWhatKinetoDoesNotKnow) {
  const std::string text = R"({
  "schemaVersion": 1,
  "traceEvents": [
  {"ph": "X", "name": "a \"External id\": 2 {", "args": {"External id": 1,"Ev Idx": 0}},
  {"ph": "X", "name": "b", "args": {"External id": 2}},
  {"name": "process_name", "ph": "M", "pid": 9, "args": {"name": "a \"program\""}},
  {"name": "process_name", "ph": "M", "pid": 0, "args": {"name": "GPU"}}
  ],
  "baseTimeNanoseconds": 5
})";
  const json trace = json::parse(label_kineto_trace(
      text, kRankOne, {{2, {.module = "fc1", .stack = {"f<\"x\">", "g"}}}, {3, {.module = "no"}}}));
  EXPECT_EQ(trace["distributedInfo"]["rank"], 1);
  const json& events = trace["traceEvents"];
  EXPECT_EQ(events[0], json::parse(text)["traceEvents"][0]);
  EXPECT_EQ(events[1]["args"],
            json({{"External id", 2}, {"Module Hierarchy", "fc1"}, {"Call stack", "f<\"x\">;g"}}));
  EXPECT_EQ(events[2]["args"]["name"], "rank 1 of 4");
  EXPECT_EQ(events[3]["args"]["name"], "GPU");
  EXPECT_EQ(trace["baseTimeNanoseconds"], 5);
}

TEST(KinetoTrace, IsWholeOrNot) {
  EXPECT_TRUE(is_whole_trace("{\"traceEvents\": [{}]}\n"));
  EXPECT_FALSE(is_whole_trace("{\"traceEvents\": [{}"));
  EXPECT_FALSE(is_whole_trace(""));
}

}  // namespace
}  // namespace accelerate
