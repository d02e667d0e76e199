#include "accelerate/profiling/recording.h"

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace accelerate {
namespace {

using Kind = ProfileEvent::Kind;
using ::testing::HasSubstr;
using ::testing::Not;

// linear [0, 10) { t [1, 3), addmm [3, 9) { 256 bytes, a kernel of 4 } }, linear [10, 12).
std::vector<ProfileEvent> recording() {
  return {
      {.name = "linear", .start_ns = 0, .end_ns = 10'000, .shapes = {{2, 3}}, .stack = {"f", "g"}},
      {.name = "t", .start_ns = 1'000, .end_ns = 3'000, .parent = 0},
      {.name = "addmm", .start_ns = 3'000, .end_ns = 9'000, .parent = 0, .flops = 2'000'000},
      {.name = "[memory]", .kind = Kind::kMemory, .parent = 2, .bytes = 256},
      {.name = "linear", .start_ns = 10'000, .end_ns = 12'000, .shapes = {{4, 3}}},
      {.name = "[memory]", .kind = Kind::kMemory, .bytes = -64},
      {.name = "gemm",
       .kind = Kind::kDevice,
       .device_type = c10::kCUDA,
       .start_ns = 20'000,
       .end_ns = 24'000,
       .parent = 2},
  };
}

const EventAverage& row(const EventAverages& averages, const std::string& key) {
  for (const EventAverage& row : averages) {
    if (row.key == key) return row;
  }
  throw std::out_of_range(key);
}

TEST(EventAverages, TellSelfFromTotal) {
  const EventAverages averages(recording(), {});
  EXPECT_EQ(averages.size(), 5);
  EXPECT_EQ(averages.self_cpu_time_total(), 12'000);
  EXPECT_EQ(averages.self_device_time_total(), 4'000);
  const EventAverage& linear = row(averages, "linear");
  EXPECT_EQ(linear.count, 2);
  EXPECT_EQ(linear.cpu_time_total, 12'000);
  EXPECT_EQ(linear.self_cpu_time_total, 4'000);
  EXPECT_EQ(linear.cpu_time(), 6'000);
  EXPECT_EQ(linear.cpu_memory_usage, 256);
  EXPECT_EQ(linear.self_cpu_memory_usage, 0);
  EXPECT_EQ(linear.device_time_total, 4'000);
  EXPECT_EQ(linear.self_device_time_total, 0);
  const EventAverage& addmm = row(averages, "addmm");
  EXPECT_EQ(addmm.self_cpu_memory_usage, 256);
  EXPECT_EQ(addmm.self_device_time_total, 4'000);
  EXPECT_EQ(addmm.flops, 2'000'000);
  EXPECT_EQ(row(averages, "[memory]").self_cpu_memory_usage, -64);
  EXPECT_TRUE(row(averages, "gemm").is_device);
}

TEST(EventAverages, CountAnOperatorInsideItsLikeOnce) {
  const EventAverages averages({{.name = "mean", .end_ns = 10'000},
                                {.name = "mean", .start_ns = 2'000, .end_ns = 9'000, .parent = 0}},
                               {});
  EXPECT_EQ(row(averages, "mean").count, 2);
  EXPECT_EQ(row(averages, "mean").cpu_time_total, 10'000);
  EXPECT_EQ(row(averages, "mean").self_cpu_time_total, 10'000);
  const EventAverages deeper({{.name = "mean", .end_ns = 10'000},
                              {.name = "sum", .start_ns = 1'000, .end_ns = 9'000, .parent = 0},
                              {.name = "mean", .start_ns = 2'000, .end_ns = 8'000, .parent = 1}},
                             {});
  EXPECT_EQ(row(deeper, "mean").cpu_time_total, 10'000);
  EXPECT_EQ(row(deeper, "sum").cpu_time_total, 8'000);
}

TEST(EventAverages, GroupAsAskedTo) {
  EXPECT_EQ(EventAverages(recording(), {.group_by_input_shape = true}).size(), 6);
  EXPECT_EQ(EventAverages(recording(), {.group_by_stack_n = 1}).size(), 6);
  EXPECT_THAT(EventAverages(recording(), {.group_by_input_shape = true}).table(),
              HasSubstr("[[4, 3]]"));
  EXPECT_THAT(EventAverages(recording(), {.group_by_stack_n = 2}).table(), HasSubstr("f < g"));
}

TEST(EventAverages, DrawATable) {
  const EventAverages averages(
      {{.name = "mm", .end_ns = 3'000'000, .flops = 2'500'000},
       {.name = "add", .start_ns = 3'000'000, .end_ns = 4'000'000},
       {.name = "[memory]", .kind = Kind::kMemory, .parent = 1, .bytes = 2048}},
      {});
  EXPECT_EQ(averages.table({.sort_by = "self_cpu_time_total"}),
            "----  ----------  --------  -----------  ---------  ------------  -------  "
            "------------  ----------  ------------\n"
            "Name  Self CPU %  Self CPU  CPU total %  CPU total  CPU time avg  CPU Mem  "
            "Self CPU Mem  # of Calls  Total MFLOPs\n"
            "----  ----------  --------  -----------  ---------  ------------  -------  "
            "------------  ----------  ------------\n"
            "  mm      75.00%   3.000ms       75.00%    3.000ms       3.000ms      0 b  "
            "         0 b           1         2.500\n"
            " add      25.00%   1.000ms       25.00%    1.000ms       1.000ms  2.00 Kb  "
            "     2.00 Kb           1            --\n"
            "----  ----------  --------  -----------  ---------  ------------  -------  "
            "------------  ----------  ------------\n"
            "Self CPU time total: 4.000ms\n");
}

TEST(EventAverages, SortAndLimitTheTable) {
  const EventAverages averages(recording(), {});
  const std::string table = averages.table({.sort_by = "self_cpu_time_total", .row_limit = 1});
  EXPECT_THAT(table, HasSubstr("addmm"));
  EXPECT_THAT(table, Not(HasSubstr("linear")));
  EXPECT_THAT(averages.table({.sort_by = "self_cuda_time_total", .row_limit = 2}),
              HasSubstr("gemm"));
  EXPECT_THAT(averages.table({.top_level_events_only = true}), Not(HasSubstr("addmm")));
  EXPECT_THAT(averages.table({.max_name_column_width = 4, .header = "Epoch 1"}),
              testing::AllOf(HasSubstr("l..."), HasSubstr("Epoch 1")));
  EXPECT_THROW(averages.table({.sort_by = "name"}), c10::ValueError);
}

// Makes a recording, event by event.
class Recorder {
 public:
  size_t op(const std::string& name, int64_t ns, std::optional<size_t> parent = std::nullopt,
            uint64_t flops = 0) {
    events.push_back({.name = name, .end_ns = ns, .parent = parent, .flops = flops});
    return events.size() - 1;
  }
  void memory(size_t parent, c10::DeviceType device, int64_t bytes) {
    events.push_back({.name = "[memory]",
                      .kind = Kind::kMemory,
                      .device_type = device,
                      .parent = parent,
                      .bytes = bytes});
  }
  void kernel(size_t parent, int64_t ns) {
    events.push_back({.name = absl::StrCat("kernel ", ns),
                      .kind = Kind::kDevice,
                      .device_type = c10::kCUDA,
                      .end_ns = ns,
                      .parent = parent});
  }

  std::vector<ProfileEvent> events;
};

// For each column an operator that is the first by this column and by no other.
TEST(EventAverages, SortByEachColumn) {
  Recorder record;
  for (int i = 0; i < 9; ++i) record.op("count", 1);
  record.op("self_cpu_time_total", 1000);
  for (int i = 0; i < 2; ++i) {
    const size_t outer = record.op("cpu_time_total", 750);
    record.op("a", 400, outer);
    record.op("b", 300, outer);
  }
  const size_t longest = record.op("cpu_time", 1100);
  record.op("c", 550, longest);
  record.op("d", 500, longest);
  record.op("flops", 1, std::nullopt, 7);
  for (const auto& [device, self, total] :
       {std::tuple(c10::kCPU, "self_cpu_memory_usage", "cpu_memory_usage"),
        std::tuple(c10::kCUDA, "self_device_memory_usage", "device_memory_usage")}) {
    record.memory(record.op(self, 1), device, 500);
    const size_t outer = record.op(total, 5);
    for (const char* inner : {"e", "f"}) {
      record.memory(record.op(absl::StrCat(inner, self), 1, outer), device, 400);
    }
  }
  const size_t own = record.op("self_device_time_total", 1);
  record.kernel(own, 26);
  record.kernel(own, 24);
  for (int i = 0; i < 2; ++i) {
    const size_t outer = record.op("device_time_total", 5);
    record.kernel(record.op("g", 1, outer), 14);
    record.kernel(record.op("h", 1, outer), 16);
  }
  const size_t most = record.op("device_time", 5);
  record.kernel(record.op("i", 1, most), 27);
  record.kernel(record.op("j", 1, most), 28);

  const EventAverages averages(record.events, {});
  for (const char* column :
       {"count", "self_cpu_time_total", "cpu_time_total", "cpu_time", "flops",
        "self_cpu_memory_usage", "cpu_memory_usage", "self_device_memory_usage",
        "device_memory_usage", "self_device_time_total", "device_time_total", "device_time"}) {
    const std::string table =
        averages.table({.sort_by = column, .row_limit = 1, .max_name_column_width = 30});
    // Behind the rule, the titles and the rule.
    const std::vector<std::string> lines = absl::StrSplit(table, '\n');
    EXPECT_THAT(lines[3], testing::ContainsRegex(absl::StrCat("^ *", column, " "))) << table;
  }
}

TEST(EventAverages, WriteAmountsInTheUnitOfTheirSize) {
  const auto table = [](int64_t ns, int64_t bytes) {
    Recorder record;
    record.memory(record.op("mm", ns), c10::kCPU, bytes);
    return EventAverages(record.events, {}).table();
  };
  EXPECT_THAT(table(999, 1023), testing::AllOf(HasSubstr(" 0.999us "), HasSubstr(" 1023 b ")));
  EXPECT_THAT(table(999'999, 1024),
              testing::AllOf(HasSubstr(" 999.999us "), HasSubstr(" 1.00 Kb ")));
  EXPECT_THAT(table(1'000'000, 1 << 20),
              testing::AllOf(HasSubstr(" 1.000ms "), HasSubstr(" 1.00 Mb ")));
  EXPECT_THAT(table(1'000'000'000, -(1 << 30)),
              testing::AllOf(HasSubstr(" 1.000s "), HasSubstr(" -1.00 Gb ")));
}

TEST(EventAverages, LeaveOutWhatWasNotRecorded) {
  const std::string table = EventAverages({{.name = "mm", .end_ns = 5}}, {}).table();
  for (const char* column : {"Mem", "Device", "FLOPs", "Shapes", "Source"}) {
    EXPECT_THAT(table, Not(HasSubstr(column)));
  }
  EXPECT_THAT(EventAverages({}, {}).table(), HasSubstr("Self CPU time total: 0.000us"));
  // Memory that an inner operator has taken, and whose row is beyond the limit.
  const EventAverages averages(
      {{.name = "linear", .end_ns = 9},
       {.name = "mm", .end_ns = 5, .parent = 0},
       {.name = "[memory]", .kind = Kind::kMemory, .parent = 1, .bytes = 64}},
      {});
  EXPECT_THAT(averages.table(), HasSubstr("  Self CPU Mem"));
  const std::string first = averages.table({.row_limit = 1});
  EXPECT_THAT(first, HasSubstr("  CPU Mem"));
  EXPECT_THAT(first, Not(HasSubstr("Self CPU Mem")));
}

using nlohmann::json;

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
  std::vector<std::pair<std::string, double>> arrow;
  for (const json& event : trace["traceEvents"]) {
    if (event["name"] == "fwdbwd")
      arrow.emplace_back(event["ph"].get<std::string>(), event["ts"].get<double>());
  }
  EXPECT_THAT(arrow, testing::ElementsAre(testing::Pair("s", 1.002), testing::Pair("f", 4.0)));
}

// What each device holds by then, from the beginning of the recording on.
TEST(ChromeTrace, AddsUpTheMemoryOfEachDevice) {
  struct Change {
    c10::DeviceType device;
    int index;
    int64_t bytes;
    int64_t held;
  };
  const Change changes[] = {{c10::kCPU, 0, 64, 64},  {c10::kCUDA, 0, 10, 10},
                            {c10::kCUDA, 1, 5, 5},   {c10::kCPU, 0, -80, -16},
                            {c10::kCUDA, 0, 32, 42}, {c10::kCUDA, 1, -5, 0}};
  std::vector<ProfileEvent> events;
  for (const Change& each : changes) {
    events.push_back({.name = "[memory]",
                      .kind = Kind::kMemory,
                      .device_type = each.device,
                      .device_index = each.index,
                      .bytes = each.bytes});
  }
  const json trace = json::parse(chrome_trace(events, kRankOne));
  std::vector<json> shown;
  for (const json& event : trace["traceEvents"]) {
    if (event["name"] == "[memory]") shown.push_back(event["args"]);
  }
  ASSERT_EQ(shown.size(), std::size(changes));
  for (size_t i = 0; i < shown.size(); ++i) {
    EXPECT_EQ(shown[i], json({{"Bytes", changes[i].bytes},
                              {"Total Allocated", changes[i].held},
                              {"Device Type", static_cast<int>(changes[i].device)},
                              {"Device Id", changes[i].index}}))
        << i;
  }
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

}  // namespace
}  // namespace accelerate
