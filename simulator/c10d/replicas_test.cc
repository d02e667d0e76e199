// Which element of drifted replicas is named, and what is kept of the first rank's for it.
#include "simulator/c10d/replicas.h"

#include <cstdint>
#include <string>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace accelerate::simulator {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// What a rank's check says where two ranks have the tensor.
std::string check(Replicas& replicas, int rank, const at::Tensor& tensor) {
  try {
    replicas.check(rank, "the model", 2, {{"weight", tensor}});
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "no error";
}

at::Tensor zeros(int64_t size, bool is_trained) {
  return at::zeros({size}).requires_grad_(is_trained);
}

void set(const at::Tensor& tensor, int64_t element, float value) {
  const at::NoGradGuard no_grad;
  tensor[element].fill_(value);
}

TEST(Replicas, NameTheFirstElementOfTensorsOfAnySize) {
  for (const bool is_trained : {false, true}) {
    for (const int64_t size : {1, 4095, 4096, 4097, 10'000}) {
      for (const int64_t element : {int64_t{0}, size / 2, size - 1}) {
        Replicas replicas;
        const at::Tensor first = zeros(size, is_trained);
        const at::Tensor second = zeros(size, is_trained);
        set(second, size - 1, 0.5);
        set(second, element, 0.25);
        EXPECT_EQ(check(replicas, 3, first), "no error");
        EXPECT_THAT(check(replicas, 1, second),
                    HasSubstr(absl::StrCat(
                        "the model diverged: \"weight\" of rank 1 differs from that of rank 3 at "
                        "the 1. synchronisation, first in element ",
                        element, ": 0.25 and 0")))
            << is_trained << " " << size;
      }
    }
  }
}

TEST(Replicas, NameTheElementOfOtherDtypesAndStrides) {
  Replicas replicas;
  EXPECT_EQ(check(replicas, 0, at::zeros({100, 100}, at::kDouble).t()), "no error");
  const at::Tensor second = at::zeros({100, 100}, at::kDouble).t();
  second[70][3].fill_(7);
  EXPECT_THAT(check(replicas, 1, second), HasSubstr("first in element 7003: 7 and 0"));
}

// A rank that is ahead resets gradients and frees them.
TEST(Replicas, KeepWhatIsNotTrained) {
  Replicas replicas;
  at::Tensor first = zeros(10'000, /*is_trained=*/false);
  EXPECT_EQ(check(replicas, 0, first), "no error");
  first.fill_(9);
  first.reset();
  const at::Tensor second = zeros(10'000, /*is_trained=*/false);
  set(second, 5000, 0.5);
  EXPECT_THAT(check(replicas, 1, second), HasSubstr("first in element 5000: 0.5 and 0"));
}

TEST(Replicas, SayAmongWhichElementsWhereTheFirstRankHasChangedLargeOnesSince) {
  Replicas replicas;
  const at::Tensor first = zeros(10'000, /*is_trained=*/true);
  EXPECT_EQ(check(replicas, 0, first), "no error");
  set(first, 4100, 3);
  const at::Tensor second = zeros(10'000, /*is_trained=*/true);
  set(second, 6000, 0.5);
  EXPECT_THAT(check(replicas, 1, second), HasSubstr("first in one of the elements 4096 to 8191"));
}

TEST(Replicas, LookAtTheChunkThatDiffersAlone) {
  Replicas replicas;
  const at::Tensor first = zeros(10'000, /*is_trained=*/true);
  EXPECT_EQ(check(replicas, 0, first), "no error");
  set(first, 4100, 3);
  const at::Tensor second = zeros(10'000, /*is_trained=*/true);
  set(second, 9000, 0.5);
  EXPECT_THAT(check(replicas, 1, second), HasSubstr("first in element 9000: 0.5 and 0"));
}

TEST(Replicas, DoNotKeepLargeTrainedTensorsAlive) {
  Replicas replicas;
  at::Tensor first = zeros(10'000, /*is_trained=*/true);
  EXPECT_EQ(check(replicas, 0, first), "no error");
  EXPECT_EQ(first.use_count(), 1);
  first.reset();
  const at::Tensor second = zeros(10'000, /*is_trained=*/true);
  set(second, 9000, 0.5);
  EXPECT_THAT(check(replicas, 1, second), HasSubstr("first in one of the elements 8192 to 9999"));
}

TEST(Replicas, OfAnotherSizeDifferWithoutAnElement) {
  for (const int64_t size : {0, 4096, 10'001, 20'000}) {
    Replicas replicas;
    EXPECT_EQ(check(replicas, 0, zeros(10'000, /*is_trained=*/true)), "no error");
    EXPECT_THAT(check(replicas, 1, zeros(size, /*is_trained=*/true)),
                AllOf(HasSubstr("\"weight\" of rank 1 differs"), Not(HasSubstr("first in"))))
        << size;
  }
}

TEST(Replicas, NameTheRanksWhoseTensorsAreOthers) {
  const at::Tensor tensor = at::zeros({2});
  const auto error_of = [](Replicas& replicas, int rank, const Replicas::NamedTensors& tensors) {
    try {
      replicas.check(rank, "the model", 2, tensors);
    } catch (const c10::Error& error) {
      return std::string(error.what_without_backtrace());
    }
    return std::string("no error");
  };
  Replicas fewer, renamed;
  EXPECT_EQ(error_of(fewer, 4, {{"a", tensor}, {"b", tensor}}), "no error");
  EXPECT_THAT(error_of(fewer, 1, {{"a", tensor}}),
              HasSubstr("the model: rank 1 has 1 tensors, rank 4 has 2"));
  EXPECT_EQ(error_of(renamed, 4, {{"a", tensor}}), "no error");
  EXPECT_THAT(error_of(renamed, 1, {{"b", tensor}}),
              HasSubstr("\"b\" of rank 1 differs from that of rank 4"));
}

// Each of several models has checks of its own, in which all ranks take part.
TEST(Replicas, AreComparedByModelUntilTheLastRank) {
  Replicas replicas;
  const Replicas::NamedTensors zero{{"weight", at::zeros({2})}}, one{{"weight", at::ones({2})}};
  for (const int rank : {0, 1}) {
    EXPECT_NO_THROW(replicas.check(rank, "one model", 3, zero));
    EXPECT_NO_THROW(replicas.check(rank, "another", 3, one));
  }
  EXPECT_NO_THROW(replicas.check(2, "another", 3, one));
  EXPECT_THROW(replicas.check(2, "one model", 3, one), c10::Error);
}

// The n-th check is compared with the n-th, and ends with the last rank.
TEST(Replicas, AreComparedByTheNumberOfTheCheck) {
  Replicas replicas;
  const at::Tensor zero = zeros(5000, /*is_trained=*/false);
  const at::Tensor one = at::ones({5000});
  EXPECT_EQ(check(replicas, 0, zero), "no error");
  EXPECT_EQ(check(replicas, 0, one), "no error");
  EXPECT_EQ(check(replicas, 1, zero), "no error");
  EXPECT_EQ(check(replicas, 1, one), "no error");
  EXPECT_EQ(check(replicas, 0, one), "no error");
  EXPECT_THAT(check(replicas, 1, zero),
              HasSubstr("at the 3. synchronisation, first in element 0: 0 and 1"));
}

}  // namespace
}  // namespace accelerate::simulator
