/// Models whose attention ranks along cp divide, in passes inside of maybe_context_parallel.
///
/// The layout of such a model says that its inputs are divided along cp: its parameters are whole,
/// gradients are means over these ranks too, and sharding divides rows among them. Where ranks have
/// other tokens, operators draw random numbers of the rank's own (operators/random_streams.h).
/// Passes outside of the scope compute whole sequences, alike on all ranks along cp. At a model's
/// second one with gradients, in a program that has not entered any scope, the first rank of the
/// job warns.
///
/// Errors:  c10::ValueError naming the rank, from passes inside of the scope: of a model that
///          computes no attention, and of one that is not told where its tokens are.
/// Threads: the rank's thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "accelerate/forward/technique.h"
#include "accelerate/operators/random_streams.h"
#include "accelerate/runtime/runtime.h"

namespace accelerate {

struct TechniqueContext;

class ContextParallelTechnique final : public Technique {
 public:
  /// `has_stages`: passes are those of stages of a pipeline, which may have no attention.
  ContextParallelTechnique(Runtime& runtime, std::shared_ptr<RandomStreams> streams,
                           bool has_stages)
      : runtime_(runtime), streams_(std::move(streams)), has_stages_(has_stages) {}

  static constexpr std::string_view kName = "context_parallel";
  std::string_view name() const override { return kName; }
  void forward(ForwardPass& pass) override;
  std::string passes_text() const override;

 private:
  void count_undivided_pass();

  Runtime& runtime_;
  int64_t num_attention_calls_ = 0;
  int64_t num_undivided_passes_ = 0;  // with gradients, before the program's first scope
  const std::shared_ptr<RandomStreams> streams_;
  const bool has_stages_;
  bool knows_positions_ = false;
};

/// Null without ranks along cp. Collective over them, see RandomStreams::along.
std::unique_ptr<Technique> make_context_parallel_technique(const TechniqueContext& context);

}  // namespace accelerate
