// Operators that only write to what they are given: optimizers, mixed precision, checks.
#include "simulator/shape_rules/rule.h"

namespace accelerate::simulator::shape_rules {
namespace {

void into_arguments() {}

}  // namespace

Rules update_rules() {
  return {
      {"_fused_adam_", by<into_arguments>},
      {"_fused_adam_.tensor_lr", by<into_arguments>},
      {"_fused_adamw_", by<into_arguments>},
      {"_fused_adamw_.tensor_lr", by<into_arguments>},
      {"_fused_sgd_", by<into_arguments>},
      {"_fused_sgd_.tensor_lr", by<into_arguments>},
      {"_fused_adagrad_", by<into_arguments>},
      {"_amp_foreach_non_finite_check_and_unscale_", by<into_arguments>},
      {"_amp_update_scale_", by<into_arguments>},
      {"_assert_async", by<into_arguments>},
      {"_assert_async.msg", by<into_arguments>},
  };
}

}  // namespace accelerate::simulator::shape_rules
