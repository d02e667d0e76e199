/// A dispatched model as a prepared one, or a module with dispatched models inside of it: the
/// technique that surrounds its forward passes, in which these models compute, called by their
/// handles or as plain modules.
///
/// Where parameters are on the CPU, optimizers train their host tensors in place of them, as they
/// train shards: prepare gives an optimizer these, and gradients are clipped and saved there.
/// Outputs of a dispatched model are on the main device; a module around a dispatched model returns
/// its outputs unmoved.
/// Threads: the rank's thread.
#pragma once

#include <memory>
#include <string_view>

#include "accelerate/forward/technique.h"

namespace accelerate {

struct TechniqueContext;

inline constexpr std::string_view kDispatchTechnique = "dispatch";

/// Whether a model that a device map has placed, or one inside of it, can be prepared. Local.
/// Errors: c10::ValueError for a model on several devices in a job of several ranks, unless
///         ACCELERATE_BYPASS_DEVICE_MAP is set, and for one that is to be trained with offloaded
///         parameters by several ranks, FSDP or DeepSpeed.
void check_dispatched_model(const TechniqueContext& context);
/// Moves what is around the dispatched models in a module to the job's device; what a device map
/// has placed stays there. False for a module without dispatched models, which does not move.
/// Local.
bool move_around_dispatched(const TechniqueContext& context);
/// Null for a module without dispatched models. Local.
std::unique_ptr<Technique> make_dispatch_technique(const TechniqueContext& context);

}  // namespace accelerate
