/// SHA-256 (FIPS 180-4): a name for contents.
///
/// For nothing that must be secret or fast.
/// Threads: a pure function.
#pragma once

#include <string>

namespace accelerate {

/// In hexadecimal.
std::string sha256(const std::string& bytes);

}  // namespace accelerate
