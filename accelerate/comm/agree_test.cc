#include "accelerate/comm/agree.h"

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "accelerate/comm/checkpoint_error.h"
#include "accelerate/testing/threaded_group.h"
#include "accelerate/values/texts.h"

namespace accelerate::internal {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

RankOutcome damaged() {
  return outcome_of([]() -> std::string { throw CheckpointError("x is damaged"); });
}
RankOutcome failed() {
  return outcome_of([]() -> std::string { throw std::runtime_error("no"); });
}
RankOutcome well() {
  return outcome_of([] { return "well"; });
}

template <typename Error>
std::string message_of(const std::vector<RankOutcome>& all, const RankOutcome& own) {
  try {
    throw_failures(all, "load_state", own);
  } catch (const Error& error) {
    return exception_text(error);
  }
  return "";
}

TEST(Agree, OfWhatARankDid) {
  const RankOutcome good = well();
  EXPECT_EQ(good.status, RankStatus::kOk);
  EXPECT_EQ(good.text, "well");
  EXPECT_EQ(good.error, nullptr);
  EXPECT_EQ(damaged().status, RankStatus::kDamaged);
  EXPECT_EQ(damaged().text, "x is damaged");
  EXPECT_NE(damaged().error, nullptr);
  EXPECT_EQ(failed().status, RankStatus::kFailed);
  EXPECT_EQ(failed().text, "no");
  const RankOutcome value = outcome_of([]() -> std::string { TORCH_CHECK_VALUE(false, "wrong"); });
  EXPECT_EQ(value.status, RankStatus::kFailed);
  EXPECT_EQ(value.text, "wrong");
  const RankOutcome odd = outcome_of([]() -> std::string { throw 42; });
  EXPECT_EQ(odd.status, RankStatus::kFailed);
  EXPECT_THAT(odd.text, HasSubstr("not a std::exception"));
}

TEST(Agree, WhatIsOutOfReachIsNotDamaged) {
  const auto status_of = [](const absl::Status& status) {
    return outcome_of([&] {
             check_ok(status);
             return "";
           })
        .status;
  };
  EXPECT_EQ(status_of(absl::OkStatus()), RankStatus::kOk);
  for (const auto& status :
       {absl::DataLossError("EIO"), absl::NotFoundError("ENOENT"), absl::OutOfRangeError("short"),
        absl::InvalidArgumentError("no header"), absl::FailedPreconditionError("a folder")}) {
    EXPECT_EQ(status_of(status), RankStatus::kDamaged) << status;
  }
  for (const auto& status :
       {absl::PermissionDeniedError("EACCES"), absl::ResourceExhaustedError("EMFILE"),
        absl::UnavailableError("EHOSTDOWN"), absl::UnknownError("ESTALE")}) {
    EXPECT_EQ(status_of(status), RankStatus::kUnreachable) << status;
  }
  // All ranks throw the same.
  const RankOutcome away = outcome_of([]() -> std::string {
    check_ok(absl::PermissionDeniedError("x is not ours"));
    return "";
  });
  EXPECT_THAT(message_of<CheckpointError>({well(), away}, well()),
              HasSubstr("rank 1: x is not ours"));
}

TEST(Agree, ARankAloneThrowsWhatItFailedBy) {
  throw_failures({well()}, "save", well());
  const RankOutcome own = failed();
  EXPECT_THROW(throw_failures(exchange_outcomes({}, "save", own), "save", own), std::runtime_error);
  const RankOutcome odd = outcome_of([]() -> std::string { throw 42; });
  EXPECT_THROW(throw_failures(exchange_outcomes({}, "save", odd), "save", odd), int);
}

TEST(Agree, AllThrowTheSame) {
  const std::vector<RankOutcome> one_damaged = {well(), damaged(), well()};
  for (const RankOutcome& own : one_damaged) {
    EXPECT_EQ(message_of<CheckpointError>(one_damaged, own), "load_state: rank 1: x is damaged");
  }
  // An error in the program counts more than an error in the files.
  const std::vector<RankOutcome> both = {damaged(), well(), failed()};
  for (const RankOutcome& own : both) {
    EXPECT_EQ(message_of<c10::ValueError>(both, own),
              "load_state: rank 0: x is damaged\nrank 2: no");
  }
  EXPECT_EQ(failures({well(), well()}), "");
  EXPECT_TRUE(any(both, RankStatus::kFailed));
  EXPECT_FALSE(any(one_damaged, RankStatus::kFailed));
}

TEST(Agree, AreExchangedWithWhateverIsInThem) {
  run_ranks(3, [](const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
    const int rank = group->getRank();
    const auto text = [](int of) {
      return of == 0 ? std::string() : absl::StrCat("\n\xff", std::string(1, '\0'), of, "\n");
    };
    RankOutcome own{.status = rank == 1 ? RankStatus::kDamaged : RankStatus::kOk,
                    .text = text(rank)};
    const std::vector<RankOutcome> all = exchange_outcomes(group, "save_state", own);
    ASSERT_EQ(all.size(), 3u);
    for (int of = 0; of < 3; ++of) {
      EXPECT_EQ(all[of].text, text(of));
      EXPECT_EQ(all[of].status, of == 1 ? RankStatus::kDamaged : RankStatus::kOk);
    }
    EXPECT_THAT(message_of<CheckpointError>(all, own), StartsWith("load_state: rank 1: "));
  });
}

struct Place {
  std::string path;
  int64_t shard = -1;
  std::optional<int64_t> disk = std::nullopt;
  bool operator==(const Place&) const = default;
};
auto tree_members(Place& place) { return std::tie(place.path, place.shard, place.disk); }

TEST(Agree, GivesEveryRankTheValuesOfAllWhateverBytesTheyHold) {
  run_ranks(3, [](const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
    const auto place_of = [](int rank) {
      Place place{.path = absl::StrCat("/a 'b' \"c\"\n\t\xff\xc3(", std::string(1, '\0'), rank),
                  .shard = rank - 1};
      if (rank != 1) place.disk = rank;
      return place;
    };
    const std::vector<Place> all = agree_on_values(
        group, "save_state", [&place_of, &group] { return place_of(group->getRank()); });
    EXPECT_THAT(all, ElementsAre(place_of(0), place_of(1), place_of(2)));
  });
  EXPECT_THAT(agree_on_values({}, "save_state", [] { return std::string("alone"); }),
              ElementsAre("alone"));
}

TEST(Agree, GivesNoValuesWhereARankFails) {
  run_ranks(2, [](const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
    std::string message;
    try {
      agree_on_values(group, "save_state", [&group] {
        TORCH_CHECK_VALUE(group->getRank() != 1, "no disk");
        return 7;
      });
    } catch (const c10::ValueError& error) {
      message = exception_text(error);
    }
    EXPECT_EQ(message, "save_state: rank 1: no disk");
  });
}

TEST(Agree, RanksInAnotherActionAreNamed) {
  run_ranks(3, [](const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
    const int rank = group->getRank();
    std::string message;
    try {
      exchange_outcomes(group, rank == 1 ? "load_state" : "save_state",
                        rank == 2 ? failed() : well());
    } catch (const c10::ValueError& error) {
      message = exception_text(error);
    }
    const std::string expected[] = {"save_state, rank 0: rank 1 is in load_state",
                                    "load_state, rank 1: rank 0 is in save_state, rank 2 is in "
                                    "save_state",
                                    "save_state, rank 2: rank 1 is in load_state"};
    EXPECT_EQ(message, expected[rank]);
  });
}

}  // namespace
}  // namespace accelerate::internal
