/// The flags of `accelerate launch` and the keys of its configuration files, as HF Accelerate has
/// them, and what their values may be here. Written down a second time on purpose: expectations of
/// launches rest on this table, never on the launcher's own.
///
/// Threads: pure functions.
#pragma once

#include <span>
#include <string>

namespace accelerate::golden {

enum class FlagKind {
  kFlag,  ///< there or not
  kBool,
  kInt,
  kFloat,
  kText,
  kTexts,
  kBools,  ///< three booleans between commas
};

/// Where in a configuration file a key stands.
enum class FlagPlace {
  kNowhere,
  kTop,
  kDeepSpeed,
  kDynamo,
  kFp8,
  kFsdp,
  kMegatron,
  kMpirun,
  kParallelism,
  kSageMaker,
};

struct LaunchFlag {
  const char* name;
  FlagKind kind;
  FlagPlace place;
  /// Where a file calls it otherwise.
  const char* key;
  /// The only values, between `|`; null: any.
  const char* choices;
  /// Null: none.
  const char* default_value;
  /// The variable in which a rank finds it; null: none.
  const char* variable;
};

std::span<const LaunchFlag> launch_flags();

/// Null for a name that there is not.
const LaunchFlag* find_launch_flag(const std::string& name);

/// A word of a command line, "--num-processes" or "-m". Null for an unknown one.
struct TypedLaunchFlag {
  const LaunchFlag* flag = nullptr;
  bool is_negated = false;
};
TypedLaunchFlag parse_launch_flag(const std::string& word);

/// The beginning of keys in the section, which they may leave out: "fsdp_".
std::string key_prefix(FlagPlace place);

/// Whether a text is a value of the flag.
bool is_value_of(const LaunchFlag& flag, const std::string& text);

/// yes, no and the like, in any case. -1 for what is neither, else 0 or 1.
int truth_of(const std::string& text);

}  // namespace accelerate::golden
