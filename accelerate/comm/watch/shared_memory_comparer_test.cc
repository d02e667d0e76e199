#include "accelerate/comm/watch/watched_backend.h"

#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

namespace accelerate {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

constexpr milliseconds kPatience(60'000);

// Runs `body` on each of so many members, each a thread with a mapping of its own.
void on_members(
    int members,
    const std::function<void(int member, std::unique_ptr<SharedMemoryComparer>)>& body) {
  auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::thread> threads;
  for (int member = 0; member < members; ++member) {
    threads.emplace_back([&, member] {
      std::unique_ptr<SharedMemoryComparer> words =
          SharedMemoryComparer::make(*store, member, members);
      ASSERT_NE(words, nullptr);
      body(member, std::move(words));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const c10::DistBackendError& error) {
    return error.what_without_backtrace();
  }
  return "";
}

TEST(SharedMemoryComparer, AgreeCallByCallHoweverFarAMemberIsAhead) {
  constexpr uint64_t kCalls = 2000;
  on_members(3, [](uint64_t member, std::unique_ptr<SharedMemoryComparer> words) {
    for (uint64_t call = 0; call < kCalls; ++call) {
      const auto entry = words->enter(call * call, kPatience);
      EXPECT_TRUE(entry.agrees) << "call " << call;
      EXPECT_EQ(entry.round, call);
      // Each member waits at places of its own.
      if (call % 100 == 30 * member) {
        EXPECT_TRUE(words->compare_all(entry.round, kPatience));
      }
    }
    EXPECT_TRUE(words->compare_all(kCalls - 1, kPatience));
    EXPECT_TRUE(words->compare_all(0, kPatience)) << "long ago, and compared then";
  });
}

// Whatever the order in which members come: the later of two that differ learns it at once, and
// all do before the call is done.
TEST(SharedMemoryComparer, DifferForWhoeverComesLaterAndInTheEndForAll) {
  for (int repetition = 0; repetition < 200; ++repetition) {
    std::atomic<int> learnt = 0;
    on_members(3, [&](int member, std::unique_ptr<SharedMemoryComparer> words) {
      EXPECT_TRUE(words->compare_all(words->enter(7, kPatience).round, kPatience));
      const auto entry = words->enter(member == 1 ? 2 : 1, kPatience);
      if (!entry.agrees) ++learnt;
      EXPECT_FALSE(words->compare_all(entry.round, kPatience));
    });
    EXPECT_GE(learnt.load(), 1);
  }
}

TEST(SharedMemoryComparer, EndWhenAMemberIsGone) {
  on_members(2, [](int member, std::unique_ptr<SharedMemoryComparer> words) {
    if (member == 1) return;
    const auto entry = words->enter(1, kPatience);
    EXPECT_TRUE(entry.agrees) << "with the members that have come";
    EXPECT_THAT(error_of([&] { words->compare_all(entry.round, kPatience); }),
                HasSubstr("has closed"));
  });
}

TEST(SharedMemoryComparer, EndWhenAMemberDoesNotComeOrAfterInterrupt) {
  std::promise<void> judged;
  std::shared_future<void> done = judged.get_future().share();
  on_members(2, [&](int member, std::unique_ptr<SharedMemoryComparer> words) {
    if (member == 1) return done.wait();
    const auto entry = words->enter(1, kPatience);
    EXPECT_THAT(error_of([&] { words->compare_all(entry.round, milliseconds(100)); }),
                HasSubstr("timed out"));
    words->interrupt();
    EXPECT_THAT(error_of([&] { words->compare_all(entry.round, kPatience); }),
                HasSubstr("interrupted"));
    EXPECT_THAT(error_of([&] { words->enter(2, kPatience); }), HasSubstr("interrupted"));
    judged.set_value();
  });
}

}  // namespace
}  // namespace accelerate
