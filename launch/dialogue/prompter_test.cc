#include "launch/dialogue/prompter.h"

#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/status/status.h"

namespace accelerate::launcher::dialogue {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

using Words = std::vector<std::string>;

// Questions with the keys that answer them.
struct Asked {
  explicit Asked(const std::string& keys, bool has_menu = false)
      : in(keys), ask(in, out, has_menu) {}

  std::istringstream in;
  std::ostringstream out;
  Prompter ask;
};

TEST(Prompter, AsksThreeTimesInAll) {
  Asked twice("x\n-1\n5\n");
  EXPECT_EQ(twice.ask.ask_number("How many", 7), 5);
  EXPECT_TRUE(twice.ask.status().ok());
  EXPECT_THAT(twice.out.str(), HasSubstr("expected a whole number of at least 0, not \"x\""));

  Asked thrice("x\n-1\ny\n5\n6\n");
  EXPECT_EQ(thrice.ask.ask_number("How many", 7), 7);
  EXPECT_TRUE(absl::IsFailedPrecondition(thrice.ask.status()));
  EXPECT_THAT(std::string(thrice.ask.status().message()),
              HasSubstr("no usable answer in 3 tries to \"How many\""));
  // From then on nothing is asked.
  const std::string before = thrice.out.str();
  EXPECT_EQ(thrice.ask.ask_number("And now", 8), 8);
  EXPECT_EQ(thrice.ask.ask_text("And now", "text"), "text");
  EXPECT_TRUE(thrice.ask.ask_yes_no("And now", true));
  EXPECT_EQ(thrice.ask.ask_choice("And now", {"a", "b"}, 1), 1u);
  thrice.ask.skip("And now", "not here");
  EXPECT_EQ(thrice.out.str(), before);
}

// Each question has its own three.
TEST(Prompter, ForgetsBadAnswersAfterAGoodOne) {
  Asked asked("x\nx\n1\nx\nx\n2\n");
  EXPECT_EQ(asked.ask.ask_number("First", 0), 1);
  EXPECT_EQ(asked.ask.ask_number("Second", 0), 2);
  EXPECT_TRUE(asked.ask.status().ok());
}

TEST(Prompter, AsksAPersonUntilTheAnswerIsGood) {
  Asked asked("a\nb\nc\nd\ne\n3\n", /*has_menu=*/true);
  EXPECT_EQ(asked.ask.ask_number("How many", 7), 3);
  EXPECT_TRUE(asked.ask.status().ok());
}

TEST(Prompter, TakesNumbersFromTheLeastOn) {
  EXPECT_EQ(Asked("2\n").ask.ask_number("How many", 9, 2), 2);
  Asked below("1\n3\n");
  EXPECT_EQ(below.ask.ask_number("How many", 9, 2), 3);
  EXPECT_EQ(Asked("\n").ask.ask_number("How many", 9, 2), 9);
  // Without a default an answer is needed.
  Asked needed("\n4\n");
  EXPECT_EQ(needed.ask.ask_number("How many", std::nullopt), 4);
  EXPECT_THAT(needed.out.str(), HasSubstr("an answer is needed"));
}

TEST(Prompter, ChecksADefaultLikeEveryAnswer) {
  const Prompter::Check check = [](const std::string& answer) {
    return answer == "good" ? absl::OkStatus() : absl::InvalidArgumentError("bad: " + answer);
  };
  Asked asked("\ngood\n");
  EXPECT_EQ(asked.ask.ask_text("Which", "proposed", check), "good");
  EXPECT_THAT(asked.out.str(), HasSubstr("Which [proposed]: "));
  EXPECT_THAT(asked.out.str(), HasSubstr("bad: proposed"));
  // An empty default is "none", which no check sees.
  EXPECT_EQ(Asked("\n").ask.ask_text("Which", "", check), "");
  EXPECT_EQ(Asked("  good \t\n").ask.ask_text("Which", "", check), "good") << "without blanks";
}

TEST(Choice, IsANameANumberOrABeginningOfOneAlone) {
  const Words choices = {"no", "nope", "Multi-GPU", "multi-CPU"};
  const auto chosen = [&](const std::string& answer) {
    Asked asked(answer + "\n");
    return asked.ask.ask_choice("Which", choices, 3);
  };
  EXPECT_EQ(chosen(""), 3u);
  EXPECT_EQ(chosen("no"), 0u) << "a whole name, though another begins with it";
  EXPECT_EQ(chosen("NOP"), 1u);
  EXPECT_EQ(chosen("multi-g"), 2u);
  EXPECT_EQ(chosen("0"), 0u);
  EXPECT_EQ(chosen("3"), 3u);
  for (const char* answer : {"n", "multi", "4", "-1", "x"}) {
    Asked asked(std::string(answer) + "\n1\n");
    EXPECT_EQ(asked.ask.ask_choice("Which", choices, 3), 1u) << answer;
    EXPECT_THAT(asked.out.str(), HasSubstr("expected a number from 0 to 3")) << answer;
  }
}

// A number that is a name is not the number of another one.
TEST(Choice, OfNumbersGoesByTheirNames) {
  Asked asked("1\n2\n");
  EXPECT_EQ(asked.ask.ask_choice("Version", {"1", "2"}, 1), 0u);
  EXPECT_EQ(asked.ask.ask_choice("Version", {"1", "2"}, 0), 1u);
  EXPECT_THAT(asked.out.str(), Not(HasSubstr("0  1")));
}

constexpr char kUp[] = "\x1b[A";
constexpr char kDown[] = "\x1b[B";

size_t in_menu(const std::string& keys, size_t otherwise = 0) {
  Asked asked(keys, /*has_menu=*/true);
  Words choices;
  for (int i = 0; i < 12; ++i) choices.push_back(std::string(1, static_cast<char>('a' + i)) + "-x");
  const size_t selected = asked.ask.ask_choice("Which", choices, otherwise);
  EXPECT_TRUE(asked.ask.status().ok()) << asked.ask.status();
  return selected;
}

TEST(Menu, GoesRoundAtBothEnds) {
  EXPECT_EQ(in_menu(std::string(kUp) + "\n"), 11u);
  EXPECT_EQ(in_menu(std::string(kDown) + "\n"), 1u);
  EXPECT_EQ(in_menu(std::string(kDown) + "\n", 11), 0u);
  EXPECT_EQ(in_menu(std::string(kUp) + kUp + kDown + "\r", 1), 0u);
  EXPECT_EQ(in_menu("\n", 5), 5u);
}

TEST(Menu, PutsTypedDigitsTogetherUntilAnotherKey) {
  EXPECT_EQ(in_menu("1\n"), 1u);
  EXPECT_EQ(in_menu("11\n"), 11u);
  EXPECT_EQ(in_menu("15\n"), 5u) << "15 is none, so a new number begins";
  EXPECT_EQ(in_menu("1\x7f"
                    "1\n"),
            1u);
  EXPECT_EQ(in_menu(std::string("1") + kDown + "1\n"), 1u);
  EXPECT_EQ(in_menu("c\n"), 2u);
  EXPECT_EQ(in_menu("cz\n"), 2u) << "no name begins so";
}

TEST(Menu, IsLeftByEscByCtrlCAndAtTheEndOfInput) {
  for (const char* keys : {"\x1b", "\x03", "\x04", ""}) {
    Asked asked(keys, /*has_menu=*/true);
    EXPECT_EQ(asked.ask.ask_choice("Which", {"a", "b"}, 1), 1u);
    EXPECT_TRUE(absl::IsCancelled(asked.ask.status())) << asked.ask.status();
  }
}

}  // namespace
}  // namespace accelerate::launcher::dialogue
