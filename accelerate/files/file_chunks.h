/// A file's bytes cut into chunks that several threads write or read, with checksums.
///
/// Threads: run_chunks makes its own and has ended them when it returns; the rest is values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"

namespace accelerate::internal {

/// Bytes of a file that belong together, such as a tensor's.
struct FilePiece {
  int64_t begin = 0;
  int64_t end = 0;
  /// No chunk ends within an element, or has one at an odd position.
  int64_t element_size = 1;
};

struct FileChunk {
  /// The part of a piece that is in a chunk.
  struct Part {
    size_t piece = 0;
    int64_t begin = 0;
    int64_t end = 0;
    /// CRC-32C of these bytes, where it was computed.
    uint32_t crc32c = 0;
  };

  int64_t begin() const { return parts.front().begin; }
  int64_t end() const { return parts.back().end; }

  /// Without gaps, none of them empty.
  std::vector<Part> parts;
};

/// Small enough to stay in a core's cache from the checksum to the copy.
inline constexpr int64_t kFileChunkBytes = int64_t{1} << 20;

/// `pieces`: by position, without overlaps. Empty ones are in no chunk. Chunks have about
/// `chunk_bytes` bytes; a ChunkBuffer holds those of kFileChunkBytes.
std::vector<FileChunk> cut_into_chunks(const std::vector<FilePiece>& pieces,
                                       int64_t chunk_bytes = kFileChunkBytes);

/// A chunk's worth of memory for each thread, which has it from its first use on.
class ChunkBuffer {
 public:
  absl::Span<std::byte> of_size(int64_t size);

 private:
  std::unique_ptr<std::byte[]> bytes_;
};

/// Calls `work` once for each chunk: in order on the calling thread, or on `threads` threads. No
/// chunk is begun after an error, which is returned, or an exception of `work`, which is thrown
/// here.
absl::Status run_chunks(std::vector<FileChunk>& chunks, int threads,
                        absl::FunctionRef<absl::Status(FileChunk&, ChunkBuffer&)> work);

/// The checksum of each piece, from its parts; 0 for an empty piece.
std::vector<uint32_t> piece_checksums(const std::vector<FileChunk>& chunks, size_t pieces);

}  // namespace accelerate::internal
