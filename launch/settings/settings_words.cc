#include "launch/settings/settings.h"

#include "absl/strings/str_cat.h"
#include "launch/process/process_plan.h"
#include "launch/settings/schema.h"

namespace accelerate::launcher::settings {
namespace {

// Whether ranks get the setting: child_environment hands on those of an engine that is on.
bool reaches_ranks(const Settings& settings, const Setting& row) {
  switch (row.group) {
    case Group::kRanks: return row.is_for_ranks;
    case Group::kCompile: return true;
    case Group::kFp8: return settings.text("mixed_precision") == "fp8";
    case Group::kFsdp: return settings.flag("use_fsdp");
    case Group::kDeepSpeed: return settings.flag("use_deepspeed");
    case Group::kParallelism: return settings.flag("use_parallelism_config");
    case Group::kMegatron: return settings.flag("use_megatron_lm");
    default: return false;
  }
}

}  // namespace

std::vector<std::string> settings_words(const Settings& settings,
                                        absl::Span<const std::string> environment) {
  std::vector<std::string> words;
  for (const Setting& row : all_settings()) {
    if (!row.has_flag() || !settings.is_set(row.name) || !reaches_ranks(settings, row)) continue;
    const bool has_variable =
        row.variable_is_read &&
        process::find_in_environment(environment, row.variable_name()).has_value();
    // One without a default differs from one that is not set.
    const bool is_usual = row.default_value != nullptr && settings.is_default(row.name);
    if (is_usual && !has_variable) continue;
    const std::string flag = absl::StrCat("--", row.flag_name());
    if (row.type == ValueType::kFlag) {
      if (settings.flag(row.name)) words.push_back(flag);
      continue;
    }
    for (const std::string& text : settings.texts(row.name)) {
      if (!text.empty()) words.insert(words.end(), {flag, text});
    }
  }
  return words;
}

}  // namespace accelerate::launcher::settings
