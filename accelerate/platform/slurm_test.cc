#include "accelerate/platform/slurm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accelerate {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Environment with(std::initializer_list<std::pair<const char*, const char*>> variables) {
  Environment environment;
  for (const char* name :
       {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_JOB_ID", "SLURM_JOBID", "SLURM_STEP_ID",
        "SLURM_STEP_NUM_TASKS", "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"}) {
    environment.unset(name);
  }
  for (auto [name, value] : variables) environment.set(name, value);
  return environment;
}

TEST(SlurmHosts, AreExpandedInOrder) {
  auto expand = [](const char* list) { return expand_slurm_hosts(list).value(); };
  EXPECT_THAT(expand("node7"), ElementsAre("node7"));
  EXPECT_THAT(expand("n[03-05,9],m1"), ElementsAre("n03", "n04", "n05", "n9", "m1"));
  EXPECT_THAT(expand("gpu-[099-101]"), ElementsAre("gpu-099", "gpu-100", "gpu-101"));
  EXPECT_THAT(expand("r[1-2]n[7-8]-ib"), ElementsAre("r1n7-ib", "r1n8-ib", "r2n7-ib", "r2n8-ib"));
  EXPECT_THAT(expand("a.example,b-1.example"), ElementsAre("a.example", "b-1.example"));
  // As Slurm reads lists: blanks separate, and stand around commas and ranges.
  EXPECT_THAT(expand("n1, n2"), ElementsAre("n1", "n2"));
  EXPECT_THAT(expand(" n[1-2,04]  m1\tm2\n"), ElementsAre("n1", "n2", "n04", "m1", "m2"));
  EXPECT_THAT(expand("n[8, 10-11 ], k"), ElementsAre("n8", "n10", "n11", "k"));
  // A number is as wide as the beginning of its range, and may have more digits than 32 bits.
  EXPECT_THAT(expand("nid[008-010]"), ElementsAre("nid008", "nid009", "nid010"));
  EXPECT_THAT(expand("v[20261129001-20261129002]"), ElementsAre("v20261129001", "v20261129002"));
}

TEST(SlurmHosts, RefuseWhatIsNoList) {
  for (const char* list : {"",
                           "n[1-3",
                           "n1-3]",
                           "n[3-1]",
                           "n[a-b]",
                           "n[]",
                           "a,,b",
                           "n[1-2-3]",
                           "n[[1]]",
                           "n[0-4294967295]",
                           "n[1-99999999999]",
                           "n[1,[2-3]]",
                           "(null)",
                           " ",
                           "n1, ,n2",
                           "n1,",
                           "n1(x2)",
                           "n[1-2]]",
                           "n[0x1-0x3]",
                           "n[1-2,]",
                           "n[1-2",
                           "a;b",
                           "n[0-600000,0-600000]"}) {
    EXPECT_THAT(expand_slurm_hosts(list).status().message(), HasSubstr("is not a list of hosts"))
        << list;
  }
}

TEST(SlurmCounts, AreExpandedInOrder) {
  auto expand = [](const char* list) { return expand_slurm_counts(list).value(); };
  EXPECT_THAT(expand("4"), ElementsAre(4));
  EXPECT_THAT(expand("4(x2)"), ElementsAre(4, 4));
  EXPECT_THAT(expand("4(x2),3,1(x1)"), ElementsAre(4, 4, 3, 1));
  EXPECT_THAT(expand(" 4(x2) , 3\n"), ElementsAre(4, 4, 3));
}

TEST(Slurm, ListsHaveALimit) {
  EXPECT_EQ(expand_slurm_counts("2(x1048576)")->size(), 1u << 20);
  EXPECT_FALSE(expand_slurm_counts("2(x1048577)").ok());
  EXPECT_FALSE(expand_slurm_counts("1,2(x1048576)").ok());
  EXPECT_EQ(expand_slurm_hosts("n[1-1048576]")->size(), 1u << 20);
  EXPECT_FALSE(expand_slurm_hosts("n[0-1048576]").ok());
}

TEST(SlurmCounts, RefuseWhatIsNoList) {
  for (const char* list :
       {"", "x", "4(x", "4(x)", "4(x0)", "-1", "4,", "4(x2", "4(x999999999)", "4, ,3", "4(x2)3"}) {
    EXPECT_FALSE(expand_slurm_counts(list).ok()) << list;
  }
}

TEST(SlurmRole, TellsATaskFromTheScriptThatLooksLikeOne) {
  EXPECT_EQ(slurm_role(with({})), SlurmRole::kNone);
  // salloc's shell on the login node.
  EXPECT_EQ(slurm_role(with({{"SLURM_JOB_ID", "7"}, {"SLURM_NTASKS", "4"}})), SlurmRole::kShell);
  for (const char* name : {"SLURM_JOB_ID", "SLURM_JOBID", "SLURM_NTASKS"}) {
    EXPECT_EQ(slurm_role(with({{name, "7"}})), SlurmRole::kShell) << name;
  }
  // A batch script.
  EXPECT_EQ(slurm_role(with({{"SLURM_JOB_ID", "7"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}})),
            SlurmRole::kShell);
  // A batch script and an interactive shell of a Slurm that numbers these steps too, and the lowest
  // of the numbers that Slurm keeps for such steps.
  for (const char* step : {"4294967291", "4294967290", "4294967280"}) {
    EXPECT_EQ(slurm_role(with({{"SLURM_PROCID", "0"}, {"SLURM_STEP_ID", step}})),
              SlurmRole::kShell);
  }
  for (const char* task : {"0", "3"}) {
    EXPECT_EQ(slurm_role(with({{"SLURM_PROCID", task}, {"SLURM_STEP_ID", "0"}})), SlurmRole::kTask);
    EXPECT_EQ(slurm_role(with({{"SLURM_PROCID", task}, {"SLURM_STEP_NUM_TASKS", "4"}})),
              SlurmRole::kTask);
  }
  EXPECT_EQ(slurm_role(with({{"SLURM_PROCID", "0"}, {"SLURM_STEP_ID", "4294967279"}})),
            SlurmRole::kTask);
  EXPECT_EQ(slurm_role(with({{"SLURM_PROCID", "3"}})), SlurmRole::kTask);
}

TEST(SlurmFirstHost, IsTheStepsBeforeTheJobs) {
  EXPECT_EQ(slurm_first_host(with({})).value(), std::nullopt);
  EXPECT_EQ(slurm_first_host(with({{"SLURM_JOB_NODELIST", "n[3-5]"}})).value(), "n3");
  EXPECT_EQ(
      slurm_first_host(with({{"SLURM_JOB_NODELIST", "n[3-5]"}, {"SLURM_STEP_NODELIST", "n[4-5]"}}))
          .value(),
      "n4");
  // The name that old releases have comes last.
  EXPECT_EQ(slurm_first_host(with({{"SLURM_NODELIST", "n[7-8]"}})).value(), "n7");
  EXPECT_EQ(slurm_first_host(with({{"SLURM_NODELIST", "n[7-8]"}, {"SLURM_JOB_NODELIST", "n[3-5]"}}))
                .value(),
            "n3");
  EXPECT_FALSE(slurm_first_host(with({{"SLURM_JOB_NODELIST", "n["}})).ok());
}

TEST(SlurmPort, FollowsFromJobAndStep) {
  EXPECT_EQ(slurm_port(with({})), std::nullopt);
  EXPECT_EQ(slurm_port(with({{"SLURM_JOB_ID", "1234567"}})), 24567);
  EXPECT_EQ(slurm_port(with({{"SLURM_JOB_ID", "1234567"}, {"SLURM_STEP_ID", "1"}})), 24664);
  EXPECT_EQ(slurm_port(with({{"SLURM_JOB_ID", "9999"}})), 29999);
  EXPECT_EQ(slurm_port(with({{"SLURM_JOB_ID", "9999"}, {"SLURM_STEP_ID", "1"}})), 20096);
}

}  // namespace
}  // namespace accelerate
