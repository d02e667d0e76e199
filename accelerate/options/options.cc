#include "accelerate/options/options.h"

#include <algorithm>
#include <iterator>
#include <vector>

#include "absl/log/absl_check.h"
#include "absl/strings/strip.h"
#include "accelerate/options/rows.h"

namespace accelerate::options {
namespace {

constexpr SectionName kSections[] = {
    {Section::kDeepSpeed, "deepspeed_config", ""},
    {Section::kDynamo, "dynamo_config", "dynamo_"},
    {Section::kFp8, "fp8_config", "fp8_"},
    {Section::kFsdp, "fsdp_config", "fsdp_"},
    {Section::kMegatron, "megatron_lm_config", "megatron_lm_"},
    {Section::kMpirun, "mpirun_config", ""},
    {Section::kParallelism, "parallelism_config", "parallelism_config_"},
};

// The field that the option fills, if it fills one.
absl::string_view field_of(const Option& row) {
  if (row.field != nullptr) return row.field;
  const SectionName* section = find_section(row.section);
  return section == nullptr ? row.name : absl::StripPrefix(row.name, section->prefix);
}

}  // namespace

absl::Span<const Option> all_options() {
  static const std::vector<Option> kRows = [] {
    std::vector<Option> rows;
    for (const absl::Span<const Option> part : {launch_rows(), engine_rows(), machine_rows()}) {
      rows.insert(rows.end(), part.begin(), part.end());
    }
    return rows;
  }();
  return kRows;
}

const Option* find_option(absl::string_view name) {
  const absl::Span<const Option> rows = all_options();
  const auto found =
      std::ranges::find(rows, name, [](const Option& row) { return absl::string_view(row.name); });
  return found == rows.end() ? nullptr : &*found;
}

const Option& option(absl::string_view name) {
  const Option* row = find_option(name);
  ABSL_CHECK(row != nullptr) << "no option " << name;
  return *row;
}

const Option* find_field(Section section, absl::string_view field) {
  for (const Option& row : all_options()) {
    if (row.section == section && field_of(row) == field) return &row;
  }
  return nullptr;
}

absl::Span<const SectionName> all_sections() { return kSections; }

const SectionName* find_section(absl::string_view key) {
  const auto* found = std::ranges::find(
      kSections, key, [](const auto& each) { return absl::string_view(each.key); });
  return found == std::end(kSections) ? nullptr : found;
}

const SectionName* find_section(Section section) {
  const auto* found = std::ranges::find(kSections, section, &SectionName::section);
  return found == std::end(kSections) ? nullptr : found;
}

}  // namespace accelerate::options
