/// What differs of c10d's Gloo among releases of LibTorch: the base of an operation on its threads,
/// AsyncWork, which wants more of who derives from it in later releases (the context, the time-out,
/// and the tensors by name), and the names of the backend's operations.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <gloo/context.h>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

namespace accelerate::internal {

/// What an operation on several tensors needs of its backend.
struct CoalescedCall {
  std::shared_ptr<gloo::Context> context;  ///< only to call its functions (see gloo_backend.h)
  int rank = 0, size = 1;                  ///< this member of the group, and how many there are
  std::vector<at::Tensor> outputs, inputs;
  uint32_t tag = 0;       ///< one that all ranks give this operation alone
  uint64_t sequence = 0;  ///< the operation's number in messages
  std::chrono::milliseconds timeout;
};

// With nothing left to implement, so that its constructors can be asked for.
template <typename AsyncWork>
struct CompleteGlooWork : AsyncWork {
  using AsyncWork::AsyncWork;
  void run() {}
  const std::vector<at::Tensor> getInputTensors() { return {}; }
  const std::vector<at::Tensor> getOutputTensors() { return {}; }
};

template <typename AsyncWork>
inline constexpr bool kGlooWorkHasContext =
    std::is_constructible_v<CompleteGlooWork<AsyncWork>, std::shared_ptr<gloo::Context>,
                            std::vector<std::vector<at::Tensor>>, c10d::OpType, uint64_t,
                            std::chrono::milliseconds, const char*,
                            std::optional<std::vector<at::Tensor>>>;

/// Derived classes implement run(). `title` names it in a profile.
template <typename AsyncWork, bool has_context = kGlooWorkHasContext<AsyncWork>>
class GlooWork : public AsyncWork {
 protected:
  GlooWork(CoalescedCall call, c10d::OpType op, const char* title)
      : AsyncWork({call.outputs}, op, call.sequence, title, call.inputs), call_(std::move(call)) {}

  const CoalescedCall call_;
};

template <typename AsyncWork>
class GlooWork<AsyncWork, true> : public AsyncWork {
 public:
  const std::vector<at::Tensor> getInputTensors() override { return call_.inputs; }
  const std::vector<at::Tensor> getOutputTensors() override { return call_.outputs; }

 protected:
  GlooWork(CoalescedCall call, c10d::OpType op, const char* title)
      : AsyncWork(call.context, {call.outputs}, op, call.sequence, call.timeout, title,
                  call.inputs),
        call_(std::move(call)) {}

  const CoalescedCall call_;
};

/// What a backend derives from that has an all-gather and reduce-scatters of its own in the place
/// of Gloo's: it overrides allgather_into_tensor_coalesced, _reduce_scatter_base and
/// reduce_scatter_tensor_coalesced. Later releases have these names for old callers, and call their
/// own, ..._single and ..._single_coalesced, which lead to the same here. gloo_...() are Gloo's.
template <typename Gloo, bool has_single = requires { &Gloo::reduce_scatter_single; }>
class GlooGroup : public Gloo {
 protected:
  using Gloo::Gloo;
  using Tensors = std::vector<at::Tensor>;

  c10::intrusive_ptr<c10d::Work> gloo_all_gather(Tensors& outputs, Tensors& inputs,
                                                 const c10d::AllgatherOptions& options) {
    return Gloo::allgather_into_tensor_coalesced(outputs, inputs, options);
  }
  c10::intrusive_ptr<c10d::Work> gloo_reduce_scatter(Tensors& outputs, Tensors& inputs,
                                                     const c10d::ReduceScatterOptions& options) {
    return Gloo::reduce_scatter_tensor_coalesced(outputs, inputs, options);
  }
};

template <typename Gloo>
class GlooGroup<Gloo, true> : public Gloo {
 public:
  using Tensors = std::vector<at::Tensor>;

  c10::intrusive_ptr<c10d::Work> all_gather_single_coalesced(
      Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override {
    return this->allgather_into_tensor_coalesced(outputs, inputs, options);
  }
  c10::intrusive_ptr<c10d::Work> reduce_scatter_single(
      at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) override {
    return this->_reduce_scatter_base(output, input, options);
  }
  c10::intrusive_ptr<c10d::Work> reduce_scatter_single_coalesced(
      Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) override {
    return this->reduce_scatter_tensor_coalesced(outputs, inputs, options);
  }

 protected:
  using Gloo::Gloo;

  c10::intrusive_ptr<c10d::Work> gloo_all_gather(Tensors& outputs, Tensors& inputs,
                                                 const c10d::AllgatherOptions& options) {
    return Gloo::all_gather_single_coalesced(outputs, inputs, options);
  }
  c10::intrusive_ptr<c10d::Work> gloo_reduce_scatter(Tensors& outputs, Tensors& inputs,
                                                     const c10d::ReduceScatterOptions& options) {
    return Gloo::reduce_scatter_single_coalesced(outputs, inputs, options);
  }
};

}  // namespace accelerate::internal
