// What changes of a program do to its numbers, and what a comparison says of them.
#include "launch/perf/comparison.h"

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "launch/perf/metrics.h"

namespace accelerate::launcher::perf {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;

constexpr char kCluster[] = "2x4:h100";

// As a run writes it.
json summary() {
  return json::parse(R"({
    "elapsed_ns": 5000000,
    "steps": {"count": 4, "first_ns": 2000000, "median_ns": 1000000,
              "phases_ns": {"forward": 400000, "backward": 500000, "optimizer": 100000},
              "shares_ns": {"matrix products": 600000, "exposed communication": 50000,
                            "nothing to do": 350000},
              "median_work": {"operators": 10, "flops": 2e9, "bytes": 1e6, "launches": 11,
                              "blocks": 9, "block_bytes": 900},
              "critical_path": {"shares": [
                {"part": "matrix products", "ns": 600000, "segments": 9},
                {"part": "host", "ns": 350000, "segments": 2},
                {"part": "communication", "ns": 50000, "segments": 1, "name": "ALLREDUCE",
                 "group": "dp"}]}},
    "ranks": [
      {"memory_peak": 900, "driver_peak": 0, "allocation_retries": 0, "launches": 55,
       "communication_ns": 300000, "exposed_ns": 200000,
       "at_peak": {"activations": 500, "parameters": 400, "buckets": 0}},
      {"memory_peak": 800, "driver_peak": 0, "allocation_retries": 0, "launches": 55,
       "communication_ns": 300000, "exposed_ns": 100000,
       "at_peak": {"activations": 400, "parameters": 400, "buckets": 0}}],
    "operators": [
      {"name": "aten::mm", "calls": 40, "total_ns": 400000, "flops": 8e9, "bytes": 4096000},
      {"name": "aten::add_", "calls": 10, "total_ns": 20000, "flops": 0, "bytes": 40960}],
    "collectives": [
      {"name": "all_reduce", "algorithm": "ring", "ranks": 8, "calls": 4, "bytes": 100000000,
       "total_ns": 300000, "bus_bytes": 175000000}],
    "synchronisations": [{"name": "copy to host", "calls": 4, "total_ns": 100}],
    "allocations": [{"name": "", "calls": 3, "bytes": 300},
                    {"name": "aten::mm", "calls": 40, "bytes": 4000}],
    "modules": [{"name": "layers.0", "calls": 5, "total_ns": 200000, "flops": 4e9, "bytes": 2e6},
                {"name": "layers.1", "calls": 5, "total_ns": 200000, "flops": 4e9, "bytes": 2e6}],
    "files": [{"name": "write", "calls": 2, "bytes": 1000},
              {"name": "sync", "calls": 1, "bytes": 0, "total_ns": 1000}],
    "peak": {"rank": 0, "modules": [{"module": "layers.0", "bytes": {"activations": 500}},
                                    {"module": "", "bytes": {"parameters": 400}}]}
  })");
}

WorkloadCost cost(const std::function<void(json&)>& change = [](json&) {}) {
  json changed = summary();
  change(changed);
  const auto measured = measurement_of(changed, kCluster);
  EXPECT_TRUE(measured.ok()) << measured.status();
  return {.name = "lm",
          .command = "accelerate launch lm",
          .versions = {{"libtorch", "2.6.0"}},
          .clusters = {{kCluster, *measured}}};
}

Comparison compared(const WorkloadCost& before, const WorkloadCost& after,
                    const Tolerances& tolerances = {}) {
  Comparison comparison;
  compare(before, after, tolerances, comparison);
  return comparison;
}

Comparison after(const std::function<void(json&)>& change, const Tolerances& tolerances = {}) {
  return compared(cost(), cost(change), tolerances);
}

// The first line of the table behind its head.
std::string first_row(const Comparison& comparison) {
  const std::string table = to_table(comparison);
  const size_t begin = table.find('\n') + 1;
  return table.substr(begin, table.find('\n', begin) - begin);
}

TEST(Measurement, HasTheFiguresOfTheSummary) {
  const Measurement own = cost().clusters.at(kCluster);
  EXPECT_EQ(own.metrics.at("time/step"), 1e6);
  EXPECT_EQ(own.metrics.at("time/matrix_products"), 6e5);
  EXPECT_EQ(own.metrics.at("time/hidden_communication"), 2e5) << "of the rank that hides most";
  EXPECT_EQ(own.metrics.at("memory/peak"), 900);
  EXPECT_EQ(own.metrics.at("memory/activations"), 500);
  EXPECT_FALSE(own.metrics.contains("memory/buckets"));
  EXPECT_EQ(own.metrics.at("count/kernels"), 50);
  EXPECT_EQ(own.metrics.at("communication/bytes"), 1e8);
  EXPECT_EQ(own.metrics.at("count/allocations"), 43);
  EXPECT_EQ(own.metrics.at("work/allocated_bytes"), 4300);
  EXPECT_EQ(own.metrics.at("count/launches"), 110) << "of both ranks";
  EXPECT_EQ(own.metrics.at("count/step_launches"), 11);
  EXPECT_EQ(own.metrics.at("count/step_kernels"), 10);
  EXPECT_EQ(own.metrics.at("count/step_allocations"), 9);
  EXPECT_EQ(own.metrics.at("work/step_allocated_bytes"), 900);
  EXPECT_EQ(own.metrics.at("work/step_flops"), 2e9);
  EXPECT_EQ(own.metrics.at("work/step_bytes"), 1e6);
  EXPECT_EQ(own.metrics.at("count/synchronisations"), 4);
  EXPECT_EQ(own.metrics.at("files/writes"), 2);
  EXPECT_EQ(own.metrics.at("files/write_bytes"), 1000);
  EXPECT_FALSE(own.metrics.contains("files/sync_bytes"));
  EXPECT_EQ(own.collectives.at("all_reduce of 8, ring").calls, 4);
  EXPECT_EQ(own.modules.at("layers.0").flops, 4e9);
  EXPECT_EQ(own.peak.at("layers.0").bytes, 500);
  EXPECT_EQ(own.path.at("communication, ALLREDUCE").ns, 50000);
  EXPECT_EQ(own.hardware.at("device/name"), "\"h100\"");
}

// Two ranks of which one needs more tensors and the other more memory of its device.
TEST(Measurement, HasTheMemoryOfTheRankWhoseDeviceIsFullest) {
  const Measurement own = cost([](json& run) {
                            run["ranks"][1]["driver_peak"] = 1000;
                            run["ranks"][1]["allocation_retries"] = 7;
                          }).clusters.at(kCluster);
  EXPECT_EQ(own.metrics.at("memory/peak"), 1000);
  EXPECT_EQ(own.metrics.at("memory/tensors"), 800);
  EXPECT_EQ(own.metrics.at("memory/activations"), 400);
  EXPECT_EQ(own.metrics.at("count/allocation_retries"), 7);
}

// Rows of one name, and categories of one module, are added up.
TEST(Measurement, AddsUpWhatHasOneName) {
  const Measurement own =
      cost([](json& run) {
        run["operators"].push_back(
            {{"name", "aten::mm"}, {"calls", 2}, {"total_ns", 5}, {"flops", 1e9}, {"bytes", 6}});
        run["collectives"].push_back({{"name", "all_reduce"},
                                      {"algorithm", "ring"},
                                      {"ranks", 8},
                                      {"calls", 3},
                                      {"bytes", 10},
                                      {"total_ns", 20}});
        run["peak"]["modules"][0]["bytes"]["gradients"] = 30;
      }).clusters.at(kCluster);
  EXPECT_EQ(own.operators.at("aten::mm"),
            (Cost{.calls = 42, .ns = 400005, .flops = 9e9, .bytes = 4096006}));
  EXPECT_EQ(own.collectives.at("all_reduce of 8, ring").calls, 7);
  EXPECT_EQ(own.collectives.at("all_reduce of 8, ring").bytes, 100000010);
  EXPECT_EQ(own.metrics.at("count/collectives"), 7);
  EXPECT_EQ(own.peak.at("layers.0").bytes, 530);
}

TEST(Measurement, ComesBackFromItsText) {
  const WorkloadCost before = cost();
  const auto again = parse_cost(to_text(before));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(*again, before);
  EXPECT_EQ(to_text(*again), to_text(before));
  for (const char* text : {"", "[]", "{}", R"({"format": 1})", R"({"format": 2, "workload": 3})"}) {
    EXPECT_FALSE(parse_cost(text).ok()) << text;
  }
  const std::string huge =
      absl::StrReplaceAll(to_text(before), {{"\"calls\":40", "\"calls\":1e300"}});
  EXPECT_THAT(parse_cost(huge).status().message(), HasSubstr("1e+300"));
  EXPECT_EQ(load_cost("/nowhere/lm.json").status().code(), absl::StatusCode::kNotFound);
}

TEST(Measurement, HasNoStepOfAProgramThatTrainsNothing) {
  json without = summary();
  without["steps"] = nullptr;
  const auto own = measurement_of(without, kCluster);
  ASSERT_TRUE(own.ok()) << own.status();
  EXPECT_FALSE(own->metrics.contains("time/step"));
  EXPECT_EQ(own->metrics.at("time/run"), 5e6);
}

TEST(Measurement, NeedsASummaryOfItsOwnRelease) {
  json without = summary();
  without.erase("operators");
  EXPECT_THAT(measurement_of(without, kCluster).status().message(), HasSubstr("another release"));
}

TEST(Comparison, OfEqualCostsIsEmpty) {
  const Comparison same = compared(cost(), cost());
  EXPECT_TRUE(same.is_equal());
  EXPECT_EQ(to_table(same), absl::StrCat(same.compared, " metrics are as in the baseline\n"));
  EXPECT_THAT(to_markdown(same), StartsWith("**No change**"));
  EXPECT_EQ(json::parse(to_json_text(same)).at("is_equal"), true);
}

TEST(Comparison, NamesACollectiveThatWasAdded) {
  const Comparison found = after([](json& run) {
    run["collectives"][0]["calls"] = 5;
    run["collectives"][0]["bytes"] = 125000000;
    run["collectives"][0]["total_ns"] = 375000;
    run["steps"]["median_ns"] = 1075000;
  });
  EXPECT_FALSE(found.is_equal());
  EXPECT_THAT(first_row(found), HasSubstr("time/step"));
  EXPECT_THAT(first_row(found), HasSubstr("+75 us (+7.50 %)"));
  EXPECT_THAT(first_row(found), HasSubstr("all_reduce of 8, ring: 5 calls instead of 4"));
}

// A share of the step's critical path, by its number in summary().
json& path_share(json& run, size_t number) {
  return run["steps"]["critical_path"]["shares"][number]["ns"];
}

TEST(Comparison, NamesWhatStandsOnTheCriticalPath) {
  const Comparison found = after([](json& run) {
    run["steps"]["median_ns"] = 1060000;
    path_share(run, 2) = 110000;
    run["operators"][1]["calls"] = 11;  // beside it
    run["operators"][1]["total_ns"] = 22000;
  });
  EXPECT_THAT(first_row(found), HasSubstr("communication, ALLREDUCE: +60 us on the critical path"));
  ASSERT_THAT(found.steps, SizeIs(1));
  EXPECT_EQ(found.steps[0].before, 1000000);
  EXPECT_EQ(found.steps[0].after, 1060000);
  EXPECT_THAT(to_table(found), HasSubstr("The step of lm on 2x4:h100, 1 ms before and 1.06 ms "
                                         "after, by its critical path:\n"
                                         "  +60 us  communication, ALLREDUCE (50 us before)\n"));
  EXPECT_THAT(to_markdown(found), HasSubstr("\n- +60 us  communication, ALLREDUCE"));
  EXPECT_EQ(json::parse(to_json_text(found)).at("steps").at(0).at("critical_path").size(), 1);
}

TEST(Comparison, NamesTheSynchronisationForWhichTheHostWaits) {
  const Comparison found = after([](json& run) {
    run["steps"]["median_ns"] = 1200000;
    path_share(run, 1) = 550000;
    run["synchronisations"].push_back(
        {{"name", "synchronize device"}, {"calls", 4}, {"total_ns", 800000}});
  });
  EXPECT_THAT(first_row(found), HasSubstr("synchronize device: new, 4 calls"));
}

TEST(Comparison, NamesTheModuleThatDoesOtherWork) {
  const Comparison found = after([](json& run) {
    run["steps"]["median_ns"] = 1300000;
    path_share(run, 0) = 900000;
    run["operators"][0]["bytes"] = 6144000;
    run["operators"][0]["total_ns"] = 700000;
    run["modules"][1]["total_ns"] = 350000;
    run["modules"][1]["bytes"] = 4e6;
  });
  EXPECT_THAT(first_row(found),
              HasSubstr("aten::mm: 5.86 MiB instead of 3.91 MiB, mostly in layers.1"));
}

TEST(Comparison, NamesWhatRunsOnThatPartOfTheCriticalPath) {
  // A layer more: its weights are copied to the device before the steps, and take part in an
  // all-reduce.
  const auto layer = [](json& run) {
    run["operators"][0]["calls"] = 50;
    run["operators"][0]["total_ns"] = 500000;
    run["operators"].push_back(
        {{"name", "copy to device"}, {"calls", 8}, {"total_ns", 900000}, {"bytes", 1e9}});
    run["collectives"][0]["bytes"] = 125000000;
    run["collectives"][0]["total_ns"] = 375000;
    run["steps"]["median_ns"] = 1100000;
  };
  const Comparison on_device = after([&](json& run) {
    layer(run);
    path_share(run, 0) = 700000;
  });
  EXPECT_THAT(first_row(on_device), HasSubstr("aten::mm: 50 calls instead of 40"));
  const Comparison on_host = after([&](json& run) {
    layer(run);
    run["operators"].erase(2);
    path_share(run, 1) = 450000;
  });
  EXPECT_THAT(first_row(on_host), HasSubstr("aten::mm: 50 calls instead of 40"));
}

// On each part of the critical path something grew that runs there, and more grew elsewhere.
TEST(Comparison, LooksForTheCauseWhereThatPartRuns) {
  const auto grown = [](const char* part) {
    return [part](json& run) {
      run["steps"]["median_ns"] = 1100000;
      run["steps"]["critical_path"]["shares"].push_back(
          {{"part", part}, {"ns", 100000}, {"segments", 1}});
      run["operators"] = {
          {{"name", "aten::mm"}, {"calls", 41}, {"total_ns", 410000}, {"flops", 8e9}},
          {{"name", "aten::add_"}, {"calls", 11}, {"total_ns", 40000}},
          {{"name", "attention"}, {"calls", 1}, {"total_ns", 3000}, {"flops", 5}},
          {{"name", "copy to device"}, {"calls", 1}, {"total_ns", 2000}}};
      run["files"][0]["calls"] = 4;
      run["files"][0]["total_ns"] = 1000;
      run["collectives"][0]["calls"] = 5;
      run["collectives"][0]["total_ns"] = 900000;
    };
  };
  const std::pair<const char*, const char*> causes[] = {
      {"matrix products", "aten::mm: 41 calls instead of 40"},
      {"other kernels", "aten::add_: 11 calls instead of 10"},
      {"attention", "attention: new, 1 call"},
      {"copies", "copy to device: new, 1 call"},
      {"disk", "write: 4 calls instead of 2"},
      {"communication", "all_reduce of 8, ring: 5 calls instead of 4"}};
  for (const auto& [part, cause] : causes) {
    EXPECT_THAT(first_row(after(grown(part))), HasSubstr(cause)) << part;
  }
}

// What is on the path by itself, and grew and shrank: the largest change first, the rest in a line.
TEST(Comparison, ShowsTheLargestChangesOfTheCriticalPath) {
  const Comparison found = after([](json& run) {
    run["steps"]["median_ns"] = 1200000;
    path_share(run, 0) = 500000;
    path_share(run, 1) = 410000;
    for (int i = 1; i <= 8; ++i) {
      run["steps"]["critical_path"]["shares"].push_back(
          {{"part", absl::StrCat("part ", i)}, {"ns", 1000 * i}, {"segments", 1}});
    }
  });
  ASSERT_THAT(found.steps, SizeIs(1));
  ASSERT_THAT(found.steps[0].parts, SizeIs(10));
  EXPECT_EQ(found.steps[0].parts[0].name, "matrix products");
  EXPECT_EQ(found.steps[0].parts[1].name, "host");
  EXPECT_EQ(found.steps[0].parts[9].name, "part 1");
  EXPECT_THAT(to_table(found), HasSubstr("\n  -100 us  matrix products (600 us before)\n"
                                         "  +60 us  host (350 us before)\n"
                                         "  +8 us  part 8 (0 ns before)\n"));
  EXPECT_THAT(to_table(found), HasSubstr("  +3 us  part 3 (0 ns before)\n  +3 us  others\n"));
  EXPECT_THAT(to_table(found), Not(HasSubstr("part 2")));
}

// "mostly" is more than half.
TEST(Comparison, NamesAModuleOnlyWithMoreThanHalf) {
  const auto flops_of = [](int64_t first_ns, int64_t second_ns) {
    return first_row(after([=](json& run) {
      run["steps"]["median_ns"] = 1300000;
      path_share(run, 0) = 900000;
      run["operators"][0]["bytes"] = 6144000;
      run["operators"][0]["total_ns"] = 700000;
      for (const auto& [module, ns] : {std::pair(0, first_ns), std::pair(1, second_ns)}) {
        run["modules"][module]["total_ns"] = 200000 + ns;
        run["modules"][module]["calls"] = 6;
      }
    }));
  };
  EXPECT_THAT(flops_of(1000, 1000), Not(HasSubstr("mostly")));
  EXPECT_THAT(flops_of(1001, 1000), HasSubstr("mostly in layers.0"));
  EXPECT_THAT(flops_of(1000, 1001), HasSubstr("mostly in layers.1"));
  // What became faster takes nothing from what became slower.
  EXPECT_THAT(flops_of(-5000, 1), HasSubstr("mostly in layers.1"));
}

TEST(Comparison, NamesWhatDoesTheFlops) {
  const Comparison found = after([](json& run) {
    run["operators"][0]["flops"] = 16e9;
    run["operators"][1]["bytes"] = 4e9;
    run["operators"][1]["total_ns"] = 2000000;
  });
  EXPECT_THAT(to_markdown(found), HasSubstr("| aten::mm: 1.6e+10 FLOP instead of 8e+09 |"));
}

TEST(Comparison, SaysHowManyBytesWhereTheirTextsAreAlike) {
  const Comparison found = after([](json& run) { run["collectives"][0]["bytes"] = 100000004; });
  EXPECT_THAT(first_row(found), HasSubstr("all_reduce of 8, ring: +4 bytes"));
}

TEST(Comparison, NamesTheOperatorThatAllocates) {
  const Comparison found = after(
      [](json& run) { run["allocations"][0] = {{"name", ""}, {"calls", 7}, {"bytes", 700}}; });
  EXPECT_THAT(first_row(found), HasSubstr("work/allocated_bytes"));
  EXPECT_THAT(first_row(found), HasSubstr("the program itself: 7 calls instead of 3"));
}

TEST(Comparison, NamesWhatIsDoneToFiles) {
  const Comparison found = after([](json& run) {
    run["elapsed_ns"] = 6000000;
    run["files"][0] = {{"name", "write"}, {"calls", 4}, {"bytes", 2000}};
    run["files"][1] = {{"name", "sync"}, {"calls", 2}, {"bytes", 0}, {"total_ns", 2000}};
  });
  EXPECT_THAT(first_row(found), HasSubstr("time/run"));
  EXPECT_THAT(first_row(found), HasSubstr("sync: 2 calls instead of 1"));
  EXPECT_THAT(to_table(found), HasSubstr("files/write_bytes"));
}

TEST(Comparison, NamesTheOperatorThatIsNew) {
  const Comparison found = after([](json& run) {
    run["operators"].push_back(
        {{"name", "aten::mul"}, {"calls", 4}, {"total_ns", 8000}, {"flops", 0}, {"bytes", 100}});
    run["operators"][0]["total_ns"] = 405000;  // takes longer, but does the same
    run["steps"]["median_ns"] = 1010000;
  });
  EXPECT_THAT(first_row(found), HasSubstr("aten::mul: new, 4 calls"));
}

TEST(Comparison, NamesWhatBecameSlowerWhereNothingElseChanged) {
  const Comparison found = after([](json& run) {
    run["operators"][0]["total_ns"] = 800000;
    run["steps"]["median_ns"] = 1100000;
  });
  EXPECT_THAT(found.changes, SizeIs(1));
  EXPECT_THAT(first_row(found), HasSubstr("aten::mm: 800 us instead of 400 us"));
}

TEST(Comparison, NamesTheActivityWhereNoOperatorChanged) {
  const Comparison found = after([](json& run) {
    run["steps"]["median_ns"] = 1040000;
    run["steps"]["shares_ns"]["exposed communication"] = 90000;
  });
  EXPECT_THAT(first_row(found), HasSubstr("exposed communication: +40 us a step"));
}

TEST(Comparison, NamesTheCategoryThatFillsMemory) {
  const Comparison found = after([](json& run) {
    run["ranks"][0]["memory_peak"] = 2948;
    run["ranks"][0]["at_peak"]["activations"] = 2548;
    run["peak"]["modules"][0]["bytes"]["activations"] = 2548;
  });
  EXPECT_THAT(first_row(found), HasSubstr("memory/peak"));
  EXPECT_THAT(first_row(found), HasSubstr("activations: +2.00 KiB, mostly in layers.0"));
}

// Where memory grew, what grew most is named, also where something else shrank by more; and the
// reverse.
TEST(Comparison, NamesTheCategoryOfTheChangesOwnDirection) {
  const auto at_peak = [](int64_t activations, int64_t parameters, int64_t buckets) {
    return [=](json& run) {
      run["ranks"][0]["memory_peak"] = activations + parameters + buckets;
      run["ranks"][0]["at_peak"] = {
          {"activations", activations}, {"parameters", parameters}, {"buckets", buckets}};
      run["peak"]["modules"] =
          json::array({{{"module", "layers.0"}, {"bytes", {{"activations", activations}}}},
                       {{"module", "layers.1"}, {"bytes", {{"buckets", buckets}}}},
                       {{"module", ""}, {"bytes", {{"parameters", parameters}}}}});
    };
  };
  const auto cause = [&](const std::function<void(json&)>& was,
                         const std::function<void(json&)>& is) {
    return first_row(compared(cost(was), cost(is)));
  };
  const auto low = at_peak(40960, 1024, 0), high = at_peak(8192, 2048, 65536);
  EXPECT_THAT(cause(low, high), HasSubstr("buckets: +64.00 KiB, mostly in layers.1"));
  EXPECT_THAT(cause(high, low), HasSubstr("buckets: -64.00 KiB, mostly in layers.1"));
  // The largest change of all is in the other direction.
  const auto turned = at_peak(0, 1024 + 30720, 20480);
  EXPECT_THAT(cause(low, turned), HasSubstr("parameters: +30.00 KiB"));
  EXPECT_THAT(cause(turned, low), HasSubstr("parameters: -30.00 KiB"));
}

TEST(Comparison, SeesAnOperatorInThePlaceOfAnother) {
  const Comparison found = after([](json& run) { run["operators"][1]["name"] = "aten::sub_"; });
  ASSERT_THAT(found.changes, SizeIs(1));
  EXPECT_THAT(found.changes[0].cause, HasSubstr("aten::add_: gone, was 10 calls"));
}

TEST(Comparison, CountsImprovementsToo) {
  const Comparison found = after([](json& run) { run["steps"]["median_ns"] = 900000; });
  EXPECT_THAT(first_row(found), HasSubstr("-100 us (-10.00 %)"));
}

TEST(Comparison, AllowsWhatIsTolerated) {
  const auto change = [](json& run) { run["steps"]["median_ns"] = 1010000; };
  EXPECT_TRUE(after(change, {{"time", {.share = 0.01}}}).is_equal());
  EXPECT_FALSE(after(change, {{"time", {.share = 0.0099}}}).is_equal());
  EXPECT_FALSE(after(change, {{"time", {.share = 0.5}}, {"time/step", {}}}).is_equal());
}

// Parts that changed places are tolerated as their number is.
TEST(Comparison, AllowsExchangedPartsThatAreTolerated) {
  const auto change = [](json& run) { run["operators"][1]["name"] = "aten::sub_"; };
  EXPECT_FALSE(after(change, {{"count", {.amount = 9}}}).is_equal());
  EXPECT_TRUE(after(change, {{"count", {.amount = 10}}}).is_equal());
  EXPECT_TRUE(after(change, {{"count/kernels", {.amount = 10}}}).is_equal());
  EXPECT_FALSE(after(change, {{"count/collectives", {.amount = 10}}}).is_equal());
}

TEST(Figures, HaveTheUnitOfTheirSize) {
  const std::pair<double, const char*> durations[] = {
      {0, "0 ns"},        {999, "999 ns"},      {1000, "1 us"}, {999'999, "999.999 us"},
      {1e6, "1 ms"},      {1e9 - 1, "1000 ms"}, {1e9, "1 s"},   {-999, "-999 ns"},
      {-1500, "-1.5 us"}, {-2e9, "-2 s"}};
  for (const auto& [ns, text] : durations) EXPECT_EQ(duration_text(ns), text) << ns;
  EXPECT_EQ(byte_amount(1023), "1023 bytes");
  EXPECT_EQ(byte_amount(1024), "1.00 KiB");
  EXPECT_EQ(byte_amount(-1536), "-1.50 KiB");
  EXPECT_EQ(value_text("time/run", 1000), "1 us");
  EXPECT_EQ(value_text("memory/peak", 1000), "1000 bytes");
  EXPECT_EQ(value_text("communication/bytes", 1024), "1.00 KiB");
  EXPECT_EQ(value_text("files/read_bytes", 1024), "1.00 KiB");
  EXPECT_EQ(value_text("files/reads", 1024), "1024");
  EXPECT_EQ(value_text("work/flops", 1024), "1024");
}

TEST(Comparison, NotesOtherVersionsAndHardwareFirst) {
  WorkloadCost other = cost();
  other.versions["libtorch"] = "2.15.0";
  other.command = "accelerate launch lm --model tiny";
  other.clusters[kCluster].hardware["device/memory_bytes"] = "1024";
  const Comparison found = compared(cost(), other);
  EXPECT_THAT(found.notes, SizeIs(3));
  EXPECT_THAT(to_table(found), StartsWith("note: "));
  EXPECT_THAT(to_table(found), HasSubstr("libtorch is 2.15.0, was 2.6.0"));
  EXPECT_THAT(to_table(found), HasSubstr("device/memory_bytes of 2x4:h100 is 1024, was "));
  EXPECT_TRUE(found.is_equal()) << "no metric changed";
}

TEST(Comparison, NotesOtherSteps) {
  const Comparison found = after([](json& run) { run["steps"]["count"] = 8; });
  EXPECT_THAT(found.notes, ElementsAre(HasSubstr("lm on 2x4:h100 took 8 steps, was 4")));
}

TEST(Comparison, BeginsWithTheLargestChangeOfAGroup) {
  const WorkloadCost less = cost(), more = cost([](json& run) {
                                      run["steps"]["phases_ns"]["backward"] = 500010;
                                      run["elapsed_ns"] = 6000000;
                                      run["ranks"][0]["at_peak"]["activations"] = 501;
                                      run["ranks"][0]["memory_peak"] = 901;
                                    });
  // Upwards as downwards.
  for (const Comparison& found : {compared(less, more), compared(more, less)}) {
    std::vector<std::string> metrics;
    for (const Change& each : found.changes) metrics.push_back(each.metric);
    EXPECT_THAT(metrics, ElementsAre("time/run", "time/backward", "memory/peak", "memory/tensors",
                                     "memory/activations"));
  }
}

TEST(Comparison, SaysWhatHasNoCounterpart) {
  WorkloadCost more = cost();
  more.clusters["1x1:h100"] = more.clusters[kCluster];
  EXPECT_THAT(compared(cost(), more).missing, ElementsAre("lm on 1x1:h100 has no baseline"));
  EXPECT_THAT(compared(more, cost()).missing, ElementsAre("lm on 1x1:h100 was not measured"));
  EXPECT_FALSE(compared(more, cost()).is_equal());
  EXPECT_THAT(compared(more, more).missing, IsEmpty());
}

TEST(Comparison, IsATableForAPullRequest) {
  const Comparison found = after([](json& run) { run["steps"]["median_ns"] = 1100000; });
  EXPECT_THAT(to_markdown(found), StartsWith("**Changed**: 1 of "));
  EXPECT_THAT(to_markdown(found),
              HasSubstr("| lm | 2x4:h100 | time/step | 1 ms | 1.1 ms | +100 us (+10.00 %) |"));
  EXPECT_THAT(to_markdown(found), Not(HasSubstr("\n\n\n")));
  const json changes = json::parse(to_json_text(found)).at("changes");
  EXPECT_EQ(changes.at(0).at("metric"), "time/step");
}

}  // namespace
}  // namespace accelerate::launcher::perf
