
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <stdexcept>
#include <thread>

#include <gtest/gtest.h>

#include "accelerate/runtime/runtime.h"
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

}  // namespace
}  // namespace accelerate
