#include "simulator/trace/recorder.h"

#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accelerate::simulator {
namespace {

using ::testing::ElementsAre;

Slice kernel(int rank, int64_t start_ns, int64_t end_ns) {
  return {.start_ns = start_ns, .end_ns = end_ns, .rank = rank};
}

Slice collective(int rank, int64_t start_ns, int64_t end_ns) {
  return {.start_ns = start_ns,
          .end_ns = end_ns,
          .rank = rank,
          .stream = 1,
          .kind = SliceKind::kCollective};
}

TEST(Recorder, GivesEqualNamesEqualNumbers) {
  Recorder recorder({});
  EXPECT_EQ(recorder.intern(""), 0u);
  const uint32_t add = recorder.intern("aten::add");
  EXPECT_NE(recorder.intern("aten::mul"), add);
  EXPECT_EQ(recorder.intern("aten::add"), add);
  EXPECT_THAT(recorder.finish({}).names, ElementsAre("", "aten::add", "aten::mul"));
}

TEST(Recorder, SumsUpARank) {
  Recorder recorder({.world_size = 2, .ranks_per_node = 2});
  recorder.slice(kernel(1, 0, 100));
  recorder.slice(collective(1, 60, 140));
  recorder.memory(1, 0, 5, MemoryCategory::kParameters, 1000);
  recorder.memory(1, 0, 10, MemoryCategory::kActivations, 500);
  recorder.memory(1, 0, 20, MemoryCategory::kActivations, -500);
  recorder.end_rank(1, 120);
  const Trace trace = recorder.finish({.topology = "1x2", .seed = 9, .memory_capacity = 4096});
  ASSERT_EQ(trace.ranks.size(), 2u);
  EXPECT_EQ(trace.ranks[0].end_ns, 0);
  EXPECT_EQ(trace.ranks[1].end_ns, 140);
  EXPECT_EQ(trace.ranks[1].compute_ns, 100);
  EXPECT_EQ(trace.ranks[1].communication_ns, 80);
  EXPECT_EQ(trace.ranks[1].exposed_ns, 40);
  EXPECT_EQ(trace.ranks[1].memory_peak, 1500);
  EXPECT_THAT(trace.ranks[1].at_peak, ElementsAre(1000, 0, 0, 0, 500, 0, 0));
  EXPECT_EQ(trace.memory.size(), 3u);
  EXPECT_EQ(trace.topology, "1x2");
  EXPECT_EQ(trace.seed, 9u);
  EXPECT_EQ(trace.memory_capacity, 4096);
  EXPECT_EQ(elapsed_ns(trace), 140);
}

TEST(Recorder, KeepsTheDevicesOfARankApart) {
  Recorder recorder({.world_size = 2, .devices_per_rank = 2});
  recorder.memory(1, 0, 5, MemoryCategory::kParameters, 1000);
  recorder.memory(1, 1, 5, MemoryCategory::kActivations, 700);
  recorder.memory(1, 1, 6, MemoryCategory::kActivations, 600);
  recorder.memory(0, 1, 6, MemoryCategory::kBuckets, 10);
  // The second device computes while the first communicates: that hides it from the rank.
  recorder.slice(collective(1, 0, 100));
  Slice other = kernel(1, 0, 80);
  other.device = 1;
  recorder.slice(other);
  const Trace trace = recorder.finish({});
  EXPECT_EQ(trace.devices_per_rank, 2);
  std::vector<std::pair<int, int>> order;
  for (const MemorySample& sample : trace.memory) order.emplace_back(sample.rank, sample.device);
  EXPECT_THAT(order,
              ElementsAre(std::pair(0, 1), std::pair(1, 0), std::pair(1, 1), std::pair(1, 1)));
  EXPECT_EQ(trace.ranks[1].memory_peak, 1300);
  EXPECT_THAT(trace.ranks[1].at_peak, ElementsAre(0, 0, 0, 0, 1300, 0, 0));
  EXPECT_EQ(trace.ranks[1].exposed_ns, 20);
}

TEST(Recorder, EndsARankBeforeTheDiskHasWrittenAll) {
  Recorder recorder({});
  recorder.slice(kernel(0, 0, 100));
  recorder.slice({.start_ns = 50, .end_ns = 900, .stream = kDiskStream, .kind = SliceKind::kDisk});
  const Trace trace = recorder.finish({});
  EXPECT_EQ(trace.slices.size(), 2u);
  EXPECT_EQ(trace.ranks[0].end_ns, 100);
  EXPECT_EQ(trace.ranks[0].compute_ns, 100);
  EXPECT_EQ(trace.ranks[0].communication_ns, 0);
}

TEST(Recorder, GoesOnSummingUpWhenItHasTooManySlices) {
  Recorder recorder({.max_slices = 3});
  EXPECT_EQ(recorder.operation({.bytes = 1}), 0);
  for (int64_t at = 0; at < 100; at += 10) recorder.slice(kernel(0, at, at + 5));
  EXPECT_EQ(recorder.operation({.bytes = 2}), -1);
  const Trace trace = recorder.finish({});
  EXPECT_EQ(trace.slices.size(), 3u);
  EXPECT_EQ(trace.dropped_slices, 7);
  EXPECT_EQ(trace.operations.size(), 1u);
  EXPECT_EQ(trace.ranks[0].compute_ns, 50);
  EXPECT_EQ(trace.ranks[0].end_ns, 95);
}

TEST(Recorder, CountsAnExecutedRankForThoseThatAreFolded) {
  Recorder recorder({.world_size = 4, .ranks_per_node = 4});
  recorder.fold({0, 0, 2, 0});
  const uint32_t mm = recorder.intern("mm");
  for (int rank : {0, 2}) {
    recorder.slice(kernel(rank, 0, 100 + rank));
    recorder.op_cost(rank, mm, 30, 200, 64);
    recorder.memory(rank, 0, 5, MemoryCategory::kParameters, 1000 + rank);
  }
  const Trace trace = recorder.finish({});
  EXPECT_EQ(num_executed(trace), 2);
  EXPECT_EQ(trace.slices.size(), 2u);
  ASSERT_EQ(trace.ranks.size(), 4u);
  EXPECT_EQ(trace.ranks[3].compute_ns, 100);
  EXPECT_EQ(trace.ranks[3].memory_peak, 1000);
  EXPECT_EQ(trace.ranks[2].compute_ns, 102);
  ASSERT_EQ(trace.operators.size(), 1u);
  EXPECT_EQ(trace.operators[0].calls, 4);
  EXPECT_EQ(trace.operators[0].total_ns, 120);
  EXPECT_EQ(trace.operators[0].flops, 800);
}

TEST(Recorder, ListsOperatorsByTotalTimeThenByName) {
  Recorder recorder({.world_size = 2});
  const uint32_t b = recorder.intern("b");
  const uint32_t a = recorder.intern("a");
  const uint32_t mm = recorder.intern("mm");
  recorder.op_cost(0, b, 10, 0, 8);
  recorder.op_cost(1, a, 10, 0, 8);
  recorder.op_cost(0, mm, 30, 200, 64);
  recorder.op_cost(1, mm, 30, 300, 64);
  const Trace trace = recorder.finish({});
  ASSERT_EQ(trace.operators.size(), 3u);
  EXPECT_EQ(trace.operators[0].name, mm);
  EXPECT_EQ(trace.operators[0].calls, 2);
  EXPECT_EQ(trace.operators[0].total_ns, 60);
  EXPECT_EQ(trace.operators[0].flops, 500);
  EXPECT_EQ(trace.operators[0].bytes, 128);
  EXPECT_EQ(trace.operators[1].name, a);
  EXPECT_EQ(trace.operators[2].name, b);
  EXPECT_EQ(trace.ranks[1].flops, 300);
}

TEST(Recorder, AddsTrafficUpBySenderAndReceiver) {
  Recorder recorder({.world_size = 2});
  recorder.traffic(0, 1, 10);
  recorder.traffic(0, 1, 5);
  recorder.traffic(1, 0, 1);
  EXPECT_THAT(recorder.finish({}).communication, ElementsAre(Traffic{0, 1, 15}, Traffic{1, 0, 1}));
}

TEST(Recorder, KeepsTheTrafficOfEachAxisApart) {
  Recorder recorder({.world_size = 4});
  const int tp = recorder.axis("tp");
  const int dp = recorder.axis("dp");
  EXPECT_EQ(recorder.axis("tp"), tp);
  recorder.place_along(tp, {0, 1});
  recorder.place_along(tp, {2, 3});
  recorder.traffic(0, 1, 10, dp);
  recorder.traffic(0, 1, 5, tp);
  recorder.traffic(0, 1, 2);
  recorder.traffic(0, 1, 1, tp);
  const Trace trace = recorder.finish({});
  EXPECT_THAT(trace.communication,
              ElementsAre(Traffic{0, 1, 2, -1}, Traffic{0, 1, 6, tp}, Traffic{0, 1, 10, dp}));
  EXPECT_EQ(trace.axes.at(dp).name, "dp");
  EXPECT_EQ(place_of(trace, 3), "tp 1");
  EXPECT_EQ(place_of(Trace(), 3), "");
}

TEST(Recorder, ListsTrafficBySenderThenReceiverWhateverTheOrder) {
  Recorder recorder({.world_size = 16384});
  recorder.traffic(16383, 0, 4);
  recorder.traffic(2, 16383, 3);
  recorder.traffic(2, 1, 2);
  EXPECT_THAT(recorder.finish({}).communication,
              ElementsAre(Traffic{2, 1, 2}, Traffic{2, 16383, 3}, Traffic{16383, 0, 4}));
}

TEST(Recorder, ListsNoTrafficWhenNothingWasSent) {
  Recorder recorder({.world_size = 64});
  EXPECT_TRUE(recorder.finish({}).communication.empty());
}

TEST(RecorderDeathTest, RefusesARankThatIsNotThere) {
  Recorder recorder({.world_size = 2});
  EXPECT_DEATH(recorder.slice(kernel(2, 0, 1)), "rank");
  EXPECT_DEATH(recorder.traffic(0, -1, 1), "-1");
}

TEST(Recorder, KeepsTheHighestMemoryAtADriverAndAllRetries) {
  Recorder recorder({.world_size = 3, .devices_per_rank = 2});
  recorder.fold({0, 1, 0});
  recorder.driver_memory(0, 500, 2);
  recorder.driver_memory(0, 300, 1);
  const Trace trace = recorder.finish({});
  for (const int rank : {0, 2}) {
    EXPECT_EQ(trace.ranks[rank].driver_peak, 500);
    EXPECT_EQ(trace.ranks[rank].allocation_retries, 3);
  }
  EXPECT_EQ(trace.ranks[1].driver_peak, 0);
}

TEST(Recorder, SumsUpAllocationsSynchronisationsFilesAndModules) {
  Recorder recorder({.world_size = 3, .devices_per_rank = 2});
  recorder.fold({0, 1, 0});
  for (int rank : {0, 1}) {
    recorder.allocations(rank, "mm", 2, 1024);
    recorder.allocations(rank, "", 1, 512);
    recorder.synchronisation(rank, recorder.intern("item"), 50 * rank);
    recorder.file(rank, "write", 100, 0);
  }
  recorder.file(1, "read", 7, 30);
  // The numbers of modules are a device's own.
  recorder.modules(0, 0, {"", "layers.0", "layers.1"});
  recorder.modules(0, 1, {"", "layers.1"});
  recorder.module_cost(0, 0, 2, 10, 1e3, 64);
  recorder.module_cost(0, 1, 1, 5, 2e3, 32);
  recorder.module_cost(1, 0, 0, 1, 0, 8);
  const Trace trace = recorder.finish({});
  ASSERT_EQ(trace.allocations.size(), 2);
  EXPECT_EQ(trace.names[trace.allocations[0].name], "");
  EXPECT_EQ(trace.allocations[1].calls, 6) << "rank 0 counts twice";
  EXPECT_EQ(trace.allocations[1].bytes, 3 * 1024);
  ASSERT_EQ(trace.synchronisations.size(), 1);
  EXPECT_EQ(trace.synchronisations[0].calls, 3) << "also those without a wait";
  EXPECT_EQ(trace.synchronisations[0].total_ns, 50);
  ASSERT_EQ(trace.files.size(), 2);
  EXPECT_EQ(trace.names[trace.files[0].name], "read");
  EXPECT_EQ(trace.files[0].total_ns, 30);
  EXPECT_EQ(trace.files[1].calls, 2) << "folded ranks have no files";
  EXPECT_EQ(trace.files[1].bytes, 200);
  ASSERT_EQ(trace.modules.size(), 2);
  EXPECT_EQ(trace.modules[0].module, "");
  EXPECT_EQ(trace.modules[1].module, "layers.1");
  EXPECT_EQ(trace.modules[1].calls, 4);
  EXPECT_EQ(trace.modules[1].total_ns, 30);
  EXPECT_DOUBLE_EQ(trace.modules[1].flops, 6e3);
}

TEST(StepTimes, LeaveTheFirstStepOutOfTheOthers) {
  Recorder recorder({});
  for (int64_t end : {100, 130, 170, 190}) recorder.step(end);
  const std::optional<StepTimes> times = step_times(recorder.finish({}));
  ASSERT_TRUE(times.has_value());
  EXPECT_EQ(times->steps, 4);
  EXPECT_EQ(times->first_ns, 100);
  EXPECT_EQ(times->shortest_ns, 20);
  EXPECT_EQ(times->median_ns, 30);
  EXPECT_EQ(times->median_step, 1);
  EXPECT_EQ(times->longest_ns, 40);
}

TEST(StepTimes, NumberTheMedianStepAmongAllSteps) {
  Recorder recorder({});
  for (int64_t end : {30, 80, 110, 120}) recorder.step(end);
  EXPECT_EQ(step_times(recorder.finish({}))->median_step, 2);
}

TEST(StepTimes, TellWhatWasComputedAndWhatWaited) {
  Recorder recorder({.world_size = 4, .devices_per_rank = 2});
  recorder.fold({0, 0, 2, 2});
  const uint32_t name = recorder.intern("mm");
  const auto compute = [&](int rank, double flops) {
    recorder.op_cost(rank, name, 1, flops, 0, /*recomputed=*/flops / 4);
    recorder.device_work(rank, {.launches = 2, .blocks = 3, .block_bytes = 512});
  };
  for (int rank : {0, 2}) compute(rank, 1e6);  // before the first step ends
  recorder.end_step_of(2);
  compute(2, 4100);  // rank 2 is a step ahead
  recorder.step(100);
  for (int64_t end : {1100, 2100, 3100}) {
    compute(0, 3000 + static_cast<double>(end));
    recorder.end_step_of(2);
    if (end < 3100) compute(2, 4000 + static_cast<double>(end));
    recorder.slice({.start_ns = end - 500, .end_ns = end - 100, .kind = SliceKind::kCollective});
    recorder.slice({.start_ns = end - 300, .end_ns = end, .kind = SliceKind::kKernel});
    recorder.step(end);
  }
  const Trace trace = recorder.finish({.peak_flops = 1e12});
  const std::optional<StepTimes> times = step_times(trace);
  EXPECT_DOUBLE_EQ(times->flops, 4 * 5100.0);
  EXPECT_DOUBLE_EQ(times->exposed_ns, 200);
  // Eight devices compute 1,000 operations in a nanosecond each.
  EXPECT_DOUBLE_EQ(times->hfu, 4 * 5100.0 / (1000 * 1000.0 * 8));
  EXPECT_DOUBLE_EQ(times->mfu, 0.75 * times->hfu);
  EXPECT_DOUBLE_EQ(times->mean_ns, 1000);
  const StepWork& work = trace.steps[times->median_step].work;
  EXPECT_EQ(work.operators, 4);
  EXPECT_EQ(work.launches, 8);
  EXPECT_EQ(work.blocks, 12);
  EXPECT_EQ(work.block_bytes, 4 * 512);
  EXPECT_EQ(trace.ranks[1].launches, 8) << "four times rank 0 was told, for which it counts";
}

TEST(StepTimes, AddUpThePhasesOfMicroSteps) {
  Recorder recorder({});
  recorder.step(100);
  for (int64_t begin : {100, 200}) {
    recorder.phase(StepPhase::kBackward, begin + 20);
    recorder.phase(StepPhase::kUpdate, begin + 50);
    recorder.phase(StepPhase::kForward, begin + 55);  // the second micro-step
    recorder.phase(StepPhase::kBackward, begin + 65);
    recorder.phase(StepPhase::kUpdate, begin + 90);
    recorder.step(begin + 100);
  }
  const std::optional<StepTimes> times = step_times(recorder.finish({}));
  EXPECT_EQ(times->phase_ns, (std::array<double, kNumStepPhases>{30, 55, 15}));
}

TEST(StepTimes, AreThoseOfTheOnlyStep) {
  Recorder recorder({});
  recorder.step(100);
  EXPECT_EQ(step_times(recorder.finish({}))->median_ns, 100);
  EXPECT_FALSE(step_times(Trace()).has_value());
}

TEST(TraceNames, DifferForEveryCategoryAndKind) {
  std::set<std::string> names;
  for (size_t i = 0; i < kNumMemoryCategories; ++i) {
    names.insert(to_string(static_cast<MemoryCategory>(i)));
  }
  for (size_t i = 0; i < kNumSliceKinds; ++i) names.insert(to_string(static_cast<SliceKind>(i)));
  EXPECT_EQ(names.size(), kNumMemoryCategories + kNumSliceKinds);
}

// Two nodes of two ranks; each rank has a link of 1 GB/s and each node a NIC of 2 GB/s.
std::vector<LinkClass> two_kinds() {
  return {{LinkKind::kNodeOut, 1e9, 2}, {LinkKind::kNicOut, 2e9, 1}, {LinkKind::kToHost, 1e9, 2}};
}

TEST(Recorder, SumsUpLinks) {
  Recorder recorder({.world_size = 4, .ranks_per_node = 2});
  for (int rank = 0; rank < 4; ++rank) {
    recorder.slice(kernel(rank, 0, 1000));
    recorder.link(rank, LinkKind::kNodeOut, 100 * (rank + 1), 0, 200);
    recorder.link(rank, LinkKind::kNodeOut, 50, 100, 300);  // overlaps
    recorder.link(rank, LinkKind::kNicOut, 300, 400, 600);
  }
  const Trace trace = recorder.finish({.device = "h100"}, two_kinds());
  ASSERT_EQ(trace.links.size(), 2);  // nothing went to the host
  const LinkSummary& node = trace.links[0];
  EXPECT_EQ(node.links, 4);
  EXPECT_DOUBLE_EQ(node.bytes, 1200);
  EXPECT_DOUBLE_EQ(node.least_bytes, 150);
  EXPECT_DOUBLE_EQ(node.most_bytes, 450);
  EXPECT_EQ(node.worst, "rank 3");
  EXPECT_DOUBLE_EQ(node.use, 0.3);  // of 1000 bytes in 1000 ns
  EXPECT_DOUBLE_EQ(node.worst_use, 0.45);
  EXPECT_EQ(node.worst_busy_ns, 300);
  EXPECT_DOUBLE_EQ(node.mean_busy_ns, 300);
  EXPECT_DOUBLE_EQ(node.step_use, 0);
  // The ranks of a node share its NIC.
  const LinkSummary& nic = trace.links[1];
  EXPECT_EQ(nic.links, 2);
  EXPECT_DOUBLE_EQ(nic.most_bytes, 600);
  EXPECT_DOUBLE_EQ(nic.worst_use, 0.3);
  EXPECT_EQ(nic.worst_busy_ns, 200);
  EXPECT_EQ(nic.worst, "NIC 0 of node 0");
  EXPECT_EQ(busiest_links(trace), &node);
}

TEST(Recorder, SumsUpLinksByStep) {
  Recorder recorder({.world_size = 1, .ranks_per_node = 1});
  // The first step does more than the others, which take 1000 ns each.
  const int64_t ends[] = {5000, 6000, 7000};
  for (const int64_t end_ns : ends) {
    recorder.link(0, LinkKind::kNodeOut, end_ns == 5000 ? 4000 : 250, end_ns - 500, end_ns);
    recorder.step(end_ns);
  }
  recorder.link(0, LinkKind::kNodeOut, 1e6, 7000, 8000);  // in no step
  const Trace trace = recorder.finish({.device = "h100"}, {{LinkKind::kNodeOut, 1e9, 1}});
  ASSERT_EQ(trace.links.size(), 1);
  EXPECT_DOUBLE_EQ(trace.links[0].step_bytes, 250);
  EXPECT_DOUBLE_EQ(trace.links[0].step_use, 0.25);
  EXPECT_DOUBLE_EQ(trace.links[0].worst_step_use, 0.25);
}

// There is no other to tell it from the first one.
TEST(Recorder, SumsUpLinksOfOneStep) {
  Recorder recorder({.world_size = 1, .ranks_per_node = 1});
  recorder.link(0, LinkKind::kNodeOut, 300, 500, 1000);
  recorder.step(1000);
  recorder.link(0, LinkKind::kNodeOut, 1e6, 1000, 2000);  // in no step
  const Trace trace = recorder.finish({.device = "h100"}, {{LinkKind::kNodeOut, 1e9, 1}});
  ASSERT_EQ(trace.links.size(), 1);
  EXPECT_DOUBLE_EQ(trace.links[0].step_bytes, 300);
  EXPECT_DOUBLE_EQ(trace.links[0].step_use, 0.3);
}

TEST(Recorder, CountsTheLinksOfFoldedRanksAndDivides) {
  Recorder recorder({.world_size = 4, .ranks_per_node = 2});
  recorder.fold({0, 0, 0, 0});
  recorder.link(0, LinkKind::kNicOut, 100, 0, 10);
  recorder.link(0, LinkKind::kDiskRead, 70, 0, 10);
  // Four NICs for two ranks, and one disk for all.
  const Trace trace = recorder.finish({.device = "h100"},
                                      {{LinkKind::kNicOut, 1e9, 4}, {LinkKind::kDiskRead, 1e9, 0}});
  ASSERT_EQ(trace.links.size(), 2);
  EXPECT_EQ(trace.links[0].links, 8);
  EXPECT_DOUBLE_EQ(trace.links[0].bytes, 400);
  EXPECT_DOUBLE_EQ(trace.links[0].least_bytes, 50);
  EXPECT_EQ(trace.links[1].links, 1);
  EXPECT_DOUBLE_EQ(trace.links[1].bytes, 70);  // files of folded ranks do nothing
  EXPECT_EQ(trace.links[1].worst, "all nodes");
}

}  // namespace
}  // namespace accelerate::simulator
