// Random orders, and what is drawn for them from which generator.
#include <memory>
#include <optional>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include "accelerate/data/data_loader.h"
#include "accelerate/data/sampler.h"
#include "accelerate/data/tensor_dataset.h"
#include "accelerate/state/seed.h"
#include "integration_tests/golden/answers.h"
#include "integration_tests/golden/family.h"
#include "integration_tests/golden/fields.h"

namespace accelerate::golden {
namespace {

using nlohmann::json;

// Undefined for null.
at::Generator generator_field(const json& in, const char* name) {
  const std::optional<uint64_t> seed = optional_seed_field(in, name);
  return seed ? at::detail::createCPUGenerator(*seed) : at::Generator();
}

int64_t draw_int64() { return at::empty({}, at::kLong).random_().item<int64_t>(); }

void seed_all(const json& in) {
  const bool device_specific = in.contains("device_specific") && bool_field(in, "device_specific");
  set_seed(seed_field(in, "torch_seed"), {.device_specific = device_specific});
}

json run_seedable(const json& in, at::Generator generator) {
  seed_all(in);
  SeedableRandomSampler sampler(count_field(in, "n"),
                                {.replacement = bool_field(in, "replacement"),
                                 .num_samples = optional_int_field(in, "num_samples"),
                                 .generator = std::move(generator),
                                 .data_seed = optional_seed_field(in, "data_seed")});
  json orders = json::array();
  const json& script = field(in, "script");
  if (!script.is_array()) throw CaseError("script: expected a list");
  for (const json& step : script) {
    if (step == "iter") {
      orders.push_back(to_list(sampler.indices()));
    } else if (step.is_number_integer()) {
      sampler.set_epoch(to_int(step, "script"));
    } else {
      throw CaseError("script: unknown step " + step.dump());
    }
  }
  return {{"orders", std::move(orders)}, {"final_epoch", sampler.epoch()}};
}

json run_random_sampler(const json& in) {
  seed_all(in);
  RandomSampler sampler(count_field(in, "n"), {.replacement = bool_field(in, "replacement"),
                                               .num_samples = optional_int_field(in, "num_samples"),
                                               .generator = generator_field(in, "generator_seed")});
  json orders = json::array();
  for (int64_t i = count_field(in, "iters"); i > 0; --i) {
    orders.push_back(to_list(sampler.indices()));
  }
  return {{"orders", std::move(orders)}};
}

json run_randperm(const json& in) {
  const at::Generator generator = at::detail::createCPUGenerator(seed_field(in, "seed"));
  json perms = json::array();
  for (int64_t n : ints_field(in, "ns")) {
    perms.push_back(to_list(at::randperm(n, generator, at::kLong)));
  }
  return {{"perms", std::move(perms)}};
}

json run_draws(const json& in) {
  seed_all(in);
  // In this order.
  json out;
  out["rand"] = to_list(at::rand({5}));
  out["randn3"] = to_list(at::randn({3}));
  out["randn17"] = to_list(at::randn({17}));
  out["randint"] = to_list(at::randint(0, 100, {6}, at::kLong));
  out["int64"] = draw_int64();
  out["rand64"] = to_list(at::rand({2}, at::kDouble));
  out["bernoulli"] = to_list(at::bernoulli(at::full({8}, 0.3)).to(at::kLong));
  out["initial_seed"] = at::detail::getDefaultCPUGenerator().current_seed();
  return out;
}

json run_dataloader(const json& in) {
  seed_all(in);
  DataLoader loader(make_tensor_dataset(at::arange(count_field(in, "n"), at::kLong)),
                    {.batch_size = int_field(in, "batch_size"),
                     .shuffle = true,
                     .drop_last = bool_field(in, "drop_last"),
                     .generator = generator_field(in, "generator_seed")});
  json epochs = json::array();
  for (int64_t i = count_field(in, "iters"); i > 0; --i) {
    json batches = json::array();
    for (auto& [indices] : loader) batches.push_back(to_list(indices));
    epochs.push_back(std::move(batches));
  }
  return {{"epochs", std::move(epochs)}, {"next_int64", draw_int64()}};
}

json run_kind(const std::string& kind, const json& in) {
  if (kind == "seedable") {
    expect_fields(in,
                  {"kind", "n", "torch_seed", "data_seed", "replacement", "num_samples", "script"});
    return run_seedable(in, {});
  }
  if (kind == "seedable_user_generator") {
    expect_fields(in, {"kind", "n", "torch_seed", "user_seed", "data_seed", "replacement",
                       "num_samples", "script"});
    return run_seedable(in, at::detail::createCPUGenerator(seed_field(in, "user_seed")));
  }
  if (kind == "random_sampler") {
    expect_fields(in, {"kind", "n", "torch_seed", "device_specific", "process_index", "replacement",
                       "num_samples", "iters", "generator_seed"});
    return run_random_sampler(in);
  }
  if (kind == "randperm") {
    expect_fields(in, {"kind", "seed", "ns"});
    return run_randperm(in);
  }
  if (kind == "draws") {
    expect_fields(in, {"kind", "torch_seed", "device_specific", "process_index"});
    return run_draws(in);
  }
  if (kind == "dataloader") {
    expect_fields(
        in, {"kind", "n", "batch_size", "drop_last", "torch_seed", "iters", "generator_seed"});
    return run_dataloader(in);
  }
  throw CaseError("unknown kind \"" + kind + "\"");
}

json run_case(const json& in) {
  const std::string kind = string_field(in, "kind");
  // A process of index p is rank p of the smallest world that has one.
  const int64_t process = in.contains("process_index") ? count_field(in, "process_index") : 0;
  if (process >= 256) throw CaseError("process_index: too large");
  const int rank = static_cast<int>(process);
  return ask_ranks(rank + 1, [&](int asked) {
    return asked == rank ? run_kind(kind, in) : json();
  })[static_cast<size_t>(rank)];
}

const FamilyRegistration kRegistration("seedable_sampler", &run_case);

}  // namespace
}  // namespace accelerate::golden
