#include "simulator/disk/sim_files.h"

#include <unistd.h>

#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "accelerate/testing/file_contract/file_system_contract.h"
#include "simulator/disk/overlay_files.h"

namespace accelerate::simulator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

absl::Span<const std::byte> bytes_of(std::string_view text) {
  return absl::MakeConstSpan(reinterpret_cast<const std::byte*>(text.data()), text.size());
}

std::string text_of(absl::Span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// A disk that takes no time.
std::shared_ptr<DiskQueue> no_time() {
  return std::make_shared<DiskQueue>(DiskModel{}, DiskQueue::Hooks{});
}

// Two ranks' views of one disk, for one run.
struct Machine {
  explicit Machine(std::vector<FileFault> faults, uint64_t seed = 0,
                   std::shared_ptr<SimDisk> left = std::make_shared<SimDisk>(),
                   std::shared_ptr<DiskQueue> time = no_time())
      : disk(std::move(left)),
        plan(std::make_shared<FaultPlan>(std::move(faults), 2, seed, disk, FaultPlan::Hooks{})),
        queue(std::move(time)),
        files{{0, disk, plan, queue}, {1, disk, plan, queue}} {}

  std::shared_ptr<SimDisk> disk;
  std::shared_ptr<FaultPlan> plan;
  std::shared_ptr<DiskQueue> queue;
  SimFiles files[2];
};

// The message of a rank's death; empty if it is alive.
std::string death_of(const Machine& machine, int rank) {
  try {
    machine.plan->check_alive(rank);
  } catch (const RankKilled& killed) {
    return killed.what();
  }
  return "";
}

std::string get(SimDisk& disk, const std::string& path) {
  const absl::StatusOr<std::string> contents = read_file(disk, path);
  return contents.ok() ? *contents : absl::StatusCodeToString(contents.status().code());
}

TEST(SimFiles, CountsEachRanksOperationsOnTheDisk) {
  Machine machine({});
  SimFiles& files = machine.files[1];
  auto file = files.create("/sim/file");                  // 0
  EXPECT_TRUE((*file)->write_at(0, bytes_of("x")).ok());  // 1
  EXPECT_TRUE((*file)->sync().ok());                      // 2
  EXPECT_TRUE((*file)->close().ok());                     // 3
  EXPECT_TRUE(files.info("/sim/file").ok());              // 4
  EXPECT_TRUE(files.list("/sim").ok());                   // 5
  EXPECT_TRUE(files.sync_directory("/sim").ok());         // 6
  auto reader = files.open("/sim/file");                  // 7
  EXPECT_EQ((*reader)->size(), 1);
  EXPECT_TRUE((*reader)->map().ok());                            // 8
  EXPECT_TRUE(files.make_directories("/sim/a").ok());            // 9
  EXPECT_TRUE(files.rename("/sim/file", "/sim/b").ok());         // 10
  EXPECT_TRUE(files.exchange("/sim/a", "/sim/b").ok());          // 11
  EXPECT_FALSE(files.remove("/sim/missing").ok());               // 12
  EXPECT_FALSE(files.info(::testing::TempDir() + "none").ok());  // not the disk's
  std::byte byte;
  EXPECT_TRUE((*reader)->read_at(0, {&byte, 1}).ok());  // 13
  EXPECT_EQ(machine.disk->operations(1), 14);
  EXPECT_EQ(machine.disk->operations(0), 0);
  EXPECT_EQ(machine.disk->operations(7), 0);
}

TEST(SimFiles, KillsARankAtEachOfItsOperations) {
  auto program = [](SimFiles& files) { return write_file(files, "/sim/a/file", "text"); };
  Machine sound({});
  ASSERT_TRUE(program(sound.files[1]).ok());
  const int64_t operations = sound.disk->operations(1);
  EXPECT_EQ(operations, 10);
  for (int64_t operation = 0; operation < operations; ++operation) {
    Machine machine({{.rank = 1, .operation = operation}});
    EXPECT_TRUE(absl::IsAborted(program(machine.files[1])));
    const std::string death = death_of(machine, 1);
    EXPECT_THAT(death, HasSubstr("rank 1 was killed by a file fault at its operation " +
                                 std::to_string(operation) + ": "));
    EXPECT_TRUE(machine.plan->is_dead(1));
    EXPECT_FALSE(machine.plan->is_dead(0));
    EXPECT_THAT(machine.plan->fired(), ElementsAre(HasSubstr(death.substr(death.rfind(": ")))));
    // A dead rank's last write stays; its last rename has not happened.
    EXPECT_EQ(get(*machine.disk, "/sim/a/file"), operation < 9 ? "NOT_FOUND" : "text");
    EXPECT_TRUE(machine.files[0].list("/sim").ok());
  }
}

TEST(SimFiles, LetsADeadRankDoNothingWhateverItCatches) {
  Machine machine({{.rank = 0, .operation = 2}});
  SimFiles& files = machine.files[0];
  auto file = files.create("/sim/file");
  ASSERT_TRUE((*file)->write_at(0, bytes_of("old")).ok());
  const absl::Status fatal = (*file)->sync();
  EXPECT_TRUE(absl::IsAborted(fatal)) << fatal;
  EXPECT_EQ(fatal.message(),
            "rank 0 was killed by a file fault at its operation 2: sync /sim/file");
  EXPECT_TRUE(absl::IsAborted((*file)->write_at(0, bytes_of("new"))));
  EXPECT_TRUE(absl::IsAborted((*file)->close()));
  EXPECT_TRUE(absl::IsAborted(files.remove("/sim/file")));
  EXPECT_TRUE(absl::IsAborted(files.open("/sim/file").status()));
  EXPECT_TRUE(absl::IsAborted(write_file(files, "/sim/other", "text")));
  EXPECT_EQ(death_of(machine, 0), fatal.message());
  EXPECT_EQ(get(*machine.disk, "/sim/file"), "old");
  EXPECT_THAT(*machine.disk->list("/sim"), ElementsAre("file"));
  EXPECT_EQ(machine.disk->operations(0), 3);
}

TEST(SimFiles, KeepsADeadRankFromTheMachinesFilesToo) {
  const std::string path =
      ::testing::TempDir() + "/" + std::to_string(::getpid()) + "_of_a_dead_rank";
  Machine machine({{.rank = 0, .operation = 0}});
  SimFiles& files = machine.files[0];
  auto host_file = files.create(path);
  ASSERT_TRUE(host_file.ok()) << host_file.status();
  auto reader = files.open(path);
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_TRUE(absl::IsAborted(files.list("/sim").status()));
  EXPECT_TRUE(absl::IsAborted((*host_file)->write_at(0, bytes_of("text"))));
  EXPECT_TRUE(absl::IsAborted((*reader)->map().status()));
  EXPECT_TRUE(absl::IsAborted(files.remove(path)));
  HostFiles host;
  EXPECT_EQ(host.info(path)->size, 0);
  EXPECT_TRUE(host.remove(path).ok());
}

// A program that retries without end must still end.
TEST(SimFiles, ThrowsOutADeadRankThatKeepsTrying) {
  Machine machine({{.rank = 0, .operation = 0}});
  auto keep_trying = [&] {
    while (!machine.files[0].make_directories("/sim/a").ok()) {
    }
  };
  EXPECT_THROW(keep_trying(), RankKilled);
}

TEST(SimFiles, KillsTheMachineWithWhatIsNotDurable) {
  Machine machine({{.rank = 1, .operation = 0, .kind = FileFaultKind::kMachineDies}});
  ASSERT_TRUE(write_file(machine.files[0], "/sim/safe", "text").ok());
  ASSERT_TRUE(machine.files[0].make_directories("/sim/lost").ok());
  EXPECT_TRUE(absl::IsAborted(machine.files[1].list("/sim/lost").status()));
  EXPECT_EQ(death_of(machine, 1),
            "the machine died by a file fault at rank 1's operation 0: list /sim/lost");
  EXPECT_THAT(*machine.disk->list("/sim"), ElementsAre("safe"));
  EXPECT_TRUE(absl::IsAborted(machine.files[0].list("/sim").status()));
  EXPECT_THAT(death_of(machine, 0), HasSubstr("rank 1's operation 0"));
  try {
    machine.plan->check_alive(0);
    ADD_FAILURE() << "rank 0 lives";
  } catch (const RankKilled& killed) {
    EXPECT_FALSE(killed.is_cause());
  }
}

TEST(SimFiles, DrawsWhatAMachineLosesFromTheSeed) {
  auto left = [](uint64_t seed, Unsynced unsynced) {
    Machine machine(
        {{.rank = 0, .operation = 10, .kind = FileFaultKind::kMachineDies, .unsynced = unsynced}},
        seed);
    for (int i = 0; i < 20; ++i) {
      machine.files[0].make_directories("/sim/" + std::to_string(i)).IgnoreError();
    }
    return *machine.disk->list("/sim");
  };
  EXPECT_EQ(left(1, Unsynced::kDrawn), left(1, Unsynced::kDrawn));
  EXPECT_NE(left(1, Unsynced::kDrawn), left(2, Unsynced::kDrawn));
  EXPECT_THAT(left(1, Unsynced::kLost), IsEmpty());
  EXPECT_THAT(left(1, Unsynced::kKept), ::testing::SizeIs(10));
}

TEST(SimFiles, TearsAWrite) {
  auto left = [](std::optional<int64_t> bytes, uint64_t seed = 0) {
    Machine machine({{.operation = 5, .kind = FileFaultKind::kTornWrite, .bytes = bytes}}, seed);
    SimFiles& files = machine.files[0];
    auto file = files.create("/sim/file");
    EXPECT_TRUE(files.sync_directory("/sim").ok());
    EXPECT_TRUE((*file)->write_at(0, bytes_of("durable ")).ok());
    EXPECT_TRUE((*file)->sync().ok());
    EXPECT_TRUE((*file)->write_at(12, bytes_of("lost")).ok());
    EXPECT_TRUE(absl::IsAborted((*file)->write_at(8, bytes_of("torn"))));
    EXPECT_THAT(death_of(machine, 0),
                HasSubstr(" of 4 bytes, at rank 0's operation 5: write_at /sim/file"));
    return get(*machine.disk, "/sim/file");
  };
  EXPECT_EQ(left(0), "durable ");
  EXPECT_EQ(left(3), "durable tor");
  EXPECT_EQ(left(4), "durable torn");
  EXPECT_EQ(left(100), "durable torn");
  std::set<std::string> drawn;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    drawn.insert(left({}, seed));
    EXPECT_EQ(left({}, seed), left({}, seed));
  }
  EXPECT_EQ(drawn.size(), 5);
}

TEST(SimFiles, KillsTheMachineWhereThereIsNoWriteToTear) {
  Machine machine({{.operation = 0, .kind = FileFaultKind::kTornWrite}});
  EXPECT_TRUE(absl::IsAborted(machine.files[0].create("/sim/file").status()));
  EXPECT_EQ(death_of(machine, 0),
            "the machine died by a file fault at rank 0's operation 0: create /sim/file");
  EXPECT_THAT(*machine.disk->list("/sim"), IsEmpty());
}

TEST(SimFiles, FillsTheDiskForAWhile) {
  Machine machine({{.operation = 2, .kind = FileFaultKind::kDiskFull, .until = 7}});
  SimFiles& files = machine.files[0];
  SimFiles& other = machine.files[1];
  auto file = files.create("/sim/file");                     // 0
  EXPECT_TRUE((*file)->write_at(0, bytes_of("fits")).ok());  // 1
  EXPECT_TRUE(other.create("/sim/in_time").ok());
  const absl::Status full = (*file)->write_at(4, bytes_of(" part of this"));  // 2
  EXPECT_TRUE(absl::IsResourceExhausted(full)) << full;
  EXPECT_THAT(full.message(), HasSubstr("/sim/file"));
  EXPECT_TRUE(absl::IsResourceExhausted((*file)->sync()));                     // 3
  EXPECT_TRUE(absl::IsResourceExhausted(files.make_directories("/sim/a/b")));  // 4
  EXPECT_TRUE(absl::IsResourceExhausted(other.create("/sim/other").status()));
  EXPECT_TRUE(absl::IsResourceExhausted((*file)->close()));  // 5
  EXPECT_TRUE(files.remove("/sim/in_time").ok());            // 6
  EXPECT_TRUE(files.create("/sim/again").ok());              // 7
  EXPECT_TRUE(other.create("/sim/other").ok());
  EXPECT_THAT(get(*machine.disk, "/sim/file"), ::testing::StartsWith("fits"));
  EXPECT_LT(get(*machine.disk, "/sim/file").size(), 17);
  EXPECT_THAT(machine.plan->fired(),
              ElementsAre("the disk was full by a file fault at rank 0's operation 2: "
                          "write_at /sim/file"));
}

TEST(SimFiles, FailsToReadAndWriteOnceOrForGood) {
  Machine machine({{.operation = 1, .kind = FileFaultKind::kInputOutputError, .until = 2},
                   {.operation = 4, .kind = FileFaultKind::kInputOutputError}});
  SimFiles& files = machine.files[0];
  auto file = files.create("/sim/file");                                 // 0
  const absl::Status lost = (*file)->write_at(0, bytes_of("not done"));  // 1
  EXPECT_TRUE(absl::IsDataLoss(lost)) << lost;
  EXPECT_THAT(lost.message(), HasSubstr("/sim/file"));
  EXPECT_TRUE((*file)->write_at(0, bytes_of("done")).ok());             // 2
  EXPECT_TRUE((*file)->close().ok());                                   // 3
  EXPECT_TRUE(absl::IsDataLoss(files.rename("/sim/file", "/sim/to")));  // 4
  EXPECT_TRUE(absl::IsDataLoss(files.list("/sim").status()));           // 5
  EXPECT_TRUE(machine.files[1].list("/sim").ok());
  EXPECT_EQ(get(*machine.disk, "/sim/file"), "done");
}

TEST(SimFiles, FlipsABitOfWhatIsRead) {
  for (const bool on_medium : {false, true}) {
    for (const bool mapped : {false, true}) {
      auto disk = std::make_shared<SimDisk>();
      ASSERT_TRUE(write_file(*disk, "/sim/file", "aaaa").ok());
      Machine machine(
          {{.operation = 1, .kind = FileFaultKind::kBitFlip, .bit = 8 + 1, .on_medium = on_medium}},
          0, disk);
      auto read = [&] {
        auto file = machine.files[0].open("/sim/file");
        if (mapped) return text_of(**(*file)->map());
        std::string text(2, ' ');
        EXPECT_TRUE(
            (*file)->read_at(1, {reinterpret_cast<std::byte*>(text.data()), text.size()}).ok());
        return "a" + text + "a";
      };
      EXPECT_EQ(read(), mapped ? "acaa" : "aaca");
      EXPECT_EQ(read(), !on_medium ? "aaaa" : mapped ? "acaa" : "aaca");
      disk->crash(Unsynced::kLost);
      EXPECT_EQ(get(*disk, "/sim/file"), !on_medium ? "aaaa" : mapped ? "acaa" : "aaca");
    }
  }
}

TEST(SimFiles, DrawsTheBitFromTheSeed) {
  auto read = [](uint64_t seed) {
    auto disk = std::make_shared<SimDisk>();
    const std::string text(1000, 'a');
    EXPECT_TRUE(write_file(*disk, "/sim/file", text).ok());
    Machine machine({{.operation = 1, .kind = FileFaultKind::kBitFlip}}, seed, disk);
    const std::string got = *read_file(machine.files[0], "/sim/file");
    int flipped = 0;
    for (size_t i = 0; i < got.size(); ++i) flipped += __builtin_popcount(got[i] ^ text[i]);
    EXPECT_EQ(flipped, 1);
    return got;
  };
  EXPECT_EQ(read(1), read(1));
  EXPECT_NE(read(1), read(2));
}

TEST(SimFiles, FlipsNothingWhereNothingIsRead) {
  Machine machine({{.operation = 0, .kind = FileFaultKind::kBitFlip},
                   {.operation = 8, .kind = FileFaultKind::kBitFlip}});
  ASSERT_TRUE(write_file(machine.files[0], "/sim/file", "text").ok());
  EXPECT_EQ(*read_file(machine.files[0], "/sim/file"), "text");
  EXPECT_THAT(machine.plan->fired(), IsEmpty());
}

TEST(SimFiles, ForgetsFaultsWhenTheRunIsOver) {
  Machine machine({{.operation = 0, .kind = FileFaultKind::kMachineDies}});
  machine.plan->end();
  EXPECT_TRUE(write_file(machine.files[0], "/sim/file", "text").ok());
  EXPECT_EQ(machine.disk->operations(0), 0);
}

// A clock of one rank, at 1 byte per ns and a latency of 100.
struct Clock {
  int64_t now_ns = 0;
  std::function<void()> meanwhile = [] {};
  std::shared_ptr<DiskQueue> queue =
      std::make_shared<DiskQueue>(DiskModel{.bytes_per_second = 1e9, .latency_ns = 100},
                                  DiskQueue::Hooks{.now_ns = [this](int) { return now_ns; },
                                                   .wait_until =
                                                       [this](int, int64_t ns) {
                                                         now_ns = ns;
                                                         meanwhile();
                                                       }});
};

TEST(SimFiles, WaitForTheDiskWhereFilesDo) {
  Clock clock;
  Machine machine({}, 0, std::make_shared<SimDisk>(), clock.queue);
  SimFiles& files = machine.files[0];
  auto file = files.create("/sim/file");
  EXPECT_TRUE((*file)->write_at(0, bytes_of(std::string(600, 'x'))).ok());
  EXPECT_TRUE((*file)->write_at(600, bytes_of(std::string(400, 'x'))).ok());
  EXPECT_EQ(clock.now_ns, 0);
  EXPECT_TRUE((*file)->sync().ok());
  EXPECT_EQ(clock.now_ns, 1100);
  EXPECT_TRUE((*file)->close().ok());
  EXPECT_TRUE(files.make_directories("/sim/a").ok());
  EXPECT_TRUE(files.rename("/sim/file", "/sim/a/file").ok());
  EXPECT_EQ(files.info("/sim/a/file")->size, 1000);
  EXPECT_EQ(clock.now_ns, 1100);
  EXPECT_TRUE(files.sync_directory("/sim/a").ok());
  EXPECT_EQ(clock.now_ns, 1200);
  auto reader = files.open("/sim/a/file");
  EXPECT_EQ(clock.now_ns, 1200);
  EXPECT_TRUE((*reader)->map().ok());
  EXPECT_EQ(clock.now_ns, 2300);
  std::byte byte;
  EXPECT_TRUE((*reader)->read_at(0, {&byte, 1}).ok());
  EXPECT_EQ(clock.now_ns, 2401);
}

TEST(SimFiles, WaitForTheDiskWhereScratchFilesDo) {
  Clock clock;
  Machine machine({}, 0, std::make_shared<SimDisk>(), clock.queue);
  auto file = machine.files[0].open_scratch("/sim/scratch");
  EXPECT_EQ(clock.now_ns, 0);
  EXPECT_TRUE((*file)->write_at(0, bytes_of(std::string(600, 'x'))).ok());
  EXPECT_EQ(clock.now_ns, 700);
  std::byte bytes[50];
  EXPECT_TRUE((*file)->read_at(0, bytes).ok());
  EXPECT_EQ(clock.now_ns, 850);
}

TEST(SimFiles, HaveTheFaultsOfADiskInScratchFilesToo) {
  Machine machine({{.operation = 0, .kind = FileFaultKind::kInputOutputError, .until = 1},
                   {.operation = 3, .kind = FileFaultKind::kInputOutputError, .until = 5},
                   {.operation = 5, .kind = FileFaultKind::kDiskFull, .until = 6},
                   {.operation = 6, .kind = FileFaultKind::kBitFlip, .bit = 1},
                   {.operation = 8, .kind = FileFaultKind::kBitFlip, .bit = 1, .on_medium = true},
                   {.operation = 10}});
  SimFiles& files = machine.files[0];
  EXPECT_TRUE(absl::IsDataLoss(files.open_scratch("/sim/scratch").status()));  // 0
  auto file = files.open_scratch("/sim/scratch");                              // 1
  EXPECT_TRUE((*file)->write_at(0, bytes_of("a")).ok());                       // 2
  const absl::Status lost = (*file)->write_at(0, bytes_of("b"));               // 3
  EXPECT_TRUE(absl::IsDataLoss(lost)) << lost;
  EXPECT_THAT(lost.message(), HasSubstr("/sim/scratch"));
  std::byte byte;
  EXPECT_TRUE(absl::IsDataLoss((*file)->read_at(0, {&byte, 1})));                  // 4
  EXPECT_TRUE(absl::IsResourceExhausted((*file)->write_at(1, bytes_of("rest"))));  // 5
  const auto get = [&] {
    EXPECT_TRUE((*file)->read_at(0, {&byte, 1}).ok());
    return text_of({&byte, 1});
  };
  EXPECT_EQ(get(), "c");                                              // 6
  EXPECT_EQ(get(), "a");                                              // 7
  EXPECT_EQ(get(), "c");                                              // 8
  EXPECT_EQ(get(), "c");                                              // 9
  EXPECT_TRUE(absl::IsAborted((*file)->write_at(0, bytes_of("x"))));  // 10
  EXPECT_TRUE(machine.plan->is_dead(0));
}

TEST(SimFiles, LosesWhatWasNotYetDurableWhenTheMachineDiedDuringTheWait) {
  for (const bool dies : {false, true}) {
    Clock clock;
    Machine machine({{.rank = 1, .operation = 0, .kind = FileFaultKind::kMachineDies}}, 0,
                    std::make_shared<SimDisk>(), clock.queue);
    SimFiles& files = machine.files[0];
    auto file = files.create("/sim/file");
    EXPECT_TRUE(files.sync_directory("/sim").ok());
    EXPECT_TRUE((*file)->write_at(0, bytes_of("text")).ok());
    if (dies) clock.meanwhile = [&] { machine.files[1].list("/sim").status().IgnoreError(); };
    const absl::Status synced = (*file)->sync();
    EXPECT_EQ(absl::IsAborted(synced), dies) << synced;
    machine.disk->crash(Unsynced::kLost);
    EXPECT_EQ(get(*machine.disk, "/sim/file"), dies ? "" : "text");
  }
}

TEST(SimFiles, KeepsTwoDisksApart) {
  Machine machine({});
  const std::string host = ::testing::TempDir() + "/" + std::to_string(::getpid()) + "_host";
  ASSERT_TRUE(write_file(machine.files[0], host, "text").ok());
  EXPECT_EQ(*read_file(machine.files[1], host), "text");
  EXPECT_TRUE(absl::IsUnimplemented(machine.files[0].rename(host, "/sim/file")));
  EXPECT_TRUE(absl::IsUnimplemented(machine.files[0].exchange("/sim", host)));
  EXPECT_TRUE(machine.files[0].remove(host).ok());
}

TEST(SimFiles, NamesNoTemporaryFileTwice) {
  Machine machine({});
  for (const char* path : {"/sim/file", "/elsewhere/file"}) {
    EXPECT_NE(machine.files[0].temporary_name(path), machine.files[1].temporary_name(path));
  }
}

TEST(FileFault, SaysWhyItCannotFire) {
  EXPECT_EQ(FileFault().problem(1), "");
  EXPECT_NE(FileFault({.rank = 2}).problem(2), "");
  EXPECT_NE(FileFault({.rank = -1}).problem(2), "");
  EXPECT_NE(FileFault({.operation = -1}).problem(2), "");
  EXPECT_NE(FileFault({.operation = 5, .until = 5}).problem(2), "");
  EXPECT_NE(FileFault({.bytes = -1}).problem(2), "");
  EXPECT_NE(FileFault({.bit = -1}).problem(2), "");
}

// What is on the machine's disk below a folder, with the contents of files.
std::map<std::string, std::string> on_disk(const std::string& folder) {
  std::map<std::string, std::string> found;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    HostFiles host;
    found[entry.path().lexically_relative(folder).string()] =
        entry.is_directory() ? "(folder)" : *read_file(host, entry.path().string());
  }
  return found;
}

TEST(OverlayFiles, ChangesNothingOnTheMachine) {
  const TemporaryFolder folder;
  HostFiles host;
  for (const char* file : {"old", "kept", "c/1/x", "c/2/x", "link/y"}) {
    ASSERT_TRUE(write_file(host, folder.path(file), file).ok());
  }
  std::filesystem::create_directory_symlink(folder.path("link"), folder.path("to"));
  const auto before = on_disk(folder.path());
  OverlayFiles files;
  ASSERT_TRUE(write_file(files, folder.path("old"), "new").ok());
  ASSERT_TRUE(write_file(files, folder.path("d/e/f"), "deep").ok());
  ASSERT_TRUE(write_file(files, folder.path("to/y"), "through a link").ok());
  ASSERT_TRUE(files.rename(folder.path("c/1"), folder.path("c/3")).ok());
  ASSERT_TRUE(remove_all(files, folder.path("c/2")).ok());
  ASSERT_TRUE(files.exchange(folder.path("d"), folder.path("c/3/x")).ok());
  EXPECT_EQ(on_disk(folder.path()), before);
  // What the run sees.
  EXPECT_EQ(*read_file(files, folder.path("old")), "new");
  EXPECT_EQ(*read_file(files, folder.path("kept")), "kept");
  EXPECT_EQ(*read_file(files, folder.path("link/y")), "through a link");
  EXPECT_EQ(*read_file(files, folder.path("to/../link/./y")), "through a link");
  EXPECT_EQ(*read_file(files, folder.path("d")), "c/1/x");
  EXPECT_EQ(*read_file(files, folder.path("c/3/x/e/f")), "deep");
  EXPECT_THAT(*files.list(folder.path("c")), ElementsAre("3"));
  EXPECT_THAT(*files.list(folder.path()), ElementsAre("c", "d", "kept", "link", "old", "to"));
  EXPECT_FALSE(*exists(files, folder.path("c/1/x")));
  EXPECT_EQ(files.use().files, 3);
  EXPECT_EQ(files.use().bytes, 3 + 4 + 14);
  // Files that come later are seen, and those that were removed are not.
  ASSERT_TRUE(write_file(host, folder.path("c/later"), "later").ok());
  ASSERT_TRUE(write_file(host, folder.path("c/2/later"), "later").ok());
  EXPECT_EQ(*read_file(files, folder.path("c/later")), "later");
  EXPECT_FALSE(*exists(files, folder.path("c/2/later")));
}

TEST(OverlayFiles, KeepsBytesWhateverTheyRepeat) {
  OverlayFiles files;
  const std::string path = TemporaryFolder().path("file");
  ASSERT_TRUE(files.make_directories(parent_path(path)).ok());
  auto file = files.create(path);
  std::string expected;
  const auto put = [&](size_t at, const std::string& bytes) {
    ASSERT_TRUE((*file)->write_at(static_cast<int64_t>(at), bytes_of(bytes)).ok());
    if (expected.size() < at + bytes.size()) expected.resize(at + bytes.size());
    expected.replace(at, bytes.size(), bytes);
  };
  const size_t chunk = 64 << 10;
  put(0, "header, ");
  put(8, std::string(3 * chunk, '\x7f'));                // equal words, across chunks
  put(expected.size(), std::string(chunk / 2, '\x7f'));  // and on in the last one
  put(expected.size(), std::string(chunk, 'b'));
  put(2 * chunk + 100, "in the midst of words");
  put(expected.size() + chunk + 5, "behind a gap");
  put(chunk, std::string(chunk, 'c'));  // one chunk as a whole
  put(chunk + 8, "cccccccc");           // what it has already
  ASSERT_TRUE((*file)->close().ok());
  EXPECT_EQ(*read_file(files, path), expected);
  auto reader = files.open(path);
  EXPECT_EQ(text_of(**(*reader)->map()), expected);
  std::string part(chunk, ' ');
  ASSERT_TRUE(
      (*reader)->read_at(chunk / 2 + 3, {reinterpret_cast<std::byte*>(part.data()), chunk}).ok());
  EXPECT_EQ(part, expected.substr(chunk / 2 + 3, chunk));
}

TEST(FileFault, IsCxxSource) {
  EXPECT_EQ(FileFault({.rank = 1, .operation = 17}).to_string(),
            "{.rank = 1, .operation = 17, .kind = FileFaultKind::kRankDies}");
  EXPECT_EQ(FileFault({.kind = FileFaultKind::kTornWrite, .unsynced = Unsynced::kDrawn, .bytes = 3})
                .to_string(),
            "{.rank = 0, .operation = 0, .kind = FileFaultKind::kTornWrite, .unsynced = "
            "Unsynced::kDrawn, .bytes = 3}");
}

}  // namespace
}  // namespace accelerate::simulator

namespace accelerate::testing {

// A rank's files on a simulated disk, or in memory above the machine's.
FileSystemUnderTest files_of_a_rank(const std::string& name, bool on_disk,
                                    const std::string& folder) {
  return {.name = name, .make = [=] {
            auto disk = on_disk ? std::make_shared<simulator::SimDisk>() : nullptr;
            auto in_memory = on_disk ? nullptr : std::make_shared<simulator::OverlayFiles>();
            auto plan = std::make_shared<simulator::FaultPlan>(
                std::vector<simulator::FileFault>(), 1, 0, disk, simulator::FaultPlan::Hooks{});
            auto files = std::make_shared<simulator::SimFiles>(0, disk, plan, simulator::no_time(),
                                                               in_memory);
            EXPECT_TRUE(files->make_directories(folder).ok());
            return std::pair<std::shared_ptr<FileSystem>, std::string>(std::move(files), folder);
          }};
}

INSTANTIATE_TEST_SUITE_P(SimRank, FileSystemContract,
                         ::testing::Values(files_of_a_rank("files", true, "/sim"),
                                           files_of_a_rank("in_memory", false, "/no/such/folder")),
                         file_system_name);

}  // namespace accelerate::testing
