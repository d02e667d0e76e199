/// Finds ranks whose replicas of tensors have drifted apart.
///
/// Each rank checks its replicas at certain points (Runtime::check_replicas). The n-th check of a
/// rank compares the checksums of the tensors with those of the first rank that made its n-th
/// check. Ranks need not check at the same time, and the checks send no data.
///
/// Checksums are of 4,096 elements each, so that a difference is known to be among these. To find
/// the element, the values of the first rank are looked at: a copy of tensors of few elements, and
/// of those that are not trained, as gradients, which ranks change without waiting for each other;
/// of large ones that are trained, the tensor itself, which is not kept alive.
///
/// Threads: only the rank that holds the scheduler's baton may call in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/UndefinedTensorImpl.h>
#include <c10/util/intrusive_ptr.h>

namespace accelerate::simulator {

class Replicas {
 public:
  using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

  /// So many executed ranks have the replicas, which `what` names as a whole.
  /// Errors: c10::Error that names the first tensor that differs, both ranks, and the first element
  ///         that differs; if the first rank has changed or freed a large tensor since, the 4,096
  ///         elements among which that is.
  void check(int rank, const std::string& what, int num_ranks, const NamedTensors& tensors);

 private:
  using Weak = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

  // A tensor of the first rank.
  class Kept {
   public:
    Kept(std::string name, const at::Tensor& tensor);

    const std::string& name() const { return name_; }
    // The first chunk that differs; nullopt: none, or values were not computed.
    std::optional<size_t> differing_chunk(const at::Tensor& tensor) const;
    // ", first in element 3: 0.5 and 0.25", where the chunk differs; empty for another size.
    std::string first_difference(const at::Tensor& tensor, size_t chunk) const;

   private:
    // Its bytes; empty if they have changed since.
    std::string bytes_of_chunk(size_t chunk) const;

    std::string name_;
    at::ScalarType dtype_ = at::kFloat;
    int64_t numel_ = 0;
    bool has_values_ = false;
    std::vector<uint32_t> checksums_;  // by chunk
    std::string copy_;                 // of all bytes; empty: none
    std::optional<Weak> tensor_;       // where there is no copy
    const void* data_ = nullptr;       // where the tensor's values were
  };
  struct Version {
    int rank = 0;  // the owner of the tensors
    int seen = 0;  // the number of ranks that agreed
    std::vector<Kept> tensors;
  };
  struct Replica {
    std::map<int, int64_t> count_by_rank;
    std::map<int64_t, Version> versions;  // those that some ranks have not reached
  };

  std::map<std::string, Replica> replicas_;  // by description
};

}  // namespace accelerate::simulator
