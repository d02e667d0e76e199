#include "accelerate/parallel/pipeline/stage_draws.h"

#include <cstdint>

#include <ATen/ops/empty.h>

#include "absl/cleanup/cleanup.h"

namespace accelerate {

StageDraws::StageDraws() : generators_(all_generators()) {
  for (const auto& [name, generator] : generators_) {
    at::empty({1}, at::TensorOptions(generator.device()).dtype(at::kLong)).random_();
    common_[name] = generator_state(generator);
  }
}

void StageDraws::run(int stage, int micro_batch, absl::FunctionRef<void()> body) const {
  const int64_t number = (static_cast<int64_t>(stage) << 32) + micro_batch;
  const absl::Cleanup go_on = [this] {
    for (const auto& [name, generator] : generators_) {
      set_generator_state(generator, common_.at(name));
    }
  };
  for (const auto& [name, generator] : generators_) {
    set_generator_state(generator,
                        generator_state(derived_generator(generator, common_.at(name), number)));
  }
  body();
}

}  // namespace accelerate
