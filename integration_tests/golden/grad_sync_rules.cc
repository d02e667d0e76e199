#include "integration_tests/golden/grad_sync_rules.h"

#include "integration_tests/golden/fields.h"
#include "integration_tests/golden/grad_sync_model.h"

namespace accelerate::golden {
namespace {

using nlohmann::json;

bool adjusts_scheduler(const json& in) {
  const json& plugin = field(in, "plugin");
  return !plugin.is_null() && bool_field(plugin, "adjust_scheduler") &&
         !field(in, "scheduler").is_null() && bool_field(in, "step_scheduler_with_optimizer");
}

// Ranks step on their own gradients, and synchronise later in the epoch.
bool lets_replicas_drift(const json& in) {
  const int64_t steps = accumulation_steps(in);
  return string_field(in, "loop") == "manual" && ranks_field(in, "num_processes") > 1 &&
         steps > 1 && batches_per_epoch(in) >= steps && count_field(in, "epochs") > 0;
}

void find_drift(const json& /*in*/, json& out) {
  if (out.contains("error")) return;
  const json refusal = {
      {"error", {{"type", "RuntimeError"}, {"message", "the replicas have drifted apart"}}}};
  for (json& rank : out.at("ranks")) rank = refusal;
}

constexpr char kFamily[] = "grad_sync";

}  // namespace

std::vector<Decision> grad_sync_rules() {
  return {
      {kFamily, "adjust_scheduler",
       "the peer accepts adjust_scheduler, which never takes effect; schedulers advance in "
       "micro-steps that do not synchronise as well",
       &adjusts_scheduler, &train_with_adjusted_scheduler},
      {kFamily, "replicas that drift apart",
       "the peer trains on with replicas that stepped on gradients of their own; in a simulation "
       "the next synchronising step finds that they differ",
       &lets_replicas_drift, &find_drift},
  };
}

}  // namespace accelerate::golden
