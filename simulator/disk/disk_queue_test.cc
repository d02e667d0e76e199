#include "simulator/disk/disk_queue.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace accelerate::simulator {
namespace {

// Bytes per ns, and ns.
constexpr int64_t kRate = 2;
constexpr int64_t kLatency = 50;

// Two ranks' clocks, and what their disk did.
struct Clocks {
  int64_t now_ns[2] = {0, 0};
  std::vector<DiskTransfer> transfers;
  DiskQueue queue{
      {.bytes_per_second = kRate * 1e9, .latency_ns = kLatency},
      {.now_ns = [this](int rank) { return now_ns[rank]; },
       .wait_until =
           [this](int rank, int64_t ns) {
             EXPECT_GE(ns, now_ns[rank]);
             now_ns[rank] = ns;
           },
       .on_transfer = [this](int,
                             const DiskTransfer& transfer) { transfers.push_back(transfer); }}};
};

TEST(DiskQueue, MakesAReaderWaitForItsBytesAndTheLatency) {
  Clocks clocks;
  clocks.now_ns[0] = 7;
  clocks.queue.read(0, 1000);
  EXPECT_EQ(clocks.now_ns[0], 7 + 1000 / kRate + kLatency);
  clocks.queue.read(0, 0);
  EXPECT_EQ(clocks.now_ns[0], 7 + 1000 / kRate + 2 * kLatency);
}

TEST(DiskQueue, MakesAWriterWaitInSyncOnly) {
  Clocks clocks;
  int64_t written_ns = 0;
  for (int i = 0; i < 10; ++i) written_ns = clocks.queue.write(0, 100);
  EXPECT_EQ(clocks.now_ns[0], 0);
  EXPECT_EQ(written_ns, 1000 / kRate);
  clocks.queue.sync(0, written_ns);
  EXPECT_EQ(clocks.now_ns[0], 1000 / kRate + kLatency);
  clocks.queue.sync(0, written_ns);
  EXPECT_EQ(clocks.now_ns[0], 1000 / kRate + 2 * kLatency);
}

TEST(DiskQueue, WorksWhileTheWriterDoesSomethingElse) {
  Clocks clocks;
  const int64_t written_ns = clocks.queue.write(0, 1000);
  clocks.now_ns[0] = 400;
  clocks.queue.sync(0, written_ns);
  EXPECT_EQ(clocks.now_ns[0], 500 + kLatency);
}

TEST(DiskQueue, ServesRanksInTheirOrderAndLetsLatenciesOverlap) {
  Clocks clocks;
  const int64_t first_ns = clocks.queue.write(0, 1000);
  const int64_t second_ns = clocks.queue.write(1, 1000);
  clocks.queue.sync(0, first_ns);
  clocks.queue.sync(1, second_ns);
  EXPECT_EQ(clocks.now_ns[0], 500 + kLatency);
  EXPECT_EQ(clocks.now_ns[1], 1000 + kLatency);
  clocks.now_ns[1] = 5000;
  clocks.queue.read(1, 1000);
  EXPECT_EQ(clocks.now_ns[1], 5500 + kLatency) << "the disk was idle";
}

TEST(DiskQueue, ReadsAndWritesAtTheSameTime) {
  Clocks clocks;
  const int64_t written_ns = clocks.queue.write(0, 1000);
  clocks.queue.read(1, 1000);
  EXPECT_EQ(written_ns, 500);
  EXPECT_EQ(clocks.now_ns[1], 500 + kLatency);
  EXPECT_EQ(clocks.queue.write(1, 100), 600) << "an idle direction begins at once";
}

TEST(DiskQueue, TellsOfEachTransfer) {
  Clocks clocks;
  clocks.queue.write(0, 1000);
  clocks.now_ns[1] = 100;
  clocks.queue.read(1, 200);
  clocks.queue.read(1, 0);
  ASSERT_EQ(clocks.transfers.size(), 2);
  EXPECT_TRUE(clocks.transfers[0].writes);
  EXPECT_EQ(clocks.transfers[0].end_ns, 500);
  EXPECT_FALSE(clocks.transfers[1].writes);
  EXPECT_EQ(clocks.transfers[1].start_ns, 100);
  EXPECT_EQ(clocks.transfers[1].end_ns, 200);
}

TEST(DiskQueue, TellsOfEachOperationAndHowLongItTook) {
  struct Told {
    int rank;
    std::string operation;
    int64_t bytes, waited_ns;
    bool operator==(const Told&) const = default;
  };
  std::vector<Told> told;
  int64_t now_ns = 0;
  const auto tell = [&told](int rank, const char* operation, int64_t bytes, int64_t waited_ns) {
    told.push_back({rank, operation, bytes, waited_ns});
  };
  DiskQueue queue({.bytes_per_second = kRate * 1e9, .latency_ns = kLatency},
                  {.now_ns = [&now_ns](int) { return now_ns; },
                   .wait_until = [&now_ns](int, int64_t until_ns) { now_ns = until_ns; },
                   .on_operation = tell});
  queue.read(0, 1000);
  queue.sync(1, queue.write(1, 200));
  DiskQueue free({}, {.on_operation = tell});
  free.read(3, 7);
  EXPECT_EQ(told, (std::vector<Told>{{0, "read", 1000, 500 + kLatency},
                                     {1, "write", 200, 0},
                                     {1, "sync", 0, 100 + kLatency},
                                     {3, "read", 7, 0}}));
}

TEST(DiskQueue, WorksAtARanksSpeedAndForThoseThatItCountsFor) {
  std::vector<DiskTransfer> transfers;
  DiskQueue queue(
      {.bytes_per_second = kRate * 1e9, .latency_ns = kLatency},
      {.now_ns = [](int) { return int64_t{0}; },
       .wait_until = [](int, int64_t) {},
       .counts_for = [](int rank) { return rank == 1 ? 3 : 1; },
       .speed = [](int rank) { return rank == 0 ? 0.5 : 1.0; },
       .on_transfer = [&transfers](int, const DiskTransfer& each) { transfers.push_back(each); }});
  EXPECT_EQ(queue.write(0, 1000), 1000) << "half as fast";
  EXPECT_EQ(queue.write(1, 100), 1000 + 3 * 50) << "the last of three that write the same";
  ASSERT_EQ(transfers.size(), 2);
  EXPECT_EQ(transfers[1].start_ns, 1100);
  EXPECT_EQ(transfers[1].bytes, 100);
}

TEST(DiskQueue, TakesNoTimeWithoutARateOrAfterTheRun) {
  DiskQueue free({}, {});
  free.read(0, 1000);
  EXPECT_EQ(free.write(0, 1000), 0);
  free.sync(0, 0);
  Clocks clocks;
  clocks.queue.end();
  clocks.queue.read(0, 1000);
  clocks.queue.sync(0, 0);
  EXPECT_EQ(clocks.now_ns[0], 0);
}

}  // namespace
}  // namespace accelerate::simulator
