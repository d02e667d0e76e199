#include "accelerate/step/executable_batch_size.h"

#include <array>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "accelerate/testing/fake_runtime.h"
#include "accelerate/testing/threaded_group.h"

namespace accelerate {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A function's body: too much memory above so many samples.
void need_at_most(int64_t batch_size, int64_t fits) {
  TORCH_CHECK_WITH(OutOfMemoryError, batch_size <= fits, "the device is full");
}

class CountingRuntime : public FakeRuntime {
 public:
  void empty_device_cache() override { ++clearings; }
  int clearings = 0;
};

class FindExecutableBatchSize : public testing::Test {
 protected:
  CountingRuntime runtime_;
  const RuntimeScope scope_{runtime_};
  std::vector<int64_t> tried_;
};

TEST_F(FindExecutableBatchSize, TriesNineTenthsUntilItFits) {
  auto train = find_executable_batch_size(
      [&](int64_t batch_size) {
        tried_.push_back(batch_size);
        need_at_most(batch_size, 8);
        return batch_size * 10;
      },
      {.starting_batch_size = 16});
  EXPECT_EQ(train(), 80);
  EXPECT_THAT(tried_, ElementsAre(16, 14, 12, 10, 9, 8));
  EXPECT_EQ(train.batch_size(), 8);
}

TEST_F(FindExecutableBatchSize, StartsWith128) {
  auto train = find_executable_batch_size([](int64_t batch_size) { return batch_size; });
  EXPECT_EQ(train(), 128);
}

TEST_F(FindExecutableBatchSize, RemembersWhatFittedForTheNextCall) {
  int64_t fits = 50;
  auto train = find_executable_batch_size(
      [&](int64_t batch_size) {
        tried_.push_back(batch_size);
        need_at_most(batch_size, fits);
      },
      {.starting_batch_size = 64});
  train();
  train();
  EXPECT_THAT(tried_, ElementsAre(64, 57, 51, 45, 45));
  fits = 40;
  tried_.clear();
  train();
  EXPECT_THAT(tried_, ElementsAre(45, 40));
}

TEST_F(FindExecutableBatchSize, AsksTheReduceFunction) {
  auto train = find_executable_batch_size(
      [&](int64_t batch_size) {
        tried_.push_back(batch_size);
        need_at_most(batch_size, 20);
      },
      {.starting_batch_size = 64,
       .reduce_batch_size_fn = [](int64_t batch_size) { return batch_size / 2; }});
  train();
  EXPECT_THAT(tried_, ElementsAre(64, 32, 16));
}

TEST_F(FindExecutableBatchSize, GivesUpAtZeroAndSaysWhatWentWrong) {
  auto train = find_executable_batch_size(
      [&](int64_t batch_size) {
        tried_.push_back(batch_size);
        need_at_most(batch_size, 0);
      },
      {.starting_batch_size = 4});
  try {
    train();
    FAIL() << "no batch size fits";
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what_without_backtrace(),
                AllOf(HasSubstr("No executable batch size found, reached zero."),
                      HasSubstr("the device is full")));
  }
  EXPECT_THAT(tried_, ElementsAre(4, 3, 2, 1));
  tried_.clear();
  EXPECT_THROW(train(), c10::Error);
  EXPECT_THAT(tried_, IsEmpty());
}

TEST_F(FindExecutableBatchSize, NeverTriesNegativeBatchSizes) {
  auto train = find_executable_batch_size(
      [&](int64_t batch_size) {
        tried_.push_back(batch_size);
        need_at_most(batch_size, 0);
      },
      {.starting_batch_size = 5,
       .reduce_batch_size_fn = [](int64_t batch_size) { return batch_size - 3; }});
  EXPECT_THROW(train(), c10::Error);
  EXPECT_THAT(tried_, ElementsAre(5, 2));
}

TEST_F(FindExecutableBatchSize, RefusesAReduceFunctionThatDoesNotReduce) {
  auto train = find_executable_batch_size(
      [](int64_t batch_size) { need_at_most(batch_size, 0); },
      {.starting_batch_size = 4, .reduce_batch_size_fn = [](int64_t) { return 4; }});
  EXPECT_THROW(train(), c10::ValueError);
}

TEST_F(FindExecutableBatchSize, LetsOtherErrorsThrough) {
  auto train = find_executable_batch_size([&](int64_t batch_size, int kind) {
    tried_.push_back(batch_size);
    if (kind == 0) throw std::runtime_error("shape mismatch");
    throw kind;  // not even an exception
  });
  EXPECT_THROW(train(0), std::runtime_error);
  EXPECT_THROW(train(1), int);
  EXPECT_THAT(tried_, ElementsAre(128, 128));
}

TEST_F(FindExecutableBatchSize, ReleasesMemoryBeforeEachTry) {
  std::weak_ptr<int> last;
  auto train = find_executable_batch_size(
      [&](int64_t batch_size) {
        EXPECT_TRUE(last.expired()) << "left from the try before";
        const auto model = std::make_shared<int>(1);
        last = model;
        need_at_most(batch_size, 8);
      },
      {.starting_batch_size = 10});
  train();
  EXPECT_EQ(runtime_.clearings, 3);
}

TEST_F(FindExecutableBatchSize, PassesTheSameArgumentsToEachTry) {
  std::vector<std::string> seen;
  int count = 0;
  auto train = find_executable_batch_size(
      [&](int64_t batch_size, const std::string& text, int& counter, auto... rest) {
        seen.push_back(text);
        ++counter;
        need_at_most(batch_size, 8);
        return std::make_unique<int64_t>(batch_size + (int64_t{0} + ... + rest));
      },
      {.starting_batch_size = 10});
  EXPECT_EQ(*train(std::string("moved?"), count, 100, 1000), 1108);
  EXPECT_THAT(seen, ElementsAre("moved?", "moved?", "moved?"));
  EXPECT_EQ(count, 3);
}

// What HF Accelerate finds out when the function is called does not compile here.
int plain_function(int batch_size) { return batch_size; }
struct TwoParameters {
  int operator()(size_t batch_size, double x) const { return static_cast<int>(x) + batch_size; }
};
struct NoParameters {
  void operator()() const {}
};
struct TextFirst {
  void operator()(const std::string&) const {}
};
struct BoolFirst {
  void operator()(bool) const {}
};
template <typename Function>
concept CanBeTried = requires(Function function) { find_executable_batch_size(function); };
static_assert(CanBeTried<decltype(&plain_function)> && CanBeTried<TwoParameters>);
static_assert(CanBeTried<std::function<void(const int64_t&, int)>>);
static_assert(!CanBeTried<NoParameters> && !CanBeTried<TextFirst> && !CanBeTried<BoolFirst>);

template <typename Function, typename... Arguments>
concept CanBeCalled = std::invocable<ExecutableBatchSize<Function>&, Arguments...>;
static_assert(CanBeCalled<TwoParameters, double>);
static_assert(!CanBeCalled<TwoParameters>, "an argument is missing");
static_assert(!CanBeCalled<TwoParameters, int, double>, "the batch size is given as well");
static_assert(!CanBeCalled<decltype(&plain_function), int>, "the batch size is given as well");

TEST_F(FindExecutableBatchSize, TakesPlainFunctions) {
  EXPECT_EQ(find_executable_batch_size(plain_function, {.starting_batch_size = 3})(), 3);
}

// ---- Several ranks.

TEST(FindExecutableBatchSizeTogether, AllRanksTryWhatTheSmallestTakes) {
  constexpr std::array<int64_t, 3> kFits{90, 60, 128};
  std::array<std::vector<int64_t>, 3> tried;
  run_ranks(3, [&](const ProcessGroupPtr& group) {
    FakeRuntime runtime;
    const RuntimeScope scope(runtime);
    const auto rank = static_cast<size_t>(group->getRank());
    auto measure = find_executable_batch_size(
        [&](int64_t batch_size) {
          tried[rank].push_back(batch_size);
          need_at_most(batch_size, kFits[rank]);
          return batch_size;
        },
        {.starting_batch_size = 100, .group = group});
    EXPECT_EQ(measure(), 57);
    EXPECT_EQ(measure(), 57);
  });
  for (const auto& of_rank : tried) {
    EXPECT_THAT(of_rank, ElementsAre(100, 90, 81, 72, 64, 57, 57));
  }
}

TEST(FindExecutableBatchSizeTogether, AllGiveUpTogether) {
  run_ranks(2, [](const ProcessGroupPtr& group) {
    FakeRuntime runtime;
    const RuntimeScope scope(runtime);
    auto measure = find_executable_batch_size(
        [&](int64_t batch_size) { need_at_most(batch_size, group->getRank() == 1 ? 0 : 100); },
        {.starting_batch_size = 4, .group = group});
    EXPECT_THROW(measure(), c10::Error);
  });
}

TEST(FindExecutableBatchSizeTogether, RanksThatStartDifferentlyAreTold) {
  run_ranks(2, [](const ProcessGroupPtr& group) {
    FakeRuntime runtime;
    const RuntimeScope scope(runtime);
    auto measure = find_executable_batch_size(
        [](int64_t) {}, {.starting_batch_size = 4 + group->getRank(), .group = group});
    try {
      measure();
      ADD_FAILURE() << "4 samples and 5 are not the same";
    } catch (const c10::Error& error) {
      EXPECT_THAT(error.what_without_backtrace(),
                  HasSubstr(group->getRank() == 0 ? "rank 1 tried 5" : "rank 0 tried 4"));
    }
  });
}

}  // namespace
}  // namespace accelerate
