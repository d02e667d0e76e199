#include "launch/perf/workloads.h"

#include <string>
#include <tuple>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accelerate::launcher::perf {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

std::string error_of(const std::string& text) {
  const auto workloads = parse_workloads(text, "perf.yaml");
  return workloads.ok() ? "no error" : std::string(workloads.status().message());
}

TEST(Workloads, HaveProgramsClustersAndTolerances) {
  const auto workloads = parse_workloads(R"(
baselines: golden
tolerances: {time: 1 %, memory/peak: 64KiB}
workloads:
  - name: lm
    program: lm --text "a b" --max_steps 4
    options: [--mixed_precision, bf16]
    clusters: [2x4:h100, 16x8:a100-80]
    tolerances: {time/step: 0, count: 3}
  - name: small
    program: [small]
    clusters: 1x1:h100
)",
                                         "tests/perf.yaml");
  ASSERT_TRUE(workloads.ok()) << workloads.status();
  EXPECT_EQ(workloads->baselines, "tests/golden");
  ASSERT_THAT(workloads->list, SizeIs(2));
  const Workload& lm = workloads->list[0];
  EXPECT_EQ(lm.name, "lm");
  EXPECT_THAT(lm.program, ElementsAre("lm", "--text", "a b", "--max_steps", "4"));
  EXPECT_THAT(lm.options, ElementsAre("--mixed_precision", "bf16"));
  EXPECT_THAT(lm.clusters, ElementsAre("2x4:h100", "16x8:a100-80"));
  EXPECT_EQ(tolerance_of(lm.tolerances, "time/step"), Tolerance());
  EXPECT_EQ(tolerance_of(lm.tolerances, "time/run"), Tolerance{.share = 0.01});
  EXPECT_EQ(tolerance_of(lm.tolerances, "memory/peak"), Tolerance{.amount = 65536});
  EXPECT_EQ(tolerance_of(lm.tolerances, "memory/activations"), Tolerance());
  EXPECT_EQ(tolerance_of(lm.tolerances, "count/kernels"), Tolerance{.amount = 3});
  EXPECT_THAT(workloads->list[1].clusters, ElementsAre("1x1:h100"));
  EXPECT_EQ(parse_workloads("workloads: [{name: a, program: b, clusters: 1x1:h100}]", "perf.yaml")
                ->baselines,
            "perf");
}

TEST(Workloads, SayWhatIsWrongAndWhere) {
  struct Case {
    const char* text;
    const char* expected;
  };
  for (const Case& c : {
           Case{"", "perf.yaml"},
           Case{"workloads: []", "expected a list with at least one"},
           Case{
               "baseline: x\nworkloads: []",
               "perf.yaml: expected a key (did you mean \"baselines\"?) at \"/baseline\" (line 1)"},
           Case{"workloads:\n  - name: a\n    program: b",
                "perf.yaml: expected a value at \"/workloads/0/clusters\" (line 2)"},
           Case{
               "workloads:\n  - name: a/b\n    program: b\n    clusters: 1x1:h100",
               "perf.yaml: \"a/b\" cannot be the name of a file at \"/workloads/0/name\" (line 2)"},
           Case{"workloads: [{name: a, program: 'b \"c', clusters: 1x1:h100}]",
                "a quote \" has no end"},
           Case{"workloads: [{name: a, program: b, clusters: 2x4}]",
                "\"2x4\" names no device, so nothing takes time"},
           Case{"workloads: [{name: a, program: b, clusters: 2x4:h10}]", "expected a device"},
           Case{"workloads: [{name: a, program: b, clusters: [1x1:h100, 1x1:h100]}]",
                "occurs twice"},
           Case{"workloads: [{name: a, program: b, clusters: 1x1:h100},"
                " {name: a, program: c, clusters: 1x1:h100}]",
                "two workloads are called \"a\""},
           Case{"tolerances: {time: -1}\nworkloads: []",
                "expected a share, as in \"1 %\", or a time"},
           Case{"tolerances: {time/stepp: 1 %}\nworkloads: []",
                "there is no metric \"time/stepp\" among time/step, time/first_step, "},
           Case{"tolerances: {time/stepp: 1 %}\nworkloads: []", "; did you mean time/step?"},
           Case{"tolerances: {tiem: 1 %}\nworkloads: []",
                "there are no metrics \"tiem\": did you mean \"time\""},
           Case{"workloads: [{name: a, program: b, clusters: 1x1:h100,"
                " options: --simulate=2x4:h100}]",
                "--simulate is what clusters are for at \"/workloads/0/options\""},
           Case{"workloads: [{name: a, program: b, clusters: 1x1:h100, options: [--seeds, 0:5]}]",
                "--seeds runs the program several times"},
           Case{"workloads: [{name: a, program: b, clusters: 1x1:h100}]\n---\nworkloads: []",
                "perf.yaml:2:1: a second document begins"},
           Case{"workloads: [", "perf.yaml"},
       }) {
    EXPECT_THAT(error_of(c.text), HasSubstr(c.expected)) << c.text;
  }
  EXPECT_EQ(error_of("workloads: [{name: a, program: b, clusters: 1x1:h100}]\nworkloads: []"),
            "perf.yaml:2:1: it has \"workloads\" twice");
  EXPECT_EQ(error_of("workloads:\n- name: a\n  program: b\n  program: c\n"),
            "perf.yaml:4:3: it has \"program\" twice");
  EXPECT_EQ(load_workloads("/nowhere/perf.yaml").status().code(), absl::StatusCode::kNotFound);
}

// A metric's own tolerance goes before that of its group, wherever each stands.
TEST(Tolerances, OfAFileHoldWhereAWorkloadHasNone) {
  const auto workloads = parse_workloads(R"(
tolerances: {time: 1 %, memory: 5, time/run: 7}
workloads:
  - {name: a, program: a, clusters: 1x1:h100, tolerances: {time: 2 %, memory/peak: 3}}
  - {name: b, program: b, clusters: 1x1:h100}
)",
                                         "perf.yaml");
  ASSERT_TRUE(workloads.ok()) << workloads.status();
  const Tolerances& a = workloads->list[0].tolerances;
  EXPECT_EQ(tolerance_of(a, "time/step"), Tolerance{.share = 0.02});
  EXPECT_EQ(tolerance_of(a, "time/run"), Tolerance{.amount = 7});
  EXPECT_EQ(tolerance_of(a, "memory/peak"), Tolerance{.amount = 3});
  EXPECT_EQ(tolerance_of(a, "memory/tensors"), Tolerance{.amount = 5});
  const Tolerances& b = workloads->list[1].tolerances;
  EXPECT_EQ(tolerance_of(b, "time/step"), Tolerance{.share = 0.01});
  EXPECT_EQ(tolerance_of(b, "count/kernels"), Tolerance());
}

TEST(Tolerances, AreSharesOrAmounts) {
  EXPECT_EQ(*parse_tolerance("time", "2.5 %"), Tolerance{.share = 0.025});
  EXPECT_EQ(*parse_tolerance("count/kernels", " 3 "), Tolerance{.amount = 3});
  EXPECT_EQ(*parse_tolerance("time/step", "5 us"), Tolerance{.amount = 5000});
  EXPECT_EQ(*parse_tolerance("memory", "1MiB"), Tolerance{.amount = 1048576});
  EXPECT_EQ(*parse_tolerance("files/read_bytes", "1kB"), Tolerance{.amount = 1000});
  for (const char* text : {"", "-1", "x", "1 miles", "-2 %", "nan"}) {
    EXPECT_FALSE(parse_tolerance("time", text).ok()) << text;
  }
  for (const auto& [metric, text, expected] :
       {std::tuple("time", "64KiB", "a time, as in \"5us\""),
        std::tuple("memory/peak", "5us", "bytes, as in \"64KiB\""),
        std::tuple("count", "1kB", "a number without a unit"),
        std::tuple("files", "64KiB", "a number without a unit")}) {
    EXPECT_THAT(parse_tolerance(metric, text).status().message(), HasSubstr(expected)) << metric;
  }
  EXPECT_TRUE(Tolerance{.share = 0.01}.allows(1000, 1010));
  EXPECT_FALSE(Tolerance{.share = 0.01}.allows(1000, 1011));
  EXPECT_TRUE(Tolerance{.amount = 2}.allows(5, 3));
  EXPECT_TRUE(Tolerance{.amount = 2}.allows(5, 7));
  EXPECT_FALSE(Tolerance{.amount = 2}.allows(5, 2));
  EXPECT_FALSE(Tolerance{.amount = 2}.allows(5, 8));
  EXPECT_FALSE(Tolerance{.share = 0.01}.allows(1000, 989));
  EXPECT_FALSE(Tolerance{.share = 1}.allows(0, 1)) << "a share of nothing";
  EXPECT_FALSE(Tolerance{}.allows(5, 6));
  EXPECT_TRUE(Tolerance{}.allows(5, 5));
}

TEST(ShellWords, AreThoseOfAShell) {
  EXPECT_THAT(*shell_words(R"(a  'b c' d\ e "f \" g" h'i'j '')"),
              ElementsAre("a", "b c", "d e", "f \" g", "hij", ""));
  EXPECT_THAT(*shell_words(" \t\n"), SizeIs(0));
  EXPECT_FALSE(shell_words("a 'b").ok());
}

}  // namespace
}  // namespace accelerate::launcher::perf
