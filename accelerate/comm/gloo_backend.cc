#include "accelerate/comm/gloo_backend.h"

#include <algorithm>
#include <iterator>

#include <gloo/allgather.h>
#include <gloo/context.h>
#include <gloo/transport/unbound_buffer.h>

namespace accelerate {
namespace {

c10::intrusive_ptr<c10d::ProcessGroupGloo::Options> gloo_options(const BackendOptions& options) {
  auto gloo = c10d::ProcessGroupGloo::Options::create(options.timeout);
  // The host name of a single machine often does not resolve; loopback always does.
  gloo->devices.push_back(options.single_node
                              ? c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1")
                              : c10d::ProcessGroupGloo::createDefaultDevice());
  return gloo;
}

c10::intrusive_ptr<c10d::Backend> make_gloo(const BackendOptions& options) {
  return c10::make_intrusive<GlooBackend>(options);
}

const bool registered = register_backend("gloo", make_gloo);

}  // namespace

GlooBackend::GlooBackend(const BackendOptions& options)
    : ProcessGroupGloo(options.store, options.rank, options.size, gloo_options(options)) {}

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

std::vector<uint64_t> GlooBackend::all_gather_word(uint64_t mine,
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

CallComparer::Entry GlooComparer::enter(uint64_t word, std::chrono::milliseconds timeout) {
  const std::vector<uint64_t> words = line_->all_gather_word(word, timeout);
  return {.agrees = std::ranges::count(words, word) == std::ssize(words)};
}

}  // namespace accelerate
