/// The promises of save_state, worked out from a case alone: names of files, and which checkpoints
/// a project has after a sequence of actions.
///
/// Threads: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <nlohmann/json.hpp>

namespace accelerate::golden {

/// A name without what comes after its last dot; HF Accelerate's pytorch_model is model.
std::string stem_of(const std::string& file);

/// How we call a file of HF Accelerate, which holds tensors or does not.
std::string our_file_name(const std::string& file, bool has_tensors);

/// Whether a described value has a tensor in it.
bool has_tensor(const nlohmann::json& value);

/// The argument after `verb` in "verb:argument"; nothing for another action.
std::optional<std::string> argument_of(const std::string& action, const std::string& verb);

/// N of "iteration=N".
std::optional<int64_t> new_iteration(const std::string& action);

/// The trace of a rotation case: an entry per action with what it returned or loaded (or an error),
/// the checkpoints and the iteration.
nlohmann::json expected_trace(const nlohmann::json& in);

}  // namespace accelerate::golden
