/// What a model's layout asks for around its passes, where the module has parts of the model's
/// tensors: sums of partial gradients at the end of backward passes, behind the reductions of other
/// techniques (GradientSums), and comparison of what ranks have alike: of values when the model is
/// prepared, and of gradients after each pass that synchronises them. Checkpoints have what ranks
/// have summed in an accumulation window.
///
/// Collective: where ranks sum, or compare by gathering; see GradientSums and check_equal_along.
/// Errors:  those of check_equal_along, when it is made and from backward passes.
/// Threads: the rank's thread.
#pragma once

#include <memory>
#include <string_view>

#include "accelerate/forward/technique.h"
#include "accelerate/plan/plan.h"

namespace accelerate {

inline constexpr std::string_view kLayoutTechnique = "layout";

/// For models that are trained and of which the module has parts. To be made after the techniques
/// that train something in place of parameters.
std::unique_ptr<Technique> make_layout_technique(const TechniqueContext& context);

}  // namespace accelerate
