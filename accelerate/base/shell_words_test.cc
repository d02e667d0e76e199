#include "accelerate/base/shell_words.h"

#include <gtest/gtest.h>

namespace accelerate {
namespace {

TEST(ShellWords, AreQuotedOnlyWhereTheyMustBe) {
  EXPECT_EQ(shell_quoted("--lr=0.1"), "--lr=0.1");
  EXPECT_EQ(shell_quoted("a b"), "'a b'");
  EXPECT_EQ(shell_quoted("it's"), "'it'\\''s'");
  EXPECT_EQ(shell_quoted(""), "''");
  const std::vector<std::string> words = {"echo", "$HOME", "~"};
  EXPECT_EQ(shell_line(words), "echo '$HOME' '~'");
}

}  // namespace
}  // namespace accelerate
