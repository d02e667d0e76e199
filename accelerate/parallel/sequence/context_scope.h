/// A scope in which ranks along cp have some tokens of each sequence.
///
///   auto scope = accelerator.maybe_context_parallel({tokens, labels, positions}, {1, 1, 0},
///                                                   {tokens, labels});
///   loss = loss_of(model(tokens, positions), labels);
///   accelerator.backward(loss);
///
/// The buffers become this rank's part of them, in place, until the scope ends; attention of
/// prepared models reaches all ranks' tokens (ContextHandler). Whatever else depends on where a
/// token is must be given: a model gets positions as an input, and labels are shifted before, since
/// the label of a part's last token is on another rank.
///
/// Threads: the rank's thread.
/// Mirrors: accelerate accelerator.py, Accelerator.maybe_context_parallel;
///          torch.distributed.tensor.experimental, context_parallel.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "accelerate/base/mesh_axis.h"
#include "accelerate/forward/technique.h"
#include "accelerate/operators/attention_calls.h"
#include "accelerate/parallel/sequence/ring_attention.h"
#include "accelerate/runtime/runtime.h"
#include "accelerate/tensors/libtorch_releases.h"

namespace accelerate {

struct TechniqueContext;

/// What a scope divides.
struct ContextBuffers {
  std::vector<at::Tensor> buffers = {};
  /// The dim of tokens, for each of them.
  std::vector<int64_t> seq_dims = {};
  /// Those that are not restored, which saves their memory.
  std::vector<at::Tensor> no_restore = {};
};

/// Divides the attention of a forward pass among the ranks along cp.
///
/// scaled_dot_product_attention of this rank's tokens becomes ring_attention. Other operators pass,
/// but for attention that a module computes itself, which would be that of this rank's tokens
/// alone.
///
/// Errors:  c10::ValueError naming the rank and the operator: for such attention
///          (DividedAttention); for attention with a mask or dropout, of other sequences
///          than those of the scope (as where tokens are generated one by one), and of shapes that
///          the kernels do not have.
/// Collective over the group of the ring: attention, and its backward pass.
/// Threads: those of the model's passes.
class ContextHandler final : public DividedAttention {
 public:
  /// `tokens`: how many this rank has of each sequence; 0: as many as attention is given.
  ContextHandler(ContextRing ring, int rank, int64_t tokens)
      : DividedAttention(MeshAxis::kCp, rank, tokens), ring_(std::move(ring)) {}

  const ContextRing& ring() const { return ring_; }

 private:
  at::Tensor attention(c10::ArrayRef<c10::IValue> arguments) override;

  const ContextRing ring_;
};

class ContextParallelScope {
 public:
  /// Local. With a ring of one rank nothing is divided, and the first rank of the job warns once.
  /// Errors: c10::ValueError, and nothing is divided, for another number of dims than of buffers;
  ///         buffers that require gradients, come twice or have different lengths; a length that
  ///         ranks do not divide evenly; one of `no_restore` that is not a buffer; labels that are
  ///         not shifted; and inside of another scope.
  ContextParallelScope(Runtime& runtime, const ContextRing& ring, const ContextBuffers& buffers);
  ContextParallelScope(ContextParallelScope&&) noexcept;
  ContextParallelScope& operator=(ContextParallelScope&&) = delete;
  /// The buffers are whole again, with the values from before.
  ~ContextParallelScope();

  /// The places of this rank's tokens in their sequences, int64 [tokens], on the device of the
  /// first buffer. A program that reads them answers for what its model makes of them: passes are
  /// not checked then.
  /// Errors: c10::ValueError for a scope without buffers.
  at::Tensor positions() const;

  /// How often attention was divided so far.
  int64_t num_attention_calls() const;

  class Live;

 private:
  std::unique_ptr<Live> live_;
};

/// The scope that lives on a rank, for its models.
struct LiveContext {
  /// Whether a loss was computed by a pass in the last scope that has ended and has restored
  /// buffers, which its backward pass would need as they were.
  bool has_ended_before_backward(const at::Tensor& loss) const;

  ContextParallelScope::Live* scope = nullptr;
  /// The ends of the graphs of such passes, as far as there are any left.
  std::vector<internal::WeakNodePointer> ended_passes = {};
  bool has_checked_labels = false;
  bool has_warned = false;
};

class ContextParallelScope::Live {
 public:
  Live(Runtime& runtime, const ContextRing& ring, const ContextBuffers& buffers);
  ~Live();
  Live(const Live&) = delete;
  Live& operator=(const Live&) = delete;

  /// Null where one rank has all tokens.
  const std::shared_ptr<ContextHandler>& handler() const { return handler_; }
  at::Tensor positions();
  /// What ranks have of sequences along this dim, put together in the order of the sequences.
  /// Gradients are summed. Collective over the ring, unless one rank has all tokens.
  at::Tensor gathered(const at::Tensor& part, int64_t dim) const;
  /// Whether a model with these inputs knows where its tokens are: one of them is a buffer of
  /// positions, or the program has asked for positions.
  bool gives_positions(const std::vector<at::Tensor>& inputs) const;
  /// Remembers what a model's pass gave.
  void add_pass(const std::vector<at::Tensor>& outputs);

 private:
  struct Buffer {
    at::Tensor part;   // as its user has it
    at::Tensor whole;  // undefined where it is neither restored nor asked about
    int64_t dim = 0;
    bool is_restored = true;
  };
  void check(const ContextBuffers& given) const;
  void check_labels_are_shifted() const;
  bool has_values() const;

  Runtime& runtime_;
  LiveContext& live_;
  const SequencePlace place_;
  int64_t length_ = 0;  // of whole sequences; 0: there are no buffers
  std::vector<Buffer> buffers_;
  std::shared_ptr<ContextHandler> handler_;
  bool has_asked_for_positions_ = false;
  std::vector<internal::WeakNodePointer> passes_;  // the ends of their graphs
};

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
inline constexpr std::string_view kContextParallelTechnique = "context_parallel";

/// Null without ranks along cp. Collective over them, see RandomStreams::along.
std::unique_ptr<Technique> make_context_parallel_technique(const TechniqueContext& context);

}  // namespace accelerate
