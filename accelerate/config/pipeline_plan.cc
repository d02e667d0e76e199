#include "accelerate/config/pipeline_plan.h"

#include "accelerate/config/option_fields.h"
#include "accelerate/options/options.h"

namespace accelerate {

PipelinePlan pipeline_plan_of(const Environment& environment) {
  PipelineVariables variables;
  fill_fields(variables, options::Section::kParallelism, environment);
  // The others have defaults.
  return {.schedule = variables.pp_schedule.value(),
          .stages_per_rank = static_cast<int>(variables.pp_stages_per_rank.value()),
          .split_points = variables.pp_split_points.value_or(std::vector<std::string>()),
          .micro_batches = static_cast<int>(variables.pp_micro_batches.value())};
}

}  // namespace accelerate
