// The virtual time of a simulated disk's files, from a rank's call to the trace: closed forms.
// One shape each: disks belong to nodes, and the times are those of this disk.
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "accelerate/platform/host_files.h"
#include "simulator/cluster/cluster.h"
#include "simulator/faults/rules.h"
#include "simulator/trace/recorder.h"

namespace accelerate::simulator {
namespace {

// One byte per ns.
constexpr char kDisk[] = ":h100,disk=1GB/s,disk_latency=100us";
constexpr int64_t kLatency = 100'000;
constexpr int64_t kBytes = 4'000'000;
constexpr int64_t kSave = kBytes + kLatency;

std::string own_path(const Rank& rank) { return "/sim/" + std::to_string(rank.index()); }

// Writes a file in pieces, and syncs it.
void write(Runtime& runtime, const std::string& path, int64_t bytes = kBytes) {
  const std::vector<std::byte> piece(bytes / 4);
  auto file = runtime.files().create(path);
  ASSERT_TRUE(file.ok()) << file.status();
  for (int i = 0; i < 4; ++i) {
    EXPECT_TRUE((*file)->write_at(i * (bytes / 4), piece).ok());
  }
  EXPECT_TRUE((*file)->sync().ok());
  EXPECT_TRUE((*file)->close().ok());
}

void write_own(Rank& rank) { write(rank.runtime(), own_path(rank)); }

int64_t elapsed_ns(const std::string& shape, ClusterOptions options,
                   const std::function<void(Rank&)>& body) {
  Cluster cluster(shape, std::move(options));
  cluster.run_on_every_rank(body);
  return absl::ToInt64Nanoseconds(cluster.elapsed());
}

int64_t elapsed_ns(const std::string& shape, const std::function<void(Rank&)>& body) {
  return elapsed_ns(shape + kDisk, {.disk = std::make_shared<SimDisk>()}, body);
}

TEST(DiskTime, ASlowDiskTakesLongerFromItsFaultOn) {
  const auto run = [](const char* plan) {
    return elapsed_ns(
        std::string("1x1") + kDisk,
        {.disk = std::make_shared<SimDisk>(), .faults = FaultRules::parse(plan).value()},
        write_own);
  };
  EXPECT_EQ(run("disk at start: slow(0.5)"), 2 * kBytes + kLatency);
  EXPECT_EQ(run("disk of node 0 at start: slow(0.25)"), 4 * kBytes + kLatency);
  // The third piece and the fourth.
  EXPECT_EQ(run("disk at file#3: slow(0.5)"), kBytes + kBytes / 2 + kLatency);
}

TEST(DiskTime, ASaveTakesItsBytesAndOneLatency) {
  EXPECT_EQ(elapsed_ns("1x1", write_own), kSave);
  EXPECT_EQ(elapsed_ns("1x1",
                       [](Rank& rank) {
                         write_own(rank);
                         write_own(rank);
                       }),
            2 * kSave);
}

TEST(DiskTime, TheRanksOfANodeShareItsDisk) {
  EXPECT_EQ(elapsed_ns("1x4", write_own), 4 * kBytes + kLatency);
}

TEST(DiskTime, OneDiskForAllNodesIsOneQueue) {
  EXPECT_EQ(elapsed_ns("2x2", write_own), 4 * kBytes + kLatency);
}

TEST(DiskTime, DisksOfTwoNodesWorkAtOnce) {
  const ClusterOptions options{
      .node_disks = {std::make_shared<SimDisk>(), std::make_shared<SimDisk>()}};
  EXPECT_EQ(elapsed_ns(std::string("2x2") + kDisk, options, write_own), 2 * kBytes + kLatency);
  const auto same = std::make_shared<SimDisk>();
  EXPECT_EQ(elapsed_ns(std::string("2x2") + kDisk, {.node_disks = {same, same}}, write_own),
            4 * kBytes + kLatency);
}

TEST(DiskTime, ALoadWaitsForItsBytes) {
  auto disk = std::make_shared<SimDisk>();
  ASSERT_TRUE(write_file(*disk, "/sim/0", std::string(kBytes, 'x')).ok());
  const auto load = [](Rank& rank) {
    const auto text = read_file(rank.runtime().files(), "/sim/0");
    EXPECT_EQ(static_cast<int64_t>(text->size()), kBytes);
  };
  EXPECT_EQ(elapsed_ns(std::string("1x1") + kDisk, {.disk = disk}, load), kSave);
  EXPECT_EQ(elapsed_ns(std::string("1x3") + kDisk, {.disk = disk}, load), 3 * kBytes + kLatency);
}

TEST(DiskTime, TheDiskWritesWhileTheRankDoesOtherThings) {
  EXPECT_EQ(elapsed_ns("1x1",
                       [](Rank& rank) {
                         const std::vector<std::byte> bytes(kBytes);
                         auto file = rank.runtime().files().create("/sim/0");
                         EXPECT_TRUE((*file)->write_at(0, bytes).ok());
                         rank.runtime().sleep_for(absl::Nanoseconds(kBytes - 1000));
                         EXPECT_TRUE((*file)->sync().ok());
                       }),
            kSave);
}

TEST(DiskTime, IsNoneWithoutADiskThatTakesTime) {
  const auto disk = std::make_shared<SimDisk>();
  EXPECT_EQ(elapsed_ns("1x2:h100,disk=off", {.disk = disk}, write_own), 0);
  EXPECT_EQ(elapsed_ns("1x2", {.disk = disk}, write_own), 0);
  EXPECT_GT(elapsed_ns("1x2:h100", {.disk = disk}, write_own), 0);
}

// Programs of folded ranks do not run, but their files take the disk's time all the same.
TEST(DiskTime, FoldedRanksKeepTheirDiskBusy) {
  const auto folded = [](const std::string& shape, ClusterOptions options, Folding folding) {
    options.numerics = Numerics::kShapes;
    options.fold = folding;
    return elapsed_ns(shape + kDisk, std::move(options), write_own);
  };
  const auto disk = [] { return std::make_shared<SimDisk>(); };
  for (const int spot_checks : {0, 1, 2}) {
    for (const bool rank_0_apart : {false, true}) {
      const Folding folding{.spot_checks = spot_checks, .rank_0_apart = rank_0_apart};
      EXPECT_EQ(folded("1x7", {.disk = disk()}, folding), 7 * kBytes + kLatency);
      // One disk for all nodes, one for each, and one for two of three.
      EXPECT_EQ(folded("3x5", {.disk = disk()}, folding), 15 * kBytes + kLatency);
      EXPECT_EQ(folded("3x5", {.node_disks = {disk(), disk(), disk()}}, folding),
                5 * kBytes + kLatency);
      const auto shared = disk();
      EXPECT_EQ(folded("3x5", {.node_disks = {shared, shared, disk()}}, folding),
                10 * kBytes + kLatency);
    }
  }
}

// ---- The machine's own files.

TEST(DiskTime, FilesOfTheMachineTakeItOnlyWhereTheyAreTo) {
  const TemporaryFolder folder;
  const auto save_and_load = [&](Rank& rank) {
    const std::string path = folder.path(std::to_string(rank.index()));
    write(rank.runtime(), path);
    EXPECT_TRUE(rank.runtime().files().sync_directory(folder.path()).ok());
    EXPECT_EQ(read_file(rank.runtime().files(), path)->size(), kBytes);
    const auto file = rank.runtime().files().open(path);
    EXPECT_EQ((*(*file)->map())->size(), kBytes);
  };
  constexpr int64_t kTime = 3 * kBytes + 4 * kLatency;
  const ClusterOptions timed{.host_files_take_time = true};
  EXPECT_EQ(elapsed_ns(std::string("1x1") + kDisk, timed, save_and_load), kTime);
  EXPECT_EQ(elapsed_ns(std::string("1x1") + kDisk, {}, save_and_load), 0);
  EXPECT_EQ(elapsed_ns("1x1:h100,disk=off", timed, save_and_load), 0);
  EXPECT_EQ(elapsed_ns("1x1", timed, save_and_load), 0);
  // They are there when the run is over.
  EXPECT_EQ(std::filesystem::file_size(folder.path("0")), kBytes);
  // Ranks of a node share its disk, and each node has one.
  const auto save = [&](Rank& rank) {
    write(rank.runtime(), folder.path(std::to_string(rank.index())));
  };
  EXPECT_EQ(elapsed_ns(std::string("2x3") + kDisk, timed, save), 3 * kBytes + kLatency);
  const auto behind = [&](Rank& rank) {
    const auto task = rank.runtime().start_background([&] {
      save(rank);
      return true;
    });
    task->wait();
  };
  EXPECT_EQ(elapsed_ns(std::string("1x1") + kDisk, timed, behind), kSave);
}

TEST(DiskTime, HasOneDiskForAPath) {
  EXPECT_THROW(
      Cluster("1x1:h100", {.disk = std::make_shared<SimDisk>(), .host_files_take_time = true}),
      c10::ValueError);
}

TEST(DiskTime, TheSameSeedGivesTheSameTimes) {
  const auto ends = [](uint64_t seed) {
    Cluster cluster(std::string("1x3") + kDisk,
                    {.seed = seed, .disk = std::make_shared<SimDisk>()});
    cluster.run_on_every_rank([](Rank& rank) {
      Runtime& runtime = rank.runtime();
      const absl::Time start = runtime.now();
      for (int i = 0; i < 3; ++i) write(runtime, own_path(rank), 1000 * (rank.index() + 1));
      rank.report("end", absl::ToDoubleNanoseconds(runtime.now() - start));
    });
    std::vector<double> times;
    for (const at::Tensor& end : cluster.reports("end")) times.push_back(end.item<double>());
    return times;
  };
  for (const uint64_t seed : {1, 2, 3}) EXPECT_EQ(ends(seed), ends(seed)) << seed;
}

TEST(DiskTime, TheTraceShowsTheDiskAtWork) {
  Cluster cluster(std::string("1x2") + kDisk,
                  {.record = true, .disk = std::make_shared<SimDisk>()});
  cluster.run_on_every_rank([](Rank& rank) {
    write_own(rank);
    EXPECT_TRUE(read_file(rank.runtime().files(), own_path(rank)).ok());
  });
  int64_t busy_ns[2][2] = {};
  int64_t end_ns[2] = {};  // of reading, and of writing
  int64_t waited_ns[2] = {};
  for (const Slice& slice : cluster.trace().slices) {
    ASSERT_EQ(slice.kind, SliceKind::kDisk);
    if (slice.stream == kHostWaitStream) {
      waited_ns[slice.rank] += slice.end_ns - slice.start_ns;
      continue;
    }
    const bool writes = slice.stream == kDiskWriteStream;
    EXPECT_TRUE(writes || slice.stream == kDiskStream);
    EXPECT_GE(slice.start_ns, end_ns[writes]) << "one transfer in a direction at a time";
    end_ns[writes] = slice.end_ns;
    busy_ns[slice.rank][writes] += slice.end_ns - slice.start_ns;
  }
  for (const int rank : {0, 1}) {
    for (const int direction : {0, 1}) EXPECT_EQ(busy_ns[rank][direction], kBytes);
  }
  EXPECT_EQ(end_ns[0] + kLatency, absl::ToInt64Nanoseconds(cluster.elapsed()));
  EXPECT_EQ(cluster.trace().ranks[0].compute_ns, 0);
  // The ranks do nothing but wait for their files.
  EXPECT_EQ(std::max(waited_ns[0], waited_ns[1]), absl::ToInt64Nanoseconds(cluster.elapsed()));
}

// ---- Behind training.

// A rank that trains for a time, in many short steps.
void train(Runtime& runtime, absl::Duration duration) {
  constexpr int kSteps = 400;
  for (int step = 0; step < kSteps; ++step) runtime.sleep_for(duration / kSteps);
}

// Writes behind training. Returns the times at which the task began, training ended, and wait()
// did.
struct Behind {
  int64_t began_ns = -1;
  int64_t trained_ns = 0;
  int64_t waited_ns = 0;
};
Behind write_behind(absl::Duration training, uint64_t seed) {
  Behind behind;
  Cluster cluster(std::string("1x1") + kDisk, {.seed = seed, .disk = std::make_shared<SimDisk>()});
  cluster.run_on_every_rank([&](Rank& rank) {
    Runtime& runtime = rank.runtime();
    const absl::Time start = runtime.now();
    const auto now_ns = [&] { return absl::ToInt64Nanoseconds(runtime.now() - start); };
    const auto task = runtime.start_background([&] {
      behind.began_ns = now_ns();
      write(runtime, "/sim/0");
      EXPECT_EQ(now_ns(), behind.began_ns + kSave) << "the step's own time";
      return true;
    });
    train(runtime, training);
    behind.trained_ns = now_ns();
    task->wait();
    EXPECT_TRUE(task->is_done());
    behind.waited_ns = now_ns();
  });
  EXPECT_EQ(behind.waited_ns, absl::ToInt64Nanoseconds(cluster.elapsed()));
  return behind;
}

TEST(DiskTime, ASaveBehindTrainingCostsWhatTrainingDoesNotCover) {
  int covered = 0;
  for (const uint64_t seed : {1, 2, 3, 4, 5, 6}) {
    for (const int64_t training_ns : {kSave / 2, 4 * kSave}) {
      const Behind behind = write_behind(absl::Nanoseconds(training_ns), seed);
      EXPECT_EQ(behind.trained_ns, training_ns) << "training was held up, seed " << seed;
      EXPECT_EQ(behind.waited_ns, std::max(training_ns, behind.began_ns + kSave)) << seed;
      if (behind.waited_ns == training_ns) ++covered;
    }
  }
  EXPECT_GE(covered, 4);
}

// The transfers of one rank that begin at once follow each other, beside what the rank does.
TEST(DiskTime, ATransferThatBeginsAtOncePassesBesideTraining) {
  for (const uint64_t seed : {1, 2, 3}) {
    const auto body = [&](Rank& rank) {
      Runtime& runtime = rank.runtime();
      const absl::Time start = runtime.now();
      const auto now_ns = [&] { return absl::ToInt64Nanoseconds(runtime.now() - start); };
      auto file = runtime.files().open_scratch("/sim/scratch");
      std::vector<std::byte> from(kBytes, std::byte{7}), to(kBytes);
      const auto transfer = [&](auto step) {
        return runtime.start_background(
            [step] {
              EXPECT_TRUE(step().ok());
              return true;
            },
            BackgroundStart::kAtOnce);
      };
      const auto write = transfer([&] { return (*file)->write_at(0, from); });
      const auto second = transfer([&] { return (*file)->write_at(kBytes, from); });
      const auto read = transfer([&] { return (*file)->read_at(0, absl::MakeSpan(to)); });
      EXPECT_EQ(now_ns(), 0);
      runtime.sleep_for(absl::Nanoseconds(kBytes / 2));
      write->wait();
      EXPECT_EQ(now_ns(), kSave);
      read->wait();
      EXPECT_EQ(now_ns(), kSave) << "it passed beside the write";
      EXPECT_EQ(from, to);
      second->wait();
      EXPECT_EQ(now_ns(), kSave + kBytes);
      runtime.sleep_for(absl::Nanoseconds(2 * kBytes));
    };
    EXPECT_EQ(elapsed_ns(std::string("1x1") + kDisk,
                         {.seed = seed, .disk = std::make_shared<SimDisk>()}, body),
              kSave + 3 * kBytes);
  }
}

TEST(DiskTime, TheNextStepComesWhenTheFilesOfTheLastAreThere) {
  std::vector<int64_t> began_ns;
  const auto body = [&](Rank& rank) {
    Runtime& runtime = rank.runtime();
    const absl::Time start = runtime.now();
    const auto task = runtime.start_background([&] {
      began_ns.push_back(absl::ToInt64Nanoseconds(runtime.now() - start));
      write(runtime, "/sim/" + std::to_string(began_ns.size()));
      return began_ns.size() == 3;
    });
    task->wait();
  };
  EXPECT_EQ(elapsed_ns("1x1", body), 3 * kSave);
  EXPECT_EQ(began_ns, (std::vector<int64_t>{0, kSave, 2 * kSave}));
}

// The ranks of two nodes save behind training and tell each other; none is held up by the others.
TEST(DiskTime, AStepThatWaitsForOthersDoesNotHoldTrainingUp) {
  constexpr int64_t kTraining = 20 * kSave;
  for (const uint64_t seed : {1, 2, 3}) {
    const auto body = [&](Rank& rank) {
      Runtime& runtime = rank.runtime();
      const absl::Time start = runtime.now();
      const auto task = runtime.start_background([&, stage = 0]() mutable {
        if (stage == 0) {
          write_own(rank);
          ++stage;
          return false;
        }
        if (stage++ == 1) runtime.store()->set(own_path(rank), "1");
        return runtime.store()->check({"/sim/0", "/sim/1"});
      });
      train(runtime, absl::Nanoseconds(rank.index() == 0 ? kTraining / 4 : kTraining));
      EXPECT_EQ(absl::ToInt64Nanoseconds(runtime.now() - start),
                rank.index() == 0 ? kTraining / 4 : kTraining);
      task->wait();
    };
    EXPECT_LE(elapsed_ns(std::string("2x1") + kDisk,
                         {.seed = seed, .disk = std::make_shared<SimDisk>()}, body),
              kTraining + 2 * kSave);
  }
}

TEST(DiskTime, ARankThatLooksWhetherATaskIsDoneSeesItWhenTheDiskIs) {
  const auto body = [](Rank& rank) {
    const auto task = rank.runtime().start_background([&] {
      write_own(rank);
      return true;
    });
    while (!task->is_done()) {
    }
  };
  const int64_t ns = elapsed_ns("1x1", body);
  EXPECT_GE(ns, kSave);
  EXPECT_LE(ns, kSave + 1'000'000) << "it looks once in a millisecond";
}

TEST(DiskTime, ATaskThatFailedIsWaitedForToo) {
  const auto body = [](Rank& rank) {
    const auto task = rank.runtime().start_background([&]() -> bool {
      write_own(rank);
      throw std::runtime_error("checksum");
    });
    EXPECT_THROW(task->wait(), std::runtime_error);
  };
  EXPECT_EQ(elapsed_ns("1x1", body), kSave);
}

}  // namespace
}  // namespace accelerate::simulator
