/// Neighbouring kernels as one, as libraries of fused training kernels have them (the option
/// `kernels=transformer_engine`): Transformer Engine's norms with casts and gated activations,
/// Megatron's bias-dropout-add, cross-entropy and rotary embeddings, multi-tensor optimizers.
///
/// The program runs LibTorch's operators. An elementwise operator, a norm, a softmax, a mean or a
/// sum belongs to the kernel before it on its stream if it takes what that has written, if the two
/// share a tensor that is not small beside its own, and if nothing came between. It then costs no
/// launch, and passes only what that kernel has not in its registers:
///
///   reads    of tensors that no part of the kernel has read or written
///   writes   of results; in place once for the whole kernel
///   less     the write of a result of the kernel that the operator takes, but for a norm's input,
///            which a residual stream needs again
///
/// One kernel has at most one operator that reduces rows, and none that computes matrix products or
/// attention: their epilogues are what LibTorch has. Memory and numbers stay those of the
/// operators. Time that is spent is not given back where a later part saves a write.
///
/// Threads: a rank's own.
#pragma once

#include <cstdint>
#include <vector>

#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>

#include "absl/container/flat_hash_map.h"
#include "simulator/hardware/kernel_time.h"

namespace accelerate::simulator {

/// How an operator can be part of a fused kernel.
enum class Fusion : uint8_t {
  kNone,
  kElementwise,
  kRows,  ///< reduces rows
};

/// A tensor that an operator reads or writes.
struct TensorUse {
  c10::StorageImpl* storage;
  double bytes;
  bool written;
  bool fresh;  ///< written: not read before, as a result
};

class KernelChain {
 public:
  /// Adds an operator to the kernel, if it belongs to it; `work` becomes what it adds.
  bool extend(Fusion fusion, const std::vector<TensorUse>& uses, KernelWork& work);

  /// Begins with an operator; Fusion::kNone ends the chain.
  void begin(Fusion fusion, const std::vector<TensorUse>& uses, const KernelWork& work);
  void end() {
    is_open_ = false;
    entries_.clear();
  }

  bool is_open() const { return is_open_; }
  /// All of it.
  const KernelWork& total() const { return total_; }

 private:
  struct Entry {
    // Keeps the address from being used again, and not the memory.
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    bool is_result = false;  // of an operator of the kernel
    bool changed = false;    // by the kernel
    bool written = false;    // the kernel's traffic has its write
    double bytes = 0;
  };

  Entry& entry(c10::StorageImpl* storage);
  void add_results(const std::vector<TensorUse>& uses);

  bool is_open_ = false;
  bool has_rows_ = false;
  KernelWork total_;
  double passed_ = 0;  // the most bytes that `total_` had
  absl::flat_hash_map<const c10::StorageImpl*, Entry> entries_;
};

}  // namespace accelerate::simulator
