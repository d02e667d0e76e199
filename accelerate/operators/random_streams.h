/// Random numbers where ranks have parts of one tensor, as along tp.
///
/// Ranks that train the same data draw the same numbers: their default generators are in the same
/// state, which is the common stream. For values that all ranks have this is right, because dropout
/// must drop the same elements on each rank. For a tensor of which each rank has a part, dropout
/// would drop the same places of each part, so ranks must draw different numbers.
///
///     const auto streams = RandomStreams::along(mesh.group(MeshAxis::kTp), &copies_of);
///     ...
///     const OperatorModeScope scope(streams);  // in each forward pass
///
/// Inside of the scope an operator that draws for a part takes the rank's own stream: the common
/// stream advances by one number, as it does on the other ranks, and for this operator the default
/// generator of the part's device is one that is derived from the common state and from the number
/// of the rank (derived_generator).
///
/// So a rank's own stream has no state besides the common one, and whatever sets the default
/// generators sets all streams: set_seed, a recomputation (checkpoint.h), and load_state, which
/// gives the ranks of a share of the data the states of that share. The common stream advances
/// equally for parts of any size, so ranks that resume in another layout draw the numbers that
/// ranks of that layout would have drawn from the beginning.
///
/// An operator draws if LibTorch tags it with at::Tag::nondeterministic_seeded, unless its
/// arguments say that nothing is drawn (p = 0, train = false) or name a generator. Operators
/// without a tensor among their arguments, such as at::rand of a shape, draw from the common
/// stream.
///
/// Errors:  those of operators; the common stream goes on as after a draw.
/// Threads: as OperatorMode. While an operator draws for a part, other threads of the rank must not
///          draw from the same default generator.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "accelerate/comm/process_group.h"
#include "accelerate/operators/operator_mode.h"

namespace accelerate {

class RandomStreams final : public OperatorHandler {
 public:
  /// 0 where all ranks have the values of this tensor, which is defined; 1 where each rank has
  /// others in their place; and where so many neighbours have the same ones, their number: these
  /// draw alike. Called for tensors among the arguments of operators that draw, on any thread.
  using Copies = std::function<int64_t(const at::Tensor& tensor)>;

  /// `number`: the rank's number, from 0, among the ranks that have the parts of a tensor.
  RandomStreams(int64_t number, Copies copies);

  /// For the ranks of a group, each of which has its own parts; null stands for one rank. All
  /// default generators get the first rank's states, because ranks may have been seeded
  /// differently or not at all. Without `copies` ranks have other values of every tensor, as where
  /// they compute other tokens. Collective.
  static std::shared_ptr<RandomStreams> along(
      const ProcessGroupPtr& group,
      Copies copies = [](const at::Tensor& /*tensor*/) { return int64_t{1}; });

  void call(const OperatorCall& call) override;

 private:
  struct Part {
    c10::Device device;
    int64_t copies;
  };
  // What the operator draws for; nothing if that is not a part.
  std::optional<Part> drawn_part(const OperatorCall& call) const;

  const int64_t number_;
  const Copies copies_;
};

}  // namespace accelerate
