/// Values that a tensor without memory gets later from elsewhere, such as a checkpoint, in place of
/// those of its construction.
///
/// Such a tensor is on "meta". Whatever gives empty tensors the values of their construction (see
/// construction_record.h) gives it these: materialize whole ones, and shards only a rank's rows.
///
/// Mechanism: the tensor's storage holds where its values are, as a recorded tensor's holds its
/// record, so that views and ties have them as well.
/// Threads: the tensors' own; reads of one model's values take turns.
/// Mirrors: nothing. transformers' from_pretrained loads whole tensors on some ranks instead.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace accelerate {

class DeferredValues {
 public:
  virtual ~DeferredValues() = default;

  /// Reads elements of the tensor, counted row by row, from number `first` on, into a contiguous
  /// vector of any device and dtype. Errors: an exception naming where the values are.
  virtual void read(int64_t first, const at::Tensor& into) = 0;

  /// What ranks compare: equal where a tensor has the same values on all of them, as far as that is
  /// known without reading them.
  virtual std::string description() const = 0;
  /// Where they are, for messages.
  virtual std::string place() const = 0;
  /// A recorded tensor that they are taken of; undefined: none.
  virtual at::Tensor recorded() const { return {}; }
};

/// The tensor, of any device, is without memory from now on, contiguous and on "meta", and its
/// values are these. Tensors that share memory with each other do so afterwards if they are
/// deferred together; they are identical views. `dtype`: the tensor's from now on. Local.
void defer(const std::vector<at::Tensor>& tensors, at::ScalarType dtype,
           std::shared_ptr<DeferredValues> values);

/// Where the values of a whole tensor are; null for one that has memory, is a part of another one,
/// or has other values. It lives as long as the tensor has no values. Local.
DeferredValues* deferred_values(const at::Tensor& tensor);

namespace internal {

/// What a storage holds whose values are deferred; null for other tensors.
struct Deferred;
const Deferred* deferred_of(const at::Tensor& tensor);
/// All of the storage's values, in fresh memory.
c10::Storage read_deferred(const Deferred& deferred, c10::Device device);
/// The tensors that were deferred together, if they are still without values.
std::vector<at::Tensor> deferred_together(const Deferred& deferred);

}  // namespace internal
}  // namespace accelerate
