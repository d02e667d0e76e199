#include "accelerate/data/sampler.h"

#include <mutex>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/randperm.h>
#include <c10/util/Exception.h>

namespace accelerate {
namespace {

int64_t checked_size(int64_t size) {
  TORCH_CHECK_VALUE(size >= 0, "a sampler's size must not be negative, got ", size);
  return size;
}

}  // namespace

SequentialSampler::SequentialSampler(int64_t size) : size_(checked_size(size)) {}

at::Tensor SequentialSampler::indices(int64_t /*epoch*/) const {
  return at::arange(size_, at::kLong);
}

RandomSampler::RandomSampler(int64_t size, uint64_t seed)
    : size_(checked_size(size)), seed_(seed) {}

at::Tensor RandomSampler::indices(int64_t epoch) const {
  at::Generator generator = at::detail::createCPUGenerator(seed_ + static_cast<uint64_t>(epoch));
  return at::randperm(size_, generator, at::kLong);
}

uint64_t draw_seed() {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  std::lock_guard<std::mutex> lock(generator.mutex());
  // What random_() makes of the same bits, so that a seed drawn elsewhere can be reproduced here.
  constexpr uint64_t kMask = static_cast<uint64_t>(INT64_MAX);
  return at::check_generator<at::CPUGeneratorImpl>(generator)->random64() & kMask;
}

}  // namespace accelerate
