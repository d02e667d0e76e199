#include "accelerate/state/seed.h"

#include <mutex>

#include <ATen/Context.h>
#include <ATen/core/Generator.h>

#include "accelerate/comm/random.h"
#include "accelerate/state/accelerator_state.h"

namespace accelerate {
namespace {

int own_number() {
  const Runtime& runtime = Runtime::current();
  const AcceleratorState* state = AcceleratorState::find(runtime);
  const DeviceMesh* mesh = state != nullptr ? state->device_mesh() : nullptr;
  return mesh != nullptr ? mesh->data_share().index : runtime.topology().rank;
}

}  // namespace

void set_seed(uint64_t seed, const SetSeedOptions& options) {
  if (options.device_specific) seed += static_cast<uint64_t>(own_number());
  at::manual_seed(seed);
  // LibTorch's function knows its own devices, and no vendor's.
  if (const Runtime* runtime = Runtime::find_current();
      runtime != nullptr && !runtime->device().is_cpu()) {
    at::Generator generator = default_generator(RNGType::kDevice, *runtime);
    const std::lock_guard lock(generator.mutex());
    generator.set_current_seed(seed);
  }
  if (!options.deterministic) return;
  at::Context& context = at::globalContext();
  context.setDeterministicAlgorithms(true, /*warn_only=*/false);
  context.setDeterministicCuDNN(true);
  context.setBenchmarkCuDNN(false);
}

}  // namespace accelerate
