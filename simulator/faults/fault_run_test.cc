// When rules fire, for whom, and how long they last.
#include "simulator/faults/fault_run.h"

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "simulator/faults/kinds.h"

namespace accelerate::simulator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

FaultGrounds grounds(int nodes = 2, int ranks_per_node = 4) {
  return {.world_size = nodes * ranks_per_node,
          .ranks_per_node = ranks_per_node,
          .seed = 7,
          .has_devices = true,
          .has_simulated_disk = true,
          .has_shared_disk = true,
          .disk_takes_time = true};
}

FaultRun run_of(const std::string& plan, const FaultGrounds& on = grounds()) {
  const FaultRules rules = FaultRules::parse(plan).value();
  EXPECT_EQ(problem_on(rules, on), "");
  return FaultRun(rules, on);
}

// The numbers of the sites, of the first `count`, at which something fires.
std::vector<int> fires(FaultRun& run, int rank, Site site, int count,
                       const std::string& words = "") {
  std::vector<int> numbers;
  for (int number = 0; number < count; ++number) {
    if (!run.reach(rank, site, words, /*now_ns=*/0).empty()) numbers.push_back(number);
  }
  return numbers;
}

std::vector<int> steps_that_fire(FaultRun& run, int rank, int count) {
  std::vector<int> steps;
  if (!run.progress(rank, FaultPoint::Kind::kStart, 0).empty()) steps.push_back(0);
  for (int step = 1; step < count; ++step) {
    if (!run.progress(rank, FaultPoint::Kind::kStep, 0).empty()) steps.push_back(step);
  }
  return steps;
}

TEST(FaultRun, CountsTheSitesOfEachRankFromZero) {
  FaultRun run = run_of("rank 2-3 at collective#3: crash");
  EXPECT_THAT(fires(run, 1, Site::kCollective, 9), IsEmpty());
  EXPECT_THAT(fires(run, 2, Site::kStore, 9), IsEmpty());
  EXPECT_THAT(fires(run, 2, Site::kCollective, 9), ElementsAre(3));
  EXPECT_THAT(fires(run, 3, Site::kCollective, 9), ElementsAre(3));
  EXPECT_EQ(run.counts(2).of(Site::kStore), 9);
}

TEST(FaultRun, CountsOnlySitesWhoseWordsMatch) {
  FaultRun run = run_of("rank 0 at op#1 of aten::m?: crash");
  EXPECT_THAT(fires(run, 0, Site::kOp, 5, "aten::add"), IsEmpty());
  EXPECT_THAT(fires(run, 0, Site::kOp, 5, "aten::mm"), ElementsAre(1));
}

TEST(FaultRun, RepeatsEverySoManySitesAndSteps) {
  FaultRun sites = run_of("rank 0 every 3 files from file#2: io_error for 1 file at most 2");
  EXPECT_THAT(fires(sites, 0, Site::kFile, 20), ElementsAre(4, 7));
  FaultRun steps = run_of("rank 0 every 2 steps from step 3: delay(1s)");
  EXPECT_THAT(steps_that_fire(steps, 0, 10), ElementsAre(5, 7, 9));
  FaultRun first = run_of("rank 0 at step 0: delay(1s)");
  EXPECT_THAT(steps_that_fire(first, 0, 10), ElementsAre(0));
}

TEST(FaultRun, FiresAtTheFirstSiteAtOrAfterATime) {
  FaultRun run = run_of("rank 0 at time 5us: crash; rank 0 every 10us: delay(1us)");
  EXPECT_THAT(run.reach(0, Site::kStore, "", 4'999), IsEmpty());
  EXPECT_THAT(run.reach(0, Site::kStore, "", 6'000), SizeIs(1));
  EXPECT_THAT(run.reach(0, Site::kStore, "", 9'999), IsEmpty());
  EXPECT_THAT(run.reach(0, Site::kStore, "", 35'000), SizeIs(1));
  EXPECT_THAT(run.reach(0, Site::kStore, "", 39'000), IsEmpty());
  EXPECT_THAT(run.reach(0, Site::kStore, "", 40'000), SizeIs(1));
  FaultRun later = run_of("rank 0 every 10us from time 25us: delay(1us)");
  EXPECT_THAT(later.reach(0, Site::kStore, "", 34'999), IsEmpty());
  EXPECT_THAT(later.reach(0, Site::kStore, "", 35'000), SizeIs(1));
}

TEST(FaultRun, CountsSavesAndLoadsWhereTheyBegin) {
  FaultRun run = run_of("rank 0 at save 1: crash; rank 0 every 2 loads: delay(1s)");
  const auto fires_at = [&run](FaultPoint::Kind kind, int count) {
    std::vector<int> numbers;
    for (int number = 0; number < count; ++number) {
      if (!run.progress(0, kind, 0).empty()) numbers.push_back(number);
    }
    return numbers;
  };
  EXPECT_THAT(fires_at(FaultPoint::Kind::kSave, 3), ElementsAre(1));
  EXPECT_THAT(fires_at(FaultPoint::Kind::kLoad, 5), ElementsAre(2, 4));
  EXPECT_EQ(run.counts(0).saves, 3);
  EXPECT_EQ(run.counts(0).loads, 5);
}

TEST(FaultRun, IsForWorldsFromTheLeastToTheMost) {
  for (const auto& [guard, fires_there] : std::map<std::string, bool>{{"if world >= 7", true},
                                                                      {"if world >= 8", true},
                                                                      {"if world >= 9", false},
                                                                      {"if world <= 7", false},
                                                                      {"if world <= 8", true},
                                                                      {"if world <= 9", true}}) {
    FaultRun run = run_of("rank 0 at store#0: crash " + guard);
    EXPECT_THAT(fires(run, 0, Site::kStore, 1), SizeIs(fires_there ? 1 : 0)) << guard;
  }
}

TEST(FaultRun, FollowsAnotherRule) {
  FaultRun run = run_of("a = rank 0 at store#1: delay(0); rank 3 after a + 2us: crash");
  EXPECT_THAT(run.reach(3, Site::kStore, "", 5'000), IsEmpty());
  run.reach(0, Site::kStore, "", 6'000);
  run.reach(0, Site::kStore, "", 7'000);
  EXPECT_THAT(run.reach(3, Site::kStore, "", 8'999), IsEmpty());
  EXPECT_THAT(run.reach(3, Site::kStore, "", 9'000), SizeIs(1));
  EXPECT_THAT(run.reach(3, Site::kStore, "", 9'000), IsEmpty());
  FaultRun repeated = run_of("a = rank 0 every 1 store: delay(0); rank 3 after a + 2us: crash");
  repeated.reach(0, Site::kStore, "", 6'000);
  repeated.reach(0, Site::kStore, "", 7'500);
  EXPECT_THAT(repeated.reach(3, Site::kStore, "", 8'000), SizeIs(1)) << "after its first time";
}

// The nodes, ranks and groups that a rule is for.
TEST(FaultRun, StrikesUnits) {
  FaultRun node = run_of("node 1 at store#2: crash");
  node.reach(4, Site::kStore, "", 0);
  node.reach(7, Site::kStore, "", 0);
  const std::vector<SiteFault> faults = node.reach(5, Site::kStore, "", 0);
  ASSERT_THAT(faults, SizeIs(1));
  EXPECT_THAT(faults[0].ranks, ElementsAre(4, 5, 6, 7));
  FaultRun rack = run_of("node 0-1 at step 1: lost");
  EXPECT_THAT(rack.progress(6, FaultPoint::Kind::kStep, 0).at(0).ranks, SizeIs(8));
  FaultRun steps = run_of("node 1 every 2 steps: slow(0.5) for 1 step");
  int fired = 0;
  for (int step = 0; step < 4; ++step) {
    for (int rank = 4; rank < 8; ++rank) {
      fired += static_cast<int>(steps.progress(rank, FaultPoint::Kind::kStep, 0).size());
    }
  }
  EXPECT_EQ(fired, 2);
  FaultRun alone = run_of("node 1 at store#0: hang");
  EXPECT_THAT(alone.reach(4, Site::kStore, "", 0).at(0).ranks, ElementsAre(4));
  EXPECT_THAT(alone.reach(5, Site::kStore, "", 0).at(0).ranks, ElementsAre(5));
  FaultRun store = run_of("store at store#2: gone");
  EXPECT_THAT(store.reach(1, Site::kStore, "", 0), IsEmpty());
  EXPECT_THAT(store.reach(7, Site::kStore, "", 0), IsEmpty());
  EXPECT_THAT(store.reach(3, Site::kStore, "", 0), SizeIs(1));
  FaultRun group = run_of("group \"dp\" at collective#1: hang");
  EXPECT_THAT(fires(group, 2, Site::kCollective, 3, "all_reduce of tp"), IsEmpty());
  EXPECT_THAT(fires(group, 2, Site::kCollective, 3, "all_reduce of dp"), ElementsAre(1));
}

TEST(FaultRun, FindsRanksByTheirPlacesInAMesh) {
  FaultGrounds on = grounds();
  on.mesh_size = [](MeshAxis axis) { return axis == MeshAxis::kTp ? 4 : 2; };
  on.coordinate = [](int rank, MeshAxis axis) {
    return axis == MeshAxis::kTp ? rank % 4 : rank / 4;
  };
  const FaultRules rules = FaultRules::parse("rank pp=1 tp=0,3 at start: crash").value();
  EXPECT_THAT(ranks_touched(rules, on), ElementsAre(4, 7));
}

// Neither the order nor the number of other rules changes what a rule draws.
TEST(FaultRun, DrawsFromAStreamOfEachRule) {
  const std::string rule = "rank * with 0.3 at store: delay(0..5ms)";
  FaultRun alone = run_of(rule);
  FaultRun behind = run_of(absl::StrCat("rank any with 0.5 at store: hang; ", rule));
  for (int rank = 0; rank < 8; ++rank) {
    for (int i = 0; i < 50; ++i) {
      std::vector<uint64_t> drawn[2];
      for (SiteFault& fault : alone.reach(rank, Site::kStore, "", 0)) {
        drawn[0].push_back(fault.random.next());
      }
      for (SiteFault& fault : behind.reach(rank, Site::kStore, "", 0)) {
        if (fault.rule == 1) drawn[1].push_back(fault.random.next());
      }
      EXPECT_EQ(drawn[0], drawn[1]);
    }
  }
  const int64_t fired = alone.outcomes(0).at(0).fired;
  EXPECT_GT(fired, 80);
  EXPECT_LT(fired, 160);
  FaultGrounds other = grounds();
  other.seed = 8;
  const FaultRules any = FaultRules::parse("rank any 3 at start: crash").value();
  EXPECT_THAT(ranks_touched(any, grounds()), SizeIs(3));
  EXPECT_NE(ranks_touched(any, grounds()), ranks_touched(any, other));
}

TEST(FaultRun, LastsAsLongAsItSays) {
  FaultRun time = run_of("rank 0 at time 10ns: skew(5s, 1000000.0ppm) for 20ns");
  time.reach(0, Site::kStore, "", 15);
  EXPECT_EQ(time.skew_ns(0, 9), 0);
  EXPECT_EQ(time.skew_ns(0, 29), 5'000'000'019);
  EXPECT_EQ(time.skew_ns(0, 30), 0);
  EXPECT_EQ(time.skew_ns(1, 29), 0);
  FaultRun steps = run_of("node 0 at step 1: slow(0.5) for 2 steps");
  EXPECT_EQ(steps.speed(1, 0, /*of_disk=*/false), 1);
  steps.progress(1, FaultPoint::Kind::kStep, 0);
  EXPECT_EQ(steps.speed(3, 0, /*of_disk=*/false), 0.5);
  EXPECT_EQ(steps.speed(3, 0, /*of_disk=*/true), 1);
  steps.progress(1, FaultPoint::Kind::kStep, 0);
  EXPECT_EQ(steps.speed(1, 0, /*of_disk=*/false), 0.5);
  steps.progress(1, FaultPoint::Kind::kStep, 0);
  EXPECT_EQ(steps.speed(1, 0, /*of_disk=*/false), 1);
  FaultRun curve = run_of("rank 0 at time 0: slow(0.5 by 100ns)");
  curve.reach(0, Site::kStore, "", 0);
  EXPECT_EQ(curve.speed(0, 50, /*of_disk=*/false), 0.75);
  EXPECT_EQ(curve.speed(0, 500, /*of_disk=*/false), 0.5);
  FaultRun files = run_of("disk at file#1: full for 2 files");
  std::vector<bool> full;
  for (int i = 0; i < 5; ++i) {
    files.reach(2, Site::kFile, "", 0);
    full.push_back(!files.lasting(FaultKind::kFull, 6, 0).empty());
  }
  EXPECT_THAT(full, ElementsAre(false, true, true, false, false));
  // The operations of all ranks with the disk count, and those of one rank where it is named.
  const auto refused = [](const std::string& rule) {
    FaultRun run = run_of(rule);
    std::vector<bool> refused;
    for (const int rank : {2, 6, 2, 6}) {
      run.reach(rank, Site::kFile, "", 10);
      refused.push_back(!run.lasting(FaultKind::kIoError, rank, 10).empty());
    }
    return refused;
  };
  EXPECT_THAT(refused("disk at file#0: io_error for 2 files"),
              ElementsAre(true, true, false, false));
  EXPECT_THAT(refused("rank 2 at file#0: io_error for 2 files"),
              ElementsAre(true, false, true, false));
  // Between operations none has been counted for the fault yet.
  FaultRun timed = run_of("rank 2 at time 5ns: io_error for 1 file");
  timed.reach(2, Site::kStore, "", 5);
  timed.reach(2, Site::kFile, "", 6);
  EXPECT_THAT(timed.lasting(FaultKind::kIoError, 2, 6), SizeIs(1));
  timed.reach(2, Site::kFile, "", 7);
  EXPECT_THAT(timed.lasting(FaultKind::kIoError, 2, 7), IsEmpty());
}

// A shared disk is that of all ranks, and a node's own disk that of its ranks.
TEST(FaultRun, FillsTheDiskOfThoseWhoUseIt) {
  for (const bool is_shared : {true, false}) {
    FaultGrounds on = grounds();
    on.has_shared_disk = is_shared;
    FaultRun node = run_of("disk of node 1 at file#1: full", on);
    node.reach(6, Site::kFile, "", 0);
    EXPECT_THAT(node.reach(7, Site::kFile, "", 0), SizeIs(1));
    for (const int rank : {4, 7}) {
      EXPECT_THAT(node.lasting(FaultKind::kFull, rank, 0), SizeIs(1)) << rank;
    }
    EXPECT_THAT(node.lasting(FaultKind::kFull, 3, 0), SizeIs(is_shared ? 1 : 0));
    FaultRun every = run_of("disk at file#0: io_error", on);
    for (const int rank : {0, 1, 4, 5}) every.reach(rank, Site::kFile, "", 0);
    EXPECT_EQ(every.outcomes(0).at(0).fired, is_shared ? 1 : 2) << "once a disk";
  }
}

// A file that the fault strikes counts; where it begins elsewhere, the next one is the first.
TEST(FaultRun, CountsTheFilesFromWhereItBegins) {
  FaultRun run = run_of("rank 0 at step 1: io_error for 2 files");
  run.progress(0, FaultPoint::Kind::kStep, 0);
  std::vector<bool> fails;
  for (int i = 0; i < 4; ++i) {
    run.reach(0, Site::kFile, "", 0);
    fails.push_back(!run.lasting(FaultKind::kIoError, 0, 0).empty());
  }
  EXPECT_THAT(fails, ElementsAre(true, true, false, false));
}

// The bound is of the rule, not of each rank that has it.
TEST(FaultRun, FiresAtMostSoOftenOnAllRanksTogether) {
  FaultRun run = run_of("rank * every 1 store: delay(0) at most 3");
  std::vector<size_t> struck;
  for (int rank = 0; rank < 5; ++rank) {
    struck.push_back(run.reach(rank, Site::kStore, "", 0).size());
  }
  EXPECT_THAT(struck, ElementsAre(1, 1, 1, 0, 0));
  EXPECT_EQ(run.outcomes(0).at(0).fired, 3);
}

TEST(FaultRun, StrikesANodeAsAWholeOrItsRanksOneByOne) {
  for (const char* kind : {"crash", "terminate", "slow(0.5)", "shrink(1GiB)", "skew(1s)"}) {
    FaultRun node = run_of(absl::StrCat("node 1 at store#0: ", kind));
    EXPECT_THAT(node.reach(5, Site::kStore, "", 0).at(0).ranks, ElementsAre(4, 5, 6, 7)) << kind;
    EXPECT_THAT(node.reach(6, Site::kStore, "", 0), IsEmpty()) << kind;
    FaultRun cluster = run_of(absl::StrCat("cluster at store#0: ", kind));
    EXPECT_THAT(cluster.reach(5, Site::kStore, "", 0).at(0).ranks, SizeIs(8)) << kind;
  }
  for (const char* kind : {"hang", "delay(1ms)"}) {
    for (const char* place : {"node 1", "cluster"}) {
      FaultRun run = run_of(absl::StrCat(place, " at store#0: ", kind));
      for (const int rank : {5, 6}) {
        EXPECT_THAT(run.reach(rank, Site::kStore, "", 0).at(0).ranks, ElementsAre(rank)) << kind;
      }
    }
  }
}

TEST(FaultRun, SeveralThatLastActTogether) {
  FaultRun slow = run_of("rank 0 at start: slow(0.5); node 0 at start: slow(0.25)");
  slow.progress(0, FaultPoint::Kind::kStart, 0);
  EXPECT_EQ(slow.speed(0, 0, /*of_disk=*/false), 0.125);
  EXPECT_EQ(slow.speed(1, 0, /*of_disk=*/false), 0.25);
  FaultRun skew = run_of("node 0 at start: skew(-2s); rank 0 at start: skew(5s)");
  skew.progress(0, FaultPoint::Kind::kStart, 0);
  EXPECT_EQ(skew.skew_ns(0, 0), 3'000'000'000);
  EXPECT_EQ(skew.skew_ns(1, 0), -2'000'000'000);
}

TEST(FaultRun, ListsTheFirstTenPlacesThatItStruck) {
  FaultRun run = run_of("rank 0 every 1 store: delay(0)");
  for (int number = 0; number < 10; ++number) run.reach(0, Site::kStore, "", 0);
  EXPECT_THAT(run.outcomes(0)[0].struck, SizeIs(10));
  EXPECT_THAT(run.outcomes(0)[0].to_string(), HasSubstr("store#9, 0, and touched nothing"));
  for (int number = 0; number < 2; ++number) run.reach(0, Site::kStore, "", 0);
  EXPECT_EQ(run.outcomes(0)[0].fired, 12);
  EXPECT_THAT(run.outcomes(0)[0].struck, SizeIs(10));
  EXPECT_THAT(run.outcomes(0)[0].to_string(), HasSubstr("; ..., and touched nothing"));
}

TEST(FaultRun, SaysWhatItTouchedAndWhyItDidNotFire) {
  FaultRun run = run_of(
      "rank 0 at store#1: delay(0); rank 2 at collective#40: crash; rank 1 at step 3: crash; rank "
      "1 "
      "at time 5s: crash; rank 0 at start: crash if world >= 100");
  run.reach(0, Site::kStore, "get a", 0);
  run.reach(0, Site::kStore, "get b", 1'500);
  run.touched(0, 3);
  run.reach(2, Site::kCollective, "", 0);
  const std::vector<FaultOutcome> outcomes = run.outcomes(2'000'000'000);
  EXPECT_EQ(outcomes[0].to_string(),
            "\"rank 0 at store#1: delay(0..0)\" fired once, rank 0 at store#1 (get b), 1500ns, and "
            "touched 3");
  EXPECT_EQ(outcomes[1].to_string(),
            "\"rank 2 at collective#40: crash\" did not fire: rank 2 came to collective 1 time");
  EXPECT_THAT(outcomes[2].unfired, HasSubstr("rank 1 made 0 steps; a step is that of"));
  EXPECT_THAT(outcomes[3].unfired, HasSubstr("the run ended at 2s"));
  EXPECT_EQ(outcomes[4].unfired, "");
}

// Groups and words are known when the run has come to them.
TEST(FaultRun, NamesTheGroupsAndTheWordsThatNeverCame) {
  const auto unfired = [](const std::string& rule, const std::vector<std::string>& groups) {
    FaultRun run = run_of(rule);
    for (const std::string& group : groups) {
      run.reach(2, Site::kGroup, group, 0);
      run.reach(2, Site::kCollective, absl::StrCat("all_reduce of ", group), 0);
      run.reach(2, Site::kCollective, absl::StrCat("barrier of ", group), 0);
    }
    return run.outcomes(0).at(0).unfired;
  };
  EXPECT_EQ(unfired("group \"wrold\" at collective#1: hang", {"world", "tp"}),
            "there was no group \"wrold\"; did you mean \"world\"?");
  EXPECT_EQ(unfired("group \"elsewhere\" at collective#1: hang", {"dp", "tp"}),
            "there was no group \"elsewhere\"; one of dp, tp");
  EXPECT_EQ(unfired("group \"dp\" at collective#1: hang", {}),
            "there was no group \"dp\"; ranks made none");
  // The rank that came closest is named.
  for (const char* group : {"world", "w*"}) {
    EXPECT_EQ(unfired(absl::StrCat("group \"", group, "\" at collective#2: hang"), {"world"}),
              "rank 2 came to collective 2 times");
  }
  for (const char* when : {"at collective#1", "every 1 collective", "with 1.0 at collective"}) {
    EXPECT_EQ(
        unfired(absl::StrCat("rank 2 ", when, " of \"all_redcue of world\": hang"), {"world"}),
        "rank 2 came to collective 0 times with these words; did you mean all_reduce of world?")
        << when;
  }
  EXPECT_EQ(unfired("rank 2 at collective#1 of \"all_reduce *\": hang", {"world"}),
            "rank 2 came to collective 1 time with these words");
  EXPECT_EQ(unfired("rank 3 at collective#0 of \"all_reduce *\": hang", {"world"}),
            "rank 3 came to collective 0 times with these words");
}

TEST(FaultRun, NamesWhatTheClusterDoesNotHave) {
  FaultGrounds bare = {.world_size = 8, .ranks_per_node = 4};
  const std::map<std::string, std::string> expected = {
      {"rank 9 at start: crash", "there is no rank 9: the cluster has 8 ranks, from 0 on"},
      {"node 2 at start: crash", "there is no node 2: the cluster has 2 nodes"},
      {"disk of node 5 at file#1: io_error", "there is no node 5"},
      {"rank any 9 at start: crash", "it draws 9 ranks, and the cluster has 8"},
      {"rank tp=0 at start: crash", "this run has no mesh"},
      {"rank 1 at op#3: crash", "ranks come to op on devices, and the cluster names none"},
      {"rank 1 at start: slow(0.5)", "work takes no time in this run"},
      {"rank 1 at start: shrink(1GiB)", "the cluster names no device"},
      {"disk at file#1: torn", "torn damages files, and the files of this run are the machine's"},
      {"disk at file#1: slow(0.5)", "files take no time in this run"},
      {"node 0-1 at start: partition", "all nodes are on one side"},
      {"a = rank 0 at start: delay(1s) if world >= 16; rank 1 after a: crash",
       "can never fire: \"a\", which it follows, is for worlds of another size"},
      {"link nic of node 0 at step 3: slow(0.25)", "communication takes no time in this run"},
      {"link between node 0 and node 1 at step 3: down", "communication takes no time"},
      {"link between node 0 and node 2 at step 3: down", "there is no node 2"},
      {"link between node 3 and node 0 at step 3: down", "there is no node 3"}};
  for (const auto& [text, problem] : expected) {
    EXPECT_THAT(problem_on(FaultRules::parse(text).value(), bare), HasSubstr(problem)) << text;
  }
  EXPECT_EQ(problem_on(FaultRules::parse("rank 9 at start: crash if world >= 16").value(), bare),
            "");
}

// What no text can say has not met the parser.
TEST(FaultRun, RefusesPlansInCppThatNoTextCouldSay) {
  const FaultRule slow = {.where = on_rank(0),
                          .when = at_step(1),
                          .effects = {{.kind = FaultKind::kSlow, .number = 0.5}}};
  const auto problem = [](const FaultRule& rule) {
    return problem_on(FaultRules{.rules = {rule}}, grounds());
  };
  EXPECT_EQ(problem(slow), "");
  FaultRule wrong = slow;
  wrong.effects[0].number = 0;
  EXPECT_THAT(problem(wrong), HasSubstr("expected a factor of the speed, above 0"));
  wrong = slow;
  wrong.when = {.form = FaultWhen::Form::kAfter, .after = "nobody"};
  EXPECT_THAT(problem(wrong), HasSubstr("there is no rule \"nobody\""));
  wrong = slow;
  wrong.where.set.ranges = {{5, 3}};
  EXPECT_THAT(problem(wrong), HasSubstr("\"rank 5 at step 1: slow(0.5)\" is read as"));
  wrong.where.set.ranges = {{-1, -1}};
  EXPECT_THAT(problem(wrong), HasSubstr("expected a number, a range such as 0-3, * or any"));
  EXPECT_THAT(ranks_touched(FaultRules{.rules = {wrong}}, grounds()), IsEmpty());
  wrong = slow;
  wrong.when.point.number = -1;
  EXPECT_THAT(problem(wrong), HasSubstr("expected the number of the step"));
}

// The largest number that a rule takes is as good as never.
TEST(FaultRun, TakesTheLargestNumbers) {
  const std::string most = std::to_string(INT64_MAX);
  FaultRun every =
      run_of(absl::StrCat("rank 0 every ", most, " files from file#", most, ": delay(0)"));
  EXPECT_THAT(fires(every, 0, Site::kFile, 5), IsEmpty());
  FaultRun steps = run_of(absl::StrCat("rank 0 at step 1: slow(0.5) for ", most, " steps"));
  steps.progress(0, FaultPoint::Kind::kStep, 0);
  EXPECT_EQ(steps.speed(0, 0, /*of_disk=*/false), 0.5);
  FaultRun files = run_of(absl::StrCat("disk at file#1: io_error for ", most, " files"));
  fires(files, 0, Site::kFile, 2);
  EXPECT_THAT(files.lasting(FaultKind::kIoError, 3, 0), SizeIs(1));
}

// An argument for each kind that needs one.
std::string with_arguments(FaultKind kind, Site site) {
  switch (kind) {
    case FaultKind::kSlow: return "slow(0.5)";
    case FaultKind::kDelay: return "delay(1ms)";
    case FaultKind::kShrink: return "shrink(1GiB)";
    case FaultKind::kFlip:
      return site == Site::kOp     ? "flip(output)"
             : site == Site::kSend ? "flip(input)"
                                   : "flip(result)";
    case FaultKind::kNan:
      return site == Site::kOp ? "nan(output)" : site == Site::kSend ? "nan(input)" : "nan(result)";
    case FaultKind::kStall: return "stall(1s)";
    case FaultKind::kSlowStart: return "slow_start(1s)";
    case FaultKind::kSkew: return "skew(1s)";
    case FaultKind::kFlap: return "flap(1s)";
    default: return accelerate::to_string(kind);
  }
}

// Each kind fires at each of its sites, and is refused at all others.
TEST(FaultRun, FiresAtAllSitesThatItsKindHas) {
  int fired = 0;
  for (const FaultKind kind : accelerate::values<FaultKind>()) {
    const FaultKindInfo& info = info_of(kind);
    const std::map<FaultPlace, std::string> places = {{FaultPlace::kRank, "rank 1"},
                                                      {FaultPlace::kNode, "node 0"},
                                                      {FaultPlace::kGroup, "group \"dp\""},
                                                      {FaultPlace::kStore, "store"},
                                                      {FaultPlace::kDisk, "disk"},
                                                      {FaultPlace::kCluster, "cluster"},
                                                      {FaultPlace::kLink, "link nic of node 0"}};
    for (const auto& [place, where] : places) {
      for (const Site site : accelerate::values<Site>()) {
        const std::string text =
            absl::StrCat(where, " at ", to_string(site), "#2: ", with_arguments(kind, site));
        const absl::StatusOr<FaultRules> plan = FaultRules::parse(text);
        const bool is_one = (info.places & mask(place)) != 0 && (info.points & mask(site)) != 0;
        if (!is_one) {
          EXPECT_FALSE(plan.ok()) << text;
          continue;
        }
        if (!plan.ok()) continue;  // the place does not come to the site
        FaultRun run(*plan, grounds());
        const std::string words = site == Site::kGroup ? "dp" : "call of dp";
        EXPECT_THAT(fires(run, 1, site, 5, words), ElementsAre(2)) << text;
        EXPECT_EQ(run.outcomes(0).at(0).fired, 1) << text;
        ++fired;
      }
    }
  }
  EXPECT_GT(fired, 250);
}

}  // namespace
}  // namespace accelerate::simulator
