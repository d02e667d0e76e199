#include "trackers/tensorboard/tensorboard_tracker.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "accelerate/platform/host_files.h"
#include "accelerate/tracking/tracker_queue.h"
#include "trackers/testing/event_file_reader.h"
#include "trackers/testing/png_reader.h"
#include "trackers/testing/tracker_world.h"

namespace accelerate::trackers {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;

constexpr char kRun[] = "/sim/logs/run";

// A tracker of its own for what `use` does with it.
template <typename Use>
void track(TrackerWorld& world, Use&& use, TrackerDict init_kwargs = {}) {
  const TrackerSetup setup = world.setup(std::move(init_kwargs));
  TensorBoardTracker tracker(setup);
  tracker.start();
  use(tracker);
  tracker.finish();
}

// The values of a run, each with its step.
std::vector<std::pair<int64_t, EventValue>> values(TrackerWorld& world,
                                                   const std::string& folder = kRun) {
  std::vector<std::pair<int64_t, EventValue>> result;
  for (const EventRecord& event : read_events(world.disk, folder)) {
    for (const EventValue& value : event.values) result.emplace_back(event.step, value);
  }
  return result;
}

std::vector<std::string> folders(TrackerWorld& world, const std::string& folder = kRun) {
  std::vector<std::string> result;
  const std::vector<std::string> names = world.disk.list(folder).value();
  for (const std::string& name : names) {
    if (world.disk.info(join_path(folder, name))->is_directory) result.push_back(name);
  }
  return result;
}

TEST(TensorBoardTracker, KeepsScalars) {
  TrackerWorld world;
  track(world, [&](TensorBoardTracker& tracker) {
    tracker.log({{"loss", 0.5},
                 {"epoch", 3},
                 {"done", true},
                 {"t", TensorValue{.dtype = "float32", .values = {2.5}}},
                 {"nothing", std::nullopt},
                 {"list", TrackerList{1, 2}},
                 {"vector", TensorValue{.sizes = {1}, .dtype = "float32", .values = {1}}}},
                world.step(7));
    tracker.log({{"loss", std::nan("")}}, world.step(8));
    tracker.log({{"loss", -std::numeric_limits<double>::infinity()}}, world.step());
    tracker.log({{"loss", 1e-3}, {"loss", 0.25}}, world.step(-9));
    tracker.log({}, world.step(10));
  });
  auto curves = read_scalars(world.disk, kRun);
  EXPECT_THAT(curves["epoch"], ElementsAre(Pair(7, 3.0)));
  EXPECT_THAT(curves["done"], ElementsAre(Pair(7, 1.0)));
  EXPECT_THAT(curves["t"], ElementsAre(Pair(7, 2.5)));
  const auto& loss = curves["loss"];
  ASSERT_THAT(loss, SizeIs(4));
  EXPECT_THAT(loss[0], Pair(7, 0.5));
  EXPECT_TRUE(std::isnan(loss[1].second));
  EXPECT_THAT(loss[2], Pair(0, -std::numeric_limits<double>::infinity()));
  EXPECT_THAT(loss[3], Pair(-9, 0.25));
  EXPECT_THAT(curves, SizeIs(4));
}

TEST(TensorBoardTracker, PassesOnKwargs) {
  TrackerWorld world;
  track(world, [&](TensorBoardTracker& tracker) {
    tracker.log({{"a", 1}}, world.step(3, {{"walltime", 5.5}}));
    tracker.log({{"a", 0.1}}, world.step(4, {{"new_style", true}, {"double_precision", true}}));
    EXPECT_THAT(error_of([&] { tracker.log({{"a", 1}}, world.step(5, {{"color", 1}})); }),
                HasSubstr("`color` in its log_kwargs is not known"));
  });
  const auto events = read_events(world.disk, kRun);
  ASSERT_THAT(events, SizeIs(3));
  EXPECT_EQ(events[1].wall_time, 5.5);
  EXPECT_EQ(events[2].wall_time, 5.0);
  EXPECT_EQ(events[2].values[0].plugin, "scalars");
  EXPECT_EQ(events[2].values[0].scalar, 0.1);  // all digits
}

TEST(TensorBoardTracker, DrawsCurvesOfADictionaryInRunsOfTheirOwn) {
  TrackerWorld world;
  track(world, [&](TensorBoardTracker& tracker) {
    for (int i = 0; i < 3; ++i) {
      tracker.log({{"acc/top1", {{"train", 0.5 + i}, {"test", i}}}}, world.step(i));
    }
    EXPECT_THAT(error_of([&] {
                  tracker.log(
                      {{"acc/top1", {{"text", "x"}, {"train", 9}, {"../../a", 1}}}, {"b", 2}},
                      world.step(3));
                }),
                HasSubstr("`text` of `acc/top1` is not a number"));
  });
  EXPECT_THAT(folders(world), ElementsAre("acc_top1_..", "acc_top1_test", "acc_top1_train"));
  EXPECT_THAT(folders(world, "/sim"), ElementsAre("logs"));
  EXPECT_THAT(read_scalars(world.disk, join_path(kRun, "acc_top1_train")).at("acc/top1"),
              ElementsAre(Pair(0, 0.5), Pair(1, 1.5), Pair(2, 2.5), Pair(3, 9.0)));
  EXPECT_THAT(read_scalars(world.disk, join_path(kRun, "acc_top1_test")).at("acc/top1"), SizeIs(3));
  EXPECT_THAT(read_scalars(world.disk, kRun).at("b"), ElementsAre(Pair(3, 2.0)));
}

TEST(TensorBoardTracker, NothingIsHeldBackWhenThereIsNoLaterFlush) {
  for (const bool by_signal : {true, false}) {
    TrackerWorld world;
    const TrackerSetup setup = world.setup();
    TensorBoardTracker tracker(setup);
    tracker.start();
    for (int step = 0; step < 2; ++step) {
      TrackerDict curves;
      for (int i = 0; i < 200; ++i) curves.emplace_back(std::to_string(1000 + i), step);
      tracker.log({{"m", curves}}, world.step(step));
      tracker.flush();
    }
    const auto read = [&] { return read_scalars(world.disk, join_path(kRun, "m_1199"))["m"]; };
    EXPECT_THAT(read(), SizeIs(1));
    if (by_signal) {
      set_process_is_ending(true);
      tracker.flush();
      set_process_is_ending(false);
    } else {
      tracker.abandon();
    }
    EXPECT_THAT(read(), SizeIs(2));
  }
}

TEST(TensorBoardTracker, AProjectsNameDoesNotLeadAway) {
  TrackerWorld world;
  world.project = "../other";
  track(world, [&](TensorBoardTracker& tracker) { tracker.log({{"a", 1}}, world.step(0)); });
  EXPECT_THAT(world.disk.list("/sim").value(), ElementsAre("logs"));
  EXPECT_THAT(read_scalars(world.disk, "/sim/logs/%2E./other")["a"], SizeIs(1));
}

TEST(TensorBoardTracker, MoreCurvesThanFilesAreKeptOpen) {
  TrackerWorld world;
  const auto files = [&](const std::string& curve) {
    const auto names = world.disk.list(join_path(kRun, curve));
    return names.ok() ? names->size() : 0;
  };
  track(world, [&](TensorBoardTracker& tracker) {
    for (int step = 0; step < 6; ++step) {
      TrackerDict curves;
      for (int i = 0; i < 200; ++i) curves.emplace_back(std::to_string(1000 + i), step);
      tracker.log({{"m", curves}}, world.step(step));
      tracker.flush();
      world.now += absl::Seconds(40);
    }
    EXPECT_EQ(files("m_1000"), 1u);
    EXPECT_GT(files("m_1199"), 1u);
    EXPECT_LT(files("m_1199"), 6u);
  });
  for (const char* const curve : {"m_1000", "m_1199"}) {
    const auto read = read_scalars(world.disk, join_path(kRun, curve))["m"];
    EXPECT_THAT(read, ElementsAre(Pair(0, 0.0), Pair(1, 1.0), Pair(2, 2.0), Pair(3, 3.0),
                                  Pair(4, 4.0), Pair(5, 5.0)))
        << curve;
  }
}

TEST(TensorBoardTracker, KeepsTextsAndTables) {
  TrackerWorld world;
  track(world, [&](TensorBoardTracker& tracker) {
    tracker.log({{"note", "gr\xC3\xBC\xC3\x9F dich\xFF"}}, world.step(2));
    tracker.log_table(
        "samples",
        {.columns = {"text", "score"}, .rows = {{"a|b", 0.5}, {"two\nlines", std::nullopt}}},
        world.step(3));
    EXPECT_NE(error_of([&] { tracker.log_table("empty", {}, world.step(4)); }), "");
  });
  const auto read = values(world);
  ASSERT_THAT(read, SizeIs(2));
  EXPECT_EQ(read[0].first, 2);
  EXPECT_EQ(read[0].second.tag, "note/text_summary");
  EXPECT_EQ(read[0].second.plugin, "text");
  EXPECT_EQ(read[0].second.text, "gr\xC3\xBC\xC3\x9F dich\xEF\xBF\xBD");
  EXPECT_EQ(read[1].second.text,
            "| text | score |\n| --- | --- |\n| a\\|b | 0.5 |\n| two<br>lines | None |\n");
}

TrackerImage image(int64_t height, int64_t width, int64_t channels, int first) {
  TrackerImage image{.height = height, .width = width, .channels = channels};
  image.pixels.resize(height * width * channels);
  std::iota(image.pixels.begin(), image.pixels.end(), static_cast<uint8_t>(first));
  return image;
}

TEST(TensorBoardTracker, KeepsImagesAsPng) {
  TrackerWorld world;
  const TrackerImage one = image(3, 5, 3, 10);
  std::vector<TrackerImage> many;
  for (int i = 0; i < 11; ++i) many.push_back(image(2, 3, 1, 20 * i));
  track(world, [&](TensorBoardTracker& tracker) {
    tracker.log_images({{"one", {one}}, {"many", many}, {"mixed", {one, image(4, 4, 4, 1)}}},
                       world.step(6, {{"dataformats", "NHWC"}}));
    EXPECT_THAT(
        error_of([&] { tracker.log_images({{"none", {}}, {"after", {one}}}, world.step(7)); }),
        HasSubstr("`none` has no images"));
  });
  const auto read = values(world);
  ASSERT_THAT(read, SizeIs(5));
  EXPECT_EQ(read[0].first, 6);
  EXPECT_EQ(read[0].second.tag, "one");
  EXPECT_EQ(read[0].second.image->height, 3);
  EXPECT_EQ(read[0].second.image->width, 5);
  EXPECT_EQ(read[0].second.image->colorspace, 3);
  EXPECT_EQ(decode_png(read[0].second.image->png), one);

  const TrackerImage all = decode_png(read[1].second.image->png);
  EXPECT_EQ(all.height, 4);
  EXPECT_EQ(all.width, 24);
  for (size_t i = 0; i < 16; ++i) {
    for (size_t y = 0; y < 2; ++y) {
      for (size_t x = 0; x < 3; ++x) {
        const uint8_t pixel = all.pixels[(i / 8 * 2 + y) * 24 + i % 8 * 3 + x];
        EXPECT_EQ(pixel, i < 11 ? many[i].pixels[y * 3 + x] : 0) << i << " " << y << " " << x;
      }
    }
  }
  EXPECT_EQ(read[2].second.tag, "mixed/0");
  EXPECT_EQ(read[3].second.tag, "mixed/1");
  EXPECT_EQ(decode_png(read[3].second.image->png), image(4, 4, 4, 1));
  EXPECT_EQ(read[4].second.tag, "after");
}

TEST(TensorBoardTracker, CountsHistograms) {
  TrackerWorld world;
  const double inf = std::numeric_limits<double>::infinity();
  track(world, [&](TensorBoardTracker& tracker) {
    tracker.log_histograms(
        {{"w", TensorValue{.sizes = {9},
                           .dtype = "float32",
                           .values = {0, 0, -1, 1, 1.05, 2, 1e30, inf, std::nan("")}}},
         {"one", 5}},
        world.step(1));
    EXPECT_THAT(error_of([&] {
                  tracker.log_histograms(
                      {{"nothing", TensorValue{.sizes = {0}, .dtype = "float32"}}, {"after", 0}},
                      world.step(2));
                }),
                HasSubstr("`nothing`: a histogram needs a value that is finite"));
  });
  const auto read = values(world);
  ASSERT_THAT(read, SizeIs(3));
  const EventValue::Histogram& w = *read[0].second.histogram;
  EXPECT_EQ(w.min, -1);
  EXPECT_EQ(w.max, 1e30);
  EXPECT_EQ(w.num, 7);
  EXPECT_EQ(w.sum, 1e30);
  EXPECT_DOUBLE_EQ(w.sum_squares, 1e60);
  ASSERT_EQ(w.limits.size(), w.counts.size());
  EXPECT_EQ(std::accumulate(w.counts.begin(), w.counts.end(), 0.0), 7);
  EXPECT_TRUE(std::is_sorted(w.limits.begin(), w.limits.end()));
  EXPECT_EQ(w.counts.front(), 0);  // only says where the first begins
  EXPECT_GT(w.counts[1], 0);
  const auto count_of = [&](double value) {  // in the bucket with the value
    size_t i = 0;
    while (!(value < w.limits[i])) ++i;
    EXPECT_LE(value < 1e20 ? w.limits[i] / w.limits[i - 1] : 1.0, value > 0 ? 1.1 + 1e-9 : 1.0);
    return w.counts[i];
  };
  EXPECT_EQ(count_of(-1), 1);
  EXPECT_EQ(count_of(2), 1);
  EXPECT_EQ(count_of(1) + (count_of(1) == 2 ? 0 : count_of(1.05)), 2);
  EXPECT_EQ(w.counts.back(), 1);  // 1e30
  EXPECT_EQ(read[1].second.histogram->num, 1);
  EXPECT_THAT(read[1].second.histogram->counts, ElementsAre(0, 1));
  EXPECT_EQ(read[2].second.tag, "after");
}

TEST(TensorBoardTracker, StoresHyperparameters) {
  TrackerWorld world;
  track(world, [&](TensorBoardTracker& tracker) {
    tracker.store_init_configuration({{"lr", 0.1},
                                      {"layers", 3},
                                      {"amp", false},
                                      {"name", "big"},
                                      {"none", std::nullopt},
                                      {"optimizer", {{"kind", "adam"}, {"eps", 1e-8}}},
                                      {"sizes", TrackerList{1, 2}},
                                      {"limit", std::numeric_limits<double>::infinity()}});
    tracker.store_init_configuration({{"lr", 0.2}});
  });
  ASSERT_THAT(folders(world), ElementsAre("5.0", "5.000001"));
  const std::string session = join_path(kRun, "5.0");
  EXPECT_EQ(world.file(join_path(session, "hparams.yml")),
            "amp: false\nlayers: 3\nlimit: .inf\nlr: 0.1\nname: big\nnone: null\n"
            "optimizer:\n  eps: 1.0e-08\n  kind: adam\nsizes:\n- 1\n- 2\n");
  const auto read = values(world, session);
  ASSERT_THAT(read, SizeIs(3));
  EXPECT_EQ(read[0].second.tag, "_hparams_/experiment");
  EXPECT_EQ(read[1].second.tag, "_hparams_/session_start_info");
  EXPECT_EQ(read[2].second.tag, "_hparams_/session_end_info");
  for (const auto& [step, value] : read) EXPECT_EQ(value.plugin, "hparams");
  EXPECT_THAT(
      parse_hparams(read[1].second.plugin_content),
      UnorderedElementsAre(
          Pair("lr", TrackerValue(0.1)), Pair("layers", TrackerValue(3.0)),
          Pair("amp", TrackerValue(false)), Pair("name", TrackerValue("big")),
          Pair("optimizer/kind", TrackerValue("adam")), Pair("optimizer/eps", TrackerValue(1e-8)),
          Pair("sizes", TrackerValue("[1, 2]")), Pair("limit", TrackerValue("inf"))));
  // Experiment: of each hyperparameter its name and kind.
  std::map<std::string, uint64_t> kinds;
  for (const ProtoField& data : parse_proto(read[0].second.plugin_content)) {
    ASSERT_EQ(data.number, 2);
    for (const ProtoField& info : parse_proto(data.bytes)) {
      if (info.number != 4) continue;
      const auto parts = parse_proto(info.bytes);
      kinds[std::string(parts.at(0).bytes)] = parts.at(1).bits;
    }
  }
  EXPECT_EQ(kinds, (std::map<std::string, uint64_t>{{"lr", 3},
                                                    {"layers", 3},
                                                    {"amp", 2},
                                                    {"name", 1},
                                                    {"optimizer/kind", 1},
                                                    {"optimizer/eps", 3},
                                                    {"sizes", 1},
                                                    {"limit", 1}}));
  // The end says that the session ended well.
  const auto end = parse_proto(read[2].second.plugin_content);
  ASSERT_EQ(end.at(0).number, 4);
  EXPECT_EQ(parse_proto(end.at(0).bytes).at(0).bits, 1);
  EXPECT_EQ(world.file("/sim/logs/run/5.000001/hparams.yml"), "lr: 0.2\n");
}

TEST(TensorBoardTracker, GoesOnWithARunThatEndedEarly) {
  TrackerWorld world;
  const auto log = [&](TensorBoardTracker& tracker, int step, double value) {
    tracker.log({{"loss", value}, {"chart", {{"a", value}}}}, world.step(step));
  };
  track(world, [&](TensorBoardTracker& tracker) {
    for (int i = 0; i < 6; ++i) log(tracker, i, i);
  });
  track(world,
        [&](TensorBoardTracker& tracker) {
          for (int i = 4; i < 7; ++i) log(tracker, i, 10 * i);
        },
        {{"purge_step", 4}, {"filename_suffix", ".again"}});
  const auto expected = ElementsAre(Pair(0, 0.0), Pair(1, 1.0), Pair(2, 2.0), Pair(3, 3.0),
                                    Pair(4, 40.0), Pair(5, 50.0), Pair(6, 60.0));
  EXPECT_THAT(read_scalars(world.disk, kRun).at("loss"), expected);
  EXPECT_THAT(read_scalars(world.disk, join_path(kRun, "chart_a")).at("chart"), expected);
  EXPECT_THAT(event_file_names(world.disk, kRun),
              ElementsAre("events.out.tfevents.0000000005.rank0.0.0",
                          "events.out.tfevents.0000000006.rank0.0.0.again"));
}

TEST(TensorBoardTracker, IsReadableAfterEachCallWithoutAnEnd) {
  TrackerWorld world;
  const TrackerSetup setup = world.setup();
  TensorBoardTracker tracker(setup);
  tracker.start();
  EXPECT_THAT(read_events(world.disk, kRun), SizeIs(1));
  tracker.log({{"loss", 0.5}}, world.step(1));
  EXPECT_THAT(read_scalars(world.disk, kRun).at("loss"), SizeIs(1));
  tracker.log_images({{"i", {image(2, 2, 3, 0)}}}, world.step(2));
  tracker.flush();
  EXPECT_THAT(values(world), SizeIs(2));
}

TEST(TensorBoardTracker, RotatesFiles) {
  TrackerWorld world;
  track(world,
        [&](TensorBoardTracker& tracker) {
          for (int i = 0; i < 100; ++i) tracker.log({{"loss", i}}, world.step(i));
        },
        {{"max_file_bytes", 1000}});
  EXPECT_GT(event_file_names(world.disk, kRun).size(), 3);
  EXPECT_THAT(read_scalars(world.disk, kRun).at("loss"), SizeIs(100));
}

// A process of its own, on the machine's disk, that is killed behind a flush.
TEST(TensorBoardTracker, LeavesWhatItFlushedWhereTheProcessIsKilled) {
  HostFiles files;
  const TemporaryFolder temporary;
  const std::string folder = temporary.path();
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const Environment environment;
    const TrackerServices services{.files = files,
                                   .environment = environment,
                                   .now = [] { return absl::FromUnixSeconds(5); },
                                   .warn = [](std::string_view) {},
                                   .info = [](std::string_view) {}};
    const TrackerSetup setup{
        .project_name = "run", .logging_dir = folder, .time = services.now(), .services = services};
    TensorBoardTracker tracker(setup);
    tracker.start();
    for (int i = 0; i < 200; ++i) {
      tracker.log({{"loss", 0.5 * i}, {"chart", {{"a", i}}}}, {.step = i, .time = services.now()});
    }
    ::kill(::getpid(), SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  const std::string run = join_path(folder, "run");
  EXPECT_THAT(read_scalars(files, run).at("loss"), SizeIs(200));
  EXPECT_THAT(read_scalars(files, join_path(run, "chart_a")).at("chart"), SizeIs(200));
  EXPECT_THAT(event_file_names(files, run),
              ElementsAre(::testing::EndsWith(absl::StrCat(".", child, ".0"))));
}

// No folder can be made at first.
TEST(TensorBoardTracker, StartsLaterWhereItCannotAtOnce) {
  TrackerWorld world;
  ASSERT_TRUE(write_file(world.disk, "/sim/logs", "a file").ok());
  const TrackerSetup setup = world.setup();
  TensorBoardTracker tracker(setup);
  EXPECT_THAT(error_of([&] { tracker.start(); }), HasSubstr("/sim/logs"));
  tracker.log({{"loss", 1}}, world.step(1));  // too soon to be tried
  world.now += absl::Seconds(1);
  EXPECT_NE(error_of([&] { tracker.log({{"loss", 2}}, world.step(2)); }), "");
  ASSERT_TRUE(world.disk.remove("/sim/logs").ok());
  world.now += absl::Seconds(1);
  tracker.log({{"loss", 3}}, world.step(3));
  EXPECT_THAT(read_scalars(world.disk, kRun).at("loss"), SizeIs(3));
}

TEST(TensorBoardTracker, RefusesArgumentsThatItDoesNotKnow) {
  TrackerWorld world;
  const auto error = [&](TrackerDict kwargs) {
    return error_of([&] {
      const TrackerSetup setup = world.setup(std::move(kwargs));
      const TensorBoardTracker tracker(setup);
    });
  };
  EXPECT_THAT(error({{"flush_sec", 1}}),
              StartsWith("tracker tensorboard: `flush_sec` in its init_kwargs is not known"));
  EXPECT_THAT(error({{"purge_step", "1"}}), HasSubstr("`purge_step`"));
  EXPECT_THAT(error({{"max_queue", -1}}), HasSubstr("must be at least 0, not -1"));
  EXPECT_THAT(error({{"flush_secs", std::nan("")}}), HasSubstr("`flush_secs`"));
  EXPECT_THAT(error({{"filename_suffix", "a/b"}}), HasSubstr("without a slash"));
  EXPECT_THAT(error({{"max_file_bytes", 0}}), HasSubstr("must be more than 0"));
  EXPECT_EQ(error({{"comment", "x"},
                   {"purge_step", std::nullopt},
                   {"max_queue", 10},
                   {"flush_secs", 0.5},
                   {"filename_suffix", ".a"},
                   {"max_file_bytes", 1}}),
            "");
  EXPECT_THAT(world.disk.list("/sim").value(), IsEmpty());
}

}  // namespace
}  // namespace accelerate::trackers
