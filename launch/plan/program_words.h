/// The command line that a rank runs.
#pragma once

#include <string>
#include <vector>

#include "launch/settings/settings.h"

namespace accelerate::launch::plan {

/// The program that loads a shared object and calls a function in it; it lies beside `accelerate`.
inline constexpr char kModuleLoader[] = "accelerate-module";

/// `command`, or with --module what loads it: the loader, the function's name, the shared object
/// and its arguments.
inline std::vector<std::string> program_words(const settings::Settings& settings,
                                              const std::vector<std::string>& command) {
  if (!settings.flag("module")) return command;
  const std::string function = settings.text("main_training_function");
  std::vector<std::string> words = {kModuleLoader, function.empty() ? "main" : function};
  words.insert(words.end(), command.begin(), command.end());
  return words;
}

}  // namespace accelerate::launch::plan
