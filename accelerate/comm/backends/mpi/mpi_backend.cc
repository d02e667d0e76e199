#include "accelerate/comm/backends/mpi/mpi_backend.h"

#include <numeric>
#include <utility>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <c10/util/Exception.h>

#include "absl/strings/str_cat.h"
#include "accelerate/comm/backends/joint_work.h"
#include "accelerate/comm/backends/mpi/members.h"
#include "accelerate/comm/backends/mpi/schedules.h"
#include "accelerate/comm/watch/call_checks.h"
#include "accelerate/comm/watch/collective_fingerprint.h"

namespace accelerate {
namespace {

using c10d::OpType;
using internal::Bytes;
using internal::flattened;
using internal::Link;
using internal::MpiEngine;
using internal::MpiWork;
using internal::Reduction;
using internal::Schedule;
using Tensors = std::vector<at::Tensor>;

Bytes bytes_of(const at::Tensor& tensor) {
  return {.data = static_cast<char*>(tensor.data_ptr()), .size = tensor.nbytes()};
}

std::vector<Bytes> bytes_of(const Tensors& tensors) {
  std::vector<Bytes> parts;
  for (const at::Tensor& tensor : tensors) parts.push_back(bytes_of(tensor));
  return parts;
}

// A tensor cut into as many equal parts.
std::vector<Bytes> cut(const at::Tensor& tensor, int count) {
  const Bytes all = bytes_of(tensor);
  const size_t part = all.size / static_cast<size_t>(count);
  std::vector<Bytes> parts;
  for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
    parts.push_back({.data = all.data + i * part, .size = part});
  }
  return parts;
}

// A tensor cut into parts of so many rows; no splits mean equal parts.
std::vector<Bytes> cut_rows(const at::Tensor& tensor, const std::vector<int64_t>& splits,
                            int count) {
  if (splits.empty()) return cut(tensor, count);
  const int64_t rows = std::accumulate(splits.begin(), splits.end(), int64_t{0});
  const Bytes all = bytes_of(tensor);
  const size_t row = rows == 0 ? 0 : all.size / static_cast<size_t>(rows);
  std::vector<Bytes> parts;
  char* next = all.data;
  for (int64_t split : splits) {
    parts.push_back({.data = next, .size = static_cast<size_t>(split) * row});
    next += parts.back().size;
  }
  return parts;
}

Reduction reduction_of(const c10d::ReduceOp& op, const at::Tensor& tensor) {
  TORCH_CHECK_NOT_IMPLEMENTED(op.op_ != c10d::ReduceOp::PREMUL_SUM,
                              "the mpi backend has no premultiplied sums; scale the tensor first");
  check_reducible(op.op_, tensor.scalar_type());
  return {.op = op.op_, .dtype = tensor.scalar_type()};
}

Schedule send_to(Link& link, Bytes data, int destination) {
  internal::Transfers& message = link.open();
  message.send(data.data, data.size, destination);
  co_await message;
}

Schedule receive_from(Link& link, Bytes data, int source) {
  internal::Transfers& message = link.open();
  message.receive(data.data, data.size, source);
  co_await message;
}

Schedule all_reduce_each(Link& link, Reduction reduction, Tensors tensors) {
  for (const at::Tensor& tensor : tensors) {
    reduction.dtype = tensor.scalar_type();
    co_await internal::all_reduce(link, reduction, bytes_of(tensor));
  }
}

// outputs[i][r] is what rank r has as inputs[i].
Schedule all_gather_each(Link& link, Tensors inputs, std::vector<std::vector<Bytes>> outputs) {
  for (size_t i = 0; i < inputs.size(); ++i) {
    co_await internal::all_gather(link, bytes_of(inputs[i]), outputs[i]);
  }
}

// inputs[i][r] is this rank's term of rank r's outputs[i].
Schedule reduce_scatter_each(Link& link, Reduction reduction,
                             std::vector<std::vector<Bytes>> inputs, Tensors outputs) {
  for (size_t i = 0; i < inputs.size(); ++i) {
    reduction.dtype = outputs[i].scalar_type();
    co_await internal::reduce_scatter(link, reduction, inputs[i], bytes_of(outputs[i]).data);
  }
}

// Ranks have different numbers of entries: they tell them first, then everybody adds all of them.
Schedule all_reduce_sparse(Link& link, at::Tensor result, at::Tensor mine) {
  int64_t count = mine._nnz();
  std::vector<int64_t> counts(link.size);
  std::vector<Bytes> places;
  for (int64_t& place : counts) {
    places.push_back({.data = reinterpret_cast<char*>(&place), .size = sizeof(place)});
  }
  co_await internal::all_gather(link, Bytes{reinterpret_cast<char*>(&count), sizeof(count)},
                                places);
  const at::Tensor my_indices = mine._indices().contiguous();
  const at::Tensor my_values = mine._values().contiguous();
  Tensors indices;
  Tensors values;
  for (int64_t entries : counts) {
    std::vector<int64_t> shape = my_values.sizes().vec();
    shape[0] = entries;
    indices.push_back(at::empty({my_indices.size(0), entries}, my_indices.options()));
    values.push_back(at::empty(shape, my_values.options()));
  }
  const std::vector<Bytes> all_indices = bytes_of(indices);
  const std::vector<Bytes> all_values = bytes_of(values);
  co_await internal::exchange(link, std::vector<Bytes>(link.size, bytes_of(my_indices)),
                              all_indices);
  co_await internal::exchange(link, std::vector<Bytes>(link.size, bytes_of(my_values)), all_values);
  const at::AutoDispatchBelowAutograd guard;
  at::Tensor total;
  for (int rank = 0; rank < link.size; ++rank) {
    const at::Tensor term =
        at::sparse_coo_tensor(indices[rank], values[rank], mine.sizes(), mine.options());
    total = total.defined() ? total.add(term) : term;
  }
  result.copy_(total.coalesce());
}

c10::intrusive_ptr<c10d::Backend> make_mpi(const BackendOptions& options) {
  return c10::make_intrusive<MpiBackend>(options);
}

const bool registered = register_backend("mpi", make_mpi);

}  // namespace

MpiBackend::MpiBackend(const BackendOptions& options)
    : Backend(options.rank, options.size), group_(internal::make_group(options)) {}

MpiBackend::~MpiBackend() { MpiEngine::get().free_group(*group_); }

void MpiBackend::interrupt() {
  MpiEngine::get().fail(*group_, std::make_exception_ptr(c10::DistBackendError("interrupted")));
}

MpiBackend::MpiWorkPtr MpiBackend::make_work(OpType op, std::chrono::milliseconds timeout,
                                             Tensors results, Tensors kept) const {
  for (const Tensors* tensors : {&results, &kept}) {
    for (const at::Tensor& tensor : *tensors) {
      TORCH_CHECK_VALUE(tensor.is_cpu(), op_name(op), ": a tensor is on ", tensor.device(),
                        "; the mpi backend carries CPU tensors only");
    }
  }
  return c10::make_intrusive<MpiWork>(group_, op, timeout, std::move(results), std::move(kept));
}

MpiBackend::WorkPtr MpiBackend::keep(WorkPtr work) {
  if (coalescing_) coalesced_.push_back(work);
  return work;
}

MpiBackend::WorkPtr MpiBackend::start(const MpiWorkPtr& work, Schedule schedule) {
  work->set_schedule(std::move(schedule));
  MpiEngine::get().start(work, /*collective=*/true);
  return keep(work);
}

MpiBackend::WorkPtr MpiBackend::start_exchange(OpType op, std::chrono::milliseconds timeout,
                                               Tensors outputs, Tensors inputs,
                                               std::vector<Bytes> receives,
                                               std::vector<Bytes> sends) {
  TORCH_CHECK_VALUE(receives[rank_].size == sends[rank_].size, op_name(op), ": this rank sends ",
                    sends[rank_].size, " bytes to itself and expects ", receives[rank_].size);
  auto work = make_work(op, timeout, std::move(outputs), std::move(inputs));
  return start(work, internal::exchange(work->link(), std::move(sends), std::move(receives)));
}

MpiBackend::WorkPtr MpiBackend::start_message(const MpiWorkPtr& work, int tag, Schedule schedule) {
  work->link().tag = tag;
  work->set_schedule(std::move(schedule));
  MpiEngine::get().start(work, /*collective=*/false);
  return keep(work);
}

MpiBackend::WorkPtr MpiBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  check_count(tensors, 1, OpType::BROADCAST, "input");
  const int root = check_root(options.rootRank, size_);
  auto work = make_work(OpType::BROADCAST, options.timeout, tensors);
  return start(work, internal::broadcast(work->link(), bytes_of(tensors[0]), root));
}

MpiBackend::WorkPtr MpiBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  TORCH_CHECK_VALUE(tensors.size() == 1, "all_reduce: expected 1 input tensor(s), got ",
                    tensors.size());
  if (tensors[0].is_sparse()) return allreduce_sparse(tensors, options);
  check_contiguous(tensors[0], OpType::ALLREDUCE);
  const Reduction reduction = reduction_of(options.reduceOp, tensors[0]);
  auto work = make_work(OpType::ALLREDUCE, options.timeout, tensors);
  return start(work, internal::all_reduce(work->link(), reduction, bytes_of(tensors[0])));
}

MpiBackend::WorkPtr MpiBackend::allreduce_sparse(Tensors& tensors,
                                                 const c10d::AllreduceOptions& options) {
  TORCH_CHECK_VALUE(tensors.size() == 1 && tensors[0].is_sparse(),
                    "all_reduce_sparse: expected one sparse tensor");
  TORCH_CHECK_VALUE(options.reduceOp.op_ == c10d::ReduceOp::SUM,
                    "all_reduce_sparse: only sums are defined");
  reduction_of(options.reduceOp, tensors[0]);
  auto work = make_work(OpType::_ALLREDUCE_SPARSE, options.timeout, tensors);
  return start(work, all_reduce_sparse(work->link(), tensors[0], tensors[0].coalesce()));
}

MpiBackend::WorkPtr MpiBackend::allreduce_coalesced(
    Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  TORCH_CHECK_VALUE(!tensors.empty(), "all_reduce_coalesced: no tensors");
  check_count(tensors, tensors.size(), OpType::ALLREDUCE_COALESCED, "input");
  Reduction reduction;
  for (const at::Tensor& tensor : tensors) reduction = reduction_of(options.reduceOp, tensor);
  auto work = make_work(OpType::ALLREDUCE_COALESCED, options.timeout, tensors);
  return start(work, all_reduce_each(work->link(), reduction, tensors));
}

MpiBackend::WorkPtr MpiBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  check_count(tensors, 1, OpType::REDUCE, "input");
  const Reduction reduction = reduction_of(options.reduceOp, tensors[0]);
  const int root = check_root(options.rootRank, size_);
  auto work = make_work(OpType::REDUCE, options.timeout, tensors);
  return start(work, internal::reduce(work->link(), reduction, bytes_of(tensors[0]), root));
}

MpiBackend::WorkPtr MpiBackend::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options) {
  check_count(inputs, 1, OpType::ALLGATHER, "input");
  check_list_count(outputs.size(), 1, OpType::ALLGATHER, "output");
  check_count(outputs[0], size_, OpType::ALLGATHER, "output");
  check_alike(outputs[0], inputs[0], OpType::ALLGATHER, "output");
  auto work = make_work(OpType::ALLGATHER, options.timeout, outputs[0], inputs);
  return start(work, internal::all_gather(work->link(), bytes_of(inputs[0]), bytes_of(outputs[0])));
}

MpiBackend::WorkPtr MpiBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                const c10d::AllgatherOptions& options) {
  Tensors outputs{output};
  Tensors inputs{input};
  return allgather_into_tensor_coalesced(outputs, inputs, options);
}

MpiBackend::WorkPtr MpiBackend::allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                                    const c10d::AllgatherOptions& options) {
  check_count(inputs, inputs.size(), OpType::ALLGATHER_COALESCED, "input");
  check_list_count(outputs.size(), size_, OpType::ALLGATHER_COALESCED, "output");
  std::vector<std::vector<Bytes>> places(inputs.size());
  for (const Tensors& from_rank : outputs) {
    check_count(from_rank, inputs.size(), OpType::ALLGATHER_COALESCED, "output");
    for (size_t i = 0; i < inputs.size(); ++i) {
      check_alike({from_rank[i]}, inputs[i], OpType::ALLGATHER_COALESCED, "output");
      places[i].push_back(bytes_of(from_rank[i]));
    }
  }
  auto work = make_work(OpType::ALLGATHER_COALESCED, options.timeout, flattened(outputs), inputs);
  return start(work, all_gather_each(work->link(), inputs, std::move(places)));
}

MpiBackend::WorkPtr MpiBackend::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  check_count(inputs, inputs.size(), OpType::_ALLGATHER_BASE, "input");
  check_count(outputs, inputs.size(), OpType::_ALLGATHER_BASE, "output");
  std::vector<std::vector<Bytes>> places;
  for (size_t i = 0; i < inputs.size(); ++i) {
    check_whole(outputs[i], inputs[i], size_, OpType::_ALLGATHER_BASE);
    places.push_back(cut(outputs[i], size_));
  }
  auto work = make_work(OpType::_ALLGATHER_BASE, options.timeout, outputs, inputs);
  return start(work, all_gather_each(work->link(), inputs, std::move(places)));
}

MpiBackend::WorkPtr MpiBackend::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                       const c10d::GatherOptions& options) {
  const int root = check_root(options.rootRank, size_);
  check_count(inputs, 1, OpType::GATHER, "input");
  check_list_count(outputs.size(), rank_ == root ? 1 : 0, OpType::GATHER, "output");
  std::vector<Bytes> sends(size_);
  std::vector<Bytes> receives(size_);
  sends[root] = bytes_of(inputs[0]);
  if (rank_ == root) {
    check_count(outputs[0], size_, OpType::GATHER, "output");
    check_alike(outputs[0], inputs[0], OpType::GATHER, "output");
    receives = bytes_of(outputs[0]);
  }
  auto work = make_work(OpType::GATHER, options.timeout, flattened(outputs), inputs);
  return start(work, internal::exchange(work->link(), std::move(sends), std::move(receives)));
}

MpiBackend::WorkPtr MpiBackend::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                        const c10d::ScatterOptions& options) {
  const int root = check_root(options.rootRank, size_);
  check_count(outputs, 1, OpType::SCATTER, "output");
  check_list_count(inputs.size(), rank_ == root ? 1 : 0, OpType::SCATTER, "input");
  std::vector<Bytes> sends(size_);
  std::vector<Bytes> receives(size_);
  receives[root] = bytes_of(outputs[0]);
  if (rank_ == root) {
    check_count(inputs[0], size_, OpType::SCATTER, "input");
    check_alike(inputs[0], outputs[0], OpType::SCATTER, "input");
    sends = bytes_of(inputs[0]);
  }
  auto work = make_work(OpType::SCATTER, options.timeout, outputs, flattened(inputs));
  return start(work, internal::exchange(work->link(), std::move(sends), std::move(receives)));
}

MpiBackend::WorkPtr MpiBackend::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                               const c10d::ReduceScatterOptions& options) {
  check_count(outputs, 1, OpType::REDUCE_SCATTER, "output");
  check_list_count(inputs.size(), 1, OpType::REDUCE_SCATTER, "input");
  check_count(inputs[0], size_, OpType::REDUCE_SCATTER, "input");
  check_alike(inputs[0], outputs[0], OpType::REDUCE_SCATTER, "input");
  const Reduction reduction = reduction_of(options.reduceOp, outputs[0]);
  auto work = make_work(OpType::REDUCE_SCATTER, options.timeout, outputs, inputs[0]);
  return start(work, internal::reduce_scatter(work->link(), reduction, bytes_of(inputs[0]),
                                              bytes_of(outputs[0]).data));
}

MpiBackend::WorkPtr MpiBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                     const c10d::ReduceScatterOptions& options) {
  Tensors outputs{output};
  Tensors inputs{input};
  return reduce_scatter_tensor_coalesced(outputs, inputs, options);
}

MpiBackend::WorkPtr MpiBackend::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) {
  check_count(inputs, inputs.size(), OpType::_REDUCE_SCATTER_BASE, "input");
  check_count(outputs, inputs.size(), OpType::_REDUCE_SCATTER_BASE, "output");
  Reduction reduction;
  std::vector<std::vector<Bytes>> parts;
  for (size_t i = 0; i < inputs.size(); ++i) {
    check_whole(inputs[i], outputs[i], size_, OpType::_REDUCE_SCATTER_BASE);
    reduction = reduction_of(options.reduceOp, inputs[i]);
    parts.push_back(cut(inputs[i], size_));
  }
  auto work = make_work(OpType::_REDUCE_SCATTER_BASE, options.timeout, outputs, inputs);
  return start(work, reduce_scatter_each(work->link(), reduction, std::move(parts), outputs));
}

MpiBackend::WorkPtr MpiBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                              std::vector<int64_t>& output_splits,
                                              std::vector<int64_t>& input_splits,
                                              const c10d::AllToAllOptions& options) {
  check_contiguous(input, OpType::ALLTOALL_BASE);
  check_contiguous(output, OpType::ALLTOALL_BASE);
  check_splits(input_splits, input, size_, "input");
  check_splits(output_splits, output, size_, "output");
  return start_exchange(OpType::ALLTOALL_BASE, options.timeout, {output}, {input},
                        cut_rows(output, output_splits, size_),
                        cut_rows(input, input_splits, size_));
}

MpiBackend::WorkPtr MpiBackend::alltoall(Tensors& outputs, Tensors& inputs,
                                         const c10d::AllToAllOptions& options) {
  check_count(inputs, size_, OpType::ALLTOALL, "input");
  check_count(outputs, size_, OpType::ALLTOALL, "output");
  return start_exchange(OpType::ALLTOALL, options.timeout, outputs, inputs, bytes_of(outputs),
                        bytes_of(inputs));
}

MpiBackend::WorkPtr MpiBackend::send(Tensors& tensors, int destination, int tag) {
  check_count(tensors, 1, OpType::SEND, "input");
  check_root(destination, size_);
  auto work = make_work(OpType::SEND, c10d::kUnsetTimeout, tensors);
  work->set_peer(absl::StrCat(" to ", destination, ", tag ", tag));
  return start_message(work, tag, send_to(work->link(), bytes_of(tensors[0]), destination));
}

MpiBackend::WorkPtr MpiBackend::recv(Tensors& tensors, int source, int tag) {
  check_count(tensors, 1, OpType::RECV, "output");
  check_root(source, size_);
  auto work = make_work(OpType::RECV, c10d::kUnsetTimeout, tensors);
  work->set_peer(absl::StrCat(" from ", source, ", tag ", tag));
  return start_message(work, tag, receive_from(work->link(), bytes_of(tensors[0]), source));
}

MpiBackend::WorkPtr MpiBackend::recvAnysource(Tensors& tensors, int tag) {
  check_count(tensors, 1, OpType::RECVANYSOURCE, "output");
  auto work = make_work(OpType::RECVANYSOURCE, c10d::kUnsetTimeout, tensors);
  work->set_peer(absl::StrCat(", tag ", tag));
  return start_message(work, tag, receive_from(work->link(), bytes_of(tensors[0]), MPI_ANY_SOURCE));
}

MpiBackend::WorkPtr MpiBackend::barrier(const c10d::BarrierOptions& options) {
  auto work = make_work(OpType::BARRIER, options.timeout, {});
  return start(work, internal::barrier(work->link()));
}

void MpiBackend::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) {
  barrier(options)->wait();
}

void MpiBackend::startCoalescing() {
  // What an earlier block began before one of its calls threw is nobody's any more.
  coalesced_.clear();
  coalescing_ = true;
}

MpiBackend::WorkPtr MpiBackend::endCoalescing() {
  TORCH_CHECK(coalescing_, "endCoalescing without startCoalescing");
  coalescing_ = false;
  return c10::make_intrusive<internal::JointWork>(rank_, std::exchange(coalesced_, {}));
}

}  // namespace accelerate
