#include "accelerate/config/pipeline_plan.h"

#include <optional>

#include "accelerate/config/option_fields.h"
#include "accelerate/options/options.h"

namespace accelerate {

PipelinePlan pipeline_plan_of(const Environment& environment) {
  std::optional<pipeline::ScheduleKind> schedule;
  std::optional<int64_t> stages_per_rank, micro_batches;
  std::optional<std::vector<std::string>> split_points;
  fill_field(schedule, options::option("parallelism_config_pp_schedule"), environment);
  fill_field(stages_per_rank, options::option("parallelism_config_pp_stages_per_rank"),
             environment);
  fill_field(split_points, options::option("parallelism_config_pp_split_points"), environment);
  fill_field(micro_batches, options::option("parallelism_config_pp_micro_batches"), environment);
  return {.schedule = schedule.value(),
          .stages_per_rank = static_cast<int>(stages_per_rank.value()),
          .split_points = split_points.value_or(std::vector<std::string>()),
          .micro_batches = static_cast<int>(micro_batches.value())};
}

}  // namespace accelerate
