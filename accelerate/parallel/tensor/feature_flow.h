/// Where the dim of features of which a rank has a part comes to stand in what an operator makes of
/// them.
///
/// The dim goes along with views, and with operators that compute element by element or along other
/// dims; where an operator is not known, it goes along where the result has the same length there,
/// and is lost otherwise. An operator that would compute something else of a part than of the whole
/// has a fault: a sum, a norm or a softmax along the dim, a product that adds up along it, a
/// convolution, a pool, a recurrent layer, what goes by places or numbers along it, a view with
/// lengths of the whole.
///
/// Views may make one dim of several, of which the last ones are a part, and take it apart again:
/// the dim then consists of as many pieces (TensorMark::pieces) as the first ones have elements.
///
/// Threads: values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include "accelerate/operators/operator_mode.h"
#include "accelerate/parallel/tensor/operator_facts.h"
#include "accelerate/parallel/tensor/tensor_mark.h"

namespace accelerate {

class FeatureFlow {
 public:
  /// Before the operator runs: of its argument with this number, or of a tensor in it. `part`: the
  /// mark of the tensor.
  FeatureFlow(const OperatorCall& call, const OperatorFacts& facts, size_t argument,
              const at::Tensor& features, const TensorMark& part);

  /// What the operator does that a part does not allow, as "sums up"; empty: nothing.
  const std::string& fault() const { return fault_; }
  /// Whether the operator is not one of those that are known, so that it computes element by
  /// element, or consists of others.
  bool is_pointwise() const { return is_pointwise_; }
  /// Whether its arguments say which lengths the result has.
  bool is_view() const { return way_ == Way::kView; }
  /// Whether a result without the dim is not what the operator is known to give.
  bool loses() const { return loses_; }
  /// Whether what stands in other dims of several arguments may come together in a result.
  bool combines() const { return combines_; }
  /// Whether a result has some of the dim that follow each other.
  bool takes_range() const { return takes_range_; }
  /// Whether a result has one of the dim.
  bool takes_one() const { return takes_one_; }
  /// Whether the dim is one along which tensors are put together.
  bool joins() const { return joins_; }

  /// The dim of a result, counted from the end; 0: it is not there.
  int in(const at::Tensor& result);
  /// The pieces of the dim that in() has found.
  int64_t pieces() const { return pieces_of_result_; }

 private:
  enum class Way {
    kAlong,    // from the end, where the length is the same
    kMoved,    // to a dim, counted from the front
    kReduced,  // as kMoved, less the dims before that a result lacks
    kFromEnd,  // to a dim, counted from the end
    kView,
  };
  void find_way(const OperatorCall& call, const OperatorFacts& facts, size_t argument);
  void go_through_reduction(const OperatorCall& call, const OperatorFacts& facts);
  void go_through_product(const OperatorCall& call, const OperatorFacts& facts, size_t argument);
  void go_through_index(const OperatorCall& call, const OperatorFacts& facts, size_t argument);
  void go_through_einsum(const OperatorCall& call, const OperatorFacts& facts,
                         const at::Tensor& features);
  bool takes_some(const OperatorCall& call, const OperatorFacts& facts) const;
  int find_in(const at::Tensor& result);
  int64_t pieces_of_range(int64_t length);
  int in_view(const at::Tensor& result);

  const c10::SmallVector<int64_t, 6> sizes_;
  const int from_end_;
  const int64_t pieces_;
  const bool is_of_sequences_;
  const int64_t dim_;  // counted from the front
  Way way_ = Way::kAlong;
  bool is_pointwise_ = false;
  bool combines_ = false;
  bool loses_ = false;
  bool takes_range_ = false;
  bool takes_one_ = false;
  bool is_gone_ = false;  // the dim itself; what is behind it stands in its place
  bool joins_ = false;
  int64_t to_;
  int64_t removed_ = 0;
  int64_t start_ = 0;  // of a range
  // What a view says of the dims before this one that become one with it, if it says so.
  std::optional<bool> joins_dims_before_;
  int64_t pieces_of_result_;
  std::string fault_;
};

}  // namespace accelerate
