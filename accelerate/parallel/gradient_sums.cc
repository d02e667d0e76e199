#include "accelerate/parallel/gradient_sums.h"

#include <map>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

namespace accelerate {
namespace {

// What ranks add up in.
at::ScalarType sum_dtype(const at::Tensor& gradient) {
  const at::ScalarType dtype = gradient.scalar_type();
  return dtype == at::kHalf || dtype == at::kBFloat16 ? at::kFloat : dtype;
}

}  // namespace

GradientSums::GradientSums(const std::vector<Owed>& owed) {
  for (const Owed& each : owed) {
    Group& group = groups_.emplace_back(Group{.group = each.group});
    for (const auto& [name, trained] : each.trained) {
      group.parts.push_back({.name = name, .trained = trained});
    }
  }
}

bool GradientSums::is_as_left(const Part& part) {
  const at::Tensor& gradient = part.trained.grad();
  return gradient.defined() && gradient.is_same(part.gradient) &&
         gradient._version() == part.version;
}

void GradientSums::begin() {
  const at::NoGradGuard no_grad;
  for (Group& group : groups_) {
    for (Part& part : group.parts) {
      if (!is_as_left(part)) {
        part.summed.reset();
      } else if (part.is_summed) {
        part.summed = part.gradient.clone();
      }
      part.is_summed = false;
      part.gradient.reset();
    }
  }
}

void GradientSums::end(bool sums) {
  const at::NoGradGuard no_grad;
  for (Group& group : groups_) {
    if (sums) sum(group);
    for (Part& part : group.parts) {
      const at::Tensor& gradient = part.trained.grad();
      part.is_summed = sums && gradient.defined();
      if (sums || !gradient.defined()) part.summed.reset();
      if (!gradient.defined()) continue;
      part.gradient = gradient;
      part.version = gradient._version();
    }
  }
}

NamedTensors GradientSums::summed() const {
  NamedTensors summed;
  for (const Group& group : groups_) {
    for (const Part& part : group.parts) {
      if (!is_as_left(part)) continue;
      const at::Tensor all = part.is_summed ? part.gradient.clone() : part.summed;
      if (all.defined()) summed.emplace_back(part.name, all);
    }
  }
  return summed;
}

void GradientSums::set_summed(const NamedTensors& summed) {
  const std::map<std::string, at::Tensor> by_name(summed.begin(), summed.end());
  for (Group& group : groups_) {
    for (Part& part : group.parts) {
      const at::Tensor& gradient = part.trained.grad();
      const auto found = by_name.find(part.name);
      part.summed.reset();
      part.is_summed = false;
      part.gradient = gradient;
      if (!gradient.defined()) continue;
      part.version = gradient._version();
      if (found == by_name.end()) continue;
      TORCH_CHECK_VALUE(found->second.sizes() == gradient.sizes(),
                        "what ranks have summed of the gradient of \"", part.name, "\" has sizes ",
                        found->second.sizes(), ", and the gradient ", gradient.sizes());
      part.summed = found->second.to(gradient.options());
    }
  }
}

void GradientSums::sum(const Group& group) {
  std::map<at::ScalarType, std::vector<const Part*>> by_dtype;
  for (const Part& part : group.parts) {
    if (!part.trained.requires_grad()) continue;
    at::Tensor& gradient = part.trained.mutable_grad();
    // The other ranks may have a part of it.
    if (!gradient.defined()) gradient = at::zeros_like(part.trained.detach());
    by_dtype[sum_dtype(gradient)].push_back(&part);
  }
  for (const auto& [dtype, parts] : by_dtype) {
    std::vector<at::Tensor> flat;
    for (const Part* part : parts) {
      const at::Tensor& gradient = part->trained.grad();
      const at::Tensor fresh =
          part->summed.defined() ? gradient.to(dtype).sub(part->summed) : gradient;
      flat.push_back(fresh.to(dtype).reshape({-1}));
    }
    std::vector<at::Tensor> total{at::cat(flat)};
    group.group->allreduce(total)->wait();
    int64_t offset = 0;
    for (const Part* part : parts) {
      const at::Tensor& gradient = part->trained.grad();
      const at::Tensor sum = total[0].narrow(0, offset, gradient.numel()).view(gradient.sizes());
      offset += gradient.numel();
      gradient.copy_(part->summed.defined() ? sum.add(part->summed) : sum);
    }
  }
}

}  // namespace accelerate
