#include "launch/settings/schema.h"

#include <algorithm>
#include <utility>

#include "absl/log/absl_check.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"

namespace accelerate::launch::settings {
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

constexpr const char* kDistributedTypes[] = {
    "NO",        "MULTI_CPU",  "MULTI_GPU", "MULTI_HPU", "MULTI_MLU", "MULTI_MUSA",  "MULTI_NEURON",
    "MULTI_NPU", "MULTI_SDAA", "MULTI_XPU", "DEEPSPEED", "FSDP",      "MEGATRON_LM", "XLA",
};

constexpr const char* kSageMakerDistributedTypes[] = {"NO", "DATA_PARALLEL", "MODEL_PARALLEL"};

// Keys as older releases wrote them, or as their questionnaire did.
struct OldKey {
  Section section;
  const char* old_key;
  const char* name;
};

constexpr OldKey kOldKeys[] = {
    {Section::kFp8, "amax_history_length", "fp8_amax_history_len"},
    {Section::kFp8, "amax_compute_algorithm", "fp8_amax_compute_algo"},
    {Section::kFp8, "optimization_level", "fp8_opt_level"},
    {Section::kFsdp, "fsdp_backward_prefetch_policy", "fsdp_backward_prefetch"},
    {Section::kFsdp, "backward_prefetch_policy", "fsdp_backward_prefetch"},
    {Section::kFsdp, "fsdp_transformer_cls_to_wrap", "fsdp_transformer_layer_cls_to_wrap"},
    {Section::kMegatron, "megatron_lm_sequence_parallel", "megatron_lm_sequence_parallelism"},
};

}  // namespace

std::vector<absl::string_view> Setting::choice_list() const {
  if (choices == nullptr) return {};
  return absl::StrSplit(choices, '|');
}

const Setting* find_setting(absl::string_view name) {
  for (const Setting& row : all_settings()) {
    if (name == row.name) return &row;
  }
  return nullptr;
}

const Setting& setting(absl::string_view name) {
  const Setting* row = find_setting(name);
  ABSL_CHECK(row != nullptr) << "no setting " << name;
  return *row;
}

const Setting* find_flag(absl::string_view flag) {
  const std::string name = absl::StrReplaceAll(flag, {{"-", "_"}});
  for (const Setting& row : all_settings()) {
    if (!row.has_flag()) continue;
    if (name == row.flag_name()) return &row;
    if (row.negated_flag != nullptr && name == row.negated_flag) return &row;
    if (name.size() == 1 && name[0] == row.short_name) return &row;
  }
  return nullptr;
}

absl::Span<const SectionName> all_sections() { return kSections; }

const Setting* find_key(Section section, absl::string_view key) {
  for (const Setting& row : all_settings()) {
    const bool is_here =
        row.section == section || (section == Section::kSageMaker && row.in_sagemaker);
    if (is_here && key == row.key_name()) return &row;
  }
  for (const OldKey& old : kOldKeys) {
    if (old.section == section && key == old.old_key) return &setting(old.name);
  }
  for (const SectionName& named : kSections) {
    if (named.section != section || *named.prefix == 0) continue;
    if (absl::StartsWith(key, named.prefix)) return nullptr;
    return find_key(section, absl::StrCat(named.prefix, key));
  }
  return nullptr;
}

std::vector<std::string> known_keys(Section section) {
  std::vector<std::string> keys;
  for (const Setting& row : all_settings()) {
    if (row.section == section || (section == Section::kSageMaker && row.in_sagemaker)) {
      keys.push_back(row.key_name());
    }
  }
  for (const SectionName& named : kSections) {
    if (section == Section::kTop ||
        (section == Section::kSageMaker && named.section == Section::kDynamo)) {
      keys.push_back(named.key);
    }
  }
  std::sort(keys.begin(), keys.end());
  return keys;
}

const char* group_title(Group group) {
  switch (group) {
    case Group::kProgram: return "Program and settings";
    case Group::kRanks: return "Ranks and devices";
    case Group::kMachines: return "Machines";
    case Group::kLogs: return "Output, failures and checks";
    case Group::kSimulation: return "Simulation";
    case Group::kLook: return "Looking only";
    case Group::kCompile: return "Compilation";
    case Group::kFp8: return "8-bit floating point";
    case Group::kFsdp: return "FSDP";
    case Group::kDeepSpeed: return "ZeRO (DeepSpeed)";
    case Group::kParallelism: return "Mesh";
    case Group::kMegatron: return "Megatron-LM";
    case Group::kTpu: return "TPU";
    case Group::kSageMaker: return "Amazon SageMaker";
  }
  return "";
}

absl::Span<const char* const> distributed_types() { return kDistributedTypes; }
absl::Span<const char* const> sagemaker_distributed_types() { return kSageMakerDistributedTypes; }

}  // namespace accelerate::launch::settings
