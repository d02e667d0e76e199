#include "simulator/c10d/collectives.h"

#include <algorithm>
#include <cstring>
#include <numeric>

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
#include "simulator/device/value_faults.h"

namespace accelerate::simulator {
namespace {

using c10d::OpType;
using c10d::ReduceOp;

// The elements of a dense tensor in memory order, as real backends see them: elements of two
// tensors with one shape but different memory formats do not correspond.
at::Tensor flat(const at::Tensor& tensor) {
  if (tensor.dim() == 1 && tensor.is_contiguous()) return tensor;
  return tensor.as_strided({tensor.numel()}, {1});
}

// Does what to.copy_(from) does. Where the bytes are the same it costs a fraction of the operator.
void assign(const at::Tensor& to, const at::Tensor& from) {
  const bool same_bits = to.layout() == c10::kStrided && from.layout() == c10::kStrided &&
                         to.scalar_type() == from.scalar_type() && to.sizes() == from.sizes() &&
                         to.is_contiguous() && from.is_contiguous() &&
                         to.is_conj() == from.is_conj() && to.is_neg() == from.is_neg();
  if (!same_bits) {
    to.copy_(from);
  } else if (from.nbytes() > 0) {
    std::memmove(to.mutable_data_ptr(), from.const_data_ptr(), from.nbytes());
  }
}

// Puts what `map` makes of each tensor in its place.
void replace_tensors(std::vector<Call>& calls,
                     absl::FunctionRef<at::Tensor(const at::Tensor&)> map) {
  for (Call& call : calls) {
    for (std::vector<at::Tensor>* tensors : {&call.inputs, &call.outputs}) {
      for (at::Tensor& tensor : *tensors) tensor = map(tensor);
    }
  }
}

// The tensor that a call contributes.
using Contribution = absl::FunctionRef<const at::Tensor&(const Call&)>;

at::Tensor scaled(const at::Tensor& tensor, const ReduceOp& op) {
  const auto* factor = dynamic_cast<const c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
  TORCH_CHECK_VALUE(factor != nullptr, "premultiplied sum without a factor");
  if (factor->tensor_factor.defined()) return tensor.mul(factor->tensor_factor.to(tensor.dtype()));
  return tensor.mul(factor->double_factor);
}

// A collective's calls, and the members that made them.
struct Collective {
  std::vector<Call>& calls;
  const Members& members;

  Call& call_of(int member) const { return calls[members.call_of[member]]; }
  int root() const { return calls[0].fingerprint.root; }
  // The number of the member that made the call.
  int member(size_t call) const { return members.of_call[call]; }
  int size() const { return members.size(); }
};

at::Tensor reduced(const Collective& all, Contribution contribution) {
  const Call& first = all.call_of(0);
  at::Tensor total = first.reduce_op.op_ == ReduceOp::PREMUL_SUM
                         ? scaled(contribution(first), first.reduce_op)
                         : contribution(first).clone();
  for (int member = 1; member < all.size(); ++member) {
    const Call& call = all.call_of(member);
    const at::Tensor& value = contribution(call);
    if (call.reduce_op.op_ == ReduceOp::PREMUL_SUM) {
      total.add_(scaled(value, call.reduce_op));
    } else {
      accelerate::internal::accumulate(total, value, call.reduce_op.op_);
    }
  }
  if (first.reduce_op.op_ == ReduceOp::AVG) accelerate::internal::average(total, all.size());
  return total;
}

void broadcast(const Collective& all) {
  const Call& root = all.call_of(all.root());
  for (Call& call : all.calls) {
    if (&call != &root) assign(call.inputs[0], root.inputs[0]);
  }
}

// `root` < 0: all members get the result.
void all_reduce(const Collective& all, int root) {
  for (size_t i = 0; i < all.calls[0].inputs.size(); ++i) {
    const at::Tensor total =
        reduced(all, [i](const Call& call) -> const at::Tensor& { return call.inputs[i]; });
    for (size_t call = 0; call < all.calls.size(); ++call) {
      if (root < 0 || all.member(call) == root) assign(all.calls[call].inputs[i], total);
    }
  }
}

// A sparse tensor has several blocks of memory, so a device's tensor is assigned the result instead
// of being a view of it.
void all_reduce_sparse(const Collective& all) {
  std::vector<at::Tensor> originals;
  for (const Call& call : all.calls) originals.push_back(call.inputs[0]);
  replace_tensors(all.calls, host_alias);
  all_reduce(all, -1);
  for (size_t i = 0; i < all.calls.size(); ++i) {
    Call& call = all.calls[i];
    if (call.device != nullptr) assign_sparse(originals[i], call.inputs[0], *call.device);
  }
}

void all_gather(const Collective& all) {
  for (Call& receiver : all.calls) {
    auto output = receiver.outputs.begin();
    for (int sender = 0; sender < all.size(); ++sender) {
      for (const at::Tensor& input : all.call_of(sender).inputs) assign(*output++, input);
    }
  }
}

void all_gather_into_tensor(const Collective& all) {
  for (Call& receiver : all.calls) {
    for (size_t i = 0; i < receiver.outputs.size(); ++i) {
      at::Tensor rows = receiver.outputs[i].view({all.size(), receiver.inputs[i].numel()});
      for (int sender = 0; sender < all.size(); ++sender) {
        assign(rows[sender], all.call_of(sender).inputs[i]);
      }
    }
  }
}

void gather(const Collective& all) {
  if (!all.members.called(all.root())) return;
  Call& root = all.call_of(all.root());
  for (int sender = 0; sender < all.size(); ++sender) {
    assign(root.outputs[sender], all.call_of(sender).inputs[0]);
  }
}

std::optional<std::string> folded_root(const Collective& all) {
  if (all.members.called(all.root())) return std::nullopt;
  return absl::StrCat("group rank ", all.root(),
                      " is folded, so nobody has the tensors that it scatters; scatter them from "
                      "group rank ",
                      all.member(0));
}

std::optional<std::string> scatter(const Collective& all) {
  if (std::optional<std::string> problem = folded_root(all)) return problem;
  const Call& root = all.call_of(all.root());
  for (size_t call = 0; call < all.calls.size(); ++call) {
    assign(all.calls[call].outputs[0], root.inputs[all.member(call)]);
  }
  return std::nullopt;
}

void reduce_scatter(const Collective& all) {
  // All results are computed first, because an output may be a view of that member's input.
  std::vector<at::Tensor> totals;
  for (size_t call = 0; call < all.calls.size(); ++call) {
    const int member = all.member(call);
    totals.push_back(reduced(
        all, [member](const Call& each) -> const at::Tensor& { return each.inputs[member]; }));
  }
  for (size_t call = 0; call < all.calls.size(); ++call) {
    assign(all.calls[call].outputs[0], totals[call]);
  }
}

void reduce_scatter_tensor(const Collective& all) {
  for (size_t i = 0; i < all.calls[0].inputs.size(); ++i) {
    const at::Tensor rows = reduced(all, [i](const Call& call) -> const at::Tensor& {
                              return call.inputs[i];
                            }).view({all.size(), all.calls[0].outputs[i].numel()});
    for (size_t call = 0; call < all.calls.size(); ++call) {
      assign(all.calls[call].outputs[i], rows[all.member(call)]);
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

std::optional<std::string> all_to_all_problem(const Collective& all) {
  for (int from = 0; from < all.size(); ++from) {
    for (size_t call = 0; call < all.calls.size(); ++call) {
      const at::Tensor& sent = all.call_of(from).inputs[all.member(call)];
      const at::Tensor& received = all.calls[call].outputs[from];
      if (!fits(sent, received)) return size_problem(from, sent, all.member(call), received);
    }
  }
  return std::nullopt;
}

std::optional<std::string> all_to_all(const Collective& all) {
  if (std::optional<std::string> problem = all_to_all_problem(all)) return problem;
  for (int from = 0; from < all.size(); ++from) {
    for (size_t call = 0; call < all.calls.size(); ++call) {
      const at::Tensor& sent = all.call_of(from).inputs[all.member(call)];
      assign(flat(all.calls[call].outputs[from]), flat(sent));
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

void split_into_shares(const Collective& all) {
  for (Call& call : all.calls) {
    call.inputs = shares(call.inputs[0], call.input_splits, all.size());
    call.outputs = shares(call.outputs[0], call.output_splits, all.size());
  }
}

// ---- Tensors without values.

// Whether a call's inputs go to other members. A folded root counts as another member.
bool contributes_inputs(const Collective& all, size_t call) {
  const OpType op = all.calls[call].fingerprint.op;
  return (op != OpType::BROADCAST && op != OpType::SCATTER) ||
         &all.call_of(all.root()) == &all.calls[call];
}

bool lacks_values(const Collective& all) {
  for (size_t i = 0; i < all.calls.size(); ++i) {
    const bool contributes = contributes_inputs(all, i);
    for (const at::Tensor& tensor : all.calls[i].inputs) {
      if (contributes ? !has_values(tensor) : is_hollow(tensor)) return true;
    }
    for (const at::Tensor& tensor : all.calls[i].outputs) {
      if (is_hollow(tensor)) return true;
    }
  }
  return false;
}

void note_results(const Collective& all, bool with_values) {
  for (size_t i = 0; i < all.calls.size(); ++i) {
    const Call& call = all.calls[i];
    for (const at::Tensor& tensor : call.outputs) mark_written(tensor, with_values);
    if (!writes_inputs(call, all.member(i))) continue;
    for (const at::Tensor& tensor : call.inputs) mark_written(tensor, with_values);
  }
}

// Members of a reduction pass equal memory, except by an error of the program.
std::optional<std::string> mixed_memory(const Collective& all) {
  const Call& first = all.calls[0];
  for (size_t other = 1; other < all.calls.size(); ++other) {
    for (size_t i = 0; i < first.inputs.size(); ++i) {
      const bool hollow = is_hollow(all.calls[other].inputs[i]);
      if (hollow == is_hollow(first.inputs[i])) continue;
      const size_t without = hollow ? other : 0;
      return absl::StrCat("group rank ", all.member(without),
                          " passes part of a tensor that is so large that numerics = shapes gives "
                          "it no values, but group rank ",
                          all.member(other - without), " passes a small tensor, which has some");
    }
  }
  return std::nullopt;
}

std::optional<std::string> run_without_values(const Collective& all) {
  note_results(all, /*with_values=*/false);
  const OpType op = all.calls[0].fingerprint.op;
  TORCH_CHECK_NOT_IMPLEMENTED(op != OpType::_ALLREDUCE_SPARSE, "sparse tensors without values ",
                              "(numerics = shapes) are not supported");
  switch (collective_kind(op)) {
    case CollectiveKind::kAllReduce:
    case CollectiveKind::kReduce:
    case CollectiveKind::kReduceScatter: return mixed_memory(all);
    case CollectiveKind::kScatter: return folded_root(all);
    case CollectiveKind::kAllToAll:
      if (op == OpType::ALLTOALL_BASE) {
        // To split a device's tensor would take the time of views, of the member that comes last.
        replace_tensors(all.calls, meta_alias);
        split_into_shares(all);
      }
      return all_to_all_problem(all);
    default: return std::nullopt;
  }
}

int64_t total_bytes(const std::vector<at::Tensor>& tensors) {
  int64_t bytes = 0;
  for (const at::Tensor& tensor : tensors) {
    bytes += static_cast<int64_t>(tensor.is_sparse()
                                      ? at::sparse::get_sparse_impl(tensor)->values().nbytes()
                                      : tensor.nbytes());
  }
  return bytes;
}

// The bytes of an all-to-all's tensors on one side of a member, without its own part.
int64_t bytes_to_others(const Call& call, const std::vector<at::Tensor>& tensors,
                        const std::vector<int64_t>& splits, int member, int group_size) {
  const int64_t all = total_bytes(tensors);
  if (call.fingerprint.op == OpType::ALLTOALL) {
    return all - static_cast<int64_t>(tensors[member].nbytes());
  }
  if (splits.empty()) return all - all / group_size;
  const int64_t rows = std::accumulate(splits.begin(), splits.end(), int64_t{0});
  return rows == 0 ? 0 : all / rows * (rows - splits[member]);
}

// The bytes of an even all-to-all in which every member moves as much as the busiest one does.
int64_t exchanged_bytes(const std::vector<Call>& calls, const Members& members) {
  const int size = members.size();
  if (size == 1) return total_bytes(calls[0].inputs);
  int64_t most = 0;
  for (size_t i = 0; i < calls.size(); ++i) {
    const Call& call = calls[i];
    const int member = members.of_call[i];
    most = std::max({most, bytes_to_others(call, call.inputs, call.input_splits, member, size),
                     bytes_to_others(call, call.outputs, call.output_splits, member, size)});
  }
  return most * size / (size - 1);
}

}  // namespace

void strike(FaultSites* sites, const Call& call, bool results) {
  for (const SiteFault& fault : call.faults) {
    const std::string& target = fault.effect->word;
    const bool is_input = target == "input" || (target == "buffer" && call.device == nullptr);
    if (results ? target != "result" : !is_input) continue;
    const bool in_outputs = results && !call.outputs.empty();
    const int64_t changed = strike_values(fault, in_outputs ? call.outputs : call.inputs);
    if (changed > 0 && sites != nullptr) sites->touched(fault, changed);
  }
}

CollectiveKind collective_kind(OpType op) {
  switch (op) {
    case OpType::BROADCAST: return CollectiveKind::kBroadcast;
    case OpType::REDUCE: return CollectiveKind::kReduce;
    case OpType::ALLGATHER:
    case OpType::ALLGATHER_COALESCED:
    case OpType::_ALLGATHER_BASE: return CollectiveKind::kAllGather;
    case OpType::REDUCE_SCATTER:
    case OpType::_REDUCE_SCATTER_BASE: return CollectiveKind::kReduceScatter;
    case OpType::GATHER: return CollectiveKind::kGather;
    case OpType::SCATTER: return CollectiveKind::kScatter;
    case OpType::ALLTOALL:
    case OpType::ALLTOALL_BASE: return CollectiveKind::kAllToAll;
    case OpType::BARRIER: return CollectiveKind::kBarrier;
    default: return CollectiveKind::kAllReduce;
  }
}

// NCCL, src/include/device.h (ncclNvlsSupported). LibTorch's averages and scaled sums are divided
// by the devices.
nccl::Reduction reduction_of(const CollectiveFingerprint& fingerprint) {
  const auto op = fingerprint.reduce_op;
  if (op == ReduceOp::AVG || op == ReduceOp::PREMUL_SUM) return nccl::Reduction::kScaled;
  bool in_switches = op == ReduceOp::SUM || op == ReduceOp::MIN || op == ReduceOp::MAX;
  for (const at::ScalarType type : fingerprint.dtypes) {
    switch (type) {
      case at::kHalf:
      case at::kBFloat16:
      case at::kInt:
      case at::kLong: break;
      case at::kFloat:
      case at::kDouble: in_switches = in_switches && op == ReduceOp::SUM; break;
      default: in_switches = false;
    }
  }
  return in_switches ? nccl::Reduction::kInSwitches : nccl::Reduction::kOnDevices;
}

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

Members Members::all(int size) {
  std::vector<int> numbers(size);
  std::iota(numbers.begin(), numbers.end(), 0);
  return {.of_call = numbers, .call_of = numbers};
}

std::optional<std::string> run_calls(std::vector<Call>& calls, const Members& members) {
  // The copies must not become part of the callers' autograd history.
  at::NoGradGuard no_grad;
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  const Collective all{calls, members};
  if (lacks_values(all)) return run_without_values(all);
  note_results(all, /*with_values=*/true);
  const OpType op = calls[0].fingerprint.op;
  if (op == OpType::_ALLREDUCE_SPARSE) {
    all_reduce_sparse(all);
    return std::nullopt;
  }
  replace_tensors(calls, host_alias);
  // All-to-all splits tensors into rows first.
  if (op != OpType::ALLTOALL && op != OpType::ALLTOALL_BASE) replace_tensors(calls, flat);
  switch (op) {
    case OpType::BROADCAST: broadcast(all); return std::nullopt;
    case OpType::ALLREDUCE:
    case OpType::ALLREDUCE_COALESCED: all_reduce(all, -1); return std::nullopt;
    case OpType::REDUCE: all_reduce(all, all.root()); return std::nullopt;
    case OpType::ALLGATHER:
    case OpType::ALLGATHER_COALESCED: all_gather(all); return std::nullopt;
    case OpType::_ALLGATHER_BASE: all_gather_into_tensor(all); return std::nullopt;
    case OpType::GATHER: gather(all); return std::nullopt;
    case OpType::SCATTER: return scatter(all);
    case OpType::REDUCE_SCATTER: reduce_scatter(all); return std::nullopt;
    case OpType::_REDUCE_SCATTER_BASE: reduce_scatter_tensor(all); return std::nullopt;
    case OpType::ALLTOALL: return all_to_all(all);
    case OpType::ALLTOALL_BASE: split_into_shares(all); return all_to_all(all);
    case OpType::BARRIER: return std::nullopt;
    default: break;
  }
  TORCH_INTERNAL_ASSERT(false, "not a collective: ", op_name(op));
}

std::optional<std::string> run_message(const Call& sender, const Call& receiver) {
  at::NoGradGuard no_grad;
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  const at::Tensor& sent = sender.inputs[0];
  const at::Tensor& received = receiver.outputs[0];
  if (!fits(sent, received)) {
    return absl::StrCat("sent ", sent.numel(), " elements of ", c10::toString(sent.scalar_type()),
                        ", expected ", received.numel(), " of ",
                        c10::toString(received.scalar_type()));
  }
  const bool known = has_values(sent);
  mark_written(received, known);
  if (known && !is_hollow(received)) assign(flat(host_alias(received)), flat(host_alias(sent)));
  return std::nullopt;
}

int64_t bytes_to_others(const Call& call, int member, int group_size) {
  return bytes_to_others(call, call.inputs, call.input_splits, member, group_size);
}

int64_t message_bytes(const std::vector<Call>& calls, const Members& members) {
  const Call& first = calls.front();
  switch (collective_kind(first.fingerprint.op)) {
    case CollectiveKind::kAllGather:
    case CollectiveKind::kGather: return total_bytes(first.inputs) * members.size();
    case CollectiveKind::kScatter: return total_bytes(first.outputs) * members.size();
    case CollectiveKind::kAllToAll: return exchanged_bytes(calls, members);
    default: break;
  }
  int64_t most = total_bytes(first.inputs);
  if (first.fingerprint.op != OpType::_ALLREDUCE_SPARSE) return most;
  for (const Call& call : calls) most = std::max(most, total_bytes(call.inputs));
  return most;
}

}  // namespace accelerate::simulator
