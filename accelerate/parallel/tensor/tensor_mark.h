/// What tensor parallelism knows of a tensor: a mark on the tensor itself, so that programs see
/// plain tensors.
///
/// Parameters have marks, and so have features and sequences of which a rank has a part. LibTorch
/// hands no mark on; the handler (tensor_handler.h), which sees every operator of a forward pass,
/// sets marks on results.
///
/// Mechanism: c10::BackendMeta, a slot of TensorImpl that LibTorch itself leaves alone.
/// Threads: as tensors.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <typeinfo>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/intrusive_ptr.h>

#include "accelerate/config/tensor_parallel_plan.h"
#include "accelerate/parallel/tensor/managed_parts.h"
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
  /// How many different parts of it ranks have: as many as there are ranks, or fewer.
  int64_t parts = 1;
  /// How many neighbours have each of these.
  int64_t copies = 1;

  /// In how many pieces of one length the dim is cut; kUnevenPieces: of several lengths.
  int64_t pieces() const {
    const std::vector<int64_t>& blocks = rule.blocks;
    if (blocks.empty()) return 1;
    const bool are_even = std::ranges::count(blocks, blocks[0]) == std::ssize(blocks);
    return are_even ? std::ssize(blocks) : kUnevenPieces;
  }
  static constexpr int64_t kUnevenPieces = 0;
};

struct TensorMark final : c10::BackendMeta {
  enum class Kind {
    kParameter,  ///< a parameter, or a view or a copy of it
    kFeatures,   ///< features of which each rank has a part
    kSequence,   ///< sequences of which each rank has a part, with all features
    kEntered,    ///< the input of column layers
  };

  TensorMark(Kind kind, std::shared_ptr<const LayerParameter> parameter, int from_end = 0,
             int64_t pieces = 1)
      : kind(kind), parameter(std::move(parameter)), from_end(from_end), pieces(pieces) {}

  bool is_cut_parameter() const { return kind == Kind::kParameter && parameter->cut_dim; }
  /// Whether other ranks have other values in the place of the tensor's.
  bool is_part() const { return kind == Kind::kFeatures || kind == Kind::kSequence; }

  ~TensorMark() override { drop_gathered(gathered); }
  TensorMark(const TensorMark&) = delete;
  TensorMark& operator=(const TensorMark&) = delete;

  // For what has the values of a part, as what a recomputed block gives.
  c10::intrusive_ptr<c10::BackendMeta> clone(
      const c10::intrusive_ptr<c10::BackendMeta>& /*self*/) const override {
    if (!is_part()) return c10::intrusive_ptr<c10::BackendMeta>();
    return c10::make_intrusive<TensorMark>(kind, parameter, from_end, pieces);
  }

  const Kind kind;
  /// Itself, or that of the layer that computed the part, for messages; null: there is none.
  const std::shared_ptr<const LayerParameter> parameter;
  /// For a part: the dim that is cut, counted from the end; 1 is the last one.
  const int from_end;
  /// For a part: how many pieces of one length the dim consists of, each a part of a piece of the
  /// whole, as where a weight is several in one, or batches and heads are one dim. kUnevenPieces:
  /// of several lengths; kUnknownPieces: nothing more is known, not even that this is the dim.
  const int64_t pieces;
  static constexpr int64_t kUnevenPieces = LayerParameter::kUnevenPieces, kUnknownPieces = -1;
  /// For an input: how it enters the layers of this rank, in the graph, and its version then.
  internal::WeakNodePointer entered = internal::WeakNodePointer(internal::NodePointer());
  uint32_t version = 0;
  /// For this, and for sequences: the checkpointed_run() that it is of.
  uint64_t run = 0;
  /// For sequences: the whole ones, which ranks have put together for a column layer.
  at::Tensor gathered;
};

using TensorMarkPtr = c10::intrusive_ptr<TensorMark>;

/// Null for a tensor without a mark.
inline TensorMark* find_mark(const at::Tensor& tensor) {
  c10::BackendMeta* const meta = tensor.unsafeGetTensorImpl()->get_backend_meta();
  const bool is_mark = meta != nullptr && typeid(*meta) == typeid(TensorMark);
  return is_mark ? static_cast<TensorMark*>(meta) : nullptr;
}

inline void set_mark(const at::Tensor& tensor, TensorMarkPtr mark) {
  tensor.unsafeGetTensorImpl()->set_backend_meta(std::move(mark));
}

/// The mark of a tensor of which this rank has a part; null for another one.
inline TensorMark* find_part(const at::Tensor& tensor) {
  TensorMark* const mark = find_mark(tensor);
  return mark != nullptr && mark->is_part() ? mark : nullptr;
}

/// How many neighbours along tp have the values of the tensor, for RandomStreams: 0 for one that
/// all have alike.
inline int64_t copies_along_tp(const at::Tensor& tensor) {
  const TensorMark* const part = find_part(tensor);
  if (part == nullptr) return 0;
  const bool is_of_features = part->kind == TensorMark::Kind::kFeatures;
  return is_of_features && part->parameter != nullptr ? part->parameter->copies : 1;
}

}  // namespace accelerate
