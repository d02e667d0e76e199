/// Models whose layers the ranks along tp divide by a plan (config/tensor_parallel_plan.h).
///
/// The plan gives the model's layout, the cuts leave a rank its parts of parameters, and around
/// forward passes operators with them compute what the whole model computes (tensor_handler.h).
/// Where a rank has a part of features, operators draw random numbers of the rank's own
/// (operators/random_streams.h).
///
/// Threads: the rank's thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "accelerate/comm/process_group.h"
#include "accelerate/forward/technique.h"
#include "accelerate/operators/random_streams.h"
#include "accelerate/parallel/tensor/tensor_handler.h"

namespace accelerate {

struct TechniqueContext;

class TensorParallelTechnique final : public Technique {
 public:
  /// `vocabularies`: how many features those layers have in the whole model that may leave each
  /// rank a part of the logits; none without TensorParallelPlan::parallel_loss.
  TensorParallelTechnique(std::shared_ptr<TensorHandler> handler,
                          std::shared_ptr<RandomStreams> streams, std::vector<int64_t> vocabularies)
      : handler_(std::move(handler)),
        streams_(std::move(streams)),
        vocabularies_(std::move(vocabularies)) {}

  static constexpr std::string_view kName = "tensor_parallel";
  std::string_view name() const override { return kName; }
  void forward(ForwardPass& pass) override;

  const TensorHandler& handler() const { return *handler_; }
  /// The ranks that have parts of the logits; null where all have the whole ones.
  ProcessGroupPtr logits_group() const {
    return vocabularies_.empty() ? nullptr : handler_->group();
  }
  /// All classes of logits of which this rank has so many, by the plan; absent: the logits are
  /// those of a layer that the plan leaves whole, or puts together.
  std::optional<int64_t> vocabulary_of(int64_t classes) const;

 private:
  const std::shared_ptr<TensorHandler> handler_;
  const std::shared_ptr<RandomStreams> streams_;
  const std::vector<int64_t> vocabularies_;
};

/// Null for a model whose plan cuts nothing. Collective over the ranks along tp, see
/// RandomStreams::along.
std::unique_ptr<Technique> make_tensor_parallel_technique(const TechniqueContext& context);

}  // namespace accelerate
