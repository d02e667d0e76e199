/// c10d's Gloo backend with three additions: pending operations can be interrupted from outside,
/// ranks can exchange hashes of calls without a detour through its worker threads, and gathers and
/// reduce-scatters of several tensors send no more than they must.
///
/// LibTorch contains Gloo and comes without its headers, and those that a machine has may be of
/// another release. Between releases a gloo::Context is laid out differently, so none of its
/// members is read: calls of its functions, of gloo::allgather and of an UnboundBuffer are the same
/// from LibTorch 2.6 to 2.15 whichever headers describe them.
///
/// Linking it registers the backend "gloo".
/// Errors: those of Gloo; c10::ValueError for sizes or dtypes of several tensors that do not fit
///         each other.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <iterator>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "accelerate/comm/backends/backend_registry.h"
#include "accelerate/comm/backends/gloo/gloo_work.h"

namespace accelerate {

class GlooBackend final : public internal::GlooGroup<c10d::ProcessGroupGloo>, public Interruptible {
 public:
  /// Collective over the group.
  explicit GlooBackend(const BackendOptions& options);

  c10::intrusive_ptr<c10d::Work> allgather_into_tensor_coalesced(
      std::vector<at::Tensor>& outputs, std::vector<at::Tensor>& inputs,
      const c10d::AllgatherOptions& options) override;
  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(
      at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) override;
  c10::intrusive_ptr<c10d::Work> reduce_scatter_tensor_coalesced(
      std::vector<at::Tensor>& outputs, std::vector<at::Tensor>& inputs,
      const c10d::ReduceScatterOptions& options) override;

  /// All pending and later operations of the group fail at once; other members see a closed
  /// connection. Threads: any.
  void interrupt() override;

  /// Every member's `mine`. Runs on the calling thread. Collective; one at a time.
  std::vector<uint64_t> all_gather_hash(uint64_t mine, std::chrono::milliseconds timeout);

 private:
  internal::CoalescedCall begin(const std::vector<at::Tensor>& outputs,
                                const std::vector<at::Tensor>& inputs,
                                std::chrono::milliseconds timeout);

  // The tags of hashes; the Gloo backend's own operations count from 0.
  uint32_t exchanges_ = uint32_t{1} << 31;
};

/// Members on different machines compare their calls over a Gloo backend, which may be the one that
/// carries them out. They wait for each other to begin a call.
class GlooComparer final : public CallComparer {
 public:
  explicit GlooComparer(c10::intrusive_ptr<GlooBackend> line) : line_(std::move(line)) {}

  Entry enter(uint64_t hash, std::chrono::milliseconds timeout) override {
    const std::vector<uint64_t> hashes = line_->all_gather_hash(hash, timeout);
    return {.agrees = std::ranges::count(hashes, hash) == std::ssize(hashes)};
  }
  bool compare_all(uint64_t, std::chrono::milliseconds) override { return true; }
  void interrupt() override { line_->interrupt(); }

 private:
  const c10::intrusive_ptr<GlooBackend> line_;
};

}  // namespace accelerate
