/// Which techniques a model gets.
///
/// Threads: the rank's thread.
#pragma once

#include <string_view>

#include "accelerate/base/enums.h"
#include "accelerate/config/kwargs_handlers.h"
#include "accelerate/forward/prepared_model.h"
#include "accelerate/parallel/plan.h"

namespace accelerate {

/// Gives the model its techniques. A model that has them already changes only when it is to be
/// trained for the first time (`trains`), which is when ranks begin to train it together.
/// Collective where several ranks train it. Errors: as those of the techniques' constructors.
void apply_techniques(ModelState& model, const ModelPlan& plan, bool trains);

/// Whether there is a technique of this name; a checkpoint may have its state for a model that does
/// without it here.
bool is_technique(std::string_view name);

/// Checks the options of all techniques as far as no model and no group is needed. Local.
/// Errors: c10::ValueError naming an option that is out of range, or contradicts another or the
///         job's precision.
void check_technique_options(const KwargsHandlers& handlers, PrecisionType precision);

}  // namespace accelerate
