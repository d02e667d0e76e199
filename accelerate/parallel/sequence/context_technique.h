/// Models whose attention ranks along cp divide, in passes inside of maybe_context_parallel.
///
/// The layout of such a model says that its inputs are divided along cp: its parameters are whole,
/// gradients are means over these ranks too, and sharding divides rows among them. Where ranks have
/// other tokens, operators draw random numbers of the rank's own (operators/random_streams.h).
/// Passes outside of the scope compute whole sequences, alike on all ranks along cp.
///
/// Errors:  c10::ValueError naming the rank, from passes inside of the scope: of a model that
///          computes no attention, and of one that is not told where its tokens are.
/// Threads: the rank's thread.
#pragma once

#include <memory>
#include <string_view>

#include "accelerate/forward/technique.h"

namespace accelerate {

struct TechniqueContext;

inline constexpr std::string_view kContextParallelTechnique = "context_parallel";

/// Null without ranks along cp. Collective over them, see RandomStreams::along.
std::unique_ptr<Technique> make_context_parallel_technique(const TechniqueContext& context);

}  // namespace accelerate
