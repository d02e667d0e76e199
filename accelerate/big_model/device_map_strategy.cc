#include "accelerate/big_model/device_map_strategy.h"

#include "accelerate/big_model/infer_device_map.h"

namespace accelerate::internal {
namespace {

constexpr char kSequential[] = "sequential";
constexpr char kLowZero[] = "balanced_low_0";

}  // namespace

bool is_device_map_strategy(const std::string& text) {
  return text == "auto" || text == "balanced" || text == kLowZero || text == kSequential;
}

DeviceMap infer_by_strategy(const torch::nn::Module& module, const std::string& strategy,
                            std::optional<MaxMemory> limits, const InferOptions& options) {
  if (strategy != kSequential) {
    limits = get_balanced_memory(module, limits,
                                 {.sizes = options.sizes,
                                  .no_split_module_classes = options.no_split_module_classes,
                                  .low_zero = strategy == kLowZero});
  }
  return infer_auto_device_map(module, limits, options);
}

}  // namespace accelerate::internal
