
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include "absl/time/time.h"
#include "accelerate/platform/host_files.h"
#include "accelerate/runtime/runtime.h"
#include "accelerate/runtime/shared_objects.h"
#include "accelerate/testing/fake_runtime.h"

namespace accelerate {
namespace {

int niceness() { return ::getpriority(PRIO_PROCESS, ::gettid()); }

TEST(BackgroundTaskTest, StepsUntilItIsDoneOnAThreadThatKnowsTheRuntime) {
  FakeRuntime runtime;
  std::thread::id thread;
  Runtime* seen = nullptr;
  const auto task = runtime.start_background([&, steps = 0]() mutable {
    thread = std::this_thread::get_id();
    seen = Runtime::find_current();
    return ++steps == 3;
  });
  task->wait();
  EXPECT_TRUE(task->is_done());
  EXPECT_NE(thread, std::this_thread::get_id());
  EXPECT_EQ(seen, &runtime);
}

TEST(BackgroundTaskTest, WhatAStepThrowsIsThrownOnce) {
  FakeRuntime runtime;
  const auto task =
      runtime.start_background([]() -> bool { throw std::runtime_error("disk full"); });
  EXPECT_THROW(task->wait(), std::runtime_error);
  EXPECT_NO_THROW(task->wait());
}

TEST(BackgroundTaskTest, ItAndItsThreadsGiveWayToTraining) {
  FakeRuntime runtime;
  const int before = niceness();
  int own = -1, made = -1;
  runtime
      .start_background([&] {
        own = niceness();
        std::thread([&] { made = niceness(); }).join();
        return true;
      })
      ->wait();
  EXPECT_EQ(own, std::max(before, 10));
  EXPECT_EQ(made, own);
  EXPECT_EQ(niceness(), before);
}

// The second of four ranks.
class GroupRuntime : public FakeRuntime {
 public:
  GroupRuntime(int rank = 1, int ranks = 4) : FakeRuntime(Topology::uniform(rank, 1, ranks)) {}
  using Runtime::resolve_group;

  std::string name(const std::vector<int>& ranks) { return resolve_group({.ranks = ranks}).name; }
};

TEST(ResolveGroup, NamesTheRanks) {
  GroupRuntime runtime;
  const GroupOptions all = runtime.resolve_group({.timeout = absl::Seconds(7), .backend = "gloo"});
  EXPECT_EQ(all.ranks, (std::vector<int>{0, 1, 2, 3}));
  EXPECT_EQ(all.name, "ranks 0,1,2,3");
  EXPECT_EQ(all.timeout, absl::Seconds(7));
  EXPECT_EQ(all.backend, "gloo");
  EXPECT_EQ(runtime.name({1, 3}), "ranks 1,3");
  EXPECT_EQ(runtime.resolve_group({.ranks = {1}, .name = "own"}).name, "own");
}

// A store keeps what an old group wrote, which a new one of that name must not read.
TEST(ResolveGroup, TellsGroupsOfOneNameApart) {
  GroupRuntime runtime;
  EXPECT_EQ(runtime.name({0, 1}), "ranks 0,1");
  EXPECT_EQ(runtime.name({1, 2}), "ranks 1,2");
  EXPECT_EQ(runtime.name({0, 1}), "ranks 0,1#1");
  EXPECT_EQ(runtime.resolve_group({.ranks = {1, 2}, .name = "ranks 0,1"}).name, "ranks 0,1#2");
  EXPECT_EQ(runtime.name({1, 2}), "ranks 1,2#1");
}

TEST(ResolveGroup, RefusesRanksThatMakeNoGroup) {
  GroupRuntime runtime;
  for (const std::vector<int>& ranks :
       std::vector<std::vector<int>>{{1, 0}, {1, 1}, {-1, 1}, {1, 4}, {0, 2}, {0}}) {
    EXPECT_THROW(runtime.name(ranks), c10::ValueError);
  }
  EXPECT_EQ(runtime.name({0, 1}), "ranks 0,1") << "what was refused has no number";
  try {
    runtime.resolve_group({.ranks = {0, 2}, .axis = MeshAxis::kTp});
    ADD_FAILURE() << "rank 1 made a group of others";
  } catch (const c10::ValueError& error) {
    EXPECT_STREQ(error.what_without_backtrace(),
                 "new_group along tp: rank 1 asks for ranks 0,2 and is not among them");
  }
}

TEST(ResolveGroup, NamesLargeGroupsByAllOfTheirRanks) {
  GroupRuntime runtime(/*rank=*/0, /*ranks=*/64);
  std::vector<int> sixteen, seventeen, other;
  for (int rank = 0; rank < 17; ++rank) {
    if (rank < 16) sixteen.push_back(rank);
    seventeen.push_back(rank);
    other.push_back(rank < 9 ? rank : rank + (rank < 16 ? 3 : 0));
  }
  other.back() = 40;
  seventeen.back() = 40;
  EXPECT_EQ(runtime.name(sixteen), "ranks 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15");
  // On runtimes of their own: a second group of one name would get a number.
  const std::string name = runtime.name(seventeen), other_name = GroupRuntime(0, 64).name(other);
  EXPECT_EQ(name.rfind("ranks 0,1,...,40 (17 ranks, ", 0), 0) << name;
  EXPECT_EQ(other_name.rfind("ranks 0,1,...,40 (17 ranks, ", 0), 0) << other_name;
  EXPECT_NE(name, other_name);
  EXPECT_EQ(GroupRuntime(1, 64).name(seventeen), name) << "the same on every member";
}

TEST(RuntimeScope, PutsTheOneBeforeBack) {
  EXPECT_EQ(Runtime::find_current(), nullptr);
  FakeRuntime outer, inner;
  {
    const RuntimeScope first(outer);
    {
      const RuntimeScope second(inner);
      EXPECT_EQ(&Runtime::current(), &inner);
    }
    EXPECT_EQ(&Runtime::current(), &outer);
    std::thread([] { EXPECT_EQ(Runtime::find_current(), nullptr); }).join();
  }
  EXPECT_THROW(Runtime::current(), c10::Error);
}

TEST(Shared, IsOneOfEachTypeUntilItIsForgotten) {
  FakeRuntime runtime, other;
  EXPECT_EQ(runtime.find_shared<int>(), nullptr);
  const auto make = [](int value) { return [value] { return std::make_unique<int>(value); }; };
  EXPECT_EQ(runtime.shared<int>(make(1)), 1);
  EXPECT_EQ(runtime.shared<int>(make(2)), 1) << "made once";
  EXPECT_EQ(other.find_shared<int>(), nullptr);
  EXPECT_EQ(runtime.find_shared<long>(), nullptr);
  runtime.reset_shared<int>();
  EXPECT_EQ(runtime.shared<int>(make(3)), 3);
  runtime.clear_shared();
  EXPECT_EQ(runtime.find_shared<int>(), nullptr);
}

class FilesRuntime : public FakeRuntime {
 public:
  ~FilesRuntime() override { clear_shared(); }
  FileSystem& files() override { return own; }
  HostFiles own;
};

// Times of a profile outlive a run whose tensors have shapes alone.
TEST(LastingFiles, AreTheRanksOwnUnlessTensorsHaveShapesAlone) {
  FilesRuntime runtime;
  HostFiles lasting;
  EXPECT_FALSE(has_shapes_alone(runtime));
  EXPECT_EQ(&lasting_files(runtime), &runtime.own);
  runtime.shared<ShapesAlone>(
      [&] { return std::unique_ptr<ShapesAlone>(new ShapesAlone{.lasting_files = lasting}); });
  EXPECT_TRUE(has_shapes_alone(runtime));
  EXPECT_EQ(&lasting_files(runtime), &lasting);
}

}  // namespace
}  // namespace accelerate
