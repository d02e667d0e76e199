#include "trackers/prometheus/prometheus_tracker.h"

#include <limits>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accelerate::trackers {
namespace {

using ::testing::HasSubstr;

TEST(MetricsTextTest, OneMetric) {
  MetricsText metrics("accelerate_", {{"run", "a \"b\"\\\nc"}, {"rank", "0"}});
  EXPECT_EQ(metrics.text(), "");
  metrics.set("train/loss", 0.5);
  metrics.set("train/loss", 0.25);
  EXPECT_EQ(metrics.text(),
            "# HELP accelerate_train_loss train/loss\n"
            "# TYPE accelerate_train_loss gauge\n"
            "accelerate_train_loss{run=\"a \\\"b\\\"\\\\\\nc\",rank=\"0\"} 0.25\n");
}

TEST(MetricsTextTest, NumbersThatAreNotFinite) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  MetricsText metrics("", {});
  metrics.set("a", std::nan(""));
  metrics.set("b", kInfinity);
  metrics.set("c", -kInfinity);
  EXPECT_THAT(metrics.text(), HasSubstr("\na{} NaN\n"));
  EXPECT_THAT(metrics.text(), HasSubstr("\nb{} +Inf\n"));
  EXPECT_THAT(metrics.text(), HasSubstr("\nc{} -Inf\n"));
}

TEST(MetricsTextTest, NamesAreMadeFitAndKeptApart) {
  MetricsText metrics("", {});
  metrics.set("a/b", 1);
  metrics.set("a_b", 2);
  metrics.set("a b", 3);
  metrics.set("a/b", 4);
  metrics.set("1st \xc3\xa9\n", 5);
  metrics.set("", 6);
  const std::string text = metrics.text();
  EXPECT_THAT(text, HasSubstr("\na_b{} 4.0\n"));
  EXPECT_THAT(text, HasSubstr("\na_b_2{} 2.0\n"));
  EXPECT_THAT(text, HasSubstr("\na_b_3{} 3.0\n"));
  EXPECT_THAT(text, HasSubstr("# HELP _1st____ 1st \xc3\xa9\\n\n"));
  EXPECT_THAT(text, HasSubstr("\n_{} 6.0\n"));
}

TEST(MetricsTextTest, Information) {
  MetricsText metrics("p_", {{"run", "r"}});
  metrics.set_info("config_info", {{"lr/head", "0.1"},
                                   {"run", "mine"},
                                   {"__x", "y"},
                                   {"long", std::string(199, 'x') + "\xc3\xa9"},
                                   {"bad", "\xff"}});
  EXPECT_THAT(
      metrics.text(),
      HasSubstr("p_config_info{run=\"r\",lr_head=\"0.1\",run_2=\"mine\",x__x=\"y\",long=\"" +
                std::string(199, 'x') + "\",bad=\"\xef\xbf\xbd\"} 1.0\n"));
}

TEST(MetricsTextTest, ThereAreNotAnyNumberOfNames) {
  MetricsText metrics("", {});
  bool taken = true;
  for (int i = 0; i < 20000 && taken; ++i) taken = metrics.set("m" + std::to_string(i), i);
  EXPECT_FALSE(taken);
  EXPECT_TRUE(metrics.set("m0", 5));
}

}  // namespace
}  // namespace accelerate::trackers
