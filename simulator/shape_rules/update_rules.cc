// Operators that only write to what they are given: optimizers, mixed precision, checks.
#include "simulator/shape_rules/rule.h"

namespace accelerate::simulator::shape_rules {
namespace {

void into_arguments() {}

}  // namespace

Rules update_rules() {
  return {
      {"_fused_adam_ _fused_adam_.tensor_lr _fused_adamw_ _fused_adamw_.tensor_lr _fused_sgd_ "
       "_fused_sgd_.tensor_lr _fused_adagrad_ _amp_foreach_non_finite_check_and_unscale_ "
       "_amp_update_scale_ _assert_async _assert_async.msg",
       by<into_arguments>},
  };
}

}  // namespace accelerate::simulator::shape_rules
