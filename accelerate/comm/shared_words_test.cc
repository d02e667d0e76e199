#include "accelerate/comm/shared_words.h"

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
void on_members(int members,
                const std::function<void(int member, std::unique_ptr<SharedWords>)>& body) {
  auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::thread> threads;
  for (int member = 0; member < members; ++member) {
    threads.emplace_back([&, member] {
      std::unique_ptr<SharedWords> words = SharedWords::make(*store, member, members);
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

TEST(SharedWords, ShowEveryMembersWordRoundByRound) {
  constexpr uint64_t kRounds = 500;
  on_members(3, [](uint64_t member, std::unique_ptr<SharedWords> words) {
    for (uint64_t round = 0; round < kRounds; ++round) {
      const std::vector<uint64_t> all = words->all_gather(10 * round + member, kPatience);
      EXPECT_EQ(all, (std::vector<uint64_t>{10 * round, 10 * round + 1, 10 * round + 2}));
    }
  });
}

TEST(SharedWords, EndWhenAMemberIsGone) {
  on_members(2, [](int member, std::unique_ptr<SharedWords> words) {
    if (member == 1) return;
    EXPECT_THAT(error_of([&] { words->all_gather(1, kPatience); }), HasSubstr("has closed"));
  });
}

TEST(SharedWords, EndWhenAMemberDoesNotComeOrAfterInterrupt) {
  std::promise<void> judged;
  std::shared_future<void> done = judged.get_future().share();
  on_members(2, [&](int member, std::unique_ptr<SharedWords> words) {
    if (member == 1) return done.wait();
    EXPECT_THAT(error_of([&] { words->all_gather(1, milliseconds(100)); }), HasSubstr("timed out"));
    words->interrupt();
    EXPECT_THAT(error_of([&] { words->all_gather(1, kPatience); }), HasSubstr("interrupted"));
    judged.set_value();
  });
}

}  // namespace
}  // namespace accelerate
