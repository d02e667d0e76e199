// The calls of dumps, made again: what was wrong with them fails as in a live run.
#include "simulator/cluster/reenact.h"

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "accelerate/comm/watch/collective_call.h"

namespace accelerate::simulator {
namespace {

using c10d::OpType;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

CollectiveFingerprint call(OpType op, int64_t elements = 4, at::ScalarType dtype = at::kFloat) {
  CollectiveFingerprint fingerprint(op);
  fingerprint.dtypes.push_back(dtype);
  fingerprint.dims.push_back(1);
  fingerprint.sizes.push_back(elements);
  return fingerprint;
}

CollectiveFingerprint message(OpType op, int peer) {
  CollectiveFingerprint fingerprint = call(op);
  fingerprint.peer = peer;
  return fingerprint;
}

struct Made {
  CollectiveFingerprint call;
  OperationState state = OperationState::kWaiting;
};

// The dump of a rank that made these calls in a group of so many ranks, after `before` others.
RankDump dump_of(int rank, int ranks, const std::vector<Made>& calls, uint64_t before = 0) {
  RankDump dump{
      .history = {.rank = rank, .groups = {{.name = "world", .made = true, .collectives = before}}},
      .members = {{}}};
  for (int each = 0; each < ranks; ++each) dump.members[0].push_back(each);
  for (const Made& made : calls) {
    OperationRecord record{.group = 0, .state = made.state, .fingerprint = made.call};
    if (!c10d::isP2POp(made.call.op)) {
      record.fingerprint.sequence = dump.history.groups[0].collectives++;
    }
    dump.history.operations.push_back(record);
  }
  return dump;
}

const Made kDone{call(OpType::ALLREDUCE), OperationState::kDone};
const Made kWaits{call(OpType::ALLREDUCE)};

Reenactment made_again(const std::vector<RankDump>& dumps) {
  const absl::StatusOr<Reenactment> again = reenact(dumps, "again");
  EXPECT_TRUE(again.ok()) << again.status();
  return again.ok() ? *again : Reenactment();
}

std::string refusal(const std::vector<RankDump>& dumps) {
  return std::string(reenact(dumps, "again").status().message());
}

TEST(Reenactment, EndsWhereTheCallsOfRanksFitTogether) {
  const Reenactment again =
      made_again({dump_of(0, 2, {kDone, kWaits}), dump_of(1, 2, {kDone, kWaits})});
  EXPECT_EQ(again.failure, "");
  EXPECT_THAT(again.to_string(), HasSubstr("the calls all end"));
}

TEST(Reenactment, EndsWithEveryKindOfCall) {
  for (const OpType op :
       {OpType::BROADCAST, OpType::ALLREDUCE, OpType::ALLREDUCE_COALESCED, OpType::REDUCE,
        OpType::ALLGATHER, OpType::_ALLGATHER_BASE, OpType::ALLGATHER_COALESCED, OpType::GATHER,
        OpType::SCATTER, OpType::REDUCE_SCATTER, OpType::_REDUCE_SCATTER_BASE,
        OpType::ALLTOALL_BASE, OpType::ALLTOALL, OpType::BARRIER}) {
    const Made made{call(op)};
    EXPECT_EQ(made_again({dump_of(0, 2, {made}), dump_of(1, 2, {made})}).failure, "")
        << op_name(op);
  }
  const Made send{message(OpType::SEND, 1)};
  for (const Made& receive :
       {Made{message(OpType::RECV, 0)}, Made{message(OpType::RECVANYSOURCE, -1)}}) {
    EXPECT_EQ(made_again({dump_of(0, 2, {send}), dump_of(1, 2, {receive})}).failure, "");
  }
}

TEST(Reenactment, FailsWhereARankDoesNotCome) {
  const Reenactment again = made_again(
      {dump_of(0, 3, {kDone, kWaits}), dump_of(1, 3, {kDone}), dump_of(2, 3, {kDone, kWaits})});
  EXPECT_THAT(again.failure,
              AllOf(HasSubstr("no rank can make progress"), HasSubstr("all_reduce #1"),
                    HasSubstr("waiting for rank 1"), HasSubstr("repeat with: again")));
  EXPECT_THAT(again.notes, Contains(HasSubstr("they are sums")));
  EXPECT_THAT(again.to_string(), HasSubstr("the calls fail:\n"));
}

TEST(Reenactment, FailsWhereCallsDiffer) {
  const Made other{call(OpType::ALLREDUCE, 5)};
  const Reenactment again =
      made_again({dump_of(0, 2, {kDone, kWaits}), dump_of(1, 2, {kDone, other})});
  EXPECT_THAT(again.failure, AllOf(HasSubstr("collective mismatch in call #1 of group \"world\""),
                                   HasSubstr("Float[5]")));
}

// No list of calls shows it: each rank has made as many as the other.
TEST(Reenactment, FailsWhereMessagesWaitForEachOther) {
  const Reenactment again = made_again({dump_of(0, 2, {Made{message(OpType::RECV, 1)}}),
                                        dump_of(1, 2, {Made{message(OpType::RECV, 0)}})});
  EXPECT_THAT(again.failure, AllOf(HasSubstr("waiting for rank 1 to send"),
                                   HasSubstr("waiting for rank 0 to send")));
}

// The other end may have forgotten it.
TEST(Reenactment, LeavesOutMessagesThatHadArrived) {
  const Made sent{message(OpType::SEND, 1), OperationState::kDone};
  EXPECT_EQ(made_again({dump_of(0, 2, {sent, kWaits}), dump_of(1, 2, {kWaits})}).failure, "");
  const Made waits{message(OpType::SEND, 1)};
  EXPECT_THAT(made_again({dump_of(0, 2, {waits, kWaits}), dump_of(1, 2, {kWaits})}).failure,
              HasSubstr("waiting for rank 1 to receive"));
}

TEST(Reenactment, FailsWhereMessagesHaveOtherTags) {
  const auto tagged = [](OpType op, int peer, int tag) {
    Made made{message(op, peer)};
    made.call.tag = tag;
    return made;
  };
  const auto failure = [&](int sent, int received) {
    return made_again({dump_of(0, 2, {tagged(OpType::SEND, 1, sent)}),
                       dump_of(1, 2, {tagged(OpType::RECV, 0, received)})})
        .failure;
  };
  EXPECT_EQ(failure(3, 3), "");
  EXPECT_THAT(failure(3, 4), HasSubstr("waiting for rank 0 to send"));
}

TEST(Reenactment, FailsWhereRootsDiffer) {
  const auto failure = [](OpType op, int first, int second) {
    const auto rooted = [op](int root) {
      Made made{call(op)};
      made.call.root = root;
      return made;
    };
    return made_again({dump_of(0, 2, {rooted(first)}), dump_of(1, 2, {rooted(second)})}).failure;
  };
  for (const OpType op : {OpType::BROADCAST, OpType::REDUCE, OpType::GATHER, OpType::SCATTER}) {
    EXPECT_EQ(failure(op, 1, 1), "") << op_name(op);
    EXPECT_THAT(failure(op, 0, 1), HasSubstr("collective mismatch")) << op_name(op);
  }
}

// The rings of ranks begin elsewhere.
TEST(Reenactment, BeginsWithWhatAllDumpsHave) {
  const std::vector<Made> many(9, kDone);
  std::vector<Made> first = many;
  first.push_back(kWaits);
  const std::vector<Made> second(4, kDone);
  const Reenactment again =
      made_again({dump_of(0, 2, first, /*before=*/500), dump_of(1, 2, second, /*before=*/505)});
  EXPECT_THAT(again.notes, Contains("group \"world\": call #0 is #506 in the dumps"));
  EXPECT_THAT(again.failure, AllOf(HasSubstr("all_reduce #3"), HasSubstr("waiting for rank 1")));
}

TEST(Reenactment, SaysWhoseCallsAreNotKnown) {
  const Reenactment again =
      made_again({dump_of(0, 3, {kDone, kWaits}), dump_of(2, 3, {kDone, kWaits})});
  EXPECT_THAT(again.notes, Contains("no dump and no calls: rank 1"));
  EXPECT_THAT(again.notes, Contains("group \"world\": call #0 is #1 in the dumps"));
  EXPECT_THAT(again.failure, HasSubstr("waiting for rank 1"));
}

TEST(Reenactment, LeavesOutWhatIsNotKnown) {
  const Made unknown{call(OpType::UNKNOWN)};
  const Reenactment again =
      made_again({dump_of(0, 2, {unknown, kWaits}), dump_of(1, 2, {unknown, kWaits})});
  EXPECT_EQ(again.failure, "");
  EXPECT_THAT(again.notes, Contains("left out, because their kind is not known: 2 calls"));
}

// Tensors that are larger than any machine's memory.
TEST(Reenactment, MakesNoValues) {
  const Made large{call(OpType::ALLREDUCE, int64_t{4} << 30)};
  EXPECT_EQ(made_again({dump_of(0, 2, {large}), dump_of(1, 2, {large})}).failure, "");
}

TEST(Reenactment, RefusesDumpsThatContradictEachOther) {
  EXPECT_THAT(refusal({dump_of(0, 2, {kWaits}), dump_of(0, 2, {kWaits})}),
              HasSubstr("not one dump of each rank"));
  EXPECT_THAT(refusal({dump_of(0, 2, {kWaits}), dump_of(1, 3, {kWaits})}),
              AllOf(HasSubstr("group \"world\" has ranks 0-2 in the dump of rank 1"),
                    HasSubstr("ranks 0-1 in another")));
  EXPECT_THAT(refusal({dump_of(2, 2, {kWaits})}), HasSubstr("the dump of rank 2 says"));
  EXPECT_THAT(refusal({}), Not(IsEmpty()));
  EXPECT_THAT(refusal({dump_of(5000, 5001, {kWaits})}), HasSubstr("5001 ranks"));
}

TEST(Reenactment, RefusesMoreRanksThanItSimulates) {
  constexpr int kLast = std::numeric_limits<int>::max();
  EXPECT_THAT(refusal({dump_of(kLast, 0, {kWaits})}),
              HasSubstr("the job has 2147483648 ranks, and at most 1024 are simulated"));
  RankDump member = dump_of(0, 1, {kWaits});
  member.members[0].push_back(kLast);
  EXPECT_THAT(refusal({member}), HasSubstr("the job has 2147483648 ranks"));
}

TEST(Reenactment, NamesACallThatCannotBeMade) {
  const Made sum{call(OpType::ALLREDUCE, 4, at::ScalarType::Float8_e4m3fn)};
  EXPECT_THAT(refusal({dump_of(0, 2, {sum}), dump_of(1, 2, {sum})}),
              AllOf(HasSubstr("all_reduce #0"), HasSubstr("cannot reduce")));
}

}  // namespace
}  // namespace accelerate::simulator
