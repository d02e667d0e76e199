/// Calls of a function by HF Accelerate's find_executable_batch_size, written as in Python:
/// "train(batch_size, a, b=0, *args) called with (1, b=2)", "train() without parameters".
///
/// Threads: the rank's thread.
#pragma once

#include <cstdint>
#include <string>

#include <nlohmann/json.hpp>

namespace accelerate::golden {

/// The result of the call here: the batch size, or where there are more parameters the list of all.
/// Arguments by name are given by position. A call that does not compile is refused_by_compiler().
/// Errors: CaseError for a note that says something else.
nlohmann::json run_noted_call(const std::string& note, int64_t starting_batch_size);

}  // namespace accelerate::golden
