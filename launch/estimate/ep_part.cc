#include "launch/estimate/ep_part.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace accelerate::launcher::estimate {
namespace {

constexpr absl::string_view kExperts = "experts.";

// Where the name goes on behind the module of experts; npos: the tensor is not an expert's.
size_t behind_experts(absl::string_view name) {
  for (size_t at = name.find(kExperts); at != name.npos; at = name.find(kExperts, at + 1)) {
    if (at == 0 || name[at - 1] == '.') return at + kExperts.size();
  }
  return name.npos;
}

}  // namespace

absl::StatusOr<EpPart> ep_part(const Architecture& architecture, int64_t ranks) {
  EpPart part = {.rest = architecture};
  part.rest.tensors.clear();
  Architecture experts;
  std::map<std::string, std::set<int64_t>> numbers;  // by module, where each has its tensors
  std::map<std::string, int64_t> counts;             // by module
  for (const ArchitectureTensor& tensor : architecture.tensors) {
    const size_t behind = behind_experts(tensor.name);
    if (behind == std::string::npos) {
      part.rest.tensors.push_back(tensor);
      continue;
    }
    experts.tensors.push_back(tensor);
    const std::string module = tensor.name.substr(0, behind - 1);
    const std::string next = tensor.name.substr(behind, tensor.name.find('.', behind) - behind);
    if (int64_t number = 0; absl::SimpleAtoi(next, &number)) {
      numbers[module].insert(number);
      counts[module] = static_cast<int64_t>(numbers[module].size());
    } else if (!tensor.shape.empty()) {
      counts[module] = tensor.shape[0];
    }
  }
  if (counts.empty()) {
    return absl::InvalidArgumentError(
        "it has no experts for --ep_size: no tensor is behind a module \"experts\"");
  }
  for (const auto& [module, count] : counts) {
    if (count % ranks == 0) continue;
    int64_t fitting = std::min(ranks, count);
    while (count % fitting != 0) --fitting;
    return absl::InvalidArgumentError(
        absl::StrCat("\"", module, "\" has ", count, " experts, which ", ranks,
                     " ranks do not divide evenly; --ep_size ", fitting, " does"));
  }
  part.experts = model_size(experts).total / static_cast<double>(ranks);
  return part;
}

}  // namespace accelerate::launcher::estimate
