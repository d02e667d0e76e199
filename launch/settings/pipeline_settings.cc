#include "launch/settings/pipeline_settings.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "accelerate/base/number_text.h"
#include "accelerate/pipeline/costs.h"
#include "accelerate/pipeline/schedule.h"
#include "accelerate/pipeline/schedule_text.h"

namespace accelerate::launcher::settings {
namespace {

constexpr char kSchedule[] = "parallelism_config_pp_schedule";
constexpr char kSplitPoints[] = "parallelism_config_pp_split_points";
constexpr char kStageBytes[] = "parallelism_config_pp_stage_bytes";
constexpr int kColumns = 120;

bool has_stages(const Settings& settings) {
  return settings.flag("use_parallelism_config") &&
         settings.number("parallelism_config_pp_size") > 1;
}

absl::Status refuse(const Settings& settings, absl::string_view name, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat(settings.describe(name), ": ", why));
}

absl::StatusOr<pipeline::Schedule> schedule_of(const Settings& settings) {
  const auto number = [&settings](absl::string_view name) {
    return static_cast<int>(settings.number(absl::StrCat("parallelism_config_pp_", name)));
  };
  const absl::StatusOr<pipeline::ScheduleKind> kind =
      pipeline::parse_schedule_kind(settings.text(kSchedule));
  if (!kind.ok()) return refuse(settings, kSchedule, kind.status().message());
  absl::StatusOr<pipeline::Schedule> schedule =
      pipeline::make_schedule(*kind, {.ranks = number("size"),
                                      .stages_per_rank = number("stages_per_rank"),
                                      .micro_batches = number("micro_batches")});
  if (!schedule.ok()) return refuse(settings, kSchedule, schedule.status().message());
  return schedule;
}

absl::Status check_split_points(const Settings& settings, int stages) {
  if (!settings.is_set(kSplitPoints)) return absl::OkStatus();
  const std::vector<std::string> names = absl::StrSplit(settings.text(kSplitPoints), ',');
  if (names.size() + 1 == static_cast<size_t>(stages)) return absl::OkStatus();
  return refuse(settings, kSplitPoints,
                absl::StrCat("there are ", stages, " stages, which begin at ", stages - 1,
                             " parts besides the first one; name so many"));
}

// By stage; empty: nothing is known.
absl::StatusOr<std::vector<int64_t>> stage_bytes_of(const Settings& settings, int stages) {
  std::vector<int64_t> bytes;
  if (!settings.is_set(kStageBytes)) return bytes;
  const std::vector<std::string> sizes = absl::StrSplit(settings.text(kStageBytes), ',');
  for (const std::string& text : sizes) {
    const std::optional<int64_t> size = parse_byte_size(text);
    if (!size)
      return refuse(settings, kStageBytes, "expected sizes with a unit, as in 1.5GiB,1GiB");
    bytes.push_back(*size);
  }
  if (bytes.size() == 1) bytes.resize(static_cast<size_t>(stages), bytes[0]);
  if (bytes.size() == static_cast<size_t>(stages)) return bytes;
  return refuse(settings, kStageBytes,
                absl::StrCat("expected one size, or one for each of ", stages, " stages"));
}

}  // namespace

absl::Status check_pipeline(const Settings& settings) { return pipeline_text(settings).status(); }

absl::StatusOr<std::string> pipeline_text(const Settings& settings) {
  if (!has_stages(settings)) return "";
  const absl::StatusOr<pipeline::Schedule> schedule = schedule_of(settings);
  if (!schedule.ok()) return schedule.status();
  const int stages = schedule->stages;
  if (absl::Status ok = check_split_points(settings, stages); !ok.ok()) return ok;
  absl::StatusOr<std::vector<int64_t>> bytes = stage_bytes_of(settings, stages);
  if (!bytes.ok()) return bytes.status();
  const absl::StatusOr<pipeline::ScheduleTimes> times = pipeline::schedule_times(
      *schedule, {.stages = {{.forward_ns = 1, .input_gradient_ns = 1, .weight_gradient_ns = 1}}});
  if (!times.ok()) return times.status();
  return absl::StrCat(
      "pipeline ", settings.text(kSchedule),
      ", where a backward pass takes the time of two forward passes:\n",
      pipeline::schedule_text(*schedule, *times,
                              {.columns = kColumns, .stage_bytes = *std::move(bytes)}));
}

}  // namespace accelerate::launcher::settings
