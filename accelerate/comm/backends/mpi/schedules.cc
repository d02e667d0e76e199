#include "accelerate/comm/backends/mpi/schedules.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <set>

#include <ATen/Tensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>

#include "absl/strings/str_cat.h"
#include "accelerate/comm/backends/own_operations.h"

namespace accelerate::internal {
namespace {

using c10d::ReduceOp;

std::string mpi_error(int code) {
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  return std::string(text.data(), static_cast<size_t>(length));
}

// Below it a loop is over before LibTorch has found its kernel.
constexpr int64_t kFewElements = 64;

at::Tensor view(const char* data, int64_t numel, at::ScalarType dtype) {
  return at::from_blob(const_cast<char*>(data), {numel}, at::TensorOptions().dtype(dtype));
}

template <typename T>
void add_few(char* total, const char* value, int64_t numel) {
  T* sum = reinterpret_cast<T*>(total);
  const T* term = reinterpret_cast<const T*>(value);
  for (int64_t i = 0; i < numel; ++i) sum[i] += term[i];
}

// Tensors up to this size go to all ranks at once, in the fewest consecutive messages; what is
// larger is cut, so that every rank sends and adds up its share only.
constexpr size_t kSmall = size_t{32} << 10;
// All ranks' small parts together.
constexpr size_t kSmallInAll = size_t{1} << 20;
// The bytes that are added up at a time. On one machine a rank copies out of the other's memory,
// which costs a system call a message; larger ones leave the caches.
constexpr size_t kSegment = size_t{4} << 20;
// How many segments are under way, so that a rank can add while another arrives.
constexpr size_t kWindow = 2;
// All segments that a rank keeps at a time.
constexpr size_t kStaging = size_t{256} << 20;

void copy(Bytes to, Bytes from) {
  if (to.size > 0 && to.data != from.data) std::memcpy(to.data, from.data, to.size);
}

bool is_small(const Link& link, size_t bytes) {
  return bytes <= kSmall && bytes * static_cast<size_t>(link.size) <= kSmallInAll;
}

// Whole numbers of elements, as equal as possible.
std::vector<Bytes> shares(const Link& link, char* data, int64_t numel, size_t element) {
  const int64_t share = (numel + link.size - 1) / link.size;
  std::vector<Bytes> parts;
  for (int rank = 0; rank < link.size; ++rank) {
    const int64_t begin = std::min(numel, rank * share);
    const int64_t end = std::min(numel, begin + share);
    parts.push_back({.data = data + static_cast<size_t>(begin) * element,
                     .size = static_cast<size_t>(end - begin) * element});
  }
  return parts;
}

// Everybody's part in `blocks`, by rank, in as many rounds as the number of ranks has binary
// digits. Round k doubles what a rank has: its own part and those of the ranks after it.
Schedule gather_small(Link& link, Bytes mine, char* blocks) {
  const auto size = static_cast<size_t>(link.size);
  // In the order in which they come, which begins with the own one.
  char* relative = link.staging->at_least(2 * size * mine.size) + size * mine.size;
  copy({relative, mine.size}, mine);
  for (int have = 1; have < link.size; have *= 2) {
    const int more = std::min(have, link.size - have);
    Transfers& round = link.open();
    const size_t bytes = static_cast<size_t>(more) * mine.size;
    round.receive({relative + static_cast<size_t>(have) * mine.size, bytes},
                  (link.rank + have) % link.size);
    round.send({relative, bytes}, (link.rank - have + link.size) % link.size);
    co_await round;
  }
  for (int i = 0; i < link.size; ++i) {
    const auto rank = static_cast<size_t>((link.rank + i) % link.size);
    copy({blocks + rank * mine.size, mine.size},
         {relative + static_cast<size_t>(i) * mine.size, mine.size});
  }
}

// The terms of one sum: others' lie one after the other in `staged`, without the own one, which is
// in `total`, where the sum comes to be.
void add_in_order(const Link& link, const Reduction& reduction, char* total, char* staged,
                  int64_t numel) {
  const size_t bytes = static_cast<size_t>(numel) * reduction.element_size();
  auto term = [&](int rank) { return staged + static_cast<size_t>(rank) * bytes; };
  for (int rank = 1; rank < link.rank; ++rank) reduction.add(staged, term(rank), numel);
  if (link.rank > 0) reduction.add(total, staged, numel);
  for (int rank = link.rank; rank < link.size - 1; ++rank) reduction.add(total, term(rank), numel);
  reduction.finish(total, numel, link.size);
}

}  // namespace

void check_mpi(int code, const char* what) {
  if (code == MPI_SUCCESS) return;
  throw c10::DistBackendError(absl::StrCat(what, ": ", mpi_error(code)));
}

void Transfers::start(Bytes data, int peer, bool receives) {
  TORCH_CHECK_VALUE(peer != MPI_ANY_SOURCE || data.size <= max_message_,
                    "a receive from any rank of ", data.size, " bytes; at most ", max_message_,
                    " are possible: name the rank");
  do {
    const int part = static_cast<int>(std::min(data.size, max_message_));
    messages_.push_back({.peer = peer, .bytes = part, .receives = receives});
    requests_.push_back(MPI_REQUEST_NULL);
    MPI_Request* request = &requests_.back();
    check_mpi(receives ? MPI_Irecv(data.data, part, MPI_BYTE, peer, tag_, communicator_, request)
                       : MPI_Isend(data.data, part, MPI_BYTE, peer, tag_, communicator_, request),
              receives ? "MPI_Irecv" : "MPI_Isend");
    data.data += part;
    data.size -= static_cast<size_t>(part);
  } while (data.size > 0);
}

bool Transfers::done() {
  if (requests_.empty()) return true;
  statuses_.resize(requests_.size());
  int all = 0;
  const int code =
      MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &all, statuses_.data());
  if (code != MPI_SUCCESS && !cancelled_) {
    for (size_t i = 0; code == MPI_ERR_IN_STATUS && i < statuses_.size(); ++i) {
      const int error = statuses_[i].MPI_ERROR;
      if (error == MPI_SUCCESS || error == MPI_ERR_PENDING) continue;
      throw c10::DistBackendError(
          absl::StrCat(messages_[i].receives ? "receiving from" : "sending to", " rank ",
                       messages_[i].peer, ": ", mpi_error(error)));
    }
    check_mpi(code, "MPI_Testall");
  }
  if (code == MPI_SUCCESS && all == 0) return false;
  if (!cancelled_) check_lengths();
  requests_.clear();
  messages_.clear();
  return true;
}

void Transfers::check_lengths() {
  for (size_t i = 0; i < messages_.size(); ++i) {
    if (!messages_[i].receives) continue;
    int bytes = 0;
    MPI_Get_count(&statuses_[i], MPI_BYTE, &bytes);
    source_ = statuses_[i].MPI_SOURCE;
    if (bytes == messages_[i].bytes) continue;
    throw c10::DistBackendError(absl::StrCat("rank ", source_, " of the group sent ", bytes,
                                             " bytes where this rank expects ", messages_[i].bytes,
                                             ": their calls differ"));
  }
}

std::vector<int> Transfers::missing() {
  std::set<int> ranks;
  for (size_t i = 0; i < requests_.size(); ++i) {
    int done = 0;
    // What is done stays in the list, as a null request, which counts as done.
    if (MPI_Request_get_status(requests_[i], &done, MPI_STATUS_IGNORE) == MPI_SUCCESS &&
        done == 0 && messages_[i].peer >= 0) {
      ranks.insert(messages_[i].peer);
    }
  }
  return {ranks.begin(), ranks.end()};
}

void Transfers::cancel() {
  cancelled_ = true;
  for (size_t i = 0; i < requests_.size(); ++i) {
    if (messages_[i].receives && requests_[i] != MPI_REQUEST_NULL) MPI_Cancel(&requests_[i]);
  }
}

void Reduction::add(char* total, const char* value, int64_t numel) const {
  if (numel <= kFewElements && (op == ReduceOp::SUM || op == ReduceOp::AVG)) {
    if (dtype == at::kFloat) return add_few<float>(total, value, numel);
    if (dtype == at::kDouble) return add_few<double>(total, value, numel);
    if (dtype == at::kLong) return add_few<int64_t>(total, value, numel);
  }
  const at::AutoDispatchBelowAutograd guard;
  at::Tensor sum = view(total, numel, dtype);
  const at::Tensor term = view(value, numel, dtype);
  accumulate(sum, term, op);
}

void Reduction::finish(char* total, int64_t numel, int count) const {
  if (op != ReduceOp::AVG) return;
  const at::AutoDispatchBelowAutograd guard;
  at::Tensor sum = view(total, numel, dtype);
  average(sum, count);
}

Schedule barrier(Link& link) {
  for (int distance = 1; distance < link.size; distance *= 2) {
    Transfers& round = link.open();
    round.receive({}, (link.rank - distance + link.size) % link.size);
    round.send({}, (link.rank + distance) % link.size);
    co_await round;
  }
}

Schedule exchange(Link& link, std::vector<Bytes> sends, std::vector<Bytes> receives) {
  Transfers& all = link.open();
  // Every rank begins with another one.
  for (int distance = 1; distance < link.size; ++distance) {
    const int from = (link.rank - distance + link.size) % link.size;
    if (receives[from].size > 0) all.receive(receives[from], from);
  }
  for (int distance = 1; distance < link.size; ++distance) {
    const int to = (link.rank + distance) % link.size;
    if (sends[to].size > 0) all.send(sends[to], to);
  }
  copy(receives[link.rank], sends[link.rank]);
  co_await all;
}

Schedule all_gather(Link& link, Bytes mine, std::vector<Bytes> outputs) {
  if (!is_small(link, mine.size)) {
    co_await exchange(link, std::vector<Bytes>(link.size, mine), std::move(outputs));
    co_return;
  }
  const size_t all = mine.size * static_cast<size_t>(link.size);
  char* blocks = link.staging->at_least(2 * all);
  co_await gather_small(link, mine, blocks);
  for (int rank = 0; rank < link.size; ++rank) {
    copy(outputs[rank], {blocks + static_cast<size_t>(rank) * mine.size, mine.size});
  }
}

Schedule broadcast(Link& link, Bytes data, int root) {
  // Numbered from the root: rank r has it from r without its highest binary digit.
  const int self = (link.rank - root + link.size) % link.size;
  auto rank_of = [&](int number) { return (number + root) % link.size; };
  if (data.size <= kSmall || link.size == 2) {
    int above = 1;
    while (above <= self) above *= 2;
    if (self > 0) {
      Transfers& from = link.open();
      from.receive(data, rank_of(self - above / 2));
      co_await from;
    }
    Transfers& to = link.open();
    for (; self + above < link.size; above *= 2) {
      to.send(data, rank_of(self + above));
    }
    co_await to;
    co_return;
  }
  // The root sends each rank a share, and the ranks exchange their shares.
  const std::vector<Bytes> parts = shares(link, data.data, static_cast<int64_t>(data.size), 1);
  std::vector<Bytes> nothing(link.size);
  std::vector<Bytes> sends = nothing;
  std::vector<Bytes> receives = nothing;
  if (self == 0) {
    sends = parts;
    sends[link.rank] = receives[link.rank] = {};
  } else {
    receives[root] = parts[link.rank];
  }
  co_await exchange(link, sends, receives);
  sends = nothing;
  receives = nothing;
  for (int rank = 0; rank < link.size; ++rank) {
    if (rank == link.rank) continue;
    if (rank != root) sends[rank] = parts[link.rank];
    if (self != 0) receives[rank] = parts[rank];
  }
  co_await exchange(link, std::move(sends), std::move(receives));
}

Schedule reduce_scatter(Link& link, Reduction reduction, std::vector<Bytes> inputs, char* output) {
  const size_t element = reduction.element_size();
  const size_t others = static_cast<size_t>(link.size) - 1;
  const size_t fits = kStaging / kWindow / std::max<size_t>(others, 1);
  const size_t segment = std::max<size_t>(std::min(kSegment, fits) / element, 1) * element;
  size_t longest = 0;
  for (const Bytes& input : inputs) longest = std::max(longest, input.size);
  const size_t slot = std::min(segment, longest) * others;
  char* staging = link.staging->at_least(slot * kWindow);

  auto cut = [&](int rank, size_t begin) -> Bytes {
    const Bytes& input = inputs[rank];
    if (begin >= input.size) return {};
    return {.data = input.data + begin, .size = std::min(segment, input.size - begin)};
  };
  auto slot_of = [&](size_t begin) { return begin / segment % kWindow; };
  std::array<Transfers*, kWindow> arriving{};
  auto start = [&](size_t begin) {
    if (begin >= longest) return;
    Transfers& all = *(arriving[slot_of(begin)] = &link.open());
    const size_t mine = cut(link.rank, begin).size;
    char* place = staging + slot_of(begin) * slot;
    for (int rank = 0; rank < link.size; ++rank) {
      if (rank == link.rank || mine == 0) continue;
      all.receive({place, mine}, rank);
      place += mine;
    }
    for (int distance = 1; distance < link.size; ++distance) {
      const int to = (link.rank + distance) % link.size;
      const Bytes part = cut(to, begin);
      if (part.size > 0) all.send(part, to);
    }
  };
  for (size_t i = 0; i < kWindow; ++i) start(i * segment);
  for (size_t begin = 0; begin < longest; begin += segment) {
    co_await *arriving[slot_of(begin)];
    const Bytes mine = cut(link.rank, begin);
    copy({output + begin, mine.size}, mine);
    add_in_order(link, reduction, output + begin, staging + slot_of(begin) * slot,
                 static_cast<int64_t>(mine.size / element));
    start(begin + kWindow * segment);
  }
}

Schedule reduce(Link& link, Reduction reduction, Bytes data, int root) {
  std::vector<Bytes> inputs(link.size);
  inputs[root] = data;
  co_await reduce_scatter(link, reduction, std::move(inputs), data.data);
}

Schedule all_reduce(Link& link, Reduction reduction, Bytes data) {
  const size_t element = reduction.element_size();
  const auto numel = static_cast<int64_t>(data.size / element);
  if (is_small(link, data.size)) {
    char* blocks = link.staging->at_least(2 * data.size * static_cast<size_t>(link.size));
    co_await gather_small(link, data, blocks);
    for (int rank = 1; rank < link.size; ++rank) {
      reduction.add(blocks, blocks + static_cast<size_t>(rank) * data.size, numel);
    }
    reduction.finish(blocks, numel, link.size);
    copy(data, {blocks, data.size});
    co_return;
  }
  const std::vector<Bytes> parts = shares(link, data.data, numel, element);
  co_await reduce_scatter(link, reduction, parts, parts[link.rank].data);
  std::vector<Bytes> sends(link.size, parts[link.rank]);
  co_await exchange(link, std::move(sends), parts);
}

}  // namespace accelerate::internal
