#include "accelerate/data/dataset_error.h"

#include <functional>
#include <stdexcept>
#include <string>

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "accelerate/data/worker.h"

namespace accelerate {
namespace {

using internal::describe_place;
using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;

// Throws it with the place "here".
void placed(const std::function<void()>& throws) {
  try {
    throws();
  } catch (...) {
    internal::rethrow_with_place("here");
  }
}

TEST(DescribePlace, NamesRankBatchAndSamples) {
  EXPECT_EQ(describe_place(2, 4, {}), "rank 2, batch 4");
  EXPECT_EQ(describe_place(0, 1, {7}), "rank 0, batch 1, sample 7");
  EXPECT_EQ(describe_place(0, 1, {7, 3}), "rank 0, batch 1, samples 7, 3");
}

TEST(DescribePlace, ShortensALongList) {
  EXPECT_THAT(describe_place(0, 0, {1, 2, 3, 4, 5, 6, 7, 8}), EndsWith("6, 7, 8"));
  EXPECT_THAT(describe_place(0, 0, {1, 2, 3, 4, 5, 6, 7, 8, 9}), EndsWith("6, 7, 8, ..."));
}

TEST(DescribePlace, NamesTheWorkerWhoseThreadItIs) {
  std::string place;
  internal::OrderedWorkers workers({.num_workers = 2, .capacity = 2}, [&](int64_t i, size_t) {
    if (i == 1) place = describe_place(0, i, {});
    return i < 2;
  });
  while (workers.next([](size_t) {})) {
  }
  EXPECT_EQ(place, "rank 0, batch 1, worker 1");
}

TEST(RethrowWithPlace, NestsAStandardException) {
  try {
    placed([] { throw std::out_of_range("no such row"); });
    FAIL() << "no exception";
  } catch (const DatasetError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("here"), HasSubstr("no such row")));
    EXPECT_THROW(std::rethrow_if_nested(error), std::out_of_range);
  }
}

TEST(RethrowWithPlace, NestsWhatIsNoException) {
  try {
    placed([] { throw 5; });
    FAIL() << "no exception";
  } catch (const DatasetError& error) {
    EXPECT_THAT(error.what(), HasSubstr("here"));
    EXPECT_THROW(std::rethrow_if_nested(error), int);
  }
}

TEST(RethrowWithPlace, LeavesAC10ErrorWhatItIs) {
  try {
    placed([] { TORCH_CHECK_VALUE(false, "a wrong value"); });
    FAIL() << "no exception";
  } catch (const c10::ValueError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("here"), HasSubstr("a wrong value")));
  }
}

TEST(RethrowWithPlace, NamesTheInnermostPlaceOnly) {
  try {
    placed([] { throw DatasetError("there"); });
    FAIL() << "no exception";
  } catch (const DatasetError& error) {
    EXPECT_STREQ(error.what(), "there");
  }
}

}  // namespace
}  // namespace accelerate
