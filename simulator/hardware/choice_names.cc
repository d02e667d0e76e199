#include "simulator/hardware/choice_names.h"

#include <algorithm>
#include <cstddef>

namespace accelerate::simulator::internal {

template <>
const std::vector<std::string>& choice_names<NodeFabric>() {
  static const auto* names = new std::vector<std::string>{"switch", "mesh", "pcie"};
  return *names;
}

template <>
const std::vector<std::string>& choice_names<NetworkFabric>() {
  static const auto* names = new std::vector<std::string>{"rails", "fat-tree", "ethernet"};
  return *names;
}

template <>
const std::vector<std::string>& choice_names<Efficiency>() {
  static const auto* names = new std::vector<std::string>{"ideal", "measured"};
  return *names;
}

template <>
const std::vector<std::string>& choice_names<KernelSet>() {
  static const auto* names = new std::vector<std::string>{"eager", "transformer_engine"};
  return *names;
}

template <>
const std::vector<std::string>& choice_names<MathType>() {
  static const auto* names =
      new std::vector<std::string>{"fp64", "fp32", "fp16", "bf16", "fp8", "int8"};
  return *names;
}

std::string name_of(NodeFabric fabric) {
  if (fabric == NodeFabric::kTorus) return "torus";
  return choice_names<NodeFabric>()[static_cast<size_t>(fabric)];
}

std::string name_of(NetworkFabric fabric) {
  return choice_names<NetworkFabric>()[static_cast<size_t>(fabric)];
}

std::string name_of(Efficiency efficiency) {
  return choice_names<Efficiency>()[static_cast<size_t>(efficiency)];
}

std::string name_of(KernelSet kernels) {
  return choice_names<KernelSet>()[static_cast<size_t>(kernels)];
}

template <typename Choice>
std::optional<Choice> choice_of(absl::string_view name) {
  const std::vector<std::string>& names = choice_names<Choice>();
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end()) return std::nullopt;
  return static_cast<Choice>(found - names.begin());
}
template std::optional<NodeFabric> choice_of(absl::string_view name);
template std::optional<NetworkFabric> choice_of(absl::string_view name);
template std::optional<Efficiency> choice_of(absl::string_view name);
template std::optional<KernelSet> choice_of(absl::string_view name);
template std::optional<MathType> choice_of(absl::string_view name);

}  // namespace accelerate::simulator::internal
