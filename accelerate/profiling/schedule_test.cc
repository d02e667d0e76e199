#include "accelerate/profiling/profiler.h"

#include <string>

#include <gtest/gtest.h>

namespace accelerate {
namespace {

char letter(ProfileAction action) {
  switch (action) {
    case ProfileAction::kNone: return '.';
    case ProfileAction::kWarmup: return 'w';
    case ProfileAction::kRecord: return 'r';
    case ProfileAction::kRecordAndSave: return 'S';
  }
  return '?';
}

std::string actions(const std::optional<ProfileSchedule>& schedule, int num_steps) {
  std::string text;
  for (int step = 0; step < num_steps; ++step) text += letter(profile_action(schedule, step));
  return text;
}

TEST(ProfileSchedule, RecordsEverythingWithoutOne) { EXPECT_EQ(actions({}, 4), "rrrr"); }

TEST(ProfileSchedule, GoesThroughItsCycle) {
  EXPECT_EQ(actions(ProfileSchedule{.wait = 1, .warmup = 1, .active = 2}, 9), ".wrS.wrS.");
  EXPECT_EQ(actions(ProfileSchedule{.wait = 1, .warmup = 1, .active = 1}, 7), ".wS.wS.");
}

TEST(ProfileSchedule, SkipsOnceAndRepeatsAsToldTo) {
  const ProfileSchedule schedule{.skip_first = 3, .wait = 1, .warmup = 1, .active = 2, .repeat = 2};
  EXPECT_EQ(actions(schedule, 14), "....wrS.wrS...");
}

TEST(ProfileSchedule, MaySaveEachStep) {
  EXPECT_EQ(actions(ProfileSchedule{.active = 1}, 3), "SSS");
  EXPECT_EQ(actions(ProfileSchedule{.active = 1, .repeat = 2}, 4), "SS..");
}

// Against the cycle written out.
TEST(ProfileSchedule, IsWhatItsNumbersSpellOut) {
  int num_schedules = 0;
  for (int skip = 0; skip < 4; ++skip) {
    for (int wait = 0; wait < 4; ++wait) {
      for (int warmup = 0; warmup < 4; ++warmup) {
        for (int active = 1; active < 4; ++active) {
          for (int repeat = 0; repeat < 4; ++repeat) {
            const std::string cycle = std::string(wait, '.') + std::string(warmup, 'w') +
                                      std::string(active - 1, 'r') + "S";
            std::string expected(skip, '.');
            for (int i = 0; i < (repeat == 0 ? 40 : repeat); ++i) expected += cycle;
            expected.resize(40, '.');
            const ProfileSchedule schedule{.skip_first = skip,
                                           .wait = wait,
                                           .warmup = warmup,
                                           .active = active,
                                           .repeat = repeat};
            ASSERT_EQ(actions(schedule, 40), expected)
                << skip << " " << wait << " " << warmup << " " << active << " " << repeat;
            ++num_schedules;
          }
        }
      }
    }
  }
  EXPECT_EQ(num_schedules, 768);
}

}  // namespace
}  // namespace accelerate
