#include "accelerate/state/progress_bar.h"

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "accelerate/testing/fake_runtime.h"

namespace accelerate {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// A console that is kept, and a clock that stands until it is moved.
class ConsoleRuntime : public FakeRuntime {
 public:
  explicit ConsoleRuntime(int rank = 0, bool terminal = true, int num_nodes = 1)
      : FakeRuntime(Topology::uniform(rank, num_nodes, 2)), terminal_(terminal) {
    environment().set("COLUMNS", "100");
  }

  absl::Time now() override { return now_; }
  void sleep_for(absl::Duration duration) override { now_ += duration; }
  void write_console(ConsoleStream stream, std::string_view text) override {
    if (fails) throw std::runtime_error("no console");
    (stream == ConsoleStream::kErr ? written : printed) += text;
  }
  bool is_terminal(ConsoleStream) const override { return terminal_; }

  // The lines drawn so far, each over the one before; the first is what preceded them all.
  std::vector<std::string> drawings() const { return absl::StrSplit(written, '\r'); }
  std::string last_drawing() const { return drawings().back(); }

  std::string written;
  std::string printed;  // to stdout
  bool fails = false;

 private:
  bool terminal_;
  absl::Time now_ = absl::UnixEpoch();
};

TEST(ProgressBar, ShowsShareCountTimesRateAndPostfix) {
  ConsoleRuntime runtime;
  ProgressBar bar(runtime, {.total = 22, .description = "epoch 3"});
  EXPECT_EQ(runtime.last_drawing(), "epoch 3:   0%|          | 0/22 [00:00<?, ? it/s]\x1b[K");
  runtime.sleep_for(absl::Milliseconds(1250));
  bar.advance(10, "loss 0.123");
  EXPECT_EQ(runtime.last_drawing(),
            "epoch 3:  45%|█████     | 10/22 [00:01<00:01, 8.0 it/s, loss 0.123]\x1b[K");
}

TEST(ProgressBar, CountsBytes) {
  ConsoleRuntime runtime;
  ProgressBar bar(runtime,
                  {.total = 3'000'000'000, .description = "loading", .counts_bytes = true});
  EXPECT_EQ(runtime.last_drawing(), "loading:   0%|          | 0 B/3.00 GB [00:00<?, ? B/s]\x1b[K");
  runtime.sleep_for(absl::Seconds(2));
  bar.advance(999'999'999);
  EXPECT_EQ(runtime.last_drawing(),
            "loading:  33%|███       | 1.00 GB/3.00 GB [00:02<00:04, 500.00 MB/s]\x1b[K");
  ProgressBar unbounded(runtime, {.counts_bytes = true});
  runtime.sleep_for(absl::Seconds(1));
  unbounded.advance(1500);
  EXPECT_EQ(runtime.last_drawing(), "1.50 kB [00:01, 1.50 kB/s]\x1b[K");
}

TEST(ProgressBar, IsDrawnByTheFirstRankOfEachNodeOrByAll) {
  for (int rank = 0; rank < 4; ++rank) {
    for (bool main_process_only : {true, false}) {
      ConsoleRuntime runtime(rank, /*terminal=*/true, /*num_nodes=*/2);
      ProgressBar(runtime, {.total = 2, .main_process_only = main_process_only}).advance();
      EXPECT_EQ(runtime.written.empty(), main_process_only && rank % 2 != 0) << "rank " << rank;
    }
  }
}

TEST(ProgressBar, IsSilentOnOtherRanksAndInShortLoopsWithoutATerminal) {
  for (auto [rank, terminal] : {std::pair(1, true), std::pair(1, false), std::pair(0, false)}) {
    ConsoleRuntime runtime(rank, terminal);
    {
      ProgressBar bar(runtime, {.total = 2});
      if (rank == 1) runtime.sleep_for(absl::Hours(1));
      bar.advance(2, "postfix");
      EXPECT_EQ(bar.count(), 2);
    }
    EXPECT_EQ(runtime.written, "");
  }
}

TEST(ProgressBar, WritesPlainLinesEveryFewSecondsWithoutATerminal) {
  ConsoleRuntime runtime(0, /*terminal=*/false);
  {
    ProgressBar bar(runtime, {.total = 14, .description = "epoch 3"});
    for (int step = 0; step < 14; ++step) {
      runtime.sleep_for(absl::Seconds(1));
      bar.advance(1, "loss 0.1");
      if (step == 6) bar.print("a line of the program");
    }
  }
  EXPECT_EQ(runtime.written,
            "epoch 3:  35% 5/14 [00:05<00:09, 1.0 it/s, loss 0.1]\n"
            "epoch 3:  71% 10/14 [00:10<00:04, 1.0 it/s, loss 0.1]\n"
            "epoch 3: 100% 14/14 [00:14<00:00, 1.0 it/s, loss 0.1]\n");
  EXPECT_EQ(runtime.printed, "a line of the program\n");
  runtime.written.clear();
  ProgressBar unbounded(runtime, {});
  runtime.sleep_for(-absl::Hours(1));
  unbounded.advance();
  runtime.sleep_for(ProgressBar::kPlainInterval);
  unbounded.advance();
  EXPECT_EQ(runtime.written, "2 it [00:00, ? it/s]\n");
}

TEST(ProgressBar, RedrawsAtMostTenTimesASecond) {
  ConsoleRuntime runtime;
  ProgressBar bar(runtime, {.total = 1'000'000});  // The first twentieth is far.
  for (int i = 0; i < 1000; ++i) {
    bar.advance();
    runtime.sleep_for(absl::Milliseconds(1));
  }
  EXPECT_EQ(runtime.drawings().size() - 1, 10);
}

TEST(ProgressBar, DrawsEveryTwentiethWhenTheClockStandsStill) {
  ConsoleRuntime runtime;
  ProgressBar bar(runtime, {.total = 1000});
  const size_t before = runtime.drawings().size();
  for (int step = 0; step < 1000; ++step) bar.advance();
  EXPECT_EQ(runtime.drawings().size(), before + 20);
}

TEST(ProgressBar, PrintsLinesAboveItself) {
  ConsoleRuntime runtime;
  ProgressBar bar(runtime, {.total = 2, .description = "epoch"});
  bar.print("loss 1");
  EXPECT_EQ(runtime.printed, "loss 1\n");
  EXPECT_THAT(runtime.written, HasSubstr("\r\x1b[K\repoch"));
  ConsoleRuntime no_terminal(0, false);
  ProgressBar silent(no_terminal, {.total = 2});
  silent.print("loss 2");
  EXPECT_EQ(no_terminal.printed, "loss 2\n");
  EXPECT_EQ(no_terminal.written, "");
  ConsoleRuntime other_rank(1);
  ProgressBar(other_rank, {.total = 2}).print("loss 3");
  EXPECT_EQ(other_rank.printed, "");
}

TEST(ProgressBar, KeepsDrawingWhenTheClockIsSetBack) {
  ConsoleRuntime runtime;
  ProgressBar bar(runtime, {.total = 4});
  runtime.sleep_for(-absl::Hours(1));
  bar.advance();
  EXPECT_THAT(runtime.last_drawing(), HasSubstr("1/4 [00:00<00:00, ? it/s]"));
}

TEST(ProgressBar, DrawsItsFinalStateOnceAndEndsTheLine) {
  ConsoleRuntime runtime;
  {
    ProgressBar bar(runtime, {.total = 2});
    bar.advance();
    bar.advance();
    bar.close();
    bar.advance();
  }
  EXPECT_EQ(runtime.drawings().size() - 1, 3);  // 0%, 50%, 100%
  EXPECT_EQ(runtime.last_drawing(), "100%|██████████| 2/2 [00:00<00:00, ? it/s]\x1b[K\n");
}

TEST(ProgressBar, CountsWithoutATotalOrBeyondIt) {
  ConsoleRuntime runtime;
  ProgressBar unbounded(runtime, {.description = "files"});
  runtime.sleep_for(absl::Seconds(4000));
  unbounded.advance(8);
  EXPECT_EQ(runtime.last_drawing(), "files: 8 it [1:06:40, 500.0 s/it]\x1b[K");
  ProgressBar exceeded(runtime, {.total = 1});
  runtime.sleep_for(absl::Seconds(1));
  exceeded.advance(2);
  EXPECT_EQ(runtime.last_drawing(), "2 it [00:01, 2.0 it/s]\x1b[K");
  ProgressBar nothing_to_do(runtime, {.total = 0});
  EXPECT_THAT(runtime.last_drawing(), HasSubstr("100%|██████████| 0/0"));
}

TEST(ProgressBar, GivesUpTheBarAndThenTheTextInANarrowTerminal) {
  ConsoleRuntime runtime;
  runtime.environment().set("COLUMNS", "38");
  ProgressBar shrunk(runtime, {.total = 2});
  EXPECT_EQ(runtime.last_drawing(), "  0%|         | 0/2 [00:00<?, ? it/s]\x1b[K");
  runtime.environment().set("COLUMNS", "12");
  ProgressBar cut(runtime, {.total = 2});
  EXPECT_EQ(runtime.last_drawing(), "  0%|| 0/2 \x1b[K");
  // Each of these characters is two columns wide; the third does not fit any more.
  runtime.environment().set("COLUMNS", "6");
  ProgressBar wide(runtime, {.total = 2, .description = "訓練中"});
  EXPECT_EQ(runtime.last_drawing(), "訓練\x1b[K");
}

TEST(ProgressBar, StaysOnOneLineWhateverTheText) {
  ConsoleRuntime runtime;
  ProgressBar bar(runtime, {.total = 2, .description = "two\nlines"});
  runtime.sleep_for(absl::Seconds(1));
  bar.advance(1, "up\x1b[A");
  EXPECT_THAT(runtime.written, Not(HasSubstr("\n")));
  EXPECT_THAT(runtime.last_drawing(), HasSubstr("up [A]"));
}

TEST(ProgressBar, DoesNotEndTheProgramWhenItCannotBeDrawnAtTheEnd) {
  ConsoleRuntime runtime;
  ProgressBar bar(runtime);
  runtime.fails = true;
}

}  // namespace
}  // namespace accelerate
