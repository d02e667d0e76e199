/// Models whose sequences the ranks along sp divide, by Ulysses: each rank computes the tokens that
/// it has of each sequence, and for attention ranks exchange tokens for heads (ulysses_handler.h).
///
/// Ranks along sp have all parameters, or shards of them, and other tokens: gradients are means
/// over them, as over ranks with other batches. Where a pass draws random numbers, each rank draws
/// its own (operators/random_streams.h).
///
/// Threads: the rank's thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "accelerate/comm/process_group.h"
#include "accelerate/forward/technique.h"
#include "accelerate/operators/random_streams.h"
#include "accelerate/plan/plan.h"

namespace accelerate {

class UlyssesTechnique final : public Technique {
 public:
  /// `group`: the ranks along sp. `rank`: this one in the job.
  UlyssesTechnique(ProcessGroupPtr group, int rank, std::shared_ptr<RandomStreams> streams)
      : group_(std::move(group)), rank_(rank), streams_(std::move(streams)) {}

  static constexpr std::string_view kName = "ulysses";
  std::string_view name() const override { return kName; }

  /// Errors: c10::ValueError where the pass has attended, but got tokens without their positions,
  ///         which would begin at 0 on each rank.
  void forward(ForwardPass& pass) override;
  std::string passes_text() const override;

 private:
  int64_t num_attention_calls_ = 0;
  const ProcessGroupPtr group_;
  const int rank_;
  const std::shared_ptr<RandomStreams> streams_;
  bool knows_positions_ = false;
};

/// Null where the mesh has one rank along sp. Collective over the ranks along sp, see
/// RandomStreams::along.
std::unique_ptr<Technique> make_ulysses_technique(const TechniqueContext& context);

}  // namespace accelerate
