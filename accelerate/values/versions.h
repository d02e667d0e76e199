/// Comparing version numbers, and which versions this was built from.
///
/// A version is [N!]N(.N)*[{a|b|rc}N][.postN][.devN][+local], in the spellings that Python packages
/// use ("v1.0-beta.2", "1.0-1"). Missing release numbers are zero: 2.6 equals 2.6.0. In ascending
/// order: 1.0.dev1, 1.0a1, 1.0rc1, 1.0, 1.0+cpu, 1.0.post1.
/// Errors: c10::ValueError for text that is neither a version nor, where one may be named, a
///         library of library_version; and for an operation that is none of > >= == != <= <.
/// Threads: pure functions.
/// Mirrors: accelerate utils/versions.py; the order is that of PEP 440.
#pragma once

#include <optional>
#include <string_view>

namespace accelerate {

/// The version of "accelerate", which is this library, or of "torch", the LibTorch that this was
/// compiled with; absent for another library.
std::optional<std::string_view> library_version(std::string_view library);

/// compare_versions("2.6.0+cpu", ">=", "2.6"), or compare_versions("torch", ">=", "2.6").
bool compare_versions(std::string_view library_or_version, std::string_view operation,
                      std::string_view requirement_version);

/// Compares the release of LibTorch that this was compiled with, without its suffixes.
bool is_torch_version(std::string_view operation, std::string_view version);

}  // namespace accelerate
