#include "accelerate/comm/backends/gloo/gloo_backend.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>

#include <gloo/allgather.h>
#include <gloo/context.h>
#include <gloo/transport/unbound_buffer.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "accelerate/platform/environment.h"

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
  auto work = internal::make_reduce_scatter(begin(outputs, inputs, options.timeout));
  enqueue(work);
  return work;
}

c10::intrusive_ptr<c10d::Work> GlooBackend::allgather_into_tensor_coalesced(
    std::vector<at::Tensor>& outputs, std::vector<at::Tensor>& inputs,
    const c10d::AllgatherOptions& options) {
  if (!internal::can_coalesce(outputs, inputs, /*adds=*/false)) {
    return gloo_all_gather(outputs, inputs, options);
  }
  auto work = internal::make_all_gather(begin(outputs, inputs, options.timeout));
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
