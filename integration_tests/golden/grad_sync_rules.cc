#include "integration_tests/golden/rules.h"

#include "integration_tests/golden/fields.h"
#include "integration_tests/golden/grad_sync_model.h"

namespace accelerate::golden {
namespace {

using nlohmann::json;

bool adjusts_scheduler(const json& in) {
  const json& plugin = field(in, "plugin");
  return !plugin.is_null() && bool_field_or(plugin, "adjust_scheduler", false) &&
         !field(in, "scheduler").is_null() && bool_field(in, "step_scheduler_with_optimizer");
}

constexpr char kFamily[] = "grad_sync";

}  // namespace

std::vector<Decision> grad_sync_rules() {
  return {
      {kFamily, "adjust_scheduler",
       "HF Accelerate accepts adjust_scheduler, which never takes effect; schedulers advance in "
       "micro-steps that do not synchronise as well",
       &adjusts_scheduler, &train_with_adjusted_scheduler},
  };
}

}  // namespace accelerate::golden
