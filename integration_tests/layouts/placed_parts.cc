#include "integration_tests/layouts/placed_parts.h"

#include <limits>

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/where.h>
#include <gtest/gtest.h>

#include "accelerate/files/box_view.h"
#include "accelerate/parallel/layout/model_layout.h"

namespace accelerate {

PlacedParts placed_parts(const ModelState& model, const torch::optim::AdamW& adam, int rank) {
  PlacedParts parts;
  const Mesh& mesh = model.placements().layout->mesh();
  for (const TrainedParameter& each : model.trained()) {
    const std::vector<PlacedBox> boxes = boxes_of(*each.placement, mesh, rank);
    const auto add = [&](const std::string& kind, const at::Tensor& values) {
      parts.push_back(
          {kind + each.name, each.placement->shape, boxes, values.detach().cpu().clone()});
    };
    add("weight of ", each.trained);
    const auto found = adam.state().find(each.trained.unsafeGetTensorImpl());
    if (found == adam.state().end()) continue;
    const auto& moments = static_cast<const torch::optim::AdamWParamState&>(*found->second);
    add("mean of ", moments.exp_avg());
    add("square of ", moments.exp_avg_sq());
  }
  return parts;
}

WholeTensors assembled(const std::vector<PlacedParts>& ranks) {
  WholeTensors all;
  for (const PlacedParts& parts : ranks) {
    for (const PlacedPartOfRank& part : parts) {
      at::Tensor& tensor = all[part.name];
      if (!tensor.defined()) {
        tensor = at::full(part.shape, std::numeric_limits<float>::quiet_NaN());
      }
      for (const PlacedBox& box : part.boxes) {
        const at::Tensor there = box_view(tensor, box.whole);
        const at::Tensor here = box_view(part.values, box.part);
        EXPECT_TRUE(at::equal(at::where(there.isnan(), here, there), here)) << part.name;
        there.copy_(here);
      }
    }
  }
  for (const auto& [name, tensor] : all) {
    EXPECT_FALSE(tensor.isnan().any().item<bool>()) << name << " has a hole";
  }
  return all;
}

void expect_equal(const WholeTensors& a, const WholeTensors& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, tensor] : a) {
    ASSERT_TRUE(b.contains(name)) << name;
    EXPECT_TRUE(at::equal(tensor, b.at(name))) << name;
  }
}

}  // namespace accelerate
