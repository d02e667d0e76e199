/// The arguments of Megatron-LM that mean something here, by their names there.
///
/// Errors:  c10::ValueError naming the keys.
/// Threads: pure functions.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace accelerate {

enum class MegatronArgumentUse {
  kUsed,           ///< it decides how a model is built, trained, read or logged
  kWithoutEffect,  ///< it chooses a kernel, an overlap, a message or a cache there, and no result
};

/// What stands on a command line of Megatron-LM for an argument.
enum class MegatronArgumentForm {
  kNoFlag,   ///< nothing: the argument follows from others, or is of a plug-in alone
  kOn,       ///< a flag alone, which makes it true
  kOff,      ///< a flag alone, which makes it false
  kInteger,  ///< a flag and a whole number
  kNumber,   ///< a flag and a number
  kText,     ///< a flag and a text
  kTexts,    ///< a flag and at least one text
};

struct MegatronArgument {
  const char* name;
  MegatronArgumentUse use;
  MegatronArgumentForm form;
  /// The flag without its two hyphens. Null: the name, with hyphens for underscores.
  const char* flag = nullptr;
  /// Why an argument without effect has none.
  const char* why = "LibTorch chooses its kernels and messages by itself";
};

/// An argument without effect, by the name that it was given by.
struct IdleMegatronArgument {
  std::string name;
  std::string why;
};

/// In alphabetical order; all other names are unknown.
absl::Span<const MegatronArgument> megatron_arguments();

/// Null for an unknown name.
const MegatronArgument* find_megatron_argument(absl::string_view name);

/// The argument that a flag is for, as "--no-rope-fusion"; null for an unknown one.
const MegatronArgument* find_megatron_flag(absl::string_view flag);

/// The field of a MegatronLMPlugin that an argument has, if there is one of this name.
absl::string_view megatron_field(absl::string_view argument);

/// The object's keys that have no effect. Errors: for an object with unknown keys, all of which are
/// named, and for a value that is not an object; they begin with `who`.
std::vector<IdleMegatronArgument> check_megatron_arguments(const nlohmann::ordered_json& arguments,
                                                           const char* who);

/// "tokenizer_type, merge_file have no effect: data are tokens already; ...": by reasons, in the
/// order of their first names.
std::string text_of(const std::vector<IdleMegatronArgument>& idle);

/// The names of the arguments that a logger is told of by set_all_logging_options.
std::vector<const char*> megatron_logging_flags();

}  // namespace accelerate
