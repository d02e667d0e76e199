// A function as the ranks of a job: forks of this process over Gloo, and ranks of the simulator.
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <future>
#include <string>
#include <thread>

#include <ATen/ops/tensor.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "accelerate/accelerate.h"

namespace accelerate {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class Launchers : public ::testing::Test {
 protected:
  Launchers() {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }

  // Ranks are processes of their own: what they find out comes back by files.
  void note(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ + name) << text;
  }
  std::string noted(const std::string& name) const {
    std::ifstream file(folder_ + name);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  static std::string failure_of(const std::function<void()>& function,
                                const LaunchOptions& options) {
    try {
      launch(function, options);
    } catch (const c10::Error& error) {
      return error.what_without_backtrace();
    }
    return "";
  }

  const std::string folder_ =
      ::testing::TempDir() + ::testing::UnitTest::GetInstance()->current_test_info()->name() + "/";
};

TEST_F(Launchers, RanksMeet) {
  const std::string made_before = "seen by all ranks";
  launch(
      [&] {
        Accelerator accelerator;
        const at::Tensor all =
            accelerator.gather(at::tensor({static_cast<float>(accelerator.process_index())}));
        note(std::to_string(accelerator.process_index()),
             made_before + " " + std::to_string(accelerator.num_processes()) + " " +
                 std::to_string(all.sum().item<float>()) + " " +
                 to_string(accelerator.mixed_precision()));
      },
      {.num_processes = 3, .mixed_precision = PrecisionType::kBf16, .use_cpu = true});
  for (const char* rank : {"0", "1", "2"}) {
    EXPECT_EQ(noted(rank), "seen by all ranks 3 3.000000 bf16") << rank;
  }
  // This process is none of them, and may begin again.
  debug_launch([&] { note("again", std::to_string(Accelerator().num_processes())); });
  EXPECT_EQ(noted("again"), "2");
}

TEST_F(Launchers, OneRankIsThisProcess) {
  int ranks = 0;
  launch([&] { ranks = Accelerator().num_processes(); }, {.num_processes = 1, .use_cpu = true});
  EXPECT_EQ(ranks, 1);
  EXPECT_THAT(failure_of([] { TORCH_CHECK(false, "no such data"); }, {.num_processes = 1}),
              HasSubstr("no such data"));
}

TEST_F(Launchers, TellsWhichRankFailedAndWhy) {
  const auto fails = [] {
    Accelerator accelerator;
    TORCH_CHECK(accelerator.process_index() != 1, "no such data");
    accelerator.wait_for_everyone();
  };
  EXPECT_THAT(failure_of(fails, {.num_processes = 2, .use_cpu = true}),
              AllOf(HasSubstr("exited with code 1"), HasSubstr("rank 1 failed: no such data")));
  const auto dies = [] {
    Accelerator accelerator;
    if (accelerator.process_index() == 1) ::raise(SIGKILL);
    for (;;) ::pause();
  };
  EXPECT_THAT(failure_of(dies, {.num_processes = 2, .use_cpu = true}),
              AllOf(HasSubstr("rank 1 (process "), HasSubstr("was killed by signal 9")));
}

TEST_F(Launchers, StartsAnewAsOftenAsAllowed) {
  const auto fails_once = [&] {
    Accelerator accelerator;
    const bool first = !std::filesystem::exists(folder_ + "tried");
    accelerator.wait_for_everyone();
    if (accelerator.is_main_process()) note("tried", "");
    TORCH_CHECK(!first, "the first time");
    note("ended", "well");
  };
  launch(fails_once, {.num_processes = 2, .max_restarts = 1, .use_cpu = true});
  EXPECT_EQ(noted("ended"), "well");
  const auto fails = [&] {
    Accelerator accelerator;
    if (accelerator.is_main_process()) std::ofstream(folder_ + "attempts", std::ios::app) << "x";
    accelerator.wait_for_everyone();
    TORCH_CHECK(false, "every time");
  };
  EXPECT_THAT(failure_of(fails, {.num_processes = 2, .max_restarts = 2, .use_cpu = true}),
              AllOf(HasSubstr("every time"), HasSubstr("after 2 restarts")));
  EXPECT_EQ(noted("attempts"), "xxx");
}

TEST_F(Launchers, RefusesWhatMakesNoSense) {
  const auto nothing = [] {};
  EXPECT_THAT(failure_of(nothing, {.num_processes = 0}), HasSubstr("num_processes is 0"));
  EXPECT_THAT(failure_of(nothing, {.node_rank = 2, .num_nodes = 2}), HasSubstr("node_rank is 2"));
  EXPECT_THAT(failure_of(nothing, {.use_cpu = true, .simulate = "1x2:h100"}),
              HasSubstr("use_cpu and simulate=\"1x2:h100\" exclude each other"));
  EXPECT_THAT(failure_of(nothing, {.num_nodes = 2}), HasSubstr("use_port"));
  EXPECT_THAT(failure_of([&] { launch(nothing); }, {.num_processes = 1}),
              HasSubstr("a rank already"));
}

TEST_F(Launchers, RefusesToForkBesideOtherThreads) {
  std::promise<void> end;
  std::thread other([&end] { end.get_future().wait(); });
  EXPECT_THAT(failure_of([] {}, {.num_processes = 2}), HasSubstr("1 threads more"));
  end.set_value();
  other.join();
}

// One shape each: launch() hands its text on to the simulator, whose shapes other tests are about.
TEST_F(Launchers, SimulatesTheSame) {
  std::string seen;
  const auto function = [&] {
    Accelerator accelerator;
    const at::Tensor all = accelerator.gather(at::tensor({1.0f}));
    if (accelerator.is_main_process()) seen = std::to_string(all.sum().item<float>());
  };
  launch(function, {.simulate = "2x2:h100", .simulate_seed = 7});
  EXPECT_EQ(seen, "4.000000");
  ::testing::internal::CaptureStderr();
  EXPECT_THAT(failure_of([] { TORCH_CHECK(false, "no such data"); }, {.simulate = "1x2"}),
              HasSubstr("the simulated run failed"));
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              ::testing::ContainsRegex("--no_default_config [^ ]*launchers_test"))
      << "the command of this process";
}

}  // namespace
}  // namespace accelerate
