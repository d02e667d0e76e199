#include "accelerate/parallel/experts/weight_names.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/stack.h>
#include <c10/util/Exception.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace accelerate {
namespace {

constexpr char kExperts[] = "experts.";

struct Name {
  const char* own;
  const char* other;
};

// Behind the path of a mixture.
struct Names {
  absl::string_view module;   // the last part of that path
  std::vector<Name> experts;  // behind "experts." and, in files, the expert's number
  std::vector<Name> others;
};

const Names& names_of(ExpertNames names) {
  static const std::vector<Name> projections = {
      {"gate", "gate_proj.weight"}, {"up", "up_proj.weight"}, {"down", "down_proj.weight"}};
  // In the order of ExpertNames.
  static const Names tables[] = {
      {"block_sparse_moe",
       {{"gate", "w1.weight"}, {"up", "w3.weight"}, {"down", "w2.weight"}},
       {{"router.weight", "gate.weight"}}},
      {"mlp",
       projections,
       {{"router.weight", "gate.weight"},
        {"shared.gate.weight", "shared_expert.gate_proj.weight"},
        {"shared.up.weight", "shared_expert.up_proj.weight"},
        {"shared.down.weight", "shared_expert.down_proj.weight"},
        {"shared_gate.weight", "shared_expert_gate.weight"}}},
      {"mlp",
       projections,
       {{"router.weight", "gate.weight"},
        {"shared.gate.weight", "shared_experts.gate_proj.weight"},
        {"shared.up.weight", "shared_experts.up_proj.weight"},
        {"shared.down.weight", "shared_experts.down_proj.weight"}}}};
  return tables[static_cast<size_t>(names)];
}

// A name behind the path of a mixture, and that path with its dot.
struct InMixture {
  std::string path;
  absl::string_view rest;
};

// The last part of the name with the mixture's name as the one before; absent: there is none.
std::optional<InMixture> in_mixture(absl::string_view name, absl::string_view module) {
  const std::string part = absl::StrCat(module, ".");
  const size_t at = name.rfind(part);
  if (at == absl::string_view::npos || (at > 0 && name[at - 1] != '.')) return std::nullopt;
  return InMixture{std::string(name.substr(0, at + part.size())), name.substr(at + part.size())};
}

// Which expert's tensor it is, and its own name behind "experts."; absent: none's.
std::optional<std::pair<int64_t, std::string>> expert_of(absl::string_view rest,
                                                         const Names& names) {
  if (!absl::ConsumePrefix(&rest, kExperts)) return std::nullopt;
  const size_t dot = rest.find('.');
  int64_t number = 0;
  if (dot == absl::string_view::npos || !absl::SimpleAtoi(rest.substr(0, dot), &number)) {
    return std::nullopt;
  }
  for (const Name& each : names.experts) {
    if (rest.substr(dot + 1) == each.other) return std::pair(number, std::string(each.own));
  }
  return std::nullopt;
}

}  // namespace

NamedTensors stacked_experts(const NamedTensors& tensors, ExpertNames names) {
  const Names& table = names_of(names);
  NamedTensors result;
  std::map<std::string, std::map<int64_t, at::Tensor>> experts;  // by their own name
  for (const auto& [name, tensor] : tensors) {
    const std::optional<InMixture> place = in_mixture(name, table.module);
    const auto expert = place ? expert_of(place->rest, table) : std::nullopt;
    if (expert) {
      const std::string own = absl::StrCat(place->path, kExperts, expert->second);
      const auto [stack, is_first] = experts.try_emplace(own);
      if (is_first) result.emplace_back(own, at::Tensor());
      TORCH_CHECK_VALUE(stack->second.emplace(expert->first, tensor).second,
                        "stacked_experts: two tensors are expert ", expert->first, " of \"", own,
                        "\"");
      continue;
    }
    result.emplace_back(name, tensor);
    if (!place) continue;
    for (const Name& each : table.others) {
      if (place->rest == each.other) result.back().first = absl::StrCat(place->path, each.own);
    }
  }
  for (auto& [name, tensor] : result) {
    const auto stack = experts.find(name);
    if (stack == experts.end()) continue;
    std::vector<at::Tensor> parts;
    for (const auto& [number, part] : stack->second) {
      TORCH_CHECK_VALUE(number == static_cast<int64_t>(parts.size()), "stacked_experts: \"", name,
                        "\" has expert ", number, ", but expert ", parts.size(), " is missing");
      parts.push_back(part);
    }
    tensor = at::stack(parts);
  }
  return result;
}

NamedTensors separate_experts(const NamedTensors& tensors, ExpertNames names) {
  const Names& table = names_of(names);
  NamedTensors result;
  for (const auto& [name, tensor] : tensors) {
    const std::optional<InMixture> place = in_mixture(name, table.module);
    absl::string_view rest = place ? place->rest : absl::string_view();
    const bool is_expert = absl::ConsumePrefix(&rest, kExperts);
    bool is_done = false;
    for (const Name& each : is_expert ? table.experts : table.others) {
      if (rest != each.own) continue;
      is_done = true;
      if (!is_expert) {
        result.emplace_back(absl::StrCat(place->path, each.other), tensor);
        continue;
      }
      for (int64_t i = 0; i < tensor.size(0); ++i) {
        result.emplace_back(absl::StrCat(place->path, kExperts, i, ".", each.other), tensor[i]);
      }
    }
    if (!is_done) result.emplace_back(name, tensor);
  }
  return result;
}

}  // namespace accelerate
