#include "accelerate/base/message_text.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accelerate {
namespace {

TEST(RankRanges, JoinsNeighbours) {
  EXPECT_EQ(rank_ranges({}), "");
  EXPECT_EQ(rank_ranges({4}), "4");
  EXPECT_EQ(rank_ranges({0, 1, 2, 3, 8, 10, 11}), "0-3,8,10-11");
}

TEST(RankRanges, KeepsTheOrder) { EXPECT_EQ(rank_ranges({3, 2, 0, 1}), "3,2,0-1"); }

TEST(ShellWords, AreQuotedOnlyWhereTheyMustBe) {
  EXPECT_EQ(shell_quoted("--lr=0.1"), "--lr=0.1");
  EXPECT_EQ(shell_quoted("a b"), "'a b'");
  EXPECT_EQ(shell_quoted("it's"), "'it'\\''s'");
  EXPECT_EQ(shell_quoted(""), "''");
  const std::vector<std::string> words = {"echo", "$HOME", "~"};
  EXPECT_EQ(shell_line(words), "echo '$HOME' '~'");
}

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(Suggestion, TakesSlipsOfTheFingersAndBeginnings) {
  const std::vector<std::string> names = {"num_processes", "num_machines", "launch"};
  EXPECT_THAT(nearest_names("num_porcesses", names), ElementsAre("num_processes"));
  EXPECT_THAT(nearest_names("num_", names), ElementsAre("num_processes", "num_machines"));
  EXPECT_THAT(nearest_names("LUNCH", names), ElementsAre("launch"));
  EXPECT_THAT(nearest_names("xyzzy", names), IsEmpty());
  EXPECT_THAT(nearest_names(std::string(100'000, 'n'), names), IsEmpty());
}

TEST(Suggestion, IsPartOfAMessage) {
  const std::vector<std::string> names = {"cpu", "multi_gpu"};
  EXPECT_EQ(did_you_mean("multi_cpu", names, "--"), "; did you mean --multi_gpu?");
  EXPECT_EQ(did_you_mean("simulate", names), "");
  EXPECT_EQ(suggestion("cpus", names), "did you mean \"cpu\"?");
  EXPECT_EQ(suggestion("simulate", names), "one of cpu, multi_gpu");
}

TEST(Suggestion, ForgivesAThirdOfAWordAndTwoLettersAtLeast) {
  const auto finds = [](const std::string& word, const std::string& name) {
    const std::vector<std::string> names = {name};
    return !nearest_names(word, names).empty();
  };
  EXPECT_TRUE(finds("abcd", "abxy"));
  EXPECT_FALSE(finds("abcd", "axyz"));
  EXPECT_TRUE(finds("abcdefgh", "abcdefxy"));
  EXPECT_FALSE(finds("abcdefgh", "abcdexyz"));
  EXPECT_TRUE(finds("abcdefghi", "abcdefxyz"));
  EXPECT_FALSE(finds("abcdefghi", "abcdewxyz"));
  // Four letters begin a name, three do not.
  EXPECT_TRUE(finds("proc", "processes"));
  EXPECT_FALSE(finds("pro", "processes"));
  EXPECT_TRUE(finds(std::string(64, 'a'), std::string(63, 'a') + "b"));
  EXPECT_FALSE(finds(std::string(65, 'a'), std::string(64, 'a') + "b")) << "longer than any name";
}

TEST(Suggestion, HasThreeNamesTheClosestFirst) {
  const std::vector<std::string> names = {"beta12", "beta1", "beta", "beta2", "betax"};
  EXPECT_THAT(nearest_names("beta", names), ElementsAre("beta", "beta12", "beta1"));
  EXPECT_THAT(nearest_names("beat", names), ElementsAre("beta", "beta1", "beta2"));
}

TEST(RankLists, GatherTheRanksThatSayTheSame) {
  EXPECT_EQ(rank_list({3}), "rank 3");
  EXPECT_EQ(rank_list({0, 1, 2, 5}), "ranks 0-2, 5");
  EXPECT_EQ(lines_by_rank({{0, "a"}, {1, ""}, {2, "b"}, {3, "a"}, {4, "a"}}),
            "  ranks 0, 3-4: a\n  rank 2: b");
  EXPECT_EQ(lines_by_rank({{0, ""}}), "");
}

}  // namespace
}  // namespace accelerate
