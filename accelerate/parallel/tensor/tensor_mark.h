/// What tensor parallelism knows of a tensor: a mark on the tensor itself, so that programs see
/// plain tensors.
///
/// Parameters have marks, and so have features of which a rank has a part. LibTorch hands no mark
/// on; the handler (tensor_handler.h), which sees every operator of a forward pass, sets marks on
/// results.
///
/// Mechanism: c10::BackendMeta, a slot of TensorImpl that LibTorch itself leaves alone.
/// Threads: as tensors.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/intrusive_ptr.h>

#include "accelerate/config/tensor_parallel_plan.h"
#include "accelerate/tensors/libtorch_releases.h"

namespace accelerate {

/// A parameter of a model whose layers ranks divide.
struct LayerParameter {
  std::string name;
  TensorRule rule = {};
  /// Its shape in the whole model.
  std::vector<int64_t> whole = {};
  /// The dim that ranks cut; absent: each has all of it.
  std::optional<int> cut_dim = std::nullopt;
};

struct TensorMark final : c10::BackendMeta {
  enum class Kind {
    kParameter,  ///< a parameter, or a view or a copy of it
    kFeatures,   ///< features of which each rank has a part
    kEntered,    ///< the input of column layers
  };

  TensorMark(Kind kind, std::shared_ptr<const LayerParameter> parameter, int from_end = 0)
      : kind(kind), parameter(std::move(parameter)), from_end(from_end) {}

  bool is_cut_parameter() const { return kind == Kind::kParameter && parameter->cut_dim; }
  bool is_whole_parameter() const { return kind == Kind::kParameter && !parameter->cut_dim; }
  bool is_features() const { return kind == Kind::kFeatures; }

  // What autograd saves has none: a backward pass computes with parts as they are.
  c10::intrusive_ptr<c10::BackendMeta> clone(
      const c10::intrusive_ptr<c10::BackendMeta>& /*self*/) const override {
    return c10::intrusive_ptr<c10::BackendMeta>();
  }

  const Kind kind;
  /// Itself, or that of the layer that computed the features, for messages.
  const std::shared_ptr<const LayerParameter> parameter;
  /// Of features: the dim that is cut, counted from the end; 1 is the last one.
  const int from_end;
  /// Of an input: how it enters the layers of this rank, in the graph, and its version then.
  internal::WeakNodePointer entered = internal::WeakNodePointer(internal::NodePointer());
  uint32_t version = 0;
};

using TensorMarkPtr = c10::intrusive_ptr<TensorMark>;

/// Null for a tensor without a mark.
inline TensorMark* find_mark(const at::Tensor& tensor) {
  c10::BackendMeta* const meta = tensor.unsafeGetTensorImpl()->get_backend_meta();
  return meta == nullptr ? nullptr : dynamic_cast<TensorMark*>(meta);
}

inline void set_mark(const at::Tensor& tensor, TensorMarkPtr mark) {
  tensor.unsafeGetTensorImpl()->set_backend_meta(std::move(mark));
}

/// Features of which this rank has a part along a dim.
inline bool has_part_of_features(const at::Tensor& tensor) {
  const TensorMark* const mark = tensor.defined() ? find_mark(tensor) : nullptr;
  return mark != nullptr && mark->is_features();
}

}  // namespace accelerate
