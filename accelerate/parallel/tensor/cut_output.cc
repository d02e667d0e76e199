#include "accelerate/parallel/tensor/cut_output.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include <c10/core/Allocator.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/Exception.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/autograd/variable.h>

#include "accelerate/operators/managed_storage.h"

namespace accelerate {
namespace {

// What is computed of logits and needs all of them. The largest one and sums of exponentials may be
// those of a part, as in parallel_cross_entropy.
bool needs_all(std::string_view name) {
  constexpr std::array<std::string_view, 8> kNames = {
      "aten::cross_entropy_loss", "aten::nll_loss", "aten::nll_loss_nd",
      "aten::log_softmax",        "aten::softmax",  "aten::argmax",
      "aten::logsumexp",          "aten::topk"};
  return std::ranges::count(kNames, name) > 0;
}

class CutOutput final : public StorageOwner {
 public:
  explicit CutOutput(std::string text) : text_(std::move(text)) {}

  void acquire(const at::Tensor& /*tensor*/, const c10::OperatorHandle& op,
               bool /*writes*/) override {
    const std::string& name = op.schema().name();
    TORCH_CHECK_VALUE(!needs_all(name), name, text_);
    // An operator may be the last that has the tensor.
    c10::intrusive_ptr<CutOutput>::reclaim_copy(this).release();
  }

  void release() override { c10::intrusive_ptr<CutOutput>::reclaim(this); }

  // The tensor gets the memory of contiguous values.
  void give(const at::Tensor& tensor, const at::Tensor& values) {
    auto* const held =
        new Held{c10::intrusive_ptr<CutOutput>::reclaim_copy(this), values.tensor_data()};
    tensor.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(
        c10::DataPtr(values.mutable_data_ptr(), held, &Held::free, values.device()));
  }

 private:
  // What the storage keeps.
  struct Held {
    c10::intrusive_ptr<CutOutput> owner;
    at::Tensor values;

    static void free(void* held) { delete static_cast<Held*>(held); }
  };

  const std::string text_;
};

}  // namespace

at::Tensor cut_output(const at::Tensor& part, std::string text) {
  namespace autograd = torch::autograd::impl;
  if (!part.is_contiguous() || part.is_inference() || part.is_leaf() != !part.requires_grad()) {
    return part;
  }
  const auto owner = c10::make_intrusive<CutOutput>(std::move(text));
  at::Tensor output = owner->make_absent(part, part.device());
  owner->give(output, part.tensor_data());
  // Changes in place are those of the part, which the graph may have saved.
  autograd::set_version_counter(output, autograd::version_counter(part));
  if (part.requires_grad()) autograd::set_gradient_edge(output, autograd::gradient_edge(part));
  output.unsafeGetTensorImpl()->set_backend_meta(
      part.unsafeGetTensorImpl()->get_backend_meta_intrusive_ptr());
  return output;
}

}  // namespace accelerate
