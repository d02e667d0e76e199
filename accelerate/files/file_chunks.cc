#include "accelerate/files/file_chunks.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <system_error>
#include <thread>

#include "absl/synchronization/mutex.h"

#include "accelerate/base/checksum.h"

namespace accelerate::internal {

std::vector<FileChunk> cut_into_chunks(const std::vector<FilePiece>& pieces, int64_t chunk_bytes) {
  std::vector<FileChunk> chunks;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const FilePiece& piece = pieces[i];
    for (int64_t begin = piece.begin; begin < piece.end;) {
      // Chunks end where the file's pages do.
      int64_t end = std::min(piece.end, begin / chunk_bytes * chunk_bytes + chunk_bytes);
      if (end < piece.end) end -= (end - piece.begin) % piece.element_size;
      if (end <= begin) end = std::min(piece.end, begin + piece.element_size);
      const bool joins = begin == piece.begin && !chunks.empty() && chunks.back().end() == begin &&
                         begin % chunk_bytes != 0 &&
                         (begin - chunks.back().begin()) % piece.element_size == 0;
      if (!joins) chunks.emplace_back();
      chunks.back().parts.push_back({.piece = i, .begin = begin, .end = end});
      begin = end;
    }
  }
  return chunks;
}

absl::Span<std::byte> ChunkBuffer::of_size(int64_t size) {
  // A chunk can be a little longer than the others: see element_size.
  constexpr int64_t kCapacity = kFileChunkBytes + 64;
  if (bytes_ == nullptr) bytes_ = std::make_unique_for_overwrite<std::byte[]>(kCapacity);
  return absl::MakeSpan(bytes_.get(), static_cast<size_t>(size));
}

absl::Status run_chunks(std::vector<FileChunk>& chunks, int threads,
                        absl::FunctionRef<absl::Status(FileChunk&, ChunkBuffer&)> work) {
  std::atomic<size_t> next = 0;
  std::atomic<bool> failed = false;
  absl::Mutex mutex;  // of the first failures
  absl::Status status;
  std::exception_ptr thrown;
  const auto run = [&] {
    ChunkBuffer buffer;
    while (!failed) {
      const size_t chunk = next++;
      if (chunk >= chunks.size()) return;
      absl::Status done;
      std::exception_ptr exception;
      try {
        done = work(chunks[chunk], buffer);
      } catch (...) {
        exception = std::current_exception();
      }
      if (done.ok() && exception == nullptr) continue;
      failed = true;
      const absl::MutexLock lock(&mutex);
      status.Update(done);
      if (thrown == nullptr) thrown = exception;
    }
  };
  std::vector<std::thread> helpers;
  const auto wanted = std::min<size_t>(threads, chunks.size());
  try {
    while (helpers.size() + 1 < wanted) helpers.emplace_back(run);
  } catch (const std::system_error&) {
    // The threads that could be started do all the work.
  }
  run();
  for (std::thread& helper : helpers) helper.join();
  if (thrown != nullptr) std::rethrow_exception(thrown);
  return status;
}

std::vector<uint32_t> piece_checksums(const std::vector<FileChunk>& chunks, size_t pieces) {
  std::vector<uint32_t> checksums(pieces, 0);
  for (const FileChunk& chunk : chunks) {
    for (const FileChunk::Part& part : chunk.parts) {
      uint32_t& checksum = checksums[part.piece];
      checksum = concat_crc32c(checksum, part.crc32c, part.end - part.begin);
    }
  }
  return checksums;
}

}  // namespace accelerate::internal
