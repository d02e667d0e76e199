/// SHA-256 (FIPS 180-4), by which golden files name the contents of others.
///
/// For comparing with recorded answers, and for nothing that must be safe or fast.
/// Threads: a pure function.
#pragma once

#include <string>

namespace accelerate::golden {

/// In hexadecimal.
std::string sha256(const std::string& bytes);

}  // namespace accelerate::golden
