#include "launch/supervise/output.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace accelerate::launcher::supervise {
namespace {

std::string prefixed(const std::vector<std::string>& pieces) {
  LinePrefixer prefixer("> ");
  std::string out;
  for (const std::string& piece : pieces) prefixer.append(piece, out);
  prefixer.finish(out);
  return out;
}

TEST(LinePrefixer, MarksEveryLineHoweverItIsCut) {
  EXPECT_EQ(prefixed({"a\nb\n"}), "> a\n> b\n");
  EXPECT_EQ(prefixed({"a", "", "b\n\nc", "d\n"}), "> ab\n> \n> cd\n");
}

TEST(LinePrefixer, HoldsAnUnfinishedLineBack) {
  LinePrefixer prefixer("> ");
  std::string out;
  prefixer.append("half", out);
  EXPECT_EQ(out, "");
  prefixer.append(" a line\nx", out);
  EXPECT_EQ(out, "> half a line\n");
}

TEST(LinePrefixer, KeepsLinesFromOneThatBeginsSo) {
  LinePrefixer prefixer("> ");
  prefixer.buffer_from("failed: ");
  std::string out;
  prefixer.append("a\nnot failed: b\nfailed: c\nd\ne", out);
  EXPECT_EQ(out, "> a\n> not failed: b\n");
  EXPECT_TRUE(prefixer.holds());
  prefixer.finish(out);
  EXPECT_EQ(out, "> a\n> not failed: b\n");
  EXPECT_EQ(prefixer.release(), (std::vector<std::string>{"failed: c\n", "d\n", "e\n"}));
  // A program that goes on is heard again.
  prefixer.append("f\nfailed: g\n", out);
  EXPECT_EQ(out, "> a\n> not failed: b\n> f\n> failed: g\n");
  EXPECT_EQ(prefixer.tail().back(), "failed: g");
}

TEST(LinePrefixer, EndsTheLastLine) {
  EXPECT_EQ(prefixed({"a\nend"}), "> a\n> end\n");
  EXPECT_EQ(prefixed({}), "");
  EXPECT_EQ(prefixed({"a\n"}), "> a\n");
}

TEST(LinePrefixer, TakesCarriageReturnAndNewlineAsOneEnd) {
  EXPECT_EQ(prefixed({"a\r\nb\r", "\nc"}), "> a\r\n> b\r\n> c\n");
}

// Both common habits: redraw with the "\r" in front, and with the "\r" behind.
TEST(LinePrefixer, ShowsAProgressBarWhileItRuns) {
  LinePrefixer prefixer("> ");
  std::string out;
  prefixer.append("\r10%", out);
  prefixer.append("\r20%", out);
  EXPECT_EQ(out, "\r> 10%\r");
  prefixer.append("\n", out);
  EXPECT_EQ(out, "\r> 10%\r> 20%\n");
  EXPECT_EQ(prefixed({"10%\r", "20%\r", "done\n"}), "> 10%\r> 20%\r> done\n");
  EXPECT_EQ(prefixed({"10%\r"}), "> 10%\r\n");
}

TEST(LinePrefixer, BoundsALineThatNeverEnds) {
  LinePrefixer prefixer("> ");
  std::string out;
  const std::string chunk(1000, 'x');
  for (int i = 0; i < 200; ++i) prefixer.append(chunk, out);
  const std::string full = "> " + std::string(LinePrefixer::kMaxLineBytes, 'x') + "\n";
  EXPECT_EQ(out, full + full + full);
  prefixer.finish(out);
  EXPECT_EQ(out, full + full + full + "> " + std::string(200'000 % (64 * 1024), 'x') + "\n");
  EXPECT_EQ(prefixed({std::string(LinePrefixer::kMaxLineBytes, 'x') + "\n"}), full)
      << "it just fits";
}

TEST(LinePrefixer, PassesOtherBytesThrough) {
  const std::string bytes("\0\xff\x1b[31m\x80\t", 9);
  EXPECT_EQ(prefixed({bytes + "\n"}), "> " + bytes + "\n");
}

TEST(LinePrefixer, RemembersTheLastLines) {
  LinePrefixer prefixer("> ");
  std::string out;
  for (int i = 0; i < 12; ++i) prefixer.append("line " + std::to_string(i) + "\n\n", out);
  prefixer.append(std::string(5000, 'y'), out);
  prefixer.finish(out);
  ASSERT_EQ(prefixer.tail().size(), LinePrefixer::kTailLines);
  EXPECT_EQ(prefixer.tail().front(), "line 3");
  EXPECT_EQ(prefixer.tail().back(), std::string(LinePrefixer::kTailLineBytes, 'y'));
}

}  // namespace
}  // namespace accelerate::launcher::supervise
