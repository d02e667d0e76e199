#include "accelerate/parallel/replicated/gradients_in_buckets.h"

#include <mutex>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>

namespace accelerate::internal {
namespace {

using torch::autograd::variable_list;

// Whether other code than the parameter holds this gradient or its memory.
bool is_held(const at::Tensor& gradient) {
  return gradient.use_count() > 1 || gradient.storage().use_count() > 1;
}

bool is_dense(const at::Tensor& gradient) {
  return gradient.defined() && gradient.layout() == at::kStrided;
}

// A Bucket is a type that only a Reducer may name.

// Whether the parameter's gradient is the tensor in its place of the bucket.
bool is_in_place(const auto& bucket, size_t i) {
  return bucket.variables[i].grad().is_same(bucket.bucket_views_in[i]);
}

bool fits_place(const auto& bucket, size_t i, const at::Tensor& tensor) {
  const at::Tensor& parameter = bucket.variables[i];
  return tensor.is_alias_of(bucket.gradients) && !tensor.requires_grad() &&
         tensor.storage_offset() == static_cast<int64_t>(bucket.offsets[i]) &&
         tensor.sizes() == parameter.sizes() &&
         (parameter.is_non_overlapping_and_dense() ? tensor.strides() == parameter.strides()
                                                   : tensor.is_contiguous());
}

// Makes reference counts meaningful: drops what only the last pass needed, and takes a gradient
// that is another tensor in the same memory, as after zero_grad(false), as the place's tensor.
void tidy(auto& bucket) {
  for (size_t i = 0; i < bucket.variables.size(); ++i) {
    const at::Tensor& gradient = bucket.variables[i].grad();
    if (is_dense(gradient) && !gradient.is_view() && fits_place(bucket, i, gradient)) {
      bucket.bucket_views_in[i] = gradient;
    }
  }
  bucket.bucket_views_out = bucket.bucket_views_in;
  bucket.future_work.reset();
}

bool is_shared(const auto& bucket) {
  size_t known = 1;
  for (const at::Tensor& place : bucket.bucket_views_in) {
    if (place.is_alias_of(bucket.gradients)) ++known;
  }
  return bucket.gradients.storage().use_count() > known;
}

bool is_place_held(const auto& bucket, size_t i) {
  constexpr size_t kOfBucket = 2;  // views in and out
  return bucket.bucket_views_in[i].use_count() > kOfBucket + (is_in_place(bucket, i) ? 1 : 0);
}

// Whether the coming pass would change tensors that other code holds. A gradient that was not reset
// may change, because the pass is meant to accumulate into it.
bool is_about_to_change(const auto& bucket) {
  const bool shared = is_shared(bucket);
  for (size_t i = 0; i < bucket.variables.size(); ++i) {
    // The place was given other memory, another shape or a history.
    if (!fits_place(bucket, i, bucket.bucket_views_in[i])) return true;
    if (!is_in_place(bucket, i) && (shared || is_place_held(bucket, i))) return true;
  }
  return false;
}

// Makes independent tensors in the bucket's memory, where the Reducer would make views.
void make_places(auto& bucket, bool moves_gradients) {
  at::NoGradGuard no_grad;
  for (size_t i = 0; i < bucket.variables.size(); ++i) {
    const at::Tensor& parameter = bucket.variables[i];
    at::Tensor place = at::empty({0}, bucket.gradients.options());
    const auto offset = static_cast<int64_t>(bucket.offsets[i]);
    if (parameter.is_non_overlapping_and_dense()) {
      place.set_(bucket.gradients.storage(), offset, parameter.sizes(), parameter.strides());
    } else {
      place.set_(bucket.gradients.storage(), offset, parameter.sizes());
    }
    if (moves_gradients && is_in_place(bucket, i)) parameter.mutable_grad() = place;
    bucket.bucket_views_in[i] = std::move(place);
  }
  bucket.bucket_views_out = bucket.bucket_views_in;
}

}  // namespace

// A hook of the node that accumulates a parameter's gradient.
class GradientsInBuckets::BeforeGradient final : public torch::autograd::FunctionPreHook {
 public:
  explicit BeforeGradient(std::weak_ptr<GradientsInBuckets> self) : self_(std::move(self)) {}
  variable_list operator()(const variable_list& gradients) override {
    if (const auto self = self_.lock()) self->begin_pass();
    return gradients;
  }

 private:
  const std::weak_ptr<GradientsInBuckets> self_;
};

void GradientsInBuckets::start(const std::shared_ptr<GradientsInBuckets>& self) {
  self->started_ = true;
  self->make_all_places();
  const auto after_gradient = [weak = std::weak_ptr(self)](const variable_list& outputs,
                                                           const variable_list& /*inputs*/) {
    if (const auto reducer = weak.lock(); reducer && reducer->must_end_pass()) {
      torch::autograd::Engine::get_default_engine().queue_callback([weak] {
        if (const auto alive = weak.lock()) alive->end_pass();
      });
    }
    return outputs;
  };
  for (const auto& accumulator : self->grad_accumulators_) {
    accumulator->add_pre_hook(std::make_unique<BeforeGradient>(self));
    // Runs after the Reducer's own hook, and is removed with it.
    self->hooks_.emplace_back(
        accumulator->add_post_hook(
            std::make_unique<torch::autograd::utils::LambdaPostHook>(after_gradient)),
        accumulator);
  }
}

void GradientsInBuckets::make_all_places() {
  for (Bucket& bucket : buckets_) {
    if (!bucket.expect_sparse_gradient) make_places(bucket, /*moves_gradients=*/true);
  }
}

GradientsInBuckets::Kept GradientsInBuckets::held_gradients() {
  Kept held;
  for (Bucket& bucket : buckets_) {
    if (bucket.expect_sparse_gradient) continue;
    tidy(bucket);
    const bool shared = is_shared(bucket);
    for (size_t i = 0; i < bucket.variables.size(); ++i) {
      const at::Tensor& gradient = bucket.variables[i].grad();
      if (!is_dense(gradient)) continue;
      if (is_in_place(bucket, i) ? shared || is_place_held(bucket, i) : is_held(gradient)) {
        held.emplace_back(bucket.variables[i], gradient);
      }
    }
  }
  return held;
}

void GradientsInBuckets::initialize_buckets(Buckets indices) {
  TORCH_CHECK_VALUE(!expect_autograd_hooks_,
                    "the model has made a forward pass, whose backward pass is still to come and "
                    "would synchronise gradients with what is replaced now: make the backward "
                    "pass first and load again, or make forward passes that are not trained on in "
                    "a scope of torch::NoGradGuard");
  const Kept held = started_ ? held_gradients() : Kept();
  c10d::Reducer::initialize_buckets(std::move(indices));
  if (!started_) return;
  make_all_places();
  // The Reducer has replaced the held gradients by views of the new buckets.
  for (const auto& [parameter, gradient] : held) parameter.mutable_grad() = gradient;
}

bool GradientsInBuckets::rebuild_buckets() {
  const Kept held = started_ && should_rebuild_buckets() ? held_gradients() : Kept();
  if (!c10d::Reducer::rebuild_buckets()) return false;
  if (!started_) return true;
  make_all_places();
  for (const auto& [parameter, gradient] : held) parameter.mutable_grad() = gradient;
  return true;
}

void GradientsInBuckets::prepare_for_backward(const std::vector<at::Tensor>& outputs) {
  c10d::Reducer::prepare_for_backward(outputs);
  begun_ = false;
}

// Runs before the pass writes to a bucket, and after the user's last access to old gradients.
void GradientsInBuckets::begin_pass() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (begun_ || !expect_autograd_hooks_) return;
  begun_ = true;
  kept_.clear();
  const bool accumulates_in_place = !at::GradMode::is_enabled();
  for (Bucket& bucket : buckets_) {
    if (bucket.expect_sparse_gradient) continue;
    tidy(bucket);
    if (is_about_to_change(bucket)) {
      copies_out_ = true;
      bucket.gradients = at::empty(bucket.gradients.sizes(), bucket.gradients.options());
      make_places(bucket, /*moves_gradients=*/false);
    }
    for (size_t i = 0; accumulates_in_place && i < bucket.variables.size(); ++i) {
      const at::Tensor& gradient = bucket.variables[i].grad();
      if (is_dense(gradient) && !is_in_place(bucket, i) && is_held(gradient)) {
        kept_.emplace_back(bucket.variables[i], gradient);
      }
    }
  }
  ends_ = copies_out_ || !kept_.empty();
}

bool GradientsInBuckets::must_end_pass() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!ends_ || !begun_ || next_bucket_ != buckets_.size()) return false;
  ends_ = false;
  return true;
}

void GradientsInBuckets::end_pass() {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (auto& [parameter, gradient] : kept_) {
    gradient.copy_(parameter.grad());
    parameter.mutable_grad() = std::move(gradient);
  }
  kept_.clear();
  if (!copies_out_) return;
  for (const Bucket& bucket : buckets_) {
    if (bucket.expect_sparse_gradient) continue;
    for (size_t i = 0; i < bucket.variables.size(); ++i) {
      if (is_in_place(bucket, i)) {
        bucket.variables[i].mutable_grad() = bucket.bucket_views_in[i].clone();
      }
    }
  }
}

}  // namespace accelerate::internal
