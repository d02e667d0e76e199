/// A c10d::Reducer whose gradients are stored in its buckets, but behave like copies: they are not
/// autograd views, and a gradient that code still holds after it was reset never changes.
///
/// Before a pass writes to a bucket, reference counts show whether other code holds tensors in the
/// memory that is about to be overwritten. Then that code keeps the memory, the bucket gets new
/// memory, and from then on gradients are copied out, so that a held gradient does not keep a whole
/// bucket alive. A gradient that existed before the pass and that other code holds stays the same
/// tensor.
///
/// Errors: as the Reducer.
/// Threads: as the Reducer.
/// Mirrors: nothing; PyTorch's Reducer either copies gradients or makes views.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/reducer.hpp>

namespace accelerate::internal {

class GradientsInBuckets : public c10d::Reducer {
 public:
  using c10d::Reducer::Reducer;
  using Buckets = std::vector<std::vector<size_t>>;

  /// Switches this behaviour on; before, it is an ordinary Reducer. To be called before the first
  /// pass, on a Reducer with gradient_as_bucket_view. Not for models that leave parameters unused,
  /// and not with a communication hook, whose result has to be copied anyway.
  static void start(const std::shared_ptr<GradientsInBuckets>& self);

  /// As in the Reducer, but safe for gradients that other code holds.
  void prepare_for_backward(const std::vector<at::Tensor>& outputs);
  bool rebuild_buckets();
  void initialize_buckets(Buckets indices);

 private:
  class BeforeGradient;
  // Parameters, and their gradients that other code holds.
  using Kept = std::vector<std::pair<at::Tensor, at::Tensor>>;

  void begin_pass();
  // Whether the Reducer has just received all gradients, and end_pass() has work to do. True once.
  bool must_end_pass();
  void end_pass();

  void make_all_places();
  Kept held_gradients();

  bool started_ = false;
  bool begun_ = false;       // begin_pass() ran for the prepared pass
  bool ends_ = false;        // end_pass() has work to do
  bool copies_out_ = false;  // other code has kept gradients
  Kept kept_;
};

}  // namespace accelerate::internal
