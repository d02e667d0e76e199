/// One option of a run, said once: its flag, its key in configuration files, its variable, its
/// question, the field of a plug-in that it fills, and what people are told of it.
///
/// accelerate/options has the table of all of them. The launcher, the plug-ins, `accelerate
/// config`, `accelerate env` and the pages read it there. Threads: constant data.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "accelerate/base/enum_text.h"

namespace accelerate::options {

enum class ValueType {
  kFlag,   ///< a boolean whose flag takes no value: there or not
  kBool,   ///< a boolean whose flag takes a value
  kInt,    ///< a whole number
  kFloat,  ///< a finite number
  kText,
  kTexts,  ///< any number of texts; the flag may be repeated
  kBools,  ///< three booleans between commas
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
  kPeer,          ///< a flag that Hugging Face Accelerate has as well
  kOurs,          ///< a flag of our own
  kFileOnly,      ///< no flag; a key of configuration files
  kVariableOnly,  ///< neither: a variable that a rank reads
};

/// Whether this version does what an option asks for. One column for help texts, documentation, the
/// questions of `accelerate config`, and refusals.
enum class Status {
  kWorks,
  kNotInThisVersion,  ///< read and written, so that files can be converted; refused before a run
};

/// How the launcher writes a value into a rank's variable.
enum class Spelling {
  kPlain,    ///< as it is; booleans in small letters
  kLower,    ///< in small letters
  kUpper,    ///< in capitals
  kCapital,  ///< True and False
  kDigit,    ///< 1 and 0
};

/// How `accelerate config` asks for an option.
struct Question {
  /// Null: it does not ask by itself. "?": what the help says, as a question.
  const char* text = nullptr;
  /// The answer that Enter gives; "yes" and "no" make it a question with these two answers. Null:
  /// an answer is needed, and of choices the first one is proposed.
  const char* proposal = nullptr;
  /// What must hold for the answers so far, parts between `&`: "fsdp_version=1", one of several
  /// values in "zero_stage=2|3", another value in "num_machines!=1", any answer in "fp8_margin" and
  /// none in "!fp8_margin". Null: nothing.
  const char* when = nullptr;
  /// What is offered where that is not what the option may have, between `|`. A choice with a `@`
  /// is offered where the condition behind that holds.
  const char* choices = nullptr;
  /// Asked before, with No as the proposal: only Yes leads to the option. With a `!` in front, Yes
  /// is the proposal, and only No leads to it.
  const char* guard = nullptr;
  /// The answer is a path, in which `~` stands for the home folder.
  bool is_path = false;
};

struct Option {
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
  /// The range of a whole number, which the launcher checks once it has filled all in; the smallest
  /// one is that of its question, too.
  int64_t least = std::numeric_limits<int64_t>::min();
  int64_t most = std::numeric_limits<int64_t>::max();
  Section section = Section::kNone;
  /// The key in a file where it is not `name`.
  const char* key = nullptr;
  /// The key as older releases or their questionnaires wrote it, between `|`.
  const char* old_keys = nullptr;
  /// A key at the top of files of both kinds.
  bool in_sagemaker = false;
  /// The variable in which a rank finds it ...
  const char* variable = nullptr;
  /// ... or the beginning of one that goes on with the name in capitals. Both null: none.
  const char* variable_prefix = nullptr;
  /// Whether the launcher takes a value from the variable. False for variables that an outer run
  /// sets for its ranks.
  bool variable_is_read = true;
  Spelling spelling = Spelling::kPlain;
  /// Whether a rank needs it that is started by hand, though it is not an engine's own.
  bool is_for_ranks = false;
  /// A credential: never shown.
  bool is_secret = false;
  Group group = Group::kProgram;
  Status status = Status::kWorks;
  const char* help = "";
  /// The release of HF Accelerate that brought it; null: 1.14 or an earlier one.
  const char* since = nullptr;
  Question question = {};
  /// The field of a plug-in or of kwargs that it fills; null: `name` without its section's prefix.
  const char* field = nullptr;
  /// What the field is where neither the program nor the variable says it; null: `default_value`;
  /// "": absent. The launcher has other defaults for some, as HF Accelerate's has.
  const char* field_default = nullptr;

  bool has_flag() const { return origin == SettingOrigin::kPeer || origin == SettingOrigin::kOurs; }
  /// Without the dashes.
  const char* flag_name() const { return flag != nullptr ? flag : name; }
  bool has_key() const {
    return section != Section::kNone && origin != SettingOrigin::kVariableOnly;
  }
  const char* key_name() const { return key != nullptr ? key : name; }
  /// Whether it is one of `old_keys`.
  bool has_old_key(absl::string_view text) const;
  /// Empty: none.
  std::string variable_name() const;
  bool has_range() const { return least != std::numeric_limits<int64_t>::min(); }
  bool works() const { return status == Status::kWorks; }
  bool is_boolean() const { return type == ValueType::kFlag || type == ValueType::kBool; }
  /// Empty: any.
  std::vector<absl::string_view> choice_list() const;
};

}  // namespace accelerate::options

namespace accelerate {

/// The groups' words in --help=GROUP.
ACCELERATE_ENUM_TEXTS(options::Group, "group", "program", "ranks", "machines", "output",
                      "simulation", "look", "compile", "fp8", "fsdp", "deepspeed", "mesh",
                      "megatron", "tpu", "sagemaker")

}  // namespace accelerate
