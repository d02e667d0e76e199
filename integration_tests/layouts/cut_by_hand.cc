#include "integration_tests/layouts/cut_by_hand.h"

#include <memory>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include "accelerate/parallel/apply.h"
#include "accelerate/parallel/tensor/cut.h"
#include "accelerate/plan/plan.h"
#include "accelerate/runtime/runtime.h"
#include "accelerate/step/training_state.h"
#include "accelerate/techniques/technique_list.h"

namespace accelerate {
namespace {

std::shared_ptr<const ModelLayout> layout_by_hand(const LayoutContext& context) {
  const auto* module = dynamic_cast<const CutByHand*>(context.model.module().get());
  if (module == nullptr) return nullptr;
  std::vector<TensorPlacement> placements = module->placements();
  if (placements.empty()) return nullptr;
  return std::make_shared<const ModelLayout>(context.mesh, std::move(placements));
}

void cut_by_hand(const TechniqueContext& context) {
  auto* cut = dynamic_cast<CutByHand*>(context.model.module().get());
  if (cut == nullptr) return;
  const ModelLayout& layout = *context.plan.layout;
  const int rank = context.plan.rank;
  const at::NoGradGuard no_grad;
  for (const auto& item : context.model.module()->named_parameters()) {
    const TensorPlacement* placement = layout.find(item.key());
    if (placement == nullptr || placement->cuts.empty()) continue;
    item.value().set_data(cut_part(item.value().detach(), *placement, layout.mesh(), rank));
  }
  cut->was_cut(layout, rank);
}

// All techniques, and the one of tests.
std::vector<TechniqueRow> with_cuts_by_hand() {
  const TechniqueList all = all_techniques();
  std::vector<TechniqueRow> rows(all.begin(), all.end());
  rows.push_back({.name = "cut by hand", .layout = &layout_by_hand, .cut = &cut_by_hand});
  return rows;
}

}  // namespace

void cut_modules_by_hand() {
  static const std::vector<TechniqueRow> rows = with_cuts_by_hand();
  auto* const training = Runtime::current().find_shared<internal::TrainingState>();
  TORCH_CHECK(training != nullptr, "cut_modules_by_hand: make an Accelerator first");
  training->techniques = rows;
}

}  // namespace accelerate
