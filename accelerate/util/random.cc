#include "accelerate/util/random.h"

#include <mutex>
#include <utility>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <c10/util/Exception.h>

#include "accelerate/runtime/runtime.h"

namespace accelerate {
namespace {

at::Generator generator_of(RngType type, const at::Generator& given) {
  if (type == RngType::kGenerator) return given;
  const c10::Device device = Runtime::current().device();
  if (type == RngType::kTorch || device.is_cpu()) return at::detail::getDefaultCPUGenerator();
  return at::globalContext().defaultGenerator(device);
}

}  // namespace

void set_seed(uint64_t seed, const SetSeedOptions& options) {
  if (options.device_specific) {
    seed += static_cast<uint64_t>(Runtime::current().topology().rank);
  }
  at::manual_seed(seed);
}

void synchronize_rng_state(const c10::intrusive_ptr<c10d::ProcessGroup>& group, RngType type,
                           at::Generator generator) {
  TORCH_CHECK_VALUE(type != RngType::kGenerator || generator.defined(),
                    "synchronize_rng_state: there is no generator");
  if (!group) return;
  at::Generator source = generator_of(type, generator);
  at::Tensor state;
  {
    std::lock_guard<std::mutex> lock(source.mutex());
    state = source.get_state();
  }
  std::vector<at::Tensor> tensors{state};
  group->broadcast(tensors)->wait();
  std::lock_guard<std::mutex> lock(source.mutex());
  source.set_state(state);
}

void synchronize_rng_states(const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                            const std::vector<RngType>& types, at::Generator generator) {
  for (RngType type : types) synchronize_rng_state(group, type, generator);
}

}  // namespace accelerate
