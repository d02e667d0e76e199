#include "simulator/report/report.h"

#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "absl/strings/str_join.h"
#include "simulator/report/report_text.h"
#include "simulator/testing/report/sample_trace.h"

namespace accelerate::simulator {
namespace {

using Json = nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

std::string text_of(const std::filesystem::path& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// Writes a report into a folder that does not exist.
std::filesystem::path reported(const Trace& trace, const char* name) {
  const std::filesystem::path directory = std::filesystem::path(::testing::TempDir()) / name;
  std::filesystem::remove_all(directory);
  const absl::Status status = write_report(trace, directory / "below");
  EXPECT_TRUE(status.ok()) << status;
  return directory / "below";
}

// The data that a page holds.
Json data_of(const std::string& page) {
  const std::string mark = "<script type=\"application/json\" id=\"data\">";
  const size_t begin = page.find(mark) + mark.size();
  return Json::parse(page.substr(begin, page.find("</script>", begin) - begin));
}

size_t times_in(const std::string& part, const std::string& text) {
  size_t count = 0;
  for (size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST(Report, SaysWhatIsPredictedOfCompiledRegions) {
  Trace trace = make_sample_trace({.ranks = 2, .ranks_per_node = 2, .steps = 3});
  const auto says = [&] { return absl::StrJoin(report_lines(trace, "out"), "\n"); };
  EXPECT_THAT(says(), Not(HasSubstr("predicted")));
  trace.predicted_ns = (trace.ranks[0].compute_ns + trace.ranks[1].compute_ns) / 4;
  EXPECT_THAT(says(), HasSubstr("compiled regions: 25.0 % of the devices' work, predicted"));
  const Json summary = Json::parse(text_of(reported(trace, "predicted") / "summary.json"));
  EXPECT_EQ(summary.at("predicted_ns"), trace.predicted_ns);
}

TEST(Report, WritesThreeFilesInANewFolder) {
  const Trace trace = make_sample_trace({.ranks = 4, .ranks_per_node = 2, .steps = 3});
  const std::filesystem::path directory = reported(trace, "three");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(directory), {}), 3);
  EXPECT_FALSE(Json::parse(text_of(directory / "trace.json")).at("traceEvents").empty());
  const Json summary = Json::parse(text_of(directory / "summary.json"));
  EXPECT_EQ(summary.at("topology"), "2x2:h100");
  EXPECT_EQ(summary.at("seed"), "7");
  EXPECT_EQ(summary.at("world_size"), 4);
  EXPECT_EQ(summary.at("executed_ranks"), 4);
  EXPECT_EQ(summary.at("elapsed_ns"), elapsed_ns(trace));
  EXPECT_EQ(summary.at("steps").at("count"), 3);
  EXPECT_EQ(summary.at("steps").at("median_ns"), step_times(trace)->median_ns);
  EXPECT_EQ(summary.at("ranks").size(), 4u);
  EXPECT_EQ(summary.at("ranks")[2].at("exposed_ns"), trace.ranks[2].exposed_ns);
  EXPECT_EQ(summary.at("ranks")[2].at("at_peak").size(), kNumMemoryCategories);
  EXPECT_EQ(summary.at("operators")[0].at("name"), "aten::linear");
  EXPECT_EQ(summary.at("operators").size(), trace.operators.size());
  ASSERT_EQ(summary.at("collectives").size(), 1u);
  const Json& all_reduce = summary.at("collectives")[0];
  EXPECT_EQ(all_reduce.at("name"), "ALLREDUCE");
  EXPECT_EQ(all_reduce.at("algorithm"), "ring");
  EXPECT_EQ(all_reduce.at("ranks"), 4);
  EXPECT_EQ(all_reduce.at("calls"), trace.collectives[0].calls);
  EXPECT_EQ(all_reduce.at("shared_ns"), trace.collectives[0].shared_ns);
  EXPECT_EQ(all_reduce.at("bus_bytes"), 1.5 * all_reduce.at("bytes").get<double>());
}

TEST(Report, PutsEverythingIntoThePage) {
  const Trace trace = make_sample_trace({.ranks = 4, .ranks_per_node = 2, .steps = 2});
  const Json data = data_of(text_of(reported(trace, "page") / "report.html"));
  EXPECT_EQ(data.at("worldSize"), 4);
  EXPECT_EQ(data.at("elapsed"), elapsed_ns(trace));
  EXPECT_EQ(data.at("recordedSlices"), trace.slices.size());
  EXPECT_EQ(data.at("stepEnds").size(), 2u);
  EXPECT_EQ(data.at("operations").size(), trace.operations.size());
  EXPECT_EQ(data.at("collectives").size(), trace.collectives.size());
  EXPECT_EQ(data.at("matrix").at("size"), 4);
  const Traffic& first = trace.communication.at(0);
  const Json& views = data.at("matrix").at("views");
  EXPECT_EQ(views.at(0).at(1).at(first.source * 4 + first.target), first.bytes);
  size_t slices = 0;
  for (const Json& track : data.at("tracks")) slices += track.at(3).size() / 4;
  EXPECT_EQ(slices, trace.slices.size());
  ASSERT_EQ(data.at("memory").size(), 4u);
  EXPECT_EQ(data.at("memory")[0].at(2).size() % (1 + kNumMemoryCategories), 0u);
}

TEST(Report, TellsTheTrafficAlongTheAxesOfAMesh) {
  const Trace trace = make_sample_trace({.ranks = 4, .ranks_per_node = 2, .steps = 2});
  const std::filesystem::path directory = reported(trace, "axes");
  const Json data = data_of(text_of(directory / "report.html"));
  EXPECT_EQ(data.at("places"), Json::array({"dp_replicate 0, tp 0", "dp_replicate 0, tp 1",
                                            "dp_replicate 1, tp 0", "dp_replicate 1, tp 1"}));
  const Json& views = data.at("matrix").at("views");
  ASSERT_EQ(views.size(), 3u);
  EXPECT_EQ(views.at(1).at(0), "no axis");
  EXPECT_EQ(views.at(2).at(0), "dp_replicate");
  double all = 0;
  double along_dp = 0;
  for (const Traffic& pair : trace.communication) {
    all += pair.bytes;
    if (pair.axis == 0) along_dp += pair.bytes;
  }
  ASSERT_GT(along_dp, 0);
  double shown = 0;
  for (const double bytes : views.at(2).at(1)) shown += bytes;
  EXPECT_EQ(shown, along_dp);
  const Json summary = Json::parse(text_of(directory / "summary.json"));
  EXPECT_EQ(summary.at("traffic_by_axis"),
            Json({{"dp_replicate", along_dp}, {"tp", 0.0}, {"none", all - along_dp}}));
  EXPECT_EQ(summary.at("ranks")[3].at("place"), "dp_replicate 1, tp 1");
  EXPECT_THAT(text_of(directory / "trace.json"),
              HasSubstr("rank 3 (node 1, dp_replicate 1, tp 1)"));
}

TEST(Report, NamesTheProgramItsLibrariesAndWhatDecidesBits) {
  const Trace trace = make_sample_trace({.ranks = 2, .steps = 1});
  const std::filesystem::path directory = reported(trace, "libraries");
  ASSERT_FALSE(trace.versions.empty() || trace.arithmetic.empty() || trace.program.empty());
  const Json summary = Json::parse(text_of(directory / "summary.json"));
  const Json data = data_of(text_of(directory / "report.html"));
  for (const Json* written : {&summary, &data}) {
    EXPECT_EQ(written->at("versions"), Json(trace.versions));
    EXPECT_EQ(written->at("arithmetic"), Json(trace.arithmetic));
  }
  EXPECT_EQ(summary.at("program"), trace.program);
}

TEST(Report, TellsWhereTheMedianStepGoes) {
  const Trace trace = make_sample_trace({.ranks = 4, .ranks_per_node = 2, .steps = 3});
  const StepTimes times = *step_times(trace);
  const std::filesystem::path directory = reported(trace, "shares");
  const Json steps = Json::parse(text_of(directory / "summary.json")).at("steps");
  double phases = 0;
  for (const auto& [name, ns] : steps.at("phases_ns").items()) phases += ns.get<double>();
  EXPECT_NEAR(phases, (trace.steps[2].end_ns - trace.steps[0].end_ns) / 2.0, 1);
  int64_t shares = 0;
  for (const auto& [name, ns] : steps.at("shares_ns").items()) shares += ns.get<int64_t>();
  EXPECT_EQ(shares, times.median_ns);
  EXPECT_GT(steps.at("shares_ns").at("matrix products"), 0);
  EXPECT_GT(steps.at("mfu"), 0);
  const Json data = data_of(text_of(directory / "report.html"));
  EXPECT_EQ(data.at("shares").at(0).at(1), steps.at("shares_ns").at("attention"));
  EXPECT_EQ(data.at("phases").at(1).at(0), "backward");
  EXPECT_EQ(data.at("steps").at("mfu"), steps.at("mfu"));
}

TEST(Report, TellsTheCriticalPathOfTheMedianStep) {
  const Trace trace = make_sample_trace({.ranks = 4, .ranks_per_node = 2, .steps = 3});
  const std::filesystem::path directory = reported(trace, "path");
  const Json steps = Json::parse(text_of(directory / "summary.json")).at("steps");
  const Json& path = steps.at("critical_path");
  EXPECT_EQ(path.at("step"), steps.at("median_step"));
  int64_t sum_ns = 0;
  bool names_straggler = false;
  for (const Json& share : path.at("shares")) {
    sum_ns += share.at("ns").get<int64_t>();
    // Rank 2 is the slow one.
    names_straggler |= share.at("part") == "waiting for a straggler" && share.at("rank") == 2;
  }
  EXPECT_EQ(sum_ns, steps.at("median_ns"));
  EXPECT_TRUE(names_straggler) << path;
  EXPECT_EQ(path.at("ranks"), Json::array({0, 2}));
  const Json of_page = data_of(text_of(directory / "report.html")).at("path");
  EXPECT_EQ(of_page.at("shares").size(), path.at("shares").size());
  EXPECT_EQ(of_page.at("shares").at(0).at(2), path.at("shares").at(0).at("ns"));
  EXPECT_EQ(of_page.at("longest").size(), path.at("longest").size());
}

TEST(Report, TellsTheUseOfLinks) {
  const Trace trace = make_sample_trace({.ranks = 4, .ranks_per_node = 2, .steps = 3});
  const std::filesystem::path directory = reported(trace, "links");
  const Json links = Json::parse(text_of(directory / "summary.json")).at("links");
  ASSERT_EQ(links.size(), 2u);
  EXPECT_EQ(links[0].at("kind"), "node links out");
  EXPECT_EQ(links[0].at("links"), 4);
  EXPECT_EQ(links[0].at("bytes"), trace.collectives[0].bus_bytes * 4);
  const Json data = data_of(text_of(directory / "report.html"));
  EXPECT_EQ(data.at("links").at(0).at(5), links[0].at("step_use"));
  EXPECT_EQ(data.at("busiestLinks"), 0);
}

TEST(Report, TellsWhatFillsMemoryAtThePeakByModule) {
  const Trace trace = make_sample_trace({.ranks = 4, .ranks_per_node = 2, .steps = 2});
  const std::filesystem::path directory = reported(trace, "modules");
  const Json summary = Json::parse(text_of(directory / "summary.json"));
  const Json& peak = summary.at("peak");
  const Json& rank = summary.at("ranks").at(peak.at("rank").get<size_t>());
  std::map<std::string, int64_t> sums;
  bool has_layer = false;
  for (const Json& module : peak.at("modules")) {
    has_layer |= module.at("module") == "layers.1";
    for (const auto& [category, bytes] : module.at("bytes").items()) {
      sums[category] += bytes.get<int64_t>();
    }
  }
  EXPECT_TRUE(has_layer);
  for (const auto& [category, bytes] : rank.at("at_peak").items()) {
    EXPECT_EQ(sums[category], bytes) << category;
  }
  const Json data = data_of(text_of(directory / "report.html"));
  ASSERT_EQ(data.at("modules").size(), peak.at("modules").size());
  EXPECT_EQ(data.at("modules").at(0).size(), 2 + kNumMemoryCategories);
}

TEST(Report, SaysInATerminalWhatTheCriticalPathConsistsOf) {
  const Trace trace = make_sample_trace({.ranks = 4, .ranks_per_node = 2, .steps = 3});
  const std::vector<std::string> lines = report_lines(trace, "out");
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_THAT(lines[3], HasSubstr("memory at the peak by module (rank "));
  EXPECT_THAT(lines[3], HasSubstr(" layers.*"));
  EXPECT_THAT(lines[2], HasSubstr("busiest links: node links out, "));
  EXPECT_THAT(lines[0], HasSubstr("report: out/report.html: virtual time "));
  EXPECT_THAT(lines[1], HasSubstr("critical path of the median step ("));
  EXPECT_THAT(lines[1], HasSubstr(" waiting for rank 2"));
  EXPECT_THAT(lines[1], HasSubstr(" communication, ALLREDUCE of default_pg"));
  Trace with_stages = trace;
  with_stages.axes.push_back({.name = "pp", .coordinates = {0, 0, 1, 1}});
  EXPECT_THAT(report_lines(with_stages, "out").at(2),
              AllOf(HasSubstr("stages compute nothing for: pp 0 "), HasSubstr(" %, pp 1 ")));
  Trace with_ring = trace;
  const auto named = [&with_ring](const char* name) {
    with_ring.names.emplace_back(name);
    return static_cast<uint32_t>(with_ring.names.size() - 1);
  };
  const uint32_t hop = named("all_to_all_single"), ring = named("cp of ranks 0,1,2,3");
  for (TraceOperation& each : with_ring.operations) {
    each.name = hop;
    each.group = ring;
  }
  EXPECT_THAT(report_lines(with_ring, "out").at(2),
              AllOf(HasSubstr("ranks exchange parts of sequences for: "),
                    HasSubstr(" % along cp, of it "), HasSubstr(" % without a kernel")));
  Trace without_time = trace;
  without_time.device = "";
  EXPECT_THAT(report_lines(without_time, "out"),
              ElementsAre("report: out/report.html (time is not modelled)"));
}

// Numbers that are all different, so that none can stand in another one's place.
Trace trace_of_different_numbers() {
  Trace trace;
  trace.world_size = 1;
  trace.names = {"", "a", "ring"};
  RankSummary rank;
  rank.end_ns = 11;
  rank.compute_ns = 12;
  rank.communication_ns = 13;
  rank.exposed_ns = 14;
  rank.memory_peak = 15;
  rank.flops = 16;
  rank.driver_peak = 17;
  rank.allocation_retries = 18;
  rank.launches = 19;
  trace.ranks = {rank};
  trace.links = {{.kind = LinkKind::kNicIn,
                  .links = 21,
                  .bytes_per_second = 22,
                  .bytes = 23,
                  .least_bytes = 24,
                  .most_bytes = 25,
                  .use = 26,
                  .worst_use = 27,
                  .step_bytes = 28,
                  .step_use = 29,
                  .worst_step_use = 30,
                  .worst = "all",
                  .mean_busy_ns = 31,
                  .worst_busy_ns = 32}};
  trace.operators = {{.name = 1, .calls = 41, .total_ns = 42, .flops = 43, .bytes = 44}};
  trace.collectives = {{.name = 1,
                        .algorithm = 2,
                        .ranks = 51,
                        .calls = 52,
                        .total_ns = 53,
                        .shared_ns = 54,
                        .bytes = 55,
                        .bus_bytes = 56}};
  trace.allocations = {{.name = 1, .calls = 61, .bytes = 62}};
  trace.synchronisations = {{.name = 1, .calls = 63, .total_ns = 64}};
  trace.modules = {{.module = "m", .calls = 65, .total_ns = 66, .flops = 67, .bytes = 68}};
  trace.files = {{.name = 1, .calls = 71, .bytes = 72, .total_ns = 73}};
  return trace;
}

TEST(Report, SummarisesEachNumberUnderItsName) {
  const std::filesystem::path directory = reported(trace_of_different_numbers(), "numbers");
  const Json summary = Json::parse(text_of(directory / "summary.json"));
  Json rank = summary.at("ranks").at(0);
  rank.erase("at_peak");
  rank.erase("place");
  EXPECT_EQ(rank, Json({{"end_ns", 11},
                        {"compute_ns", 12},
                        {"communication_ns", 13},
                        {"exposed_ns", 14},
                        {"memory_peak", 15},
                        {"flops", 16},
                        {"driver_peak", 17},
                        {"allocation_retries", 18},
                        {"launches", 19}}));
  EXPECT_EQ(summary.at("links").at(0), Json({{"kind", "NICs in"},
                                             {"links", 21},
                                             {"bytes_per_second", 22},
                                             {"bytes", 23},
                                             {"least_bytes", 24},
                                             {"most_bytes", 25},
                                             {"use", 26},
                                             {"worst_use", 27},
                                             {"step_bytes", 28},
                                             {"step_use", 29},
                                             {"worst_step_use", 30},
                                             {"worst", "all"},
                                             {"mean_busy_ns", 31},
                                             {"worst_busy_ns", 32}}));
  EXPECT_EQ(summary.at("operators").at(0),
            Json({{"name", "a"}, {"calls", 41}, {"total_ns", 42}, {"flops", 43}, {"bytes", 44}}));
  EXPECT_EQ(summary.at("collectives").at(0), Json({{"name", "a"},
                                                   {"algorithm", "ring"},
                                                   {"ranks", 51},
                                                   {"calls", 52},
                                                   {"total_ns", 53},
                                                   {"shared_ns", 54},
                                                   {"bytes", 55},
                                                   {"bus_bytes", 56}}));
  EXPECT_EQ(summary.at("allocations").at(0), Json({{"name", "a"}, {"calls", 61}, {"bytes", 62}}));
  EXPECT_EQ(summary.at("synchronisations").at(0),
            Json({{"name", "a"}, {"calls", 63}, {"total_ns", 64}}));
  EXPECT_EQ(summary.at("modules").at(0),
            Json({{"name", "m"}, {"calls", 65}, {"total_ns", 66}, {"flops", 67}, {"bytes", 68}}));
  EXPECT_EQ(summary.at("files").at(0),
            Json({{"name", "a"}, {"calls", 71}, {"bytes", 72}, {"total_ns", 73}}));
}

// The first line, of numbers that are all different.
TEST(Report, SaysInATerminalWhatAllRanksSpent) {
  Trace trace;
  trace.device = "h100";
  trace.world_size = 2;
  trace.names = {""};
  trace.memory_capacity = int64_t{80} << 30;
  trace.ranks.resize(2);
  trace.ranks[0].end_ns = 3'000'000'000;
  trace.ranks[0].communication_ns = 1'000'000'000;
  trace.ranks[0].exposed_ns = 400'000'000;
  trace.ranks[0].memory_peak = int64_t{3} << 30;
  trace.ranks[1].end_ns = 2'000'000'000;
  trace.ranks[1].communication_ns = 250'000'000;
  trace.ranks[1].exposed_ns = 100'000'000;
  trace.ranks[1].memory_peak = int64_t{5} << 30;
  EXPECT_THAT(report_lines(trace, "out")[0],
              EndsWith("peak memory of tensors 5.00 GiB of 80.00 GiB (rank 1), communication "
                       "25.0 % of the time (10.0 % not hidden by computation)"));
  // What the driver shows counts where it is known.
  trace.ranks[0].driver_peak = int64_t{6} << 30;
  trace.ranks[1].driver_peak = int64_t{4} << 30;
  EXPECT_THAT(report_lines(trace, "out")[0],
              HasSubstr("peak memory of a device with its context and cache 6.00 GiB of 80.00 GiB "
                        "(rank 0)"));
}

// Five are named; the rest is one share.
TEST(Report, AddsUpSmallShares) {
  Trace trace;
  trace.device = "h100";
  trace.world_size = 1;
  trace.names = {""};
  trace.ranks.resize(1);
  const auto line_of = [&](int modules) {
    trace.peak_modules.clear();
    for (int i = 0; i < modules; ++i) {
      trace.peak_modules.push_back({.module = std::string(1, static_cast<char>('a' + i))});
      trace.peak_modules.back().bytes[0] = i < 5 ? 20 - i : 1;
    }
    return report_lines(trace, "out").back();
  };
  EXPECT_THAT(line_of(5), EndsWith("22.2 % a; 21.1 % b; 20.0 % c; 18.9 % d; 17.8 % e"));
  EXPECT_THAT(line_of(15),
              EndsWith("20.0 % a; 19.0 % b; 18.0 % c; 17.0 % d; 16.0 % e; 10.0 % others"));
}

// Up to 64 ranks one by one; then nodes, or several of them where more could not be drawn. A few
// large nodes would show nothing.
TEST(Report, ShowsTheTrafficOfManyRanksByBlocks) {
  struct Row {
    int ranks, ranks_per_node, block;
  };
  for (const Row& row : {Row{64, 8, 1}, Row{65, 5, 5}, Row{128, 16, 16}, Row{112, 16, 2},
                         Row{96, 48, 2}, Row{1024, 8, 8}, Row{1032, 8, 16}, Row{2056, 8, 32}}) {
    Trace trace;
    trace.world_size = row.ranks;
    trace.ranks_per_node = row.ranks_per_node;
    trace.ranks.resize(row.ranks);
    trace.names = {""};
    const int last = row.ranks - 1;
    trace.communication = {{0, last, 3}, {last, 0, 5}, {last, last - 1, 7}};
    const Json matrix = data_of(text_of(reported(trace, "blocks") / "report.html")).at("matrix");
    EXPECT_EQ(matrix.at("block"), row.block) << row.ranks;
    const int size = (row.ranks + row.block - 1) / row.block;
    ASSERT_EQ(matrix.at("size"), size) << row.ranks;
    std::vector<double> expected(static_cast<size_t>(size) * size);
    expected[last / row.block] += 3;
    expected[static_cast<size_t>(last / row.block) * size] += 5;
    expected[static_cast<size_t>(last / row.block) * size + (last - 1) / row.block] += 7;
    EXPECT_EQ(matrix.at("views").at(0).at(1), Json(expected)) << row.ranks;
  }
}

TEST(Report, HasOneViewOfTrafficWithoutAMesh) {
  const std::filesystem::path directory = reported(make_sample_trace({.ranks = 3}), "no mesh");
  const Json data = data_of(text_of(directory / "report.html"));
  EXPECT_TRUE(data.at("places").empty());
  EXPECT_EQ(data.at("matrix").at("views").size(), 1u);
}

TEST(Report, SaysHowManyRanksWereExecuted) {
  Trace trace = make_sample_trace({.ranks = 4, .ranks_per_node = 2, .steps = 1});
  trace.counts_as = {0, 0, 2, 0};
  const std::filesystem::path directory = reported(trace, "folded");
  EXPECT_EQ(Json::parse(text_of(directory / "summary.json")).at("executed_ranks"), 2);
  EXPECT_EQ(data_of(text_of(directory / "report.html")).at("executedRanks"), 2);
}

TEST(Report, NamesTheRankThatAnOperationWaitedFor) {
  const Trace trace = make_sample_trace({.ranks = 4, .ranks_per_node = 2, .steps = 1});
  const TraceOperation& first = trace.operations.at(0);
  EXPECT_EQ(first.last_rank, 2);  // The slow one.
  const Json data = data_of(text_of(reported(trace, "last") / "report.html"));
  size_t found = 0;
  for (const Json& operation : data.at("operations")) {
    if (operation.at(7) != first.spread_ns) continue;
    EXPECT_EQ(operation.at(5), first.first_rank);
    EXPECT_EQ(operation.at(6), 2);
    ++found;
  }
  EXPECT_EQ(found, 1u);
  EXPECT_EQ(data.at("kinds").back(), "disk");
}

TEST(Report, ShowsWhereEachRankWasWhenTheRunFailed) {
  Trace trace = make_sample_trace({.ranks = 4, .ranks_per_node = 2, .steps = 1});
  const RankAtFailure waits{"in barrier #1 of group \"world\", waiting for rank 2",
                            "barrier #1 of group \"world\", waits"};
  const RankAtFailure ended{"failed: no <memory>", ""};
  trace.failure = RunFailure{"rank 2 failed: no <memory>", {waits, waits, ended, waits}};
  const std::filesystem::path directory = reported(trace, "failure");
  const Json of_page = data_of(text_of(directory / "report.html")).at("failure");
  EXPECT_EQ(of_page.at("message"), "rank 2 failed: no <memory>");
  ASSERT_EQ(of_page.at("ranks").size(), 2u);
  EXPECT_EQ(of_page.at("ranks")[0], Json::array({"0-1,3", waits.state, waits.last_call}));
  EXPECT_EQ(of_page.at("ranks")[1], Json::array({"2", ended.state, ""}));
  const Json summary = Json::parse(text_of(directory / "summary.json")).at("failure");
  EXPECT_EQ(summary.at("message"), "rank 2 failed: no <memory>");
  EXPECT_EQ(summary.at("ranks")[0].at("ranks"), "0-1,3");
  EXPECT_EQ(summary.at("ranks")[0].at("state"), waits.state);
  EXPECT_EQ(summary.at("ranks")[1].at("last_call"), "");
}

TEST(Report, ListsTheFaultsOfThePlan) {
  Trace trace = make_sample_trace({.ranks = 2});
  trace.faults = {"\"rank 1 at step 2: crash\" fired once, rank 1 at step 2, 5ms, and touched 1"};
  const std::filesystem::path directory = reported(trace, "faults");
  for (const Json& faults : {data_of(text_of(directory / "report.html")).at("faults"),
                             Json::parse(text_of(directory / "summary.json")).at("faults")}) {
    EXPECT_EQ(faults, Json::array({trace.faults[0]}));
  }
}

TEST(Report, HasNoFailureOfARunThatSucceeded) {
  const std::filesystem::path directory = reported(make_sample_trace({.ranks = 2}), "success");
  EXPECT_EQ(data_of(text_of(directory / "report.html")).at("failure"), nullptr);
  EXPECT_EQ(Json::parse(text_of(directory / "summary.json")).at("failure"), nullptr);
}

TEST(Report, SaysWhetherTimeIsModelled) {
  Trace trace = make_sample_trace({.ranks = 2, .steps = 1});
  for (const bool modelled : {true, false}) {
    if (!modelled) trace.device = "";
    const std::filesystem::path directory = reported(trace, "modelled");
    const std::string page = text_of(directory / "report.html");
    EXPECT_EQ(data_of(page).at("timeIsModelled"), modelled);
    EXPECT_THAT(page, HasSubstr("Time is not modelled: the run names no hardware"));
    EXPECT_EQ(Json::parse(text_of(directory / "summary.json")).at("time_is_modelled"), modelled);
  }
}

TEST(Report, NumbersTheStepThatThePageOpensOn) {
  const Trace trace = make_sample_trace({.ranks = 2, .steps = 5});
  const Json steps = data_of(text_of(reported(trace, "step") / "report.html")).at("steps");
  const size_t step = steps.at("medianStep");
  ASSERT_TRUE(step >= 1 && step < 5) << step;
  EXPECT_EQ(trace.steps[step].end_ns - trace.steps[step - 1].end_ns, steps.at("median"));
}

TEST(Report, LoadsNothingFromOutside) {
  const std::string page =
      text_of(reported(make_sample_trace({.ranks = 2}), "outside") / "report.html");
  for (const char* reference : {"http:", "https:", "src=", "@import", "url(", "fetch("}) {
    EXPECT_THAT(page, Not(HasSubstr(reference)));
  }
  // Not even if another run's file, which the page can show beside its own, asks for it.
  EXPECT_THAT(page,
              HasSubstr("http-equiv=\"Content-Security-Policy\" content=\"default-src 'none';"));
}

TEST(Report, EscapesWhatNamesContain) {
  Trace trace;
  trace.topology = "1x1</script><script>alert(1)";
  trace.world_size = 1;
  trace.ranks.resize(1);
  trace.names = {"", "</script>"};
  const std::string page = text_of(reported(trace, "escapes") / "report.html");
  EXPECT_EQ(data_of(page).at("topology"), trace.topology);
  EXPECT_EQ(times_in("</script>", page), 2u);
}

TEST(Report, IsSmallEnoughForABrowserAtManyRanks) {
  const Trace trace = make_sample_trace({.ranks = 512, .steps = 2});
  const std::filesystem::path directory = reported(trace, "many");
  EXPECT_LT(std::filesystem::file_size(directory / "report.html"), 20u << 20);
  EXPECT_LT(std::filesystem::file_size(directory / "trace.json"), 40u << 20);
  const Json data = data_of(text_of(directory / "report.html"));
  EXPECT_EQ(data.at("matrix").at("size"), 64);
  EXPECT_EQ(data.at("matrix").at("block"), 8);
}

// Slices that are drawn as one say how many they are: html.cc's numbers, as page_data.js has them.
TEST(Report, CountsTheSlicesThatThePageDrawsAsOne) {
  Trace trace;
  trace.world_size = 1;
  trace.ranks.resize(1);
  trace.names = {"", "short"};
  for (int64_t at = 0; at < 450'000; ++at) {
    trace.slices.push_back({.start_ns = at * 10, .end_ns = at * 10 + 5, .name = 1});
  }
  const Json data = data_of(text_of(reported(trace, "crowds") / "report.html"));
  int64_t shown = 0, counted = 0;
  for (const Json& track : data.at("tracks")) {
    const std::vector<int64_t> numbers = track.at(3);
    for (size_t i = 0; i + 3 < numbers.size(); i += 4) {
      const bool is_crowd = numbers[i + 2] % 16 >= 8;
      counted += is_crowd ? numbers[i + 3] / 1024 : 1;
      ++shown;
    }
  }
  EXPECT_LT(shown, counted);
  EXPECT_EQ(counted, 450'000);
}

TEST(Report, WritesEqualBytesForEqualTraces) {
  const SampleOptions options{.ranks = 4, .steps = 1};
  const std::filesystem::path first = reported(make_sample_trace(options), "first");
  const std::filesystem::path second = reported(make_sample_trace(options), "second");
  for (const char* name : {"report.html", "summary.json", "trace.json"}) {
    EXPECT_EQ(text_of(first / name), text_of(second / name)) << name;
  }
}

TEST(Report, ShowsARunInWhichNothingHappened) {
  Trace trace;
  trace.world_size = 1;
  trace.ranks.resize(1);
  trace.names = {""};
  const std::filesystem::path directory = reported(trace, "nothing");
  EXPECT_EQ(Json::parse(text_of(directory / "summary.json")).at("steps"), nullptr);
  EXPECT_EQ(data_of(text_of(directory / "report.html")).at("matrix"), nullptr);
}

TEST(Report, NamesTheFolderThatItCannotMake) {
  const std::filesystem::path file = std::filesystem::path(::testing::TempDir()) / "a file";
  std::ofstream(file) << "in the way";
  const absl::Status status = write_report(Trace(), file / "below");
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(status.message(), HasSubstr((file / "below").string()));
}

}  // namespace
}  // namespace accelerate::simulator
