// Registers c10d's Gloo backend as "gloo".
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "accelerate/comm/backend_registry.h"

namespace accelerate {
namespace {

c10::intrusive_ptr<c10d::Backend> make_gloo(const BackendOptions& options) {
  auto gloo = c10d::ProcessGroupGloo::Options::create(options.timeout);
  // The host name of a single machine often does not resolve; loopback always does.
  gloo->devices.push_back(options.single_node
                              ? c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1")
                              : c10d::ProcessGroupGloo::createDefaultDevice());
  return c10::make_intrusive<c10d::ProcessGroupGloo>(options.store, options.rank, options.size,
                                                     gloo);
}

const bool registered = register_backend("gloo", make_gloo);

}  // namespace
}  // namespace accelerate
