#include "accelerate/parallel/tensor/feature_flow.h"

#include <algorithm>

namespace accelerate {
namespace {

using Kind = OperatorFacts::Kind;
using Dims = c10::SmallVector<int64_t, 6>;

// The dims that an argument says, from the front; those of a result with `dims` dims.
Dims dims_in(const c10::IValue* value, int64_t dims) {
  Dims found;
  if (value == nullptr || value->isNone()) return found;
  if (value->isInt()) found.push_back(value->toInt());
  if (value->isIntList()) {
    for (const c10::IValue& each : value->toListRef()) found.push_back(each.toInt());
  }
  for (int64_t& dim : found) dim += dim < 0 ? dims : 0;
  return found;
}

int64_t product_of(const int64_t* begin, const int64_t* end) {
  int64_t product = 1;
  for (; begin != end; ++begin) product *= *begin;
  return product;
}

}  // namespace

FeatureFlow::FeatureFlow(const OperatorCall& call, const OperatorFacts& facts, size_t argument,
                         const at::Tensor& features, int from_end)
    : sizes_(features.sizes().begin(), features.sizes().end()),
      from_end_(from_end),
      dim_(features.dim() - from_end),
      to_(dim_) {
  find_way(call, facts, argument);
}

void FeatureFlow::find_way(const OperatorCall& call, const OperatorFacts& facts, size_t argument) {
  const auto dims = static_cast<int64_t>(sizes_.size());
  const auto dims_at = [&](int position, int64_t of) {
    return dims_in(argument_at(call, facts, position), of);
  };
  const auto is_named = [&](int position) {
    const Dims named = dims_at(position, dims);
    return std::ranges::count(named, dim_) > 0;
  };
  way_ = Way::kMoved;
  switch (facts.kind) {
    case Kind::kPointwise:
    case Kind::kCreation:
      is_pointwise_ = true;
      loses_ = facts.kind == Kind::kPointwise;  // what is made anew has no values of the features
      way_ = Way::kAlong;
      break;
    case Kind::kSameDims: break;
    case Kind::kJoin: joins_ = is_named(facts.dim); break;
    case Kind::kRange: takes_range_ = is_named(facts.dim) && takes_some(call, facts); break;
    // What is gathered from may be whole.
    case Kind::kGather:
    case Kind::kScatter:
      if (is_named(facts.dim) && (facts.kind == Kind::kScatter || argument == 0)) {
        fault_ = "goes by numbers along all of";
      }
      break;
    case Kind::kIndex:
    case Kind::kIndexPut: go_through_index(call, facts, argument); break;
    case Kind::kFlip:
    case Kind::kRoll: {
      const bool all = facts.kind == Kind::kRoll && dims_at(facts.dims, dims).empty();
      if (all || is_named(facts.dims)) fault_ = "moves along all of";
      break;
    }
    case Kind::kTriangle:
      if (from_end_ <= 2) fault_ = "goes by places along all of";
      break;
    case Kind::kView: way_ = Way::kView; break;
    case Kind::kTranspose: {
      const Dims first = dims_at(facts.dim0, dims), second = dims_at(facts.dim1, dims);
      if (first.empty() || second.empty()) break;
      if (dim_ == first[0]) {
        to_ = second[0];
      } else if (dim_ == second[0]) {
        to_ = first[0];
      }
      break;
    }
    case Kind::kPermute: {
      const Dims order = dims_at(facts.dims, dims);
      to_ = std::ranges::find(order, dim_) - order.begin();
      break;
    }
    case Kind::kMatrixTranspose:
      if (dims == 2) to_ = 1 - dim_;
      break;
    case Kind::kUnsqueeze: {
      const Dims place = dims_at(facts.dim, dims + 1);
      if (!place.empty() && place[0] <= dim_) ++to_;
      break;
    }
    case Kind::kSqueeze: {
      const bool all = facts.dim < 0;
      const Dims chosen = dims_at(facts.dim, dims);
      for (int64_t dim = 0; dim < dim_; ++dim) {
        const bool is_chosen = all || std::ranges::count(chosen, dim) > 0;
        if (is_chosen && sizes_[static_cast<size_t>(dim)] == 1) --to_;
      }
      break;
    }
    case Kind::kSelect: {
      // The dim itself is one of heads in turn, or of blocks, which stand before those.
      const Dims chosen = dims_at(facts.dim, dims);
      if (!chosen.empty() && chosen[0] < dim_) --to_;
      takes_one_ = !chosen.empty() && chosen[0] == dim_;
      if (takes_one_ && from_end_ == 1) fault_ = "takes one of";
      break;
    }
    case Kind::kReduction: go_through_reduction(call, facts); break;
    case Kind::kNorm: {
      const auto normalised = static_cast<int>(dims_at(facts.normalized_shape, dims).size());
      if (from_end_ <= normalised) fault_ = "normalises";
      break;
    }
    case Kind::kAllDims: fault_ = "needs all of"; break;
    case Kind::kProduct:
    case Kind::kAddedProduct:
    case Kind::kLinear: go_through_product(call, facts, argument); break;
    case Kind::kVectorProduct:
      to_ = 0;
      if (argument != 0 || from_end_ == 1) fault_ = "adds up along";
      break;
  }
}

// Whether an operator of a range leaves some of the dim out of a result.
bool FeatureFlow::takes_some(const OperatorCall& call, const OperatorFacts& facts) const {
  const int64_t own = sizes_[static_cast<size_t>(dim_)];
  const auto number = [&](int position, int64_t otherwise) {
    const c10::IValue* const value = argument_at(call, facts, position);
    return value != nullptr && value->isInt() ? value->toInt() : otherwise;
  };
  if (facts.chunks >= 0) return number(facts.chunks, 2) > 1;
  if (facts.length >= 0) return number(facts.length, 0) < own;
  if (facts.end < 0) return number(facts.split_size, 0) < own;
  return number(facts.start, 0) != 0 || number(facts.end, own) < own || number(facts.step, 1) != 1;
}

// Dims that are indexed give dims in the place of the first one, or in front of all where others
// are among them.
void FeatureFlow::go_through_index(const OperatorCall& call, const OperatorFacts& facts,
                                   size_t argument) {
  way_ = Way::kAlong;
  loses_ = true;
  const c10::IValue* const indices = argument_at(call, facts, facts.indices);
  if (argument != 0 || indices == nullptr || !indices->isList()) return;
  int64_t dim = 0, first = -1, last = -1, indexed = 0;
  for (const c10::IValue& value : indices->toListRef()) {
    const bool is_index = value.isTensor() && value.toTensor().defined();
    const at::ScalarType type = is_index ? value.toTensor().scalar_type() : at::kLong;
    const bool is_mask = type == at::kBool || type == at::kByte;
    const int64_t covers = is_mask ? value.toTensor().dim() : 1;
    if (is_index) {
      if (dim <= dim_ && dim_ < dim + covers) fault_ = "picks from";
      if (first < 0) first = dim;
      last = dim + covers;
      indexed += covers;
    }
    dim += covers;
  }
  const bool is_before = facts.kind == Kind::kIndex && first > dim_ && last - first == indexed;
  if (is_before) way_ = Way::kMoved;
}

void FeatureFlow::go_through_reduction(const OperatorCall& call, const OperatorFacts& facts) {
  if (facts.other >= 0) {  // the larger one of two
    way_ = Way::kAlong;
    return;
  }
  way_ = Way::kReduced;
  const Dims dims =
      dims_in(argument_at(call, facts, facts.dim), static_cast<int64_t>(sizes_.size()));
  if (dims.empty() || std::ranges::count(dims, dim_) > 0) fault_ = "goes along all of";
  removed_ = std::ranges::count_if(dims, [this](int64_t dim) { return dim < dim_; });
}

// Matrices, or batches of matrices.
void FeatureFlow::go_through_product(const OperatorCall& call, const OperatorFacts& facts,
                                     size_t argument) {
  way_ = Way::kAlong;
  loses_ = true;
  const size_t first = facts.kind == Kind::kAddedProduct ? 1 : 0;
  if (argument < first) return;  // what is added to the product
  const bool is_first = argument == first;
  const bool is_weight = facts.kind == Kind::kLinear && !is_first;
  const int summed = is_first || is_weight || sizes_.size() == 1 ? 1 : 2;
  if (from_end_ == summed) fault_ = "adds up along";
  const c10::IValue* const other = argument_at(call, facts, facts.other);
  const bool is_by_vector = other != nullptr && other->isTensor() && other->toTensor().dim() == 1;
  if (is_first && is_by_vector) way_ = Way::kMoved;  // the last dim is gone
}

int FeatureFlow::in(const at::Tensor& result) {
  const int64_t dims = result.dim();
  const auto from_front = [dims](int64_t dim) {
    return dim >= 0 && dim < dims ? static_cast<int>(dims - dim) : 0;
  };
  switch (way_) {
    case Way::kAlong: {
      const bool is_there =
          dims >= from_end_ && result.size(-from_end_) == sizes_[static_cast<size_t>(dim_)];
      return is_there ? from_end_ : 0;
    }
    case Way::kMoved: return from_front(to_);
    case Way::kReduced:
      return from_front(dims == static_cast<int64_t>(sizes_.size()) ? dim_ : dim_ - removed_);
    case Way::kView: return in_view(result);
  }
  return 0;
}

// The dim of the result that begins where the features' dim begins, or that has all of it.
int FeatureFlow::in_view(const at::Tensor& result) {
  const int64_t dims = result.dim();
  const auto before = result.sizes().slice(0, static_cast<size_t>(std::min(dim_, dims)));
  if (dims > dim_ && std::equal(before.begin(), before.end(), sizes_.begin())) {
    return static_cast<int>(dims - dim_);
  }
  if (result.numel() == 0) return 0;
  const int64_t own = sizes_[static_cast<size_t>(dim_)];
  const int64_t first = product_of(sizes_.begin(), sizes_.begin() + dim_), last = first * own;
  int64_t begin = 1;
  for (int64_t dim = 0; dim < dims; ++dim) {
    const int64_t length = result.size(dim), end = begin * length;
    const bool begins_there = begin == first && (length != 1 || own == 1);
    if (begins_there || (begin <= first && last <= end && length != 1)) {
      return static_cast<int>(dims - dim);
    }
    begin = end;
  }
  fault_ = "gives other lengths than the whole's to";
  return 0;
}

}  // namespace accelerate
