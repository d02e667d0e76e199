#include "simulator/c10d/collectives.h"

#include <numeric>
#include <utility>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/native/SparseTensorUtils.h>
#include <c10/util/Exception.h>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "accelerate/comm/backends/own_operations.h"
#include "simulator/device/host_call.h"
#include "simulator/device/shapes.h"
#include "simulator/device/sim_device.h"

namespace accelerate::simulator {
namespace {

using c10d::OpType;
using c10d::ReduceOp;

// The elements of a dense tensor in memory order, as real backends see them: elements of two
// tensors with one shape but different memory formats do not correspond.
at::Tensor flat(const at::Tensor& tensor) { return tensor.as_strided({tensor.numel()}, {1}); }

void move_to_host(std::vector<at::Tensor>& tensors) {
  for (at::Tensor& tensor : tensors) tensor = host_alias(tensor);
}

// The tensor that `calls[rank]` contributes.
using Contribution = absl::FunctionRef<const at::Tensor&(const Call&)>;

at::Tensor scaled(const at::Tensor& tensor, const ReduceOp& op) {
  const auto* factor = dynamic_cast<const c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
  TORCH_CHECK_VALUE(factor != nullptr, "premultiplied sum without a factor");
  if (factor->tensor_factor.defined()) return tensor.mul(factor->tensor_factor.to(tensor.dtype()));
  return tensor.mul(factor->double_factor);
}

at::Tensor reduced(const std::vector<Call>& calls, Contribution contribution) {
  const at::Tensor& first = contribution(calls[0]);
  at::Tensor total = calls[0].reduce_op.op_ == ReduceOp::PREMUL_SUM
                         ? scaled(first, calls[0].reduce_op)
                         : first.clone();
  for (size_t rank = 1; rank < calls.size(); ++rank) {
    const at::Tensor& value = contribution(calls[rank]);
    const ReduceOp& op = calls[rank].reduce_op;
    if (op.op_ == ReduceOp::PREMUL_SUM) {
      total.add_(scaled(value, op));
    } else {
      accelerate::internal::accumulate(total, value, op.op_);
    }
  }
  if (calls[0].reduce_op.op_ == ReduceOp::AVG) {
    accelerate::internal::average(total, static_cast<int64_t>(calls.size()));
  }
  return total;
}

void broadcast(std::vector<Call>& calls) {
  const int root = calls[0].fingerprint.root;
  for (size_t rank = 0; rank < calls.size(); ++rank) {
    if (static_cast<int>(rank) != root) calls[rank].inputs[0].copy_(calls[root].inputs[0]);
  }
}

// `root` < 0: all ranks get the result.
void all_reduce(std::vector<Call>& calls, int root) {
  for (size_t i = 0; i < calls[0].inputs.size(); ++i) {
    const at::Tensor total =
        reduced(calls, [i](const Call& call) -> const at::Tensor& { return call.inputs[i]; });
    for (size_t rank = 0; rank < calls.size(); ++rank) {
      if (root < 0 || static_cast<int>(rank) == root) calls[rank].inputs[i].copy_(total);
    }
  }
}

// A sparse tensor has several blocks of memory, so a device's tensor is assigned the result instead
// of being a view of it.
void all_reduce_sparse(std::vector<Call>& calls) {
  std::vector<at::Tensor> originals;
  for (Call& call : calls) {
    originals.push_back(call.inputs[0]);
    move_to_host(call.inputs);
  }
  all_reduce(calls, -1);
  for (size_t rank = 0; rank < calls.size(); ++rank) {
    if (originals[rank].is_privateuseone()) assign_sparse(originals[rank], calls[rank].inputs[0]);
  }
}

void all_gather(std::vector<Call>& calls) {
  for (Call& receiver : calls) {
    auto output = receiver.outputs.begin();
    for (const Call& sender : calls) {
      for (const at::Tensor& input : sender.inputs) {
        output->copy_(input);
        ++output;
      }
    }
  }
}

void all_gather_into_tensor(std::vector<Call>& calls) {
  const auto count = static_cast<int64_t>(calls.size());
  for (Call& receiver : calls) {
    for (size_t i = 0; i < receiver.outputs.size(); ++i) {
      at::Tensor rows = receiver.outputs[i].view({count, receiver.inputs[i].numel()});
      for (int64_t rank = 0; rank < count; ++rank) rows[rank].copy_(calls[rank].inputs[i]);
    }
  }
}

void gather(std::vector<Call>& calls) {
  Call& root = calls[calls[0].fingerprint.root];
  for (size_t rank = 0; rank < calls.size(); ++rank) {
    root.outputs[rank].copy_(calls[rank].inputs[0]);
  }
}

void scatter(std::vector<Call>& calls) {
  const Call& root = calls[calls[0].fingerprint.root];
  for (size_t rank = 0; rank < calls.size(); ++rank) {
    calls[rank].outputs[0].copy_(root.inputs[rank]);
  }
}

void reduce_scatter(std::vector<Call>& calls) {
  // All results are computed first, because an output may be a view of that rank's input.
  std::vector<at::Tensor> totals;
  for (size_t rank = 0; rank < calls.size(); ++rank) {
    totals.push_back(reduced(
        calls, [rank](const Call& call) -> const at::Tensor& { return call.inputs[rank]; }));
  }
  for (size_t rank = 0; rank < calls.size(); ++rank) {
    calls[rank].outputs[0].copy_(totals[rank]);
  }
}

void reduce_scatter_tensor(std::vector<Call>& calls) {
  const auto count = static_cast<int64_t>(calls.size());
  for (size_t i = 0; i < calls[0].inputs.size(); ++i) {
    const at::Tensor rows = reduced(calls, [i](const Call& call) -> const at::Tensor& {
                              return call.inputs[i];
                            }).view({count, calls[0].outputs[i].numel()});
    for (int64_t rank = 0; rank < count; ++rank) {
      calls[rank].outputs[i].copy_(rows[rank]);
    }
  }
}

std::string size_problem(int from, const at::Tensor& sent, int to, const at::Tensor& received) {
  return absl::StrCat("group rank ", from, " sends ", sent.numel(), " elements of ",
                      c10::toString(sent.scalar_type()), " to group rank ", to, ", which expects ",
                      received.numel(), " of ", c10::toString(received.scalar_type()));
}

bool fits(const at::Tensor& sent, const at::Tensor& received) {
  return sent.numel() == received.numel() && sent.scalar_type() == received.scalar_type();
}

std::optional<std::string> all_to_all_problem(const std::vector<Call>& calls) {
  for (size_t from = 0; from < calls.size(); ++from) {
    for (size_t to = 0; to < calls.size(); ++to) {
      const at::Tensor& sent = calls[from].inputs[to];
      const at::Tensor& received = calls[to].outputs[from];
      if (!fits(sent, received)) return size_problem(from, sent, to, received);
    }
  }
  return std::nullopt;
}

std::optional<std::string> all_to_all(std::vector<Call>& calls) {
  if (std::optional<std::string> problem = all_to_all_problem(calls)) return problem;
  for (size_t from = 0; from < calls.size(); ++from) {
    for (size_t to = 0; to < calls.size(); ++to) {
      flat(calls[to].outputs[from]).copy_(flat(calls[from].inputs[to]));
    }
  }
  return std::nullopt;
}

// The rows of `tensor` that belong to each rank; no splits means equal shares.
std::vector<at::Tensor> shares(const at::Tensor& tensor, const std::vector<int64_t>& splits,
                               size_t count) {
  if (!splits.empty()) return tensor.split_with_sizes(splits, 0);
  if (tensor.numel() == 0) return std::vector<at::Tensor>(count, tensor);
  return tensor.chunk(static_cast<int64_t>(count), 0);
}

void split_into_shares(std::vector<Call>& calls) {
  for (Call& call : calls) {
    call.inputs = shares(call.inputs[0], call.input_splits, calls.size());
    call.outputs = shares(call.outputs[0], call.output_splits, calls.size());
  }
}

// ---- Tensors without values.

bool contributes_inputs(const Call& call, int member) {
  const OpType op = call.fingerprint.op;
  return (op != OpType::BROADCAST && op != OpType::SCATTER) || call.fingerprint.root == member;
}

bool lacks_values(const std::vector<Call>& calls) {
  for (size_t member = 0; member < calls.size(); ++member) {
    const Call& call = calls[member];
    const bool contributes = contributes_inputs(call, static_cast<int>(member));
    for (const at::Tensor& tensor : call.inputs) {
      if (contributes ? !has_values(tensor) : is_hollow(tensor)) return true;
    }
    for (const at::Tensor& tensor : call.outputs) {
      if (is_hollow(tensor)) return true;
    }
  }
  return false;
}

void note_results(const std::vector<Call>& calls, bool with_values) {
  for (size_t member = 0; member < calls.size(); ++member) {
    const Call& call = calls[member];
    for (const at::Tensor& tensor : call.outputs) note_written(tensor, with_values);
    if (!writes_inputs(call, static_cast<int>(member))) continue;
    for (const at::Tensor& tensor : call.inputs) note_written(tensor, with_values);
  }
}

// Members of a reduction pass equal memory, except by an error of the program.
std::optional<std::string> mixed_memory(const std::vector<Call>& calls) {
  for (size_t rank = 1; rank < calls.size(); ++rank) {
    for (size_t i = 0; i < calls[0].inputs.size(); ++i) {
      const bool hollow = is_hollow(calls[rank].inputs[i]);
      if (hollow == is_hollow(calls[0].inputs[i])) continue;
      const size_t without = hollow ? rank : 0;
      return absl::StrCat("group rank ", without, " passes part of a tensor that is so large that ",
                          "numerics = shapes gives it no values, but group rank ", rank - without,
                          " passes a small tensor, which has some");
    }
  }
  return std::nullopt;
}

std::optional<std::string> run_without_values(std::vector<Call>& calls) {
  note_results(calls, /*with_values=*/false);
  switch (calls[0].fingerprint.op) {
    case OpType::_ALLREDUCE_SPARSE:
      TORCH_CHECK_NOT_IMPLEMENTED(false,
                                  "sparse tensors without values (numerics = shapes) are "
                                  "not supported");
    case OpType::ALLREDUCE:
    case OpType::ALLREDUCE_COALESCED:
    case OpType::REDUCE:
    case OpType::REDUCE_SCATTER:
    case OpType::_REDUCE_SCATTER_BASE: return mixed_memory(calls);
    case OpType::ALLTOALL_BASE: split_into_shares(calls); return all_to_all_problem(calls);
    case OpType::ALLTOALL: return all_to_all_problem(calls);
    default: return std::nullopt;
  }
}

}  // namespace

bool writes_inputs(const Call& call, int member) {
  switch (call.fingerprint.op) {
    case OpType::ALLREDUCE:
    case OpType::ALLREDUCE_COALESCED:
    case OpType::_ALLREDUCE_SPARSE: return true;
    case OpType::BROADCAST: return call.fingerprint.root != member;
    case OpType::REDUCE: return call.fingerprint.root == member;
    default: return false;
  }
}

std::optional<std::string> run_calls(std::vector<Call>& calls) {
  // The copies must not become part of the callers' autograd history.
  at::NoGradGuard no_grad;
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  const ChargeScope uncharged(nullptr, nullptr);
  if (lacks_values(calls)) return run_without_values(calls);
  note_results(calls, /*with_values=*/true);
  const OpType op = calls[0].fingerprint.op;
  if (op == OpType::_ALLREDUCE_SPARSE) {
    all_reduce_sparse(calls);
    return std::nullopt;
  }
  for (Call& call : calls) {
    move_to_host(call.inputs);
    move_to_host(call.outputs);
  }
  // All-to-all splits tensors into rows first.
  if (op != OpType::ALLTOALL && op != OpType::ALLTOALL_BASE) {
    for (Call& call : calls) {
      for (at::Tensor& tensor : call.inputs) tensor = flat(tensor);
      for (at::Tensor& tensor : call.outputs) tensor = flat(tensor);
    }
  }
  switch (op) {
    case OpType::BROADCAST: broadcast(calls); return std::nullopt;
    case OpType::ALLREDUCE:
    case OpType::ALLREDUCE_COALESCED: all_reduce(calls, -1); return std::nullopt;
    case OpType::REDUCE: all_reduce(calls, calls[0].fingerprint.root); return std::nullopt;
    case OpType::ALLGATHER:
    case OpType::ALLGATHER_COALESCED: all_gather(calls); return std::nullopt;
    case OpType::_ALLGATHER_BASE: all_gather_into_tensor(calls); return std::nullopt;
    case OpType::GATHER: gather(calls); return std::nullopt;
    case OpType::SCATTER: scatter(calls); return std::nullopt;
    case OpType::REDUCE_SCATTER: reduce_scatter(calls); return std::nullopt;
    case OpType::_REDUCE_SCATTER_BASE: reduce_scatter_tensor(calls); return std::nullopt;
    case OpType::ALLTOALL: return all_to_all(calls);
    case OpType::ALLTOALL_BASE: split_into_shares(calls); return all_to_all(calls);
    case OpType::BARRIER: return std::nullopt;
    default: break;
  }
  TORCH_INTERNAL_ASSERT(false, "not a collective: ", op_name(op));
}

std::optional<std::string> run_message(const Call& sender, const Call& receiver) {
  at::NoGradGuard no_grad;
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  const ChargeScope uncharged(nullptr, nullptr);
  const at::Tensor& sent = sender.inputs[0];
  const at::Tensor& received = receiver.outputs[0];
  if (!fits(sent, received)) {
    return absl::StrCat("sent ", sent.numel(), " elements of ", c10::toString(sent.scalar_type()),
                        ", expected ", received.numel(), " of ",
                        c10::toString(received.scalar_type()));
  }
  const bool known = has_values(sent);
  note_written(received, known);
  if (known && !is_hollow(received)) flat(host_alias(received)).copy_(flat(host_alias(sent)));
  return std::nullopt;
}

int64_t message_bytes(const Call& call, size_t group_size) {
  auto total = [](const std::vector<at::Tensor>& tensors) {
    int64_t bytes = 0;
    for (const at::Tensor& tensor : tensors) {
      bytes += static_cast<int64_t>(tensor.is_sparse()
                                        ? at::sparse::get_sparse_impl(tensor)->values().nbytes()
                                        : tensor.nbytes());
    }
    return bytes;
  };
  const auto members = static_cast<int64_t>(group_size);
  switch (call.fingerprint.op) {
    case OpType::ALLGATHER:
    case OpType::ALLGATHER_COALESCED:
    case OpType::_ALLGATHER_BASE:
    case OpType::GATHER: return total(call.inputs) * members;
    case OpType::SCATTER: return total(call.outputs) * members;
    default: return total(call.inputs);
  }
}

}  // namespace accelerate::simulator
