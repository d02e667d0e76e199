/// One table of everything that a run can be told: flags, keys of configuration files, variables.
///
/// A row makes the flag of `accelerate launch`, the key in the YAML file, the variable that a rank
/// gets, the default of the question in `accelerate config`, and the row in
/// accelerate/docs/launch_options.md.
/// Errors: none but of values; looking up a name that no row has is a programming error where
///         stated.
/// Threads: constant data.
/// Mirrors: the flags of accelerate commands/launch.py and the fields of commands/config.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace accelerate::launcher::settings {

enum class ValueType {
  kFlag,   ///< a boolean whose flag takes no value: there or not
  kBool,   ///< a boolean whose flag takes a value
  kInt,    ///< a whole number
  kFloat,  ///< a finite number
  kText,
  kTexts,  ///< any number of texts; the flag may be repeated
  kBools,  ///< three booleans: parse_bools
};

/// Where in a configuration file a key stands.
enum class Section {
  kNone,  ///< in no file
  kTop,
  kDeepSpeed,
  kDynamo,
  kFp8,
  kFsdp,
  kMegatron,
  kMpirun,
  kParallelism,
  kSageMaker,  ///< at the top, of a file for SageMaker
};

/// Headings of help texts and of the documentation, in their order.
enum class Group {
  kProgram,
  kRanks,
  kMachines,
  kLogs,
  kSimulation,
  kLook,
  kCompile,
  kFp8,
  kFsdp,
  kDeepSpeed,
  kParallelism,
  kMegatron,
  kTpu,
  kSageMaker,
};

enum class SettingOrigin {
  kPeer,      ///< a flag that Hugging Face Accelerate has as well
  kOurs,      ///< a flag of our own
  kFileOnly,  ///< no flag; a key of configuration files
};

/// Whether this version does what a setting asks for. One column for help texts, documentation, the
/// questions of `accelerate config`, and refusals (validate.h, check_status).
enum class Status {
  kWorks,
  kNotInThisVersion,  ///< read and written, so that files can be converted; refused before a run
};

struct Setting {
  /// In snake case; the flag's name unless `flag` is set.
  const char* name = "";
  char short_name = 0;
  SettingOrigin origin = SettingOrigin::kPeer;
  const char* flag = nullptr;
  /// A second name of the flag: torchrun's.
  const char* other_flag = nullptr;
  /// Shown by --help; all others by --help=all alone.
  bool is_common = false;
  /// A second flag that sets a boolean to false.
  const char* negated_flag = nullptr;
  ValueType type = ValueType::kText;
  /// What help and documentation call the value; null: by the type.
  const char* value_name = nullptr;
  /// As text; null: unset by default.
  const char* default_value = nullptr;
  /// The only values there are, between `|`; null: any of the type.
  const char* choices = nullptr;
  /// A choice may be spelt in any case, as files of HF Accelerate do.
  bool is_in_any_case = false;
  Section section = Section::kNone;
  /// The key in a file where it is not `name`.
  const char* key = nullptr;
  /// A key at the top of files of both kinds.
  bool in_sagemaker = false;
  /// The variable in which a rank finds it; null: none.
  const char* variable = nullptr;
  /// Whether the launcher takes a value from `variable`. False for variables that an outer run
  /// sets for its ranks.
  bool variable_is_read = true;
  Group group = Group::kProgram;
  Status status = Status::kWorks;
  const char* help = "";

  bool has_flag() const { return origin != SettingOrigin::kFileOnly; }
  /// Without the dashes.
  const char* flag_name() const { return flag != nullptr ? flag : name; }
  const char* key_name() const { return key != nullptr ? key : name; }
  bool works() const { return status == Status::kWorks; }
  bool is_boolean() const { return type == ValueType::kFlag || type == ValueType::kBool; }
  /// Empty: any.
  std::vector<absl::string_view> choice_list() const;
};

/// In the order of the groups.
absl::Span<const Setting> all_settings();

/// Null for a name that no row has.
const Setting* find_setting(absl::string_view name);

/// The row of a name that there is.
const Setting& setting(absl::string_view name);

/// The row of a flag, without dashes in front, `-` or `_` within; also of its other name, and of
/// negated ones. Null for none.
const Setting* find_flag(absl::string_view flag);

/// A map within a configuration file.
struct SectionName {
  Section section;
  const char* key;     ///< "fsdp_config"
  const char* prefix;  ///< "fsdp_"; keys may leave it out
};

absl::Span<const SectionName> all_sections();

/// The map of a key, "fsdp_config", or of a section. Null for none.
const SectionName* find_section(absl::string_view key);
const SectionName* find_section(Section section);

/// The row of a key within a section: with or without the section's prefix, or spelt as an older
/// release did. For Section::kTop and kSageMaker the keys at the top of such a file. Null for none.
const Setting* find_key(Section section, absl::string_view key);

/// The keys that `find_key` knows, sorted, without older spellings; for kTop and kSageMaker also
/// those of the sections that such a file may have.
std::vector<std::string> known_keys(Section section);

const char* group_title(Group group);

/// The group's word in --help=GROUP, "fsdp".
const char* group_name(Group group);

absl::Span<const Group> all_groups();

/// The names of the types of parallel runs in a file; and in one for SageMaker.
absl::Span<const char* const> distributed_types();
absl::Span<const char* const> sagemaker_distributed_types();

// The meaning of a value's text: one way of reading for flags, configuration files and variables.
// Errors: InvalidArgument with the expected and the actual text; callers add the place.

/// y yes t true on 1 / n no f false off 0, in any case.
absl::StatusOr<bool> parse_bool(absl::string_view text);

/// Three of them, "true,false,true", also in parentheses or square brackets, as lists are written.
absl::StatusOr<std::vector<bool>> parse_bools(absl::string_view text);

/// The numbers and the words of `text` are as the setting's type and choices want them.
absl::Status check_value(const Setting& setting, absl::string_view text);

/// Whether a JSON or YAML file can have the text.
bool is_utf8(const std::string& text);

/// The schema's spelling of a value, where choices may be in any case.
std::string schema_text(const Setting& setting, const std::string& text);

}  // namespace accelerate::launcher::settings
