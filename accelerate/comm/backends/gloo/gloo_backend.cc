#include "accelerate/comm/backends/gloo/gloo_backend.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <functional>
#include <memory>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>
#include <gloo/allgather.h>
#include <gloo/context.h>
#include <gloo/transport/unbound_buffer.h>
#include <gloo/types.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "accelerate/comm/backends/own_operations.h"
#include "accelerate/platform/environment.h"

namespace accelerate::internal {
namespace {

// ---- All-gathers and reduce-scatters of several tensors.
//
// Large tensors travel from where they are to where they are wanted; small ones share a message.
// A reduce-scatter sends each rank its part alone, and adds what it receives in the order of
// ranks, so results are equal to the simulator's and the MPI backend's bit for bit. c10d's own
// packs all tensors of an all-gather and unpacks them again, and sums whole tensors on all ranks
// for a reduce-scatter, which sends twice as much.

using Tensors = std::vector<at::Tensor>;
using BufferPtr = std::unique_ptr<gloo::transport::UnboundBuffer>;

// A rank's part of a tensor travels by itself from this size on; a message costs some ten
// microseconds.
constexpr size_t kLargePart = size_t{1} << 16;
// A part in a shared message begins at a multiple of this.
constexpr size_t kAlignment = 64;

std::byte* bytes_of(const at::Tensor& tensor) { return static_cast<std::byte*>(tensor.data_ptr()); }

// Not initialised.
class Memory {
 public:
  explicit Memory(size_t bytes) : bytes_(std::make_unique_for_overwrite<std::byte[]>(bytes)) {}
  std::byte* at(size_t offset) const { return bytes_.get() + offset; }

 private:
  std::unique_ptr<std::byte[]> bytes_;
};

// Every rank sends each other one a part of each tensor, and receives one.
class Exchange : public GlooWork<c10d::ProcessGroupGloo::AsyncWork> {
 protected:
  // `parts`: tensors of the size of a part.
  Exchange(CoalescedCall call, const Tensors& parts, c10d::OpType op, const char* title)
      : GlooWork(std::move(call), op, title), size_(call_.size), rank_(call_.rank) {
    for (const at::Tensor& part : parts) {
      const size_t bytes = part.nbytes();
      parts_.push_back({.bytes = bytes, .offset = small_});
      if (!parts_.back().is_large()) {
        small_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
      }
    }
  }

  struct Part {
    size_t bytes = 0;
    size_t offset = 0;  // in the message of the small ones

    bool is_large() const { return bytes >= kLargePart; }
  };

  void run() final {
    const at::NoGradGuard no_grad;
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const Memory sent(small_ * size_), received(small_ * size_);
    prepare();
    std::vector<BufferPtr> receives, sends;
    // Messages of one slot arrive in order: large ones first, by tensor.
    for (size_t i = 0; i < parts_.size(); ++i) {
      if (!parts_[i].is_large()) continue;
      receive(receives, place(i), parts_[i].bytes);
      send(sends, source(i), parts_[i].bytes, sends_whole());
    }
    if (small_ > 0) {
      receive(receives, received.at(0), small_);
      for (int peer = 0; peer < size_; ++peer) {
        if (peer == rank_) continue;
        for (size_t i = 0; i < parts_.size(); ++i) {
          if (parts_[i].is_large()) continue;
          std::memcpy(sent.at(small_ * peer + parts_[i].offset), source_for(i, peer),
                      parts_[i].bytes);
        }
      }
      send(sends, sent.at(0), small_, /*same_for_all=*/false);
    }
    for (const BufferPtr& each : receives) {
      for (int i = 1; i < size_; ++i) each->waitRecv(call_.timeout);
    }
    finish([&](size_t i, int rank) { return received.at(small_ * rank + parts_[i].offset); });
    for (const BufferPtr& each : sends) {
      for (int i = 1; i < size_; ++i) each->waitSend(call_.timeout);
    }
  }

  // Where a rank's small part arrived.
  using Arrived = const std::function<std::byte*(size_t part, int rank)>&;

  virtual void prepare() {}
  // Where large parts go: this rank's memory for the parts of all ranks.
  virtual std::byte* place(size_t part) = 0;
  // The part for rank 0, behind which are those of the others unless all get the same.
  virtual std::byte* source(size_t part) = 0;
  virtual bool sends_whole() const = 0;
  virtual void finish(Arrived arrived) = 0;

  std::byte* source_for(size_t part, int rank) {
    return source(part) + (sends_whole() ? 0 : parts_[part].bytes * rank);
  }

  const int size_, rank_;
  std::vector<Part> parts_;

 private:
  uint64_t slot() const { return gloo::Slot::build(gloo::kAlltoallSlotPrefix, call_.tag); }
  void receive(std::vector<BufferPtr>& buffers, std::byte* place, size_t bytes) {
    buffers.push_back(call_.context->createUnboundBuffer(place, bytes * size_));
    for (int i = 1; i < size_; ++i) {
      const int peer = (rank_ + size_ - i) % size_;
      buffers.back()->recv(peer, slot(), bytes * peer, bytes);
    }
  }
  void send(std::vector<BufferPtr>& buffers, std::byte* source, size_t bytes, bool same_for_all) {
    buffers.push_back(
        call_.context->createUnboundBuffer(source, bytes * (same_for_all ? 1 : size_)));
    for (int i = 1; i < size_; ++i) {
      const int peer = (rank_ + i) % size_;
      buffers.back()->send(peer, slot(), same_for_all ? 0 : bytes * peer, bytes);
    }
  }

  size_t small_ = 0;  // bytes of a message of small parts
};

// outputs[i] becomes the ranks' inputs[i], one after the other.
class AllGather final : public Exchange {
 public:
  explicit AllGather(CoalescedCall call)
      : Exchange(call, call.inputs, c10d::OpType::_ALLGATHER_BASE, "gloo:all_gather_into_tensor") {}

 private:
  std::byte* place(size_t part) override { return bytes_of(call_.outputs[part]); }
  std::byte* source(size_t part) override { return bytes_of(call_.inputs[part]); }
  bool sends_whole() const override { return true; }
  void finish(Arrived arrived) override {
    for (size_t i = 0; i < parts_.size(); ++i) {
      const auto copy = [&](int rank, const std::byte* from) {
        std::byte* const to = place(i) + parts_[i].bytes * rank;
        if (to != from) std::memcpy(to, from, parts_[i].bytes);
      };
      copy(rank_, source(i));
      for (int rank = 0; rank < size_ && !parts_[i].is_large(); ++rank) {
        if (rank != rank_) copy(rank, arrived(i, rank));
      }
    }
  }
};

// outputs[i] becomes the sum over ranks of this rank's part of inputs[i]; it may be that part.
class ReduceScatter final : public Exchange {
 public:
  explicit ReduceScatter(CoalescedCall call)
      : Exchange(call, call.outputs, c10d::OpType::_REDUCE_SCATTER_BASE,
                 "gloo:reduce_scatter_tensor") {}

 private:
  void prepare() override {
    for (const Part& part : parts_) {
      places_.emplace_back(part.is_large() ? part.bytes * size_ : 0);
    }
  }
  std::byte* place(size_t part) override { return places_[part].at(0); }
  std::byte* source(size_t part) override { return bytes_of(call_.inputs[part]); }
  bool sends_whole() const override { return false; }
  void finish(Arrived arrived) override {
    for (size_t i = 0; i < parts_.size(); ++i) {
      at::Tensor output = call_.outputs[i].view({-1});
      const auto term_of = [&](int rank) {
        std::byte* const from = rank == rank_          ? source_for(i, rank)
                                : parts_[i].is_large() ? place(i) + parts_[i].bytes * rank
                                                       : arrived(i, rank);
        at::Tensor term = at::from_blob(from, {output.numel()}, output.options());
        // It is overwritten before it is added.
        return rank == rank_ && rank > 1 && from == bytes_of(output) ? term.clone() : term;
      };
      if (size_ == 1) {
        std::memmove(bytes_of(output), source(i), parts_[i].bytes);
        continue;
      }
      Tensors terms;
      for (int rank = 0; rank < size_; ++rank) terms.push_back(term_of(rank));
      at::add_out(output, terms[0], terms[1]);
      for (int rank = 2; rank < size_; ++rank) {
        accumulate(output, terms[rank], c10d::ReduceOp::SUM);
      }
    }
  }

  std::vector<Memory> places_;  // for the large parts of all ranks
};

void check_sizes(const char* operation, const Tensors& wholes, const Tensors& parts, int size) {
  TORCH_CHECK_VALUE(wholes.size() == parts.size(), operation, ": ", wholes.size(),
                    " whole tensors, but parts of ", parts.size());
  for (size_t i = 0; i < wholes.size(); ++i) {
    TORCH_CHECK_VALUE(wholes[i].scalar_type() == parts[i].scalar_type() &&
                          wholes[i].numel() == parts[i].numel() * size,
                      operation, ": tensor ", i, " has ", wholes[i].numel(), " elements of ",
                      wholes[i].scalar_type(), ", but a part of it ", parts[i].numel(), " of ",
                      parts[i].scalar_type(), " on each of ", size, " ranks");
  }
}

// Whether all tensors are contiguous, in memory of the host, and, to be added up, of numbers.
bool can_coalesce(const Tensors& outputs, const Tensors& inputs, bool adds) {
  for (const Tensors* list : {&outputs, &inputs}) {
    for (const at::Tensor& tensor : *list) {
      if (!tensor.defined() || tensor.layout() != at::kStrided || !tensor.device().is_cpu() ||
          !tensor.is_contiguous() || (adds && tensor.scalar_type() == at::kBool)) {
        return false;
      }
    }
  }
  return true;
}

}  // namespace
}  // namespace accelerate::internal

namespace accelerate {
namespace {

/// Network interfaces to use, by name and separated by commas, as torch's own front-end has it.
constexpr char kInterfaces[] = "GLOO_SOCKET_IFNAME";

// The address that packets to `to` would leave from; nothing is sent. Empty if there is no route.
std::string source_address(const addrinfo& to) {
  const int fd = socket(to.ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return "";
  sockaddr_storage storage = {};
  auto* address = reinterpret_cast<sockaddr*>(&storage);
  socklen_t size = sizeof(storage);
  char text[NI_MAXHOST] = "";
  if (connect(fd, to.ai_addr, to.ai_addrlen) != 0 || getsockname(fd, address, &size) != 0 ||
      getnameinfo(address, size, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) != 0) {
    text[0] = '\0';
  }
  close(fd);
  return text;
}

// Where the others reach this machine: at the address from which it reaches the store. Empty if
// that is unknown or reaches this machine only.
std::string address_towards(c10d::Store& store) {
  auto* prefixed = dynamic_cast<c10d::PrefixStore*>(&store);
  const auto below = prefixed != nullptr ? prefixed->getUnderlyingNonPrefixStore() : nullptr;
  auto* server = dynamic_cast<c10d::TCPStore*>(below ? below.get() : &store);
  if (server == nullptr) return "";
  addrinfo hints = {};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  const std::string port = absl::StrCat(server->getPort());
  if (getaddrinfo(server->getHost().c_str(), port.c_str(), &hints, &found) != 0) return "";
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, &freeaddrinfo);
  for (const addrinfo* entry = found; entry != nullptr; entry = entry->ai_next) {
    const std::string address = source_address(*entry);
    if (!address.empty() && address != "::1" && !absl::StartsWith(address, "127.")) return address;
  }
  return "";
}

c10::intrusive_ptr<c10d::ProcessGroupGloo::Options> gloo_options(const BackendOptions& options) {
  using Gloo = c10d::ProcessGroupGloo;
  auto gloo = Gloo::Options::create(options.timeout);
  const std::string interfaces = Environment().get_or(kInterfaces, "");
  if (!interfaces.empty()) {
    for (const auto name : absl::StrSplit(interfaces, ',', absl::SkipEmpty())) {
      gloo->devices.push_back(Gloo::createDeviceForInterface(std::string(name)));
    }
    return gloo;
  }
  // The host name of a machine often does not resolve, or to an address that others do not know.
  const std::string address = options.single_node ? "127.0.0.1" : address_towards(*options.store);
  gloo->devices.push_back(address.empty() ? Gloo::createDefaultDevice()
                                          : Gloo::createDeviceForHostname(address));
  return gloo;
}

const bool registered = register_backend("gloo", [](const BackendOptions& options) {
  return c10::make_intrusive<GlooBackend>(options);
});

}  // namespace

GlooBackend::GlooBackend(const BackendOptions& options)
    : GlooGroup(options.store, options.rank, options.size, gloo_options(options)) {}

c10::intrusive_ptr<c10d::Work> GlooBackend::_reduce_scatter_base(
    at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) {
  std::vector<at::Tensor> outputs{output}, inputs{input};
  return reduce_scatter_tensor_coalesced(outputs, inputs, options);
}

c10::intrusive_ptr<c10d::Work> GlooBackend::reduce_scatter_tensor_coalesced(
    std::vector<at::Tensor>& outputs, std::vector<at::Tensor>& inputs,
    const c10d::ReduceScatterOptions& options) {
  if (options.reduceOp != c10d::ReduceOp::SUM ||
      !internal::can_coalesce(outputs, inputs, /*adds=*/true)) {
    return gloo_reduce_scatter(outputs, inputs, options);
  }
  internal::CoalescedCall call = begin(outputs, inputs, options.timeout);
  internal::check_sizes("reduce_scatter_tensor", call.inputs, call.outputs, call.size);
  auto work = c10::make_intrusive<internal::ReduceScatter>(std::move(call));
  enqueue(work);
  return work;
}

c10::intrusive_ptr<c10d::Work> GlooBackend::allgather_into_tensor_coalesced(
    std::vector<at::Tensor>& outputs, std::vector<at::Tensor>& inputs,
    const c10d::AllgatherOptions& options) {
  if (!internal::can_coalesce(outputs, inputs, /*adds=*/false)) {
    return gloo_all_gather(outputs, inputs, options);
  }
  internal::CoalescedCall call = begin(outputs, inputs, options.timeout);
  internal::check_sizes("all_gather_into_tensor", call.outputs, call.inputs, call.size);
  auto work = c10::make_intrusive<internal::AllGather>(std::move(call));
  enqueue(work);
  return work;
}

internal::CoalescedCall GlooBackend::begin(const std::vector<at::Tensor>& outputs,
                                           const std::vector<at::Tensor>& inputs,
                                           std::chrono::milliseconds timeout) {
  const uint32_t tag = nextTag();
  return {.context = getContext(tag),
          .rank = getRank(),
          .size = getSize(),
          .outputs = outputs,
          .inputs = inputs,
          .tag = tag,
          .sequence = ++seq_,
          .timeout = timeout == c10d::kUnsetTimeout ? getOptions()->timeout : timeout};
}

void GlooBackend::interrupt() {
  // Closing a connection does not wake who waits for it on this side. A wait that runs into its
  // time-out does: Gloo then fails every connection of the context.
  for (const std::shared_ptr<gloo::Context>& context : contexts_) {
    char nothing = 0;
    try {
      context->createUnboundBuffer(&nothing, 1)->waitRecv(std::chrono::milliseconds(1));
    } catch (const std::exception&) {
      // As intended.
    }
  }
}

std::vector<uint64_t> GlooBackend::all_gather_hash(uint64_t mine,
                                                   std::chrono::milliseconds timeout) {
  std::vector<uint64_t> words(static_cast<size_t>(getSize()));
  gloo::AllgatherOptions options(contexts_.front());
  options.setInput(&mine, 1);
  options.setOutput(words.data(), words.size());
  options.setTag(exchanges_++);
  options.setTimeout(timeout);
  gloo::allgather(options);
  return words;
}

}  // namespace accelerate
