#include "accelerate/dumps/flight_recorder.h"

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "accelerate/dumps/dump_folder.h"

namespace accelerate {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

std::string head(int rank) {
  return absl::StrCat("node", rank / 2, ":", 100 + rank, ":", 200 + rank, " [", rank % 2,
                      "] NCCL INFO ");
}

std::string made(int rank, int ranks, const std::string& more = "") {
  return absl::StrCat(head(rank), "comm 0x5", rank, " rank ", rank, " nranks ", ranks,
                      " cudaDev 0 busId 1b000", more, " - Init COMPLETE\n");
}

std::string called(int rank, const std::string& name, int number, int count, int type = 7) {
  return absl::StrCat(head(rank), name, ": opCount ", absl::Hex(number),
                      " sendbuff 0x7f01 recvbuff 0x7f02 count ", count, " datatype ", type,
                      " op 0 root 0 comm 0x5", rank, " [nranks=3] stream 0x55\n");
}

TEST(NcclLog, HasTheCallsOfEachProcess) {
  std::string text = "Starting the job\n";
  for (int rank = 0; rank < 3; ++rank) text += made(rank, 3);
  for (int rank = 2; rank >= 0; --rank) {
    text += called(rank, "AllReduce", 0, 512) + called(rank, "AllGather", 1, 64, 9);
  }
  text += "node0:100:999 [0] NCCL INFO Channel 00/02 : 0 1 2\nloss 0.5\n";
  ASSERT_TRUE(is_nccl_log(text));
  const std::vector<RankDump> dumps = read_nccl_log(text);
  ASSERT_THAT(dumps, SizeIs(3));
  for (int rank = 0; rank < 3; ++rank) {
    const OperationHistory& history = dumps[rank].history;
    EXPECT_EQ(history.rank, rank);
    ASSERT_THAT(history.groups, SizeIs(1));
    EXPECT_EQ(history.groups[0].name, "comm 0 of 3 ranks");
    EXPECT_EQ(history.groups[0].collectives, 2U);
    EXPECT_THAT(dumps[rank].members[0], ElementsAre(0, 1, 2));
    ASSERT_THAT(history.operations, SizeIs(2));
    EXPECT_EQ(history.operations[0].fingerprint.to_string(), "all_reduce #0 (sum, Float[512])");
    EXPECT_EQ(history.operations[0].state, OperationState::kDone);
    EXPECT_EQ(history.operations[1].fingerprint.to_string(),
              "all_gather_into_tensor #1 (BFloat16[64])");
    EXPECT_EQ(history.operations[1].state, OperationState::kIssued);
  }
}

// Newer versions say which communicators are the same.
TEST(NcclLog, TellsCommunicatorsApartByTheirIds) {
  std::string text = made(0, 2, " commId 0xabc") + made(1, 2, " commId 0xabc");
  text += made(0, 2, " commId 0xabc");  // as where a file and the output are read
  text += head(0) + "comm 0x99 rank 0 nranks 1 cudaDev 0 busId 1 commId 0xdef - Init COMPLETE\n";
  text += called(0, "AllReduce", 0, 4) + called(1, "AllReduce", 0, 4);
  text += head(0) + "Broadcast: opCount 0 count 7 datatype 7 op 0 root 0 comm 0x99 [nranks=1]\n";
  const std::vector<RankDump> dumps = read_nccl_log(text);
  ASSERT_THAT(dumps, SizeIs(2));
  ASSERT_THAT(dumps[0].history.groups, SizeIs(2));
  EXPECT_EQ(dumps[0].history.groups[0].name, "comm 0xabc");
  EXPECT_EQ(dumps[0].history.groups[1].name, "comm 0xdef");
  EXPECT_THAT(dumps[0].members[1], ElementsAre(0));
  EXPECT_THAT(dumps[1].members[0], ElementsAre(0, 1));
}

// A communicator that has ended leaves its address to a later one, and what it was to the report.
TEST(NcclLog, TellsCommunicatorsOfOneAddressApart) {
  std::string text;
  for (int rank = 0; rank < 4; ++rank) text += made(rank, 4, " commId 0xa");
  for (const char* id : {"0xb", "0xc", "0xd"}) {
    for (int rank = 2; rank < 4; ++rank) {
      text += absl::StrCat(head(rank), "comm 0x9 rank ", rank - 2, " nranks 2 cudaDev 0 busId 1 ",
                           "commId ", id, " - Init COMPLETE\n");
      text += absl::StrCat(head(rank), "AllReduce: opCount 0 count 4 datatype 7 op 0 root 0 comm ",
                           "0x9 [nranks=2] stream 0x1\n");
    }
  }
  const std::vector<RankDump> dumps = read_nccl_log(text);
  ASSERT_THAT(dumps, SizeIs(4));
  ASSERT_THAT(dumps[2].history.groups, SizeIs(4));
  for (int group = 1; group < 4; ++group) {
    EXPECT_EQ(dumps[2].history.groups[group].name, absl::StrCat("comm 0x", absl::Hex(10 + group)));
    EXPECT_EQ(dumps[2].history.groups[group].collectives, 1U);
    EXPECT_THAT(dumps[2].members[group], ElementsAre(2, 3)) << group;
  }
  const std::string report = dumps_report(dumps);
  EXPECT_THAT(report, Not(HasSubstr("; behind: "))) << "ranks 0 and 1 are of none";
  EXPECT_THAT(report, HasSubstr("group \"comm 0xb\": calls that had not ended"));
}

TEST(NcclLog, CountsCommunicatorsWithoutIdsThatHadOneAddress) {
  std::string text;
  for (int i = 0; i < 3; ++i) text += made(0, 2) + called(0, "AllReduce", i, 4);
  const OperationHistory history = read_nccl_log(text).at(0).history;
  ASSERT_THAT(history.groups, SizeIs(3));
  EXPECT_EQ(history.groups[0].name, "comm 0 of 2 ranks");
  EXPECT_EQ(history.groups[1].name, "comm 1 of 2 ranks");
  EXPECT_EQ(history.groups[2].name, "comm 2 of 2 ranks");
}

TEST(NcclLog, IsReadBehindATimeAndInAnyOrderOfProcesses) {
  std::string text;
  for (int rank = 2; rank >= 0; --rank) {
    text += "[2024-11-30 12:30:45] " + made(rank, 3);
    text += "[2024-11-30 12:30:46] " + called(rank, "AllReduce", 0, 10 + rank);
  }
  const std::vector<RankDump> dumps = read_nccl_log(text);
  ASSERT_THAT(dumps, SizeIs(3));
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(dumps[rank].history.rank, rank);
    ASSERT_THAT(dumps[rank].history.operations, SizeIs(1));
    EXPECT_EQ(dumps[rank].history.operations[0].fingerprint.sizes[0], 10 + rank);
  }
}

TEST(NcclLog, KnowsPeersOfMessages) {
  const std::string text =
      made(1, 3) + absl::StrCat(head(1),
                                "Send: opCount 4 count 9 datatype 8 op 0 root 2 comm 0x51 "
                                "[nranks=3] stream 0x1\n");
  const OperationHistory history = read_nccl_log(text).at(0).history;
  EXPECT_EQ(history.operations.at(0).fingerprint.peer, 2);
  EXPECT_EQ(history.groups.at(0).collectives, 0U);
}

TEST(NcclLog, KnowsTheNumbersOfTypesAndReductions) {
  const auto call_with = [](const std::string& words) {
    const std::string text =
        absl::StrCat(made(0, 2), head(0), words, " comm 0x50 [nranks=2] stream 0x1\n");
    return read_nccl_log(text).at(0).history.operations.at(0).fingerprint;
  };
  constexpr const char* kTypes[] = {"Char",   "Byte",     "Int",           "UInt32",
                                    "Long",   "UInt64",   "Half",          "Float",
                                    "Double", "BFloat16", "Float8_e4m3fn", "Float8_e5m2"};
  int number = 0;
  for (const char* type : kTypes) {
    EXPECT_EQ(
        call_with(absl::StrCat("AllReduce: opCount 0 count 4 datatype ", number++, " op 0 root 0"))
            .to_string(),
        absl::StrCat("all_reduce #0 (sum, ", type, "[4])"));
  }
  number = 0;
  for (const char* reduction : {"sum", "product", "max", "min", "avg"}) {
    EXPECT_EQ(
        call_with(absl::StrCat("AllReduce: opCount 0 count 4 datatype 7 op ", number++, " root 0"))
            .to_string(),
        absl::StrCat("all_reduce #0 (", reduction, ", Float[4])"));
  }
  for (const auto& [verb, text] :
       {std::pair("ReduceScatter", "reduce_scatter_tensor #0 (max, Float[4])"),
        std::pair("AllGather", "all_gather_into_tensor #0 (Float[4])"),
        std::pair("AlltoAll", "all_to_all_single #0 (Float[4])"),
        std::pair("AllToAll", "all_to_all_single #0 (Float[4])")}) {
    EXPECT_EQ(
        call_with(absl::StrCat(verb, ": opCount 0 count 4 datatype 7 op 2 root 0")).to_string(),
        text);
  }
  const auto reduced = call_with("Reduce: opCount 0 count 4 datatype 7 op 3 root 1");
  EXPECT_THAT(reduced.to_string(), HasSubstr("min"));
  EXPECT_EQ(call_with("Recv: opCount 0 count 4 datatype 7 op 0 root 1").peer, 1);
  for (const char* verb : {"Broadcast", "Bcast", "Reduce", "Gather", "Scatter"}) {
    EXPECT_EQ(call_with(absl::StrCat(verb, ": opCount 0 count 4 datatype 7 op 0 root 1")).root, 1)
        << verb;
  }
  EXPECT_EQ(call_with("AllReduce: opCount 0 count 4 datatype 7 op 0 root 1").root, -1);
}

// Their numbers are those of the job, not of a group of two.
TEST(NcclLog, NumbersProcessesByTheirLargestCommunicator) {
  std::string text;
  for (int rank = 0; rank < 4; ++rank) {
    text += made(rank, 4);
    for (const char* address : {"0x1", "0x9"}) {
      text += absl::StrCat(head(rank), "comm ", address, rank, " rank ", rank % 2,
                           " nranks 2 cudaDev 0 busId 1 commId 0x", rank / 2, " - Init COMPLETE\n");
    }
    text += called(rank, "AllReduce", 0, 4);
  }
  const std::vector<RankDump> dumps = read_nccl_log(text);
  ASSERT_THAT(dumps, SizeIs(4));
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(dumps[rank].history.rank, rank);
    EXPECT_THAT(dumps[rank].members[0], ElementsAre(0, 1, 2, 3));
  }
}

TEST(NcclLog, IsToldAsAReport) {
  std::string text;
  for (int rank = 0; rank < 3; ++rank) text += made(rank, 3) + called(rank, "AllReduce", 0, 512);
  const std::string both = called(0, "AllReduce", 1, 512) + called(2, "AllReduce", 1, 512);
  EXPECT_THAT(dumps_report(read_nccl_log(text + both)),
              AllOf(HasSubstr("group \"comm 0 of 3 ranks\"; behind: rank 1: 1 operation behind"),
                    HasSubstr("all_reduce #1 (sum, Float[512])")));
  EXPECT_THAT(dumps_report(read_nccl_log(text + both + called(1, "AllReduce", 1, 513))),
              AllOf(HasSubstr("collective mismatch in call #1"), HasSubstr("Float[513]")));
}

TEST(NcclLog, IsReadFromFilesOfAFolder) {
  const std::string folder = ::testing::TempDir() + "/nccl_logs";
  std::filesystem::create_directories(folder);
  for (int rank = 0; rank < 2; ++rank) {
    std::ofstream(absl::StrCat(folder, "/nccl.node0.", 100 + rank))
        << made(rank, 2) << called(rank, "AllReduce", 0, 4)
        << (rank == 0 ? called(rank, "AllReduce", 1, 4) : "");
  }
  std::ofstream(folder + "/train.log") << "loss 0.5\n";
  const auto dumps = read_dumps(folder);
  ASSERT_TRUE(dumps.ok()) << dumps.status();
  ASSERT_THAT(*dumps, SizeIs(2));
  EXPECT_THAT(dumps_report(*dumps), HasSubstr("behind: rank 1: 1 operation behind"));
}

TEST(NcclLog, IsReadFromFilesWithTheEndingsOfLogs) {
  const std::string folder = ::testing::TempDir() + "/nccl_endings";
  std::filesystem::create_directories(folder);
  int rank = 0;
  for (const char* name : {"a.log", "a.out", "a.err", "a.txt"}) {
    std::ofstream(absl::StrCat(folder, "/", name))
        << made(rank, 4) << called(rank, "AllReduce", 0, 4);
    ++rank;
  }
  std::ofstream(folder + "/a.py") << made(4, 5) << called(4, "AllReduce", 0, 4);
  const auto dumps = read_dumps(folder);
  ASSERT_TRUE(dumps.ok()) << dumps.status();
  EXPECT_THAT(*dumps, SizeIs(4));
}

TEST(NcclLog, LeavesOutWhatItDoesNotKnow) {
  EXPECT_FALSE(is_nccl_log("loss 0.5\n"));
  EXPECT_THAT(read_nccl_log("loss 0.5\n"), IsEmpty());
  const std::vector<RankDump> dumps =
      read_nccl_log("a NCCL INFO x\n:: NCCL INFO AllReduce: opCount\n" + head(0) +
                    "AllReduce: opCount 1\n" + head(0) + "Mystery: opCount 1 comm 0x1\n" + head(0) +
                    "AllReduce: opCount 1 datatype 99 comm 0x1\n");
  ASSERT_THAT(dumps, SizeIs(1));
  ASSERT_THAT(dumps[0].history.operations, SizeIs(1));
  EXPECT_EQ(dumps[0].history.groups[0].name, "comm at 0x1");
}

}  // namespace
}  // namespace accelerate
