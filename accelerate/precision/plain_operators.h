/// Operators as they are called: for code whose tensors have their dtypes already.
///
/// Threads: a scope acts on the thread that made it.
#pragma once

#include <ATen/autocast_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "accelerate/operators/operator_mode.h"

namespace accelerate::internal {

/// While it lives, automatic mixed precision changes no dtypes, and no handler computes linear
/// layers otherwise.
struct PlainOperators {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast{c10::autocast_dispatch_keyset};
  const OperatorModeScope no_handler = OperatorModeScope::without(OperatorOrder::kLinearProducts);
};

}  // namespace accelerate::internal
