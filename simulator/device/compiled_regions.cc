#include "simulator/device/compiled_regions.h"

#include <memory>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceType.h>

#include "absl/cleanup/cleanup.h"
#include "accelerate/compile/backends.h"
#include "accelerate/compile/region_program.h"

namespace accelerate::simulator {
namespace {

thread_local bool in_region = false;

// Until what is returned is destroyed, this thread runs a region.
auto enter_region() {
  return absl::Cleanup([outer = std::exchange(in_region, true)] { in_region = outer; });
}

class SimulatedRegion final : public RegionCode {
 public:
  explicit SimulatedRegion(std::unique_ptr<const RegionCode> operators)
      : operators_(std::move(operators)) {}

  RegionResult forward(const std::vector<at::Tensor>& inputs) const override {
    const auto scope = enter_region();
    return operators_->forward(inputs);
  }
  std::vector<at::Tensor> backward(const std::vector<at::Tensor>& saved,
                                   const std::vector<at::Tensor>& grads) const override {
    const auto scope = enter_region();
    return operators_->backward(saved, grads);
  }

 private:
  const std::unique_ptr<const RegionCode> operators_;
};

}  // namespace

void register_compiled_regions() {
  register_region_compiler(c10::kPrivateUse1, [](std::shared_ptr<const RegionProgram> program) {
    return std::make_unique<SimulatedRegion>(interpreted(std::move(program)));
  });
}

bool is_in_compiled_region() { return in_region; }

}  // namespace accelerate::simulator
