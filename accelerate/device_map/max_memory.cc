#include "accelerate/device_map/max_memory.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>

#include <nlohmann/json.hpp>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "accelerate/base/document.h"
#include "accelerate/base/json_text.h"
#include "accelerate/base/number_text.h"
#include "accelerate/base/status.h"

namespace accelerate {
namespace {

using nlohmann::ordered_json;

size_t at(int32_t number) { return static_cast<size_t>(number); }

absl::StatusOr<double> parse_amount(absl::string_view text) {
  const std::optional<int64_t> size = parse_byte_size(std::string(text));
  if (size) return static_cast<double>(*size);
  return invalid(
      "\"", text,
      "\" is not a size; give a number of bytes, or a text with a unit such as \"5.0GB\" or "
      "\"512MiB\"");
}

absl::StatusOr<double> amount_of(const ordered_json& value) {
  if (value.is_number_integer()) return value.get<double>();
  if (value.is_string()) return parse_amount(value.get_ref<const std::string&>());
  return invalid(json_text(value), " is neither a number of bytes nor a text");
}

// A word of a command line, where a number needs no unit.
absl::StatusOr<double> amount_of_word(absl::string_view word) {
  int64_t bytes = 0;
  if (absl::SimpleAtoi(word, &bytes)) return static_cast<double>(bytes);
  return parse_amount(word);
}

absl::Status add_limit(absl::string_view device, absl::StatusOr<double> amount, MaxMemory& limits) {
  ACCELERATE_ASSIGN_OR_RETURN(DevicePlacement placement, DevicePlacement::parse(device));
  if (!amount.ok()) {
    return invalid("the limit of device ", device, ": ", amount.status().message());
  }
  limits.emplace_back(std::move(placement), *amount);
  return absl::OkStatus();
}

// Modules with bytes of which none is directly below another, and their mean.
double mean_of_leaf_modules(const ModuleTree& tree, const internal::TreeSizes& sizes,
                            const std::vector<bool>& has_tensors) {
  std::vector<bool> has_modules(tree.modules().size());
  for (size_t i = 1; i < has_tensors.size(); ++i) {
    if (has_tensors[i]) has_modules[at(tree.modules()[i].parent)] = true;
  }
  double sum = 0;
  int64_t count = 0;
  for (size_t i = 1; i < has_tensors.size(); ++i) {
    if (!has_tensors[i] || has_modules[i]) continue;
    sum += sizes.modules[i];
    ++count;
  }
  return std::trunc(sum / static_cast<double>(std::max<int64_t>(count, 1)));
}

// The first of tensors that are one.
std::vector<ModuleTree::Tensor> distinct_tensors(const ModuleTree& tree) {
  std::vector<ModuleTree::Tensor> tensors = tree.tensors_in_order();
  std::vector<bool> is_counted(tensors.size());
  std::erase_if(tensors, [&](ModuleTree::Tensor each) {
    const size_t identity = at(tree.tensor(each).identity);
    const bool is_again = is_counted[identity];
    is_counted[identity] = true;
    return is_again;
  });
  return tensors;
}

// By the numbers of modules: whether one of the tensors is in it.
std::vector<bool> modules_with(const ModuleTree& tree,
                               const std::vector<ModuleTree::Tensor>& tensors) {
  std::vector<bool> has(tree.modules().size());
  for (const ModuleTree::Tensor each : tensors) {
    for (ModuleTree::Module module = tree.tensor(each).module; module >= 0 && !has[at(module)];
         module = tree.module(module).parent) {
      has[at(module)] = true;
    }
  }
  return has;
}

// The largest, of the first module of each class. First is the one whose tensors come first.
double largest_block(const ModuleTree& tree, const internal::TreeSizes& sizes,
                     const std::vector<ModuleTree::Tensor>& tensors,
                     absl::Span<const std::string> no_split_module_classes) {
  if (no_split_module_classes.empty()) return 0;
  const std::vector<bool> no_split = internal::has_class(tree, no_split_module_classes);
  std::vector<bool> is_seen(tree.modules().size());
  absl::flat_hash_set<absl::string_view> classes;
  std::vector<ModuleTree::Module> path;
  double largest = 0;
  for (const ModuleTree::Tensor each : tensors) {
    path.clear();
    for (ModuleTree::Module module = tree.tensor(each).module; module > 0 && !is_seen[at(module)];
         module = tree.module(module).parent) {
      is_seen[at(module)] = true;
      path.push_back(module);
    }
    // The outer ones come first.
    for (size_t i = path.size(); i-- > 0;) {
      if (!no_split[at(path[i])] || !classes.insert(tree.module(path[i]).class_name).second) {
        continue;
      }
      largest = std::max(largest, sizes.modules[at(path[i])]);
    }
  }
  return largest;
}

}  // namespace

absl::StatusOr<MaxMemory> ordered_max_memory(MaxMemory limits) {
  for (const auto& [device, bytes] : limits) {
    if (device.is_named()) {
      return invalid("a limit is given for \"", device.text(),
                     "\"; devices are indices of accelerators, \"mps\", \"cpu\" and \"disk\"");
    }
    if (!(bytes >= 0)) {
      return invalid("the limit of device ", device.text(), " is ", bytes,
                     "; it cannot be negative");
    }
  }
  std::ranges::stable_sort(limits, {}, &MaxMemory::value_type::first);
  for (size_t i = 1; i < limits.size(); ++i) {
    if (limits[i].first == limits[i - 1].first) {
      return invalid("device ", limits[i].first.text(), " has two limits");
    }
  }
  return limits;
}

absl::StatusOr<MaxMemory> parse_max_memory(absl::string_view text) {
  MaxMemory limits;
  text = absl::StripAsciiWhitespace(text);
  if (text.starts_with("{")) {
    const absl::StatusOr<ordered_json> object = json_value(text);
    if (!object.ok()) return absl::InvalidArgumentError(object.status().message());
    for (const auto& [device, value] : object->items()) {
      ACCELERATE_RETURN_IF_ERROR(add_limit(device, amount_of(value), limits));
    }
    return ordered_max_memory(std::move(limits));
  }
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    const std::pair<absl::string_view, absl::string_view> limit =
        absl::StrSplit(part, absl::MaxSplits('=', 1));
    if (part.find('=') == part.npos) {
      return invalid("\"", part, "\" is not a limit, as in \"0=20GB,cpu=64GiB\"");
    }
    const absl::string_view amount = absl::StripAsciiWhitespace(limit.second);
    ACCELERATE_RETURN_IF_ERROR(
        add_limit(absl::StripAsciiWhitespace(limit.first), amount_of_word(amount), limits));
  }
  return ordered_max_memory(std::move(limits));
}

absl::StatusOr<MaxMemory> get_balanced_memory(const ModuleTree& tree, const MaxMemory& limits,
                                              const BalanceOptions& options) {
  ACCELERATE_ASSIGN_OR_RETURN(MaxMemory balanced, ordered_max_memory(limits));
  std::vector<size_t> accelerators;  // with memory
  for (size_t i = 0; i < balanced.size(); ++i) {
    if (balanced[i].first.is_accelerator() && balanced[i].second > 0) accelerators.push_back(i);
  }
  if (accelerators.empty()) return balanced;
  const size_t n = accelerators.size();
  const bool low_zero = options.low_zero && n > 1;
  if (n == 1 && options.limits_are_free_memory) balanced[accelerators[0]].second *= 0.9;

  ACCELERATE_ASSIGN_OR_RETURN(const internal::TreeSizes sizes,
                              internal::tree_sizes(tree, options.sizes));
  const double total = sizes.modules[0];
  const std::vector<ModuleTree::Tensor> tensors = distinct_tensors(tree);
  const double block =
      std::max(largest_block(tree, sizes, tensors, options.no_split_module_classes),
               mean_of_leaf_modules(tree, sizes, modules_with(tree, tensors)));
  const double part =
      std::floor(total / static_cast<double>(low_zero ? n - 1 : n)) + std::trunc(1.25 * block);
  for (size_t i = 0; i + 1 < n; ++i) {
    auto& [device, bytes] = balanced[accelerators[i]];
    if (!(low_zero && device.index() == 0)) bytes = std::min(part, bytes);
  }
  if (low_zero && balanced.front().first == DevicePlacement::accelerator(0)) {
    double others = 0;
    for (const auto& [device, bytes] : balanced) {
      if (device.index() >= 1 && at(device.index()) < n) others += bytes;
    }
    balanced.front().second = std::min(std::max(0.0, total - others), balanced.front().second);
  }
  return balanced;
}

}  // namespace accelerate
