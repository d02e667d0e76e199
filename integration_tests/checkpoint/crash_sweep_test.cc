// No matter what crashes or when: file operations of every rank of a run that saves, rotates and
// resumes are made to fail in every way, one at a time. The run that follows must find a complete
// checkpoint, the last one that save_state returned for or a later one, and go on bit for bit.
// One of each few neighbouring operations is drawn; ci/faults.sh takes every one, in minutes. One
// shape each, because a case crashes at many file operations of two ranks, which is its cost.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "integration_tests/checkpoint/training.h"
#include "simulator/cluster/cluster.h"
#include "simulator/core/random.h"

namespace accelerate::checkpoint_tests {
namespace {

using simulator::Cluster;
using simulator::DeterministicRandom;
using simulator::FileFault;
using simulator::FileFaultKind;
using simulator::Rank;
using simulator::SimDisk;
using simulator::SimDiskOptions;
using simulator::Unsynced;

constexpr int kRanks = 2;

// Where each save replaces the one before, and a file of the user's lies.
constexpr char kFolder[] = "/sim/run/best";
constexpr char kNotes[] = "notes.txt";
constexpr char kNotesText[] = "not the library's";

// The facts about a job over all its runs.
struct Job {
  explicit Job(bool can_exchange, bool has_notes)
      : disk(std::make_shared<SimDisk>(SimDiskOptions{.can_exchange = can_exchange})) {
    if (!has_notes) return;
    EXPECT_TRUE(write_file(*disk, join_path(kFolder, kNotes), kNotesText).ok());
  }
  // In the checkpoint, or in the one that was about to be replaced.
  bool has_notes() const {
    for (const char* ending : {"", ".tmp", ".replaced"}) {
      const auto text = read_file(*disk, join_path(absl::StrCat(kFolder, ending), kNotes));
      if (text.ok() && *text == kNotesText) return true;
    }
    return false;
  }

  std::shared_ptr<SimDisk> disk;
  std::vector<Losses> losses = std::vector<Losses>(kRanks);
  int64_t last_saved = 0;
  int64_t resumed_at = 0;
  std::string error;  // of the last run
  bool fired = false;
};

void run(Job& job, TrainingOptions options, std::vector<FileFault> faults, uint64_t seed) {
  Cluster cluster("1x2", {.seed = seed, .disk = job.disk, .file_faults = std::move(faults)});
  std::vector<int64_t> resumed_at(kRanks);
  int64_t saved = job.last_saved;
  job.error.clear();
  try {
    cluster.run_on_every_rank([&](Rank& rank) {
      TrainingOptions own = options;
      own.on_step = [&](int64_t step, double loss) {
        const auto [known, is_new] = job.losses[rank.index()].emplace(step, loss);
        EXPECT_TRUE(is_new || known->second == loss) << "step " << step << " went another way";
      };
      own.on_saved = [&](int64_t step) { saved = std::max(saved, step); };
      const TrainingResult result = train(own);
      job.losses[rank.index()][0] = result.losses.at(0);
      resumed_at[rank.index()] = result.resumed_at;
    });
  } catch (const simulator::ClusterError& error) {
    job.error = error.what();
  }
  job.fired = !cluster.fired_file_faults().empty();
  job.resumed_at = resumed_at[0];
  job.last_saved = saved;
}

struct Sweep {
  const char* name;
  FileFault fault;  // rank and operation are filled in
  // Fails in the second run, which resumes and goes on, instead of the first.
  bool in_resumed_run = false;
  int64_t total_limit = 1;
  bool asynchronous = false;
  // The fault is tried at one of each so many operations, and at fewer unless is_whole().
  int64_t stride = 1;
  // Saves replace each other, in a folder where a file of the user's lies.
  bool replaces = false;
  bool can_exchange = true;
  // A hook writes a file, and does not sync it.
  bool has_hook = false;
  int64_t durable_saves = std::numeric_limits<int64_t>::max();
  // Both ranks share the model by shards.
  bool is_sharded = false;
  // So many faults must have an effect, with a stride of 1.
  int64_t least_fired = 40;
};

// Neighbours are similar: the operations of a save write, sync and rename one file after the other.
constexpr int64_t kNeighbours = 5;

// Whether sweeps take all operations that they have.
bool is_whole() {
  const char* const given = std::getenv("ACCELERATE_CRASH_SWEEP");
  return given != nullptr && std::string_view(given) == "all";
}

// One of each `stride` operations, other ones in each sweep and on each rank.
std::vector<int64_t> draw_operations(std::string_view sweep, int rank, int64_t count,
                                     int64_t stride) {
  uint64_t seed = 0;
  for (const char each : sweep) seed = 31 * seed + static_cast<uint64_t>(each);
  DeterministicRandom random = DeterministicRandom::stream(seed, static_cast<uint64_t>(rank));
  std::vector<int64_t> drawn;
  for (int64_t begin = 0; begin < count; begin += stride) {
    const int64_t choices = std::min(stride, count - begin);
    drawn.push_back(begin + static_cast<int64_t>(random.below(static_cast<uint64_t>(choices))));
  }
  return drawn;
}

std::ostream& operator<<(std::ostream& out, const Sweep& sweep) { return out << sweep.name; }

// As a hook does that knows nothing of disks that forget: each rank a file.
void write_unsynced(FileSystem& files, const std::string& path) {
  const std::string text(9000, '#');
  const auto* bytes = reinterpret_cast<const std::byte*>(text.data());
  auto file = files.create(path);
  TORCH_CHECK(file.ok(), file.status().message());
  absl::Status status = (*file)->write_at(0, absl::MakeConstSpan(bytes, text.size()));
  status.Update((*file)->close());
  TORCH_CHECK(status.ok(), status.message());
}

class CrashSweep : public testing::TestWithParam<Sweep> {};

TEST_P(CrashSweep, TheLastCompleteCheckpointIsThereAndTrainingGoesOn) {
  const Sweep& sweep = GetParam();
  TrainingOptions options{.accumulation = 3,
                          .epochs = 1,
                          .save_every = 2,
                          .total_limit = sweep.total_limit,
                          .asynchronous = sweep.asynchronous,
                          .folder = sweep.replaces ? kFolder : "",
                          .durable_saves = sweep.durable_saves};
  if (sweep.is_sharded) options.parallelism = ParallelismOptions{.dp_shard_size = kRanks};
  if (sweep.has_hook) {
    options.on_save = [](FileSystem& files, const std::string& folder) {
      const int rank = Runtime::current().topology().rank;
      write_unsynced(files, absl::StrCat(folder, "/hook_", rank, ".txt"));
    };
  }
  TrainingOptions first = options;
  if (sweep.in_resumed_run) first.stop_after = 5;
  TrainingOptions second = options;
  second.resumes = true;

  const auto begin = [&] { return Job(sweep.can_exchange, sweep.replaces); };

  Job whole = begin();
  run(whole, options, {}, 1);
  ASSERT_EQ(whole.error, "");

  // How many operations there are to fail.
  Job trial = begin();
  run(trial, first, {}, 1);
  if (sweep.in_resumed_run) run(trial, second, {}, 1);
  ASSERT_EQ(trial.error, "");
  ASSERT_EQ(trial.losses, whole.losses);

  const int64_t stride = is_whole() ? sweep.stride : std::max(sweep.stride, kNeighbours);
  int points = 0, fired = 0, died = 0, lost = 0;
  for (int rank = 0; rank < kRanks; ++rank) {
    for (const int64_t operation :
         draw_operations(sweep.name, rank, trial.disk->operations(rank), stride)) {
      FileFault fault = sweep.fault;
      fault.rank = rank;
      fault.operation = operation;
      SCOPED_TRACE(fault.to_string());
      Job job = begin();
      // The same order of ranks as in the trial, so that operations are the same.
      if (sweep.in_resumed_run) {
        run(job, first, {}, 1);
        ASSERT_EQ(job.error, "");
        run(job, second, {fault}, 1);
      } else {
        run(job, first, {fault}, 1);
      }
      ++points;
      // Not every operation writes, or reads.
      EXPECT_TRUE(job.fired || fault.kind == FileFaultKind::kBitFlip ||
                  fault.kind == FileFaultKind::kDiskFull);
      fired += job.fired ? 1 : 0;
      died += job.error.empty() ? 0 : 1;
      const int64_t last_saved = job.last_saved;
      const bool lost_notes = sweep.replaces && !job.has_notes();
      run(job, second, {}, 2);
      const bool is_lost = lost_notes || (sweep.replaces && !job.has_notes()) || job.error != "" ||
                           job.losses != whole.losses ||
                           (!sweep.fault.on_medium && job.resumed_at < last_saved);
      lost += is_lost ? 1 : 0;
      EXPECT_FALSE(is_lost) << "saved after " << last_saved << ", resumed after " << job.resumed_at
                            << ". " << job.error;
    }
  }
  std::cout << "crash sweep, " << sweep.name << ": " << points << " operations, " << fired
            << " failed, " << died << " runs died, " << lost << " losses\n";
  // What is drawn has as many of those that write, or read, as there are, or some fewer.
  EXPECT_GT(fired, sweep.least_fired / stride / (is_whole() ? 1 : 2));
  EXPECT_EQ(lost, 0);
}

constexpr FileFaultKind kMachineDies = FileFaultKind::kMachineDies;

INSTANTIATE_TEST_SUITE_P(
    Faults, CrashSweep,
    testing::Values(
        Sweep{"RankDies", {.kind = FileFaultKind::kRankDies}},
        Sweep{"MachineDies", {.kind = kMachineDies}},
        Sweep{"MachineDiesAndSomeIsLost", {.kind = kMachineDies, .unsynced = Unsynced::kDrawn}},
        Sweep{"MachineDiesAndAllIsKept", {.kind = kMachineDies, .unsynced = Unsynced::kKept}},
        Sweep{"TornWrite", {.kind = FileFaultKind::kTornWrite, .unsynced = Unsynced::kDrawn}},
        Sweep{"DiskFull", {.kind = FileFaultKind::kDiskFull}},
        Sweep{"InputOutputError", {.kind = FileFaultKind::kInputOutputError}},
        Sweep{"RankDiesResuming", {.kind = FileFaultKind::kRankDies}, true},
        Sweep{"MachineDiesResuming", {.kind = kMachineDies, .unsynced = Unsynced::kDrawn}, true},
        Sweep{"BitFlip", {.kind = FileFaultKind::kBitFlip}, true},
        Sweep{"BitFlipOnMedium", {.kind = FileFaultKind::kBitFlip, .on_medium = true}, true, 2},
        Sweep{"RankDiesBehindTraining", {.kind = FileFaultKind::kRankDies}, false, 1, true},
        Sweep{"MachineDiesBehindTraining",
              {.kind = kMachineDies, .unsynced = Unsynced::kDrawn},
              false,
              1,
              true},
        Sweep{.name = "DiskFullBehindTraining",
              .fault = {.kind = FileFaultKind::kDiskFull},
              .asynchronous = true,
              .stride = 3},
        Sweep{.name = "TornWriteBehindTraining",
              .fault = {.kind = FileFaultKind::kTornWrite, .unsynced = Unsynced::kDrawn},
              .asynchronous = true,
              .stride = 3},
        Sweep{.name = "RankDiesReplacing",
              .fault = {.kind = FileFaultKind::kRankDies},
              .stride = 2,
              .replaces = true},
        Sweep{.name = "MachineDiesReplacing",
              .fault = {.kind = kMachineDies, .unsynced = Unsynced::kDrawn},
              .stride = 2,
              .replaces = true},
        Sweep{.name = "InputOutputErrorReplacing",
              .fault = {.kind = FileFaultKind::kInputOutputError},
              .stride = 2,
              .replaces = true},
        Sweep{.name = "MachineDiesReplacingBehindTraining",
              .fault = {.kind = kMachineDies, .unsynced = Unsynced::kLost},
              .asynchronous = true,
              .stride = 3,
              .replaces = true},
        Sweep{.name = "RankDiesReplacingWithoutExchange",
              .fault = {.kind = FileFaultKind::kRankDies},
              .replaces = true,
              .can_exchange = false},
        Sweep{.name = "MachineDiesReplacingWithoutExchange",
              .fault = {.kind = kMachineDies, .unsynced = Unsynced::kDrawn},
              .replaces = true,
              .can_exchange = false},
        Sweep{.name = "MachineDiesAndHooksSyncNothing",
              .fault = {.kind = kMachineDies, .unsynced = Unsynced::kLost},
              .stride = 4,
              .has_hook = true},
        Sweep{.name = "MachineDiesAndHooksSyncNothingReplacing",
              .fault = {.kind = kMachineDies, .unsynced = Unsynced::kDrawn},
              .stride = 4,
              .replaces = true,
              .has_hook = true},
        Sweep{.name = "MachineDiesAndLaterSavesAreNotDurable",
              .fault = {.kind = kMachineDies, .unsynced = Unsynced::kDrawn},
              .stride = 4,
              .durable_saves = 1},
        Sweep{.name = "MachineDiesAndLaterSavesAreLost",
              .fault = {.kind = kMachineDies, .unsynced = Unsynced::kLost},
              .stride = 4,
              .durable_saves = 1},
        Sweep{.name = "RankDiesWithShards",
              .fault = {.kind = FileFaultKind::kRankDies},
              .is_sharded = true},
        Sweep{.name = "MachineDiesWithShards",
              .fault = {.kind = kMachineDies, .unsynced = Unsynced::kDrawn},
              .stride = 2,
              .is_sharded = true},
        Sweep{.name = "TornWriteWithShards",
              .fault = {.kind = FileFaultKind::kTornWrite, .unsynced = Unsynced::kDrawn},
              .stride = 2,
              .is_sharded = true},
        Sweep{.name = "DiskFullWithShards",
              .fault = {.kind = FileFaultKind::kDiskFull},
              .stride = 2,
              .is_sharded = true},
        Sweep{.name = "BitFlipWithShards",
              .fault = {.kind = FileFaultKind::kBitFlip},
              .in_resumed_run = true,
              .stride = 2,
              .is_sharded = true},
        Sweep{.name = "BitFlipOnMediumWithShards",
              .fault = {.kind = FileFaultKind::kBitFlip, .on_medium = true},
              .in_resumed_run = true,
              .total_limit = 2,
              .stride = 2,
              .is_sharded = true,
              // Few of the operations read.
              .least_fired = 20},
        Sweep{.name = "MachineDiesBehindTrainingWithShards",
              .fault = {.kind = kMachineDies, .unsynced = Unsynced::kDrawn},
              .asynchronous = true,
              .stride = 3,
              .is_sharded = true},
        Sweep{.name = "RankDiesReplacingWithShards",
              .fault = {.kind = FileFaultKind::kRankDies},
              .stride = 3,
              .replaces = true,
              .is_sharded = true}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace accelerate::checkpoint_tests
