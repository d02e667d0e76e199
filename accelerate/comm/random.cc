#include "accelerate/comm/random.h"

#include <string>
#include <utility>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <c10/util/Exception.h>

#include "accelerate/tensors/generator_state.h"
#include "accelerate/values/from_string.h"

namespace accelerate {
namespace {

at::Generator generator_of(RNGType type, const at::Generator& given) {
  if (type != RNGType::kGenerator) return default_generator(type);
  TORCH_CHECK_VALUE(given.defined(), "synchronize_rng_state: there is no generator");
  return given;
}

void synchronize(const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                 const at::Generator& generator) {
  if (!group) return;
  std::vector<at::Tensor> state{generator_state(generator)};
  group->broadcast(state)->wait();
  set_generator_state(generator, state[0]);
}

}  // namespace

void set_seed(uint64_t seed, const SetSeedOptions& options) {
  if (options.device_specific) {
    seed += static_cast<uint64_t>(Runtime::current().topology().rank);
  }
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

RNGType device_rng_type(const Runtime& runtime) {
  if (runtime.device().is_cpu()) return RNGType::kTorch;
  const std::string family = runtime.device_family();
  if (family == "gpu") return RNGType::kCuda;
  if (family == "tpu") return RNGType::kXla;
  return contains<RNGType>(family) ? from_string<RNGType>(family) : RNGType::kDevice;
}

at::Generator default_generator(RNGType type, const Runtime& runtime) {
  TORCH_CHECK_VALUE(type != RNGType::kGenerator, "there is no default generator of type \"",
                    to_string(type), "\"");
  if (type == RNGType::kTorch) return at::detail::getDefaultCPUGenerator();
  const RNGType own = device_rng_type(runtime);
  TORCH_CHECK_VALUE(type == own || type == RNGType::kDevice, "rank ", runtime.topology().rank,
                    " has no generator of type \"", to_string(type), "\": it computes on ",
                    runtime.device(), ", whose generator is of type \"", to_string(own),
                    "\"; \"device\" stands for it on any hardware");
  if (own == RNGType::kTorch) return at::detail::getDefaultCPUGenerator();
  return at::globalContext().defaultGenerator(runtime.device());
}

void synchronize_rng_state(const c10::intrusive_ptr<c10d::ProcessGroup>& group, RNGType type,
                           at::Generator generator) {
  synchronize(group, generator_of(type, generator));
}

void synchronize_rng_states(const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                            const std::vector<RNGType>& types, at::Generator generator) {
  std::vector<at::Generator> generators;
  for (RNGType type : types) generators.push_back(generator_of(type, generator));
  for (const at::Generator& each : generators) synchronize(group, each);
}

}  // namespace accelerate
