#include "launch/estimate/pp_part.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "accelerate/base/status.h"
#include "accelerate/pipeline/partition.h"

namespace accelerate::launcher::estimate {
namespace {

// In the names of modules before the blocks.
constexpr absl::string_view kBefore[] = {"embed", "tokens", "positions", "wte", "wpe"};

// "model.layers" and 3, of "model.layers.3.mlp.up.weight".
struct Place {
  std::string list;
  int64_t number = 0;
};

// The outermost one; nothing for a tensor outside of numbered modules.
std::optional<Place> place_of(const std::string& name) {
  size_t begin = 0;
  for (size_t dot = name.find('.'); dot != name.npos; dot = name.find('.', begin)) {
    int64_t number = 0;
    if (absl::SimpleAtoi(absl::string_view(name).substr(begin, dot - begin), &number)) {
      return Place{begin > 0 ? name.substr(0, begin - 1) : "", number};
    }
    begin = dot + 1;
  }
  return std::nullopt;
}

// Before the blocks and behind them is a part each.
absl::StatusOr<pipeline::StageCuts> cuts_of(int64_t blocks, int64_t ranks) {
  if (ranks > blocks + 2) {
    return absl::InvalidArgumentError(
        absl::StrCat(blocks, " blocks are ", blocks + 2,
                     " parts with what is before and behind them, so that --pp_size is ",
                     blocks + 2, " at most"));
  }
  return pipeline::cut_by_count(static_cast<size_t>(blocks + 2), static_cast<int>(ranks));
}

size_t stage_of(const pipeline::StageCuts& cuts, size_t part) {
  return static_cast<size_t>(std::ranges::upper_bound(cuts, part) - cuts.begin()) - 1;
}

}  // namespace

absl::StatusOr<std::vector<int64_t>> blocks_of_stages(int64_t blocks, int64_t ranks) {
  ACCELERATE_ASSIGN_OR_RETURN(const pipeline::StageCuts cuts, cuts_of(blocks, ranks));
  std::vector<int64_t> counts(cuts.size());
  for (int64_t block = 0; block < blocks; ++block) {
    ++counts[stage_of(cuts, static_cast<size_t>(block + 1))];
  }
  return counts;
}

absl::StatusOr<std::vector<Architecture>> pp_parts(const Architecture& architecture,
                                                   int64_t ranks) {
  std::map<std::string, double> elements;  // by list
  for (const ArchitectureTensor& tensor : architecture.tensors) {
    if (const auto place = place_of(tensor.name)) elements[place->list] += tensor.elements;
  }
  if (elements.empty()) {
    return absl::InvalidArgumentError(
        "it has no blocks for --pp_size: no tensor is behind a module with a number, as "
        "\"layers.0\"");
  }
  const std::string list =
      std::ranges::max_element(elements, {}, [](const auto& each) { return each.second; })->first;
  std::set<int64_t> numbers;
  for (const ArchitectureTensor& tensor : architecture.tensors) {
    const auto place = place_of(tensor.name);
    if (place && place->list == list) numbers.insert(place->number);
  }
  ACCELERATE_ASSIGN_OR_RETURN(const pipeline::StageCuts cuts,
                              cuts_of(static_cast<int64_t>(numbers.size()), ranks));
  const auto part_of = [&](const std::string& name) -> size_t {
    const auto place = place_of(name);
    if (place && place->list == list) {
      return 1 + static_cast<size_t>(std::distance(numbers.begin(), numbers.find(place->number)));
    }
    const bool is_before = std::ranges::any_of(
        kBefore, [&name](absl::string_view word) { return absl::StrContains(name, word); });
    return is_before ? 0 : numbers.size() + 1;
  };
  Architecture empty = architecture;
  empty.tensors.clear();
  std::vector<Architecture> stages(cuts.size(), empty);
  for (const ArchitectureTensor& tensor : architecture.tensors) {
    std::set<size_t> in = {stage_of(cuts, part_of(tensor.name))};
    for (const std::vector<std::string>& names : architecture.tied) {
      if (std::ranges::count(names, tensor.name) == 0) continue;
      for (const std::string& name : names) in.insert(stage_of(cuts, part_of(name)));
    }
    for (const size_t stage : in) stages[stage].tensors.push_back(tensor);
  }
  return stages;
}

}  // namespace accelerate::launcher::estimate
