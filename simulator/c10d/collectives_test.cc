// What one collective or message moves, and what does not fit together.
#include "simulator/c10d/collectives.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accelerate::simulator {
namespace {

using c10d::OpType;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Tensors = std::vector<at::Tensor>;

Call call_of(OpType op, Tensors inputs, Tensors outputs) {
  Call call;
  call.fingerprint = CollectiveFingerprint(op);
  call.inputs = std::move(inputs);
  call.outputs = std::move(outputs);
  return call;
}

std::string problem_of_message(const at::Tensor& sent, const at::Tensor& received) {
  return run_message(call_of(OpType::SEND, {sent}, {}), call_of(OpType::RECV, {}, {received}))
      .value_or("");
}

TEST(Messages, ArriveElementByElement) {
  const at::Tensor received = at::zeros({3, 2});
  EXPECT_EQ(problem_of_message(at::arange(6, at::kFloat), received), "");
  EXPECT_TRUE(at::equal(received, at::arange(6, at::kFloat).view({3, 2})));
}

TEST(Messages, OfAnotherDtypeOrSizeAreErrorsAndChangeNothing) {
  const at::Tensor sent = at::ones({4});
  for (const at::ScalarType dtype : {at::kInt, at::kDouble, at::kHalf, at::kBFloat16}) {
    const at::Tensor received = at::zeros({4}, dtype);
    EXPECT_THAT(problem_of_message(sent, received),
                AllOf(HasSubstr("sent 4 elements of Float"),
                      HasSubstr(std::string("expected 4 of ") + c10::toString(dtype))));
    EXPECT_EQ(received.sum().item<double>(), 0);
  }
  for (const int64_t count : {0, 1, 3, 5}) {
    const at::Tensor received = at::zeros({count});
    EXPECT_THAT(problem_of_message(sent, received),
                AllOf(HasSubstr("sent 4 elements of Float"),
                      HasSubstr("expected " + std::to_string(count) + " of Float")));
    EXPECT_EQ(received.sum().item<double>(), 0);
  }
  // As many bytes are not enough.
  EXPECT_NE(problem_of_message(at::ones({2}, at::kFloat), at::zeros({1}, at::kDouble)), "");
}

TEST(AllToAll, OfAnotherDtypeOrSizeIsAnErrorThatNamesBothRanks) {
  for (const at::Tensor& wrong : {at::zeros({2}, at::kInt), at::zeros({3})}) {
    std::vector<Call> calls{
        call_of(OpType::ALLTOALL, {at::ones({2}), at::ones({2})}, {at::zeros({2}), at::zeros({2})}),
        call_of(OpType::ALLTOALL, {at::ones({2}), at::ones({2})}, {wrong, at::zeros({2})})};
    EXPECT_THAT(run_calls(calls, Members::all(static_cast<int>(calls.size()))).value_or(""),
                HasSubstr("group rank 0 sends 2 elements of Float to group rank 1"));
    EXPECT_EQ(wrong.sum().item<double>(), 0);
  }
}

int64_t bytes_of(const std::vector<Call>& calls) {
  return message_bytes(calls, Members::all(static_cast<int>(calls.size())));
}

// The size that Network::collective asks for: the whole result of one rank, which is the tensor
// itself, or the parts of all members together.
TEST(MessageBytes, AreThoseOfOneRanksWholeResult) {
  constexpr size_t kMembers = 4;
  constexpr int64_t kPart = 6 * 4;  // six floats
  const at::Tensor part = at::ones({6});
  const at::Tensor whole = at::ones({24});
  const Tensors parts(kMembers, part);
  struct Case {
    const char* what;
    Call call;  // of every member
    int64_t bytes;
  };
  const std::vector<Case> cases{
      {"broadcast", call_of(OpType::BROADCAST, {part}, {}), kPart},
      {"all_reduce", call_of(OpType::ALLREDUCE, {part}, {}), kPart},
      {"two coalesced", call_of(OpType::ALLREDUCE_COALESCED, {part, whole}, {}), 5 * kPart},
      {"reduce", call_of(OpType::REDUCE, {part}, {}), kPart},
      {"all_gather", call_of(OpType::ALLGATHER, {part}, parts), 4 * kPart},
      {"all_gather_coalesced", call_of(OpType::ALLGATHER_COALESCED, {part}, parts), 4 * kPart},
      {"all_gather_into_tensor", call_of(OpType::_ALLGATHER_BASE, {part}, {whole}), 4 * kPart},
      {"gather on its root", call_of(OpType::GATHER, {part}, parts), 4 * kPart},
      {"gather elsewhere", call_of(OpType::GATHER, {part}, {}), 4 * kPart},
      {"scatter on its root", call_of(OpType::SCATTER, parts, {part}), 4 * kPart},
      {"scatter elsewhere", call_of(OpType::SCATTER, {}, {part}), 4 * kPart},
      {"reduce_scatter", call_of(OpType::REDUCE_SCATTER, parts, {part}), 4 * kPart},
      {"reduce_scatter_tensor", call_of(OpType::_REDUCE_SCATTER_BASE, {whole}, {part}), 4 * kPart},
      {"all_to_all", call_of(OpType::ALLTOALL, parts, parts), 4 * kPart},
      {"all_to_all_single", call_of(OpType::ALLTOALL_BASE, {whole}, {whole}), 4 * kPart},
      {"barrier", call_of(OpType::BARRIER, {}, {}), 0},
  };
  for (const Case& each : cases) {
    EXPECT_EQ(bytes_of(std::vector<Call>(kMembers, each.call)), each.bytes) << each.what;
  }
  const at::Tensor half = at::ones({6}, at::kHalf);
  EXPECT_EQ(bytes_of(std::vector<Call>(kMembers, call_of(OpType::ALLGATHER, {half}, {}))),
            4 * kPart / 2);
}

// Rows of eight bytes that each rank sends to each. Rank 1 sends three of its ten to others. Rank 2
// gets six from others, which is the most; an even exchange with six rows for two others has nine.
constexpr int64_t kRows[3][3] = {{1, 2, 3}, {0, 7, 3}, {1, 0, 0}};

TEST(MessageBytes, OfAnUnevenAllToAllGoByTheBusiestMember) {
  std::vector<Call> in_one, in_lists;
  for (int me = 0; me < 3; ++me) {
    Tensors sent, received;
    std::vector<int64_t> out_rows, in_rows;
    for (int other = 0; other < 3; ++other) {
      out_rows.push_back(kRows[me][other]);
      in_rows.push_back(kRows[other][me]);
      sent.push_back(at::ones({out_rows.back(), 2}));
      received.push_back(at::ones({in_rows.back(), 2}));
    }
    in_one.push_back(call_of(OpType::ALLTOALL_BASE, {at::cat(sent)}, {at::cat(received)}));
    in_one.back().input_splits = out_rows;
    in_one.back().output_splits = in_rows;
    in_lists.push_back(call_of(OpType::ALLTOALL, sent, received));
  }
  for (const std::vector<Call>& calls : {in_one, in_lists}) {
    EXPECT_EQ(bytes_of(calls), 9 * 8);
    EXPECT_EQ(bytes_to_others(calls[0], 0, 3), 5 * 8);
    EXPECT_EQ(bytes_to_others(calls[1], 1, 3), 3 * 8);
    EXPECT_EQ(bytes_to_others(calls[2], 2, 3), 1 * 8);
  }
}

TEST(MessageBytes, OfAnAllToAllToOneselfAreNone) {
  std::vector<Call> calls;
  for (int me = 0; me < 2; ++me) {
    calls.push_back(call_of(OpType::ALLTOALL_BASE, {at::ones({4})}, {at::ones({4})}));
    calls.back().input_splits = {me == 0 ? 4 : 0, me == 0 ? 0 : 4};
    calls.back().output_splits = calls.back().input_splits;
  }
  EXPECT_EQ(bytes_of(calls), 0);
}

}  // namespace
}  // namespace accelerate::simulator
