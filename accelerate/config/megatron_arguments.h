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
  kWithoutEffect,  ///< it chooses a kernel, an overlap or a message there, and no result
};

struct MegatronArgument {
  const char* name;
  MegatronArgumentUse use;
};

/// In alphabetical order; all other names are unknown.
absl::Span<const MegatronArgument> megatron_arguments();

/// Null for an unknown name.
const MegatronArgument* find_megatron_argument(absl::string_view name);

/// Names of the object's keys that have no effect. Errors: for an object with unknown keys, all of
/// which are named, and for a value that is not an object; they begin with `who`.
std::vector<std::string> check_megatron_arguments(const nlohmann::ordered_json& arguments,
                                                  const char* who);

/// The names of the arguments that a logger is told of by set_all_logging_options.
absl::Span<const char* const> megatron_logging_flags();

}  // namespace accelerate
