/// The surroundings of a tracker under test: a disk in memory, a clock, and a record of warnings.
///
///   TrackerWorld world({.capacity = 1000});
///   const auto tracker = make_jsonl_tracker(world.setup());
///   tracker->log({{"loss", 0.5}}, world.step(3));
///   EXPECT_EQ(world.file("/sim/logs/run/metrics.jsonl"), ...);
///
/// Threads: one.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "accelerate/tracking/tracker.h"
#include "simulator/disk/sim_disk.h"

namespace accelerate::trackers {

class TrackerWorld {
 public:
  explicit TrackerWorld(simulator::SimDiskOptions options = {})
      : disk(std::move(options)), services(services_on(disk)) {
    services.is_real = false;
  }
  /// On files of the test's own, outside of a simulation.
  TrackerWorld(FileSystem& files, std::string project, absl::Time start)
      : project(std::move(project)), now(start), services(services_on(files)) {}
  TrackerWorld(const TrackerWorld&) = delete;
  TrackerWorld& operator=(const TrackerWorld&) = delete;

  /// The project in /sim/logs, begun at `now`.
  TrackerSetup setup(TrackerDict init_kwargs = {}) {
    return TrackerSetup{.project_name = project,
                        .logging_dir = "/sim/logs",
                        .init_kwargs = std::move(init_kwargs),
                        .random_bits = 0xabcd,
                        .time = now,
                        .services = services};
  }

  TrackerStep step(std::optional<int64_t> number = std::nullopt, TrackerDict kwargs = {}) const {
    return {.step = number, .time = now, .kwargs = std::move(kwargs)};
  }

  /// A file's contents, or why there are none.
  std::string file(const std::string& path) {
    const auto contents = read_file(disk, path);
    return contents.ok() ? *contents : std::string(contents.status().message());
  }

  simulator::SimDisk disk;
  Environment environment;
  std::string project = "run";
  absl::Time now = absl::FromUnixSeconds(5);
  std::vector<std::string> warnings;
  std::vector<std::string> infos;
  TrackerServices services;

 private:
  TrackerServices services_on(FileSystem& files) {
    return {.files = files,
            .environment = environment,
            .now = [this] { return now; },
            .warn = [this](std::string_view text) { warnings.emplace_back(text); },
            .info = [this](std::string_view text) { infos.emplace_back(text); }};
  }
};

/// The text of the exception that it throws, or "".
inline std::string error_of(const std::function<void()>& function) {
  try {
    function();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

}  // namespace accelerate::trackers
