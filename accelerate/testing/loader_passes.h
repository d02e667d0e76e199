/// What loaders of numbers give, for tests.
#pragma once

#include <cstdint>
#include <numeric>
#include <tuple>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>

namespace accelerate {

using Values = std::vector<int64_t>;
using Batches = std::vector<Values>;

inline at::Generator seeded(uint64_t seed) { return at::detail::createCPUGenerator(seed); }

/// The numbers from 0 to size - 1.
inline Values list(int64_t size) {
  Values values(static_cast<size_t>(size));
  std::iota(values.begin(), values.end(), 0);
  return values;
}

inline Values values(const at::Tensor& tensor) {
  const int64_t* data = tensor.const_data_ptr<int64_t>();
  return Values(data, data + tensor.numel());
}
inline Values values(const std::tuple<at::Tensor>& batch) { return values(std::get<0>(batch)); }

/// The first `count` batches of a pass, or all if there are fewer.
template <typename Loader>
Batches begin_of_pass(const Loader& loader, int64_t count) {
  Batches batches;
  for (auto& batch : loader) {
    batches.push_back(values(batch));
    if (static_cast<int64_t>(batches.size()) == count) break;
  }
  return batches;
}

template <typename Loader>
Batches one_pass(const Loader& loader) {
  return begin_of_pass(loader, /*count=*/-1);
}

}  // namespace accelerate
