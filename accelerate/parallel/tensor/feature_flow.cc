#include "accelerate/parallel/tensor/feature_flow.h"

#include <algorithm>
#include <vector>

#include <c10/util/accumulate.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"

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

// The terms of an einsum's equation, whose dims have letters or, for some of them, three dots.
struct Equation {
  std::vector<std::string> operands;
  std::string result;

  explicit Equation(const std::string& given) {
    const std::string text = absl::StrReplaceAll(given, {{" ", ""}});
    const size_t arrow = text.find("->");
    operands = absl::StrSplit(text.substr(0, arrow), ',');
    if (arrow != std::string::npos) {
      result = text.substr(arrow + 2);
      return;
    }
    // Letters that stand once, in their order.
    std::string letters = absl::StrReplaceAll(text, {{",", ""}, {".", ""}});
    std::ranges::sort(letters);
    for (const char letter : letters) {
      if (std::ranges::count(letters, letter) == 1) result += letter;
    }
    if (text.find("...") != std::string::npos) result = absl::StrCat("...", result);
  }
};

// The letters behind the dots of a term; all without dots.
int64_t letters_behind(const std::string& term) {
  const size_t dots = term.rfind('.');
  return static_cast<int64_t>(dots == std::string::npos ? term.size() : term.size() - dots - 1);
}

}  // namespace

FeatureFlow::FeatureFlow(const OperatorCall& call, const OperatorFacts& facts, size_t argument,
                         const at::Tensor& features, const TensorMark& part)
    : sizes_(features.sizes().begin(), features.sizes().end()),
      from_end_(part.from_end),
      pieces_(part.pieces),
      is_of_sequences_(part.kind == TensorMark::Kind::kSequence),
      dim_(features.dim() - part.from_end),
      to_(dim_),
      pieces_of_result_(part.pieces) {
  if (facts.kind == Kind::kEinsum) {
    go_through_einsum(call, facts, features);
  } else {
    find_way(call, facts, argument);
  }
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
    case Kind::kRange: {
      takes_range_ = is_named(facts.dim) && takes_some(call, facts);
      const Dims start = dims_at(facts.start, sizes_[static_cast<size_t>(dim_)]);
      if (takes_range_ && !start.empty()) start_ = start[0];
      break;
    }
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
    case Kind::kView: {
      way_ = Way::kView;
      const Dims first = dims_at(facts.start_dim, dims);
      if (!first.empty()) joins_dims_before_ = first[0] < dim_;
      break;
    }
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
      is_gone_ =
          (all || std::ranges::count(chosen, dim_) > 0) && sizes_[static_cast<size_t>(dim_)] == 1;
      break;
    }
    case Kind::kSelect: {
      // The dim itself is one of heads in turn, or of blocks, which stand before those.
      const Dims chosen = dims_at(facts.dim, dims);
      if (!chosen.empty() && chosen[0] < dim_) --to_;
      takes_one_ = !chosen.empty() && chosen[0] == dim_;
      is_gone_ = takes_one_;
      if (takes_one_ && from_end_ == 1) fault_ = "takes one of";
      break;
    }
    case Kind::kReduction: go_through_reduction(call, facts); break;
    case Kind::kNorm: {
      const auto normalised = static_cast<int>(dims_at(facts.normalized_shape, dims).size());
      if (from_end_ <= normalised) fault_ = "normalises";
      break;
    }
    case Kind::kBatchNorm: {
      is_pointwise_ = loses_ = true;
      way_ = Way::kAlong;
      const c10::IValue* const trains = argument_at(call, facts, facts.training);
      const bool has_statistics = trains == nullptr || trains->toBool();
      if (argument == 0 && dim_ != 1 && has_statistics) fault_ = "normalises";
      break;
    }
    case Kind::kAllDims: fault_ = "needs all of"; break;
    case Kind::kLastDims:
      if (from_end_ <= facts.last_dims) fault_ = "needs all of";
      break;
    case Kind::kWindows:
      if (is_named(facts.dimension)) fault_ = "takes ranges of";
      break;
    case Kind::kProduct:
    case Kind::kAddedProduct:
    case Kind::kLinear: go_through_product(call, facts, argument); break;
    // Each query with all keys, so that values alone may have a part of their features.
    case Kind::kAttention:
      combines_ = true;
      if (pieces_ == TensorMark::kUnknownPieces) break;
      if (from_end_ == 2 || (from_end_ == 1 && argument != 2)) fault_ = "adds up along";
      break;
    case Kind::kEinsum: break;
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
  combines_ = loses_ = true;
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

void FeatureFlow::go_through_einsum(const OperatorCall& call, const OperatorFacts& facts,
                                    const at::Tensor& features) {
  combines_ = loses_ = true;
  const Equation equation(argument_at(call, facts, facts.equation)->toStringRef());
  const c10::ArrayRef<c10::IValue> tensors = argument_at(call, facts, facts.tensors)->toListRef();
  const auto own = std::ranges::find_if(
      tensors, [&](const c10::IValue& each) { return each.toTensor().is_same(features); });
  const auto number = static_cast<size_t>(own - tensors.begin());
  if (number >= equation.operands.size()) return;  // LibTorch refuses it
  const std::string& term = equation.operands[number];
  const size_t dots = term.find('.');
  const int64_t behind = letters_behind(term);
  way_ = Way::kFromEnd;
  size_t letter = term.size();
  if (from_end_ <= behind) {
    letter = term.size() - static_cast<size_t>(from_end_);
  } else if (dim_ < static_cast<int64_t>(dots)) {
    letter = static_cast<size_t>(dim_);
  } else {  // one of those without a letter, which keep their order
    to_ = from_end_ - behind + letters_behind(equation.result);
    if (equation.result.find('.') == std::string::npos) fault_ = "adds up along";
    return;
  }
  if (letter >= term.size()) return;
  const size_t place = equation.result.find(term[letter]);
  if (place == std::string::npos) {
    fault_ = "adds up along";
  } else if (place < equation.result.find('.') && equation.result.find('.') != std::string::npos) {
    way_ = Way::kMoved;
    to_ = static_cast<int64_t>(place);
  } else {
    to_ = static_cast<int64_t>(equation.result.size() - place);
  }
}

int FeatureFlow::in(const at::Tensor& result) {
  pieces_of_result_ = pieces_;
  const int from_end = find_in(result);
  if (from_end == 0 || way_ == Way::kView) return from_end;
  if (takes_range_) pieces_of_result_ = pieces_of_range(result.size(-from_end));
  // What is behind the dim stands in its place.
  if (is_gone_) pieces_of_result_ = TensorMark::kUnknownPieces;
  return from_end;
}

// The pieces of a range with so many of the dim.
int64_t FeatureFlow::pieces_of_range(int64_t length) {
  if (pieces_ <= 1) return pieces_ == 1 ? 1 : TensorMark::kUnknownPieces;
  const int64_t piece = sizes_[static_cast<size_t>(dim_)] / pieces_;
  if (piece > 0 && length % piece == 0 && start_ % piece == 0) return length / piece;
  fault_ = "takes some of each piece of";
  return TensorMark::kUnknownPieces;
}

int FeatureFlow::find_in(const at::Tensor& result) {
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
    case Way::kFromEnd: return to_ <= dims ? static_cast<int>(to_) : 0;
    case Way::kView: return in_view(result);
  }
  return 0;
}

// The dim of the result that begins where the pieces of the features' dim begin, or that has all of
// such pieces. A piece consists of the elements that follow each other in all dims from there on.
int FeatureFlow::in_view(const at::Tensor& result) {
  const int64_t dims = result.dim();
  const int64_t own = sizes_[static_cast<size_t>(dim_)];
  const auto before = result.sizes().slice(0, static_cast<size_t>(std::min(dim_, dims)));
  const bool begins_alike = dims > dim_ && std::equal(before.begin(), before.end(), sizes_.begin());
  if (result.numel() == 0) {
    if (begins_alike && result.size(dim_) == own) return static_cast<int>(dims - dim_);
    pieces_of_result_ = TensorMark::kUnknownPieces;
    return begins_alike ? static_cast<int>(dims - dim_) : 0;
  }
  const int64_t pieces = std::max<int64_t>(pieces_, 1), piece = own / pieces;
  const int64_t first = c10::multiply_integers(sizes_.begin(), sizes_.begin() + dim_) * pieces;
  const int64_t last = first * piece;
  // A rank may have one head, which is a dim of one element then.
  const bool makes_heads = begins_alike && !is_of_sequences_ && from_end_ == 1;
  const bool joins_before = joins_dims_before_.value_or(false);
  const int64_t from = begins_alike && !joins_before ? dim_ : 0;
  // A piece of one element that lost its dim may be in the dim before or in the one behind.
  const bool is_clear =
      piece != 1 || joins_dims_before_.has_value() || dims >= static_cast<int64_t>(sizes_.size());
  int64_t begin = c10::multiply_integers(result.sizes().slice(0, static_cast<size_t>(from)));
  for (int64_t dim = from; dim < dims; ++dim) {
    const int64_t length = result.size(dim), end = begin * length;
    const bool has_all = end % last == 0, has_some = last % end == 0;
    const bool begins_there =
        begin == first && (has_all || has_some) && (length != 1 || piece == 1 || makes_heads);
    // Some of each piece are heads of several weights.
    const bool is_inside = begin < first && (first < end || (joins_before && first == end));
    const bool has_pieces =
        is_inside && first % begin == 0 && (has_all || (has_some && dim == from && makes_heads));
    if (begins_there || has_pieces) {
      if (pieces_ >= 1 && is_clear) {
        pieces_of_result_ = first / begin;
      } else if (length != own || !is_clear) {
        pieces_of_result_ = TensorMark::kUnknownPieces;
      }
      return static_cast<int>(dims - dim);
    }
    begin = end;
  }
  fault_ = "gives other lengths than the whole's to";
  return 0;
}

}  // namespace accelerate
