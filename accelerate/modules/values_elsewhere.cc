#include "accelerate/modules/values_elsewhere.h"

#include <utility>
#include <vector>

#include "accelerate/operators/managed_storage.h"

namespace accelerate {
namespace {

// Those of one Runtime.
struct Announced {
  std::vector<std::weak_ptr<const TensorsElsewhere>> models;
};

}  // namespace

void announce_tensors_elsewhere(Runtime& runtime, std::weak_ptr<const TensorsElsewhere> tensors) {
  auto& models = runtime.shared<Announced>([] { return std::make_shared<Announced>(); }).models;
  std::erase_if(models, [](const auto& each) { return each.expired(); });
  models.push_back(std::move(tensors));
}

std::optional<ValuesElsewhere> find_values_elsewhere(const at::Tensor& tensor) {
  if (storage_owner(tensor) == nullptr) return std::nullopt;
  const Runtime* const runtime = Runtime::find_current();
  const auto* const announced = runtime == nullptr ? nullptr : runtime->find_shared<Announced>();
  if (announced == nullptr) return std::nullopt;
  for (const auto& each : announced->models) {
    const std::shared_ptr<const TensorsElsewhere> model = each.lock();
    if (model == nullptr) continue;
    if (auto found = model->values_elsewhere(tensor)) return found;
  }
  return std::nullopt;
}

}  // namespace accelerate
