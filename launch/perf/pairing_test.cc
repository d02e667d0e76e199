// What is said of two builds whose times are disturbed, and how it is read and written.
#include "launch/perf/pairing.h"

#include <cmath>
#include <random>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "launch/perf/bench_report.h"

namespace accelerate::launcher::perf {
namespace {

using ::testing::AllOf;
using ::testing::DoubleEq;
using ::testing::DoubleNear;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::testing::StartsWith;

constexpr int kPairs = 20;
constexpr double kThreshold = 0.01;

struct Noise {
  double deviation = 0.03;  // of the logarithm of a time
  double disturbed = 0.05;  // the share of runs that take up to three times as long
};

struct Times {
  std::vector<double> base, present;

  Difference difference(double threshold = kThreshold, int benchmarks = 1) const {
    return paired_difference(base, present, threshold, benchmarks);
  }
};

// `slowdown` is that of the present build: 1.05.
Times measured(unsigned seed, double slowdown, const Noise& noise = {}) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal(0, noise.deviation);
  std::uniform_real_distribution<double> uniform;
  const auto time = [&](double undisturbed) {
    const double load = uniform(random) < noise.disturbed ? 1 + 2 * uniform(random) : 1;
    return undisturbed * load * std::exp(normal(random));
  };
  Times times;
  for (int i = 0; i < kPairs; ++i) {
    times.base.push_back(time(1000));
    times.present.push_back(time(1000 * slowdown));
  }
  return times;
}

TEST(SignedRank, IsExact) {
  EXPECT_DOUBLE_EQ(internal::signed_rank_chance(std::vector<double>(10, 0.5)), 2.0 / 1024);
  // Ranks 1, 2, 2.5 and 2.5: ten of the sixteen ways to sign them are as uneven as 5.5 and 2.5.
  EXPECT_DOUBLE_EQ(internal::signed_rank_chance({1, 2, 3, -4}), 10.0 / 16);
  EXPECT_DOUBLE_EQ(internal::signed_rank_chance({-1, -2, -3, 4}), 10.0 / 16);
  // However large one is, it counts as the middle ones do.
  EXPECT_EQ(internal::signed_rank_chance({1, 2, 3, 4, 5, -6}),
            internal::signed_rank_chance({1, 2, 3, -4, 5, 6}));
  EXPECT_DOUBLE_EQ(internal::signed_rank_chance({1, -1}), 1);
  EXPECT_DOUBLE_EQ(internal::signed_rank_chance({0, 0, 3}), 1);
  // Ranks 1.5, 1.5 and 2: two of eight ways have all of one sign.
  EXPECT_DOUBLE_EQ(internal::signed_rank_chance({2, 2, 5}), 2.0 / 8);
  EXPECT_DOUBLE_EQ(internal::signed_rank_chance({}), 1);
}

TEST(Pairing, SaysHowManyPairsItTakes) {
  EXPECT_EQ(least_pairs(1), 10);
  EXPECT_EQ(least_pairs(65), 16);
  EXPECT_EQ(least_pairs(66), 17);
}

TEST(Pairing, FindsNoMoreInEqualBuildsThanItPromises) {
  int alarms = 0;
  for (unsigned seed = 0; seed < 300; ++seed) {
    if (measured(seed, 1).difference(/*threshold=*/0).verdict != Verdict::kNoDifference) ++alarms;
  }
  // Four or more have a chance of 0.3 %.
  EXPECT_LE(alarms, 3);
}

TEST(Pairing, FindsFivePerCent) {
  int slower = 0;
  int faster = 0;
  for (unsigned seed = 0; seed < 20; ++seed) {
    if (measured(seed, 1.05, {.deviation = 0.01}).difference().verdict == Verdict::kMore) ++slower;
    if (measured(seed, 1 / 1.05, {.deviation = 0.01}).difference().verdict == Verdict::kLess) {
      ++faster;
    }
  }
  EXPECT_GE(slower, 18);
  EXPECT_GE(faster, 18);
}

TEST(Pairing, LeavesOutDisturbedRuns) {
  Times times = measured(1, 1.05, {.deviation = 0.005, .disturbed = 0});
  times.base[2] *= 10;
  times.present[7] *= 10;
  EXPECT_EQ(times.difference().verdict, Verdict::kMore);
  EXPECT_THAT(times.difference().ratio, DoubleNear(1.05, 0.01));
  for (const int i : {4, 11}) times.present[i] *= 20;
  EXPECT_THAT(times.difference().ratio, DoubleNear(1.05, 0.01));
  // As many in equal builds, all of them of one build.
  times = measured(1, 1, {.deviation = 0.005, .disturbed = 0});
  for (const int i : {2, 4, 7, 11}) times.present[i] *= 10;
  EXPECT_EQ(times.difference().verdict, Verdict::kNoDifference);
}

// Builds take turns to be the first of a round, so that a drift is as often against one as the
// other.
TEST(Pairing, DoesNotTakeADriftForADifference) {
  Times times = measured(3, 1, {.deviation = 0.005, .disturbed = 0});
  double clock = 1;
  for (int i = 0; i < kPairs; ++i) {
    for (std::vector<double>* build : i % 2 == 0 ? std::vector{&times.base, &times.present}
                                                 : std::vector{&times.present, &times.base}) {
      (*build)[i] *= clock;
      clock *= 1.02;
    }
  }
  EXPECT_EQ(times.difference().verdict, Verdict::kNoDifference);
}

TEST(Pairing, AsksMoreOfEachOfManyBenchmarks) {
  const Times times = measured(5, 1.05, {.deviation = 0.02, .disturbed = 0});
  const Difference alone = times.difference(kThreshold, 1);
  const Difference among = times.difference(kThreshold, 60);
  EXPECT_EQ(alone.ratio, among.ratio);
  EXPECT_GT(alone.low, among.low);
  EXPECT_LT(alone.high, among.high);
  EXPECT_EQ(alone.verdict, Verdict::kMore);
  // More benchmarks than so few pairs can tell apart from chance.
  EXPECT_EQ(times.difference(kThreshold, 2000).verdict, Verdict::kNoDifference);
}

TEST(Pairing, LeavesSmallDifferencesAlone) {
  const Times times = measured(7, 1.005, {.deviation = 0.0005, .disturbed = 0});
  EXPECT_EQ(times.difference(0.01).verdict, Verdict::kNoDifference);
  EXPECT_GT(times.difference(0.01).low, 1);
  EXPECT_EQ(times.difference(0.001).verdict, Verdict::kMore);
}

TEST(Pairing, RepeatsItself) {
  const Times times = measured(9, 1.02);
  EXPECT_EQ(times.difference().low, times.difference().low);
  EXPECT_EQ(times.difference().high, times.difference().high);
}

TEST(Counts, DifferBeyondThoseOfOneBuild) {
  EXPECT_EQ(count_difference({1000}, {1000}, 0.001).verdict, Verdict::kNoDifference);
  EXPECT_EQ(count_difference({1000}, {1000.9}, 0.001).verdict, Verdict::kNoDifference);
  EXPECT_EQ(count_difference({1000}, {1002}, 0.001).verdict, Verdict::kMore);
  EXPECT_EQ(count_difference({1000}, {998}, 0.001).verdict, Verdict::kLess);
  const Difference noisy = count_difference({1000, 1010}, {1012, 1005}, 0.001);
  EXPECT_EQ(noisy.verdict, Verdict::kNoDifference);
  EXPECT_DOUBLE_EQ(noisy.low, 1005.0 / 1010);
  EXPECT_DOUBLE_EQ(noisy.high, 1012.0 / 1000);
}

// What is shown beside a difference are medians, of odd and of even numbers.
TEST(Counts, AreShownByTheirMedians) {
  const Difference odd = count_difference({1, 100, 3}, {6, 5, 200}, 0.001);
  EXPECT_DOUBLE_EQ(odd.base, 3);
  EXPECT_DOUBLE_EQ(odd.present, 6);
  EXPECT_DOUBLE_EQ(odd.ratio, 2);
  const Difference even = count_difference({1, 100, 3, 5}, {8, 2}, 0.001);
  EXPECT_DOUBLE_EQ(even.base, 4);
  EXPECT_DOUBLE_EQ(even.present, 5);
  const Difference times = paired_difference({10, 1000, 20}, {30, 40, 4000}, 0.001, 1);
  EXPECT_DOUBLE_EQ(times.base, 20);
  EXPECT_DOUBLE_EQ(times.present, 40);
}

TEST(MiddleMean, LeavesOutAQuarterAtEachEnd) {
  EXPECT_DOUBLE_EQ(internal::middle_mean({5}), 5);
  EXPECT_DOUBLE_EQ(internal::middle_mean({1, 2, 9}), 4);
  EXPECT_DOUBLE_EQ(internal::middle_mean({900, 3, 1, 2}), 2.5);
  EXPECT_DOUBLE_EQ(internal::middle_mean({900, 3, 1, 2, 4, 5, 6, -800}), 3.5);
}

constexpr char kOutput[] = R"({
  "context": {"library_version": "1.9.1"},
  "benchmarks": [
    {"name": "BM_Add/8", "run_name": "BM_Add/8", "run_type": "iteration", "iterations": 10,
     "real_time": 3.0, "cpu_time": 2.0, "time_unit": "us", "rate": NaN, "limit": -Infinity},
    {"name": "BM_Add/8", "run_name": "BM_Add/8", "run_type": "iteration", "iterations": 10,
     "real_time": 2.5, "cpu_time": 2.25, "time_unit": "us"},
    {"name": "BM_Add/8_mean", "run_name": "BM_Add/8", "run_type": "aggregate",
     "aggregate_name": "mean", "real_time": 1.0, "cpu_time": 1.0, "time_unit": "us"},
    {"name": "BM_Skip", "run_name": "BM_Skip", "run_type": "iteration", "skipped": true},
    {"name": "BM_Turn/real_time", "run_name": "BM_Turn/real_time", "run_type": "iteration",
     "real_time": 4.0, "cpu_time": 0.5, "time_unit": "ms"}]})";

TEST(BenchmarkOutput, HasTheLeastDisturbedRepetition) {
  const auto times = parse_benchmark_output(kOutput);
  ASSERT_TRUE(times.ok()) << times.status();
  ASSERT_THAT(*times, SizeIs(2));
  EXPECT_EQ((*times)[0].name, "BM_Add/8");
  EXPECT_THAT((*times)[0].cpu_ns, DoubleEq(2000));
  EXPECT_THAT((*times)[0].wall_ns, DoubleEq(2500));
  EXPECT_FALSE((*times)[0].measures_wall_time);
  EXPECT_EQ((*times)[1].name, "BM_Turn/real_time");
  EXPECT_THAT((*times)[1].wall_ns, DoubleEq(4e6));
  EXPECT_TRUE((*times)[1].measures_wall_time);
}

TEST(BenchmarkOutput, KnowsEveryUnitAndEveryKindOfClock) {
  const std::pair<const char*, double> units[] = {{R"(, "time_unit": "ns")", 1},
                                                  {R"(, "time_unit": "us")", 1e3},
                                                  {"", 1},
                                                  {R"(, "time_unit": "ms")", 1e6},
                                                  {R"(, "time_unit": "s")", 1e9}};
  for (const auto& [unit, factor] : units) {
    const auto times = parse_benchmark_output(absl::StrCat(
        R"({"benchmarks": [{"name": "BM_Add", "real_time": 3, "cpu_time": 2)", unit, "}]}"));
    ASSERT_TRUE(times.ok()) << times.status();
    EXPECT_THAT((*times)[0].cpu_ns, DoubleEq(2 * factor)) << unit;
    EXPECT_THAT((*times)[0].wall_ns, DoubleEq(3 * factor)) << unit;
    EXPECT_FALSE((*times)[0].measures_wall_time);
  }
  EXPECT_TRUE((*parse_benchmark_output(R"({"benchmarks": [
      {"name": "BM_Add/manual_time", "real_time": 3, "cpu_time": 2}]})"))[0]
                  .measures_wall_time);
}

TEST(BenchmarkOutput, RefusesWhatHasNoTimes) {
  EXPECT_THAT(parse_benchmark_output("{").status().message(),
              HasSubstr("it is not the JSON of Google Benchmark: "));
  EXPECT_FALSE(parse_benchmark_output("[]").ok());
  EXPECT_FALSE(parse_benchmark_output(R"({"benchmarks": [{"name": "BM_Add"}]})").ok());
  EXPECT_EQ(parse_benchmark_output(R"({"benchmarks": [{"name": "BM_Add", "error_occurred": true,
                                       "error_message": "no file"}]})")
                .status()
                .message(),
            "BM_Add ended with an error: no file");
}

TEST(BenchmarkOutput, NamesOneBenchmark) {
  EXPECT_EQ(filter_of("BM_Add<int>/8"), "^BM_Add<int>/8$");
  EXPECT_EQ(filter_of("a.b*[c]"), "^a\\.b\\*\\[c\\]$");
  EXPECT_TRUE(fixes_iterations("BM_Add/iterations:8"));
  EXPECT_TRUE(fixes_iterations("BM_Add/min_time:0.100"));
  EXPECT_FALSE(fixes_iterations("BM_Add/8/real_time"));
}

TEST(BenchmarkOutput, HasTheInstructionsOfCallgrind) {
  const auto count =
      parse_instructions("events: Ir\nsummary: 7\n\nfn=(1) main\n+3 5\ntotals: 2953\n");
  ASSERT_TRUE(count.ok()) << count.status();
  EXPECT_THAT(*count, DoubleEq(2953));
  // Several events: instructions come first.
  EXPECT_THAT(*parse_instructions("events: Ir Dr Dw\ntotals: 31 17 5\n"), DoubleEq(31));
  EXPECT_FALSE(parse_instructions("events: Ir\n").ok());
}

BenchReport report() {
  return {.base = "old/bench",
          .present = "new/bench",
          .rounds = 16,
          .threshold = 0.01,
          .rows = {{.name = "BM_Add",
                    .difference = {.base = 1000,
                                   .present = 1051,
                                   .ratio = 1.051,
                                   .low = 1.042,
                                   .high = 1.06,
                                   .chance = 0.0001,
                                   .verdict = Verdict::kMore}},
                   {.name = "BM_Turn/real_time",
                    .measure = Measure::kWallTime,
                    .difference = {.base = 2e6,
                                   .present = 1.8e6,
                                   .ratio = 0.9,
                                   .low = 0.89,
                                   .high = 0.92,
                                   .verdict = Verdict::kLess}},
                   {.name = "BM_Load",
                    .difference = {.base = 5, .present = 5, .low = 0.996, .high = 1.003}}},
          .notes = {"BM_New is not in old/bench"}};
}

TEST(BenchReport, IsATable) {
  EXPECT_EQ(to_table(report()),
            "note: BM_New is not in old/bench\n"
            "benchmark          measure    base  new       change\n"
            "BM_Add             CPU time   1 us  1.051 us  slower by 5.1 % (4.2 to 6.0)\n"
            "BM_Turn/real_time  wall time  2 ms  1.8 ms    faster by 10.0 % (8.0 to 11.0)\n"
            "BM_Load            CPU time   5 ns  5 ns      no difference seen (-0.4 to +0.3 %)\n"
            "medians of 16 rounds; 95 % intervals for all benchmarks together; differences below "
            "1 % do not count\n"
            "warning: 3 benchmarks: 1 slower, 1 faster\n");
}

TEST(BenchReport, TellsOfInstructions) {
  BenchReport counted = report();
  counted.rounds = 0;
  counted.threshold = 0.001;
  counted.notes.clear();
  counted.rows = {{.name = "BM_Add",
                   .measure = Measure::kInstructions,
                   .difference = {.base = 123456789,
                                  .present = 111111110.1,
                                  .ratio = 0.9,
                                  .low = 0.9,
                                  .high = 0.9,
                                  .verdict = Verdict::kLess}}};
  EXPECT_THAT(to_table(counted),
              AllOf(HasSubstr("instructions  123456789  111111110  fewer by 10.00 %"),
                    HasSubstr("differences below 0.1 % do not count\n"),
                    HasSubstr("\n1 benchmark: 0 with more instructions, 1 with fewer\n")));
}

TEST(BenchReport, IsMarkdownAndJson) {
  EXPECT_THAT(to_markdown(report()),
              AllOf(StartsWith("warning: 3 benchmarks: 1 slower, 1 faster\n"),
                    HasSubstr("\n- note: BM_New is not in old/bench\n"),
                    HasSubstr("\n| BM_Add | CPU time | 1 us | 1.051 us | slower by 5.1 % (4.2 to "
                              "6.0) |\n")));
  const auto json = nlohmann::json::parse(to_json_text(report()));
  EXPECT_EQ(json.at("rounds"), 16);
  EXPECT_EQ(json.at("benchmarks").at(0).at("verdict"), "more");
  EXPECT_EQ(json.at("benchmarks").at(2).at("low"), 0.996);
  BenchReport equal = report();
  equal.rows = {equal.rows[2]};
  EXPECT_THAT(to_table(equal), HasSubstr("\n1 benchmark: no difference seen\n"));
  equal.rows.clear();
  EXPECT_THAT(to_table(equal), HasSubstr("\nno benchmark could be compared\n"));
}

}  // namespace
}  // namespace accelerate::launcher::perf
