// c10d's own NCCL backend under the name "nccl". Only builds against a LibTorch with NCCL compile
// this file (--config=cuda).
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "accelerate/comm/backends/backend_registry.h"

namespace accelerate {
namespace {

#ifdef USE_C10D_NCCL

// NCCL ends pending operations by aborting its communicators.
class NcclBackend final : public c10d::ProcessGroupNCCL, public Interruptible {
 public:
  using ProcessGroupNCCL::ProcessGroupNCCL;

  void interrupt() override { abort(); }
};

c10::intrusive_ptr<c10d::Backend> make_nccl(const BackendOptions& options) {
  auto nccl = c10d::ProcessGroupNCCL::Options::create();
  nccl->timeout = options.timeout;
  return c10::make_intrusive<NcclBackend>(options.store, options.rank, options.size, nccl);
}

const bool registered = register_backend("nccl", make_nccl);

#else
#error "nccl_backend needs a LibTorch with NCCL: build with --config=cuda"
#endif

}  // namespace
}  // namespace accelerate
