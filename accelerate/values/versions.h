/// Comparing version numbers.
///
/// A version is [N!]N(.N)*[{a|b|rc}N][.postN][.devN][+local], in the spellings that Python packages
/// use ("v1.0-beta.2", "1.0-1"). Missing release numbers are zero: 2.6 equals 2.6.0. In ascending
/// order: 1.0.dev1, 1.0a1, 1.0rc1, 1.0, 1.0+cpu, 1.0.post1.
/// Errors: c10::ValueError for text that is not a version, and for an operation that is none of
///         > >= == != <= <.
/// Threads: pure functions.
/// Mirrors: accelerate utils/versions.py; the order is that of PEP 440.
#pragma once

#include <string_view>

namespace accelerate {

/// compare_versions("2.6.0+cpu", ">=", "2.6").
bool compare_versions(std::string_view version, std::string_view operation,
                      std::string_view requirement_version);

/// Compares the release of LibTorch that this was compiled with, without its suffixes.
bool is_torch_version(std::string_view operation, std::string_view version);

}  // namespace accelerate
