/// A c10d::Reducer whose gradients lie in its buckets, and yet behave as if copied out of them:
/// they are no autograd views, and one that somebody still holds when it has been reset never
/// changes.
///
/// Before a pass writes to a bucket, reference counts tell whether others have tensors in memory
/// that is about to be overwritten. Then they keep that memory, the bucket gets new one, and from
/// then on gradients are copied out, so that whoever keeps them keeps no whole buckets. A gradient
/// that was there before the pass and that others hold stays that tensor.
///
/// Errors: as the Reducer.
/// Threads: as the Reducer.
/// Mirrors: nothing; torch's Reducer either copies or makes views.
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

  /// Begins to do so; else it is a Reducer like any other. To be called before the first pass, on
  /// one made with gradient_as_bucket_view. Not for models that leave parameters unused, nor with
  /// a hook, whose result has to be copied anyway.
  static void start(const std::shared_ptr<GradientsInBuckets>& self);

  /// As in the Reducer, for gradients that somebody may hold.
  void prepare_for_backward(const std::vector<at::Tensor>& outputs);
  bool rebuild_buckets();
  void initialize_buckets(Buckets indices);

 private:
  class BeforeGradient;
  class AfterGradient;
  // A parameter, and its gradient, which others know.
  using Kept = std::vector<std::pair<at::Tensor, at::Tensor>>;

  void begin_pass();
  // Whether the Reducer has just got all gradients, and what it does then is not all. True once.
  bool must_end_pass();
  void end_pass();

  // Whether the parameter's gradient lies where the bucket has it.
  static bool is_in_place(const Bucket& bucket, size_t i);
  static bool fits_place(const Bucket& bucket, size_t i, const at::Tensor& tensor);
  // So that references can be counted: what only the last pass needed goes, and a gradient that
  // was replaced by another tensor on the same memory, as zero_grad(false) does, is the one.
  static void tidy(Bucket& bucket);
  static bool is_shared(const Bucket& bucket);
  static bool is_place_held(const Bucket& bucket, size_t i);
  static bool is_about_to_change(const Bucket& bucket);
  static void make_places(Bucket& bucket, bool moves_gradients);
  void make_all_places();
  Kept held_gradients();

  bool started_ = false;
  bool begun_ = false;       // the pass that was prepared
  bool ends_ = false;        // the pass has something to do at its end
  bool copies_out_ = false;  // somebody keeps gradients
  Kept kept_;
};

}  // namespace accelerate::internal
