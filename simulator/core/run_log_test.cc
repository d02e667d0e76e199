#include "simulator/core/run_log.h"

#include <cstdint>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "simulator/core/scheduler.h"

namespace accelerate::simulator {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const RunLog::Header kHeader = {{"program", "train it"}, {"seed", "7"}};

// Three tasks that take turns; `at` is what a task says of itself in a round.
std::string words_at(int task, int round) {
  return "round " + std::to_string(round) + " of " + std::to_string(task);
}

struct Trial {
  RunLog log;
  std::vector<int> order;
  std::string difference;
};

Trial run(uint64_t seed, const RunLog* expected, int odd_round = -1) {
  Trial result{.log = RunLog(kHeader)};
  RunWitness witness({0, 1, 2}, result.log, expected);
  Scheduler scheduler(3, seed);
  scheduler.set_witness(&witness);
  scheduler.run([&](int task) {
    for (int round = 0; round < 20; ++round) {
      result.order.push_back(task);
      const bool is_odd = task == 1 && round == odd_round;
      witness.site(task, is_odd ? "elsewhere" : words_at(task, round), scheduler.now_ns(),
                   /*is_work=*/false);
      scheduler.yield();
    }
  });
  EXPECT_TRUE(witness.end().ok());
  result.difference = witness.difference();
  return result;
}

TEST(RunLog, TheSameRunFollowsIt) {
  const Trial first = run(1, nullptr);
  const Trial second = run(1, &first.log);
  EXPECT_EQ(second.difference, "");
  EXPECT_EQ(second.order, first.order);
  EXPECT_EQ(second.log.entries(), first.log.entries());
}

// The choices are those of the log, whatever the seed draws.
TEST(RunLog, ARunWithAnotherSeedMakesItsChoices) {
  const Trial first = run(1, nullptr);
  EXPECT_NE(run(2, nullptr).order, first.order);
  const Trial second = run(2, &first.log);
  EXPECT_EQ(second.difference, "");
  EXPECT_EQ(std::vector<int>(second.order.begin() + 1, second.order.end()),
            std::vector<int>(first.order.begin() + 1, first.order.end()));
}

TEST(RunLog, ARunThatDrawsOtherBackgroundWorkMakesItsChoices) {
  RunLog first;
  RunWitness wrote({0, 1}, first, nullptr);
  EXPECT_EQ(wrote.choose(0, /*options=*/8, /*drawn=*/5, 0), 5);
  EXPECT_EQ(wrote.choose(1, /*options=*/4, /*drawn=*/0, 0), 0);
  RunLog second;
  RunWitness follows({0, 1}, second, &first);
  EXPECT_EQ(follows.choose(0, /*options=*/8, /*drawn=*/2, 0), 5);
  EXPECT_EQ(follows.choose(1, /*options=*/4, /*drawn=*/3, 0), 0);
  EXPECT_EQ(follows.difference(), "");
  // One with fewer choices is another run.
  RunLog third;
  RunWitness differs({0, 1}, third, &first);
  EXPECT_EQ(differs.choose(0, /*options=*/4, /*drawn=*/2, 0), 2);
  EXPECT_THAT(differs.difference(), HasSubstr("drew 5 of 8 for its background work"));
}

// A log that was edited may have any number.
TEST(RunLog, ANegativeChoiceIsNotFollowed) {
  RunLog edited;
  edited.append(
      {.kind = RunLog::Kind::kBackground, .word = edited.intern(""), .options = 8, .value = -1});
  RunLog log;
  RunWitness follows({0, 1}, log, &edited);
  EXPECT_EQ(follows.choose(0, /*options=*/8, /*drawn=*/2, 0), 2);
  EXPECT_THAT(follows.difference(), HasSubstr("drew -1 of 8"));
}

TEST(RunLog, NamesTheFirstDifferenceWithBothSides) {
  const Trial first = run(1, nullptr);
  const Trial second = run(1, &first.log, /*odd_round=*/5);
  EXPECT_THAT(second.difference, AllOf(HasSubstr("the log has rank 1 at round 5 of 1"),
                                       HasSubstr("this run has rank 1 at elsewhere")));
}

TEST(RunLog, NamesWhatIsMissingAtTheEnd) {
  const Trial first = run(1, nullptr);
  RunLog log(kHeader);
  RunWitness witness({0, 1, 2}, log, &first.log);
  EXPECT_TRUE(witness.end().ok());
  EXPECT_THAT(witness.difference(), HasSubstr("and this run has ended"));
  RunLog empty(kHeader);
  RunLog another(kHeader);
  RunWitness longer({0}, another, &empty);
  longer.site(0, "store get x", 5, false);
  EXPECT_THAT(longer.difference(),
              HasSubstr("the log has ended, and this run has rank 0 at store get x"));
}

// As that of a process that was killed.
TEST(RunLog, IsFollowedAsFarAsItGoesIfItHasNoEnd) {
  const Trial first = run(1, nullptr);
  std::string text = first.log.to_string();
  for (int line = 0; line < 20; ++line) text.resize(text.rfind('\n', text.size() - 2) + 1);
  const RunLog cut = RunLog::parse(text).value();
  EXPECT_FALSE(cut.is_whole());
  EXPECT_EQ(cut.entries().size() + 19, first.log.entries().size());
  EXPECT_EQ(cut.to_string(), text);
  const Trial second = run(1, &cut);
  EXPECT_EQ(second.difference, "");
  EXPECT_EQ(second.order, first.order);
  const Trial odd = run(1, &cut, /*odd_round=*/5);
  EXPECT_THAT(odd.difference, HasSubstr("this run has rank 1 at elsewhere"));
}

TEST(RunLog, HashesWorkUnlessItNamesIt) {
  const auto difference = [](bool names_work, const char* changed) {
    RunLog first({}, names_work);
    RunWitness wrote({0}, first, nullptr);
    for (const char* op : {"op mm", "op add", "op mul"}) wrote.site(0, op, 0, true);
    wrote.site(0, "collective all_reduce", 0, false);
    RunLog second({}, names_work);
    RunWitness follows({0}, second, &first);
    for (const char* op : {"op mm", changed, "op mul"}) follows.site(0, op, 0, true);
    follows.site(0, "collective all_reduce", 0, false);
    return follows.difference();
  };
  EXPECT_EQ(difference(false, "op add"), "");
  EXPECT_THAT(difference(false, "op sub"), HasSubstr("3 operators, allocations and releases"));
  EXPECT_THAT(difference(true, "op sub"),
              HasSubstr("the log has rank 0 at op add, this run has rank 0 at op sub"));
}

TEST(RunLog, ComparesWorkBehindTheLastSite) {
  const auto difference = [](bool names_work, const std::vector<std::string>& last) {
    RunLog first({}, names_work);
    RunWitness wrote({0, 1}, first, nullptr);
    wrote.site(1, "collective all_reduce", 0, false);
    for (const char* op : {"op mm", "op add"}) wrote.site(1, op, 3, true);
    EXPECT_TRUE(wrote.end().ok());
    RunLog second({}, names_work);
    RunWitness follows({0, 1}, second, &first);
    follows.site(1, "collective all_reduce", 0, false);
    for (const std::string& op : last) follows.site(1, op, 3, true);
    EXPECT_TRUE(follows.end().ok());
    return follows.difference();
  };
  for (const bool names_work : {false, true}) {
    EXPECT_EQ(difference(names_work, {"op mm", "op add"}), "");
    EXPECT_NE(difference(names_work, {"op mm", "op sub"}), "");
    EXPECT_THAT(difference(names_work, {}), HasSubstr("and this run has ended"));
  }
  EXPECT_THAT(difference(false, {"op mm", "op add", "op mul"}),
              AllOf(HasSubstr("the log has 2 operators, allocations and releases of rank 1"),
                    HasSubstr("this run has 3 operators, allocations and releases of rank 1")));
}

TEST(RunLog, ComparesTimesAndValues) {
  RunLog first;
  RunWitness wrote({0}, first, nullptr);
  wrote.site(0, "x", 10, false);
  RunLog second;
  RunWitness follows({0}, second, &first);
  follows.site(0, "x", 11, false);
  EXPECT_THAT(follows.difference(), AllOf(HasSubstr("at 10 ns"), HasSubstr("at 11 ns")));
}

TEST(RunLog, IsReadAsItIsWritten) {
  const Trial first = run(3, nullptr);
  const RunLog again = RunLog::parse(first.log.to_string()).value();
  EXPECT_EQ(again.entries(), first.log.entries());
  EXPECT_EQ(again.header(), kHeader);
  EXPECT_EQ(again.to_string(), first.log.to_string());
}

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

TEST(RunLog, IsInAFileWithDigests) {
  const std::string path = ::testing::TempDir() + "/run.log";
  RunLog log({{"program", "a\nb"}});
  RunWitness witness({0}, log, nullptr);
  ASSERT_TRUE(witness.write_to(path).ok());
  for (int i = 0; i < 2500; ++i) witness.site(0, "get key\n" + std::to_string(i % 7), i, false);
  const RunLog so_far = RunLog::read(path).value();
  EXPECT_EQ(so_far.entries().size(), 2000U) << "the process may die now";
  EXPECT_FALSE(so_far.is_whole());
  ASSERT_TRUE(witness.end().ok());
  const RunLog read = RunLog::read(path).value();
  EXPECT_TRUE(read.is_whole());
  EXPECT_EQ(read.entries(), log.entries());
  EXPECT_EQ(read.header("program"), "a\nb");
  std::string changed = text_of(path);
  const size_t at = changed.find("s 0 1 0 0 7\n");
  ASSERT_NE(at, std::string::npos);
  changed[at + 10] = '8';
  EXPECT_THAT(std::string(RunLog::parse(changed).status().message()),
              HasSubstr("the log was changed"));
}

TEST(RunLog, SaysWhatIsWrongWithAText) {
  const auto error = [](const std::string& text) {
    return std::string(RunLog::parse(text).status().message());
  };
  EXPECT_THAT(error(""), HasSubstr("line 1: this is not the log of a run"));
  EXPECT_THAT(error("accelerate run log 9\n"), HasSubstr("another version of logs"));
  EXPECT_THAT(error("accelerate run log 1\nr 0 0 2 0 0\n"), HasSubstr("line 2: the words of"));
  EXPECT_THAT(error("accelerate run log 1\nq\n"), HasSubstr("line 2: this is not an entry"));
  EXPECT_THAT(error("accelerate run log 1\nw a\ns 0 0 x 0 0\n"), HasSubstr("line 3"));
  EXPECT_THAT(error("accelerate run log 1\nw a\ns 0 0 0 0 0\nend 2\n"),
              HasSubstr("line 4: entries are missing before the end"));
  EXPECT_THAT(std::string(RunLog::read("/nowhere/run.log").status().message()),
              HasSubstr("cannot read /nowhere/run.log"));
}

TEST(RunLog, SaysOfWhatElseItIs) {
  const RunLog log(kHeader);
  EXPECT_THAT(log.difference_of_header(kHeader), IsEmpty());
  EXPECT_EQ(log.difference_of_header({{"program", "other"}, {"seed", "7"}}),
            "the log is of another program: \"train it\", not \"other\"");
  const RunLog::Header versions = {{"version of accelerate", "0.7.0"},
                                   {"version of LibTorch", "2.6.0"}};
  const RunLog old(versions);
  EXPECT_EQ(old.difference_of_header(
                {{"version of accelerate", "0.8.0"}, {"version of LibTorch", "2.6.0"}}),
            "the log is of another version of accelerate: \"0.7.0\", not \"0.8.0\"");
  EXPECT_EQ(old.difference_of_header(
                {{"version of accelerate", "0.7.0"}, {"version of LibTorch", "2.9.1"}}),
            "the log is of another version of LibTorch: \"2.6.0\", not \"2.9.1\"");
}

}  // namespace
}  // namespace accelerate::simulator
