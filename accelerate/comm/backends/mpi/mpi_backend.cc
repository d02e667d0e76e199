#include <chrono>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <c10/util/Exception.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "accelerate/base/message_text.h"
#include "accelerate/comm/backends/backend_registry.h"
#include "accelerate/comm/backends/mpi/mpi_engine.h"
#include "accelerate/comm/backends/mpi/schedules.h"
#include "accelerate/comm/backends/own_operations.h"
#include "accelerate/comm/watch/collective_call.h"

namespace accelerate {
namespace {

using c10d::OpType;
using internal::Bytes;
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

// A tensor cut into parts of so many rows; no splits mean `count` equal parts.
std::vector<Bytes> cut(const at::Tensor& tensor, int count, c10::IntArrayRef splits = {}) {
  const std::vector<int64_t> equal(static_cast<size_t>(count), 1);
  if (splits.empty()) splits = equal;
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

// Parts by tensor and rank: what each rank receives of an all-gather, or each rank's term of a
// reduce-scatter.
using PartsByRank = std::vector<std::vector<Bytes>>;

PartsByRank parts_by_rank(OpType op, CollectiveCall::Lists lists, int size) {
  PartsByRank parts;
  if (op == OpType::ALLGATHER_COALESCED) {
    parts.resize(lists[0].size());
    for (const Tensors& of_rank : lists) {
      for (size_t i = 0; i < parts.size(); ++i) parts[i].push_back(bytes_of(of_rank[i]));
    }
  } else if (op == OpType::ALLGATHER || op == OpType::REDUCE_SCATTER) {
    parts.push_back(bytes_of(lists[0]));
  } else {
    for (const at::Tensor& whole : lists[0]) parts.push_back(cut(whole, size));
  }
  return parts;
}

Schedule message(Link& link, Bytes data, int peer, bool receives) {
  internal::Transfers& transfers = link.open();
  if (receives) {
    transfers.receive(data, peer);
  } else {
    transfers.send(data, peer);
  }
  co_await transfers;
}

Schedule all_reduce_each(Link& link, Reduction reduction, Tensors tensors) {
  for (const at::Tensor& tensor : tensors) {
    reduction.dtype = tensor.scalar_type();
    co_await internal::all_reduce(link, reduction, bytes_of(tensor));
  }
}

// outputs[i][r] is what rank r has as inputs[i].
Schedule all_gather_each(Link& link, Tensors inputs, PartsByRank outputs) {
  for (size_t i = 0; i < inputs.size(); ++i) {
    co_await internal::all_gather(link, bytes_of(inputs[i]), outputs[i]);
  }
}

// inputs[i][r] is this rank's term of rank r's outputs[i].
Schedule reduce_scatter_each(Link& link, Reduction reduction, PartsByRank inputs, Tensors outputs) {
  for (size_t i = 0; i < inputs.size(); ++i) {
    reduction.dtype = outputs[i].scalar_type();
    co_await internal::reduce_scatter(link, reduction, inputs[i], bytes_of(outputs[i]).data);
  }
}

// Ranks have different numbers of entries, so these are exchanged first; then every rank adds all
// ranks' entries.
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

std::string key_of(int member) { return absl::StrCat("mpi/rank/", member); }

std::vector<std::string> read_all(c10d::Store& store, const std::vector<std::string>& keys) {
  std::vector<std::string> texts;
  if (store.hasExtendedApi()) {
    for (const auto& bytes : store.multiGet(keys)) texts.emplace_back(bytes.begin(), bytes.end());
  } else {
    for (const std::string& key : keys) texts.push_back(store.get_to_str(key));
  }
  return texts;
}

void check_started_together(int ranks) {
  const int started = MpiEngine::get().size();
  TORCH_CHECK_VALUE(ranks <= started, "MPI has started ", started, " process(es) together, and ",
                    ranks, " are to talk by it; start the program with `mpirun -n ", ranks,
                    "` or `srun --mpi=pmix`, or take the backend gloo");
}

const bool rendezvous_registered = register_rendezvous(
    "Open MPI",
    [](const std::string& text, int, int world_size, std::chrono::milliseconds timeout) {
      check_started_together(world_size);
      return MpiEngine::get().publish(text, timeout);
    });

// Makes the group from its members' ranks in the MPI job, which they exchange through the store, so
// that an error names the members that are missing.
std::shared_ptr<internal::MpiGroup> make_group(const BackendOptions& options) {
  check_started_together(options.size);
  MpiEngine& engine = MpiEngine::get();
  c10d::Store& store = *options.store;
  store.set(key_of(options.rank), absl::StrCat(engine.rank()));
  std::vector<std::string> keys;
  for (int member = 0; member < options.size; ++member) keys.push_back(key_of(member));
  try {
    store.wait(keys, options.timeout);
  } catch (const c10::DistNetworkError&) {
    throw;
  } catch (const c10::DistStoreError&) {
    std::vector<int> missing;
    for (int member = 0; member < options.size; ++member) {
      if (!store.check({keys[member]})) missing.push_back(member);
    }
    throw c10::DistBackendError(absl::StrCat("waited in vain for ", rank_list(missing),
                                             " of the group to make it, for ",
                                             options.timeout.count(), " ms"));
  }
  std::vector<int> members;
  for (const std::string& text : read_all(store, keys)) {
    int rank = -1;
    TORCH_CHECK(absl::SimpleAtoi(text, &rank), "a member of the group wrote \"", text,
                "\" where its rank in the MPI job should be");
    members.push_back(rank);
  }
  return engine.make_group(std::move(members), options.timeout);
}

// c10d over MPI, for ranks that mpirun or srun started.
//
// Linking it registers the backend "mpi". All collectives and messages, on CPU tensors, of all
// dtypes; sums are taken in the order of ranks by LibTorch's kernels (schedules.h). Operations are
// asynchronous and run in the order of their calls (mpi_engine.h).
//
// Errors:  those of check_call, at once; c10::NotImplementedError for premultiplied sums;
//          c10::DistBackendError naming the rank, the operation and the ranks it waited for when
//          it fails or runs into its time-out. Afterwards the group throws it for every call.
// Threads: any; collectives of a group are called by one at a time.
class MpiBackend final : public CallBackend, public Interruptible {
 public:
  /// Collective over the group.
  explicit MpiBackend(const BackendOptions& options)
      : CallBackend(options.rank, options.size), group_(make_group(options)) {}
  ~MpiBackend() override { MpiEngine::get().free_group(*group_); }

  const std::string getBackendName() const override { return "mpi"; }
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return group_->calls; }

  void interrupt() override {
    MpiEngine::get().fail(*group_, std::make_exception_ptr(c10::DistBackendError("interrupted")));
  }

  /// Calls in between run as usual; endCoalescing returns one Work for all of them.
  void startCoalescing() override {
    // An earlier block that threw may have left operations behind.
    coalesced_.clear();
    coalescing_ = true;
  }
  WorkPtr endCoalescing() override {
    TORCH_CHECK(coalescing_, "endCoalescing without startCoalescing");
    coalescing_ = false;
    return c10::make_intrusive<internal::JointWork>(rank_, std::exchange(coalesced_, {}));
  }

 private:
  WorkPtr issue(const CollectiveCall& call) override {
    TORCH_CHECK_NOT_IMPLEMENTED(
        call.reduce_op == nullptr || call.reduce_op->op_ != c10d::ReduceOp::PREMUL_SUM,
        "the mpi backend has no premultiplied sums; scale the tensor first");
    const OpType op = check_call(call, rank_, size_);
    for (const CollectiveCall::Lists lists : {call.inputs, call.outputs}) {
      for (const at::Tensor& tensor : flattened(lists)) {
        TORCH_CHECK_VALUE(tensor.is_cpu(), op_name(op), ": a tensor is on ", tensor.device(),
                          "; the mpi backend carries CPU tensors only");
      }
    }
    Tensors inputs = flattened(call.inputs);
    // Only the root of a gather has outputs; other operations without any work in place.
    const bool in_place = call.outputs.empty() && op != OpType::GATHER;
    auto work = c10::make_intrusive<MpiWork>(group_, op, call.timeout,
                                             in_place ? inputs : flattened(call.outputs),
                                             in_place ? Tensors() : inputs);
    const bool is_message = c10d::isP2POp(op);
    if (is_message) {
      const std::string peer =
          call.peer < 0 ? "" : absl::StrCat(op == OpType::SEND ? " to " : " from ", call.peer);
      work->set_peer(absl::StrCat(peer, ", tag ", call.tag));
      work->link().tag = call.tag;
    }
    work->set_schedule(schedule_of(op, call, work->link()));
    MpiEngine::get().start(work, /*collective=*/!is_message);
    if (coalescing_) coalesced_.push_back(work);
    return work;
  }

  Schedule schedule_of(OpType op, const CollectiveCall& call, Link& link) const {
    const int root = static_cast<int>(call.root);
    const Tensors& share = call.share();
    Reduction reduction;
    if (call.reduce_op != nullptr && !share.empty()) {
      reduction = {.op = call.reduce_op->op_, .dtype = share[0].scalar_type()};
    }
    switch (op) {
      case OpType::BARRIER: return internal::barrier(link);
      case OpType::BROADCAST: return internal::broadcast(link, bytes_of(share[0]), root);
      case OpType::ALLREDUCE:
      case OpType::ALLREDUCE_COALESCED: return all_reduce_each(link, reduction, share);
      case OpType::_ALLREDUCE_SPARSE: return all_reduce_sparse(link, share[0], share[0].coalesce());
      case OpType::REDUCE: return internal::reduce(link, reduction, bytes_of(share[0]), root);
      case OpType::ALLGATHER:
      case OpType::ALLGATHER_COALESCED:
      case OpType::_ALLGATHER_BASE:
        return all_gather_each(link, share, parts_by_rank(op, call.outputs, size_));
      case OpType::REDUCE_SCATTER:
      case OpType::_REDUCE_SCATTER_BASE:
        return reduce_scatter_each(link, reduction, parts_by_rank(op, call.inputs, size_), share);
      case OpType::GATHER: {
        std::vector<Bytes> sends(size_);
        sends[root] = bytes_of(share[0]);
        return internal::exchange(
            link, std::move(sends),
            rank_ == root ? bytes_of(call.outputs[0]) : std::vector<Bytes>(size_));
      }
      case OpType::SCATTER: {
        std::vector<Bytes> receives(size_);
        receives[root] = bytes_of(share[0]);
        return internal::exchange(
            link, rank_ == root ? bytes_of(call.inputs[0]) : std::vector<Bytes>(size_),
            std::move(receives));
      }
      case OpType::ALLTOALL_BASE:
        return exchange(call, link, cut(share[0], size_, call.input_splits),
                        cut(call.outputs[0][0], size_, call.output_splits));
      case OpType::ALLTOALL:
        return exchange(call, link, bytes_of(share), bytes_of(call.outputs[0]));
      case OpType::SEND: return message(link, bytes_of(share[0]), call.peer, /*receives=*/false);
      default:
        return message(link, bytes_of(share[0]), call.peer < 0 ? MPI_ANY_SOURCE : call.peer,
                       /*receives=*/true);
    }
  }

  Schedule exchange(const CollectiveCall& call, Link& link, std::vector<Bytes> sends,
                    std::vector<Bytes> receives) const {
    TORCH_CHECK_VALUE(receives[rank_].size == sends[rank_].size, op_name(call.op),
                      ": this rank sends ", sends[rank_].size, " bytes to itself and expects ",
                      receives[rank_].size);
    return internal::exchange(link, std::move(sends), std::move(receives));
  }

  const std::shared_ptr<internal::MpiGroup> group_;
  bool coalescing_ = false;
  std::vector<WorkPtr> coalesced_;
};

const bool registered = register_backend(
    "mpi", [](const BackendOptions& options) { return c10::make_intrusive<MpiBackend>(options); });

}  // namespace
}  // namespace accelerate
