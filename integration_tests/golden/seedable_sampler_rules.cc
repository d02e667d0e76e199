#include "integration_tests/golden/rules.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include "integration_tests/golden/fields.h"

namespace accelerate::golden {
namespace {

using nlohmann::json;

// The numbers that PyTorch's random sampler draws with replacement at once.
constexpr int64_t kDrawn = 32;

bool seeds_by_process(const json& in) {
  const std::string kind = string_field(in, "kind");
  return (kind == "random_sampler" || kind == "draws") && bool_field(in, "device_specific") &&
         count_field(in, "process_index") > 0;
}

uint64_t seed_of_process(const json& in) {
  return seed_field(in, "torch_seed") + static_cast<uint64_t>(count_field(in, "process_index"));
}

void append(json& list, const at::Tensor& tensor, int64_t count) {
  for (const json& number : to_list(tensor.slice(0, 0, count))) list.push_back(number);
}

// A sampler without a generator draws a seed for each order.
json draw_orders(const json& in) {
  const int64_t n = count_field(in, "n");
  const int64_t num_samples = optional_int_field(in, "num_samples").value_or(n);
  const bool replacement = bool_field(in, "replacement");
  const at::Generator seeds = at::detail::createCPUGenerator(seed_of_process(in));
  json orders = json::array();
  for (int64_t i = count_field(in, "iters"); i > 0; --i) {
    const auto seed = at::empty({}, at::kLong).random_(seeds).item<int64_t>();
    const at::Generator generator = at::detail::createCPUGenerator(static_cast<uint64_t>(seed));
    json order = json::array();
    const int64_t at_once = replacement ? kDrawn : n;
    while (static_cast<int64_t>(order.size()) < num_samples) {
      const int64_t missing = num_samples - static_cast<int64_t>(order.size());
      const at::Tensor drawn =
          replacement ? at::randint(0, n, {std::min(missing, at_once)}, generator, at::kLong)
                      : at::randperm(n, generator, at::kLong);
      append(order, drawn, missing);
    }
    orders.push_back(std::move(order));
  }
  return orders;
}

void count_the_process(const json& in, json& out) {
  if (string_field(in, "kind") == "random_sampler") {
    if (field(in, "generator_seed").is_null()) out["orders"] = draw_orders(in);
    return;
  }
  const at::Generator generator = at::detail::createCPUGenerator(seed_of_process(in));
  out["rand"] = to_list(at::rand({5}, generator));
  out["randn3"] = to_list(at::randn({3}, generator));
  out["randn17"] = to_list(at::randn({17}, generator));
  out["randint"] = to_list(at::randint(0, 100, {6}, generator, at::kLong));
  out["int64"] = at::empty({}, at::kLong).random_(generator).item<int64_t>();
  out["rand64"] = to_list(at::rand({2}, generator, at::kDouble));
  out["bernoulli"] = to_list(at::bernoulli(at::full({8}, 0.3), generator).to(at::kLong));
  out["initial_seed"] = seed_of_process(in);
}

}  // namespace

std::vector<Decision> seedable_sampler_rules() {
  return {{"seedable_sampler", "device-specific seeds",
           "HF Accelerate's processes do not know their number before they form a group, so their "
           "device-specific seeds are equal; here a rank always adds its number",
           &seeds_by_process, &count_the_process}};
}

}  // namespace accelerate::golden
