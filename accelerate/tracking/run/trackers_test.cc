// The calls that an Accelerator's trackers get, on a rank that has no process of its own.
#include "accelerate/tracking/run/trackers.h"

#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "accelerate/platform/host_files.h"
#include "accelerate/state/logger.h"
#include "accelerate/state/partial_state.h"
#include "accelerate/testing/fake_runtime.h"

namespace accelerate {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class RuntimeWithFiles : public FakeRuntime {
 public:
  using FakeRuntime::FakeRuntime;
  FileSystem& files() override { return files_; }
  absl::Time now() override { return absl::FromUnixSeconds(++seconds_); }
  void write_console(ConsoleStream /*stream*/, std::string_view text) override { console += text; }

  std::string console;

 private:
  HostFiles files_;
  int seconds_ = 0;
};

class Spy : public GeneralTracker {
 public:
  Spy(const TrackerSetup& setup, std::vector<std::string>& calls) : calls_(calls) {
    if (find(setup.init_kwargs, "bad") != nullptr) throw std::invalid_argument("spy: bad");
    calls_.push_back("made " + setup.project_name + value_text(setup.init_kwargs));
  }
  void start() override { calls_.emplace_back("start"); }
  void store_init_configuration(const TrackerDict& values) override {
    calls_.push_back("config " + value_text(values));
  }
  void log(const TrackerDict& values, const TrackerStep& step) override {
    if (find(values, "fail") != nullptr) throw std::runtime_error("disk full");
    calls_.push_back("log " + value_text(values) + " at " +
                     (step.step ? std::to_string(*step.step) : "none") + " with " +
                     value_text(step.kwargs));
  }
  void log_images(const TrackerImages& images, const TrackerStep& /*step*/) override {
    calls_.push_back(images[0].first + ": " + std::to_string(images[0].second.size()));
  }
  void finish() override { calls_.emplace_back("finish"); }
  void abandon() override { calls_.emplace_back("abandon"); }
  int answer() const { return 42; }

 private:
  std::vector<std::string>& calls_;
};

class TrackersTest : public ::testing::Test {
 protected:
  TrackerClass spy(const std::string& name = "spy", bool main_process_only = true) {
    return {.name = name,
            .requires_logging_directory = false,
            .main_process_only = main_process_only,
            .tracker = [this](const TrackerSetup& setup) {
              return std::make_unique<Spy>(setup, calls_);
            }};
  }

  RuntimeWithFiles runtime_;
  RuntimeScope scope_{runtime_};
  PartialState& state_ = PartialState::get(runtime_);
  std::vector<std::string> calls_;
};

TEST_F(TrackersTest, AreToldEverythingInOrder) {
  Trackers trackers({spy()}, "", runtime_);
  EXPECT_THAT(calls_, IsEmpty()) << "nothing begins before init";
  trackers.init("project", TrackerDict{{"lr", 0.1}}, {{"spy", {{"entity", "me"}}}});
  trackers.log({{"loss", at::scalar_tensor(0.5F)}}, 7, {{"spy", {{"walltime", 1}}}});
  trackers.log({{"loss", 0.25}}, {}, {});
  trackers.log_images({{"digit", at::zeros({4, 1, 2, 2})}}, {.dataformats = "NCHW"});
  trackers.end();
  trackers.end();
  EXPECT_THAT(calls_, ElementsAre("made project{'entity': 'me'}", "start", "config {'lr': 0.1}",
                                  "log {'loss': tensor(0.5)} at 7 with {'walltime': 1}",
                                  "log {'loss': 0.25} at none with {}", "digit: 4", "finish"));
}

TEST_F(TrackersTest, ACallOfOneTrackerIsNotForTheOthers) {
  Trackers trackers({spy("a"), spy("b")}, "", runtime_);
  trackers.init("p", {}, {});
  calls_.clear();
  const TrackerHandle handle = trackers.get("b");
  handle.log({{"x", 1}}, 2, {{"k", 3}});
  EXPECT_THAT(calls_, ElementsAre("log {'x': 1} at 2 with {'k': 3}"));
  EXPECT_EQ(handle.unwrap<Spy>()->answer(), 42);
}

TEST_F(TrackersTest, AFailureIsSaidOnceAndNothingStops) {
  Trackers trackers({spy()}, "", runtime_);
  trackers.init("p", {}, {});
  for (int i = 0; i < 3; ++i) trackers.log({{"fail", i}}, i, {});
  trackers.log_table("t", {.columns = {"a"}, .rows = {{1}}}, {}, {});
  trackers.log({{"x", 1}}, 3, {});
  trackers.end();
  EXPECT_THAT(calls_, ElementsAre("made p{}", "start", "log {'x': 1} at 3 with {}", "finish"));
  EXPECT_THAT(runtime_.console, HasSubstr("tracker spy failed: disk full"));
  EXPECT_THAT(runtime_.console, HasSubstr("3 calls failed"));
  EXPECT_THAT(runtime_.console, HasSubstr("tracker spy: it does not keep tables"));
  EXPECT_EQ(std::count(runtime_.console.begin(), runtime_.console.end(), '\n'), 3);
}

TEST_F(TrackersTest, ATrackerThatWarnsForEverIsNotHeardForEver) {
  class Chatty : public GeneralTracker {
   public:
    explicit Chatty(const TrackerSetup& setup) : services_(setup.services) {}
    void store_init_configuration(const TrackerDict& /*values*/) override {}
    void log(const TrackerDict& values, const TrackerStep& /*step*/) override {
      services_.warn(value_text(values));
    }

   private:
    const TrackerServices& services_;
  };
  const TrackerClass chatty{.name = "chatty",
                            .requires_logging_directory = false,
                            .tracker = accelerate::make_tracker<Chatty>};
  Trackers trackers({chatty}, "", runtime_);
  trackers.init("p", {}, {});
  for (int i = 0; i < 1500; ++i) trackers.log({{"x", i}}, i, {});
  trackers.end();
  EXPECT_EQ(std::count(runtime_.console.begin(), runtime_.console.end(), '\n'), 1000);
}

TEST_F(TrackersTest, RefusesWhatMakesNoSense) {
  Trackers trackers({spy()}, "", runtime_);
  EXPECT_THROW(trackers.init("p", {}, {{"spy", {{"bad", 1}}}}), c10::ValueError);
  EXPECT_THROW(trackers.init("p", {}, {{"wandb", {{"a", 1}}}}), c10::ValueError);
  EXPECT_THROW(trackers.init("p", {}, {{"spy", 3}}), c10::ValueError);
  trackers.init("p", {}, {});
  EXPECT_THROW(trackers.init("p", {}, {}), c10::ValueError);
  EXPECT_THROW(trackers.log({}, {}, {{"wandb", {{"a", 1}}}}), c10::ValueError);
  EXPECT_THROW(trackers.log_table("t", {.columns = {"a"}, .rows = {{}}}, {}, {}), c10::ValueError);
  EXPECT_THROW(trackers.get("wandb"), c10::ValueError);
  EXPECT_THROW(Trackers({"nobody"}, "", runtime_), c10::ValueError);
  EXPECT_THROW(register_tracker_class({.name = "x"}), c10::NotImplementedError);
}

TEST_F(TrackersTest, OutsideOfARunItOnlyWarnsOnce) {
  Trackers trackers({spy()}, "", runtime_);
  trackers.log({{"x", 1}}, {}, {});
  trackers.log({{"x", 1}}, {}, {});
  EXPECT_THAT(runtime_.console, HasSubstr("are not kept"));
  EXPECT_EQ(std::count(runtime_.console.begin(), runtime_.console.end(), '\n'), 1);
  EXPECT_FALSE(trackers.get("spy"));
  EXPECT_EQ(trackers.get("spy").unwrap<Spy>(), nullptr);
}

TEST_F(TrackersTest, AnExceptionAbandonsTheRun) {
  try {
    Trackers trackers({spy()}, "", runtime_);
    trackers.init("p", {}, {});
    throw std::runtime_error("training failed");
  } catch (const std::runtime_error&) {
  }
  EXPECT_EQ(calls_.back(), "abandon");
}

TEST_F(TrackersTest, WhatIsLeftOutTakesItsArgumentsAndDoesNothing) {
  TrackerClass away = spy("away");
  away.unavailable = [](const TrackerServices&) { return "its package is not installed"; };
  register_tracker_class(away);
  Trackers trackers({"away", "comet_ml", spy()}, "", runtime_);
  EXPECT_THAT(runtime_.console, HasSubstr("away is left out: its package is not installed"));
  trackers.init("p", {}, {{"away", {{"a", 1}}}, {"comet_ml", {{"b", 2}}}});
  trackers.log({{"x", 1}}, {}, {{"away", {{"a", 1}}}});
  EXPECT_FALSE(trackers.get("comet_ml"));
  trackers.get("away").log({{"x", 1}});
  trackers.end();
  EXPECT_THAT(calls_, ElementsAre("made p{}", "start", "log {'x': 1} at none with {}", "finish"));
}

TEST_F(TrackersTest, AHandleOutlivesTheRun) {
  Trackers trackers({spy()}, "", runtime_);
  trackers.init("p", {}, {});
  const TrackerHandle handle = trackers.get("spy");
  trackers.end();
  handle.log({{"x", 1}});
  handle.flush();
  EXPECT_EQ(calls_.back(), "finish");
}

TEST_F(TrackersTest, TheNextRunSaysItsFailuresAgain) {
  Trackers trackers({spy()}, "", runtime_);
  for (int run = 0; run < 2; ++run) {
    trackers.init("p", {}, {});
    trackers.log({{"fail", 1}}, {}, {});
    trackers.end();
  }
  const size_t first = runtime_.console.find("disk full");
  EXPECT_NE(runtime_.console.find("disk full", first + 1), std::string::npos);
}

TEST_F(TrackersTest, AnotherRunMayFollow) {
  Trackers trackers({spy()}, "", runtime_);
  trackers.init("first", {}, {});
  trackers.end();
  trackers.init("second", {}, {});
  trackers.end();
  EXPECT_THAT(calls_,
              ElementsAre("made first{}", "start", "finish", "made second{}", "start", "finish"));
}

TEST_F(TrackersTest, NamesAreThoseOfTheRuntime) {
  register_tracker_class(spy("own"));
  EXPECT_THAT(get_available_trackers(), ElementsAre("own"));
  register_tracker_class(spy("own"));
  EXPECT_THAT(runtime_.console, HasSubstr("'own' is already registered"));
  const Trackers trackers({"own", "own"}, "", runtime_);
  EXPECT_THAT(trackers.names(), ElementsAre("own"));
}

TEST(TrackersOnOtherRanksTest, OnlyThoseForAllRanksAreThere) {
  RuntimeWithFiles runtime(Topology{.rank = 1, .world_size = 2});
  int made = 0;
  const auto count = [&](bool main_process_only) {
    return TrackerClass{.name = main_process_only ? "main" : "all",
                        .requires_logging_directory = false,
                        .main_process_only = main_process_only,
                        .tracker = [&](const TrackerSetup& setup) {
                          ++made;
                          static std::vector<std::string> ignored;
                          return std::make_unique<Spy>(setup, ignored);
                        }};
  };
  Trackers trackers({count(true), count(false)}, "", runtime);
  trackers.init("p", {}, {});
  EXPECT_EQ(made, 1);
  EXPECT_FALSE(trackers.get("main"));
  EXPECT_TRUE(trackers.get("all"));

  trackers.end();
  trackers.init("p", {},
                {{"main", {{"main_process_only", false}}}, {"all", {{"main_process_only", true}}}});
  EXPECT_EQ(made, 2);
  EXPECT_TRUE(trackers.get("main"));
  EXPECT_FALSE(trackers.get("all"));
  trackers.end();
  EXPECT_THROW(trackers.init("p", {}, {{"main", {{"main_process_only", 1}}}}), c10::ValueError);
}

TEST(TrackersOnOtherRanksTest, FilesOfOneRankAreKeptApart) {
  RuntimeWithFiles runtime(Topology{.rank = 1, .world_size = 2});
  std::string folder;
  std::vector<std::string> ignored;
  Trackers trackers({TrackerClass{.name = "files",
                                  .requires_logging_directory = true,
                                  .tracker =
                                      [&](const TrackerSetup& setup) {
                                        folder = setup.logging_dir + value_text(setup.init_kwargs);
                                        return std::make_unique<Spy>(setup, ignored);
                                      }}},
                    "logs", runtime);
  trackers.init("p", {}, {{"files", {{"main_process_only", false}, {"name", "x"}}}});
  EXPECT_EQ(folder, "logs/rank_1{'name': 'x'}");
}

TEST(TensorValueTest, TensorsConvert) {
  const TrackerDict values{{"loss", at::scalar_tensor(0.5F)},
                           {"counts", at::tensor({1, 2, 3}, at::kLong)},
                           {"half", at::full({1}, 1.5, at::kBFloat16)}};
  EXPECT_EQ(values[0].second, TrackerValue(TensorValue{{}, "float32", {0.5}}));
  EXPECT_EQ(values[1].second, TrackerValue(TensorValue{{3}, "int64", {1, 2, 3}}));
  EXPECT_EQ(values[2].second, TrackerValue(TensorValue{{1}, "bfloat16", {1.5}}));
}

TEST(TensorValueTest, ItemsAreNumbers) {
  EXPECT_EQ(TrackerValue(at::scalar_tensor(0.5F).item()), TrackerValue(0.5));
  EXPECT_EQ(TrackerValue(at::scalar_tensor(3, at::kLong).item()), TrackerValue(3));
  EXPECT_EQ(TrackerValue(at::scalar_tensor(true, at::kBool).item()), TrackerValue(true));
}

TEST(TensorValueTest, OrderIsThatOfRows) {
  const at::Tensor matrix = at::arange(6).reshape({2, 3}).t();
  const TrackerValue value(matrix);
  EXPECT_THAT(value.get_if<TensorValue>()->sizes, ElementsAre(3, 2));
  EXPECT_THAT(value.get_if<TensorValue>()->values, ElementsAre(0, 3, 1, 4, 2, 5));
}

TEST(TensorValueTest, RefusesWhatHasNoElementsToShow) {
  EXPECT_THROW(TrackerValue{at::Tensor()}, c10::ValueError);
  EXPECT_THROW(TrackerValue{at::zeros({2}, at::kComplexFloat)}, c10::ValueError);
  EXPECT_THROW(TrackerValue{at::zeros({2}).to_sparse()}, c10::ValueError);
}

TEST(TrackerImagesTest, LayoutsAreOneImage) {
  // One row of two pixels: red, and white.
  const at::Tensor pixels = at::tensor({255, 0, 0, 255, 255, 255}, at::kByte).reshape({1, 2, 3});
  const std::vector<uint8_t> expected{255, 0, 0, 255, 255, 255};
  for (const auto& [format, tensor] : {std::pair<const char*, at::Tensor>{"HWC", pixels},
                                       {"CHW", pixels.permute({2, 0, 1})},
                                       {"NCHW", pixels.permute({2, 0, 1}).unsqueeze(0)},
                                       {"NHWC", pixels.unsqueeze(0)}}) {
    const std::vector<TrackerImage> images = tracker_images(tensor, format);
    ASSERT_THAT(images, SizeIs(1)) << format;
    EXPECT_EQ(images[0], (TrackerImage{1, 2, 3, expected})) << format;
  }
}

TEST(TrackerImagesTest, FloatsAreStretchedAndKeptInBounds) {
  const at::Tensor grey = at::tensor({0.0, 0.5, 1.0, 7.0, -1.0, NAN}).reshape({2, 3});
  const std::vector<TrackerImage> images = tracker_images(grey, "HW");
  EXPECT_EQ(images[0].channels, 1);
  EXPECT_THAT(images[0].pixels, ElementsAre(0, 128, 255, 255, 0, 0));
}

TEST(TrackerImagesTest, ABatchIsSeveral) {
  EXPECT_THAT(tracker_images(at::zeros({5, 3, 2, 2}), "NCHW"), SizeIs(5));
  EXPECT_THAT(tracker_images(at::zeros({0, 3, 2, 2}), "NCHW"), SizeIs(0));
}

TEST(TrackerImagesTest, RefusesWhatIsNoImage) {
  const auto error_of = [](const at::Tensor& tensor, const char* format) {
    try {
      tracker_images(tensor, format);
    } catch (const c10::ValueError& error) {
      return std::string(error.what_without_backtrace());
    }
    return std::string("no error");
  };
  EXPECT_THAT(
      error_of(at::zeros({3, 2, 2}), "NCHW"),
      HasSubstr("a tensor of sizes [3, 2, 2] is not of the format \"NCHW\": dimensions differ"));
  EXPECT_THAT(error_of(at::zeros({5, 2, 2}), "CHW"), HasSubstr("1 to 4 channels"));
  EXPECT_THAT(error_of(at::zeros({3, 2, 2}), "CWX"), HasSubstr("must have an H and a W"));
  EXPECT_THAT(error_of(at::zeros({3, 0, 2}), "CHW"), HasSubstr("no pixels"));
  EXPECT_THAT(error_of(at::zeros({3, 2, 2}, at::kLong), "CHW"), HasSubstr("bytes, or floats"));
}

}  // namespace
}  // namespace accelerate
