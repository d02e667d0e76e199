/// Copies much memory that nobody reads soon.
///
/// What is written goes past the caches. An ordinary copy first reads each line that it is about to
/// overwrite, which is a third of its traffic; the C library avoids that only for copies that are
/// larger than the pieces which threads share.
/// Threads: any; the copy is complete, and seen by others, when it returns.
#pragma once

#include <cstddef>

namespace accelerate::internal {

/// As std::memcpy.
void stream_copy(std::byte* to, const std::byte* from, size_t size);

}  // namespace accelerate::internal
