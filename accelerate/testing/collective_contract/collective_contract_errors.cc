// How collectives fail: at once for a call that is wrong by itself, on every rank for what ranks
// disagree on, within the time-out for a rank that does not come.
#include <stdexcept>

#include <c10/util/Exception.h>
#include <gmock/gmock.h>

#include "accelerate/testing/collective_contract/collective_contract.h"
#include "accelerate/testing/collective_contract/collective_contract_tensors.h"

namespace accelerate::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr absl::Duration kPatience = absl::Seconds(60);
// For what must run into it; short, because real backends really wait.
constexpr absl::Duration kImpatience = absl::Milliseconds(500);

void all_reduce(const Group& group, at::Tensor tensor) {
  Tensors tensors{std::move(tensor)};
  group->allreduce(tensors)->wait();
}

}  // namespace

TEST_P(CollectiveContract, RefusesWrongArgumentsAtOnce) {
  on_ranks(2, [](Member& self) {
    Tensors input{ones({2})};
    c10d::BroadcastOptions outside;
    outside.rootRank = 2;
    EXPECT_ANY_THROW(self.group->broadcast(input, outside)->wait());
    std::vector<Tensors> too_few{{ones({2})}};
    EXPECT_ANY_THROW(self.group->allgather(too_few, input)->wait());
    std::vector<Tensors> wrong_size{{ones({2}), ones({3})}};
    EXPECT_ANY_THROW(self.group->allgather(wrong_size, input)->wait());
    at::Tensor small = zeros({3});
    EXPECT_ANY_THROW(self.group->_allgather_base(small, input[0])->wait());
    Tensors nothing;
    EXPECT_ANY_THROW(self.group->allreduce(nothing)->wait());
    if (GetParam().rejects_strided) {
      EXPECT_ANY_THROW(all_reduce(self.group, ones({4, 4}).t().narrow(0, 0, 2)));
    }
    // None of that was sent anywhere: the group still works.
    at::Tensor value = ones({1});
    all_reduce(self.group, value);
    EXPECT_EQ(value.item<float>(), 2);
  });
}

TEST_P(CollectiveContract, NamesRanksThatDisagree) {
  if (!GetParam().detects_mismatch) {
    GTEST_SUCCEED() << GetParam().name << " cannot know; debug mode will";
    return;
  }
  struct Case {
    const char* expected;
    std::function<void(Member&)> odd;  // what rank 1 does
  };
  const Case cases[] = {
      {"operation all_reduce against barrier", [](Member& self) { self.group->barrier()->wait(); }},
      {"shape Float[2] against Float[3]", [](Member& self) { all_reduce(self.group, ones({3})); }},
      {"dtype Float[2] against Double[2]",
       [](Member& self) { all_reduce(self.group, ones({2}, at::kDouble)); }},
      {"reduce op sum against max",
       [](Member& self) {
         Tensors tensors{ones({2})};
         c10d::AllreduceOptions options;
         options.reduceOp = c10d::ReduceOp::MAX;
         self.group->allreduce(tensors, options)->wait();
       }},
  };
  for (const Case& c : cases) {
    const std::vector<std::string> errors = errors_on_ranks(3, kPatience, [&](Member& self) {
      if (self.rank == 1) return c.odd(self);
      all_reduce(self.group, ones({2}));
    });
    for (const std::string& error : errors) {
      EXPECT_THAT(error, AllOf(HasSubstr(c.expected), HasSubstr("ranks 0, 2: all_reduce"),
                               HasSubstr("rank 1: ")));
      EXPECT_EQ(error, errors[0]);
    }
  }
  const std::vector<std::string> errors = errors_on_ranks(2, kPatience, [](Member& self) {
    Tensors tensors{ones({2})};
    c10d::BroadcastOptions options;
    options.rootRank = self.rank;
    self.group->broadcast(tensors, options)->wait();
  });
  for (const std::string& error : errors) EXPECT_THAT(error, HasSubstr("root 0 against 1"));
}

TEST_P(CollectiveContract, FailsWhenARankDoesNotCome) {
  const std::vector<std::string> errors = errors_on_ranks(3, kImpatience, [](Member& self) {
    all_reduce(self.group, ones({1}));
    if (self.rank == 1) return;
    all_reduce(self.group, ones({1}));
  });
  EXPECT_EQ(errors[1], "");
  for (int rank : {0, 2}) {
    EXPECT_NE(errors[rank], "");
    if (GetParam().names_missing_ranks) {
      EXPECT_THAT(errors[rank], HasSubstr("waiting for rank 1"));
    }
  }
}

TEST_P(CollectiveContract, FailsWhenAMessageIsNeverSent) {
  const std::vector<std::string> errors = errors_on_ranks(2, kImpatience, [](Member& self) {
    if (self.rank == 1) return;
    Tensors tensors{zeros({1})};
    self.group->recv(tensors, 1, 3)->wait();
  });
  EXPECT_NE(errors[0], "");
  if (GetParam().names_missing_ranks) {
    EXPECT_THAT(errors[0], AllOf(HasSubstr("recv from 1, tag 3"), HasSubstr("rank 1 to send")));
  }
}

TEST_P(CollectiveContract, FailsTheOthersWhenARankThrows) {
  const std::vector<std::string> errors = errors_on_ranks(3, kImpatience, [](Member& self) {
    if (self.rank == 2) throw std::runtime_error("out of patience");
    self.group->barrier()->wait();
  });
  EXPECT_THAT(errors[2], HasSubstr("out of patience"));
  for (int rank : {0, 1}) {
    EXPECT_NE(errors[rank], "");
    if (GetParam().names_missing_ranks) {
      EXPECT_THAT(errors[rank], HasSubstr("rank 2: failed: out of patience"));
    }
  }
}

TEST_P(CollectiveContract, StaysFailedAfterAFailure) {
  const std::vector<std::string> errors = errors_on_ranks(2, kImpatience, [](Member& self) {
    if (self.rank == 1) return;
    EXPECT_ANY_THROW(all_reduce(self.group, ones({1})));
    all_reduce(self.group, ones({1}));
  });
  EXPECT_NE(errors[0], "");
}

}  // namespace accelerate::testing
